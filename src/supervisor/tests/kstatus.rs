//! What tools that know kstatus, such as helm --wait and Flux, make of the status.

use super::status::{driver, facts, failed, fresh};
use crate::api::AttacherConfigStatus;
use crate::api::condition::ConditionReason;
use crate::runtime::DriverPhase;

/// What kstatus computes for a custom resource (sigs.k8s.io/cli-utils, pkg/kstatus/status, by the order of its rules).
fn kstatus(status: &AttacherConfigStatus, generation: i64) -> &'static str {
    let is = |kind, value| {
        let mut all = status.conditions.iter();
        all.any(|condition| condition.type_ == kind && condition.status == value)
    };
    if status.observed_generation.is_some_and(|seen| seen != generation) || is("Reconciling", "True") {
        "InProgress"
    } else if is("Stalled", "True") {
        "Failed"
    } else if is("Ready", "False") || is("Ready", "Unknown") {
        "InProgress"
    } else {
        "Current"
    }
}

#[test]
fn what_lasts_is_settled_for_kstatus() {
    let rows = [
        (DriverPhase::Connecting, "InProgress"),
        (DriverPhase::Running, "Current"),
        (
            DriverPhase::Standby {
                holder: None,
                namespace: None,
            },
            "InProgress",
        ),
        (
            DriverPhase::Standby {
                holder: Some("sidecar-0".to_owned()),
                namespace: None,
            },
            "Current",
        ),
        (DriverPhase::Suspended, "Current"),
        (DriverPhase::Draining, "InProgress"),
        (failed(ConditionReason::SocketMissing, false), "InProgress"),
        (failed(ConditionReason::DriverNameMismatch, true), "Failed"),
    ];
    for (phase, wanted) in rows {
        let driver = driver(phase.clone());
        let status = fresh(&facts(Some(&driver)));
        assert_eq!(kstatus(&status, 3), wanted, "{phase:?}");
        assert_eq!(kstatus(&status, 4), "InProgress", "{phase:?} with a newer spec");
    }
    // The default that the API server gives a new object.
    let new = AttacherConfigStatus {
        observed_generation: Some(-1),
        ..AttacherConfigStatus::default()
    };
    assert_eq!(kstatus(&new, 1), "InProgress");
}
