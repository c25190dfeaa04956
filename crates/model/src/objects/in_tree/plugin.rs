//! The in-tree plug-ins that have a CSI successor, and what each translation begins with and fails with.

use std::collections::BTreeMap;
use thiserror::Error;

use crate::objects::csi_source::CsiSource;
use crate::objects::string_map::StringMap;

named! {
    /// An in-tree volume plug-in that has a CSI successor; the word is the name of the CSI driver that took over.
    #[allow(missing_docs, reason = "the variants are the fields of a PersistentVolume's spec")]
    pub enum InTreePlugin {
        GcePersistentDisk = "pd.csi.storage.gke.io",
        AwsElasticBlockStore = "ebs.csi.aws.com",
        Cinder = "cinder.csi.openstack.org",
        AzureDisk = "disk.csi.azure.com",
        AzureFile = "file.csi.azure.com",
        VsphereVolume = "csi.vsphere.vmware.com",
        PortworxVolume = "pxd.portworx.com",
    }
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

/// What a translation reads of the PersistentVolume around the source.
#[allow(
    missing_docs,
    reason = "a field without a comment is the field of the API with this name"
)]
pub struct PersistentVolumeContext<'a> {
    pub name: &'a str,
    pub labels: &'a BTreeMap<String, String>,
    pub annotations: &'a BTreeMap<String, String>,
    /// `spec.claimRef.namespace`; empty when there is none.
    pub claim_namespace: &'a str,
}

/// A source of `plugin`'s driver with this handle, and nothing else yet.
pub(super) fn source_of(plugin: InTreePlugin, handle: impl Into<Box<str>>) -> CsiSource {
    CsiSource {
        driver: plugin.as_str().into(),
        handle: handle.into(),
        read_only: false,
        fs_type: Box::default(),
        attributes: StringMap::default(),
        publish_secret: None,
    }
}
