//! The observed state of the cluster, shared by all drivers: one watch for each kind, slim records, and who has to look
//! again when something changes.
//!
//! Reads see our own writes: the object that the API server returned for a patch goes straight into the cache, and older
//! copies that the watch still delivers are dropped by their resource version. So no call is repeated because the cache
//! is behind, and our own writes wake nobody.
//!
//! Must not decide anything and must not call anything but the watches.

mod cause;
mod counted;
mod counts;
mod forced;
mod index;
mod links;
mod machines;
mod neighbours;
mod react;
mod reading;
mod reflected;
mod registration;
mod relist;
mod routing;
mod rules;
mod sharing;
mod store;
mod value;
mod view;

pub use crate::decide::{Snapshot, observe};
pub use cause::EnqueueCause;
pub use counts::Counts;
pub use forced::ForcedAttachments;
pub use index::CacheChange;
pub use reading::Reading;
pub use registration::Registration;
pub use routing::{
    ATTACH, AttacherKey, DETACH, NoAttemptReason, Route, RouteConflict, SettledCallback, VOLUME, lane_of,
};
pub use rules::CacheRules;
pub use store::{Store, Watched};
pub use value::{CacheContent, CacheValue};
pub use view::{AttachmentView, Marks};

#[cfg(test)]
mod tests;
