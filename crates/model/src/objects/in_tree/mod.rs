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
pub use plugin::{InTree, InTreePlugin, TranslationError};
pub use repair::{RepairError, repair_volume_handle};

pub(super) use aws::ElasticBlockStoreWire;
pub(super) use azure::{DiskWire, FileWire};
pub(super) use gce::{PersistentDiskWire, access_modes};
pub(super) use keys::{is_read_annotation, is_read_label};
pub(super) use plain::{CinderWire, PortworxWire, VsphereWire};
pub(super) use plugin::PersistentVolumeContext;

use super::csi_source::CsiSource;

/// The in-tree source of a PersistentVolume.
#[derive(Clone, Debug)]
pub(super) enum InTreeWire {
    GcePersistentDisk(PersistentDiskWire),
    AwsElasticBlockStore(ElasticBlockStoreWire),
    Cinder(CinderWire),
    AzureDisk(DiskWire),
    AzureFile(FileWire),
    VsphereVolume(VsphereWire),
    PortworxVolume(PortworxWire),
}

impl InTreeWire {
    pub fn plugin(&self) -> InTreePlugin {
        match self {
            Self::GcePersistentDisk(_) => InTreePlugin::GcePersistentDisk,
            Self::AwsElasticBlockStore(_) => InTreePlugin::AwsElasticBlockStore,
            Self::Cinder(_) => InTreePlugin::Cinder,
            Self::AzureDisk(_) => InTreePlugin::AzureDisk,
            Self::AzureFile(_) => InTreePlugin::AzureFile,
            Self::VsphereVolume(_) => InTreePlugin::VsphereVolume,
            Self::PortworxVolume(_) => InTreePlugin::PortworxVolume,
        }
    }

    /// The source as the CSI driver knows it.
    pub fn translate(self, volume: &PersistentVolumeContext<'_>) -> Result<CsiSource, TranslationError> {
        match self {
            Self::GcePersistentDisk(source) => source.translate(volume),
            Self::AwsElasticBlockStore(source) => source.translate(),
            Self::Cinder(source) => Ok(source.translate()),
            Self::AzureDisk(source) => source.translate(),
            Self::AzureFile(source) => source.translate(volume),
            Self::VsphereVolume(source) => Ok(source.translate()),
            Self::PortworxVolume(source) => Ok(source.translate(volume)),
        }
    }
}

#[cfg(test)]
mod tests;
