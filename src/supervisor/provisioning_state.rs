//! What the task that provisions for an AttacherConfig is at, and what its queue shows.

use jiff::Timestamp;
use std::sync::Arc;
use std::time::Duration;

use csi_attacher_model::findings::{FindingHistory, FindingsPass, FindingsSummary, NewFinding};
use csi_attacher_model::provision::{ProvisionHealth, VolumeReason};
use csi_attacher_provision::WorkKey;

use crate::api::DriverConfig;
use crate::api::provisioning_status::ProvisioningLease;
use crate::clock;
use crate::queue::Queue;
use crate::runtime::DriverState;

/// What the task of an AttacherConfig is at.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct ProvisioningState {
    pub task: DriverState,
    /// Whether another replica provisions for the driver and says so in the status.
    pub is_elsewhere: bool,
    pub begins: Begins,
    /// Whether claims wait for what a call of a driver did that cannot be reached: nobody answers for them.
    pub holds_claims: bool,
    /// Whether it reads Nodes: its driver has topology.
    pub reads_nodes: bool,
    pub scheduled_by_capacity: bool,
    /// Why what it reads cannot be watched, if so.
    pub watch_failure: Option<String>,
    /// How its volumes are; none where this replica does not provision.
    pub health: Option<Arc<ProvisionHealth>>,
    /// What waits; none as well.
    pub pending: Option<PendingWork>,
    /// Its Lease; none without an election.
    pub lease: Option<ProvisioningLease>,
}

/// Claims that wait for a volume, or PersistentVolumes that wait for their deletion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PendingObjects {
    pub count: usize,
    /// Those whose last attempt failed, or that wait for something that is missing.
    pub failing: usize,
    pub oldest: Option<(Arc<str>, Timestamp)>,
}

impl PendingObjects {
    /// One more. Of those that wait since the same second always the same one is shown, in whatever order they come.
    pub fn add(&mut self, name: &Arc<str>, since: Timestamp) {
        self.count += 1;
        let is_older = |(known, oldest): &(Arc<str>, Timestamp)| (since, name) < (*oldest, known);
        if self.oldest.as_ref().is_none_or(is_older) {
            self.oldest = Some((name.clone(), since));
        }
    }

    pub fn age(&self) -> Duration {
        let oldest = self.oldest.as_ref();
        oldest.map(|(_, since)| clock::since(*since)).unwrap_or_default()
    }
}

/// What a queue has left to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PendingWork {
    pub claims: PendingObjects,
    /// Without those that the settings keep: they are where they are meant to be.
    pub volumes: PendingObjects,
    pub kept: KeptVolumes,
    /// Claims of which nobody knows whether a call has made a volume.
    pub uncertain: usize,
}

/// What provisioning begins, by its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begins {
    Everything,
    /// Nothing, as `spec.provisioning.mode` is Disabled.
    NothingAsDisabled,
    /// Nothing, as the AttacherConfig is being deleted.
    NothingAsLeaving,
}

impl Begins {
    pub fn of(config: &DriverConfig) -> Self {
        let is_enabled = config.provisioning.as_ref().is_some_and(|settings| settings.enabled);
        match (config.leaving, is_enabled) {
            (true, _) => Self::NothingAsLeaving,
            (false, false) => Self::NothingAsDisabled,
            (false, true) => Self::Everything,
        }
    }
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

impl PendingWork {
    /// What the queue of a driver has left to do and what is wrong; the same as findings, once more after those in the history; and those of
    /// them that were not reported yet.
    pub fn of(
        queue: &Queue<WorkKey>,
        history: &mut FindingHistory,
        stuck_after: Duration,
        now: Timestamp,
    ) -> (Self, ProvisionHealth, FindingsSummary, Vec<NewFinding>) {
        let (mut pending, mut health) = (Self::default(), ProvisionHealth::default());
        let mut pass = FindingsPass::begin(history, stuck_after, now).frequent();
        queue.remember_all(|key, memory| {
            let object = key.pending(memory);
            if let Some((kind, is_old)) = object.trouble(stuck_after, now) {
                health.add(kind, &object);
                if let Some(finding) = kind.finding(is_old) {
                    pass.found(finding, key.uid(), Some(key.name()), || object.words());
                }
            }
            if let WorkKey::Claim(_) = key {
                pending.uncertain += usize::from(memory.is_uncertain());
                if let Some(since) = object.since {
                    pending.claims.add(key.name(), since);
                }
                return;
            }
            match memory.waits() {
                Some(VolumeReason::Held) => pending.kept.held += 1,
                Some(VolumeReason::StillAttached) => pending.kept.attached += 1,
                Some(_) => pending.kept.unclear += 1,
                None => {}
            }
            if let Some(since) = object.since.filter(|_| memory.waits() != Some(VolumeReason::Held)) {
                pending.volumes.add(key.name(), since);
            }
        });
        let (findings, new, _) = pass.end();
        (pending, health, findings, new)
    }
}
