//! Why events are written. Reasons are part of the interface: people filter and alert by them.

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
    /// The PersistentVolume of what is attached was created again, and is another volume.
    VolumeReplaced Warning,
    /// A volume is attached at another node ID than the CSINode names now.
    NodeIdChanged Warning,
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
    /// The same after repairs that the driver answered with OK: they change nothing.
    MismatchRepeating Warning,
    /// What the driver listed otherwise is right again.
    AttachmentRepaired Normal,
    /// On an AttacherConfig: the driver lists volumes at nodes of the cluster that no VolumeAttachment names.
    VolumesWithoutAttachment Warning,
    /// On a PersistentVolume that may go: our finalizer cannot be removed.
    FinalizerNotRemoved Warning,
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
