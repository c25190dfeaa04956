//! The condition that says whether volumes are provisioned. Pure.

use super::provisioners::ProvisionReads;
use crate::api::condition::{ConditionReason, ConditionStatus, ConditionType, ConditionUpdate, shorten_message};
use crate::runtime::{DriverPhase, DriverState};

/// From what the role is at, and what it reads, to its condition.
pub(super) fn ready(state: &DriverState, reads: &ProvisionReads) -> ConditionUpdate {
    use ConditionStatus::{False, True};
    let (status, reason, message) = match &state.phase {
        DriverPhase::Running => (True, ConditionReason::Running, "provisioning volumes".to_owned()),
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
            let text = if reads.nodes {
                "reading PersistentVolumeClaims, StorageClasses and Nodes"
            } else {
                "reading PersistentVolumeClaims and StorageClasses"
            };
            let failure = reads.failure.as_ref();
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
