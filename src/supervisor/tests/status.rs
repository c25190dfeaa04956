//! What people see.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::json;

use super::provisioning::state;
use crate::api::AttacherConfigStatus;
use crate::api::condition::{ConditionReason, ConditionType, truncate_to_seconds};
use crate::api::status::{DriverMode, FormerLease};
use crate::cache::Counts;
use crate::objects::{Attachment, VolumeAttachmentWire};
use crate::runtime::{DriverPhase, DriverState, FailureRecord, Plugin, ReconcileSyncResult};
use crate::supervisor::deletion::{DeletionState, Remaining};
use crate::supervisor::plan::ConfigProblem;
use crate::supervisor::provisioning_state::ProvisioningState;
use crate::supervisor::status::{StatusInput, is_urgent, status};

pub(super) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// One that answered over the connection that stands.
pub(super) fn driver(phase: DriverPhase) -> DriverState {
    DriverState {
        phase,
        is_connected: true,
        plugin: Some(Plugin {
            name: "a.test".to_owned(),
            vendor_version: "1.2".to_owned(),
            publishes: true,
            capabilities: vec!["PUBLISH_UNPUBLISH_VOLUME".to_owned()],
        }),
        ..DriverState::default()
    }
}

/// One that can provision.
pub(super) fn able(phase: DriverPhase) -> DriverState {
    let mut able = driver(phase);
    let plugin = able.plugin.as_mut().unwrap();
    plugin.capabilities.push("CREATE_DELETE_VOLUME".to_owned());
    able
}

pub(super) fn facts(driver: Option<&DriverState>) -> StatusInput<'_> {
    StatusInput {
        generation: Some(3),
        holder: "pod-1",
        holds_former_lease: false,
        specified: None,
        named_by_spec: None,
        driver,
        problem: None,
        counts: Counts::default(),
        failing: driver.filter(|driver| has_queue(&driver.phase)).map(|_| 0),
        failing_upkeep: 0,
        is_last_pending: true,
        oldest: None,
        saturation: None,
        provisioning_saturation: None,
        provisioning: None,
        insight: None,
        stuck: None,
        deletion: DeletionState::default(),
        watch_failure: None,
        is_of_one_state: true,
    }
}

/// Whether what the driver has to do is in a queue.
fn has_queue(phase: &DriverPhase) -> bool {
    matches!(phase, DriverPhase::Running | DriverPhase::Draining)
}

pub(super) fn fresh(facts: &StatusInput<'_>) -> AttacherConfigStatus {
    status(facts, &AttacherConfigStatus::default(), at(100))
}

/// The same of facts with this change.
pub(super) fn fresh_with<'a>(
    driver: Option<&'a DriverState>,
    change: impl FnOnce(&mut StatusInput<'a>),
) -> AttacherConfigStatus {
    let mut input = facts(driver);
    change(&mut input);
    fresh(&input)
}

pub(super) fn condition<'a>(status: &'a AttacherConfigStatus, kind: &str) -> &'a Condition {
    status
        .conditions
        .iter()
        .find(|condition| condition.type_ == kind)
        .unwrap()
}

/// Status and reason of Ready, Reconciling, Stalled and DriverReachable.
pub(super) fn four(status: &AttacherConfigStatus) -> [String; 4] {
    ["Ready", "Reconciling", "Stalled", "DriverReachable"].map(|kind| {
        let condition = condition(status, kind);
        format!("{} {}", condition.status, condition.reason)
    })
}

pub(super) fn failed(reason: ConditionReason, stalled: bool) -> DriverPhase {
    let message = "what is wrong".to_owned();
    if stalled {
        DriverPhase::Stalled { reason, message }
    } else {
        DriverPhase::Unreachable { reason, message }
    }
}

fn failed_attach() -> FailureRecord {
    FailureRecord {
        at: at(50),
        attachment: "csi-1".to_owned(),
        operation: "attach",
        code: "ResourceExhausted".to_owned(),
        message: "full".to_owned(),
        trace_id: None,
    }
}

/// A watch that fails makes what is seen late; after the API server went back it holds attaches back.
#[test]
fn a_list_that_fails_after_the_api_server_went_back_is_told() {
    let driver = driver(DriverPhase::Running);
    let of = |failure: Option<&str>, is_of_one_state| {
        let status = fresh_with(Some(&driver), |input| {
            input.watch_failure = failure.map(ToOwned::to_owned);
            input.is_of_one_state = is_of_one_state;
        });
        let ready = condition(&status, "Ready");
        (ready.reason.clone(), ready.message.clone())
    };
    let failure = Some("cannot watch csinodes: forbidden");
    for (failure, is_of_one_state) in [(None, true), (failure, true), (None, false)] {
        assert_eq!(of(failure, is_of_one_state).0, "Running");
    }
    let (reason, message) = of(failure, false);
    assert_eq!(reason, "Syncing");
    assert!(
        message.contains("nothing is attached") && message.contains("csinodes"),
        "{message}"
    );
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn each_phase_has_its_conditions() {
    let free = "False NotStalled";
    let rows = [
        (
            DriverPhase::Connecting,
            ["False Connecting", "True Connecting", free, "Unknown Connecting"],
            "InProgress",
        ),
        (
            DriverPhase::Syncing,
            ["False Syncing", "True Syncing", free, "True Connected"],
            "InProgress",
        ),
        (
            DriverPhase::Running,
            ["True Running", "False UpToDate", free, "True Connected"],
            "Current",
        ),
        (
            DriverPhase::Draining,
            ["False Draining", "True Draining", free, "True Connected"],
            "InProgress",
        ),
        (
            DriverPhase::Standby {
                holder: None,
                namespace: None,
            },
            ["False Standby", "True Standby", free, "True Connected"],
            "InProgress",
        ),
        (
            DriverPhase::Standby {
                holder: Some("sidecar-0".to_owned()),
                namespace: Some("sidecars".to_owned()),
            },
            ["True Standby", "False UpToDate", free, "True Connected"],
            "Current",
        ),
        (
            DriverPhase::Suspended,
            ["True Suspended", "False UpToDate", free, "Unknown Suspended"],
            "Current",
        ),
        (
            failed(ConditionReason::SocketMissing, false),
            [
                "False DriverUnreachable",
                "True Connecting",
                free,
                "False SocketMissing",
            ],
            "InProgress",
        ),
        (
            failed(ConditionReason::DriverNameMismatch, true),
            [
                "False DriverNameMismatch",
                "False DriverNameMismatch",
                "True DriverNameMismatch",
                "True Connected",
            ],
            "Failed",
        ),
        (
            DriverPhase::Stopped,
            ["False Stopped", "False UpToDate", free, "Unknown Stopped"],
            "InProgress",
        ),
    ];
    for (phase, wanted, settled) in rows {
        let driver = driver(phase.clone());
        let status = fresh(&facts(Some(&driver)));
        assert_eq!(four(&status), wanted.map(str::to_owned), "{phase:?}");
        assert_eq!(kstatus(&status), settled, "{phase:?}");
        let is_idle = matches!(
            phase,
            DriverPhase::Suspended
                | DriverPhase::Standby { holder: Some(_), .. }
                | DriverPhase::Unreachable { .. }
                | DriverPhase::Stalled { .. }
                | DriverPhase::Stopped
        );
        let shown = |kind: &str| {
            let mut all = status.conditions.iter();
            all.find(|condition| condition.type_ == kind)
                .map(|condition| condition.status.as_str())
        };
        // Who has no queue does not know; where that is about to change, nothing is said.
        let unknown = is_idle.then_some("Unknown");
        let healthy = if has_queue(&phase) { Some("True") } else { unknown };
        assert_eq!(shown("AttachmentsHealthy"), healthy, "{phase:?}");
        assert_eq!(shown("AttachmentsConsistent"), unknown, "{phase:?}");
        let serving = match &phase {
            DriverPhase::Running => Some("pod-1"),
            DriverPhase::Standby { holder, .. } => holder.as_deref(),
            _ => None,
        };
        assert_eq!(status.holder.as_deref(), serving, "{phase:?}");
    }
}

/// What cannot be dialled is not told to answer, nor is a driver whose connection is lost while its calls end.
#[test]
fn a_driver_without_a_connection_is_not_told_to_answer() {
    let rows = [
        (DriverPhase::Draining, "Unknown Connecting"),
        (failed(ConditionReason::InvalidSpec, true), "False InvalidSpec"),
        (failed(ConditionReason::SecretMissing, true), "False SecretMissing"),
    ];
    for (phase, wanted) in rows {
        let mut driver = driver(phase.clone());
        let reachable = |driver: &DriverState| four(&fresh(&facts(Some(driver))))[3].clone();
        assert_eq!(reachable(&driver), "True Connected", "{phase:?}");
        driver.is_connected = false;
        assert_eq!(reachable(&driver), wanted, "{phase:?}");
    }
}

/// What tools that know kstatus, such as helm --wait and Flux, make of a custom resource (sigs.k8s.io/cli-utils, pkg/kstatus/status, by the
/// order of its rules), when all of it speaks of the generation that was looked at.
fn kstatus(status: &AttacherConfigStatus) -> &'static str {
    assert_eq!(status.observed_generation, Some(3));
    for condition in &status.conditions {
        assert_eq!(condition.observed_generation, Some(3));
        assert!(!condition.reason.is_empty());
    }
    let is = |kind, value| condition(status, kind).status == value;
    if is("Reconciling", "True") {
        "InProgress"
    } else if is("Stalled", "True") {
        "Failed"
    } else if is("Ready", "True") {
        "Current"
    } else {
        "InProgress"
    }
}

#[test]
fn a_spec_that_cannot_be_used_is_stalled_whatever_runs() {
    let problem = ConfigProblem {
        reason: ConditionReason::InvalidSpec,
        message: "spec.endpoint: no".to_owned(),
    };
    let invalid = "InvalidSpec";
    let running = driver(DriverPhase::Running);
    let status = fresh_with(Some(&running), |input| input.problem = Some(&problem));
    assert_eq!(
        four(&status),
        [
            "True Running".to_owned(),
            format!("False {invalid}"),
            format!("True {invalid}"),
            "True Connected".to_owned()
        ],
        "the last good settings are at work"
    );
    assert_eq!(condition(&status, "Stalled").message, "spec.endpoint: no");
    let status = fresh_with(None, |input| input.problem = Some(&problem));
    assert_eq!(
        four(&status),
        ["False", "False", "True", "Unknown"].map(|status| format!("{status} {invalid}"))
    );
    assert_eq!(kstatus(&status), "Failed");
    assert_eq!(status.attachments, None);
}

/// The last good settings suspended the driver. The spec asks for something else now, which cannot be had.
#[test]
fn one_that_rests_by_former_settings_is_not_ready() {
    let problem = ConfigProblem {
        reason: ConditionReason::EndpointConflict,
        message: "endpoint unix:///a already belongs to the older AttacherConfig other".to_owned(),
    };
    let suspended = driver(DriverPhase::Suspended);
    let status = fresh_with(Some(&suspended), |input| input.problem = Some(&problem));
    assert_eq!(
        four(&status),
        ["False", "False", "True", "Unknown"].map(|status| format!("{status} EndpointConflict"))
    );
    assert_eq!(condition(&status, "Ready").message, problem.message);
    for kind in ["AttachmentsHealthy", "AttachmentsConsistent"] {
        let condition = condition(&status, kind);
        let shown = (&*condition.status, &*condition.reason);
        assert_eq!(shown, ("Unknown", "EndpointConflict"), "{kind}");
    }
    assert_eq!(kstatus(&status), "Failed");
}

/// Of another driver that the AttacherConfig served before nothing is shown, from when that is known.
#[test]
fn what_is_known_of_another_driver_says_nothing_of_this_one() {
    let mut told = driver(DriverPhase::Running);
    told.last_failure = Some(failed_attach());
    told.last_reconcile = Some(ReconcileSyncResult {
        finished_at: at(60),
        volumes: 7,
        mismatches: 0,
        without_attachment: None,
        error: None,
    });
    let mut former = fresh(&facts(Some(&told)));
    former.provisioning = Some(
        serde_json::from_value(json!({
            "holder": "pod-1",
            "lastFailure": {"time": "2026-01-01T00:00:00Z", "operation": "Provision", "code": "Internal", "message": "no"},
        }))
        .unwrap(),
    );
    let mut other = driver(DriverPhase::Running);
    other.plugin.as_mut().unwrap().name = "b.test".to_owned();
    let (silent, same) = (DriverState::default(), driver(DriverPhase::Running));
    for (driver, specified, stays) in [
        (&silent, None, true),
        (&silent, Some("a.test"), true),
        (&silent, Some("b.test"), false),
        (&same, None, true),
        (&other, None, false),
    ] {
        let provisioning = ProvisioningState {
            task: silent.clone(),
            ..state(DriverPhase::Connecting)
        };
        let now = status(
            &StatusInput {
                specified,
                provisioning: Some(&provisioning),
                ..facts(Some(driver))
            },
            &former,
            at(200),
        );
        let provisioning = now.provisioning.as_ref().unwrap();
        let shown = [
            now.last_failure.is_some(),
            now.last_reconcile_sync.is_some(),
            provisioning.last_failure.is_some(),
        ];
        assert_eq!(shown, [stays; 3], "{specified:?}");
        assert_eq!(now.driver == former.driver, stays, "{specified:?}");
    }
}

/// So that the DRIVER column says which driver it is that nobody reaches.
#[test]
fn a_driver_that_never_answered_has_the_name_of_the_spec() {
    let silent = DriverState::default();
    let shown = |specified, known: &AttacherConfigStatus| {
        let input = StatusInput {
            specified,
            ..facts(Some(&silent))
        };
        status(&input, known, at(200)).driver
    };
    let named = AttacherConfigStatus {
        driver: shown(Some("a.test"), &AttacherConfigStatus::default()),
        ..AttacherConfigStatus::default()
    };
    for name in [Some("a.test"), Some("b.test"), None] {
        let now = shown(name, &named);
        assert_eq!(now.as_ref().map(|driver| &*driver.name), name);
        assert!(now.is_none_or(|driver| driver.mode.is_none()), "{name:?}");
    }
    let answered = fresh(&facts(Some(&driver(DriverPhase::Running))));
    for name in [Some("a.test"), None] {
        assert_eq!(shown(name, &answered), answered.driver);
    }
}

/// Its settings are in use nowhere, so that nothing else of the status follows them.
#[test]
fn the_name_of_a_spec_that_is_refused_is_shown_and_counts_for_nothing_else() {
    let mut told = driver(DriverPhase::Running);
    told.last_failure = Some(failed_attach());
    let answered = fresh(&facts(Some(&told)));
    let new = AttacherConfigStatus::default();
    for (specified, known, shown) in [
        (None, &new, "b.test"),
        (Some("a.test"), &new, "a.test"),
        (None, &answered, "a.test"),
    ] {
        let input = StatusInput {
            specified,
            named_by_spec: Some("b.test"),
            ..facts(None)
        };
        let now = status(&input, known, at(200));
        assert_eq!(now.driver.map(|driver| driver.name).as_deref(), Some(shown));
        assert_eq!(now.last_failure, known.last_failure, "{shown}");
    }
}

#[test]
fn what_the_driver_told_and_what_failed_last_stays_known() {
    let mut told = driver(DriverPhase::Running);
    told.last_failure = Some(failed_attach());
    let first = fresh(&facts(Some(&told)));
    let plugin = first.driver.as_ref().unwrap();
    assert_eq!(
        (plugin.name.as_str(), plugin.mode),
        ("a.test", Some(DriverMode::Attach))
    );
    assert_eq!(
        first.last_failure.as_ref().map(|failure| failure.code.as_str()),
        Some("ResourceExhausted")
    );
    let silent = DriverState::default();
    let second = status(&facts(Some(&silent)), &first, at(200));
    assert_eq!(
        (&second.driver, &second.last_failure),
        (&first.driver, &first.last_failure)
    );
    assert_eq!((second.holder, second.attachments), (None, None));
    // That of a replica whose clock was wrong must not hide what fails from now on.
    let mut ahead = first.clone();
    ahead.last_failure.as_mut().unwrap().time = truncate_to_seconds(at(300));
    let seen = |driver, now| status(&facts(Some(driver)), &ahead, at(now)).last_failure;
    assert_eq!(seen(&told, 200), first.last_failure);
    assert_eq!(seen(&told, 300), ahead.last_failure);
    assert_eq!(seen(&silent, 200), ahead.last_failure);
    told.plugin.as_mut().unwrap().publishes = false;
    let trivial = fresh(&facts(Some(&told)));
    assert_eq!(trivial.driver.unwrap().mode, Some(DriverMode::Trivial));
}

#[test]
fn the_lease_of_a_former_release_stays_recorded_until_it_is_held() {
    let running = driver(DriverPhase::Running);
    let recorded = FormerLease {
        namespace: Some("elsewhere".to_owned()),
    };
    let known = AttacherConfigStatus {
        leader_election: Some(recorded),
        ..AttacherConfigStatus::default()
    };
    for (holds_former_lease, stays) in [(false, true), (true, false)] {
        let facts = StatusInput {
            holds_former_lease,
            ..facts(Some(&running))
        };
        assert_eq!(status(&facts, &known, at(100)).leader_election.is_some(), stays);
    }
}

#[test]
fn attachments_that_keep_failing_are_counted_and_the_last_one_is_named() {
    let mut failing = driver(DriverPhase::Running);
    failing.last_failure = Some(FailureRecord {
        operation: "detach",
        message: "disk is busy".to_owned(),
        ..failed_attach()
    });
    let oldest: VolumeAttachmentWire = serde_json::from_value(json!({
        "metadata": {"name": "csi-1", "creationTimestamp": "2026-01-01T00:00:01Z"},
        "spec": {"attacher": "a.test", "nodeName": "n", "source": {}},
    }))
    .unwrap();
    let oldest = Attachment::from(oldest);
    let status = fresh(&StatusInput {
        counts: Counts {
            attached: 4,
            attaching: 2,
            detaching: 1,
        },
        failing: Some(3),
        oldest: Some(&oldest),
        ..facts(Some(&failing))
    });
    let healthy = condition(&status, "AttachmentsHealthy");
    assert_eq!(
        (healthy.status.as_str(), healthy.reason.as_str()),
        ("False", "AttachmentsFailing")
    );
    assert_eq!(
        healthy.message,
        "3 failed and will be retried; the last one: detach of csi-1: disk is busy"
    );
    let counts = status.attachments.unwrap();
    assert_eq!((counts.attached, counts.pending, counts.failing), (4, 3, 3));
    assert_eq!(
        counts.oldest_pending.unwrap().pending_since_time.0,
        "2026-01-01T00:00:01Z".parse().unwrap()
    );
}

/// A PersistentVolume that cannot be released is no attach that fails, and what is over is not why others fail.
#[test]
fn what_is_no_failing_attach_is_told_apart() {
    let mut running = driver(DriverPhase::Running);
    running.last_failure = Some(failed_attach());
    let told = |failing, upkeep, is_last_pending| {
        let status = fresh(&StatusInput {
            failing: Some(failing),
            failing_upkeep: upkeep,
            is_last_pending,
            ..facts(Some(&running))
        });
        let healthy = condition(&status, "AttachmentsHealthy");
        (healthy.status.clone(), healthy.message.clone())
    };
    let upkeep = "2 finalizers or notes of volumes cannot be written and will be retried";
    let (healthy, message) = told(0, 2, true);
    assert_eq!(
        (&*healthy, message),
        ("True", format!("no attach or detach keeps failing; {upkeep}"))
    );
    let (healthy, message) = told(1, 2, false);
    assert_eq!(
        (&*healthy, message),
        ("False", format!("1 failed and will be retried; {upkeep}"))
    );
    assert!(told(1, 0, true).1.contains("; the last one: "));
}

#[test]
fn times_change_with_the_status_of_a_condition_and_with_nothing_else() {
    let (connecting, missing, running) = (
        driver(DriverPhase::Connecting),
        driver(failed(ConditionReason::SocketMissing, false)),
        driver(DriverPhase::Running),
    );
    let first = status(&facts(Some(&connecting)), &AttacherConfigStatus::default(), at(100));
    let second = status(&facts(Some(&missing)), &first, at(200));
    let third = status(&facts(Some(&running)), &second, at(300));
    let time = |status: &AttacherConfigStatus, kind| condition(status, kind).last_transition_time.0.as_second();
    assert_eq!(time(&second, "Ready"), 100, "False for another reason is False still");
    assert_eq!(time(&second, "DriverReachable"), 200, "Unknown became False");
    assert_eq!(
        (
            time(&third, "Ready"),
            time(&third, "Reconciling"),
            time(&third, "Stalled")
        ),
        (300, 300, 100)
    );
    // Looked at again, nothing is to be written.
    assert_eq!(status(&facts(Some(&running)), &third, at(400)), third);
}

#[test]
fn people_wait_for_states_and_not_for_counts() {
    let running = driver(DriverPhase::Running);
    let known = fresh(&facts(Some(&running)));
    let urgent = |facts: &StatusInput<'_>| is_urgent(&known, &status(facts, &known, at(200)));
    assert!(!urgent(&facts(Some(&running))));
    let urgent_with = |change: fn(&mut StatusInput<'_>)| {
        let mut input = facts(Some(&running));
        change(&mut input);
        urgent(&input)
    };
    assert!(!urgent_with(|input| input.counts.attaching = 7));
    assert!(urgent_with(|input| input.failing = Some(1)));
    assert!(urgent_with(|input| input.generation = Some(4)));
    assert!(urgent_with(|input| input.holder = "pod-2"));
    for phase in [
        DriverPhase::Connecting,
        DriverPhase::Suspended,
        failed(ConditionReason::Timeout, false),
    ] {
        let driver = driver(phase);
        assert!(urgent(&facts(Some(&driver))));
    }
    let mut upgraded = running.clone();
    upgraded.plugin.as_mut().unwrap().vendor_version = "1.3".to_owned();
    assert!(urgent(&facts(Some(&upgraded))));
    let mut other = driver(failed(ConditionReason::Timeout, false));
    let known = fresh(&facts(Some(&other)));
    if let DriverPhase::Unreachable { message, .. } = &mut other.phase {
        message.push('!');
    }
    assert!(
        !is_urgent(&known, &status(&facts(Some(&other)), &known, at(200))),
        "another text"
    );
}

fn remaining(attachments: usize) -> Remaining {
    Remaining {
        attachments,
        ..Remaining::nothing()
    }
}

#[test]
fn a_config_that_is_being_deleted_says_what_it_waits_for() {
    let running = driver(DriverPhase::Running);
    let status = fresh_with(Some(&running), |input| input.deletion.remaining = Some(remaining(7)));
    let shown = four(&status);
    assert_eq!(
        (&*shown[0], &*shown[1]),
        ("True Running", "True WaitingForDetach"),
        "it is still served"
    );
    let message = &condition(&status, "Reconciling").message;
    assert!(message.contains("until 7 VolumeAttachments are detached"), "{message}");
    assert!(!message.contains("spec.suspend"), "{message}");
}

/// What only somebody else's finalizer keeps is served by nobody, whatever its status said before.
#[test]
fn a_config_that_others_keep_has_a_last_status() {
    let running = driver(DriverPhase::Running);
    let before = fresh(&facts(Some(&running)));
    let input = StatusInput {
        deletion: DeletionState {
            kept_by: Some("example.com/one, example.com/two".to_owned()),
            ..DeletionState::default()
        },
        ..facts(None)
    };
    let last = status(&input, &before, at(200));
    assert_eq!(
        four(&last),
        ["False Stopped", "False UpToDate", "False NotStalled", "Unknown Stopped"].map(str::to_owned)
    );
    let words = "is being deleted and begins nothing any more; held by finalizer example.com/one, example.com/two";
    assert_eq!(condition(&last, "Ready").message, words);
    for kind in ["AttachmentsHealthy", "AttachmentsConsistent"] {
        assert_eq!(condition(&last, kind).reason, "Stopped", "{kind}");
    }
    assert_eq!((&last.holder, &last.attachments), (&None, &None));
    assert_eq!(last.driver, before.driver);
    assert!(is_urgent(&before, &last));
    assert_eq!(status(&input, &last, at(300)), last, "it is written once");
}

/// Of a driver that is not known nobody can tell what is left, and nobody detaches what a suspended AttacherConfig waits for.
#[test]
fn a_config_whose_deletion_does_not_end_by_itself_says_what_to_do() {
    for (phase, is_unnamed, attachments, words, says) in [
        (DriverPhase::Connecting, true, 7, "set spec.driverName", true),
        (DriverPhase::Connecting, true, 0, "set spec.driverName", false),
        (DriverPhase::Suspended, false, 7, "set it to false", true),
        (DriverPhase::Suspended, false, 0, "set it to false", false),
    ] {
        let driver = driver(phase);
        let status = fresh_with(Some(&driver), |input| {
            input.deletion.remaining = Some(remaining(attachments));
            input.deletion.is_unnamed = is_unnamed;
        });
        let message = &condition(&status, "Reconciling").message;
        assert_eq!(message.contains(words), says, "{attachments} left: {message}");
    }
}

#[test]
fn a_connection_that_stands_may_have_a_problem_of_now_and_one_to_come() {
    let mut running = driver(DriverPhase::Running);
    running.connection_problem = Some("calls get no answer".to_owned());
    running.concern = Some("the new certificates do not work".to_owned());
    let status = fresh(&facts(Some(&running)));
    let reachable = condition(&status, "DriverReachable");
    assert_eq!((&*reachable.status, &*reachable.reason), ("True", "Connected"));
    let words = "the driver answers; calls get no answer; the new certificates do not work";
    assert_eq!(reachable.message, words);
}

#[test]
fn provisioning_has_a_condition_while_it_is_on() {
    let (driver, provisioner) = (driver(DriverPhase::Running), driver(DriverPhase::Syncing));
    let watched = |reads_nodes| ProvisioningState {
        task: provisioner.clone(),
        reads_nodes,
        watch_failure: Some("who may not list is named here".to_owned()),
        ..state(DriverPhase::Syncing)
    };
    let provisioning = watched(false);
    let on = fresh_with(Some(&driver), |input| input.provisioning = Some(&provisioning));
    let ready = condition(&on, "ProvisioningReady");
    assert_eq!((&*ready.status, &*ready.reason), ("False", "Syncing"));
    assert!(
        ready.message.ends_with("who may not list is named here"),
        "{}",
        ready.message
    );
    let ready_of_all = condition(&on, "Ready");
    assert_eq!((&*ready_of_all.status, &*ready_of_all.reason), ("False", "Syncing"));
    assert_eq!(condition(&on, "ProvisioningHealthy").status, "Unknown");
    assert!(
        ready
            .message
            .contains("PersistentVolumes and VolumeAttachments; who may"),
        "{}",
        ready.message
    );

    let provisioning = watched(true);
    let with_topology = fresh_with(Some(&driver), |input| input.provisioning = Some(&provisioning));
    let ready = condition(&with_topology, "ProvisioningReady");
    assert!(
        ready.message.contains("VolumeAttachments and Nodes; who may"),
        "{}",
        ready.message
    );

    let off = status(&facts(Some(&driver)), &on, at(200));
    assert!(
        off.conditions
            .iter()
            .all(|condition| !ConditionType::is_of_provisioning(&condition.type_))
    );
    assert!(is_urgent(&on, &off));
}
