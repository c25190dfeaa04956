//! One kind of object by name, fed by a watch and by the answers to our own writes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::objects::{Attachment, CsiNode, ResourceVersion, Volume};

/// What a table needs to know of its records.
pub(crate) trait Record {
    fn name(&self) -> &Arc<str>;
    fn uid(&self) -> &str;
    fn version(&self) -> ResourceVersion;
}

/// Records by name.
///
/// A record that we know to be gone, because the answer to our last write said so, leaves a ghost: the watch may still
/// deliver older copies of it, and acting on those would detach twice. A ghost is laid when the watch reports the
/// deletion, or when a later list does not show the object any more.
pub(crate) struct Table<R> {
    records: HashMap<Arc<str>, Held<R>>,
    ghosts: HashMap<Box<str>, u64>,
    /// Number of the list that is running or ran last.
    list: u64,
    /// Whether there was a complete list.
    listed: bool,
    /// How often a record was looked up: what work for one object costs is counted, not timed.
    #[cfg(test)]
    pub lookups: std::sync::atomic::AtomicU64,
}

/// A record, and when it came in.
struct Held<R> {
    record: Arc<R>,
    since: Instant,
}

impl<R> Default for Table<R> {
    fn default() -> Self {
        Self {
            records: HashMap::new(),
            ghosts: HashMap::new(),
            list: 0,
            listed: false,
            #[cfg(test)]
            lookups: 0.into(),
        }
    }
}

/// A change to a table.
pub(crate) struct Applied<R> {
    pub previous: Option<Arc<R>>,
    pub current: Arc<R>,
}

impl<R: Record> Table<R> {
    pub fn get(&self, name: &str) -> Option<&Arc<R>> {
        #[cfg(test)]
        self.lookups.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.records.get(name).map(|held| &held.record)
    }

    /// How long ago the copy of this name came in.
    pub fn age(&self, name: &str) -> Option<Duration> {
        self.records.get(name).map(|held| held.since.elapsed())
    }

    pub fn values(&self) -> impl Iterator<Item = &Arc<R>> {
        self.records.values().map(|held| &held.record)
    }

    /// Takes a copy in unless it is not newer than what is known, or the object is known to be gone.
    pub fn apply(&mut self, record: R) -> Option<Applied<R>> {
        if let Some(ghost) = self.ghosts.get_mut(record.uid()) {
            *ghost = self.list;
            return None;
        }
        if let Some(known) = self.get(record.name())
            && record.version() != ResourceVersion::default()
            && record.version() <= known.version()
        {
            return None;
        }
        let current = Arc::new(record);
        let held = Held {
            record: current.clone(),
            since: Instant::now(),
        };
        let previous = self.records.insert(current.name().clone(), held);
        let previous = previous.map(|held| held.record);
        Some(Applied { previous, current })
    }

    /// Takes in that an object is gone, as the watch reports it.
    pub fn remove(&mut self, name: &str, uid: &str) -> Option<Arc<R>> {
        self.ghosts.remove(uid);
        self.take(name, uid)
    }

    /// Takes in that an object is gone, as we know it from an answer to a write of ours.
    pub fn bury(&mut self, name: &str, uid: &str) -> Option<Arc<R>> {
        let taken = self.take(name, uid)?;
        self.ghosts.insert(uid.into(), self.list);
        Some(taken)
    }

    fn take(&mut self, name: &str, uid: &str) -> Option<Arc<R>> {
        if self.get(name)?.uid() != uid {
            return None;
        }
        self.records.remove(name).map(|held| held.record)
    }

    pub fn is_listed(&self) -> bool {
        self.listed
    }

    pub fn start_list(&mut self) {
        self.list += 1;
    }

    /// The records that a complete list did not show, by name: their deletion fell into a gap of the watch.
    pub fn finish_list(&mut self, seen: &HashSet<Arc<str>>) -> Vec<Arc<R>> {
        self.listed = true;
        let list = self.list;
        self.ghosts.retain(|_, marked| *marked == list);
        let unseen = self.records.iter().filter(|(name, _)| !seen.contains(*name));
        let mut gone: Vec<Arc<R>> = unseen.map(|(_, held)| held.record.clone()).collect();
        gone.sort_unstable_by(|one, other| one.name().cmp(other.name()));
        gone
    }

    /// How many objects are known to be gone while the watch may still show them.
    #[cfg(test)]
    pub fn ghosts(&self) -> usize {
        self.ghosts.len()
    }
}

macro_rules! record {
    ($kind:ty) => {
        impl Record for $kind {
            fn name(&self) -> &Arc<str> {
                &self.name
            }
            fn uid(&self) -> &str {
                &self.uid
            }
            fn version(&self) -> ResourceVersion {
                self.resource_version
            }
        }
    };
}
record!(Attachment);
record!(Volume);
record!(CsiNode);
