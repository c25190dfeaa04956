//! What an add or a wake makes of a key that is unsettled already.

use tokio::time::Instant;

use super::entry::{KeyEntry, KeyPhase};
use super::item::{AddResult, CauseCode, Item, Key};
use super::places::WaitingKeys;
use super::run::Trigger;

/// An add of a key that is unsettled already.
pub(super) fn readd<K: Key>(
    places: &mut WaitingKeys<K>,
    entry: &mut KeyEntry,
    item: Item<K>,
    now: Instant,
) -> AddResult {
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
                places.remove(entry);
                (entry.lane, entry.group) = (lane, group);
            }
            if entry.set_fingerprint(fingerprint) {
                ready.trigger = Trigger::Event;
                entry.cause = cause;
            }
            entry.phase = if moved {
                places.ready(key, entry.lane, entry.group.as_ref(), ready.since, ready.trigger)
            } else {
                KeyPhase::Ready(ready)
            };
            AddResult::Waiting
        }
        KeyPhase::Held(hold) => {
            let hold = *hold;
            (entry.lane, entry.group) = (lane, group);
            let changed = entry.set_fingerprint(fingerprint);
            let trigger = if changed { Trigger::Event } else { hold.trigger };
            if trigger == Trigger::Retry {
                return AddResult::Swallowed;
            }
            entry.cause = cause;
            places.remove(entry);
            entry.phase = places.ready(key, entry.lane, entry.group.as_ref(), now, Trigger::Event);
            AddResult::Queued
        }
    }
}

/// A wake of a key that is unsettled. Returns whether there was anything to wake.
pub(super) fn wake<K: Key>(places: &mut WaitingKeys<K>, entry: &mut KeyEntry, cause: CauseCode, now: Instant) -> bool {
    match &mut entry.phase {
        KeyPhase::Ready(_) => false,
        KeyPhase::Running(active) => {
            if !std::mem::replace(&mut active.woken, true) && active.dirty.is_none() {
                entry.cause = cause;
            }
            true
        }
        KeyPhase::Held(_) => {
            let Some(key) = places.remove(entry) else { return false };
            entry.cause = cause;
            entry.phase = places.ready(key, entry.lane, entry.group.as_ref(), now, Trigger::Wake);
            true
        }
    }
}
