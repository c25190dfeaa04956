//! Kubernetes Events about attachments: on the VolumeAttachment, its PersistentVolume and the claim that it is bound to,
//! where people look first.
//!
//! Telling never holds up doing: occurrences go into a bounded channel, and one task writes them, repeated ones as a count
//! on the event that is there, within a budget for each driver. What does not fit is dropped and counted. Reasons are
//! part of the interface: people filter and alert by them.
//!
//! It must not decide anything, and carries no text that was not scrubbed of secrets before.

mod publisher;
mod series;
#[cfg(test)]
mod tests;

use jiff::Timestamp;
use std::sync::Arc;
use tokio::sync::mpsc;

use crate::apiserver::Requests;
use crate::cache::Snapshot;
use crate::objects::Attachment;
use crate::telemetry::Metrics;

/// Occurrences that wait to be written. A burst of attaches is longer; of such a burst not every success is told.
const WAITING: usize = 1024;

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident $level:ident,)*) => {
        /// Why an event was written (`Event.reason`).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum EventReason {
            $($(#[$doc])* $name,)*
        }

        impl EventReason {
            /// Every reason there is.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The name that users see.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }

            /// Whether it is usually good or bad news.
            pub const fn level(self) -> EventType {
                match self {
                    $(Self::$name => EventType::$level,)*
                }
            }
        }
    };
}

reasons! {
    /// The volume is attached.
    Attached Normal,
    /// An attempt to attach failed; the volume is not at the node.
    AttachFailed Warning,
    /// An attempt to attach ended without saying whether the volume is at the node: the call timed out or was cut off.
    AttachUncertain Warning,
    /// The volume is detached.
    Detached Normal,
    /// The finalizer was removed without the driver's confirmation, because a person asked for it.
    Released Warning,
    /// A person asked for that, and it was refused.
    ReleaseRefused Warning,
    /// The driver did not confirm a detach.
    DetachFailed Warning,
    /// The driver cannot even be asked to detach: something that the call needs is missing.
    DetachBlocked Warning,
    /// The node of a volume that is being detached is gone, was shut down, or came back as another one.
    NodeGone Warning,
    /// The node has as many volumes as it can take (RESOURCE_EXHAUSTED).
    LimitReached Warning,
    /// An attach has lasted too long.
    AttachStuck Warning,
    /// A detach has lasted too long.
    DetachStuck Warning,
    /// A volume that one node at a time may have is attached to two.
    AttachedTwice Warning,
    /// Another attacher writes the status of the driver's attachments.
    OtherAttacher Warning,
    /// The PersistentVolume of an attachment is gone.
    VolumeGone Warning,
    /// The node of an attachment does not have the driver.
    DriverNotOnNode Warning,
    /// An in-line volume stays attached though nobody uses it any more.
    InlineLeftOver Warning,
    /// An attachment of a driver that needs none: nobody will ask for its detach.
    LeftOver Warning,
    /// The CSIDriver says that attaching is not required.
    AttachNotRequired Warning,
    /// There is no CSIDriver of the driver's name.
    CSIDriverMissing Warning,
    /// The driver lists a volume otherwise than its attachment says; it is attached or detached once more.
    AttachmentMismatch Warning,
    /// What the driver listed otherwise is right again.
    AttachmentRepaired Normal,
    /// On an AttacherConfig: the driver lists volumes at nodes of the cluster that no VolumeAttachment names.
    VolumesWithoutAttachment Warning,
    /// On an AttacherConfig that is deleted: PersistentVolumes keep the driver's finalizer.
    FinalizersLeft Warning,
    /// On an AttacherConfig: its driver is worked for.
    Ready Normal,
    /// On an AttacherConfig: `spec.suspend` is true.
    Suspended Normal,
    /// On an AttacherConfig: the driver does not answer as it should; tried again by itself.
    DriverUnreachable Warning,
    /// On an AttacherConfig: only a person can mend it.
    Stalled Warning,
}

/// `Event.type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventType {
    /// Good news, or none.
    Normal,
    /// Somebody should look.
    Warning,
}

impl EventType {
    /// The name that users see.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// The object that an event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvolvedObject {
    /// `apiVersion`.
    pub api_version: &'static str,
    /// `kind`.
    pub kind: &'static str,
    /// Namespace; empty for a cluster-scoped object, whose events are in the namespace "default".
    pub namespace: Box<str>,
    /// Name.
    pub name: Box<str>,
    /// UID.
    pub uid: Box<str>,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEvent {
    /// The driver.
    pub driver: Arc<str>,
    /// What kind of thing.
    pub reason: EventReason,
    /// The reason's level, unless this is an exception.
    pub level: EventType,
    /// Which of the causes that the reason can have, as `error.type` or a condition names it; empty for a reason that has one.
    /// Another cause is told at once, as an event of its own.
    pub cause: Box<str>,
    /// What happened, for people. Cut to what the API server takes.
    pub note: String,
    /// W3C `traceparent` of the attempt, when it is traced.
    pub traceparent: Option<String>,
    /// When.
    pub at: Timestamp,
    /// About which objects.
    pub subjects: Vec<InvolvedObject>,
}

/// Takes occurrences; cheap to clone.
#[derive(Clone, Debug)]
pub struct EventRecorder {
    waiting: Option<mpsc::Sender<NewEvent>>,
    metrics: Metrics,
}

impl EventRecorder {
    /// Writes events over `requests`, in the name of the replica `instance`, until all handles are gone.
    pub fn start(requests: Requests, metrics: Metrics, instance: String) -> Self {
        let (waiting, incoming) = mpsc::channel(WAITING);
        let publisher = publisher::EventWriter::new(requests, metrics.clone(), instance);
        tokio::spawn(publisher.run(incoming));
        Self {
            waiting: Some(waiting),
            metrics,
        }
    }

    /// Writes nothing.
    pub fn disabled() -> Self {
        Self {
            waiting: None,
            metrics: Metrics::default(),
        }
    }

    /// Tells what happened, now or never: when too much is waiting, it is dropped and counted.
    pub fn record(&self, occurrence: NewEvent) {
        let Some(waiting) = &self.waiting else { return };
        if let Err(refused) = waiting.try_send(occurrence) {
            let occurrence = refused.into_inner();
            self.metrics
                .event(&occurrence.driver, occurrence.reason.as_str(), "dropped");
        }
    }
}

/// What an event about an attachment is shown on.
pub fn involved_objects(snapshot: &Snapshot) -> Vec<InvolvedObject> {
    let mut subjects = vec![of_attachment(&snapshot.attachment)];
    let Some(volume) = &snapshot.volume else {
        return subjects;
    };
    subjects.push(InvolvedObject {
        api_version: "v1",
        kind: "PersistentVolume",
        namespace: "".into(),
        name: (&*volume.name).into(),
        uid: volume.uid.clone(),
    });
    if let Some(claim) = &volume.claim {
        subjects.push(InvolvedObject {
            api_version: "v1",
            kind: "PersistentVolumeClaim",
            namespace: claim.namespace.clone(),
            name: claim.name.clone(),
            uid: claim.uid.clone(),
        });
    }
    subjects
}

/// An event about an AttacherConfig is shown on it.
pub fn of_config(name: &str, uid: &str) -> InvolvedObject {
    InvolvedObject {
        api_version: "attacher.csi.dev/v1alpha1",
        kind: "AttacherConfig",
        namespace: "".into(),
        name: name.into(),
        uid: uid.into(),
    }
}

fn of_attachment(attachment: &Attachment) -> InvolvedObject {
    InvolvedObject {
        api_version: "storage.k8s.io/v1",
        kind: "VolumeAttachment",
        namespace: "".into(),
        name: (&*attachment.name).into(),
        uid: attachment.uid.clone(),
    }
}
