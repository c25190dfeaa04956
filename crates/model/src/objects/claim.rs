//! `v1` PersistentVolumeClaim.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_derive::Resource;
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::bounded_meta::{BoundedAnnotations, KeptAnnotations};
use super::in_tree::MIGRATED_TO_ANNOTATION;
use super::meta::{Finalizers, ResourceVersion, boxed, positions_in, slim_of};
use super::string_map::StringMap;
use crate::api::names::{
    BETA_STORAGE_CLASS_ANNOTATION, BETA_STORAGE_PROVISIONER_ANNOTATION, BIND_COMPLETED_ANNOTATION, PROVISIONING_MARKER,
    RELEASE_ANNOTATION, RELEASE_REFUSED_ANNOTATION, RETRY_NOW_ANNOTATION, SELECTED_NODE_ANNOTATION,
    STORAGE_PROVISIONER_ANNOTATION,
};

/// So many access modes are read; the API has four, and lets each be named any number of times.
const MAX_ACCESS_MODES: usize = 16;

/// A PersistentVolumeClaim as it comes over the wire, reduced to what is read.
#[derive(Clone, Debug, Deserialize, Resource)]
#[resource(inherit = PersistentVolumeClaim, crates(kube_core = "::kube_core"))]
#[allow(missing_docs, reason = "the fields of the API; metadata is reduced")]
pub struct PersistentVolumeClaimWire {
    #[serde(deserialize_with = "slim_of::<BoundedAnnotations, _>")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: ClaimSpecWire,
    #[serde(default)]
    pub status: ClaimStatusWire,
}

/// `PersistentVolumeClaimSpec`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimSpecWire {
    volume_name: Option<String>,
    storage_class_name: Option<String>,
    access_modes: Option<Vec<String>>,
    volume_mode: Option<String>,
    selector: Option<IgnoredAny>,
    resources: Option<ResourcesWire>,
    data_source: Option<DataSourceWire>,
    data_source_ref: Option<DataSourceWire>,
    volume_attributes_class_name: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct ResourcesWire {
    requests: Option<BTreeMap<String, String>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct DataSourceWire {
    api_group: Option<String>,
    #[serde(default)]
    kind: String,
}

/// `PersistentVolumeClaimStatus`.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct ClaimStatusWire {
    phase: Option<String>,
}

named! {
    /// `status.phase` of a PersistentVolumeClaim.
    #[derive(Default)]
    pub enum ClaimPhase {
        /// Not bound; also what is absent or not known.
        #[default]
        Pending,
        /// Bound to a PersistentVolume.
        Bound,
        /// Its PersistentVolume is gone.
        Lost,
    }
}

named! {
    /// One of `spec.accessModes` of a PersistentVolumeClaim.
    #[allow(missing_docs, reason = "the variants are the names of the API")]
    pub enum ClaimAccessMode {
        ReadWriteOnce,
        ReadWriteOncePod,
        ReadOnlyMany,
        ReadWriteMany,
        /// One that this version does not know.
        Other = "",
    }
}

/// `spec.volumeMode` of a PersistentVolumeClaim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the variants are the names of the API")]
pub enum VolumeMode {
    Filesystem,
    Block,
}

/// Of which kind `spec.dataSource` is, else `spec.dataSourceRef`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the fields of the API")]
pub struct DataSource {
    /// Empty for the core group.
    pub group: Box<str>,
    pub kind: Box<str>,
}

/// A cached PersistentVolumeClaim.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(
    missing_docs,
    clippy::struct_excessive_bools,
    reason = "a field without a comment is the field of the API with this name, and each bool is a fact about it"
)]
pub struct Claim {
    /// Namespace and name with a slash between, which no other claim of the cluster has.
    pub key: Arc<str>,
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    pub uid: Box<str>,
    pub resource_version: ResourceVersion,
    /// `metadata.creationTimestamp`, whole seconds.
    pub created: Option<Timestamp>,
    /// `metadata.deletionTimestamp`.
    pub deleting: Option<Timestamp>,
    pub finalizers: Finalizers,
    /// Positions of the finalizer `attacher.csi.dev/provisioning` in the whole list; none where it is not there.
    pub marker_at: Option<Box<[usize]>>,
    /// Annotation `attacher.csi.dev/provisioning`, as it stands.
    pub marker: Option<Box<str>>,
    /// Whether that annotation is there, and was left out as it is larger than [`MAX_MARKER`](super::MAX_MARKER).
    pub marker_left_out: bool,
    /// Who is to provision: `volume.kubernetes.io/storage-provisioner`, else the beta key.
    pub provisioner: Option<Arc<str>>,
    /// `pv.kubernetes.io/migrated-to`.
    pub migrated_to: Option<Box<str>>,
    /// The class: annotation `volume.beta.kubernetes.io/storage-class` first, else `spec.storageClassName`, else empty.
    pub class: Arc<str>,
    /// `volume.kubernetes.io/selected-node`; absent when it is empty.
    pub selected_node: Option<Arc<str>>,
    /// `spec.volumeName`; absent when it is empty.
    pub volume_name: Option<Arc<str>>,
    pub phase: ClaimPhase,
    /// Whether it has the annotation `pv.kubernetes.io/bind-completed`, whatever that says.
    pub bind_completed: bool,
    /// In the order of the object. Of more than are read the last one is [`ClaimAccessMode::Other`]: the driver is not asked for a part of
    /// them.
    pub access_modes: Box<[ClaimAccessMode]>,
    pub volume_mode: Option<VolumeMode>,
    /// `spec.resources.requests.storage` as it stands.
    pub requested: Option<Box<str>>,
    /// Whether `spec.selector` is set.
    pub has_selector: bool,
    pub data_source: Option<Box<DataSource>>,
    /// `spec.volumeAttributesClassName`; absent when it is empty.
    pub attributes_class: Option<Box<str>>,
    /// Annotation by which a person ends a backoff.
    pub retry_now: Option<Box<str>>,
    /// Annotation by which a person asks to let the claim go.
    pub release: Option<Box<str>>,
    /// The answer of ours to such a request.
    pub release_refused: Option<Box<str>>,
    /// Whether there are annotations at all.
    pub has_annotations: bool,
    /// The annotations that templates of a class may name: all but ours. None are kept of a claim that is bound.
    pub annotations: StringMap,
    /// How many annotations were left out, since they are too large.
    pub annotations_left_out: usize,
}

impl Claim {
    /// Whether the API server has let the object go.
    pub fn is_gone(&self) -> bool {
        self.deleting.is_some() && self.finalizers.is_empty() && self.marker_at.is_none()
    }

    /// Whether kube-controller-manager takes it for bound, whatever became of its PersistentVolume. The annotation decides (`syncClaim`
    /// there), and the phase follows later. Of a claim that names a PersistentVolume the phase counts as well: kubelet goes by it, also where
    /// somebody took the annotation off.
    pub fn is_bound(&self) -> bool {
        self.bind_completed || (self.volume_name.is_some() && self.phase != ClaimPhase::Pending)
    }
}

impl From<DataSourceWire> for DataSource {
    fn from(wire: DataSourceWire) -> Self {
        Self {
            group: boxed(wire.api_group),
            kind: wire.kind.into(),
        }
    }
}

fn filled<T: From<String>>(text: Option<String>) -> Option<T> {
    text.filter(|text| !text.is_empty()).map(T::from)
}

fn access_modes(named: &[String]) -> Box<[ClaimAccessMode]> {
    let known = |mode: &String| ClaimAccessMode::of_word(mode).unwrap_or(ClaimAccessMode::Other);
    let more = (named.len() > MAX_ACCESS_MODES).then_some(ClaimAccessMode::Other);
    named.iter().take(MAX_ACCESS_MODES).map(known).chain(more).collect()
}

impl From<PersistentVolumeClaimWire> for Claim {
    fn from(mut wire: PersistentVolumeClaimWire) -> Self {
        let mut kept = KeptAnnotations::take(&mut wire.metadata);
        let finalizers = wire.metadata.finalizers.take();
        let marker_at = positions_in(finalizers.as_deref(), PROVISIONING_MARKER);
        // A template of a class may name any annotation but ours.
        let beta_provisioner = kept.value(BETA_STORAGE_PROVISIONER_ANNOTATION);
        let provisioner = kept.value(STORAGE_PROVISIONER_ANNOTATION).or(beta_provisioner);
        let spec = wire.spec;
        let class = kept.value(BETA_STORAGE_CLASS_ANNOTATION);
        let class = class.unwrap_or_else(|| boxed(spec.storage_class_name));
        let phase = wire.status.phase.as_deref().and_then(ClaimPhase::of_word);
        let phase = phase.unwrap_or_default();
        let requests = spec.resources.and_then(|resources| resources.requests);
        let data_source = spec.data_source.or(spec.data_source_ref);
        let is_bound = phase == ClaimPhase::Bound && marker_at.is_none();
        let (namespace, name) = (boxed(wire.metadata.namespace.take()), boxed(wire.metadata.name.take()));
        Self {
            resource_version: ResourceVersion::of(&wire.metadata),
            key: format!("{namespace}/{name}").into(),
            namespace: namespace.into(),
            name: name.into(),
            uid: boxed(wire.metadata.uid),
            created: wire.metadata.creation_timestamp.map(|time| time.0),
            deleting: wire.metadata.deletion_timestamp.map(|time| time.0),
            finalizers: Finalizers::of(finalizers, None),
            marker_at,
            marker: kept.take_value(PROVISIONING_MARKER),
            marker_left_out: kept.marker_left_out,
            provisioner: provisioner.map(Arc::from),
            migrated_to: kept.value(MIGRATED_TO_ANNOTATION),
            class: class.into(),
            selected_node: filled(kept.value(SELECTED_NODE_ANNOTATION).map(String::from)),
            volume_name: filled(spec.volume_name),
            phase,
            bind_completed: kept.entries.contains_key(BIND_COMPLETED_ANNOTATION),
            access_modes: access_modes(&spec.access_modes.unwrap_or_default()),
            volume_mode: spec.volume_mode.map(|mode| match mode.as_str() {
                "Block" => VolumeMode::Block,
                _ => VolumeMode::Filesystem,
            }),
            requested: requests
                .and_then(|mut requests| requests.remove("storage"))
                .map(String::into_boxed_str),
            has_selector: spec.selector.is_some(),
            data_source: data_source.map(|source| Box::new(source.into())),
            attributes_class: filled(spec.volume_attributes_class_name),
            retry_now: kept.take_value(RETRY_NOW_ANNOTATION),
            release: kept.take_value(RELEASE_ANNOTATION),
            release_refused: kept.take_value(RELEASE_REFUSED_ANNOTATION),
            has_annotations: kept.present,
            annotations_left_out: kept.left_out,
            annotations: if is_bound {
                StringMap::default()
            } else {
                kept.entries.into()
            },
        }
    }
}
