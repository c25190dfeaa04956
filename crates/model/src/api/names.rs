//! Names and keys that other programs also read or write. Changing one of them breaks an upgrade or a move to and from
//! the sidecar kubernetes-csi/external-attacher, which derives the same finalizer and lease names from a driver's name.

/// Annotation that the external-attacher protocol puts on a VolumeAttachment: the CSI node ID the volume was published
/// to, so that detach works after the CSINode is gone.
pub const NODE_ID_ANNOTATION: &str = "csi.alpha.kubernetes.io/node-id";

/// Annotation on a VolumeAttachment: volume handle and publish secret reference as JSON, so that detach works after the
/// PersistentVolume is gone.
pub const VOLUME_ANNOTATION: &str = "attacher.csi.dev/volume";

/// Annotation on a VolumeAttachment: the W3C `traceparent` of the trace that it is worked on in, so that later work can be
/// linked to it. On an Event: that of the attempt that it is about.
pub const TRACEPARENT_ANNOTATION: &str = "attacher.csi.dev/traceparent";

/// Annotation that a person sets on a VolumeAttachment to end its backoff at once.
pub const RETRY_NOW_ANNOTATION: &str = "attacher.csi.dev/retry-now";

/// Annotation that a person sets on an AttacherConfig to confirm that its driver does not attach any more, though its CSIDriver
/// says otherwise. The value must be the driver's name, so that a copied manifest confirms nothing.
pub const CONFIRM_CAPABILITY_LOST_ANNOTATION: &str = "attacher.csi.dev/confirm-capability-lost";

/// Annotation that a person sets on a VolumeAttachment that is being deleted: former node IDs, separated by commas, at which the
/// volume is not attached, though the driver does not confirm that.
pub const NOT_ATTACHED_AT_ANNOTATION: &str = "attacher.csi.dev/not-attached-at";

/// Annotation that `kubectl attacher release` sets on a VolumeAttachment that is being deleted: a request to let it go without the
/// driver's confirmation, as JSON (see `ReleaseRequest`). It counts for the object and the deletion that it names only.
pub const RELEASE_ANNOTATION: &str = "attacher.csi.dev/release";

/// Annotation on a VolumeAttachment: why the operator did not release it on request, as JSON (see `ReleaseAnswer`).
pub const RELEASE_REFUSED_ANNOTATION: &str = "attacher.csi.dev/release-refused";

/// Annotation on an Event: the ID of the trace of the attempt that it is about.
pub const EVENT_TRACE_ANNOTATION: &str = "attacher.csi.dev/trace-id";

/// Annotation on a Lease: the holder, when that is a replica which writes the status of AttacherConfigs. It means nothing
/// unless it is the same as `spec.holderIdentity`: a sidecar that takes the Lease leaves it as it is.
pub const LEASE_HOLDER_ANNOTATION: &str = "attacher.csi.dev/holder";

/// Annotation on a Lease: the holder, when that is the operator in the place of a sidecar, which reads the annotations of people as well. It
/// means nothing unless it is the same as `spec.holderIdentity`.
pub const LEASE_DROP_IN_ANNOTATION: &str = "attacher.csi.dev/drop-in-holder";

/// Who holds a Lease that was just created. Nobody has this name: all candidates wait until the Lease has run out, its creator too.
pub const NEW_LEASE_HOLDER: &str = "attacher.csi.dev/new-lease";

/// Finalizer on an AttacherConfig whose `deletionPolicy` is WaitForDetach.
pub const WAIT_FOR_DETACH_FINALIZER: &str = "attacher.csi.dev/wait-for-detach";

/// Finalizer on a PersistentVolumeClaim, and annotation of the same key with JSON (see `Marker`): a volume may have been created for
/// the claim that no PersistentVolume names yet. Put on before the first CreateVolume.
pub const PROVISIONING_MARKER: &str = "attacher.csi.dev/provisioning";

/// Annotation that a person sets on a PersistentVolume that is being deleted while no claim is bound to it: with the value `Delete` its
/// volume is deleted as that of a Released one.
pub const RECLAIM_ANNOTATION: &str = "attacher.csi.dev/reclaim";

/// Finalizer of the external-provisioner sidecar on a PersistentVolume (KEP-2644): it goes after the volume is deleted.
pub const PROVISIONER_FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";

/// Annotation on a PersistentVolume: the provisioner of the class that it was made by.
pub const PROVISIONED_BY_ANNOTATION: &str = "pv.kubernetes.io/provisioned-by";

/// Annotation on a PersistentVolumeClaim: the provisioner that is to serve it, as kube-controller-manager says.
pub const STORAGE_PROVISIONER_ANNOTATION: &str = "volume.kubernetes.io/storage-provisioner";

/// The former key of [`STORAGE_PROVISIONER_ANNOTATION`], which kube-controller-manager writes as well.
pub const BETA_STORAGE_PROVISIONER_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-provisioner";

/// Annotation on a PersistentVolumeClaim: the name of its class, before `spec.storageClassName` counts.
pub const BETA_STORAGE_CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";

/// Annotation on a PersistentVolumeClaim: kube-controller-manager takes the claim for bound, whatever the value (its `syncClaim`).
pub const BIND_COMPLETED_ANNOTATION: &str = "pv.kubernetes.io/bind-completed";

/// Annotation on a PersistentVolumeClaim: the node that kube-scheduler chose for its pod.
pub const SELECTED_NODE_ANNOTATION: &str = "volume.kubernetes.io/selected-node";

/// Annotations on a PersistentVolume: the Secret that DeleteVolume is called with. Both are empty when there is none.
pub const DELETION_SECRET_NAME_ANNOTATION: &str = "volume.kubernetes.io/provisioner-deletion-secret-name";
/// See [`DELETION_SECRET_NAME_ANNOTATION`].
pub const DELETION_SECRET_NAMESPACE_ANNOTATION: &str = "volume.kubernetes.io/provisioner-deletion-secret-namespace";

/// Annotations on a PersistentVolume: the Secret of ControllerModifyVolume, which external-resizer reads.
pub const MODIFY_SECRET_NAME_ANNOTATION: &str = "volume.kubernetes.io/controller-modify-secret-name";
/// See [`MODIFY_SECRET_NAME_ANNOTATION`].
pub const MODIFY_SECRET_NAMESPACE_ANNOTATION: &str = "volume.kubernetes.io/controller-modify-secret-namespace";

/// Key in `spec.csi.volumeAttributes`: which process of a provisioner made the volume.
pub const PROVISIONER_IDENTITY_ATTRIBUTE: &str = "storage.kubernetes.io/csiProvisionerIdentity";

/// What the reserved keys of a StorageClass's parameters begin with.
pub const RESERVED_PARAMETER_PREFIX: &str = "csi.storage.k8s.io/";

/// Label on a CSIStorageCapacity: the driver whose capacity it says.
pub const CAPACITY_DRIVER_LABEL: &str = "csi.storage.k8s.io/drivername";
/// Label on a CSIStorageCapacity: which provisioner wrote it.
pub const CAPACITY_MANAGER_LABEL: &str = "csi.storage.k8s.io/managed-by";
/// The value of [`CAPACITY_MANAGER_LABEL`] where one external-provisioner works for all nodes. That of a node (`--node-deployment`) has a
/// dash and the name of the node after it.
pub const CENTRAL_PROVISIONER: &str = "external-provisioner";

/// The owner of our fields in server-side apply and in `managedFields`.
pub const FIELD_MANAGER: &str = "csi-attacher-operator";
/// The owner of the conditions about provisioning where another replica writes the rest of the status.
pub const PROVISIONING_FIELD_MANAGER: &str = "csi-attacher-operator-provisioning";

/// What the finalizers of all attachers begin with.
pub const FINALIZER_PREFIX: &str = "external-attacher/";
/// The Lease whose holder writes the status of AttacherConfigs that no replica leads.
pub const STATUS_LEASE: &str = "csi-attacher-operator-status";
/// What the Leases of all attachers begin with.
pub const LEASE_PREFIX: &str = "external-attacher-leader-";

/// Makes a driver name usable inside a finalizer or object name: each character other than an ASCII letter, digit or
/// `-` becomes `-`, and a result that ends in `-` gets an `X` appended.
///
/// Case and length are kept. Different names can give the same result (`a.b` and `a-b`).
pub fn sanitise_driver_name(name: &str) -> String {
    let mut sanitised: String = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '-' })
        .collect();
    if sanitised.ends_with('-') {
        sanitised.push('X');
    }
    sanitised
}

/// The finalizer on the VolumeAttachments and PersistentVolumes of a driver.
pub fn finalizer_name(driver: &str) -> String {
    format!("{FINALIZER_PREFIX}{}", sanitise_driver_name(driver))
}

/// The name of the Lease that the leader for a driver holds; the same as the sidecar's, so that the two never both lead.
///
/// The name of a Lease has no upper-case letters (RFC 1123), and that of a driver may: they become lower-case. The sidecar
/// leaves them, and the API server refuses its Lease, so no sidecar holds one.
pub fn lease_name(driver: &str) -> String {
    sanitise_driver_name(&format!("{LEASE_PREFIX}{}", driver.to_ascii_lowercase()))
}

/// The name of the Lease of external-provisioner for a driver: the sanitised driver name alone. Upper-case letters become lower-case, as
/// in [`lease_name`].
pub fn provisioner_lease_name(driver: &str) -> String {
    sanitise_driver_name(&driver.to_ascii_lowercase())
}
