//! Volumes of the seven in-tree plug-ins that were migrated to CSI, as their CSI drivers see them.
//!
//! A PersistentVolume with an in-tree source is translated once, when it comes in, so that everything after the cache
//! deals with CSI sources alone. The rules are those of Kubernetes' csi-translation-lib v0.36, as far as attaching and
//! detaching can see them: node affinity and topology are not translated, nothing here reads them.
//!
//! In-line volumes of pods are translated by the attach/detach controller before it writes a VolumeAttachment, so that
//! an in-tree source inside `inlineVolumeSpec` is an error and never translated here.
//!
//! Must not call anything and must not keep what only the translation reads.

mod aws;
mod azure;
mod gce;
mod keys;
mod plain;
mod plugin;
mod repair;

pub use keys::MIGRATED_TO_ANNOTATION;
pub use plugin::{InTreePlugin, TranslationError};
pub use repair::{RepairError, repair_volume_handle};

pub(super) use aws::ElasticBlockStoreWire;
pub(super) use azure::{DiskWire, FileWire};
pub(super) use gce::{PersistentDiskWire, access_modes};
pub(super) use keys::{is_read_annotation, is_read_label};
pub(super) use plain::{CinderWire, PortworxWire, VsphereWire};
pub(super) use plugin::PersistentVolumeContext;

#[cfg(test)]
mod tests;
