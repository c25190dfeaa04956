//! The condition that says whether volumes are provisioned. Pure.

use super::provisioning_state::{Begins, KeptVolumes, ProvisioningState};
use crate::api::condition::{ConditionReason, ConditionStatus, ConditionType, ConditionUpdate, shorten_message};
use crate::reflect::is_missing_rule;
use crate::runtime::DriverPhase;

/// What a driver announces that can provision, by the name in the CSI spec.
const CREATE_DELETE_VOLUME: &str = "CREATE_DELETE_VOLUME";

/// Status, reason and message.
type Parts = (ConditionStatus, ConditionReason, String);

/// From what the role is at to its condition.
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
    if let Some(plugin) = plugin.filter(|plugin| !plugin.capabilities.iter().any(|name| name == CREATE_DELETE_VOLUME)) {
        let message = format!(
            "driver {} does not announce CREATE_DELETE_VOLUME, so that no volume can be provisioned; remove spec.provisioning",
            plugin.name
        );
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
        DriverPhase::Running => {
            if let Some(failure) = failure.filter(|failure| is_missing_rule(failure)) {
                return (False, ConditionReason::Forbidden, failure.clone());
            }
            let text = format!("provisioning volumes{}{}", and_failure(), kept(state.kept));
            (True, ConditionReason::Running, text)
        }
        DriverPhase::Standby { holder, namespace } => {
            let holder = holder.as_deref().unwrap_or("nobody yet");
            let place = namespace.as_ref();
            let place = place.map_or_else(String::new, |namespace| format!(" in namespace {namespace}"));
            let text = format!(
                "{holder} holds the Lease of provisioning{place}; this replica is ready to take over{}",
                kept(state.kept)
            );
            (True, ConditionReason::Standby, text)
        }
        DriverPhase::Connecting => (
            False,
            ConditionReason::Connecting,
            "connecting to the driver".to_owned(),
        ),
        DriverPhase::Unreachable { reason, message } | DriverPhase::Stalled { reason, message } => {
            (False, *reason, message.clone())
        }
        DriverPhase::Syncing => {
            let text = if state.reads_nodes {
                "reading PersistentVolumeClaims, StorageClasses and Nodes"
            } else {
                "reading PersistentVolumeClaims and StorageClasses"
            };
            (False, ConditionReason::Syncing, format!("{text}{}", and_failure()))
        }
        DriverPhase::AwaitingReservation { after } => {
            let text = format!("AttacherConfig {after} still provisions for the driver");
            (False, ConditionReason::EndpointConflict, text)
        }
        DriverPhase::Suspended => (False, ConditionReason::Suspended, "spec.suspend is true".to_owned()),
        DriverPhase::Draining | DriverPhase::Stopped => {
            (False, ConditionReason::Draining, "finishing running calls".to_owned())
        }
    }
}

/// What is said of volumes that are not deleted.
fn kept(kept: KeptVolumes) -> String {
    let said = |count: usize, why: &str| match count {
        0 => String::new(),
        count => format!("; volumes of {count} PersistentVolumes {why}"),
    };
    let held = said(kept.held, "are kept, as spec.provisioning.deletion is Hold");
    let unclear = said(
        kept.unclear,
        "wait for a person: see the Events on the PersistentVolumes",
    );
    held + &unclear
}
