//! The kinds that more than one role watches.

use crate::objects::{Attachment, CsiNode, CsiNodeWire, PersistentVolumeWire, Volume, VolumeAttachmentWire};

/// A wire type that can be watched, its plural name, and the record that is kept of it, which has the fields `name`, `uid` and
/// `resource_version`.
#[macro_export]
macro_rules! watched_kind {
    ($wire:ty, $plural:literal, $record:ty) => {
        impl $crate::reflect::WatchedKind for $wire {
            const PLURAL: &'static str = $plural;
            type Record = $record;
        }

        impl $crate::reflect::CacheRecord for $record {
            fn name(&self) -> &std::sync::Arc<str> {
                &self.name
            }

            fn uid(&self) -> &str {
                &self.uid
            }

            fn version(&self) -> $crate::reflect::ResourceVersion {
                self.resource_version
            }
        }
    };
}
watched_kind!(VolumeAttachmentWire, "volumeattachments", Attachment);
watched_kind!(PersistentVolumeWire, "persistentvolumes", Volume);
watched_kind!(CsiNodeWire, "csinodes", CsiNode);
