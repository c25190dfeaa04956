//! What a seed stands for.

use fastrand::Rng;
use std::time::Duration;

use super::scenario::{Busy, Disk, Event, Lease, Scenario, Secret};

/// How many attachments there can be at most is the product of the two.
const MAX_VOLUMES: usize = 3;
/// Nodes of a volume that many share.
const MANY_NODES: usize = 6;

/// The kinds of trouble that a history may have besides faults of requests and calls.
#[derive(Clone, Copy)]
struct Kinds {
    elected: bool,
    standstills: bool,
    leases: bool,
    restores: bool,
    capabilities: bool,
    lists: bool,
    sidecars: bool,
    stalls: bool,
}

impl Kinds {
    fn draw(rng: &mut Rng, faultless: bool) -> Self {
        let elected = rng.u8(0..3) == 0;
        let mut one_of = |parts: u8| rng.u8(0..parts) == 0 && !faultless;
        Self {
            elected,
            standstills: one_of(2) && elected,
            leases: one_of(3) && elected,
            restores: one_of(16),
            capabilities: one_of(12),
            lists: one_of(12),
            sidecars: one_of(12),
            stalls: one_of(12),
        }
    }
}

impl Scenario {
    pub fn of(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let faultless = rng.u8(0..4) == 0;
        let kinds = Kinds::draw(&mut rng, faultless);
        let drivers = if rng.u8(0..6) == 0 { 2 } else { 1 };
        let mut volumes = rng.choice([1, 1, 2, MAX_VOLUMES]).unwrap_or(1);
        let mut nodes = rng.usize(1..=2);
        let many = rng.u8(0..12) == 0;
        if many {
            (volumes, nodes) = (1, rng.usize(3..=MANY_NODES));
        }
        let disks: Vec<Disk> = (0..volumes)
            .map(|number| disk(number, drivers, faultless, many, &mut rng))
            .collect();
        let faulty = if faultless {
            0
        } else {
            rng.choice([0, 10, 30, 50]).unwrap_or(0)
        };
        let api_faults = if rng.bool() { faulty } else { faulty / 2 };
        let lies = rng.choice([0, 0, 25, 60]).unwrap_or(0);
        let call_faults = if faultless {
            0
        } else {
            rng.choice([0, 20, 50]).unwrap_or(0)
        };
        let lag = Duration::from_millis(rng.choice([5, 50, 500, 4000]).unwrap_or(5));
        let mut busy = rng
            .choice([Busy::Aborts, Busy::Waits, Busy::Supersedes])
            .unwrap_or(Busy::Waits);
        if faultless {
            // After a crash, an answer that is ABORTED or too late would be a fault.
            busy = Busy::Supersedes;
        }
        let concurrency = rng.choice([0, 0, 1, 2]).unwrap_or(0);
        let lease = kinds.elected.then(|| lease(&mut rng));
        let replicas = if kinds.elected { rng.usize(2..=3) } else { 1 };
        let lists = kinds.lists.then(|| Duration::from_secs(rng.u64(3..=10)));
        let count = rng.usize(3..=18) + if many { nodes } else { 0 };
        let mut events: Vec<(Duration, Event)> = Vec::with_capacity(count + 1);
        events.push((Duration::ZERO, Event::Attach(0, 0)));
        for _ in 0..count {
            let event = trouble(&mut rng, kinds, drivers, volumes, nodes)
                .unwrap_or_else(|| event(&mut rng, drivers, volumes, nodes));
            events.push((pause(&mut rng), event));
        }
        Self {
            seed,
            faultless,
            drivers,
            disks,
            nodes,
            events,
            replicas,
            lease,
            api_faults,
            lies,
            call_faults,
            lag,
            busy,
            concurrency,
            lists,
            slow: None,
            steady_watches: false,
            max_faults: usize::MAX,
        }
    }
}

fn lease(rng: &mut Rng) -> Lease {
    let times = [(15, 10, 4), (15, 10, 4), (6, 4, 2), (30, 20, 8)];
    let (duration, renew_deadline, retry_period) = rng.choice(times).unwrap_or((15, 10, 4));
    Lease {
        duration: Duration::from_secs(duration),
        renew_deadline: Duration::from_secs(renew_deadline),
        retry_period: Duration::from_secs(retry_period),
    }
}

fn disk(number: usize, drivers: usize, faultless: bool, many: bool, rng: &mut Rng) -> Disk {
    let driver = rng.usize(0..drivers);
    // The third PersistentVolume may be another name of the second one's volume.
    let twin = number == 2 && rng.u8(0..8) == 0;
    let handle = if twin { 1 } else { number };
    let secret = match rng.u8(0..24) {
        0..=5 => Secret::Own,
        6 => Secret::Forbidden,
        _ => Secret::None,
    };
    Disk {
        name: format!("pv{number}"),
        driver: if twin { 0 } else { driver },
        handle: format!("disk{handle}"),
        single_writer: !faultless && !many && rng.u8(0..3) == 0,
        secret,
        read_only: rng.u8(0..8) == 0,
        inline: rng.u8(0..10) == 0,
    }
}

fn pause(rng: &mut Rng) -> Duration {
    let scale = rng.choice([0, 3, 30, 300, 3_000, 9_000]).unwrap_or(0);
    Duration::from_millis(rng.u64(0..=scale))
}

/// An event of the kinds that only some histories have.
fn trouble(rng: &mut Rng, kinds: Kinds, drivers: usize, volumes: usize, nodes: usize) -> Option<Event> {
    let driver = rng.usize(0..drivers);
    let drawn = rng.u8(0..100);
    let event = match drawn {
        0..=13 if kinds.standstills => {
            let polls = rng.choice([0, 3, 30, 300]).unwrap_or(0);
            let millis = rng.choice([500, 6_000, 12_000, 40_000]).unwrap_or(500);
            let (polls, millis) = (rng.u64(0..=polls), rng.u64(0..=millis));
            if rng.u8(0..3) == 0 {
                Event::Suspend(polls, millis)
            } else {
                Event::StandStill(polls, millis)
            }
        }
        14..=15 if kinds.standstills => Event::WallClock(rng.i64(-4_000..=4_000)),
        16..=18 if kinds.leases => Event::LeaseGoes(driver),
        19..=21 if kinds.leases => Event::StrangerCompetes(driver, rng.u64(0..=30_000)),
        22..=26 if kinds.leases => Event::LeaseMoves(rng.usize(0..2)),
        27..=30 if kinds.restores => Event::Restore(rng.usize(1..=25), rng.bool()),
        31..=35 if kinds.capabilities => Event::CapabilityGoes(driver),
        36..=40 if kinds.capabilities => Event::CapabilityComes(driver),
        47..=55 if kinds.sidecars && rng.bool() => Event::SidecarComes,
        47..=55 if kinds.sidecars => Event::SidecarGoes,
        56..=58 if kinds.stalls => Event::Stall(rng.u64(0..=6_000)),
        41..=46 if kinds.lists => Event::Drift(rng.usize(0..volumes), rng.usize(0..nodes)),
        _ => return None,
    };
    Some(event)
}

fn event(rng: &mut Rng, drivers: usize, volumes: usize, nodes: usize) -> Event {
    let (volume, node) = (rng.usize(0..volumes), rng.usize(0..nodes));
    match rng.u8(0..100) {
        0..=20 => Event::Attach(volume, node),
        21..=40 => Event::Detach(volume, node),
        41..=43 => Event::NodeReborn(node),
        44..=48 => Event::CreateVolume(volume),
        49..=56 => Event::DeleteVolume(volume),
        57..=58 => Event::ForceVolume(volume),
        59..=60 => Event::ForceAttachment(volume, node),
        61..=63 => Event::EditAttachment(volume, node),
        64..=65 => Event::EditVolume(volume),
        66 => Event::RetryNow(volume, node),
        67..=69 => Event::NodeGoes(node),
        70..=74 => Event::NodeComes(node),
        75..=77 => Event::DriverLeaves(node),
        78 if drivers > 1 => Event::AttachByOther(volume, node),
        79 if drivers > 1 => Event::DetachByOther(volume, node),
        78..=80 => Event::SecretGoes(volume),
        81..=82 => Event::SecretComes(volume),
        83..=86 => Event::WatchBreaks(rng.usize(0..3)),
        87..=91 => Event::Crash,
        92..=95 => Event::HandOver,
        96..=97 => Event::ConnectionLost(rng.usize(0..drivers)),
        _ => Event::Reconfigure(rng.usize(0..4)),
    }
}
