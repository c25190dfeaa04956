//! Why a volume cannot be provisioned or deleted as things are: each reason becomes an Event, a log field and the name of a test.

use std::sync::Arc;
use thiserror::Error;

use super::topology::{MAX_TERMS, MAX_TERMS_SIZE, Segment};
use crate::api::names::{
    BIND_COMPLETED_ANNOTATION, DELETION_SECRET_NAME_ANNOTATION, DELETION_SECRET_NAMESPACE_ANNOTATION,
    PROVISIONER_FINALIZER,
};
use crate::api::permissions::secret_entry;
use crate::decide::cut;
use crate::objects::{MAX_MARKER, MAX_VOLUME_FIELD, SecretReference, TranslationError};

/// The reason of all that is missing topology.
const TOPOLOGY_MISSING: &str = "topology_missing";

/// Why a volume cannot be provisioned or deleted as things are. The texts that users of external-provisioner search for are kept as far
/// as they name the cause.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the messages say what the variants and their fields are")]
pub enum ProvisionRefusal {
    #[error(
        "claim Selector is not supported: create the PersistentVolumeClaim anew without spec.selector, or bind it to a PersistentVolume by hand"
    )]
    Selector,
    #[error(
        "the PersistentVolumeClaim carries the annotation {BIND_COMPLETED_ANNOTATION} and names no PersistentVolume, so that nobody binds it: \
         remove the annotation, or create the PersistentVolumeClaim anew without it"
    )]
    BindCompleted,
    #[error(
        "CSI driver {0} does not announce CREATE_DELETE_VOLUME, so that no volume can be provisioned; use a class of another driver"
    )]
    NotSupported(Arc<str>),
    /// The volume is there, and the PersistentVolume is all that names it.
    #[error(
        "CSI driver {0} does not announce CREATE_DELETE_VOLUME, so that no volume can be deleted: install a version of the driver that does; \
         or delete the volume in the storage system first, and only then set the policy of the PersistentVolume to Retain and delete it"
    )]
    DeletionNotSupported(Arc<str>),
    #[error(
        "storageclass.storage.k8s.io {class:?} not found: create StorageClass {class}, or create the PersistentVolumeClaim for another one"
    )]
    ClassMissing { class: Arc<str> },
    #[error(
        "StorageClass {class} names provisioner {named}, and the PersistentVolumeClaim is annotated for {driver}: \
         kube-controller-manager corrects the annotation, else create the PersistentVolumeClaim anew"
    )]
    ClassMismatch {
        class: Arc<str>,
        named: Arc<str>,
        driver: Arc<str>,
    },
    #[error(
        "StorageClass {class} is of the in-tree plug-in {named}, for which this version creates no volumes: create a StorageClass with \
         provisioner {driver}, or use external-provisioner for this driver"
    )]
    ClassInTree {
        class: Arc<str>,
        named: Arc<str>,
        driver: Arc<str>,
    },
    /// What would find out whether there is a volume, needs the class.
    #[error(
        "storageclass.storage.k8s.io {class:?} not found, and it is not known whether CreateVolume for {volume} made a volume: create \
         StorageClass {class} as it was; or look for {volume} in the storage system, delete the PersistentVolumeClaim, and let it go with \
         the annotation attacher.csi.dev/release"
    )]
    ClassNeeded { class: Arc<str>, volume: Box<str> },
    /// The volume of a claim was begun with the parameters of a class that was replaced.
    #[error(
        "StorageClass {class} is not as it was when CreateVolume for {volume} was called, whose outcome is unknown: it has another \
         provisioner, other parameters or mountOptions, or allowedTopologies without the topology of that call (or any, if that call asked for \
         no topology, which may be the driver's own change), and the volume might not be found; put the class back; or look for {volume} in the storage system, delete the PersistentVolumeClaim, and let it go with the \
         annotation attacher.csi.dev/release"
    )]
    ClassReplaced { class: Arc<str>, volume: Box<str> },
    #[error(
        "{field} of StorageClass {class} needs {bytes} bytes of memory, and at most {MAX_VOLUME_FIELD} are accepted: create the StorageClass anew with a shorter one"
    )]
    ClassTooLarge {
        class: Arc<str>,
        field: &'static str,
        bytes: usize,
    },
    #[error(
        "found unknown parameter key {key:?} with reserved namespace csi.storage.k8s.io/: create StorageClass {class} anew without it"
    )]
    UnknownReservedKey { class: Arc<str>, key: Box<str> },
    #[error(
        "fstype specified in parameters with both \"fstype\" and \"csi.storage.k8s.io/fstype\" keys: create StorageClass {class} anew with one \
         of them"
    )]
    FsTypeTwice { class: Arc<str> },
    #[error(
        "Secret reference of {family} in StorageClass {class} is specified with a deprecated key and with csi.storage.k8s.io/: create it \
         anew with one of them"
    )]
    SecretKeysTwice { class: Arc<str>, family: &'static str },
    #[error(
        "only name or namespace for secret found, both must be specified: {key:?} is missing in StorageClass {class}"
    )]
    SecretKeyMissing { class: Arc<str>, key: &'static str },
    #[error(
        "the value of {key:?} in StorageClass {class} is empty: create it anew with a value, or without the name and the namespace"
    )]
    SecretKeyEmpty { class: Arc<str>, key: &'static str },
    #[error("{template:?} of {key:?} in StorageClass {class} {fault}")]
    SecretTemplate {
        class: Arc<str>,
        key: &'static str,
        template: Box<str>,
        fault: TemplateFault,
    },
    #[error(
        "the class names Secret {}/{}, which spec.provisioning.secrets of AttacherConfig {config} does not list; if driver {driver} may \
         receive this Secret, add {}",
        secret.namespace, secret.name, secret_entry(secret)
    )]
    SecretNotAllowed {
        secret: SecretReference,
        config: Arc<str>,
        driver: Arc<str>,
    },
    #[error("secrets {:?} not found in namespace {:?}: create it", secret.name, secret.namespace)]
    SecretMissing { secret: SecretReference },
    #[error("Secret {}/{} cannot be read: let the operator get it", secret.namespace, secret.name)]
    SecretUnreadable { secret: SecretReference },
    #[error(
        "spec.accessModes of the PersistentVolumeClaim is empty, has a mode that is not known, or has more than 16 entries: create it anew with ReadWriteOnce, ReadWriteOncePod, ReadOnlyMany or ReadWriteMany"
    )]
    AccessModes,
    #[error(
        "spec.resources.requests.storage of the PersistentVolumeClaim is {0:?}, which is not a size from 1 byte to 8Ei: create it anew with one such as 10Gi"
    )]
    Size(Box<str>),
    #[error("{0} bytes are too many for the name of a volume (CSI specification: 128): use a shorter volumeNamePrefix")]
    VolumeNameTooLong(usize),
    #[error("the UID {0:?} of the PersistentVolumeClaim is too short for volumeNameUUIDLength")]
    ShortUid(Box<str>),
    /// The place of slice P3.
    #[error(
        "spec.dataSource of kind {kind} is not supported by this version: use external-provisioner for this driver"
    )]
    DataSourceNotSupported { kind: Box<str> },
    /// The place of slice P3.
    #[error("VolumeAttributesClass {0} is not supported by this version: use external-provisioner for this driver")]
    AttributesClassNotSupported(Box<str>),
    #[error(
        "no available topology found: driver {0} is registered with topology keys on no node; check that its node plugin runs"
    )]
    NoTopology(Arc<str>),
    #[error(
        "no topology key found on CSINode {node} for driver {driver}: check that the node plugin runs there and reports its topology"
    )]
    NoTopologyKeys { node: Arc<str>, driver: Arc<str> },
    #[error(
        "Node {node} has no label {key:?}, which driver {driver} registered as a topology key: restart the node plugin, or set the label"
    )]
    NodeLabelMissing {
        node: Arc<str>,
        key: Box<str>,
        driver: Arc<str>,
    },
    /// Of what is there a list of any age may say something else.
    #[error(
        "{what} are not watched now, and were not listed since, so that it is not known whether they have changed: they are listed again \
         before the driver is called; if this lasts, look for \"cannot watch\" in the log of the operator"
    )]
    Unconfirmed { what: &'static str },
    /// It may be there all the same.
    #[error(
        "Node {node} or its CSINode is not known, and a watch of them is broken: look for \"cannot watch\" in the log of the operator"
    )]
    NodeUnknown { node: Arc<str> },
    #[error("no Node has the topology keys {keys} of driver {driver} as labels: restart the node plugins")]
    TopologyLabelsMissing { keys: Box<str>, driver: Arc<str> },
    #[error(
        "selected node {node} is not in allowedTopologies of StorageClass {class}: take the annotation \
         volume.kubernetes.io/selected-node off the PersistentVolumeClaim, and let its pod run elsewhere; the topology of the node is {segment}"
    )]
    NodeNotAllowed {
        node: Arc<str>,
        segment: Segment,
        class: Arc<str>,
    },
    #[error("{what} has {count} topology segments, and at most {MAX_TERMS} are accepted")]
    TooManySegments { what: &'static str, count: usize },
    #[error(
        "allowedTopologies of the StorageClass, multiplied out, need {0} bytes of memory, and at most {MAX_TERMS_SIZE} are accepted"
    )]
    SegmentsTooLarge(usize),
    #[error(
        "PersistentVolume {volume} exists, and is not that of this PersistentVolumeClaim: delete it, or create the PersistentVolumeClaim anew"
    )]
    NameTaken { volume: Box<str> },
    /// It binds no more, and nobody takes its finalizer off while deletions are held.
    #[error(
        "PersistentVolume {volume} was deleted before it was bound, and spec.provisioning.deletion of the AttacherConfig is Hold, so that \
         it stays: remove the finalizer {PROVISIONER_FINALIZER} from PersistentVolume {volume}, and the volume is found again by its name; \
         or delete the PersistentVolumeClaim as well"
    )]
    VolumeGoing { volume: Box<str> },
    #[error(
        "PersistentVolume {volume} was deleted before it was bound: the PersistentVolumeClaim is provisioned again when it is gone; if it \
         stays, set the policy of PersistentVolume {volume} to Retain, and the volume is found again by its name; or delete the \
         PersistentVolumeClaim as well and set the annotation attacher.csi.dev/reclaim of the PersistentVolume to Delete"
    )]
    VolumeUndecided { volume: Box<str> },
    #[error(
        "volume {handle} is that of PersistentVolume {owner} as well, which is there or about to be saved, and is not deleted: find out whose it is"
    )]
    HandleShared { handle: Box<str>, owner: Box<str> },
    #[error(
        "volume {handle} cannot be used as it is, and spec.provisioning.deletion of the AttacherConfig is Hold: delete it in the storage \
         system and let a PersistentVolumeClaim that is being deleted go with the annotation attacher.csi.dev/release, or wait until \
         deletions are enabled"
    )]
    DeletionHeld { handle: Box<str> },
    #[error(
        "volume {handle} is not deleted while VolumeAttachments for node {nodes} name it or the PersistentVolume of its name: wait for their \
         detach, or delete those that nobody needs"
    )]
    StillAttached { handle: Box<str>, nodes: Box<str> },
    /// The volume is there, and the PersistentVolume is all that names it.
    #[error(
        "persistentvolume {volume} is of an in-tree plug-in, and driver {driver} cannot delete its volume: failed to translate in tree pv to \
         CSI: {error}. It waits until that is translated; if that cannot be, delete the volume in the storage system first, and only then \
         set the policy of the PersistentVolume to Retain and delete it"
    )]
    Untranslated {
        volume: Arc<str>,
        driver: Arc<str>,
        error: Box<TranslationError>,
    },
    #[error(
        "driver {driver} has created volume {handle} for this PersistentVolumeClaim, which names another provisioner now. Its reclaim policy \
         keeps the volume, and a PersistentVolume would be bound to the claim: it is made when the claim is bound elsewhere or deleted"
    )]
    VolumeUnrecorded { handle: Box<str>, driver: Arc<str> },
    #[error(
        "the annotation attacher.csi.dev/provisioning would have {0} bytes, and at most {MAX_MARKER} are accepted: use shorter topology labels"
    )]
    MarkerTooLarge(usize),
    #[error(
        "the annotation attacher.csi.dev/provisioning is of driver {0}, which may have created a volume: wait until its provisioner takes it \
         off; if that is gone, look for the volume in its storage system and remove the finalizer attacher.csi.dev/provisioning"
    )]
    MarkerOfAnotherDriver(Box<str>),
}

/// What is wrong with the template of the name or the namespace of a Secret.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the messages say what the variants and their fields are")]
pub enum TemplateFault {
    #[error("has an unknown token {token:?}; the tokens are {allowed}")]
    UnknownToken { token: Box<str>, allowed: &'static str },
    #[error("reads the annotation {0:?}, which the PersistentVolumeClaim does not have: set it")]
    AnnotationMissing(Box<str>),
    #[error(
        "reads an annotation of the PersistentVolumeClaim, which is gone: name the Secret in the annotations \
         {DELETION_SECRET_NAME_ANNOTATION} and {DELETION_SECRET_NAMESPACE_ANNOTATION} of the PersistentVolume"
    )]
    ClaimNeeded,
    #[error("resolved to {resolved:?}, which is not the name of a {what}")]
    InvalidName { resolved: Box<str>, what: &'static str },
    /// It may be among those that were left out.
    #[error(
        "reads an annotation, and {0} annotations of the PersistentVolumeClaim were left out as they are too large: make them shorter"
    )]
    AnnotationsTooLarge(usize),
}

/// A handle as the words of a refusal or a failure have it: at most 256 bytes.
pub(super) fn cut_handle(handle: &str) -> &str {
    cut(handle, 256)
}

impl ProvisionRefusal {
    /// That the volume with this handle is that of this other PersistentVolume as well.
    pub(super) fn handle_shared(handle: &str, owner: &str) -> Self {
        Self::HandleShared {
            handle: cut_handle(handle).into(),
            owner: owner.into(),
        }
    }

    /// Whether topology is missing that may still come.
    pub fn is_missing_topology(&self) -> bool {
        self.reason() == TOPOLOGY_MISSING
    }

    /// Stable name for metrics and `error.type` on spans.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NotSupported(_) | Self::DeletionNotSupported(_) => "capability_missing",
            Self::ClassMissing { .. } | Self::ClassNeeded { .. } => "class_missing",
            Self::ClassMismatch { .. } => "class_mismatch",
            Self::Unconfirmed { .. } => "unconfirmed",
            Self::ClassReplaced { .. } => "class_replaced",
            Self::SecretMissing { .. } => "secret_missing",
            Self::SecretUnreadable { .. } => "secret_forbidden",
            Self::SecretNotAllowed { .. } => "secret_not_allowed",
            Self::NameTaken { .. } => "name_taken",
            Self::VolumeGoing { .. } | Self::VolumeUndecided { .. } => "pv_deleting",
            Self::HandleShared { .. } => "handle_shared",
            Self::DeletionHeld { .. } => "deletion_held",
            Self::StillAttached { .. } => "still_attached",
            Self::Untranslated { .. } => "invalid_spec",
            Self::VolumeUnrecorded { .. } => "volume_unrecorded",
            Self::MarkerOfAnotherDriver(_) => "marker_of_another_driver",
            Self::ClassInTree { .. } | Self::DataSourceNotSupported { .. } | Self::AttributesClassNotSupported(_) => {
                "not_supported"
            }
            Self::Selector | Self::BindCompleted | Self::AccessModes | Self::Size(_) | Self::ShortUid(_) => {
                "invalid_claim"
            }
            Self::ClassTooLarge { .. }
            | Self::UnknownReservedKey { .. }
            | Self::FsTypeTwice { .. }
            | Self::SecretKeysTwice { .. }
            | Self::SecretKeyMissing { .. }
            | Self::SecretKeyEmpty { .. }
            | Self::SecretTemplate { .. }
            | Self::VolumeNameTooLong(_)
            | Self::TooManySegments { .. }
            | Self::SegmentsTooLarge(_)
            | Self::MarkerTooLarge(_) => "invalid_class",
            Self::NoTopology(_)
            | Self::NoTopologyKeys { .. }
            | Self::NodeLabelMissing { .. }
            | Self::NodeUnknown { .. }
            | Self::TopologyLabelsMissing { .. }
            | Self::NodeNotAllowed { .. } => TOPOLOGY_MISSING,
        }
    }
}
