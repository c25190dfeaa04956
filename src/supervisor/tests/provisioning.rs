//! What is shown of provisioning.

use std::collections::BTreeSet;
use tokio::time::advance;

use serde_json::json;
use std::sync::Arc;

use super::status::{able, at, condition, driver, facts, failed, four, shows, standby, with_provisioning};
use crate::api::AttacherConfigStatus;
use crate::api::condition::{ConditionReason, truncate_to_seconds};
use crate::api::provisioning_status::ProvisioningLease;
use crate::runtime::{DriverPhase, FailureRecord};
use crate::supervisor::metrics::SupervisorMetrics;
use crate::supervisor::provisioning_conditions::{ready, status_with};
use crate::supervisor::provisioning_state::{Begins, KeptVolumes, PendingObjects, PendingWork, ProvisioningState};
use crate::supervisor::status::{ProvisioningFacts, is_urgent, status};
use crate::supervisor::writer::StatusPart;
use crate::telemetry::Metrics;
use std::time::Duration;

const MISSING: &str =
    "forbidden; the operator's ServiceAccount needs, by a ClusterRole, resources [persistentvolumeclaims]";

pub(super) fn state(phase: DriverPhase) -> ProvisioningState {
    ProvisioningState {
        task: able(phase),
        is_elsewhere: false,
        begins: Begins::Everything,
        holds_claims: false,
        reads_nodes: false,
        scheduled_by_capacity: false,
        watch_failure: None,
        health: None,
        pending: None,
        lease: None,
    }
}

/// What provisioning is at when this is so.
fn state_when(what: &str, phase: DriverPhase) -> ProvisioningState {
    let mut state = state(phase);
    match what {
        "all is well" => {}
        "disabled" => state.begins = Begins::NothingAsDisabled,
        "deleted" => state.begins = Begins::NothingAsLeaving,
        "the driver cannot" => state.task.plugin = driver(DriverPhase::Running).plugin,
        "no answer yet" => state.task.plugin = None,
        "a rule is missing" => state.watch_failure = Some(MISSING.to_owned()),
        "a watch is broken" => state.watch_failure = Some("timed out".to_owned()),
        _ => panic!("{what}"),
    }
    state
}

/// csi-provisioner wrote the objects by which kube-scheduler goes.
#[test]
fn capacities_that_nobody_writes_are_told_while_volumes_are_provisioned() {
    let told = |is_so| {
        let update = ready(&ProvisioningState {
            scheduled_by_capacity: is_so,
            ..state(DriverPhase::Running)
        });
        assert_eq!(update.status.as_str(), "True");
        update.message.contains("; CSIDriver.spec.storageCapacity is true")
    };
    assert!(told(true) && !told(false));
}

/// A request to let a claim go is judged where its driver is provisioned for.
#[test]
fn who_waits_for_a_driver_that_is_gone_is_told_the_way_out() {
    let told = |holds_claims| {
        let phase = DriverPhase::Unreachable {
            reason: ConditionReason::SocketMissing,
            message: "no socket".into(),
        };
        let update = ready(&ProvisioningState {
            holds_claims,
            ..state(phase)
        });
        assert!(update.message.starts_with("no socket"));
        update.message.contains("take off their finalizer")
    };
    assert!(told(true) && !told(false));
}

#[test]
fn provisioning_is_ready_only_where_volumes_are_provisioned() {
    const CANNOT: &str = "driver a.test does not announce CREATE_DELETE_VOLUME";
    let told = |state: &ProvisioningState| {
        let update = ready(state);
        let condition = format!("{} {}", update.status.as_str(), update.reason.as_str());
        (condition, update.message)
    };
    // What is so, the condition while this replica provisions and while another one does, and words of its message.
    for (what, here, elsewhere, words) in [
        ("all is well", "True Running", "True Standby", ""),
        ("disabled", "False Disabled", "False Disabled", "mode is Disabled"),
        ("deleted", "False Draining", "False Draining", "being deleted"),
        ("the driver cannot", "False NotSupported", "False NotSupported", CANNOT),
        ("no answer yet", "True Running", "True Standby", ""),
        ("a rule is missing", "False Forbidden", "True Standby", ""),
        ("a watch is broken", "True Running", "True Standby", ""),
    ] {
        for (phase, expected) in [(DriverPhase::Running, here), (standby(Some("pod-2")), elsewhere)] {
            let (condition, message) = told(&state_when(what, phase));
            assert_eq!(condition, expected, "{what}");
            assert!(message.contains(words), "{what}: {message}");
        }
    }
    // As for attaching: the Lease was just created, or has expired.
    assert_eq!(told(&state(standby(None))).0, "False Standby");
    for (what, failure) in [("a rule is missing", MISSING), ("a watch is broken", "timed out")] {
        let (_, message) = told(&state_when(what, DriverPhase::Running));
        assert!(message.contains(failure), "{message}");
    }
}

#[test]
fn what_the_task_is_at_comes_first() {
    for phase in [DriverPhase::Suspended, DriverPhase::Connecting, DriverPhase::Syncing] {
        let reason = ready(&state(phase.clone())).reason;
        assert_eq!(ready(&state_when("disabled", phase)).reason, reason);
    }
}

#[test]
fn a_driver_is_ready_when_each_enabled_role_is() {
    use DriverPhase::{Running, Suspended, Syncing};
    let (attached, nothing) = (driver(Running), AttacherConfigStatus::default());
    let well = || "True Running, False UpToDate, False NotStalled".to_owned();
    let busy = |reason: &str| format!("False {reason}, True {reason}, False NotStalled");
    let stalled = |reason: &str| format!("False {reason}, False {reason}, True {reason}");
    let its_nodes_provision = failed(ConditionReason::DistributedProvisioner, true);
    let perhaps_its_nodes_do = failed(ConditionReason::Syncing, true);
    // What is so, and Ready, Reconciling and Stalled of a driver that is attached for.
    for (what, phase, expected) in [
        ("all is well", Running, well()),
        ("all is well", Syncing, busy("Syncing")),
        ("a rule is missing", Syncing, stalled("Forbidden")),
        ("the driver cannot", Running, stalled("NotSupported")),
        ("all is well", its_nodes_provision, stalled("DistributedProvisioner")),
        ("all is well", perhaps_its_nodes_do, busy("Syncing")),
        // That is what the spec asks for.
        ("disabled", Syncing, well()),
        ("all is well", Suspended, well()),
    ] {
        let row = format!("{what}, {phase:?}");
        let status = with_provisioning(&attached, &state_when(what, phase), &nothing);
        let told = four(&status);
        assert!(told.starts_with(&format!("{expected}, ")), "{row}: {told}");
    }
    // The first that is not ready is the one that attaches.
    let status = with_provisioning(&driver(DriverPhase::Connecting), &state(Syncing), &nothing);
    assert_eq!(shows(&status, "Ready"), "False Connecting");
}

/// Of two replicas one attaches and the other provisions: each writes what it knows, and neither takes back what the other wrote.
#[test]
fn two_replicas_write_a_status_together() {
    use StatusPart::{All, AllButProvisioning, Provisioning};
    let attached = driver(DriverPhase::Running);
    let mut here = state(DriverPhase::Syncing);
    here.health = Some(Arc::default());
    let mut elsewhere = state(standby(Some("pod-2")));
    elsewhere.is_elsewhere = true;
    let nothing = AttacherConfigStatus::default();
    let provisions = status_with(&here, Some(3), "pod-1", &nothing, at(100));
    assert_eq!(provisions.conditions.len(), 3);
    let both = with_provisioning(&attached, &elsewhere, &provisions);
    assert_eq!(shows(&both, "Ready"), "False Syncing", "as the other replica says");
    for kind in ["ProvisioningReady", "ProvisioningHealthy", "DeletionHealthy"] {
        assert_eq!(condition(&both, kind), condition(&provisions, kind));
    }
    assert_eq!(status_with(&here, Some(3), "pod-1", &both, at(200)), both);
    assert_eq!(with_provisioning(&attached, &elsewhere, &both), both);

    let parts = [All, AllButProvisioning, Provisioning];
    let count = both.conditions.len();
    let sizes = parts.map(|part| part.of(&both).conditions.len());
    assert_eq!(sizes, [count, count - 3, 3]);
    assert_eq!(Provisioning.of(&both).observed_generation, None);
    let says = parts.map(|part| part.of(&both).provisioning.is_some());
    assert_eq!(says, [true, false, true]);

    // A third one for which the spec cannot be used takes nothing of it away while another may provision.
    let mut third = facts(None);
    third.provisioning = ProvisioningFacts::Elsewhere;
    let told = status(&third, &both, at(300));
    assert_eq!(Provisioning.of(&told), Provisioning.of(&both));
    // Where nobody does any more, what was done stays known; how it is, nobody can say.
    third.provisioning = ProvisioningFacts::Unused;
    let told = Provisioning.of(&status(&third, &both, at(300)));
    assert!(told.provisioning.is_some() && told.conditions.is_empty());
    assert_eq!(told.provisioning, both.provisioning);

    // With the section all of it goes, whoever wrote it.
    let off = status(&facts(Some(&attached)), &both, at(300));
    let mut there = off.clone();
    there.provisioning.clone_from(&both.provisioning);
    there.conditions.extend(Provisioning.of(&both).conditions);
    let removed = json!({"conditions": off.conditions, "provisioning": null});
    assert_eq!(All.left_over(&both, &off, &there), Some(removed));
    assert_eq!(All.left_over(&both, &off, &off), None);
    assert_eq!(AllButProvisioning.left_over(&both, &off, &there), None);
}

/// What a queue of provisioning has left to do.
fn work() -> PendingWork {
    PendingWork {
        claims: PendingObjects {
            count: 4,
            failing: 1,
            oldest: Some(("web/data-0".into(), at(50))),
        },
        volumes: PendingObjects {
            count: 2,
            failing: 0,
            oldest: Some(("pvc-1".into(), at(60))),
        },
        kept: KeptVolumes {
            held: 3,
            ..KeptVolumes::default()
        },
        uncertain: 1,
    }
}

fn failure(subject: &str, operation: &'static str) -> FailureRecord {
    FailureRecord {
        at: at(70),
        attachment: subject.to_owned(),
        operation,
        code: "ResourceExhausted".to_owned(),
        message: "full".to_owned(),
        trace_id: None,
    }
}

fn lease(name: &str) -> ProvisioningLease {
    let (name, namespace) = (name.to_owned(), "csi".to_owned());
    ProvisioningLease { name, namespace }
}

/// The Lease has the name of the driver that it was about.
#[test]
fn what_failed_for_another_driver_is_not_shown() {
    let mut failed = state(DriverPhase::Running);
    failed.task.last_failure = Some(failure("web/data-0", "provision"));
    failed.lease = Some(lease("a-test"));
    let known = status_with(&failed, Some(3), "pod-1", &AttacherConfigStatus::default(), at(100));
    for (name, stays) in [("a-test", true), ("b-test", false)] {
        let mut next = state(DriverPhase::Running);
        next.lease = Some(lease(name));
        let shown = status_with(&next, Some(3), "pod-1", &known, at(200));
        assert_eq!(shown.provisioning.unwrap().last_failure.is_some(), stays, "{name}");
    }
}

#[test]
fn who_provisions_and_what_waits_is_shown() {
    let attached = driver(DriverPhase::Running);
    let mut here = state(DriverPhase::Running);
    here.pending = Some(work());
    here.lease = Some(lease("a-test"));
    here.task.last_failure = Some(failure("web/data-0", "provision"));
    let first = with_provisioning(&attached, &here, &AttacherConfigStatus::default());
    assert_eq!(
        serde_json::to_value(first.provisioning.as_ref().unwrap()).unwrap(),
        json!({
            "holder": "pod-1",
            "lease": {"name": "a-test", "namespace": "csi"},
            "persistentVolumeClaims": {
                "pending": 4, "uncertain": 1, "failing": 1,
                "oldestPending": {"namespace": "web", "name": "data-0", "pendingSinceTime": "1970-01-01T00:00:50Z"},
            },
            "persistentVolumes": {
                "deleting": 2, "failing": 0, "held": 3,
                "oldestPending": {"name": "pvc-1", "pendingSinceTime": "1970-01-01T00:01:00Z"},
            },
            "lastFailure": {
                "time": "1970-01-01T00:01:10Z", "operation": "Provision", "code": "ResourceExhausted", "message": "full",
                "persistentVolumeClaim": {"namespace": "web", "name": "data-0"},
            },
        })
    );
    // Nothing is written in a quiet cluster, and counts wait: the holder does not.
    assert_eq!(with_provisioning(&attached, &here, &first), first);
    here.pending.as_mut().unwrap().claims.count = 5;
    let more = with_provisioning(&attached, &here, &first);
    assert!(more != first && !is_urgent(&first, &more));
    let mut other = state(standby(Some("pod-2")));
    other.task.last_failure = Some(failure("pvc-1", "delete"));
    let taken = with_provisioning(&attached, &other, &first);
    assert!(is_urgent(&first, &taken));
    let taken = taken.provisioning.unwrap();
    assert_eq!(taken.holder.as_deref(), Some("pod-2"));
    let counts = (taken.persistent_volume_claims, taken.persistent_volumes);
    assert_eq!(counts, (None, None));
    let failed = taken.last_failure.unwrap();
    assert_eq!(&*failed.operation, "Delete");
    assert_eq!(failed.persistent_volume.as_deref(), Some("pvc-1"));
    assert_eq!(failed.persistent_volume_claim, None);
    // What another replica told since is not taken back, but for what a replica told whose clock was wrong. What failed last stays,
    // whoever provisions now.
    other.task.last_failure.as_mut().unwrap().at = at(69);
    let mut ahead = first.clone();
    let of_provisioning = ahead.provisioning.as_mut().unwrap();
    of_provisioning.last_failure.as_mut().unwrap().time = truncate_to_seconds(at(3000));
    let connecting = state(DriverPhase::Connecting);
    for (now, known) in [(&other, &first), (&here, &ahead), (&connecting, &first)] {
        let seen = with_provisioning(&attached, now, known).provisioning.unwrap();
        assert_eq!(seen.last_failure, first.provisioning.as_ref().unwrap().last_failure);
    }
    // Of a role that is off nothing is said.
    assert_eq!(status(&facts(Some(&attached)), &first, at(300)).provisioning, None);
}

/// The queue tells of its keys in any order, and each other one that is shown is a write.
#[test]
fn of_claims_that_are_as_old_always_the_same_is_shown() {
    let names = ["web/a", "web/b", "web/c"].map(Arc::<str>::from);
    let oldest = |order: [usize; 3]| {
        let mut pending = PendingObjects::default();
        for index in order {
            pending.add(&names[index], at(50));
        }
        pending.oldest
    };
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
        assert_eq!(oldest(order), Some((names[0].clone(), at(50))));
    }
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_is_gone_leaves_no_series_however_late_they_come() {
    let metrics = Metrics::default();
    let mut shown = SupervisorMetrics::new(metrics.clone());
    let known = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    let count = |driver: &str| {
        let label = format!("driver_name=\"{driver}\"");
        metrics
            .encode_openmetrics()
            .lines()
            .filter(|line| line.contains(&label))
            .count()
    };
    shown.known(known(&["d", "other"]));
    metrics.driver_up("d", true);
    metrics.driver_up("other", true);
    shown.known(known(&["other"]));
    assert_eq!((count("d"), count("other")), (0, 2));
    advance(Duration::from_secs(30)).await;
    metrics.possible_leak("d");
    shown.known(known(&["other"]));
    assert_eq!((count("d"), count("other")), (0, 2));
    shown.known(known(&["d", "other"]));
    metrics.driver_up("d", true);
    shown.known(known(&["d", "other"]));
    assert_eq!(count("d"), 2, "it is back");
}
