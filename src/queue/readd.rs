//! What an add or a wake makes of a key that is unsettled already.

use tokio::time::Instant;

use super::entry::{Entry, Phase};
use super::places::Places;
use super::{Admission, Cause, Item, Key, Trigger};

/// An add of a key that is unsettled already.
pub(super) fn readd<K: Key>(places: &mut Places<K>, entry: &mut Entry, item: Item<K>, now: Instant) -> Admission {
    let Item {
        key,
        lane,
        group,
        fingerprint,
        cause,
    } = item;
    match &mut entry.phase {
        Phase::Running(active) => {
            if active.mark(now) || entry.lane != lane {
                entry.cause = cause;
            }
            (entry.lane, entry.group, entry.fingerprint) = (lane, group, fingerprint);
            Admission::Dirty
        }
        Phase::Ready(ready) => {
            let mut ready = *ready;
            let moved = entry.lane != lane || entry.group != group;
            if entry.lane != lane {
                entry.cause = cause;
            }
            if moved {
                places.leave(entry);
                (entry.lane, entry.group) = (lane, group);
            }
            if entry.observe(fingerprint) {
                ready.trigger = Trigger::Event;
                entry.cause = cause;
            }
            entry.phase = if moved {
                places.ready(key, entry.lane, entry.group.as_ref(), ready.since, ready.trigger)
            } else {
                Phase::Ready(ready)
            };
            Admission::Waiting
        }
        Phase::Held(hold) => {
            let hold = *hold;
            (entry.lane, entry.group) = (lane, group);
            let changed = entry.observe(fingerprint);
            let trigger = if changed { Trigger::Event } else { hold.trigger };
            if trigger == Trigger::Retry {
                return Admission::Swallowed;
            }
            entry.cause = cause;
            places.leave(entry);
            entry.phase = places.ready(key, entry.lane, entry.group.as_ref(), now, Trigger::Event);
            Admission::Queued
        }
    }
}

/// A wake of a key that is unsettled. Returns whether there was anything to wake.
pub(super) fn wake<K: Key>(places: &mut Places<K>, entry: &mut Entry, cause: Cause, now: Instant) -> bool {
    match &mut entry.phase {
        Phase::Ready(_) => false,
        Phase::Running(active) => {
            if !std::mem::replace(&mut active.woken, true) && active.dirty.is_none() {
                entry.cause = cause;
            }
            true
        }
        Phase::Held(_) => {
            let Some(key) = places.leave(entry) else { return false };
            entry.cause = cause;
            entry.phase = places.ready(key, entry.lane, entry.group.as_ref(), now, Trigger::Wake);
            true
        }
    }
}
