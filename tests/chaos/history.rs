//! What happened in a run, as plain data: the checker reads nothing else.

use std::fmt;

use jiff::Timestamp;

/// How volumes that are made for claims begin.
const MADE: &str = "pvc-";
/// How long their names are: the UID of the claim follows.
const NAME_LENGTH: usize = MADE.len() + 36;

/// The name that a volume was made under: its ID begins with it. Of others the ID.
pub fn name_of(volume: &str) -> &str {
    let name = volume.get(..NAME_LENGTH).filter(|_| volume.starts_with(MADE));
    name.unwrap_or(volume)
}

/// Whose Lease it is that says who creates and deletes volumes of a driver: stands for the driver in [`Term`] and [`Lapse`].
pub fn provisioner(driver: &str) -> String {
    format!("{driver}/provisioner")
}

/// A volume at a node, of one driver: the driver knows the volume by this ID, and the node by its name. Or a volume that is made for a
/// claim, by its name, and no node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    pub driver: String,
    pub volume: String,
    pub node: String,
}

impl Place {
    /// Whether it is about a volume that is made and deleted, and not about one that is attached.
    pub fn is_claim(&self) -> bool {
        self.node.is_empty()
    }

    /// Whose Lease is needed.
    pub fn leader(&self) -> String {
        if self.is_claim() {
            provisioner(&self.driver)
        } else {
            self.driver.clone()
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let node = if self.is_claim() { "the driver" } else { &self.node };
        write!(formatter, "{} at {node} ({})", self.volume, self.driver)
    }
}

/// A call that publishes or unpublishes, creates or deletes, from the driver's record.
#[derive(Clone, Debug)]
pub struct Call {
    pub place: Place,
    /// Whether it publishes or creates.
    pub makes: bool,
    /// The ID of the volume; a call that creates has none.
    pub handle: Option<String>,
    /// Whether it was answered with OK.
    pub ok: bool,
    /// The process that made it.
    pub pid: u32,
    pub started: Timestamp,
    /// `None` while it runs.
    pub finished: Option<Timestamp>,
    /// Whether it ended because its caller gave up.
    pub cancelled: bool,
    /// How it went, for people.
    pub outcome: String,
}

/// A time in which a process stood still.
#[derive(Clone, Copy, Debug)]
pub struct Stop {
    pub from: Timestamp,
    /// `None` while it stands still.
    pub to: Option<Timestamp>,
}

/// A process of the operator.
#[derive(Clone, Debug)]
pub struct Process {
    /// Its name in Leases.
    pub identity: String,
    pub pid: u32,
    /// Which program it runs.
    pub version: &'static str,
    pub started: Timestamp,
    /// When it was gone, if it is.
    pub ended: Option<Timestamp>,
    pub stops: Vec<Stop>,
}

impl Process {
    /// The standstill at this time, if there is one.
    pub fn stopped_at(&self, time: Timestamp) -> Option<Stop> {
        let covers = |stop: &&Stop| stop.from <= time && stop.to.is_none_or(|to| time < to);
        self.stops.iter().find(covers).copied()
    }

    /// The first standstill that overlaps this time.
    pub fn stopped_within(&self, from: Timestamp, to: Timestamp) -> Option<Stop> {
        let overlaps = |stop: &&Stop| stop.from < to && stop.to.is_none_or(|end| from < end);
        self.stops.iter().find(overlaps).copied()
    }
}

/// Somebody took a Lease, or it was found without a holder.
#[derive(Clone, Debug)]
pub struct Term {
    /// The driver, or [`provisioner`] of it.
    pub driver: String,
    pub namespace: String,
    /// `None` when nobody holds it, or the Lease is gone.
    pub holder: Option<String>,
    /// The time that the holder wrote into it; when it was seen if there is no holder.
    pub acquired: Timestamp,
    /// When it was seen. After a restore of etcd an older one counts again.
    pub seen: Timestamp,
}

/// A time in which the holder of a Lease did not renew it in time, so that it stopped to work for the driver for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lapse {
    pub driver: String,
    pub holder: String,
    /// When it was renewed last.
    pub from: Timestamp,
    /// When it was renewed again.
    pub to: Timestamp,
}

/// A time in which answers of the API server did not reach their process, or were not true: what becomes of a write is not known to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostAnswers {
    /// The name of the process in Leases; `None` for all.
    pub holder: Option<String>,
    pub from: Timestamp,
    pub to: Timestamp,
}

/// What a worker did to its VolumeAttachment, or saw. Of a claim and its PersistentVolume the same: bound is what attached is, and that
/// the volume is there is that it is published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is about to be created.
    Create,
    /// It says `attached: true`; whether the driver has it published at that moment.
    Attached { published: bool },
    /// It is about to be deleted. With the policy Retain, the volume is about to be deleted by hand.
    Delete,
    /// The API server answered the deletion; whether it holds the object for the operator's finalizer.
    DeleteAnswered { finalizer: bool },
    /// It is gone; of a claim, the PersistentVolume as well.
    Gone,
    /// It was gone, and the driver does not have it published.
    Free,
    /// It was gone for as long as the limit, and the driver has it published all the same.
    Kept,
    /// It did not come to rest in time after the last fault.
    Overdue { wanted: String, found: String },
}

/// A step and its time.
#[derive(Clone, Debug)]
pub struct Observation {
    pub at: Timestamp,
    pub place: Place,
    pub step: Step,
}

/// Something else that was found wrong at the time when it was looked at.
#[derive(Clone, Debug)]
pub struct Finding {
    pub at: Timestamp,
    pub kind: super::checker::Kind,
    /// What it is about: a volume, an AttacherConfig.
    pub object: String,
    pub text: String,
}

/// A line for people: a fault that began or ended, a step of a worker.
#[derive(Clone, Debug)]
pub struct Note {
    pub at: Timestamp,
    /// What it is about; empty for what is about everything.
    pub object: String,
    pub text: String,
}

/// Everything of a run.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub calls: Vec<Call>,
    pub processes: Vec<Process>,
    pub terms: Vec<Term>,
    pub lapses: Vec<Lapse>,
    pub lost_answers: Vec<LostAnswers>,
    pub observations: Vec<Observation>,
    pub findings: Vec<Finding>,
    pub notes: Vec<Note>,
    /// Times in which etcd went back to a copy, until everything was taken back: what was seen before is not true then.
    pub restores: Vec<(Timestamp, Timestamp)>,
    /// Times in which the process of the drivers, and of everybody who looks, stood still.
    pub stalls: Vec<(Timestamp, Timestamp)>,
}

impl History {
    /// The process that had this number at that time: the kernel gives numbers again.
    pub fn process(&self, pid: u32, at: Timestamp) -> Option<&Process> {
        let matches = |process: &&Process| process.pid == pid && process.started <= at;
        self.processes.iter().rfind(matches)
    }

    /// Whether etcd went back to a copy between these times.
    pub fn restored(&self, from: Timestamp, to: Timestamp) -> bool {
        self.restores.iter().any(|(begun, done)| *begun < to && from < *done)
    }
}
