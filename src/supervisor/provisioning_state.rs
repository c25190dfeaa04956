//! What the task that provisions for an AttacherConfig is at.

use csi_attacher_model::provision::VolumeReason;
use csi_attacher_provision::WorkKey;

use crate::queue::Queue;
use crate::runtime::DriverState;

/// What the task of an AttacherConfig is at.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ProvisioningState {
    pub task: DriverState,
    /// Whether it reads Nodes: its driver has topology.
    pub reads_nodes: bool,
    /// Why what it reads cannot be watched, if so.
    pub watch_failure: Option<String>,
    pub kept: KeptVolumes,
}

/// How many volumes of Released PersistentVolumes are not deleted for now, by what they wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct KeptVolumes {
    /// `spec.provisioning.deletion` is Hold.
    pub held: usize,
    /// A VolumeAttachment names the PersistentVolume.
    pub attached: usize,
    /// A person has to find out what is right; an Event on the PersistentVolume says what.
    pub unclear: usize,
}

impl KeptVolumes {
    /// Those of a driver, by its queue.
    pub fn of(queue: &Queue<WorkKey>) -> Self {
        let mut kept = Self::default();
        queue.remember_all(|_, memory| match memory.waits() {
            Some(VolumeReason::Held) => kept.held += 1,
            Some(VolumeReason::StillAttached) => kept.attached += 1,
            Some(_) => kept.unclear += 1,
            None => {}
        });
        kept
    }
}
