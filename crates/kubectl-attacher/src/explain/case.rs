//! The cases that are told apart. Their names are part of the interface.

use serde::Serialize;

use super::Verdict;

macro_rules! cases {
    ($($(#[doc = $doc:literal])* $name:ident $verdict:ident,)*) => {
        /// Where a volume stands on its way to or from a node.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        pub enum Case {
            $($(#[doc = $doc])* $name,)*
        }

        impl Case {
            /// Every case.
            #[cfg(test)]
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Its name.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }

            /// What it means, as the documents have it.
            #[cfg(test)]
            pub const fn meaning(self) -> &'static str {
                match self {
                    $(Self::$name => concat!($($doc,)*),)*
                }
            }

            /// How bad it is.
            pub const fn verdict(self) -> Verdict {
                match self {
                    $(Self::$name => Verdict::$verdict,)*
                }
            }
        }
    };
}

cases! {
    /// The volume is attached.
    Attached Healthy,
    /// The CSIDriver has attachRequired: false, so the volume is never attached.
    AttachNotRequired Healthy,
    /// The volume is not one of a CSI driver.
    NotCsi Healthy,
    /// No pod on a node needs the volume.
    NotUsed Healthy,
    /// The attach is under way.
    Attaching InProgress,
    /// The detach is under way.
    Detaching InProgress,
    /// kube-controller-manager has not requested the attach yet.
    NotRequested InProgress,
    /// The serving replica is starting or connecting.
    AttacherStarting InProgress,
    /// What could be read does not say.
    NotVisible Unknown,
    /// The pod has no node.
    PodNotScheduled Blocked,
    /// The claim does not exist.
    ClaimMissing Blocked,
    /// The claim has no PersistentVolume.
    ClaimNotBound Blocked,
    /// The PersistentVolume does not exist. If the volume is attached, kube-controller-manager requests its detach once no pod on the node uses it and it is unmounted.
    VolumeMissing Blocked,
    /// The PersistentVolume is being deleted and is not attached any more.
    VolumeDeleting Blocked,
    /// The node has no CSINode, or its CSINode does not list the driver.
    DriverNotOnNode Blocked,
    /// No AttacherConfig and no sidecar serves the driver.
    NoAttacher Blocked,
    /// The attacher cannot reach the driver.
    DriverUnreachable Blocked,
    /// The AttacherConfig waits for a person.
    ConfigStalled Blocked,
    /// The AttacherConfig is suspended.
    ConfigSuspended Blocked,
    /// The AttacherConfig is being deleted and attaches no further volumes.
    ConfigDeleting Blocked,
    /// No replica leads the driver.
    NoLeader Blocked,
    /// Two attachers serve the driver, by two Leases.
    OtherAttacher Blocked,
    /// A limit of spec.concurrency delays the operation.
    LaneSaturated Blocked,
    /// The node takes no more volumes.
    AttachLimit Blocked,
    /// A pod on another node uses the volume.
    UsedOnOtherNode Blocked,
    /// The volume is being detached from another node.
    WaitingForDetach Blocked,
    /// The volume is in use on another node, and kube-controller-manager waits for the unmount. Without one it detaches only where that node is gone or not Ready, up to 6 minutes after the last pod that uses the volume is gone.
    WaitingForUnmount Blocked,
    /// The other node has the out-of-service taint; the volume is detached from it without a confirmed unmount.
    OutOfServiceTaint Blocked,
    /// The volume is attached to two nodes, and may be attached to one only.
    AttachedTwice Blocked,
    /// The PersistentVolume of what is attached was created again with another handle: its name stands for another volume now.
    VolumeReplaced Blocked,
    /// The CSINode names another node ID than the one at which the volume was attached: it may be another machine.
    NodeIdChanged Blocked,
    /// The publish secret does not exist.
    SecretMissing Blocked,
    /// The attacher has no permission to read the publish secret.
    SecretForbidden Blocked,
    /// spec.publishSecrets of the AttacherConfig does not list the publish secret.
    SecretNotAllowed Blocked,
    /// The driver does not announce PUBLISH_UNPUBLISH_VOLUME any more.
    CapabilityLost Blocked,
    /// The attacher refuses the object as it is.
    Refused Blocked,
    /// The attach fails, at the driver or before it is asked; the attacher retries with backoff.
    AttachFailing Blocked,
    /// The outcome of the attach call is unknown; the attacher repeats it with backoff.
    AttachUncertain Blocked,
    /// The attach was requested long ago and has neither begun nor failed.
    AttachStuck Blocked,
    /// The detach fails, at the driver or before it is asked; the attacher retries with backoff.
    DetachFailing Blocked,
    /// The detach was requested long ago and has neither ended nor failed.
    DetachStuck Blocked,
    /// The finalizer of a driver that nobody serves, or of an attacher of another driver, keeps the object.
    OrphanFinalizer Blocked,
    /// The finalizer of another controller keeps the object.
    ForeignFinalizer Blocked,
    /// The PersistentVolume waits until the claim that is bound to it is deleted.
    VolumeInUse Blocked,
    /// The CSIDriver has attachRequired: false, and a VolumeAttachment is left over.
    LeftOver Blocked,
    /// An inline volume stays attached that no pod uses any more: its node is gone, or a later attachment wants it on another one.
    InlineLeftOver Blocked,
}
