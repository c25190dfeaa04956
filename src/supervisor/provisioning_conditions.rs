//! The condition that says whether volumes are provisioned. Pure.

use super::provisioning_state::{KeptVolumes, ProvisioningState};
use crate::api::condition::{ConditionReason, ConditionStatus, ConditionType, ConditionUpdate, shorten_message};
use crate::runtime::DriverPhase;

/// From what the role is at to its condition.
pub(super) fn ready(state: &ProvisioningState) -> ConditionUpdate {
    use ConditionStatus::{False, True};
    let (status, reason, message) = match &state.task.phase {
        DriverPhase::Running => {
            let text = format!("provisioning volumes{}", kept(state.kept));
            (True, ConditionReason::Running, text)
        }
        DriverPhase::Standby { holder, namespace } => {
            let holder = holder.as_deref().unwrap_or("nobody yet");
            let place = namespace.as_ref();
            let place = place.map_or_else(String::new, |namespace| format!(" in namespace {namespace}"));
            let text = format!("{holder} holds the Lease of provisioning{place}; this replica is ready to take over");
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
            let failure = state.watch_failure.as_ref();
            let failure = failure.map(|failure| format!("; {failure}")).unwrap_or_default();
            (False, ConditionReason::Syncing, format!("{text}{failure}"))
        }
        DriverPhase::AwaitingReservation { after } => {
            let text = format!("AttacherConfig {after} still provisions for the driver");
            (False, ConditionReason::EndpointConflict, text)
        }
        DriverPhase::Suspended => (False, ConditionReason::Suspended, "spec.suspend is true".to_owned()),
        DriverPhase::Draining | DriverPhase::Stopped => {
            (False, ConditionReason::Draining, "finishing running calls".to_owned())
        }
    };
    ConditionUpdate::new(
        ConditionType::ProvisioningReady,
        status,
        reason,
        shorten_message(&message),
    )
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
