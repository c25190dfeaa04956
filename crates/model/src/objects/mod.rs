//! Slim projections of the Kubernetes objects that an attacher reads.
//!
//! A cached `VolumeAttachment` or `PersistentVolume` costs 7 to 10 kB when it is kept as the generated type; what the
//! attacher decides on fits in a few hundred bytes. The `*Wire` types decode exactly those fields (managed fields,
//! foreign annotations and labels are skipped while parsing), and the records beside them are what the cache holds.
//!
//! A record must never be sent back to the API server as a whole: fields it does not know would be erased. All writes
//! are patches (see [`crate::decide::patch`]).

mod access_modes;
mod attachment;
mod bounded_meta;
mod claim;
mod csi_source;
mod in_tree;
mod meta;
mod node;
mod node_topology;
mod operation;
mod storage_class;
mod string_map;
mod volume;
mod volume_lifecycle;

pub use access_modes::AccessModes;
pub use attachment::{
    Attachment, AttachmentSource, FormerVolumeOnNode, NoteFault, ReleaseNote, StatusWriter, VolumeAnnotation,
    VolumeAttachmentWire, VolumeError,
};
pub use bounded_meta::{MAX_ANNOTATION_VALUE, MAX_MARKER, MAX_OTHER_ANNOTATIONS};
pub use claim::{Claim, ClaimAccessMode, ClaimPhase, DataSource, PersistentVolumeClaimWire, VolumeMode};
pub use csi_source::{CsiSource, SecretReference};
pub use in_tree::{InTreePlugin, MIGRATED_TO_ANNOTATION, RepairError, TranslationError, repair_volume_handle};
pub use meta::{
    ENTRY_SIZE, Finalizers, MAX_VOLUME_FIELD, OversizedField, ResourceVersion, is_blank, kept_size, slim,
    time_if_readable,
};
pub use node::{CsiNode, CsiNodeWire};
pub use node_topology::{NodeLabels, NodeLabelsWire, TopologyKeys, labels_only};
pub use operation::Operation;
pub use storage_class::{ReclaimPolicy, StorageClass, StorageClassWire, TopologyExpression};
pub use string_map::StringMap;
pub use volume::{ClaimReference, PersistentVolumeWire, Volume, VolumeSource, VolumeSpec, VolumeSpecWire};
pub use volume_lifecycle::{DeletionSecret, VolumeLifecycle, VolumePhase};

#[cfg(test)]
mod tests;
