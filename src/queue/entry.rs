//! What is remembered of one unsettled key, and what a verdict makes of it.

use std::time::Duration;

use tokio::time::Instant;

use super::places::{Hold, Ready};
use super::{Cause, Group, Lane, Trigger, Verdict, later};

/// One unsettled key.
#[derive(Debug)]
pub(super) struct Entry {
    /// The lane of the newest add.
    pub(super) lane: Lane,
    /// The group of the newest add.
    pub(super) group: Option<Group>,
    /// The newest inputs.
    pub(super) fingerprint: u64,
    /// Why the next run is due. While one runs, it means something only if that run is followed by another.
    pub(super) cause: Cause,
    /// Failures in a row.
    pub(super) failures: u32,
    /// The inputs of the last failure; means something only while `failures` is above zero.
    pub(super) failed: u64,
    /// The first add after the last `Done`.
    pub(super) pending_since: Instant,
    pub(super) phase: Phase,
}

/// Where a key is.
#[derive(Debug)]
pub(super) enum Phase {
    Ready(Ready),
    Held(Hold),
    Running(Active),
}

/// A key that runs, and what came in meanwhile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Active {
    /// The lane that the run counts in; that of the entry may be newer.
    pub(super) lane: Lane,
    pub(super) started: Instant,
    /// The first add during the run.
    pub(super) dirty: Option<Instant>,
    /// Woken during the run: a failure is not held.
    pub(super) woken: bool,
    /// Forgotten during the run: only a later add keeps the key.
    pub(super) forgotten: bool,
}

/// Where a key goes after a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Course {
    Gone,
    Ready(Trigger),
    Held(Instant, Trigger),
}

impl Active {
    pub(super) fn new(lane: Lane, started: Instant) -> Self {
        Self {
            lane,
            started,
            dirty: None,
            woken: false,
            forgotten: false,
        }
    }

    /// Remembers an add. Returns whether it is the first that is remembered.
    pub(super) fn mark(&mut self, now: Instant) -> bool {
        let is_first = self.dirty.is_none();
        self.dirty.get_or_insert(now);
        is_first
    }
}

impl Entry {
    /// Takes over new inputs. When the key has failed with other ones, its failures are void; returns whether they were.
    pub(super) fn observe(&mut self, fingerprint: u64) -> bool {
        self.fingerprint = fingerprint;
        let changed = self.failures > 0 && self.failed != fingerprint;
        if changed {
            self.failures = 0;
        }
        changed
    }

    /// What becomes of the key after a run that started with the inputs `fingerprint`.
    pub(super) fn settle(
        &mut self,
        active: Active,
        verdict: Verdict,
        fingerprint: u64,
        retry_delay: Duration,
        now: Instant,
    ) -> Course {
        match verdict {
            _ if active.forgotten => self.settled(active),
            Verdict::Done => self.settled(active),
            Verdict::Again => self.requeued(active, Course::Ready(Trigger::Again)),
            Verdict::After(delay) => self.requeued(active, Course::Held(later(now, delay), Trigger::Again)),
            Verdict::Failed => self.failed(active, fingerprint, later(now, retry_delay)),
            Verdict::FailedWith { fingerprint } => self.failed(active, fingerprint, later(now, retry_delay)),
        }
    }

    fn settled(&mut self, active: Active) -> Course {
        self.failures = 0;
        active.dirty.map_or(Course::Gone, |since| {
            self.pending_since = since;
            Course::Ready(Trigger::Event)
        })
    }

    fn requeued(&mut self, active: Active, wanted: Course) -> Course {
        if active.dirty.is_some() {
            self.observe(self.fingerprint);
        }
        interrupted(active, wanted)
    }

    fn failed(&mut self, active: Active, fingerprint: u64, until: Instant) -> Course {
        if active.dirty.is_some() && self.fingerprint != fingerprint {
            self.failures = 0;
            return interrupted(active, Course::Held(until, Trigger::Event));
        }
        self.fingerprint = fingerprint;
        self.failures = self.failures.saturating_add(1);
        self.failed = fingerprint;
        // The inputs are those that failed: adds are swallowed.
        interrupted(Active { dirty: None, ..active }, Course::Held(until, Trigger::Retry))
    }
}

/// The course that a verdict wants, unless an add or a wake during the run wants the key earlier.
fn interrupted(active: Active, wanted: Course) -> Course {
    match (active.dirty, wanted) {
        (Some(_), _) => Course::Ready(Trigger::Event),
        (_, Course::Held(..)) if active.woken => Course::Ready(Trigger::Wake),
        (_, wanted) => wanted,
    }
}
