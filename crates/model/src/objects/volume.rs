//! `v1` PersistentVolume, and the volume spec that an attachment may also carry in line.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_derive::Resource;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::access_modes::AccessModes;
use super::csi_source::{CsiSource, CsiWire};
use super::in_tree::{
    self, CinderWire, DiskWire, ElasticBlockStoreWire, FileWire, InTreePlugin, PersistentDiskWire,
    PersistentVolumeContext, PortworxWire, TranslationError, VsphereWire,
};
use super::meta::{Finalizers, OversizedField, ResourceVersion, boxed, boxed_list, slim, trace_context};
use super::string_map::StringMap;
use super::volume_lifecycle::VolumeLifecycle;
use crate::api::names::BETA_STORAGE_CLASS_ANNOTATION;

/// A PersistentVolume as it comes over the wire, reduced to what is read.
#[derive(Clone, Debug, Deserialize, Resource)]
#[resource(inherit = PersistentVolume, crates(kube_core = "::kube_core"))]
#[allow(missing_docs, reason = "the fields of the API; metadata is reduced")]
pub struct PersistentVolumeWire {
    #[serde(deserialize_with = "slim")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: VolumeSpecWire,
    #[serde(default)]
    status: VolumeStatusWire,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct VolumeStatusWire {
    phase: Option<String>,
}

/// The part of `PersistentVolumeSpec` that attaching needs.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSpecWire {
    csi: Option<CsiWire>,
    access_modes: Option<Vec<String>>,
    volume_mode: Option<String>,
    mount_options: Option<Vec<String>>,
    claim_ref: Option<ClaimWire>,
    storage_class_name: Option<String>,
    persistent_volume_reclaim_policy: Option<String>,
    gce_persistent_disk: Option<PersistentDiskWire>,
    aws_elastic_block_store: Option<ElasticBlockStoreWire>,
    cinder: Option<CinderWire>,
    azure_disk: Option<DiskWire>,
    azure_file: Option<FileWire>,
    vsphere_volume: Option<VsphereWire>,
    portworx_volume: Option<PortworxWire>,
}

#[derive(Clone, Debug, Deserialize)]
struct ClaimWire {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
}

/// The claim that a PersistentVolume is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields of the API")]
pub struct ClaimReference {
    pub namespace: Box<str>,
    pub name: Box<str>,
    pub uid: Box<str>,
}

/// Which plug-in a volume belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum VolumeSource {
    /// A CSI driver; for a volume of an in-tree plug-in, the one that took over.
    Csi(Box<CsiSource>),
    /// An in-tree plug-in that has a CSI successor, but the successor cannot take this volume.
    Untranslated(Box<TranslationError>),
    /// Any other plug-in; no attacher serves it.
    Other,
}

/// What has to be known of a volume to attach it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(
    missing_docs,
    reason = "a field without a comment is the field of the API with this name"
)]
pub struct VolumeSpec {
    pub source: VolumeSource,
    pub access_modes: AccessModes,
    /// Whether `volumeMode` is Block.
    pub block: bool,
    pub mount_options: Box<[Box<str>]>,
    /// A field that is larger than [`MAX_VOLUME_FIELD`](super::MAX_VOLUME_FIELD) and was left out: the volume can be detached, and not attached.
    pub too_large: Option<Box<OversizedField>>,
}

impl VolumeSpec {
    /// The source as a CSI driver sees it, if it is one's.
    pub fn csi(&self) -> Option<&CsiSource> {
        match &self.source {
            VolumeSource::Csi(source) => Some(source),
            VolumeSource::Untranslated(_) | VolumeSource::Other => None,
        }
    }
}

/// A cached PersistentVolume.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "a field without a comment is the field of the API with this name"
)]
pub struct Volume {
    pub name: Arc<str>,
    pub uid: Box<str>,
    pub resource_version: ResourceVersion,
    /// `metadata.creationTimestamp`, whole seconds.
    pub created: Option<Timestamp>,
    /// Whether `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    pub finalizers: Finalizers,
    pub spec: VolumeSpec,
    /// The plug-in, if the source is one of an in-tree plug-in, whether it could be translated or not.
    pub in_tree: Option<InTreePlugin>,
    /// `spec.claimRef`.
    pub claim: Option<Box<ClaimReference>>,
    /// `spec.storageClassName`.
    pub storage_class: Option<Arc<str>>,
    /// Annotations that may carry a trace context.
    pub trace_context: StringMap,
    /// How it came and goes. Volumes that say the same share it in a cache.
    pub lifecycle: Arc<VolumeLifecycle>,
}

impl Volume {
    /// The names that may occur in texts about it: its own, and those of its claim and class.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let claim = self.claim.iter().flat_map(|claim| [&*claim.namespace, &*claim.name]);
        let class = self.storage_class.as_deref();
        std::iter::once(&*self.name).chain(claim).chain(class)
    }

    /// Whether the API server has let the object go.
    pub fn is_gone(&self) -> bool {
        self.deleting && self.finalizers.is_empty()
    }

    /// Whether the volume has an in-tree source that `driver` is not, or no more, to serve.
    pub fn is_in_tree_without(&self, driver: &str) -> bool {
        self.in_tree.is_some() && self.lifecycle.migrated_to.as_deref() != Some(driver)
    }
}

impl VolumeSpecWire {
    /// Empties the fields that are too large; the first of them.
    fn take_oversized(&mut self) -> Option<OversizedField> {
        let attributes = self.csi.as_mut().and_then(CsiWire::take_oversized_attributes);
        let options = self.mount_options.iter().flatten().map(String::len);
        let options = OversizedField::of("spec.mountOptions", options);
        if options.is_some() {
            self.mount_options = None;
        }
        attributes.or(options)
    }

    /// The in-tree source as the CSI driver knows it; none when the volume has none.
    fn take_in_tree(
        &mut self,
        volume: &PersistentVolumeContext<'_>,
    ) -> Option<(InTreePlugin, Result<CsiSource, TranslationError>)> {
        Some(if let Some(source) = self.gce_persistent_disk.take() {
            (InTreePlugin::GcePersistentDisk, source.translate(volume))
        } else if let Some(source) = self.aws_elastic_block_store.take() {
            (InTreePlugin::AwsElasticBlockStore, source.translate())
        } else if let Some(source) = self.cinder.take() {
            (InTreePlugin::Cinder, Ok(source.translate()))
        } else if let Some(source) = self.azure_disk.take() {
            (InTreePlugin::AzureDisk, source.translate())
        } else if let Some(source) = self.azure_file.take() {
            (InTreePlugin::AzureFile, source.translate(volume))
        } else if let Some(source) = self.vsphere_volume.take() {
            (InTreePlugin::VsphereVolume, Ok(source.translate()))
        } else {
            let source = self.portworx_volume.take()?;
            (InTreePlugin::PortworxVolume, Ok(source.translate(volume)))
        })
    }
}

/// A spec as it stands. An in-tree source is nothing to an attacher here: the attach/detach controller translates
/// in-line volumes before it writes them, and a PersistentVolume's is translated with the whole object.
impl From<VolumeSpecWire> for VolumeSpec {
    fn from(mut wire: VolumeSpecWire) -> Self {
        let too_large = wire.take_oversized().map(Box::new);
        let source = match wire.csi {
            Some(csi) => VolumeSource::Csi(Box::new(csi.into())),
            None => VolumeSource::Other,
        };
        Self {
            too_large,
            source,
            access_modes: AccessModes::parse(&wire.access_modes.unwrap_or_default()),
            block: wire.volume_mode.as_deref() == Some("Block"),
            mount_options: boxed_list(wire.mount_options),
        }
    }
}

impl From<PersistentVolumeWire> for Volume {
    fn from(mut wire: PersistentVolumeWire) -> Self {
        let policy = wire.spec.persistent_volume_reclaim_policy.take();
        let lifecycle = VolumeLifecycle::of(&wire.metadata, policy.as_deref(), wire.status.phase.as_deref());
        let claim = wire.spec.claim_ref.take().map(|claim| {
            Box::new(ClaimReference {
                namespace: boxed(claim.namespace),
                name: boxed(claim.name),
                uid: boxed(claim.uid),
            })
        });
        let none = BTreeMap::new();
        let translated = wire.spec.take_in_tree(&PersistentVolumeContext {
            name: wire.metadata.name.as_deref().unwrap_or_default(),
            labels: wire.metadata.labels.as_ref().unwrap_or(&none),
            annotations: wire.metadata.annotations.as_ref().unwrap_or(&none),
            claim_namespace: claim.as_ref().map_or("", |claim| &claim.namespace),
        });
        let in_tree = translated.as_ref().map(|(plugin, _)| *plugin);
        let has_modes = wire.spec.access_modes.is_some();
        // As kube-controller-manager and external-provisioner read it: the annotation first.
        let annotations = wire.metadata.annotations.as_mut();
        let beta = annotations.and_then(|annotations| annotations.remove(BETA_STORAGE_CLASS_ANNOTATION));
        let storage_class = beta.or_else(|| wire.spec.storage_class_name.take()).map(Into::into);
        let mut spec = VolumeSpec::from(wire.spec);
        if let Some((plugin, translated)) = translated {
            spec.source = match translated {
                Ok(source) => VolumeSource::Csi(Box::new(source)),
                Err(error) => VolumeSource::Untranslated(Box::new(error)),
            };
            // An absent list of access modes stays absent.
            if plugin == InTreePlugin::GcePersistentDisk && has_modes {
                spec.access_modes = in_tree::access_modes(spec.access_modes);
            }
        }
        let driver = in_tree.map(InTreePlugin::as_str);
        let driver = driver.or_else(|| spec.csi().map(|source| &*source.driver));
        Self {
            finalizers: Finalizers::of(wire.metadata.finalizers.take(), driver),
            trace_context: trace_context(wire.metadata.annotations.as_ref()),
            resource_version: ResourceVersion::of(&wire.metadata),
            name: wire.metadata.name.unwrap_or_default().into(),
            uid: boxed(wire.metadata.uid),
            created: wire.metadata.creation_timestamp.map(|time| time.0),
            deleting: wire.metadata.deletion_timestamp.is_some(),
            storage_class,
            in_tree,
            claim,
            spec,
            lifecycle: lifecycle.into(),
        }
    }
}
