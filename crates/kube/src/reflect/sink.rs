//! What watches feed: tables of several kinds, and who is told what a change of them concerns.

use std::sync::Arc;

use parking_lot::RwLock;

use super::lists::Lists;
use super::reflector::ListedNames;
use super::table::{ObjectTable, Origin, RecordChange};
use crate::apiserver::ApiError;
use crate::kinds::CacheRecord;
use crate::objects::ResourceVersion;

/// The copies of one kind or of several, and the links between them.
pub trait Tables: Sized {
    /// What a change concerns.
    type Change;

    /// A list of a kind begins.
    fn start_list<R: CachedKind<Self>>(&mut self) {
        R::table_mut(self).start_list();
    }

    /// A list of a kind, of this version, is complete: what is not `seen` is gone.
    fn finish_list<R: CachedKind<Self>>(&mut self, seen: &ListedNames, version: ResourceVersion) -> Vec<Self::Change> {
        let unseen = R::table_mut(self).finish_list(seen, version);
        let dropped = unseen.iter().filter_map(|record| {
            let gone = R::table_mut(self).drop_unseen(record.name(), record.uid())?;
            Some(R::relink(self, Some(&gone), None))
        });
        dropped.collect()
    }

    /// Takes in a copy of an object, unless it is not newer than what is known. None when nothing changed ([`ObjectTable::take_copy`]).
    fn take_copy<R: CachedKind<Self>>(&mut self, mut record: R, origin: Origin) -> Option<Self::Change> {
        record.share_names(self);
        let RecordChange { previous, current } = R::table_mut(self).take_copy(record, origin)?;
        Some(R::relink(self, previous.as_ref(), current.as_ref()))
    }

    /// Takes in that an object is gone, as the watch reports it.
    fn remove<R: CachedKind<Self>>(&mut self, name: &str, uid: &str) -> Option<Self::Change> {
        let gone = R::table_mut(self).remove(name, uid)?;
        Some(R::relink(self, Some(&gone), None))
    }

    /// Takes in that an object is gone, as an answer to a request of ours says. The watch may still show it.
    fn mark_gone<R: CachedKind<Self>>(&mut self, name: &str, uid: &str) -> Option<Self::Change> {
        let gone = R::table_mut(self).mark_deleted(name, uid)?;
        Some(R::relink(self, Some(&gone), None))
    }
}

/// A record of a kind that is kept in tables of several kinds.
pub trait CachedKind<T: Tables>: CacheRecord + PartialEq + Sized {
    /// The records of the kind.
    fn table(tables: &T) -> &ObjectTable<Self>;

    /// The records of the kind, to be changed.
    fn table_mut(tables: &mut T) -> &mut ObjectTable<Self>;

    /// Takes names that are kept already in the place of equal ones, to save memory.
    fn share_names(&mut self, _: &mut T) {}

    /// Whether this is the last version of an object: it was deleted, and nothing holds it any more.
    fn is_gone(&self) -> bool {
        false
    }

    /// Updates the links after a change of the table: `previous` was known under a name, and `current` is known now. At least one of
    /// the two is there.
    fn relink(tables: &mut T, previous: Option<&Arc<Self>>, current: Option<&Arc<Self>>) -> T::Change;
}

impl<R: CacheRecord + PartialEq> Tables for ObjectTable<R> {
    type Change = RecordChange<R>;
}

impl<R: CacheRecord + PartialEq> CachedKind<ObjectTable<R>> for R {
    fn table(table: &ObjectTable<R>) -> &ObjectTable<R> {
        table
    }

    fn table_mut(table: &mut ObjectTable<R>) -> &mut ObjectTable<R> {
        table
    }

    fn relink(_: &mut ObjectTable<R>, previous: Option<&Arc<R>>, current: Option<&Arc<R>>) -> RecordChange<R> {
        RecordChange {
            previous: previous.cloned(),
            current: current.cloned(),
        }
    }
}

/// Told of what changed. It may read the cache that tells it, and not change it. Must not wait.
pub type Listener<T> = Arc<dyn Fn(&T) + Send + Sync>;

/// One that does not keep what is told alive.
pub fn weak_listener<I, T>(told: &Arc<I>, tell: impl Fn(Arc<I>, &T) + Send + Sync + 'static) -> Listener<T>
where
    I: Send + Sync + 'static,
    T: 'static,
{
    let told = Arc::downgrade(told);
    Arc::new(move |what: &T| {
        if let Some(told) = told.upgrade() {
            tell(told, what);
        }
    })
}

/// What the watches of some kinds feed, and the answers to our own requests.
pub trait Sink: Clone + Send + Sync + 'static {
    /// What is kept.
    type Tables: Tables;

    /// What does not work while a kind is not listed, for the log: "until then ...".
    const CONSEQUENCE: &'static str;

    /// The state of the lists of all kinds.
    fn lists(&self) -> &Lists;

    /// What is kept.
    fn tables(&self) -> &RwLock<Self::Tables>;

    /// Tells whoever a change concerns. The tables are not locked meanwhile.
    fn dispatch(&self, change: <Self::Tables as Tables>::Change);

    /// As [`Sink::dispatch`], for a copy that a watch brought: what takes long is left to [`Sink::work_off_backlog`].
    fn dispatch_copy(&self, change: <Self::Tables as Tables>::Change) {
        self.dispatch(change);
    }

    /// Called between two events: works off what earlier events left to do, so that no event takes long.
    fn work_off_backlog(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// A copy of an object comes in, of the list that began or from the watch that follows it.
    fn take_copy<R: CachedKind<Self::Tables>>(&self, record: R, origin: Origin) {
        let (change, shows_deleted, went_back) = {
            let mut tables = self.tables().write();
            let change = tables.take_copy(record, origin);
            let table = R::table_mut(&mut tables);
            (change, table.shows_deleted(), table.went_back())
        };
        if went_back {
            self.lists().distrust();
        }
        if let Some(change) = change {
            self.dispatch_copy(change);
        }
        if shows_deleted {
            self.lists().doubt("the watch shows an object that is said to be gone");
        }
    }

    /// A list of a kind is complete: what is not `seen` is gone, unless it is newer than the list, which has this version.
    fn finish_list<R: CachedKind<Self::Tables>>(&self, seen: &ListedNames, version: ResourceVersion) {
        let changes = self.tables().write().finish_list::<R>(seen, version);
        for change in changes {
            self.dispatch(change);
        }
    }

    /// The watch reports that an object is deleted. The version of this last copy counts as seen.
    fn take_deletion<R: CachedKind<Self::Tables>>(&self, record: &R) {
        self.change(|tables| {
            R::table_mut(tables).count_version(record.version(), Origin::Watch);
            tables.remove::<R>(record.name(), record.uid())
        });
    }

    /// The greatest version of a kind that was seen since the last list began.
    fn newest<R: CachedKind<Self::Tables>>(&self) -> ResourceVersion {
        R::table(&self.tables().read()).newest()
    }

    /// An object is going to be read that the watch may be late with, or that may have changed.
    fn read<R: CachedKind<Self::Tables>>(&self, name: &Arc<str>) -> Reading<'_, Self, R> {
        let mut tables = self.tables().write();
        let table = R::table_mut(&mut tables);
        Reading {
            number: table.start_read(name),
            known: table.get(name).cloned(),
            sink: self,
        }
    }

    /// Changes the tables, and tells whoever that concerns.
    fn change(&self, change: impl FnOnce(&mut Self::Tables) -> Option<<Self::Tables as Tables>::Change>) {
        let change = change(&mut self.tables().write());
        if let Some(change) = change {
            self.dispatch(change);
        }
    }
}

/// A read of one object, or a request that creates it, from before it is sent. When the watch reports meanwhile that an object of that name
/// is deleted, or a list comes in that does not show it, nothing is taken in: the deletion would not be reported again. What is newer than
/// that list is taken in: the watch that follows reports its end.
pub struct Reading<'s, S: Sink, R: CachedKind<S::Tables>> {
    sink: &'s S,
    number: u64,
    /// As the object was known before.
    known: Option<Arc<R>>,
}

impl<S: Sink, R: CachedKind<S::Tables>> Reading<'_, S, R> {
    /// Takes in the object that was read.
    ///
    /// # Errors
    ///
    /// It is older than it was known before ([`Lists::older_answer`]).
    pub fn apply(self, record: R) -> Result<(), ApiError> {
        let is_older = |known: &Arc<R>| {
            let (uid, version) = (record.uid(), record.version());
            *known.uid() == *uid && version != ResourceVersion::default() && version < known.version()
        };
        if self.known.as_ref().is_some_and(is_older) {
            return Err(self.sink.lists().older_answer());
        }
        self.sink.change(|tables| {
            let is_current = R::table_mut(tables).finish_read(self.number, record.version());
            is_current.then(|| tables.take_copy(record, Origin::Answer)).flatten()
        });
        Ok(())
    }
}

impl<S: Sink, R: CachedKind<S::Tables>> Drop for Reading<'_, S, R> {
    fn drop(&mut self) {
        let mut tables = self.sink.tables().write();
        R::table_mut(&mut tables).finish_read(self.number, ResourceVersion::default());
    }
}
