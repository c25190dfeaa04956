//! What people see of findings about attachments.

use kube::runtime::watcher::Event;
use serde_json::json;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use super::status::{at, condition, driver, facts, failed, fresh, fresh_with, shows, standby};
use super::writes::{follow, supervisor};
use crate::api::AttacherConfigObject;
use crate::api::condition::ConditionReason;
use crate::decide::reconcile::{DesiredState, Expectation, LastingMismatches};
use crate::decide::{Capabilities, DriverFacts, NodeEntry};
use crate::objects::VolumeAttachmentWire;
use crate::runtime::DriverPhase;
use crate::runtime::reservation::ReservationState;
use crate::supervisor::deletion::DeletionState;
use crate::supervisor::plan::ConfigProblem;
use crate::supervisor::status::{StatusInput, status};
use csi_attacher_model::findings::{FindingHistory, FindingInput, FindingsPass, FindingsSummary, StuckAttachment};

/// What a look over some of a driver's attachments found. Each is given by its name, and is stuck; or it has no CSINode.
fn found(stuck: &[&str], lost: &[&str]) -> FindingsSummary {
    let driver = DriverFacts::new("a.test", Capabilities::default());
    let mut ledger = FindingHistory::default();
    let mut survey = FindingsPass::begin(&mut ledger, Duration::ZERO, at(100));
    for name in stuck.iter().chain(lost) {
        let wire: VolumeAttachmentWire = serde_json::from_value(json!({
            "metadata": {"name": name, "uid": name, "creationTimestamp": at(50)},
            "spec": {"attacher": "a.test", "nodeName": "n", "source": {}},
            "status": {"attached": lost.contains(name), "attachError": {"message": "disk is busy"}},
        }))
        .unwrap();
        survey.examine(&FindingInput {
            attachment: &wire.into(),
            volume: None,
            node: if lost.contains(name) {
                NodeEntry::Missing
            } else {
                NodeEntry::Registered("id")
            },
            attached_at: None,
            wanted_at: None,
            driver: &driver,
            attach_required: None,
            leads_since: None,
        });
    }
    survey.end().0
}

/// What was found before, or is found about the driver by another AttacherConfig, is in the status of none that does not work for it.
#[test]
fn nothing_is_known_of_attachments_while_nobody_here_serves_them() {
    let running = driver(DriverPhase::Running);
    let lost = found(&["va2"], &["va1"]);
    let before = fresh_with(Some(&running), |input| input.insight = Some(&lost));
    let refused = failed(ConditionReason::EndpointConflict, true);
    let problem = ConfigProblem {
        reason: ConditionReason::IdentityConflict,
        message: "the driver is another one's".to_owned(),
    };
    for (phase, reason) in [
        (Some(DriverPhase::Suspended), "Suspended"),
        (Some(standby(Some("sidecar-0"))), "Standby"),
        (Some(refused), "EndpointConflict"),
        (Some(DriverPhase::Stopped), "Stopped"),
        // Refused from the start: there is no task.
        (None, "IdentityConflict"),
    ] {
        let idle = phase.map(driver);
        for insight in [None, Some(&lost)] {
            let input = StatusInput {
                insight,
                stuck: insight.and_then(|insight| insight.stuck.first()),
                problem: idle.is_none().then_some(&problem),
                ..facts(idle.as_ref())
            };
            let status = status(&input, &before, at(200));
            for kind in ["AttachmentsHealthy", "AttachmentsConsistent"] {
                assert_eq!(shows(&status, kind), format!("Unknown {reason}"), "{kind}");
            }
        }
    }
}

/// One is suspended, as another one for its driver is to take over, and a third one is refused.
#[tokio::test(start_paused = true)]
async fn findings_are_reported_on_the_attacherconfig_that_works_for_the_driver() {
    let object = |name: &str, suspend: bool| -> AttacherConfigObject {
        let object = json!({
            "metadata": {"name": name, "uid": name, "resourceVersion": "7"},
            "spec": {"endpoint": "unix:///does-not-exist/a", "driverName": "a.test", "suspend": suspend},
        });
        serde_json::from_value(object).unwrap()
    };
    let all = [("a-old", true), ("b-new", false), ("c-refused", false)];
    let all = all.map(|(name, suspend)| Event::InitApply(object(name, suspend)));
    let listed = std::iter::once(Event::Init).chain(all).chain([Event::InitDone]);
    let mut supervisor = supervisor();
    let (stop, moment) = (CancellationToken::new(), Duration::from_millis(100));
    follow(&mut supervisor, listed.collect(), &stop, moment).await;
    let reporting = || -> Vec<String> {
        let configured = supervisor.configured();
        assert_eq!(configured.len(), 3);
        let reporting = configured.into_iter().filter(|config| config.reports);
        reporting.map(|config| config.name).collect()
    };
    assert!(reporting().is_empty(), "nobody works for it: {:?}", reporting());
    let reservations = &supervisor.drivers.tasks.reservations;
    let claim = reservations.reserve(&"b-new".into(), &"a.test".into());
    assert_eq!(claim.activate(), ReservationState::Granted);
    assert_eq!(reporting(), ["b-new"]);

    // The column DRIVER has a name for each of them.
    let refused = &supervisor.objects["c-refused"];
    assert!(refused.problem.is_some());
    let deletion = DeletionState::default();
    let shown = supervisor.drivers.status("c-refused", refused, "me", deletion);
    assert_eq!(shown.driver.map(|driver| driver.name).as_deref(), Some("a.test"));
}

#[test]
fn findings_are_shown_as_conditions() {
    let running = driver(DriverPhase::Running);
    let told = |insight: &FindingsSummary, stuck: Option<&StuckAttachment>, failing| {
        let status = fresh_with(Some(&running), |input| {
            (input.failing, input.insight, input.stuck) = (Some(failing), Some(insight), stuck);
        });
        let kinds = ["AttachmentsHealthy", "AttachmentsConsistent"];
        let messages = kinds.map(|kind| condition(&status, kind).message.clone());
        (kinds.map(|kind| shows(&status, kind)).join(", "), messages)
    };
    let (conditions, _) = told(&found(&[], &[]), None, 0);
    assert_eq!(conditions, "True NoFailures, True Consistent");

    let insight = found(&["va-1", "va-2"], &[]);
    let (conditions, [healthy, _]) = told(&insight, insight.stuck.first(), 2);
    assert_eq!(conditions, "False AttachmentsStuck, True Consistent");
    let words = "2 are stuck; the oldest: the attach of VolumeAttachment va-1";
    assert!(healthy.starts_with(words), "{healthy}");
    assert!(healthy.ends_with("the last error: disk is busy"), "{healthy}");
    // Attached since the last look: what fails is told as before.
    let (conditions, _) = told(&insight, None, 1);
    assert!(conditions.starts_with("False AttachmentsFailing, "), "{conditions}");

    let (conditions, [_, consistent]) = told(&found(&[], &["va-1", "va-2"]), None, 0);
    assert_eq!(conditions, "True NoFailures, False NodeGone");
    let words = "2 as this one: VolumeAttachment va-1: node n has no CSINode";
    assert!(consistent.starts_with(words), "{consistent}");

    // Who does not look does not know.
    let blind = fresh(&facts(Some(&running)));
    let mut kinds = blind.conditions.iter().map(|condition| &*condition.type_);
    assert!(!kinds.any(|kind| kind == "AttachmentsConsistent"));
}

/// The driver answers that it attached a volume, and lists it nowhere.
#[test]
fn what_the_driver_lists_otherwise_in_spite_of_repairs_is_shown() {
    let mut running = driver(DriverPhase::Running);
    running.lasting_mismatches = Some(LastingMismatches {
        count: 2,
        example: Expectation {
            name: "va-3".into(),
            uid: "u".into(),
            handle: "h".into(),
            node_id: "n".into(),
            former_node_id: None,
            wanted: DesiredState::Published,
        },
    });
    let shown = |insight: &FindingsSummary| {
        let status = fresh_with(Some(&running), |input| input.insight = Some(insight));
        let consistent = condition(&status, "AttachmentsConsistent");
        assert_eq!(consistent.status, "False");
        (consistent.reason.clone(), consistent.message.clone())
    };
    let words = "2 as this one: VolumeAttachment va-3: volume h: the driver answers OK when it is attached to the node with ID n";
    let (reason, message) = shown(&found(&[], &[]));
    assert_eq!(reason, "MismatchRepeating");
    assert!(message.starts_with(words), "{message}");
    // A finding comes first.
    let (reason, message) = shown(&found(&[], &["va-1"]));
    assert_eq!(reason, "NodeGone");
    assert!(message.contains(&format!("; {words}")), "{message}");
}
