//! One kind of object by name, fed by a watch and by the answers to our own writes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::kinds::CacheRecord;
use crate::objects::ResourceVersion;

/// A watch is behind for seconds. When it shows a deleted object for longer, the object may exist.
const MAX_WATCH_DELAY: Duration = Duration::from_secs(30);

/// Where a copy comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The list that is coming in.
    List,
    /// The watch that follows the last list.
    Watch,
    /// An answer to a request of ours. It may be ahead of the watch, which then still reports objects with lower versions.
    Answer,
}

/// The rules by which copies are taken in, as values: a test of the tests hands in wrong ones.
#[derive(Clone, Copy, Debug)]
pub struct TableRules {
    /// What a list shows replaces what is known, though its version be smaller.
    pub lists_replace: bool,
    /// An answer to a request counts as if the watch had reported everything up to its version. By default it does not.
    pub answers_count_as_watch: bool,
    /// Where each look-up of a record is counted, if anywhere: what work for one object costs is counted, not timed.
    pub lookups: Option<&'static AtomicU64>,
}

impl Default for TableRules {
    fn default() -> Self {
        Self {
            lists_replace: true,
            answers_count_as_watch: false,
            lookups: None,
        }
    }
}

/// Records by name.
///
/// Copies are ordered by the list that they came in with or after, and then by resource version. A list begins after
/// everything that was known before, and shows the objects as they are at a later moment: what it shows counts, though the
/// versions may be lower, as they are after a restore from a backup. What came in since it began, such as the answer to a
/// write of ours, gives way only to a greater version. Where the list does not show it, it stays if its version is greater than
/// that of the list: the list was made before it, and the watch that follows reports it, and its end.
///
/// An object is known to be deleted when the answer to a request of ours said so, or showed another object of its name. It leaves a
/// tombstone: the watch may still deliver older copies, and acting on those would detach twice. The tombstone goes when the watch reports
/// the deletion, and with the next list that begins: a list that shows the object proves that it exists.
#[derive(Clone)]
pub struct ObjectTable<R> {
    records: HashMap<Arc<str>, CachedObject<R>>,
    tombstones: HashMap<Box<str>, Tombstone>,
    /// The objects that are being read, unless an object of the name was deleted meanwhile.
    reads: HashMap<u64, PendingRead>,
    last_read: u64,
    /// Number of the list that is running or ran last.
    list: u64,
    /// Whether there was a complete list.
    listed: bool,
    /// The greatest version of all copies since that list began, answers included, and of those that the API server said to be at.
    newest: ResourceVersion,
    /// The greatest version that the last complete list and its watch reported: they reported all objects up to it.
    reported: ResourceVersion,
    /// The greatest version that the list which is coming in has shown.
    coming_in: ResourceVersion,
    /// The last list that showed an older state of the API server than was known before.
    older_list: Option<u64>,
    /// The last of these lists that was reported: one list is one sign, however many objects show it.
    reported_list: Option<u64>,
    /// Whether the watch goes on showing an object that has a tombstone.
    shows_deleted: bool,
    rules: TableRules,
}

/// A record, and when it came in.
#[derive(Clone)]
struct CachedObject<R> {
    record: Arc<R>,
    since: Instant,
    /// The list that it came in with or after.
    list: u64,
    /// When a read of the object last showed this very version, as a number of [`super::Lists::now`].
    read_at: Option<u64>,
}

/// An object that is being read.
#[derive(Clone)]
struct PendingRead {
    name: Arc<str>,
    /// The version of a list that has come in meanwhile without the object. What is not newer may be deleted, and nobody would report it.
    above: Option<ResourceVersion>,
}

/// Since when an object is known to be deleted.
#[derive(Clone)]
struct Tombstone {
    /// The list that was running or ran last then.
    list: u64,
    since: Instant,
}

impl<R> Default for ObjectTable<R> {
    fn default() -> Self {
        Self::with_rules(TableRules::default())
    }
}

/// A change to a table.
pub struct RecordChange<R> {
    /// What was known under a name before.
    pub previous: Option<Arc<R>>,
    /// What is known under it now; one of the two is there.
    pub current: Option<Arc<R>>,
}

impl<R> ObjectTable<R> {
    /// An empty one that takes copies in by these rules.
    pub fn with_rules(rules: TableRules) -> Self {
        Self {
            records: HashMap::new(),
            tombstones: HashMap::new(),
            reads: HashMap::new(),
            last_read: 0,
            list: 0,
            listed: false,
            newest: ResourceVersion::default(),
            reported: ResourceVersion::default(),
            coming_in: ResourceVersion::default(),
            older_list: None,
            reported_list: None,
            shows_deleted: false,
            rules,
        }
    }
}

impl<R: CacheRecord + PartialEq> ObjectTable<R> {
    /// The record of this name.
    pub fn get(&self, name: &str) -> Option<&Arc<R>> {
        self.count_lookup();
        self.records.get(name).map(|known| &known.record)
    }

    /// How long ago the copy of this name came in.
    pub fn age(&self, name: &str) -> Option<Duration> {
        self.records.get(name).map(|known| known.since.elapsed())
    }

    /// A read of the object has shown the copy that is known, at the moment `now`.
    pub fn confirm(&mut self, copy: &R, now: u64) {
        let known = self.records.get_mut(copy.name());
        let version = copy.version();
        if let Some(known) = known.filter(|known| known.record.uid() == copy.uid() && known.record.version() == version)
        {
            known.read_at = Some(now);
        }
    }

    /// When a read of the object last showed the copy that is known.
    pub fn read_at(&self, name: &str) -> Option<u64> {
        self.records.get(name)?.read_at
    }

    /// All records, in no order.
    pub fn values(&self) -> impl Iterator<Item = &Arc<R>> {
        self.records.values().map(|known| {
            self.count_lookup();
            &known.record
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

    /// Takes a copy in unless it is not newer than what is known, or the object is known to be deleted. Answers what changed by that.
    ///
    /// Nothing has, where the watch brings a newer version that says the same: somebody writes what no record keeps, perhaps a hundred times a
    /// second, and nobody waits for that. The watch leaves no version out, so that nothing else was true in between. A list or an answer may
    /// have missed that our own write was undone: what they bring with another version is a change, whatever it says.
    pub fn take_copy(&mut self, mut record: R, origin: Origin) -> Option<RecordChange<R>> {
        let origin = if self.rules.lists_replace {
            origin
        } else {
            Origin::Watch
        };
        let is_listed = origin == Origin::List;
        let list = self.list;
        self.count_version(record.version(), origin);
        if let Some(tombstone) = self.tombstones.get(record.uid()) {
            if !is_listed || tombstone.list == list {
                self.shows_deleted |= origin == Origin::Watch && tombstone.since.elapsed() >= MAX_WATCH_DELAY;
                return None;
            }
            self.tombstones.remove(record.uid());
        }
        let has_version = record.version() != ResourceVersion::default();
        let mut says_the_same = false;
        if is_listed && has_version {
            // An object that is not known was created since, so that its version is greater than all that lists and watches reported.
            let known = self.records.get(record.name());
            let floor = known.map_or(self.reported, |known| known.record.version());
            let is_older = known.is_none_or(|known| known.list < list) && record.version() < floor;
            if self.listed && is_older {
                self.older_list = Some(list);
            }
        }
        if let Some(known) = self.records.get_mut(record.name()) {
            if is_listed && known.list < list {
                // The same copy stays, and nobody is told.
                if *known.record == record {
                    known.list = list;
                    return None;
                }
            } else if has_version && record.version() <= known.record.version() {
                return None;
            }
            says_the_same = origin == Origin::Watch && is_equal_but_version(&*known.record, &mut record);
        }
        let current = Arc::new(record);
        let since = Instant::now();
        let copy = CachedObject {
            record: current.clone(),
            since,
            list,
            read_at: None,
        };
        let previous = self.records.insert(current.name().clone(), copy);
        let previous = previous.map(|known| known.record);
        if let Some(former) = previous.as_ref().filter(|former| former.uid() != current.uid())
            && !is_listed
        {
            // An answer was faster than the watch, which may still show the former object. That must not count when the object that has
            // the name now is gone as well.
            self.tombstones.insert(former.uid().into(), Tombstone { list, since });
        }
        (!says_the_same).then_some(RecordChange {
            previous,
            current: Some(current),
        })
    }

    /// Counts a version that was seen: of a copy, with which the watch reports a deletion, or that the API server is at.
    pub fn count_version(&mut self, version: ResourceVersion, origin: Origin) {
        self.newest = self.newest.max(version);
        match origin {
            Origin::List => self.coming_in = self.coming_in.max(version),
            Origin::Watch => self.reported = self.reported.max(version),
            Origin::Answer if self.rules.answers_count_as_watch => self.reported = self.reported.max(version),
            // A watch that is behind has still to report what was created before.
            Origin::Answer => {}
        }
    }

    /// Takes in that an object is gone, as the watch reports it.
    pub fn remove(&mut self, name: &str, uid: &str) -> Option<Arc<R>> {
        self.end_reads(|read| read == name);
        self.drop_unseen(name, uid)
    }

    /// Takes in that a complete list did not show an object. What that means for reads, [`Self::finish_list`] has said.
    pub fn drop_unseen(&mut self, name: &str, uid: &str) -> Option<Arc<R>> {
        self.tombstones.remove(uid);
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
        self.records.remove(name).map(|known| known.record)
    }

    /// A list of the kind begins.
    pub fn start_list(&mut self) {
        self.list += 1;
        self.newest = ResourceVersion::default();
        self.coming_in = ResourceVersion::default();
    }

    /// The version from which the watch reports everything that follows a list of this version; none when it is not known, or is smaller than
    /// versions that were seen: then the API server went back to an older state, and what is known from before says nothing.
    fn reported_from(&self, list: ResourceVersion) -> Option<ResourceVersion> {
        let is_known = list != ResourceVersion::default();
        let is_newest = list >= self.reported.max(self.coming_in);
        (is_known && is_newest).then_some(list)
    }

    /// Whether the list that comes in shows that the API server went back to an older state; true once for each list.
    pub fn went_back(&mut self) -> bool {
        let list = Some(self.list);
        self.older_list == list && std::mem::replace(&mut self.reported_list, list) != list
    }

    /// The records that a complete list did not show, by name: they were deleted while nobody watched. One that came in since the list began
    /// is not among them if it is newer than the list: its end is reported. The list has this version, from which the watch that follows
    /// begins; 0 when it is no number.
    pub fn finish_list(&mut self, seen: &HashSet<Arc<str>>, version: ResourceVersion) -> Vec<Arc<R>> {
        let reported_from = self.reported_from(version);
        self.listed = true;
        // A list that was cut off did not show all objects up to its greatest version, and counts for nothing here.
        self.reported = self.coming_in;
        let list = self.list;
        self.tombstones.retain(|_, tombstone| tombstone.list == list);
        match reported_from {
            Some(from) => {
                for read in self.reads.values_mut().filter(|read| !seen.contains(&read.name)) {
                    read.above = read.above.max(Some(from));
                }
            }
            None => self.end_reads(|read| !seen.contains(read)),
        }
        let is_newer = |known: &CachedObject<R>| reported_from.is_some_and(|from| known.record.version() > from);
        let unseen = self.records.iter().filter(|(name, _)| !seen.contains(*name));
        let unseen = unseen.map(|(_, known)| known);
        let gone = unseen.filter(|known| known.list < list || !is_newer(known));
        let mut gone: Vec<Arc<R>> = gone.map(|known| known.record.clone()).collect();
        gone.sort_unstable_by(|one, other| one.name().cmp(other.name()));
        gone
    }

    /// An object is going to be read. Answers the number of the read.
    pub fn start_read(&mut self, name: &Arc<str>) -> u64 {
        self.last_read += 1;
        let (name, above) = (name.clone(), None);
        self.reads.insert(self.last_read, PendingRead { name, above });
        self.last_read
    }

    /// A read has ended. Answers whether a copy of this version that it showed may be taken in: when the watch has reported meanwhile that
    /// the object is deleted, or a list that is as new has not shown it, nobody reports that again.
    pub fn finish_read(&mut self, read: u64, version: ResourceVersion) -> bool {
        let read = self.reads.remove(&read);
        read.is_some_and(|read| read.above.is_none_or(|above| version > above))
    }

    fn end_reads(&mut self, is_over: impl Fn(&str) -> bool) {
        self.reads.retain(|_, read| !is_over(&read.name));
    }

    /// Whether the watch has gone on showing an object that is known to be deleted since this was asked last.
    pub fn shows_deleted(&mut self) -> bool {
        std::mem::take(&mut self.shows_deleted)
    }

    /// All that the order of copies depends on, except times, reads and an API server that goes back: two tables of the same content
    /// take in everything alike.
    pub fn content(&self) -> TableContent
    where
        R: std::fmt::Debug,
    {
        let records = self.records.iter();
        let mut records: Vec<_> = records
            .map(|(name, known)| (name.clone(), format!("{:?}", known.record), known.list))
            .collect();
        records.sort_unstable();
        let tombstones = self.tombstones.iter();
        let mut tombstones: Vec<_> = tombstones.map(|(uid, it)| (uid.clone(), it.list)).collect();
        tombstones.sort_unstable();
        TableContent {
            records,
            tombstones,
            list: self.list,
            listed: self.listed,
        }
    }

    /// How many objects are known to be deleted while the watch may still show them.
    pub fn tombstones(&self) -> usize {
        self.tombstones.len()
    }
}

/// Whether two copies of an object say the same, whatever their versions.
fn is_equal_but_version<R: CacheRecord + PartialEq>(known: &R, copy: &mut R) -> bool {
    let version = copy.version();
    copy.set_version(known.version());
    let is_equal = *known == *copy;
    copy.set_version(version);
    is_equal
}

/// What tells two tables apart ([`ObjectTable::content`]).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TableContent {
    records: Vec<(Arc<str>, String, u64)>,
    tombstones: Vec<(Box<str>, u64)>,
    list: u64,
    listed: bool,
}
