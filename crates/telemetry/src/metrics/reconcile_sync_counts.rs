//! What a comparison with ListVolumes counts.

/// What a comparison with ListVolumes found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReconcileSyncCounts {
    /// Pages that the driver answered.
    pub pages: usize,
    /// Volumes on them.
    pub volumes: usize,
    /// VolumeAttachments that say attached, while the driver does not list the volume there.
    pub to_attach: usize,
    /// VolumeAttachments that say detached, while the driver lists the volume there.
    pub to_detach: usize,
    /// Volumes at nodes of the cluster that no VolumeAttachment names; none while it is not known.
    pub without_attachment: Option<usize>,
}
