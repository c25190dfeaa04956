//! One kind of object by name, fed by a watch and by the answers to our own writes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::objects::ResourceVersion;

/// What a table needs to know of its records.
pub trait CacheRecord {
    /// `metadata.name`; of a namespaced kind, something that is unique in the cluster.
    fn name(&self) -> &Arc<str>;
    /// `metadata.uid`.
    fn uid(&self) -> &str;
    /// `metadata.resourceVersion`.
    fn version(&self) -> ResourceVersion;
}

/// Where a copy comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The list that is coming in.
    List,
    /// The watch that follows the last list.
    News,
    /// An answer to a request of ours. It may be ahead of the watch, which then still tells of objects with lower versions.
    Answer,
}

/// The rules by which copies are taken in, as values: a test of the tests hands in wrong ones.
#[derive(Clone, Copy, Debug)]
pub struct TableRules {
    /// What a list shows replaces what is known, though its version be smaller.
    pub lists_replace: bool,
    /// An answer to a request counts as what the watch has told up to its version. It does not.
    pub answers_are_news: bool,
    /// Where each look at a record is counted, if anywhere: what work for one object costs is counted, not timed.
    pub lookups: Option<&'static AtomicU64>,
}

impl Default for TableRules {
    fn default() -> Self {
        Self {
            lists_replace: true,
            answers_are_news: false,
            lookups: None,
        }
    }
}

/// Records by name.
///
/// Copies are ordered by the list that they came in with or after, and then by resource version. A list begins after
/// everything that was known before, and shows the objects as they are at a later moment: what it shows counts, though the
/// versions may be lower, as they are after a restore from a backup. What came in since it began, such as the answer to a
/// write of ours, gives way only to a greater version.
///
/// A record that we know to be gone, because the answer to a request of ours said so or showed another object of its name, leaves a ghost: the watch may still
/// deliver older copies of it, and acting on those would detach twice. A ghost is laid when the watch reports the
/// deletion, and by the next list that begins: one that shows the object proves that it exists.
#[derive(Clone)]
pub struct ObjectTable<R> {
    records: HashMap<Arc<str>, CachedObject<R>>,
    tombstones: HashMap<Box<str>, Tombstone>,
    reads: HashMap<u64, Read>,
    /// How many reads there were.
    read: u64,
    /// Number of the list that is running or ran last.
    list: u64,
    /// Whether there was a complete list.
    listed: bool,
    /// The greatest version of all copies since that list began, answers included.
    newest: ResourceVersion,
    /// The greatest version that the last complete list and its watch told: all objects up to it were told.
    told: ResourceVersion,
    /// The greatest version that the list told which is coming in.
    coming_in: ResourceVersion,
    /// Whether the list that comes in shows an older state than was known.
    went_back: OlderState,
    /// Whether the watch goes on showing an object that is believed to be gone.
    haunted: bool,
    rules: TableRules,
}

/// A record, and when it came in.
#[derive(Clone)]
struct CachedObject<R> {
    record: Arc<R>,
    since: Instant,
    /// The list that it came in with or after.
    list: u64,
    /// When a read of the object last showed this very version; 0 when none has.
    read_at: u64,
}

/// What is known to be gone.
#[derive(Clone)]
struct Tombstone {
    /// The list that was running or ran last then.
    list: u64,
    since: Instant,
}

/// Whether a list shows an older state of the API server than was known before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OlderState {
    NotSeen,
    Seen,
    /// Seen and reported: one list is one sign, however many objects show it.
    Reported,
}

/// A read of an object that is not known, which has no answer yet.
#[derive(Clone)]
struct Read {
    name: Arc<str>,
    /// Whether an object of this name has ended meanwhile.
    ended: bool,
}

/// A watch is behind for seconds. One that shows an object for longer that is said to be gone has a reason.
const HAUNTED: Duration = Duration::from_secs(30);

impl<R> Default for ObjectTable<R> {
    fn default() -> Self {
        Self {
            records: HashMap::new(),
            tombstones: HashMap::new(),
            reads: HashMap::new(),
            read: 0,
            list: 0,
            listed: false,
            newest: ResourceVersion::default(),
            told: ResourceVersion::default(),
            coming_in: ResourceVersion::default(),
            went_back: OlderState::NotSeen,
            haunted: false,
            rules: TableRules::default(),
        }
    }
}

/// A change to a table.
pub struct TableChange<R> {
    /// What was known under the name before.
    pub previous: Option<Arc<R>>,
    /// What is known now.
    pub current: Arc<R>,
}

impl<R> ObjectTable<R> {
    /// An empty one that takes copies in by these rules.
    pub fn with_rules(rules: TableRules) -> Self {
        Self {
            rules,
            ..Self::default()
        }
    }
}

impl<R: CacheRecord + PartialEq> ObjectTable<R> {
    /// The record of this name.
    pub fn get(&self, name: &str) -> Option<&Arc<R>> {
        self.count_lookup();
        self.records.get(name).map(|held| &held.record)
    }

    /// How long ago the copy of this name came in.
    pub fn age(&self, name: &str) -> Option<Duration> {
        self.records.get(name).map(|held| held.since.elapsed())
    }

    /// A read of the object has shown the copy that is known, at `now`.
    pub fn confirm(&mut self, name: &str, uid: &str, version: ResourceVersion, now: u64) {
        let known = self.records.get_mut(name);
        if let Some(known) = known.filter(|known| known.record.uid() == uid && known.record.version() == version) {
            known.read_at = now;
        }
    }

    /// When a read of the object last showed the copy that is known.
    pub fn read_at(&self, name: &str) -> Option<u64> {
        self.records.get(name).map(|known| known.read_at).filter(|at| *at > 0)
    }

    /// All records, in no order.
    pub fn values(&self) -> impl Iterator<Item = &Arc<R>> {
        self.records.values().map(|held| {
            self.count_lookup();
            &held.record
        })
    }

    fn count_lookup(&self) {
        if let Some(lookups) = self.rules.lookups {
            lookups.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The greatest version that was seen since the last list began; a list that is made now has none below it, unless the
    /// API server went back to an older state.
    pub fn newest(&self) -> ResourceVersion {
        self.newest
    }

    /// Takes a copy in unless it is not newer than what is known, or the object is known to be gone.
    pub fn take_copy(&mut self, record: R, origin: Origin) -> Option<TableChange<R>> {
        let origin = if self.rules.lists_replace { origin } else { Origin::News };
        let list = self.list;
        self.count_version(record.version(), origin);
        if let Some(ghost) = self.tombstones.get(record.uid()) {
            if origin != Origin::List || ghost.list == list {
                self.haunted |= origin == Origin::News && ghost.since.elapsed() >= HAUNTED;
                return None;
            }
            self.tombstones.remove(record.uid());
        }
        if origin == Origin::List && record.version() != ResourceVersion::default() {
            // What is not known was made since, and so its version is greater than all that lists and watches told before.
            let known = self.records.get(record.name());
            let floor = known.map_or(self.told, |known| known.record.version());
            let is_older = known.is_none_or(|known| known.list < list) && record.version() < floor;
            if self.listed && is_older && self.went_back == OlderState::NotSeen {
                self.went_back = OlderState::Seen;
            }
        }
        if let Some(known) = self.records.get_mut(record.name()) {
            if origin == Origin::List && known.list < list {
                // So it stays what it is, and nobody has to look again.
                if *known.record == record {
                    known.list = list;
                    return None;
                }
            } else if record.version() != ResourceVersion::default() && record.version() <= known.record.version() {
                return None;
            }
        }
        let current = Arc::new(record);
        let held = CachedObject {
            record: current.clone(),
            since: Instant::now(),
            list,
            read_at: 0,
        };
        let previous = self.records.insert(current.name().clone(), held);
        let previous = previous.map(|held| held.record);
        if let Some(former) = previous.as_ref().filter(|former| former.uid() != current.uid())
            && origin != Origin::List
        {
            // An answer was faster than the watch, which may still show the former one. That must not count when the one of this
            // name is gone as well.
            let since = Instant::now();
            self.tombstones.insert(former.uid().into(), Tombstone { list, since });
        }
        Some(TableChange { previous, current })
    }

    fn count_version(&mut self, version: ResourceVersion, origin: Origin) {
        self.newest = self.newest.max(version);
        match origin {
            Origin::List => self.coming_in = self.coming_in.max(version),
            Origin::News => self.told = self.told.max(version),
            Origin::Answer if self.rules.answers_are_news => self.told = self.told.max(version),
            // A watch that is behind has still to tell of what was made before it.
            Origin::Answer => {}
        }
    }

    /// Takes in that an object is gone, as the watch reports it.
    pub fn remove(&mut self, name: &str, uid: &str) -> Option<Arc<R>> {
        self.tombstones.remove(uid);
        self.end_reads(|read| read == name);
        self.take(name, uid)
    }

    /// Takes in that an object is gone, as we know it from an answer to a request of ours.
    pub fn mark_deleted(&mut self, name: &str, uid: &str) -> Option<Arc<R>> {
        let taken = self.take(name, uid)?;
        self.end_reads(|read| read == name);
        let (list, since) = (self.list, Instant::now());
        self.tombstones.insert(uid.into(), Tombstone { list, since });
        Some(taken)
    }

    fn take(&mut self, name: &str, uid: &str) -> Option<Arc<R>> {
        if self.get(name)?.uid() != uid {
            return None;
        }
        self.records.remove(name).map(|held| held.record)
    }

    /// A list begins.
    pub fn start_list(&mut self) {
        self.list += 1;
        self.newest = ResourceVersion::default();
        self.coming_in = ResourceVersion::default();
        self.went_back = OlderState::NotSeen;
    }

    /// Whether the list that comes in shows that the API server went back to an older state; true once for each list.
    pub fn went_back(&mut self) -> bool {
        let is_seen = self.went_back == OlderState::Seen;
        if is_seen {
            self.went_back = OlderState::Reported;
        }
        is_seen
    }

    /// The watch has told the end of an object with this version.
    pub fn count_end(&mut self, version: ResourceVersion) {
        self.count_version(version, Origin::News);
    }

    /// The records that a complete list did not show, by name: their deletion fell into a gap of the watch.
    pub fn finish_list(&mut self, seen: &HashSet<Arc<str>>) -> Vec<Arc<R>> {
        self.listed = true;
        // A list that was cut off did not show all objects up to its greatest version, and counts for nothing here.
        self.told = self.coming_in;
        let list = self.list;
        self.tombstones.retain(|_, ghost| ghost.list == list);
        self.end_reads(|read| !seen.contains(read));
        let unseen = self.records.iter().filter(|(name, _)| !seen.contains(*name));
        let mut gone: Vec<Arc<R>> = unseen.map(|(_, held)| held.record.clone()).collect();
        gone.sort_unstable_by(|one, other| one.name().cmp(other.name()));
        gone
    }

    /// An object that is not known is going to be read.
    pub fn begin_read(&mut self, name: &Arc<str>) -> u64 {
        self.read += 1;
        let name = name.clone();
        self.reads.insert(self.read, Read { name, ended: false });
        self.read
    }

    /// A read has ended; whether what it brought may be taken in. The watch that has told the end of the object meanwhile
    /// does not tell it again.
    pub fn end_read(&mut self, read: u64) -> bool {
        self.reads.remove(&read).is_some_and(|read| !read.ended)
    }

    fn end_reads(&mut self, is_over: impl Fn(&str) -> bool) {
        for read in self.reads.values_mut() {
            read.ended |= is_over(&read.name);
        }
    }

    /// Whether the watch has gone on showing an object that is believed to be gone since this was asked last.
    pub fn is_haunted(&mut self) -> bool {
        std::mem::take(&mut self.haunted)
    }

    /// All that the order of copies depends on, but for times, reads and an API server that goes back: two tables of one content take
    /// in everything alike.
    pub fn content(&self) -> TableContent
    where
        R: std::fmt::Debug,
    {
        let records = self.records.iter();
        let mut records: Vec<_> = records
            .map(|(name, held)| (name.clone(), format!("{:?}", held.record), held.list))
            .collect();
        records.sort_unstable();
        let mut gone: Vec<_> = self
            .tombstones
            .iter()
            .map(|(uid, ghost)| (uid.clone(), ghost.list))
            .collect();
        gone.sort_unstable();
        TableContent {
            records,
            gone,
            list: self.list,
            listed: self.listed,
        }
    }

    /// How many objects are known to be gone while the watch may still show them.
    pub fn ghosts(&self) -> usize {
        self.tombstones.len()
    }
}

/// What [`ObjectTable::content`] tells.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TableContent {
    records: Vec<(Arc<str>, String, u64)>,
    gone: Vec<(Box<str>, u64)>,
    list: u64,
    listed: bool,
}
