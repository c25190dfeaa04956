//! The kinds that more than one role watches.

use super::reflector::WatchedKind;
use super::table::CacheRecord;
use crate::objects::{
    Attachment, CsiNode, CsiNodeWire, PersistentVolumeWire, ResourceVersion, Volume, VolumeAttachmentWire,
};
use std::sync::Arc;

/// A wire type, its plural name, and the record that is kept of it.
macro_rules! kind {
    ($wire:ty, $plural:literal, $record:ty) => {
        impl WatchedKind for $wire {
            const PLURAL: &'static str = $plural;
        }

        impl CacheRecord for $record {
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
kind!(VolumeAttachmentWire, "volumeattachments", Attachment);
kind!(PersistentVolumeWire, "persistentvolumes", Volume);
kind!(CsiNodeWire, "csinodes", CsiNode);
