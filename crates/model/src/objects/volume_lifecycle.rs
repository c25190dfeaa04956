//! What a provisioner reads of a PersistentVolume beside the record [`Volume`](super::Volume).
//!
//! Attaching needs none of it, so that it stands apart: volumes of drivers that only attach need not keep it.

use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_derive::Resource;
use serde::{Deserialize, Deserializer};
use std::sync::Arc;

use super::bounded_meta::{KeptAnnotations, ReadAnnotations, bounded};
use super::csi_source::SecretReference;
use super::in_tree::MIGRATED_TO_ANNOTATION;
use super::storage_class::ReclaimPolicy;
use crate::api::names::{
    DELETION_SECRET_NAME_ANNOTATION, DELETION_SECRET_NAMESPACE_ANNOTATION, PROVISIONED_BY_ANNOTATION,
    PROVISIONER_FINALIZER, RECLAIM_ANNOTATION, RETRY_NOW_ANNOTATION,
};

/// A PersistentVolume as it comes over the wire, reduced to what only a provisioner reads.
#[derive(Clone, Debug, Deserialize, Resource)]
#[resource(inherit = PersistentVolume, crates(kube_core = "::kube_core"))]
#[allow(missing_docs, reason = "the fields of the API; metadata is reduced")]
pub struct VolumeLifecycleWire {
    #[serde(deserialize_with = "volume_meta")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    spec: LifecycleSpecWire,
    #[serde(default)]
    status: LifecycleStatusWire,
}

fn volume_meta<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    bounded::<VolumeAnnotations, D>(deserializer)
}

struct VolumeAnnotations;

impl ReadAnnotations for VolumeAnnotations {
    fn is_read(key: &str) -> bool {
        [
            PROVISIONED_BY_ANNOTATION,
            MIGRATED_TO_ANNOTATION,
            DELETION_SECRET_NAME_ANNOTATION,
            DELETION_SECRET_NAMESPACE_ANNOTATION,
            RECLAIM_ANNOTATION,
            RETRY_NOW_ANNOTATION,
        ]
        .contains(&key)
    }
    const OTHERS: bool = false;
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct LifecycleSpecWire {
    persistent_volume_reclaim_policy: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct LifecycleStatusWire {
    phase: Option<String>,
}

/// `status.phase` of a PersistentVolume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the variants are the names of the API")]
pub enum VolumePhase {
    /// Also what is absent or not known.
    #[default]
    Pending,
    Available,
    Bound,
    Released,
    Failed,
}

/// What the annotations of a PersistentVolume say of the Secret of DeleteVolume.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DeletionSecret {
    /// One of the annotations is missing: the class says it.
    Unrecorded,
    /// Both are empty: there is none.
    None,
    /// This one.
    Named(SecretReference),
}

/// What a provisioner reads of a PersistentVolume beside [`Volume`](super::Volume).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeLifecycle {
    /// `status.phase`.
    pub phase: VolumePhase,
    /// `spec.persistentVolumeReclaimPolicy`.
    pub reclaim_policy: Option<ReclaimPolicy>,
    /// Annotation `pv.kubernetes.io/provisioned-by`.
    pub provisioned_by: Option<Arc<str>>,
    /// Annotation `pv.kubernetes.io/migrated-to`.
    pub migrated_to: Option<Box<str>>,
    /// The Secret of DeleteVolume.
    pub deletion_secret: DeletionSecret,
    /// Position of the finalizer of the provisioner in the whole list.
    pub finalizer_at: Option<usize>,
    /// Whether a person decided that the volume of a PersistentVolume that was never bound is deleted.
    pub reclaim_requested: bool,
    /// Annotation by which a person ends a backoff.
    pub retry_now: Option<Box<str>>,
}

impl From<VolumeLifecycleWire> for VolumeLifecycle {
    fn from(mut wire: VolumeLifecycleWire) -> Self {
        let mut kept = KeptAnnotations::take(&mut wire.metadata);
        let finalizers = wire.metadata.finalizers.unwrap_or_default();
        let policy = wire.spec.persistent_volume_reclaim_policy;
        let name = kept.take_value(DELETION_SECRET_NAME_ANNOTATION);
        let deletion_secret = match (name, kept.take_value(DELETION_SECRET_NAMESPACE_ANNOTATION)) {
            (Some(name), Some(namespace)) if name.is_empty() && namespace.is_empty() => DeletionSecret::None,
            (Some(name), Some(namespace)) => DeletionSecret::Named(SecretReference { namespace, name }),
            _ => DeletionSecret::Unrecorded,
        };
        Self {
            phase: match wire.status.phase.as_deref() {
                Some("Available") => VolumePhase::Available,
                Some("Bound") => VolumePhase::Bound,
                Some("Released") => VolumePhase::Released,
                Some("Failed") => VolumePhase::Failed,
                _ => VolumePhase::Pending,
            },
            reclaim_policy: policy.as_deref().map(ReclaimPolicy::parse),
            provisioned_by: kept.take_value(PROVISIONED_BY_ANNOTATION).map(Arc::from),
            migrated_to: kept.take_value(MIGRATED_TO_ANNOTATION),
            deletion_secret,
            finalizer_at: finalizers.iter().position(|entry| entry == PROVISIONER_FINALIZER),
            reclaim_requested: kept.take_value(RECLAIM_ANNOTATION).as_deref() == Some("Delete"),
            retry_now: kept.take_value(RETRY_NOW_ANNOTATION),
        }
    }
}
