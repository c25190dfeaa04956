//! Why something cannot be done as things are: each reason becomes a log field, a status message and the name of a test.

use std::sync::Arc;
use thiserror::Error;

use super::command::command_word;
use super::message::with_names;
use super::observed::Observed;
use crate::api::names::{NODE_ID_ANNOTATION, VOLUME_ANNOTATION};
use crate::api::permissions::secret_entry;
use crate::objects::{ENTRY_SIZE, MAX_VOLUME_FIELD, SecretReference, TranslationError, VolumeAnnotation};

/// Why something cannot be done as things are. The texts of the first group are those that users of the Go sidecar
/// search for; they are kept exactly.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the messages say what the variants and their fields are")]
pub enum Refusal {
    #[error("both InlineCSIVolumeSource and PersistentVolumeName specified in VA source")]
    SourceTwice,
    #[error("neither InlineCSIVolumeSource nor PersistentVolumeName specified in VA source")]
    SourceMissing,
    #[error("persistentvolume {0:?} not found")]
    VolumeNotFound(Arc<str>),
    #[error("PersistentVolume {0:?} is marked for deletion")]
    VolumeDeleting(Arc<str>),
    #[error("pv spec contained non-csi source that was not migrated")]
    NotCsi,
    #[error("inline volume spec contains nil CSI source")]
    InlineNotCsi,
    #[error("csinode.storage.k8s.io {0:?} not found")]
    NodeNotFound(Arc<str>),
    #[error("CSINode {node} does not contain driver {driver}")]
    DriverNotOnNode { node: Arc<str>, driver: Arc<str> },
    /// The driver registered on the node with a node ID that says nothing.
    #[error("CSINode {node} has a blank node ID for driver {driver}; restart the driver's pod on that node")]
    BlankNodeId { node: Arc<str>, driver: Arc<str> },
    /// Somebody blanked where the volume was attached, and nothing else says it.
    #[error(
        "annotation {NODE_ID_ANNOTATION} of the VolumeAttachment is blank, and {0}: the node ID at which the volume is attached is \
         unknown; set the annotation to that node ID"
    )]
    BlankNodeAnnotation(Box<Refusal>),
    #[error("the volumeHandle of the volume is blank")]
    BlankHandle,
    /// What is attached stands for another volume than the one that has its name now.
    #[error(
        "VolumeAttachment {attachment} is attached with volume {attached}, and PersistentVolume {volume} is volume {now} since it was \
         created again; delete the VolumeAttachment once no pod on the node uses the volume"
    )]
    VolumeReplaced {
        attachment: Arc<str>,
        volume: Arc<str>,
        attached: Box<str>,
        now: Box<str>,
    },
    /// The note names another volume than the PersistentVolume, which is older than what is attached.
    #[error("{}", note_contradicted(attachment, volume, noted, now))]
    NoteContradicted {
        attachment: Arc<str>,
        volume: Arc<str>,
        noted: Box<str>,
        now: Box<str>,
    },
    /// The PersistentVolume is younger than what is attached or claimed, and there is no note of the one before.
    #[error("{}", volume_unknown([volume, attachment, handle, node], *attached, secret.as_deref()))]
    VolumeUnknown {
        attachment: Arc<str>,
        attached: bool,
        node: Arc<str>,
        volume: Arc<str>,
        handle: Box<str>,
        /// The publish secret that the PersistentVolume names now.
        secret: Option<Box<SecretReference>>,
    },
    #[error("CSI does not support the combination of access modes of this volume: {0}")]
    AccessModes(&'static str),
    /// The volume belongs to an in-tree plug-in, and its CSI successor cannot take it.
    #[error("failed to translate in tree pv to CSI: {0}")]
    Untranslated(TranslationError),
    /// A field of the volume is larger than what is kept of it.
    #[error(
        "{field} of {object} has {bytes} bytes, {ENTRY_SIZE} for each entry among them, and at most {MAX_VOLUME_FIELD} are supported; \
         make the volume with a smaller {field}"
    )]
    VolumeTooLarge {
        object: Box<str>,
        field: &'static str,
        bytes: usize,
    },
    /// The note of the volume is larger than what is kept of it, or a claim would make it so.
    #[error(
        "annotation {VOLUME_ANNOTATION} of VolumeAttachment {attachment} has {bytes} bytes, {ENTRY_SIZE} for each entry among them, and \
         at most {MAX_VOLUME_FIELD} are supported, so that nothing says for certain where the volume may be; take those entries out of \
         its list \"former\" where the volume is not attached"
    )]
    NoteTooLarge { attachment: Arc<str>, bytes: usize },
    /// The note of the volume is there, and is none that this version reads.
    #[error(
        "annotation {VOLUME_ANNOTATION} of VolumeAttachment {attachment} cannot be read, so that nothing says for certain where the \
         volume may be; if another version of the operator wrote it, run that version; else find out where the volume is attached, and run \
         kubectl annotate --overwrite volumeattachment {} '{VOLUME_ANNOTATION}={}'",
        command_word(attachment, "NAME"),
        advised_note(None)
    )]
    NoteUnreadable { attachment: Arc<str> },
    #[error(
        "VolumeAttachment {attachment} has the same volume on node {node} attached; a detach now would remove it there"
    )]
    SharedOnNode { attachment: Arc<str>, node: Arc<str> },
    /// The driver cannot be asked any more, and what it may have published is not let go for that.
    #[error(
        "CSI driver {0} does not announce PUBLISH_UNPUBLISH_VOLUME any more, so that the volume, which it may have published, \
         cannot be attached or detached; check that the attacher is connected to the controller plugin of the driver"
    )]
    CapabilityLost(Arc<str>),
    /// Nobody would be left to detach it.
    #[error(
        "the AttacherConfig of driver {0} is being deleted (spec.deletionPolicy: WaitForDetach) and attaches no further volumes; create \
         another AttacherConfig for the driver, which takes over"
    )]
    Leaving(Arc<str>),
    /// The AttacherConfig does not list the publish secret. The Go sidecar has no such list: it reads with the
    /// permissions of one driver, and this operator with those of all.
    #[error(
        "the volume names Secret {}/{}, which spec.publishSecrets of AttacherConfig {config} does not list; if driver \
         {driver} may receive this Secret, add {}",
        secret.namespace, secret.name, secret_entry(secret)
    )]
    SecretNotAllowed {
        secret: SecretReference,
        config: Arc<str>,
        driver: Arc<str>,
    },
    /// The volume belongs to another driver than the attachment names. The Go sidecar does not check this and would
    /// hand the handle to the wrong backend.
    #[error("the volume belongs to CSI driver {volume} but the VolumeAttachment names {attacher}")]
    OtherDriver { volume: Arc<str>, attacher: Arc<str> },
}

fn note_contradicted(attachment: &str, volume: &str, noted: &str, now: &str) -> String {
    let name = command_word(attachment, "NAME");
    with_names([attachment, volume, noted, now], |[attachment, volume, noted, now]| {
        format!(
            "annotation {VOLUME_ANNOTATION} of VolumeAttachment {attachment} names volume {noted}, and PersistentVolume {volume}, which was \
             there before and never changes its handle, is volume {now}: the annotation is wrong; a detach takes both volumes from the node; \
             run kubectl annotate volumeattachment {name} {VOLUME_ANNOTATION}- to have it written again"
        )
    })
}

/// `names` are those of the PersistentVolume, the VolumeAttachment, the volume and the node. A note that cannot be read may be there, so
/// the command overwrites.
fn volume_unknown(names: [&str; 4], attached: bool, secret: Option<&SecretReference>) -> String {
    // By a claim alone a volume may be attached, or not.
    let (was, is) = if attached {
        ("attached", "is")
    } else {
        ("claimed", "may be")
    };
    let (name, note) = (command_word(names[1], "NAME"), advised_note(secret));
    with_names(names, |[volume, attachment, handle, node]| {
        format!(
            "PersistentVolume {volume} was created after VolumeAttachment {attachment} was {was}, and nothing says which volume \
             was: it may be another one than {handle}; find out which one {is} attached to node {node}, and run kubectl annotate \
             volumeattachment {name} '{VOLUME_ANNOTATION}={note}' --overwrite"
        )
    })
}

/// What a person is asked to note. A detach is given the Secret that is noted: without one it would be made without secrets.
fn advised_note(secret: Option<&SecretReference>) -> String {
    let note = VolumeAnnotation {
        handle: "ID".into(),
        secret: secret.map(|secret| SecretReference {
            namespace: command_word(&secret.namespace, "NAMESPACE").into(),
            name: command_word(&secret.name, "NAME").into(),
        }),
        former: Vec::new(),
        renewed: 0,
    };
    serde_json::to_string(&note).unwrap_or_default()
}

impl Refusal {
    /// Without a Secret in what it asks a person to note, unless the driver may be given that Secret: what is noted is given to the
    /// driver, and whoever writes PersistentVolumes can name any Secret.
    pub(super) fn with_allowed_secret(mut self, observed: &Observed<'_>) -> Self {
        if let Self::VolumeUnknown { secret, .. } = &mut self {
            *secret = secret.take().filter(|secret| observed.may_give(secret));
        }
        self
    }

    /// Stable name for metrics and `error.type` on spans.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::VolumeNotFound(_) => "pv_not_found",
            Self::VolumeDeleting(_) => "pv_deleting",
            Self::NodeNotFound(_)
            | Self::DriverNotOnNode { .. }
            | Self::BlankNodeId { .. }
            | Self::BlankNodeAnnotation(_) => "csinode_missing",
            Self::VolumeReplaced { .. } | Self::NoteContradicted { .. } | Self::VolumeUnknown { .. } => {
                "volume_unknown"
            }
            Self::SharedOnNode { .. } => "volume_shared",
            Self::CapabilityLost(_) => "capability_lost",
            Self::Leaving(_) => "config_deleting",
            Self::SecretNotAllowed { .. } => "secret_not_allowed",
            Self::SourceTwice
            | Self::SourceMissing
            | Self::NotCsi
            | Self::InlineNotCsi
            | Self::AccessModes(_)
            | Self::Untranslated(_)
            | Self::BlankHandle
            | Self::VolumeTooLarge { .. }
            | Self::NoteTooLarge { .. }
            | Self::NoteUnreadable { .. }
            | Self::OtherDriver { .. } => "invalid_spec",
        }
    }
}
