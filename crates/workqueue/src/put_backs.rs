//! What runs put back lately. A settled key has no entry any more, so that who takes away again what a run put back would be answered each
//! time without a pause.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::backoff::later;
use super::item::Key;
use super::lanes::shrink;
use super::run::Run;

/// The keys of which something was put back lately, whether they are settled or not.
pub(super) struct PutBacks<K> {
    keys: HashMap<K, PutBack>,
    /// When all were looked through.
    swept: Instant,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct PutBack {
    /// The inputs of the run that did.
    fingerprint: u64,
    /// How often in a row.
    pub(super) count: u32,
    /// Until then a key with these inputs is held.
    pub(super) until: Instant,
    /// From then on the next time is a first one.
    ends: Instant,
}

impl<K: Key> PutBacks<K> {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            keys: HashMap::new(),
            swept: now,
        }
    }

    /// A run put something back. That counts for `lasts` after the hold: with the longest delay of the backoff, who takes it away more
    /// often than that meets holds that grow.
    pub(super) fn count(&mut self, run: &Run<K>, lasts: Duration, now: Instant) {
        let until = later(now, run.wait_delay);
        let put_back = PutBack {
            fingerprint: run.fingerprint,
            count: run.waits().saturating_add(1),
            until,
            ends: later(until, lasts),
        };
        self.keys.insert(run.key.clone(), put_back);
    }

    /// What was put back of a key with these inputs, while it counts.
    pub(super) fn of(&self, key: &K, fingerprint: u64, now: Instant) -> Option<PutBack> {
        let known = self.keys.get(key).copied();
        known.filter(|put_back| put_back.fingerprint == fingerprint && now < put_back.ends)
    }

    /// Drops what does not count any more. Looks through all of them once in `lasts` at most. Not left to the next put-back, which may never
    /// come.
    pub(super) fn sweep(&mut self, lasts: Duration, now: Instant) {
        if self.keys.is_empty() || now.saturating_duration_since(self.swept) < lasts {
            return;
        }
        self.swept = now;
        self.keys.retain(|_, put_back| now < put_back.ends);
        shrink(&mut self.keys);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }
}
