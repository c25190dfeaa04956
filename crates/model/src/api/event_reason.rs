//! Why Events are written. Reasons are part of the interface: people filter and alert by them.

named! {
    /// Why an Event was written (`Event.reason`).
    #[allow(missing_docs, reason = "a reason without a comment is that of the `FindingKind` with this name")]
    pub enum EventReason {
        /// The volume is attached.
        Attached,
        /// An attempt to attach failed; the volume is not at the node.
        AttachFailed,
        /// An attempt to attach ended without saying whether the volume is at the node: the call timed out or was cut off.
        AttachUncertain,
        /// The volume is detached.
        Detached,
        /// The finalizer was removed without the driver's confirmation, because a person asked for it.
        Released,
        /// A person asked for a release, and it was refused.
        ReleaseRefused,
        /// The driver did not confirm a detach.
        DetachFailed,
        /// The driver cannot even be asked to detach: something that the call needs is missing.
        DetachBlocked,
        /// The node of a volume that is being detached is gone, was shut down, or came back as another one.
        NodeGone,
        /// The node has as many volumes as it can take (RESOURCE_EXHAUSTED).
        LimitReached,
        AttachStuck,
        DetachStuck,
        AttachedTwice,
        VolumeReplaced,
        NodeIdChanged,
        OtherAttacher,
        VolumeGone,
        DriverNotOnNode,
        InlineLeftOver,
        LeftOver,
        AttachNotRequired,
        CSIDriverMissing,
        AttachedWithoutCall,
        /// On an AttacherConfig: a volume may be left in the storage system.
        VolumePossiblyLeaked,
        /// On an AttacherConfig: PersistentVolumes are Released, and their claims are there.
        ReleasedWhileBound,
        /// On an AttacherConfig: the volumes of Released PersistentVolumes are those of others as well.
        HandleShared,
        /// On an AttacherConfig: a person has to say what becomes of the volumes of PersistentVolumes.
        NeedsDecision,
        ProvisionStuck,
        DeleteStuck,
        /// On an AttacherConfig: the classes of claims are missing.
        ClassMissing,
        /// On an AttacherConfig: claims carry the marker of another driver.
        MarkerOfAnotherDriver,
        /// The driver lists a volume otherwise than its attachment says; it is attached or detached once more.
        AttachmentMismatch,
        /// The same after repairs that the driver answered with OK: they change nothing.
        MismatchRepeating,
        /// What the driver listed otherwise is right again.
        AttachmentRepaired,
        /// On an AttacherConfig: the driver lists volumes at nodes of the cluster that no VolumeAttachment names.
        VolumesWithoutAttachment,
        /// On a PersistentVolume that may go: our finalizer cannot be removed.
        FinalizerNotRemoved,
        /// On an AttacherConfig that is deleted: PersistentVolumes keep the driver's finalizer.
        FinalizersLeft,
        /// On an AttacherConfig: its driver is served.
        Ready,
        /// On an AttacherConfig: `spec.suspend` is true.
        Suspended,
        /// On an AttacherConfig: the driver does not answer as it should; tried again by itself.
        DriverUnreachable,
        /// On an AttacherConfig: only a person can fix it.
        Stalled,
    }
}

impl EventReason {
    /// `Event.type` of an Event with this reason.
    pub const fn level(self) -> EventType {
        match self {
            // A driver that works as meant may attach without a call.
            Self::Attached
            | Self::Detached
            | Self::AttachmentRepaired
            | Self::AttachedWithoutCall
            | Self::Ready
            | Self::Suspended => EventType::Normal,
            _ => EventType::Warning,
        }
    }
}

named! {
    /// `Event.type`.
    pub enum EventType {
        /// Something went as wanted.
        Normal,
        /// A person should look at it.
        Warning,
    }
}
