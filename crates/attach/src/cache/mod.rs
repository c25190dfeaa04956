//! The observed state of the cluster, shared by all drivers: one watch for each kind, slim records, and what has to be enqueued
//! when something changes.
//!
//! Reads see our own writes: the object that the API server returned for a patch goes straight into the cache, and older
//! copies that the watch still delivers are dropped by their resource version. So no call is repeated because the cache
//! is behind, and our own writes wake nobody.
//!
//! Must not decide anything and must not call anything but the watches.

mod index;
mod kinds;
mod links;
mod routing;
mod sharing;
mod store;
mod view;

pub use crate::decide::{Snapshot, observe};
pub use csi_attacher_runtime::EnqueueCause;
pub use index::{CacheChange, CacheContent, Index};
pub use kinds::{KINDS, unread_kinds};
pub use links::Counts;
pub(crate) use links::handles_of;
pub use routing::{
    ATTACH, AttacherKey, DETACH, LANE_NAMES, NoAttemptReason, Route, RouteConflict, SettledCallback, VOLUME, lane_of,
};
pub use store::{CacheRules, Marks, Registration, Store};
pub use view::AttachmentView;

#[cfg(test)]
mod tests;
