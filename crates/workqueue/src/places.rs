//! Where a key waits: among the ready ones or until a time. The observer hears of each move.

use std::collections::BTreeMap;
use std::collections::btree_map::OccupiedEntry;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::entry::{KeyEntry, KeyPhase, WaitingPosition};
use super::item::{AddResult, CauseCode, Group, Item, Key, Lane};
use super::lanes::Lanes;
use super::observer::Observer;
use super::run::Trigger;

/// The ready and the held keys. Held keys leave this order as soon as they leave the hold, so holding a key often costs no
/// more memory than holding it once.
pub(super) struct WaitingKeys<K> {
    pub(super) lanes: Lanes<K>,
    held: BTreeMap<(Instant, u64), K>,
    next_place: u64,
    pub(super) observer: Arc<dyn Observer>,
}

impl<K: Key> WaitingKeys<K> {
    pub(super) fn new(lanes: Lanes<K>, observer: Arc<dyn Observer>) -> Self {
        Self {
            lanes,
            held: BTreeMap::new(),
            next_place: 0,
            observer,
        }
    }

    /// Puts a key at the end of its group.
    pub(super) fn ready(
        &mut self,
        key: K,
        lane: Lane,
        group: Option<&Group>,
        time: Instant,
        trigger: Trigger,
    ) -> KeyPhase {
        let place = self.lanes.push(key, lane, group);
        self.observer.added(lane);
        self.observer.depth(lane, self.lanes.depth(lane));
        KeyPhase::Ready(WaitingPosition { place, time, trigger })
    }

    pub(super) fn hold(&mut self, key: K, time: Instant, trigger: Trigger) -> KeyPhase {
        let place = self.next_place;
        self.next_place += 1;
        self.held.insert((time, place), key);
        KeyPhase::Held(WaitingPosition { place, time, trigger })
    }

    /// Takes a waiting key from its place. Nothing when the key runs.
    pub(super) fn remove(&mut self, entry: &KeyEntry<K::Memory>) -> Option<K> {
        match &entry.phase {
            KeyPhase::Ready(ready) => {
                let key = self.lanes.remove(entry.lane, entry.group.as_ref(), ready.place);
                self.observer.depth(entry.lane, self.lanes.depth(entry.lane));
                key
            }
            KeyPhase::Held(hold) => self.held.remove(&(hold.time, hold.place)),
            KeyPhase::Running(_) => None,
        }
    }

    /// Takes the first held key whose time has come.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<K> {
        self.held
            .first_entry()
            .filter(|first| first.key().0 <= now)
            .map(OccupiedEntry::remove)
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.held.first_key_value().map(|((until, _), _)| *until)
    }

    /// The held keys with the ends of their holds, in this order.
    pub(super) fn held(&self) -> impl Iterator<Item = (&K, Instant)> {
        self.held.iter().map(|((until, _), key)| (key, *until))
    }

    /// Reports a start that [`Lanes::pop`] counted.
    pub(super) fn started(&self, lane: Lane, waited: Duration) {
        self.observer.depth(lane, self.lanes.depth(lane));
        self.observer.waited(lane, waited);
    }

    /// Counts and reports the end of a run.
    pub(super) fn release(&mut self, lane: Lane, group: Option<&Group>, worked: Duration) {
        self.lanes.release(lane, group);
        self.observer.worked(lane, worked);
    }

    /// An add of a key that is unsettled already.
    pub(super) fn add_again(&mut self, entry: &mut KeyEntry<K::Memory>, item: Item<K>, now: Instant) -> AddResult {
        let Item {
            key,
            lane,
            group,
            fingerprint,
            cause,
        } = item;
        match &mut entry.phase {
            KeyPhase::Running(active) => {
                if active.mark(now) || entry.lane != lane {
                    entry.cause = cause;
                }
                (entry.lane, entry.group, entry.fingerprint) = (lane, group, fingerprint);
                AddResult::Dirty
            }
            KeyPhase::Ready(ready) => {
                let mut ready = *ready;
                let moved = entry.lane != lane || entry.group != group;
                if entry.lane != lane {
                    entry.cause = cause;
                }
                if moved {
                    self.remove(entry);
                    (entry.lane, entry.group) = (lane, group);
                }
                if entry.set_fingerprint(fingerprint) {
                    ready.trigger = Trigger::Event;
                    entry.cause = cause;
                }
                entry.phase = if moved {
                    self.ready(key, entry.lane, entry.group.as_ref(), ready.time, ready.trigger)
                } else {
                    KeyPhase::Ready(ready)
                };
                AddResult::Waiting
            }
            KeyPhase::Held(hold) => {
                let hold = *hold;
                (entry.lane, entry.group) = (lane, group);
                let changed = entry.set_fingerprint(fingerprint);
                if hold.trigger == Trigger::Retry && !changed {
                    return AddResult::Swallowed;
                }
                self.end_hold(entry, cause, now, Trigger::Event);
                AddResult::Queued
            }
        }
    }

    /// A wake of a key that is unsettled. Returns whether there was anything to wake.
    pub(super) fn wake(&mut self, entry: &mut KeyEntry<K::Memory>, cause: CauseCode, now: Instant) -> bool {
        match &mut entry.phase {
            KeyPhase::Ready(_) => false,
            KeyPhase::Running(active) => {
                if !std::mem::replace(&mut active.woken, true) && active.dirty.is_none() {
                    entry.cause = cause;
                }
                true
            }
            KeyPhase::Held(_) => self.end_hold(entry, cause, now, Trigger::Wake),
        }
    }

    /// Makes a held key ready before its time.
    fn end_hold(&mut self, entry: &mut KeyEntry<K::Memory>, cause: CauseCode, now: Instant, trigger: Trigger) -> bool {
        let Some(key) = self.remove(entry) else { return false };
        entry.cause = cause;
        entry.phase = self.ready(key, entry.lane, entry.group.as_ref(), now, trigger);
        true
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.lanes.is_empty() && self.held.is_empty()
    }
}
