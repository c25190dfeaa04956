//! What is added to a queue: a key with its lane, its group and the fingerprint of its inputs.

use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;

/// What a queue can hold: cheap to clone, for example an enum over `Arc<str>`.
pub trait Key: Remembered + Clone + Eq + Hash + Debug + Send + Sync + 'static {}

impl<K: Remembered + Clone + Eq + Hash + Debug + Send + Sync + 'static> Key for K {}

/// Something of which the owner of a queue remembers something while it is unsettled.
pub trait Remembered {
    /// What is remembered, such as since when the key waits for what. It is empty at the first add after the key was settled or
    /// forgotten, and ends with that.
    type Memory: Default + Send + 'static;
}

/// Names, of which nothing is remembered.
impl Remembered for Arc<str> {
    type Memory = ();
}

/// The same.
impl Remembered for &str {
    type Memory = ();
}

/// Whose work a key is, for fairness and for `QueueLimits::per_group`; in use: the node name.
pub type Group = Arc<str>;

/// What kind of work a key is. Lanes need no declaration: a lane that `QueueLimits::lanes` does not name has no limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane(u8);

impl Lane {
    /// The lane with this index, which is also its index in `QueueLimits::lanes` and `Stats::lanes`.
    pub const fn new(index: u8) -> Self {
        Self(index)
    }

    /// The index of this lane.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Why a key is to be worked on, in a code of its owner's: the queue carries it from the add or wake to the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CauseCode(u8);

impl CauseCode {
    /// The cause of this code.
    pub const fn new(code: u8) -> Self {
        Self(code)
    }

    /// The code that the owner of the queue gave.
    pub const fn code(self) -> u8 {
        self.0
    }
}

/// A key as its owner wants it queued. A later add of the same key replaces the lane, the group and the fingerprint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item<K> {
    /// What is to be worked on; equal keys are one.
    pub key: K,
    /// The lane that the key shall wait in.
    pub lane: Lane,
    /// The group within the lane. Keys without a group share one implicit group, to which `QueueLimits::per_group` does not apply.
    pub group: Option<Group>,
    /// A hash of all inputs on which the outcome of a run depends. While a failed key is held, an add with the fingerprint of
    /// the failed attempt does not run it earlier.
    pub fingerprint: u64,
    /// Why; of several adds before a run, that of the first counts, or of the first in the lane that the run is of.
    pub cause: CauseCode,
}

impl<K> Item<K> {
    /// An item without a group.
    pub fn new(key: K, lane: Lane, fingerprint: u64) -> Self {
        Self {
            key,
            lane,
            group: None,
            fingerprint,
            cause: CauseCode::default(),
        }
    }

    /// The same item for this cause.
    #[must_use]
    pub fn because(mut self, cause: CauseCode) -> Self {
        self.cause = cause;
        self
    }

    /// The same item in a group.
    #[must_use]
    pub fn in_group(mut self, group: impl Into<Group>) -> Self {
        self.group = Some(group.into());
        self
    }
}

/// What became of an add.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddResult {
    /// The key is ready to run: it is new, or the add ended its hold.
    Queued,
    /// The key was ready already; its lane, group and fingerprint are now those of this add.
    Waiting,
    /// The key is held after a failure with these very inputs, and the hold stays; or something was put back of it with these, and the hold
    /// begins.
    Swallowed,
    /// The key runs now; it runs again when that run has finished.
    Dirty,
    /// The queue is closed; nothing was stored.
    Closed,
}
