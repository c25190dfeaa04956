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
use crate::supervisor::status::{Comparisons, ProvisioningFacts, StatusInput, is_urgent, status};

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
        provisioning: ProvisioningFacts::Off,
        comparisons: Comparisons::Made,
        insight: None,
        stuck: None,
        deletion: DeletionState::default(),
        watch_failure: None,
        lease_warning: None,
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
    let mut all = status.conditions.iter();
    all.find(|condition| condition.type_ == kind).unwrap()
}

/// Status and reason of a condition.
pub(super) fn shows(status: &AttacherConfigStatus, kind: &str) -> String {
    let condition = condition(status, kind);
    format!("{} {}", condition.status, condition.reason)
}

/// The same of Ready, Reconciling, Stalled and DriverReachable.
pub(super) fn four(status: &AttacherConfigStatus) -> String {
    let kinds = ["Ready", "Reconciling", "Stalled", "DriverReachable"];
    kinds.map(|kind| shows(status, kind)).join(", ")
}

/// The status of this driver with what provisioning is at.
pub(super) fn with_provisioning(
    driver: &DriverState,
    provisioning: &ProvisioningState,
    known: &AttacherConfigStatus,
) -> AttacherConfigStatus {
    let input = StatusInput {
        provisioning: ProvisioningFacts::Here(provisioning),
        ..facts(Some(driver))
    };
    status(&input, known, at(100))
}

pub(super) fn failed(reason: ConditionReason, stalled: bool) -> DriverPhase {
    let message = "what is wrong".to_owned();
    if stalled {
        DriverPhase::Stalled { reason, message }
    } else {
        DriverPhase::Unreachable { reason, message }
    }
}

pub(super) fn standby(holder: Option<&str>) -> DriverPhase {
    DriverPhase::Standby {
        holder: holder.map(str::to_owned),
        namespace: None,
        new_lease: None,
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
        fresh_with(Some(&driver), |input| {
            input.watch_failure = failure.map(ToOwned::to_owned);
            input.is_of_one_state = is_of_one_state;
        })
    };
    let failure = Some("cannot watch csinodes: forbidden");
    for (failure, is_of_one_state) in [(None, true), (failure, true), (None, false)] {
        assert_eq!(shows(&of(failure, is_of_one_state), "Ready"), "True Running");
    }
    let status = of(failure, false);
    assert_eq!(shows(&status, "Ready"), "False Syncing");
    let message = &condition(&status, "Ready").message;
    for part in ["nothing is attached", "csinodes"] {
        assert!(message.contains(part), "{message}");
    }
}

/// What the four conditions say in a phase, and what kstatus makes of them.
fn told_in(phase: &DriverPhase) -> &'static str {
    match phase {
        DriverPhase::Connecting => {
            "False Connecting, True Connecting, False NotStalled, Unknown Connecting; InProgress"
        }
        DriverPhase::Syncing => "False Syncing, True Syncing, False NotStalled, True Connected; InProgress",
        DriverPhase::Running => "True Running, False UpToDate, False NotStalled, True Connected; Current",
        DriverPhase::Draining | DriverPhase::AwaitingReservation { .. } => {
            "False Draining, True Draining, False NotStalled, True Connected; InProgress"
        }
        DriverPhase::Standby { holder: None, .. } => {
            "False Standby, True Standby, False NotStalled, True Connected; InProgress"
        }
        DriverPhase::Standby { .. } => "True Standby, False UpToDate, False NotStalled, True Connected; Current",
        DriverPhase::Suspended => "True Suspended, False UpToDate, False NotStalled, Unknown Suspended; Current",
        DriverPhase::Unreachable { .. } => {
            "False DriverUnreachable, True Connecting, False NotStalled, False SocketMissing; InProgress"
        }
        DriverPhase::Stalled { .. } => {
            "False DriverNameMismatch, False DriverNameMismatch, True DriverNameMismatch, True Connected; Failed"
        }
        DriverPhase::Stopped => "False Stopped, False UpToDate, False NotStalled, Unknown Stopped; InProgress",
    }
}

#[test]
fn each_phase_has_its_conditions() {
    let idle = [
        standby(Some("sidecar-0")),
        DriverPhase::Suspended,
        failed(ConditionReason::SocketMissing, false),
        failed(ConditionReason::DriverNameMismatch, true),
        DriverPhase::Stopped,
    ];
    let others = [
        DriverPhase::Connecting,
        DriverPhase::Syncing,
        DriverPhase::Running,
        DriverPhase::Draining,
        DriverPhase::AwaitingReservation { after: "a".into() },
        standby(None),
    ];
    for (number, phase) in idle.iter().chain(&others).enumerate() {
        let driver = driver(phase.clone());
        let status = fresh(&facts(Some(&driver)));
        let told = format!("{}; {}", four(&status), kstatus(&status));
        assert_eq!(told, told_in(phase), "{phase:?}");
        let shown = |kind: &str| {
            let found = status.conditions.iter().find(|condition| condition.type_ == kind);
            found.map(|condition| &*condition.status)
        };
        // Who has no queue does not know; where that is about to change, nothing is said.
        let unknown = (number < idle.len()).then_some("Unknown");
        let healthy = if has_queue(phase) { Some("True") } else { unknown };
        assert_eq!(shown("AttachmentsHealthy"), healthy, "{phase:?}");
        assert_eq!(shown("AttachmentsConsistent"), unknown, "{phase:?}");
        let serving = match phase {
            DriverPhase::Running => Some("pod-1"),
            DriverPhase::Standby { holder, .. } => holder.as_deref(),
            _ => None,
        };
        assert_eq!(status.holder.as_deref(), serving, "{phase:?}");
    }
}

/// One that names the driver goes before one that does not, whichever is older.
#[test]
fn who_is_waited_for_is_not_told_to_be_newer() {
    let driver = driver(DriverPhase::AwaitingReservation { after: "a".into() });
    let status = fresh(&facts(Some(&driver)));
    let message = &*condition(&status, "Ready").message;
    assert_eq!(message, "AttacherConfig a finishes its calls to the same driver");
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
        let reachable = |driver: &DriverState| shows(&fresh(&facts(Some(driver))), "DriverReachable");
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
    let of = |phase: Option<DriverPhase>| {
        let driver = phase.map(driver);
        fresh_with(driver.as_ref(), |input| input.problem = Some(&problem))
    };
    // The last good settings are at work.
    let status = of(Some(DriverPhase::Running));
    let wanted = "True Running, False InvalidSpec, True InvalidSpec, True Connected";
    assert_eq!(four(&status), wanted);
    assert_eq!(
        condition(&status, "Stalled").message,
        "spec.endpoint: no; its last valid settings are in use until this replica restarts"
    );
    // They suspended the driver; the spec asks for something else now, which cannot be had. Or there were none.
    for phase in [Some(DriverPhase::Suspended), None] {
        let status = of(phase);
        let wanted = "False InvalidSpec, False InvalidSpec, True InvalidSpec, Unknown InvalidSpec";
        assert_eq!(four(&status), wanted);
        for kind in ["Ready", "Stalled"] {
            assert_eq!(condition(&status, kind).message, problem.message, "{kind}");
        }
        for kind in ["AttachmentsHealthy", "AttachmentsConsistent"] {
            assert_eq!(shows(&status, kind), "Unknown InvalidSpec", "{kind}");
        }
        assert_eq!(kstatus(&status), "Failed");
    }
    assert_eq!(of(None).attachments, None);
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
    let provisioning = json!({
        "holder": "pod-1",
        "lastFailure": {"time": "2026-01-01T00:00:00Z", "operation": "Provision", "code": "Internal", "message": "no"},
    });
    former.provisioning = serde_json::from_value(provisioning).unwrap();
    let mut other = driver(DriverPhase::Running);
    other.plugin.as_mut().unwrap().name = "b.test".to_owned();
    let (silent, same) = (DriverState::default(), driver(DriverPhase::Running));
    let mut provisioning = state(DriverPhase::Connecting);
    provisioning.task = silent.clone();
    for (driver, specified, stays) in [
        (&silent, None, true),
        (&silent, Some("a.test"), true),
        (&silent, Some("b.test"), false),
        (&same, None, true),
        (&other, None, false),
    ] {
        let input = StatusInput {
            specified,
            provisioning: ProvisioningFacts::Here(&provisioning),
            ..facts(Some(driver))
        };
        let now = status(&input, &former, at(200));
        let shown = [
            now.last_failure.is_some(),
            now.last_reconcile_sync.is_some(),
            now.provisioning.unwrap().last_failure.is_some(),
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
    assert_eq!((&*plugin.name, plugin.mode), ("a.test", Some(DriverMode::Attach)));
    assert_eq!(first.last_failure.as_ref().unwrap().code, "ResourceExhausted");
    let silent = DriverState::default();
    let second = status(&facts(Some(&silent)), &first, at(200));
    let known = (&first.driver, &first.last_failure);
    assert_eq!((&second.driver, &second.last_failure), known);
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
    assert_eq!(condition(&first, "Ready").message, "attaching and detaching volumes");
    let message = &condition(&trivial, "Ready").message;
    assert!(message.contains("marked attached without a call"), "{message}");
    assert_eq!(trivial.driver.unwrap().mode, Some(DriverMode::Trivial));
}

/// It lasts for as long as the Lease says, which may be hours; and no replica is trying to acquire it.
#[test]
fn a_new_lease_that_is_waited_for_is_told() {
    let told = "Lease operator/external-attacher-leader-a-test is new";
    let waiting = driver(DriverPhase::Standby {
        holder: None,
        namespace: None,
        new_lease: Some(told.to_owned()),
    });
    let status = fresh(&facts(Some(&waiting)));
    assert_eq!(condition(&status, "Ready").message, told);
    let mut provisioning = state(DriverPhase::Syncing);
    provisioning.task = able(waiting.phase);
    let running = driver(DriverPhase::Running);
    let status = with_provisioning(&running, &provisioning, &AttacherConfigStatus::default());
    assert_eq!(condition(&status, "ProvisioningReady").message, told);
}

/// It is in nobody's way, so that nothing else says so.
#[test]
fn a_namespace_of_the_spec_that_does_not_exist_is_told_while_the_driver_is_served() {
    let running = driver(DriverPhase::Running);
    let warning = Some("no namespace kube-sytem".to_owned());
    let warned = fresh_with(Some(&running), |input| input.lease_warning = warning);
    assert_eq!(shows(&warned, "Ready"), "True Running");
    let message = &condition(&warned, "Ready").message;
    assert_eq!(message, "attaching and detaching volumes; no namespace kube-sytem");
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
    let status = fresh_with(Some(&failing), |input| {
        (input.counts.attached, input.counts.attaching, input.counts.detaching) = (4, 2, 1);
        (input.failing, input.oldest) = (Some(3), Some(&oldest));
    });
    assert_eq!(shows(&status, "AttachmentsHealthy"), "False AttachmentsFailing");
    let message = &condition(&status, "AttachmentsHealthy").message;
    let last = "detach of csi-1: disk is busy";
    assert_eq!(*message, format!("3 failed and will be retried; the last one: {last}"));
    let counts = status.attachments.unwrap();
    assert_eq!((counts.attached, counts.pending, counts.failing), (4, 3, 3));
    let since = counts.oldest_pending.unwrap().pending_since_time.0;
    assert_eq!(since, "2026-01-01T00:00:01Z".parse().unwrap());
}

/// A PersistentVolume that cannot be released is no attach that fails, and what is over is not why others fail.
#[test]
fn what_is_no_failing_attach_is_told_apart() {
    let mut running = driver(DriverPhase::Running);
    running.last_failure = Some(failed_attach());
    let told = |failing, upkeep, is_last_pending| {
        let status = fresh_with(Some(&running), |input| {
            (input.failing, input.failing_upkeep) = (Some(failing), upkeep);
            input.is_last_pending = is_last_pending;
        });
        let healthy = condition(&status, "AttachmentsHealthy");
        format!("{} {}", healthy.status, healthy.message)
    };
    let upkeep = "2 finalizers or notes of volumes cannot be written and will be retried";
    let wanted = format!("True no attach or detach keeps failing; {upkeep}");
    assert_eq!(told(0, 2, true), wanted);
    let wanted = format!("False 1 failed and will be retried; {upkeep}");
    assert_eq!(told(1, 2, false), wanted);
    assert!(told(1, 0, true).contains("; the last one: "));
}

#[test]
fn times_change_with_the_status_of_a_condition_and_with_nothing_else() {
    let missing = failed(ConditionReason::SocketMissing, false);
    let next = |phase, known: &AttacherConfigStatus, second| status(&facts(Some(&driver(phase))), known, at(second));
    let first = next(DriverPhase::Connecting, &AttacherConfigStatus::default(), 100);
    let second = next(missing, &first, 200);
    let third = next(DriverPhase::Running, &second, 300);
    let time = |status: &AttacherConfigStatus, kind| condition(status, kind).last_transition_time.0.as_second();
    assert_eq!(time(&second, "Ready"), 100, "False for another reason is False still");
    assert_eq!(time(&second, "DriverReachable"), 200, "Unknown became False");
    for (kind, second) in [("Ready", 300), ("Reconciling", 300), ("Stalled", 100)] {
        assert_eq!(time(&third, kind), second, "{kind}");
    }
    // Looked at again, nothing is to be written.
    assert_eq!(next(DriverPhase::Running, &third, 400), third);
}

#[test]
fn people_wait_for_states_and_not_for_counts() {
    let running = driver(DriverPhase::Running);
    let urgent = |before: &DriverState, now: &DriverState, change: fn(&mut StatusInput<'_>)| {
        let known = fresh(&facts(Some(before)));
        let mut input = facts(Some(now));
        change(&mut input);
        is_urgent(&known, &status(&input, &known, at(200)))
    };
    assert!(!urgent(&running, &running, |_| {}));
    assert!(!urgent(&running, &running, |input| input.counts.attaching = 7));
    assert!(urgent(&running, &running, |input| input.failing = Some(1)));
    assert!(urgent(&running, &running, |input| input.generation = Some(4)));
    assert!(urgent(&running, &running, |input| input.holder = "pod-2"));
    let unreachable = || failed(ConditionReason::Timeout, false);
    for phase in [DriverPhase::Connecting, DriverPhase::Suspended, unreachable()] {
        assert!(urgent(&running, &driver(phase), |_| {}));
    }
    let mut upgraded = running.clone();
    upgraded.plugin.as_mut().unwrap().vendor_version = "1.3".to_owned();
    assert!(urgent(&running, &upgraded, |_| {}));
    let mut other = unreachable();
    if let DriverPhase::Unreachable { message, .. } = &mut other {
        message.push('!');
    }
    assert!(!urgent(&driver(unreachable()), &driver(other), |_| {}), "another text");
}

/// The status of one that is being deleted and waits for so many attachments.
fn leaving(phase: DriverPhase, attachments: usize, is_unnamed: bool) -> AttacherConfigStatus {
    let remaining = Remaining {
        attachments,
        ..Remaining::nothing()
    };
    fresh_with(Some(&driver(phase)), |input| {
        input.deletion.remaining = Some(remaining);
        input.deletion.is_unnamed = is_unnamed;
    })
}

#[test]
fn a_config_that_is_being_deleted_says_what_it_waits_for() {
    let status = leaving(DriverPhase::Running, 7, false);
    assert_eq!(shows(&status, "Ready"), "True Running", "it is still served");
    assert_eq!(shows(&status, "Reconciling"), "True WaitingForDetach");
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
    let wanted = "False Stopped, False UpToDate, False NotStalled, Unknown Stopped";
    assert_eq!(four(&last), wanted);
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
        let status = leaving(phase, attachments, is_unnamed);
        let message = &condition(&status, "Reconciling").message;
        assert_eq!(message.contains(words), says, "{attachments} left: {message}");
    }
}

/// As after a restart with a spec that was refused since: no settings are in use, and nobody looks after what is left.
#[test]
fn a_config_whose_spec_is_not_in_use_waits_until_that_is_fixed() {
    let problem = ConfigProblem {
        reason: ConditionReason::InvalidSpec,
        message: "spec.endpoint: no".to_owned(),
    };
    let words = "is being deleted and attaches no further volumes; waits until the PersistentVolumeClaims can be read \
                 (spec.deletionPolicy); nothing is detached, released or found out while its spec is not in use: fix what the condition \
                 Stalled says";
    let ways = ", set spec.suspend to true where another AttacherConfig has the driver, or set spec.deletionPolicy to Orphan to delete \
                the object at once";
    // The policy of what cannot be read cannot be read either.
    for (is_unreadable, ways) in [(false, ways), (true, "")] {
        let status = fresh_with(None, |input| {
            (input.problem, input.deletion.is_unnamed) = (Some(&problem), true);
            input.deletion.is_unreadable = is_unreadable;
            input.deletion.remaining = Some(Remaining {
                claims: None,
                ..Remaining::nothing()
            });
        });
        assert_eq!(shows(&status, "Stalled"), "True InvalidSpec");
        assert_eq!(shows(&status, "Reconciling"), "True WaitingForDetach");
        assert_eq!(condition(&status, "Reconciling").message, format!("{words}{ways}"));
    }
}

#[test]
fn a_connection_that_stands_may_have_a_problem_of_now_and_one_to_come() {
    let mut running = driver(DriverPhase::Running);
    running.connection_problem = Some("calls get no answer".to_owned());
    running.concern = Some("the new certificates do not work".to_owned());
    let status = fresh(&facts(Some(&running)));
    assert_eq!(shows(&status, "DriverReachable"), "True Connected");
    let words = "the driver answers; calls get no answer; the new certificates do not work";
    assert_eq!(condition(&status, "DriverReachable").message, words);
}

#[test]
fn provisioning_has_a_condition_while_it_is_on() {
    let attached = driver(DriverPhase::Running);
    let mut provisioning = state(DriverPhase::Syncing);
    provisioning.task = driver(DriverPhase::Syncing);
    provisioning.watch_failure = Some("who may not list is named here".to_owned());
    let rows = [
        (true, "VolumeAttachments and Nodes"),
        (false, "PersistentVolumes and VolumeAttachments"),
    ];
    let [_, on] = rows.map(|(reads_nodes, kinds)| {
        provisioning.reads_nodes = reads_nodes;
        let on = with_provisioning(&attached, &provisioning, &AttacherConfigStatus::default());
        let message = &condition(&on, "ProvisioningReady").message;
        let words = format!("{kinds}; who may not list is named here");
        assert!(message.ends_with(&words), "{message}");
        on
    });
    for kind in ["ProvisioningReady", "Ready"] {
        assert_eq!(shows(&on, kind), "False Syncing", "{kind}");
    }
    assert_eq!(condition(&on, "ProvisioningHealthy").status, "Unknown");

    let off = status(&facts(Some(&attached)), &on, at(200));
    let mut kinds = off.conditions.iter().map(|condition| &*condition.type_);
    assert!(!kinds.any(ConditionType::is_of_provisioning));
    assert!(is_urgent(&on, &off));
}
