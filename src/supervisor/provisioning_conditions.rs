//! The conditions of an AttacherConfig that are about provisioning. Pure.

use csi_attacher_provision::{STALE_CAPACITY, not_supported};
use jiff::Timestamp;

use super::deletion::Remaining;
use super::provisioning_state::{Begins, ProvisioningState};
use super::provisioning_status;
use super::status::standby_text;
use crate::api::AttacherConfigStatus;
use crate::api::condition::{
    self, ConditionReason, ConditionStatus, ConditionType, ConditionUpdate, OF_PROVISIONING, replace, shorten_message,
};
use crate::decide::Capabilities;
use crate::reflect::is_missing_rule;
use crate::runtime::DriverPhase;

/// What is said beside the cause where a driver cannot be reached and claims wait for what its calls did.
const NOBODY_ANSWERS: &str = "; PersistentVolumeClaims wait until it is known what its calls did, and no request to let one go is answered \
                              before the driver is back; if it is gone for good, delete the AttacherConfig, and then take off their \
                              finalizer attacher.csi.dev/provisioning";

type Parts = (ConditionStatus, ConditionReason, String);

/// All of them; none where another replica says how provisioning is.
pub(super) fn all(state: &ProvisioningState) -> Vec<ConditionUpdate> {
    if state.is_elsewhere {
        return Vec::new();
    }
    let ready = ready(state);
    let reason = ready.reason;
    let kinds = [ConditionType::ProvisioningHealthy, ConditionType::DeletionHealthy];
    let health = kinds.into_iter().filter_map(|kind| match &state.health {
        Some(health) => Some(health.condition(kind)),
        // It has just begun, and is about to look.
        None if state.task.phase == DriverPhase::Running => None,
        // Who does not provision does not know.
        None => {
            let text = "nothing is known while this replica does not provision: see ProvisioningReady";
            Some(ConditionUpdate::new(kind, ConditionStatus::Unknown, reason, text))
        }
    });
    std::iter::once(ready).chain(health).collect()
}

/// Whether provisioning is to work, so that the driver is not ready where it does not.
pub(super) fn is_wanted(state: &ProvisioningState) -> bool {
    state.begins == Begins::Everything && state.task.phase != DriverPhase::Suspended
}

/// The status with what is known of provisioning, and else as it is: of a replica that does nothing else for the driver.
pub(super) fn status_with(
    state: &ProvisioningState,
    generation: Option<i64>,
    this_replica: &str,
    known: &AttacherConfigStatus,
    now: Timestamp,
) -> AttacherConfigStatus {
    let updates = all(state);
    AttacherConfigStatus {
        provisioning: provisioning_status::of(state, this_replica, known.provisioning.as_ref(), now),
        conditions: condition::merge(&known.conditions, &updates, generation, now),
        ..known.clone()
    }
}

/// A driver is ready only where provisioning is as well.
pub(super) fn add(provisioning: &ConditionUpdate, updates: &mut [ConditionUpdate]) {
    use ConditionStatus::{False, True};
    let is_ready = |update: &ConditionUpdate| update.type_ == ConditionType::Ready && update.status == True;
    if provisioning.status == True || !updates.iter().any(is_ready) {
        return;
    }
    let reason = provisioning.reason;
    let text = format!("{OF_PROVISIONING}{}", provisioning.message);
    let is_stalled = ConditionReason::STALLING.contains(&reason);
    replace(updates, ConditionType::Ready, False, reason, &text);
    replace(updates, ConditionType::Reconciling, !is_stalled, reason, &text);
    if is_stalled {
        replace(updates, ConditionType::Stalled, True, reason, &text);
    }
}

/// What holds PersistentVolumes up that a deletion waits for, where that does not end by itself; and the way out.
pub(super) fn held_by(remaining: &Remaining, of_volumes: Option<&ConditionUpdate>) -> String {
    let lasts = |update: &&ConditionUpdate| {
        matches!(
            update.reason,
            ConditionReason::VolumesHeld
                | ConditionReason::NeedsDecision
                | ConditionReason::HandleShared
                | ConditionReason::ReleasedWhileBound
        )
    };
    let held = of_volumes.filter(|_| !remaining.volumes.is_empty()).filter(lasts);
    held.map(|update| format!("; this lasts until a person acts: {}", update.message))
        .unwrap_or_default()
}

pub(super) fn ready(state: &ProvisioningState) -> ConditionUpdate {
    let (status, reason, message) = unable(state).unwrap_or_else(|| of_phase(state));
    ConditionUpdate::new(
        ConditionType::ProvisioningReady,
        status,
        reason,
        shorten_message(&message),
    )
}

/// Why nothing is provisioned though a replica serves the driver; the same on every replica, whichever holds the Lease.
fn unable(state: &ProvisioningState) -> Option<Parts> {
    let is_served = matches!(state.task.phase, DriverPhase::Running | DriverPhase::Standby { .. });
    if !is_served {
        return None;
    }
    let plugin = state.task.plugin.as_ref();
    if let Some(plugin) = plugin.filter(|plugin| !Capabilities::of_names(&plugin.capabilities).create_delete_volume) {
        let message = not_supported(&plugin.name);
        return Some((ConditionStatus::False, ConditionReason::NotSupported, message));
    }
    let (reason, message) = match state.begins {
        Begins::Everything => return None,
        Begins::NothingAsLeaving => (
            ConditionReason::Draining,
            "the AttacherConfig is being deleted: nothing new is provisioned, what is uncertain is finished, and the volumes of PersistentVolumes that are being deleted are deleted",
        ),
        Begins::NothingAsDisabled => (
            ConditionReason::Disabled,
            "spec.provisioning.mode is Disabled: nothing new is begun, what is uncertain is finished, and the volumes of PersistentVolumes that are being deleted are deleted",
        ),
    };
    Some((ConditionStatus::False, reason, message.to_owned()))
}

fn of_phase(state: &ProvisioningState) -> Parts {
    use ConditionStatus::{False, True};
    let failure = state.watch_failure.as_ref();
    let and_failure = || failure.map(|failure| format!("; {failure}")).unwrap_or_default();
    match &state.task.phase {
        DriverPhase::Running | DriverPhase::Syncing if failure.is_some_and(|failure| is_missing_rule(failure)) => {
            (False, ConditionReason::Forbidden, failure.cloned().unwrap_or_default())
        }
        DriverPhase::Running => {
            let capacities = state.scheduled_by_capacity.then(|| format!("; {STALE_CAPACITY}"));
            let text = format!(
                "provisioning volumes{}{}",
                and_failure(),
                capacities.unwrap_or_default()
            );
            (True, ConditionReason::Running, text)
        }
        DriverPhase::Standby {
            holder,
            namespace,
            new_lease,
        } => {
            let lease = "the Lease of provisioning";
            let text = standby_text(lease, holder.as_deref(), namespace.as_deref(), new_lease.as_deref());
            (holder.is_some().into(), ConditionReason::Standby, text)
        }
        DriverPhase::Connecting => (
            False,
            ConditionReason::Connecting,
            "connecting to the driver".to_owned(),
        ),
        DriverPhase::Unreachable { reason, message } if state.holds_claims => {
            (False, *reason, format!("{message}{NOBODY_ANSWERS}"))
        }
        DriverPhase::Unreachable { reason, message } | DriverPhase::Stalled { reason, message } => {
            (False, *reason, message.clone())
        }
        DriverPhase::Syncing => {
            let text = if state.reads_nodes {
                "reading PersistentVolumeClaims, StorageClasses, PersistentVolumes, VolumeAttachments and Nodes"
            } else {
                "reading PersistentVolumeClaims, StorageClasses, PersistentVolumes and VolumeAttachments"
            };
            (False, ConditionReason::Syncing, format!("{text}{}", and_failure()))
        }
        DriverPhase::AwaitingReservation { after } => {
            let text = format!("AttacherConfig {after} still provisions for the driver");
            (False, ConditionReason::Draining, text)
        }
        DriverPhase::Suspended => (False, ConditionReason::Suspended, "spec.suspend is true".to_owned()),
        DriverPhase::Draining | DriverPhase::Stopped => {
            (False, ConditionReason::Draining, "finishing running calls".to_owned())
        }
    }
}
