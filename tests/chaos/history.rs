//! What happened in a run, as plain data: the checker reads nothing else.

use std::fmt;

use jiff::Timestamp;

/// A volume at a node, of one driver. The driver knows the node by its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    pub driver: String,
    pub volume: String,
    pub node: String,
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} at {} ({})", self.volume, self.node, self.driver)
    }
}

/// A call that publishes or unpublishes, from the driver's record.
#[derive(Clone, Debug)]
pub struct Call {
    pub place: Place,
    pub publish: bool,
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

/// What a worker did to its VolumeAttachment, or saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is about to be created.
    Create,
    /// It says `attached: true`; whether the driver has it published at that moment.
    Attached { published: bool },
    /// It is about to be deleted.
    Delete,
    /// The API server answered the deletion; whether it holds the object for the operator's finalizer.
    DeleteAnswered { finalizer: bool },
    /// It is gone.
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
    pub observations: Vec<Observation>,
    pub findings: Vec<Finding>,
    pub notes: Vec<Note>,
    /// Times in which etcd went back to a copy, until everything was taken back: what was seen before is not true then.
    pub restores: Vec<(Timestamp, Timestamp)>,
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
