//! What is remembered of one unsettled key, and what the result of a run makes of it.

use tokio::time::Instant;

use super::backoff::later;
use super::item::{CauseCode, Group, Lane};
use super::put_backs::PutBack;
use super::run::{Run, RunResult, Trigger};

pub(super) struct KeyEntry<M> {
    /// The lane of the newest add.
    pub(super) lane: Lane,
    pub(super) group: Option<Group>,
    pub(super) fingerprint: u64,
    /// Why the next run is due. While one runs, it means something only if that run is followed by another.
    pub(super) cause: CauseCode,
    /// Failures in a row; or waits in a row, where the last run waited.
    pub(super) failures: u32,
    /// Whether these are waits: a wait ends a row of failures, and a failure one of waits.
    pub(super) waits: bool,
    /// The inputs of the last failure or wait; means something only while `failures` is above zero.
    pub(super) failed: u64,
    /// The first add after the last `Done`.
    pub(super) pending_since: Instant,
    pub(super) phase: KeyPhase,
    pub(super) memory: M,
}

#[derive(Debug)]
pub(super) enum KeyPhase {
    Ready(WaitingPosition),
    Held(WaitingPosition),
    Running(RunningKey),
}

/// Where a key waits: a ready one in its lane, a held one in the order of time.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitingPosition {
    pub(super) place: u64,
    /// Since when the key is ready, or until when it is held.
    pub(super) time: Instant,
    /// What its run will be triggered by; `Retry` marks the hold after a failure.
    pub(super) trigger: Trigger,
}

/// A key that runs, and what came in meanwhile.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunningKey {
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextPhase {
    Gone,
    Ready(Trigger),
    Held(Instant, Trigger),
}

impl RunningKey {
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

impl<M: Default> KeyEntry<M> {
    /// Takes over new inputs. When the key has failed with other ones, its failures are void; returns whether they were.
    pub(super) fn set_fingerprint(&mut self, fingerprint: u64) -> bool {
        self.fingerprint = fingerprint;
        let changed = self.failures > 0 && self.failed != fingerprint;
        if changed {
            self.failures = 0;
        }
        changed
    }

    /// How many failures are in a row, or how many waits.
    pub(super) fn in_a_row(&self, waits: bool) -> u32 {
        if self.waits == waits { self.failures } else { 0 }
    }

    /// What becomes of the key after a run.
    pub(super) fn finish_run<K>(
        &mut self,
        active: RunningKey,
        result: RunResult,
        run: &Run<K>,
        now: Instant,
    ) -> NextPhase {
        match result {
            _ if active.forgotten => self.settled(active),
            RunResult::Done => self.settled(active),
            RunResult::Requeue => self.requeued(active, NextPhase::Ready(Trigger::Again)),
            RunResult::RequeueAfter(delay) => self.requeued(active, NextPhase::Held(later(now, delay), Trigger::Again)),
            RunResult::Failed => self.held(active, run.fingerprint, false, later(now, run.retry_delay)),
            RunResult::FailedWith { fingerprint } => self.held(active, fingerprint, false, later(now, run.retry_delay)),
            RunResult::Waits { fingerprint } => self.held(active, fingerprint, true, later(now, run.wait_delay)),
        }
    }

    /// A settled key that is to run again with the inputs with which something was put back: it waits, and its waits go on.
    pub(super) fn held_back(&mut self, before: PutBack) -> NextPhase {
        (self.failures, self.waits, self.failed) = (before.count, true, self.fingerprint);
        NextPhase::Held(before.until, Trigger::Retry)
    }

    fn settled(&mut self, active: RunningKey) -> NextPhase {
        self.failures = 0;
        if !active.forgotten {
            self.memory = M::default();
        }
        active.dirty.map_or(NextPhase::Gone, |since| {
            self.pending_since = since;
            NextPhase::Ready(Trigger::Event)
        })
    }

    fn requeued(&mut self, active: RunningKey, wanted: NextPhase) -> NextPhase {
        if active.dirty.is_some() {
            self.set_fingerprint(self.fingerprint);
        }
        interrupted(active, wanted)
    }

    fn held(&mut self, active: RunningKey, fingerprint: u64, waits: bool, until: Instant) -> NextPhase {
        if active.dirty.is_some() && self.fingerprint != fingerprint {
            self.failures = 0;
            return interrupted(active, NextPhase::Held(until, Trigger::Event));
        }
        self.fingerprint = fingerprint;
        self.failures = self.in_a_row(waits).saturating_add(1);
        self.waits = waits;
        self.failed = fingerprint;
        // The inputs are those that failed: adds are swallowed.
        interrupted(
            RunningKey { dirty: None, ..active },
            NextPhase::Held(until, Trigger::Retry),
        )
    }
}

/// Where the result sends the key, unless an add or a wake during the run wants it earlier.
fn interrupted(active: RunningKey, wanted: NextPhase) -> NextPhase {
    match (active.dirty, wanted) {
        (Some(_), _) => NextPhase::Ready(Trigger::Event),
        (_, NextPhase::Held(..)) if active.woken => NextPhase::Ready(Trigger::Wake),
        (_, wanted) => wanted,
    }
}
