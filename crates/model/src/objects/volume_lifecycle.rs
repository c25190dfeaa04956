//! What of a PersistentVolume says how it came and goes; almost all of it only a provisioner reads.
//!
//! Most PersistentVolumes of a driver say the same of it, so that a cache keeps one copy for all of them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::sync::Arc;

use super::csi_source::SecretReference;
use super::in_tree::MIGRATED_TO_ANNOTATION;
use super::is_blank;
use super::meta::{LONGEST_TRACE_CONTEXT as LONGEST_VALUE, positions_in};
use super::storage_class::ReclaimPolicy;
use crate::api::names::{
    DELETION_SECRET_NAME_ANNOTATION, DELETION_SECRET_NAMESPACE_ANNOTATION, PROVISIONED_BY_ANNOTATION,
    PROVISIONER_FINALIZER, RECLAIM_ANNOTATION, RETRY_NOW_ANNOTATION,
};

named! {
    /// `status.phase` of a PersistentVolume.
    #[derive(Default)]
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
}

/// What the annotations of a PersistentVolume say of the Secret of DeleteVolume.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeletionSecret {
    /// One of the annotations is missing: the class says it.
    Unrecorded,
    /// Both are empty: there is none.
    None,
    /// This one.
    Named(SecretReference),
}

/// What says how a PersistentVolume came and goes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VolumeLifecycle {
    /// `status.phase`.
    pub phase: VolumePhase,
    /// `spec.persistentVolumeReclaimPolicy`.
    pub reclaim_policy: Option<ReclaimPolicy>,
    /// Annotation `pv.kubernetes.io/provisioned-by`.
    pub provisioned_by: Option<Arc<str>>,
    /// Annotation `pv.kubernetes.io/migrated-to`: the CSI driver that serves a volume of an in-tree plug-in. Without it migration is not
    /// done, or was taken back.
    pub migrated_to: Option<Box<str>>,
    /// The Secret of DeleteVolume.
    pub deletion_secret: DeletionSecret,
    /// Positions of the finalizer of the provisioner in the whole list; none where it is not there.
    pub finalizer_at: Option<Box<[usize]>>,
    /// Whether a person decided that the volume of a PersistentVolume is deleted to which no claim is bound.
    pub reclaim_requested: bool,
    /// Annotation by which a person ends a backoff, cut where it is long.
    pub retry_now: Option<Box<str>>,
}

impl VolumeLifecycle {
    /// Reads it from the metadata of the object, whose finalizers are all there, its policy and its phase.
    pub(super) fn of(meta: &ObjectMeta, policy: Option<&str>, phase: Option<&str>) -> Self {
        let value = |key: &str| meta.annotations.as_ref()?.get(key).map(String::as_str);
        let name = value(DELETION_SECRET_NAME_ANNOTATION);
        let deletion_secret = match (name, value(DELETION_SECRET_NAMESPACE_ANNOTATION)) {
            (Some(name), Some(namespace)) if is_blank(name) || is_blank(namespace) => DeletionSecret::None,
            (Some(name), Some(namespace)) => DeletionSecret::Named(SecretReference {
                namespace: namespace.into(),
                name: name.into(),
            }),
            _ => DeletionSecret::Unrecorded,
        };
        Self {
            phase: phase.and_then(VolumePhase::of_word).unwrap_or_default(),
            reclaim_policy: policy.map(ReclaimPolicy::parse),
            provisioned_by: value(PROVISIONED_BY_ANNOTATION).map(Arc::from),
            migrated_to: value(MIGRATED_TO_ANNOTATION).map(Box::from),
            deletion_secret,
            finalizer_at: positions_in(meta.finalizers.as_deref(), PROVISIONER_FINALIZER),
            reclaim_requested: value(RECLAIM_ANNOTATION) == Some("Delete"),
            retry_now: value(RETRY_NOW_ANNOTATION).map(|text| text[..text.floor_char_boundary(LONGEST_VALUE)].into()),
        }
    }
}
