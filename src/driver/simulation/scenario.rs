//! What a seed stands for: the objects, the character of the world, and what its actors do when.

use fastrand::Rng;
use std::time::Duration;

/// How many attachments there can be at most is the product of the two.
const MAX_VOLUMES: usize = 3;
const MAX_NODES: usize = 2;

/// A volume as its PersistentVolume describes it.
#[derive(Clone, Debug)]
pub struct Disk {
    /// Name of the PersistentVolume.
    pub name: String,
    /// Two PersistentVolumes may carry the same one.
    pub handle: String,
    /// Whether the backend publishes it to one node at a time only.
    pub single_writer: bool,
    /// Whether publishing needs a secret.
    pub secret: bool,
    /// Whether attachments describe it themselves and there is no PersistentVolume.
    pub inline: bool,
}

/// What a backend does with a call while an earlier one for the same volume and node is still at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Busy {
    /// It answers ABORTED.
    Aborts,
    /// It waits for the earlier one.
    Waits,
    /// It gives the earlier one up.
    Supersedes,
}

/// One thing that somebody does. Numbers are indexes of volumes and nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Attach(usize, usize),
    Detach(usize, usize),
    CreateVolume(usize),
    DeleteVolume(usize),
    /// Somebody takes all finalizers from a PersistentVolume that is being deleted.
    ForceVolume(usize),
    /// Somebody takes all finalizers from a VolumeAttachment and deletes it.
    ForceAttachment(usize, usize),
    /// Somebody puts an annotation and a finalizer of their own on a VolumeAttachment, or takes the finalizer off.
    EditAttachment(usize, usize),
    EditVolume(usize),
    RetryNow(usize, usize),
    NodeGoes(usize),
    NodeComes(usize),
    /// The node comes back under another node ID.
    NodeReborn(usize),
    /// The driver is not registered on the node any more.
    DriverLeaves(usize),
    SecretGoes(usize),
    SecretComes(usize),
    /// A watch breaks and lists anew; 0 attachments, 1 volumes, 2 nodes.
    WatchBreaks(usize),
    /// The operator dies and starts again after a while.
    Crash,
    /// The operator dies and the other replica takes over.
    Failover,
    /// The operator finishes what runs and the other replica takes over.
    HandOver,
    ConnectionLost,
    Reconfigure,
}

/// A history before it is run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Where it all comes from.
    pub seed: u64,
    /// Nothing fails and backoffs last longer than the history: whatever is to happen must follow from an event.
    pub faultless: bool,
    pub disks: Vec<Disk>,
    pub nodes: usize,
    /// Events with the pause before each.
    pub events: Vec<(Duration, Event)>,
    /// How many requests to the API server of a hundred go wrong.
    pub api_faults: u8,
    /// How many calls of the driver of a hundred go wrong.
    pub call_faults: u8,
    /// Longest delay of a watch.
    pub lag: Duration,
    pub busy: Busy,
    /// Calls of each kind at once; 0 is no limit.
    pub concurrency: usize,
    /// From this fault on nothing goes wrong any more; what a failing history is shortened by.
    pub max_faults: usize,
}

impl Scenario {
    pub fn of(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let faultless = rng.u8(0..4) == 0;
        let volumes = rng.choice([1, 1, 2, MAX_VOLUMES]).unwrap_or(1);
        let nodes = rng.usize(1..=MAX_NODES);
        let disks: Vec<Disk> = (0..volumes).map(|number| disk(number, faultless, &mut rng)).collect();
        let faulty = if faultless {
            0
        } else {
            rng.choice([0, 10, 30, 50]).unwrap_or(0)
        };
        let api_faults = if rng.bool() { faulty } else { faulty / 2 };
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
        let count = rng.usize(3..=18);
        let mut events: Vec<(Duration, Event)> = Vec::with_capacity(count + 1);
        events.push((Duration::ZERO, Event::Attach(0, 0)));
        for _ in 0..count {
            let event = event(&mut rng, volumes, nodes);
            events.push((pause(&mut rng), event));
        }
        Self {
            seed,
            faultless,
            disks,
            nodes,
            events,
            api_faults,
            call_faults,
            lag,
            busy,
            concurrency,
            max_faults: usize::MAX,
        }
    }
}

impl Disk {
    fn character(&self) -> String {
        let traits = [
            (self.single_writer, "single writer"),
            (self.secret, "secret"),
            (self.inline, "in line"),
        ];
        let traits: Vec<&str> = traits.iter().filter(|(is, _)| *is).map(|(_, name)| *name).collect();
        format!("{} is {} ({})", self.name, self.handle, traits.join(", "))
    }
}

impl Scenario {
    /// What is special about the world of this scenario.
    pub fn character(&self) -> String {
        let disks: Vec<String> = self.disks.iter().map(Disk::character).collect();
        let disks = disks.join("; ");
        format!(
            "{disks}; {} nodes; faults of requests {} %, of calls {} %, at most {}; watches up to {:?} behind; a busy backend {:?}",
            self.nodes, self.api_faults, self.call_faults, self.max_faults, self.lag, self.busy
        )
    }
}

fn disk(number: usize, faultless: bool, rng: &mut Rng) -> Disk {
    // The third PersistentVolume may be another name of the second one's volume.
    let twin = number == 2 && rng.u8(0..8) == 0;
    let handle = if twin { 1 } else { number };
    Disk {
        name: format!("pv{number}"),
        handle: format!("disk{handle}"),
        single_writer: !faultless && rng.u8(0..3) == 0,
        secret: rng.u8(0..4) == 0,
        inline: rng.u8(0..10) == 0,
    }
}

fn pause(rng: &mut Rng) -> Duration {
    let scale = rng.choice([0, 3, 30, 300, 3_000, 9_000]).unwrap_or(0);
    Duration::from_millis(rng.u64(0..=scale))
}

fn event(rng: &mut Rng, volumes: usize, nodes: usize) -> Event {
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
        75..=78 => Event::DriverLeaves(node),
        79..=80 => Event::SecretGoes(volume),
        81..=82 => Event::SecretComes(volume),
        83..=86 => Event::WatchBreaks(rng.usize(0..3)),
        87..=90 => Event::Crash,
        91..=93 => Event::Failover,
        94..=96 => Event::HandOver,
        97..=98 => Event::ConnectionLost,
        _ => Event::Reconfigure,
    }
}
