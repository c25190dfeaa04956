//! Where a key waits: among the ready ones or until a time. Tells the observer of each move.

use std::collections::BTreeMap;
use std::collections::btree_map::OccupiedEntry;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::entry::{KeyEntry, KeyPhase, ReadyPosition, SpanBuffer};
use super::item::{Group, Key, Lane};
use super::lanes::{Lanes, NextReady};
use super::observer::Observer;
use super::run::Trigger;

/// The ready and the held keys. Held keys leave this order as soon as they leave the hold, so holding a key often costs no
/// more memory than holding it once.
pub(super) struct WaitingKeys<K> {
    lanes: Lanes<K>,
    held: BTreeMap<(Instant, u64), K>,
    next_place: u64,
    observer: Arc<dyn Observer>,
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

    pub(super) fn lanes(&self) -> &Lanes<K> {
        &self.lanes
    }

    pub(super) fn lanes_mut(&mut self) -> &mut Lanes<K> {
        &mut self.lanes
    }

    /// Puts a key at the end of its group.
    pub(super) fn ready(
        &mut self,
        key: K,
        lane: Lane,
        group: Option<&Group>,
        since: Instant,
        trigger: Trigger,
    ) -> KeyPhase {
        let place = self.lanes.push(key, lane, group);
        self.observer.added(lane);
        self.observer.depth(lane, self.lanes.depth(lane));
        KeyPhase::Ready(ReadyPosition { place, since, trigger })
    }

    /// Holds a key until a time.
    pub(super) fn hold(&mut self, key: K, until: Instant, trigger: Trigger) -> KeyPhase {
        let place = self.next_place;
        self.next_place += 1;
        self.held.insert((until, place), key);
        KeyPhase::Held(SpanBuffer { place, until, trigger })
    }

    /// Takes a waiting key from its place. Nothing when the key runs.
    pub(super) fn remove(&mut self, entry: &KeyEntry) -> Option<K> {
        match &entry.phase {
            KeyPhase::Ready(ready) => {
                let key = self.lanes.remove(entry.lane, entry.group.as_ref(), ready.place);
                self.observer.depth(entry.lane, self.lanes.depth(entry.lane));
                key
            }
            KeyPhase::Held(hold) => self.held.remove(&(hold.until, hold.place)),
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

    /// When the next hold ends.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.held.first_key_value().map(|((until, _), _)| *until)
    }

    /// The held keys in the order of their times.
    pub(super) fn held(&self) -> impl ExactSizeIterator<Item = &K> {
        self.held.values()
    }

    /// Takes the next key that may run now.
    pub(super) fn pop(&mut self, now: Instant) -> NextReady<K> {
        self.lanes.pop(now)
    }

    /// Tells of a start that [`Self::pop`] counted.
    pub(super) fn started(&self, lane: Lane, waited: Duration) {
        self.observer.depth(lane, self.lanes.depth(lane));
        self.observer.waited(lane, waited);
    }

    /// Counts and tells the end of a run.
    pub(super) fn release(&mut self, lane: Lane, group: Option<&Group>, worked: Duration) {
        self.lanes.release(lane, group);
        self.observer.worked(lane, worked);
    }

    /// Tells that a run asked for another one.
    pub(super) fn retried(&self, lane: Lane) {
        self.observer.retried(lane);
    }

    /// Whether nothing is remembered.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.lanes.is_empty() && self.held.is_empty()
    }
}
