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
mod plain;
mod repair;

pub use repair::{RepairError, repair_volume_handle};

pub(super) use aws::ElasticBlockStoreWire;
pub(super) use azure::{DiskWire, FileWire};
pub(super) use gce::{PersistentDiskWire, access_modes};
pub(super) use plain::{CinderWire, PortworxWire, VsphereWire};

use std::collections::BTreeMap;
use thiserror::Error;

use super::volume::CsiSource;

/// Annotation by which kube-controller-manager marks a volume whose in-tree plug-in was migrated to a CSI driver; its
/// value is the driver's name.
pub const MIGRATED_TO_ANNOTATION: &str = "pv.kubernetes.io/migrated-to";

/// Zone labels of a PersistentVolume: those that a translation reads.
const ZONE_LABELS: [&str; 2] = [gce::BETA_ZONE_LABEL, gce::ZONE_LABEL];

/// Whether a label is read by a translation.
pub(super) fn is_read_label(key: &str) -> bool {
    ZONE_LABELS.contains(&key)
}

/// Whether an annotation is read by a translation.
pub(super) fn is_read_annotation(key: &str) -> bool {
    let read = [
        MIGRATED_TO_ANNOTATION,
        azure::RESOURCE_GROUP_ANNOTATION,
        plain::PORTWORX_SECRET_NAME_ANNOTATION,
        plain::PORTWORX_SECRET_NAMESPACE_ANNOTATION,
    ];
    read.contains(&key)
}

/// An in-tree volume plug-in that has a CSI successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InTreePlugin {
    /// `gcePersistentDisk`.
    GcePersistentDisk,
    /// `awsElasticBlockStore`.
    AwsElasticBlockStore,
    /// `cinder`.
    Cinder,
    /// `azureDisk`.
    AzureDisk,
    /// `azureFile`.
    AzureFile,
    /// `vsphereVolume`.
    VsphereVolume,
    /// `portworxVolume`.
    PortworxVolume,
}

impl InTreePlugin {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::GcePersistentDisk,
        Self::AwsElasticBlockStore,
        Self::Cinder,
        Self::AzureDisk,
        Self::AzureFile,
        Self::VsphereVolume,
        Self::PortworxVolume,
    ];

    /// Name of the CSI driver that took over.
    pub const fn driver(self) -> &'static str {
        match self {
            Self::GcePersistentDisk => "pd.csi.storage.gke.io",
            Self::AwsElasticBlockStore => "ebs.csi.aws.com",
            Self::Cinder => "cinder.csi.openstack.org",
            Self::AzureDisk => "disk.csi.azure.com",
            Self::AzureFile => "file.csi.azure.com",
            Self::VsphereVolume => "csi.vsphere.vmware.com",
            Self::PortworxVolume => "pxd.portworx.com",
        }
    }

    /// The plug-in that a CSI driver took over, if any.
    pub fn of_driver(driver: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|plugin| plugin.driver() == driver)
    }
}

/// That a PersistentVolume has an in-tree source, and who is to serve it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InTree {
    /// The plug-in of its source.
    pub plugin: InTreePlugin,
    /// Annotation `pv.kubernetes.io/migrated-to`: the CSI driver that serves the volume. Without it migration is not
    /// done, or was taken back.
    pub migrated_to: Option<Box<str>>,
}

/// Why an in-tree source cannot be translated; worded as csi-translation-lib does.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Error)]
pub enum TranslationError {
    /// A zone label of a regional disk is not made of three parts.
    #[error(
        "failed to get region from zones: zone in unexpected format, expected: {{locale}}-{{region}}-{{zone}}, got: {0}"
    )]
    Zone(Box<str>),
    /// The zones of a regional disk are in several regions.
    #[error("failed to get region from zones: multiple or no regions gotten from zones, got: {}", go_set(.0))]
    Regions(Box<[Box<str>]>),
    /// An `aws://` volume ID is no URL.
    #[error("failed to translate Kubernetes ID to EBS Volume ID Invalid disk name ({0}): not a valid URL")]
    EbsUrl(Box<str>),
    /// An `aws://` volume ID does not end in `vol-…`.
    #[error("failed to translate Kubernetes ID to EBS Volume ID Invalid format for AWS volume ({0})")]
    EbsVolume(Box<str>),
    /// An Azure disk that is not a managed one.
    #[error("kind({0}) is not supported in csi migration")]
    DiskKind(Box<str>),
    /// Nothing says in which namespace the secret of an Azure file share is.
    #[error("could not find a secret namespace in PersistentVolumeSource or ClaimRef")]
    SecretNamespace,
}

/// A set of strings in the form in which Go prints it.
fn go_set(entries: &[Box<str>]) -> String {
    let entries: Vec<String> = entries.iter().map(|entry| format!("{entry}:{{}}")).collect();
    format!("map[{}]", entries.join(" "))
}

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

/// What a translation reads of the PersistentVolume around the source.
pub(super) struct PersistentVolumeContext<'a> {
    /// `metadata.name`.
    pub name: &'a str,
    /// `metadata.labels`.
    pub labels: &'a BTreeMap<String, String>,
    /// `metadata.annotations`.
    pub annotations: &'a BTreeMap<String, String>,
    /// `spec.claimRef.namespace`.
    pub claim_namespace: Option<&'a str>,
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

/// A source of `plugin`'s driver with this handle, and nothing else yet.
fn source_of(plugin: InTreePlugin, handle: impl Into<Box<str>>) -> CsiSource {
    CsiSource {
        driver: plugin.driver().into(),
        handle: handle.into(),
        read_only: false,
        fs_type: Box::default(),
        attributes: super::volume::StringMap::default(),
        publish_secret: None,
    }
}

#[cfg(test)]
mod tests;
