//! The labels and annotations of a PersistentVolume that a translation reads.

/// Annotation by which kube-controller-manager marks a volume whose in-tree plug-in was migrated to a CSI driver; its
/// value is the driver's name.
pub const MIGRATED_TO_ANNOTATION: &str = "pv.kubernetes.io/migrated-to";

/// Looked at first: a volume that was made before 1.17 and labelled anew later has both.
pub(super) const BETA_ZONE_LABEL: &str = "failure-domain.beta.kubernetes.io/zone";
pub(super) const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

pub(super) const RESOURCE_GROUP_ANNOTATION: &str = "kubernetes.io/azure-file-resource-group";

pub(super) const PORTWORX_SECRET_NAME_ANNOTATION: &str = "openstorage.io/auth-secret-name";
pub(super) const PORTWORX_SECRET_NAMESPACE_ANNOTATION: &str = "openstorage.io/auth-secret-namespace";

/// Whether a label is read by a translation.
pub fn is_read_label(key: &str) -> bool {
    [BETA_ZONE_LABEL, ZONE_LABEL].contains(&key)
}

/// Whether an annotation is read by a translation.
pub fn is_read_annotation(key: &str) -> bool {
    let read = [
        MIGRATED_TO_ANNOTATION,
        RESOURCE_GROUP_ANNOTATION,
        PORTWORX_SECRET_NAME_ANNOTATION,
        PORTWORX_SECRET_NAMESPACE_ANNOTATION,
    ];
    read.contains(&key)
}
