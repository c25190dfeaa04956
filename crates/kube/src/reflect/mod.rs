//! One watch for each kind of object, into tables that somebody else owns.
//!
//! A [`Sink`] is fed: a list begins, a copy comes in, an object is gone, the list is complete. [`Lists`] knows which lists of all kinds
//! of a sink are complete, and asks for fresh ones. An [`ObjectTable`] keeps the copies of one kind in their order, and [`Tables`] of several.
//!
//! Must not know what the objects are about.

mod counted;
mod lists;
mod reflector;
mod sink;
mod table;
mod watch_backoff;
mod watch_error;

pub use crate::kinds::{CacheRecord, Kind, ResourceVersion, WatchedKind};
pub use counted::{CountedMap, hash};
pub use lists::Lists;
pub use reflector::{COMPARE_INTERVAL, ListedNames, apply, compare, follow, follow_from_list, from_lists, reflect};
pub use sink::{CachedKind, Listener, Reading, Sink, Tables, weak_listener};
pub use table::{ObjectTable, Origin, RecordChange, TableContent, TableRules};
pub use watch_backoff::{FailedWatch, RECOVERED, with_backoff};
pub use watch_error::{explain, is_missing_rule};
