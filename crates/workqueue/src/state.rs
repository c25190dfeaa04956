//! The rules of the queue, without locks, tasks or a clock of their own.

use std::collections::HashMap;
use std::sync::Arc;

use fastrand::Rng;
use tokio::time::Instant;

use super::backoff::Backoff;
use super::entry::{KeyEntry, KeyPhase, NextPhase, RunningKey};
use super::item::{AddResult, CauseCode, Group, Item, Key, Lane};
use super::lanes::{Lanes, shrink};
use super::limits::{HoldRateLimiter, QueueLimits, Rate};
use super::observer::{LaneStats, Observer, Stats};
use super::places::WaitingKeys;
use super::put_backs::PutBacks;
use super::run::{Run, RunResult, Trigger};

/// All unsettled keys. Each is in exactly one place: ready, held or running.
pub(super) struct QueueState<K: Key> {
    entries: HashMap<K, KeyEntry<K::Memory>>,
    places: WaitingKeys<K>,
    pub(super) backoff: Backoff,
    /// The pace of the failures, and the same one of the waits.
    failures: HoldRateLimiter,
    waits: HoldRateLimiter,
    put_backs: PutBacks<K>,
    rng: Rng,
    pub(super) paused: bool,
    /// Nothing is handed out any more, and no add is taken.
    pub(super) closed: bool,
}

#[derive(Debug)]
pub(super) enum NextRun<K> {
    Run(Run<K>),
    /// Ask again after a change, or at this time.
    Wait(Option<Instant>),
    Closed,
}

impl<K: Key> QueueState<K> {
    pub(super) fn new(
        backoff: Backoff,
        limits: QueueLimits,
        pace: Rate,
        rng: Rng,
        observer: Arc<dyn Observer>,
        now: Instant,
    ) -> Self {
        Self {
            entries: HashMap::new(),
            places: WaitingKeys::new(Lanes::new(limits, now), observer),
            backoff,
            failures: HoldRateLimiter::new(pace, now),
            waits: HoldRateLimiter::new(pace, now),
            put_backs: PutBacks::new(now),
            rng,
            paused: false,
            closed: false,
        }
    }

    /// Adds a key, ready at once unless something was put back of it just now, and changes what is remembered of it.
    pub(super) fn add(&mut self, item: Item<K>, remember: impl FnOnce(&mut K::Memory), now: Instant) -> AddResult {
        if self.closed {
            return AddResult::Closed;
        }
        if let Some(entry) = self.entries.get_mut(&item.key) {
            remember(&mut entry.memory);
            return self.places.add_again(entry, item, now);
        }
        let Item {
            key,
            lane,
            group,
            fingerprint,
            cause,
        } = item;
        let before = self.put_backs.of(&key, fingerprint, now);
        let held = before.map(|before| before.until).filter(|until| *until > now);
        let phase = match held {
            Some(until) => self.places.hold(key.clone(), until, Trigger::Retry),
            None => self
                .places
                .ready(key.clone(), lane, group.as_ref(), now, Trigger::Event),
        };
        let mut memory = K::Memory::default();
        remember(&mut memory);
        let entry = KeyEntry {
            lane,
            group,
            fingerprint,
            cause,
            failures: before.map_or(0, |before| before.count),
            waits: before.is_some(),
            failed: fingerprint,
            pending_since: now,
            phase,
            memory,
        };
        self.entries.insert(key, entry);
        match held {
            Some(_) => AddResult::Swallowed,
            None => AddResult::Queued,
        }
    }

    /// Hands out the next key that may run.
    pub(super) fn next(&mut self, now: Instant) -> NextRun<K> {
        if self.closed {
            return NextRun::Closed;
        }
        if self.paused {
            return NextRun::Wait(None);
        }
        self.promote(now);
        loop {
            match self.places.lanes.pop(now) {
                Ok(key) => {
                    if let Some(run) = self.start(key, now) {
                        return NextRun::Run(run);
                    }
                }
                Err(token_at) => {
                    return NextRun::Wait(token_at.into_iter().chain(self.places.next_due()).min());
                }
            }
        }
    }

    /// The lane and the group of the next run of a key that runs.
    pub(super) fn wait_next_in(&mut self, key: &K, lane: Lane, group: Option<Group>) {
        if let Some(entry) = self.entries.get_mut(key)
            && let KeyPhase::Running(_) = entry.phase
        {
            (entry.lane, entry.group) = (lane, group);
        }
    }

    /// A run put back what somebody else had taken away.
    pub(super) fn count_put_back(&mut self, run: &Run<K>, now: Instant) {
        self.put_backs.count(run, self.backoff.max(), now);
    }

    pub(super) fn finish(&mut self, run: &Run<K>, result: RunResult, now: Instant) {
        self.put_backs.sweep(self.backoff.max(), now);
        self.places
            .release(run.lane, run.group.as_ref(), now.saturating_duration_since(run.started));
        let Some((key, mut entry)) = self.entries.remove_entry(&run.key) else {
            return;
        };
        let KeyPhase::Running(active) = entry.phase else {
            self.entries.insert(key, entry);
            return;
        };
        match result {
            RunResult::Failed | RunResult::FailedWith { .. } => self.failures.count(now),
            RunResult::Waits { .. } => self.waits.count(now),
            RunResult::Done | RunResult::Requeue | RunResult::RequeueAfter(_) => {}
        }
        let settles = active.forgotten || result == RunResult::Done;
        let mut next = entry.finish_run(active, result, run, now);
        if settles
            && next != NextPhase::Gone
            && let Some(before) = self.put_backs.of(&key, entry.fingerprint, now)
        {
            next = entry.held_back(before);
        }
        if next != NextPhase::Gone && result != RunResult::Done {
            self.places.observer.retried(entry.lane);
        }
        entry.phase = match next {
            NextPhase::Gone => {
                shrink(&mut self.entries);
                return;
            }
            NextPhase::Held(until, trigger) if until > now => self.places.hold(key.clone(), until, trigger),
            NextPhase::Held(_, trigger) | NextPhase::Ready(trigger) => {
                self.places
                    .ready(key.clone(), entry.lane, entry.group.as_ref(), now, trigger)
            }
        };
        self.entries.insert(key, entry);
    }

    /// Runs a held key now. Returns whether there was anything to wake.
    pub(super) fn wake(&mut self, key: &K, cause: CauseCode, now: Instant) -> bool {
        self.entries
            .get_mut(key)
            .is_some_and(|entry| self.places.wake(entry, cause, now))
    }

    /// Runs all held keys now, in the order of their times. Returns how many keys were woken.
    pub(super) fn wake_all(&mut self, cause: CauseCode, now: Instant) -> usize {
        let held: Vec<K> = self.places.held().map(|(key, _)| key.clone()).collect();
        let woken = held.iter().filter(|key| self.wake(key, cause, now)).count();
        let entries = self.entries.values_mut();
        let running = entries.filter(|entry| matches!(entry.phase, KeyPhase::Running(_)));
        woken
            + running
                .filter_map(|entry| self.places.wake(entry, cause, now).then_some(()))
                .count()
    }

    /// Drops a key that waits; a key that runs is dropped when it finishes. Returns what was remembered of it, if it was known.
    pub(super) fn forget(&mut self, key: &K) -> Option<K::Memory> {
        let entry = self.entries.get_mut(key)?;
        if let KeyPhase::Running(active) = &mut entry.phase {
            active.forgotten = true;
            active.dirty = None;
            return Some(std::mem::take(&mut entry.memory));
        }
        self.places.remove(entry);
        let forgotten = self.entries.remove(key);
        shrink(&mut self.entries);
        forgotten.map(|entry| entry.memory)
    }

    pub(super) fn memory(&mut self, key: &K) -> Option<&mut K::Memory> {
        self.entries.get_mut(key).map(|entry| &mut entry.memory)
    }

    /// What is remembered of all unsettled keys, in no order.
    pub(super) fn memories(&mut self) -> impl Iterator<Item = (&K, &mut K::Memory)> {
        self.entries.iter_mut().map(|(key, entry)| (key, &mut entry.memory))
    }

    /// The ready keys and their limits, and the work that is counted beside them.
    pub(super) fn lanes_mut(&mut self) -> &mut Lanes<K> {
        &mut self.places.lanes
    }

    pub(super) fn running(&self) -> usize {
        self.places.lanes.running()
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn failures(&self, key: &K) -> u32 {
        self.entries.get(key).map_or(0, |entry| entry.failures)
    }

    pub(super) fn is_held(&self, key: &K) -> bool {
        let entry = self.entries.get(key);
        entry.is_some_and(|entry| matches!(entry.phase, KeyPhase::Held(_)))
    }

    pub(super) fn held(&self) -> Vec<(K, Instant)> {
        self.places.held().map(|(key, until)| (key.clone(), until)).collect()
    }

    /// The figures of all lanes. They are asked for also while nothing runs, so that what was put back is forgotten then too.
    pub(super) fn stats(&mut self, now: Instant) -> Stats<K> {
        self.put_backs.sweep(self.backoff.max(), now);
        let count = self
            .entries
            .values()
            .map(|entry| entry.lane.index() + 1)
            .max()
            .unwrap_or_default();
        let count = count.max(self.places.lanes.count());
        let mut lanes: Vec<LaneStats<K>> = (0..count).map(|_| LaneStats::default()).collect();
        let mut oldest: Vec<Option<(&K, Instant)>> = vec![None; count];
        for (key, entry) in &self.entries {
            let index = match &entry.phase {
                KeyPhase::Running(active) => active.lane.index(),
                _ => entry.lane.index(),
            };
            let since = entry.pending_since;
            if oldest[index].is_none_or(|(_, earlier)| since < earlier) {
                oldest[index] = Some((key, since));
            }
            let blocked = self.places.lanes.is_blocked(entry.lane.index(), entry.group.as_ref());
            lanes[index].count(entry, blocked, now);
        }
        for (lane, oldest) in lanes.iter_mut().zip(oldest) {
            lane.oldest_pending = oldest.map(|(key, since)| (key.clone(), since));
        }
        Stats {
            lanes,
            lacks_token: self.places.lanes.lacks_token(now),
            paused: self.paused,
            closed: self.closed,
        }
    }

    /// For how many keys there is room without another allocation.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.entries.capacity()
    }

    /// Of how many keys it is known that something was put back.
    #[cfg(test)]
    pub(super) fn put_backs(&self) -> usize {
        self.put_backs.len()
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.places.is_empty()
    }

    /// Moves the held keys whose time has come to their lanes.
    fn promote(&mut self, now: Instant) {
        while let Some(key) = self.places.pop_due(now) {
            let Some(entry) = self.entries.get_mut(&key) else {
                continue;
            };
            let KeyPhase::Held(hold) = &entry.phase else { continue };
            let (until, trigger) = (hold.time, hold.trigger);
            entry.phase = self.places.ready(key, entry.lane, entry.group.as_ref(), until, trigger);
        }
    }

    fn start(&mut self, key: K, now: Instant) -> Option<Run<K>> {
        let entry = self.entries.get_mut(&key)?;
        let KeyPhase::Ready(ready) = &entry.phase else {
            return None;
        };
        // One draw for both, as only one of them will count.
        let waits = self.backoff.delay(entry.in_a_row(true), &mut self.rng.clone());
        let failed = self.backoff.delay(entry.in_a_row(false), &mut self.rng);
        let run = Run {
            lane: entry.lane,
            group: entry.group.clone(),
            fingerprint: entry.fingerprint,
            failures: entry.failures,
            waits: entry.waits,
            trigger: ready.trigger,
            cause: entry.cause,
            held_back: self.places.lanes.refused_since(entry.lane, ready.time),
            ready_since: ready.time,
            pending_since: entry.pending_since,
            started: now,
            retry_delay: failed.max(self.failures.delay(now)),
            wait_delay: waits.max(self.waits.delay(now)),
            key,
        };
        entry.phase = KeyPhase::Running(RunningKey::new(run.lane, now));
        self.places.started(run.lane, run.waited());
        Some(run)
    }
}
