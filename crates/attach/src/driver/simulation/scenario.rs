//! What a history is before it is run: the objects, the character of the world, and what its actors do when.

use std::time::Duration;

use super::cluster::Kind;

/// So many volumes a driver has whose writes are slow: with six nodes more attachments than requests may be in flight at first.
const SLOW_VOLUMES: usize = 4;
/// How long a slow write takes, as with a webhook; less than the deadline of a request.
pub const SLOW: Duration = Duration::from_secs(2);

/// How many drivers there are at most.
pub const DRIVERS: [&str; 2] = ["a.test", "b.test"];

/// A volume as its PersistentVolume describes it.
#[derive(Clone, Debug)]
pub struct Disk {
    /// Name of the PersistentVolume.
    pub name: String,
    /// Index of its driver.
    pub driver: usize,
    /// Two PersistentVolumes may carry the same one.
    pub handle: String,
    /// Whether the backend publishes it to one node at a time only.
    pub single_writer: bool,
    /// Whether publishing needs a Secret, and whose.
    pub secret: Secret,
    /// Whether the PersistentVolume is read-only.
    pub read_only: bool,
    /// Whether attachments describe it themselves and there is no PersistentVolume.
    pub inline: bool,
}

/// The publish Secret of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Secret {
    /// It needs none.
    None,
    /// One that its driver may have.
    Own,
    /// One that its driver may not have.
    Forbidden,
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

/// One thing that somebody does. Numbers are indexes of volumes, nodes and drivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Attach(usize, usize),
    Detach(usize, usize),
    /// Somebody makes a VolumeAttachment for the wrong driver, or deletes it.
    AttachByOther(usize, usize),
    DetachByOther(usize, usize),
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
    /// No driver is registered on the node any more.
    DriverLeaves(usize),
    SecretGoes(usize),
    /// The Secret comes back, or its value changes.
    SecretComes(usize),
    /// A watch breaks in each process and lists anew; 0 attachments, 1 volumes, 2 nodes.
    WatchBreaks(usize),
    /// The process at work dies; another one starts after a while.
    Crash,
    /// The process at work is told to end; another one starts then.
    HandOver,
    /// A driver's connections are lost and come back after a while.
    ConnectionLost(usize),
    /// Settings change: limits, backoff, calls for one node.
    Reconfigure(usize),
    /// The process at work stands still before so many further polls, for so many milliseconds.
    StandStill(u64, u64),
    /// The same, with the machine: its monotonic clock stops meanwhile.
    Suspend(u64, u64),
    /// The wall clock of the process at work jumps by so many seconds.
    WallClock(i64),
    /// Somebody deletes the Lease of a driver.
    LeaseGoes(usize),
    /// A client that is no replica competes for the Lease of a driver for so many milliseconds.
    StrangerCompetes(usize, u64),
    /// The Lease is to live in another namespace; each replica hears of it in its own time.
    LeaseMoves(usize),
    /// The API server goes back by so many changes; with or without greater revisions from then on.
    Restore(usize, bool),
    /// The driver loses PUBLISH_UNPUBLISH, as when its endpoint is another program's for a while.
    CapabilityGoes(usize),
    CapabilityComes(usize),
    /// The backend loses a volume from a node behind everybody's back.
    Drift(usize, usize),
    /// Somebody removes a PersistentVolume by force and makes one of its name that is another volume.
    RemakeVolume(usize),
    /// Somebody sets the annotation with the node ID of a VolumeAttachment to the empty string.
    BlankNodeId(usize, usize),
    /// All processes end, and a sidecar works in their place.
    SidecarComes,
    /// The sidecar ends, and processes start.
    SidecarGoes,
    /// The API server answers nothing for so many milliseconds, and tells nothing.
    Stall(u64),
}

/// How replicas agree on one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    pub duration: Duration,
    pub renew_deadline: Duration,
    pub retry_period: Duration,
}

/// In which worlds histories are played.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KindOfWorld {
    /// All.
    #[default]
    Any,
    /// Replicas hand over to others whose watches are behind.
    LateSuccessors,
    /// PersistentVolumes become other volumes under their names, and node IDs are blanked.
    OtherIdentities,
    /// Writes to one kind of objects of one driver take seconds; another driver's are quick.
    SlowRequests,
    /// The API server stalls now and then. Nothing else ends a watch.
    Stalls,
}

impl KindOfWorld {
    pub const ALL: [Self; 5] = [
        Self::Any,
        Self::LateSuccessors,
        Self::OtherIdentities,
        Self::SlowRequests,
        Self::Stalls,
    ];

    /// The history of a seed in such a world.
    pub fn of(self, seed: u64) -> Scenario {
        let scenario = Scenario::of(seed);
        match self {
            Self::Any => scenario,
            Self::LateSuccessors => scenario.with_late_successors(),
            Self::OtherIdentities => scenario.with_other_identities(),
            Self::SlowRequests => scenario.with_slow_requests(),
            Self::Stalls => scenario.with_stalls(),
        }
    }
}

/// A history before it is run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Where it all comes from.
    pub seed: u64,
    /// Nothing fails and backoffs last longer than the history: whatever is to happen must follow from an event.
    pub faultless: bool,
    pub drivers: usize,
    pub disks: Vec<Disk>,
    pub nodes: usize,
    /// Events with the pause before each.
    pub events: Vec<(Duration, Event)>,
    /// Processes that compete for the Leases; without any of that there is one process that just works.
    pub replicas: usize,
    pub lease: Option<Lease>,
    /// How many requests to the API server of a hundred go wrong.
    pub api_faults: u8,
    /// How many answers of a hundred that go wrong are not true.
    pub lies: u8,
    /// How many calls of the driver of a hundred go wrong.
    pub call_faults: u8,
    /// Longest delay of a watch.
    pub lag: Duration,
    pub busy: Busy,
    /// Calls of each kind at once; 0 is no limit.
    pub concurrency: usize,
    /// How often attachments are compared with what the driver lists, if they are.
    pub lists: Option<Duration>,
    /// Writes to these objects of the first driver take [`SLOW`].
    pub slow: Option<Kind>,
    /// Nothing but a stall could end a watch.
    pub steady_watches: bool,
    /// From this fault on nothing goes wrong any more; what a failing history is shortened by.
    pub max_faults: usize,
}

impl Disk {
    /// One that needs nothing special.
    pub fn plain(number: usize) -> Self {
        Self {
            name: format!("pv{number}"),
            driver: 0,
            handle: format!("disk{number}"),
            single_writer: false,
            secret: Secret::None,
            read_only: false,
            inline: false,
        }
    }

    fn character(&self) -> String {
        let traits = [
            (self.single_writer, "single writer"),
            (self.secret == Secret::Own, "secret"),
            (self.secret == Secret::Forbidden, "forbidden secret"),
            (self.read_only, "read-only"),
            (self.inline, "in line"),
        ];
        let traits: Vec<&str> = traits.iter().filter(|(is, _)| *is).map(|(_, name)| *name).collect();
        let (name, handle, driver) = (&self.name, &self.handle, DRIVERS[self.driver]);
        format!("{name} is {handle} of {driver} ({})", traits.join(", "))
    }
}

impl Scenario {
    /// What is special about the world of this scenario.
    pub fn character(&self) -> String {
        let disks: Vec<String> = self.disks.iter().map(Disk::character).collect();
        let disks = disks.join("; ");
        let of_lease = |lease: Lease| format!("{} replicas, {lease:?}", self.replicas);
        let lease = self.lease.map_or("no election".to_owned(), of_lease);
        let every = |interval: Duration| format!("listed every {interval:?}");
        let lists = self.lists.map_or("no listing".to_owned(), every);
        format!(
            "{disks}; {} nodes; {lease}; {lists}; faults of requests {} %, of which untrue {} %, of calls {} %, at most \
             {}; watches up to {:?} behind; a busy backend {:?}; {} calls at once{}",
            self.nodes,
            self.api_faults,
            self.lies,
            self.call_faults,
            self.max_faults,
            self.lag,
            self.busy,
            self.concurrency,
            if self.faultless { "; faultless" } else { "" }
        )
    }

    /// The same with two replicas at least, watches that are seconds behind, and more processes that end: each time those of
    /// others break, so that who takes over knows the attachments of some time ago.
    fn with_late_successors(mut self) -> Self {
        self.lag = Duration::from_secs(4);
        self.replicas = self.replicas.max(2);
        self.lease.get_or_insert(Lease {
            duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(4),
        });
        let events = self.events.into_iter();
        let events = events.flat_map(|(pause, event)| match event {
            Event::Crash | Event::HandOver => {
                vec![(pause, Event::WatchBreaks(0)), (Duration::ZERO, Event::HandOver)]
            }
            event => vec![(pause, event)],
        });
        self.events = events.collect();
        self
    }

    /// The same with one to three events that change which volume a PersistentVolume is, or which node ID is noted. Half of these
    /// histories compare what is attached with what the driver lists. The API server does not go back.
    fn with_other_identities(mut self) -> Self {
        let mut rng = fastrand::Rng::with_seed(self.seed ^ 0x1d);
        if !self.faultless && self.lists.is_none() && rng.bool() {
            self.lists = Some(Duration::from_secs(5));
        }
        self.events.retain(|(_, event)| !matches!(event, Event::Restore(..)));
        for _ in 0..rng.usize(1..=3) {
            let volume = rng.usize(0..self.disks.len());
            let event = match rng.u8(0..3) {
                0 => Event::BlankNodeId(volume, rng.usize(0..self.nodes)),
                _ => Event::RemakeVolume(volume),
            };
            let pause = Duration::from_millis(rng.u64(0..=3_000));
            let at = rng.usize(1..=self.events.len());
            self.events.insert(at, (pause, event));
        }
        self
    }

    /// Another history of the seed: a driver whose writes to one kind of objects take [`SLOW`] has many volumes to attach, and beside it
    /// one whose writes are quick has some. Nothing fails.
    fn with_slow_requests(self) -> Self {
        let mut rng = fastrand::Rng::with_seed(self.seed ^ 0x510);
        let disk = |number: usize| Disk {
            driver: usize::from(number == 0),
            ..Disk::plain(number)
        };
        let (volumes, nodes) = (1 + SLOW_VOLUMES, 6);
        let places = (1..volumes).flat_map(|volume| (0..nodes).map(move |node| (volume, node)));
        let mut places: Vec<(usize, usize)> = places.collect();
        rng.shuffle(&mut places);
        let slow = places.into_iter().map(|(volume, node)| Event::Attach(volume, node));
        let quick = (0..nodes).map(|node| Event::Attach(0, node));
        let mut events: Vec<(Duration, Event)> = slow.map(|event| (Duration::ZERO, event)).collect();
        for event in quick {
            let at = rng.usize(events.len() / 2..=events.len());
            events.insert(at, (Duration::from_millis(rng.u64(0..=500)), event));
        }
        Self {
            faultless: true,
            drivers: 2,
            disks: (0..volumes).map(disk).collect(),
            nodes,
            events,
            replicas: 1,
            lease: None,
            api_faults: 0,
            lies: 0,
            call_faults: 0,
            lag: Duration::from_millis(5),
            busy: Busy::Waits,
            concurrency: 0,
            lists: None,
            slow: rng.choice([Kind::Attachment, Kind::Volume]),
            ..self
        }
    }

    /// The same with one to three stalls of 2 to 5 s, and of all other events those of users, nodes and drivers: none that ends a watch or
    /// has everything listed again.
    fn with_stalls(mut self) -> Self {
        let mut rng = fastrand::Rng::with_seed(self.seed ^ 0x57a11);
        (self.faultless, self.api_faults, self.lies, self.steady_watches) = (false, 0, 0, true);
        (self.replicas, self.lease) = (1, None);
        let stays = |event: &Event| {
            use Event::{Attach, ConnectionLost, CreateVolume, DeleteVolume, Detach, EditAttachment, EditVolume};
            use Event::{NodeComes, NodeGoes, NodeReborn, SecretComes, SecretGoes};
            matches!(
                event,
                Attach(..)
                    | Detach(..)
                    | CreateVolume(_)
                    | DeleteVolume(_)
                    | EditAttachment(..)
                    | EditVolume(_)
                    | NodeComes(_)
                    | NodeGoes(_)
                    | NodeReborn(_)
                    | SecretComes(_)
                    | SecretGoes(_)
                    | ConnectionLost(_)
            )
        };
        self.events.retain(|(_, event)| stays(event));
        for _ in 0..rng.usize(1..=3) {
            let stall = Event::Stall(rng.u64(2_000..=5_000));
            let at = rng.usize(1..=self.events.len());
            self.events
                .insert(at, (Duration::from_millis(rng.u64(0..=3_000)), stall));
        }
        self
    }

    /// The same world without one of its kinds of trouble, for each that it has: what a story may be simpler by.
    pub fn simpler(&self) -> Vec<Self> {
        let mut all = Vec::new();
        let mut with = |differs: bool, change: &dyn Fn(&mut Self)| {
            if differs {
                let mut simpler = self.clone();
                change(&mut simpler);
                all.push(simpler);
            }
        };
        with(self.lies > 0, &|scenario| scenario.lies = 0);
        with(self.call_faults > 0, &|scenario| scenario.call_faults = 0);
        with(self.api_faults > 0, &|scenario| scenario.api_faults = 0);
        with(self.lists.is_some(), &|scenario| scenario.lists = None);
        with(self.concurrency > 0, &|scenario| scenario.concurrency = 0);
        with(self.replicas > 2, &|scenario| scenario.replicas = 2);
        with(self.lease.is_some(), &|scenario| {
            scenario.lease = None;
            scenario.replicas = 1;
        });
        with(self.lag > Duration::from_millis(5), &|scenario| {
            scenario.lag = Duration::from_millis(5);
        });
        for number in 0..self.disks.len() {
            let disk = &self.disks[number];
            with(disk.secret != Secret::None, &|scenario| {
                scenario.disks[number].secret = Secret::None;
            });
            with(disk.inline, &|scenario| scenario.disks[number].inline = false);
            with(disk.single_writer, &|scenario| {
                scenario.disks[number].single_writer = false;
            });
        }
        all
    }
}
