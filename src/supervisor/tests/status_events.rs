//! What is told as an event on an AttacherConfig.

use super::status::{driver, facts, fresh, fresh_with};
use crate::api::{AttacherConfigStatus, condition};
use crate::decide::reconcile::{Unclaimed, VolumesWithoutAttachment};
use crate::events::EventReason;
use crate::runtime::{DriverPhase, DriverState, ReconcileSyncResult};
use crate::supervisor::status_events::{event_for_change, without_attachment};
use jiff::Timestamp;

fn of(phase: DriverPhase) -> AttacherConfigStatus {
    fresh(&facts(Some(&driver(phase))))
}

fn unreachable(reason: condition::ConditionReason, message: &str) -> DriverPhase {
    let message = message.to_owned();
    DriverPhase::Unreachable { reason, message }
}

fn stalled(reason: condition::ConditionReason) -> DriverPhase {
    let message = "mend it".to_owned();
    DriverPhase::Stalled { reason, message }
}

fn standby() -> DriverPhase {
    DriverPhase::Standby {
        holder: Some("sidecar-0".to_owned()),
        namespace: None,
    }
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn what_lasts_is_told_once() {
    use condition::ConditionReason::{DriverNameMismatch, SecretForbidden, SocketMissing, Timeout};
    let nothing = AttacherConfigStatus::default();
    let missing = || of(unreachable(SocketMissing, "no socket"));
    let mismatch = || of(stalled(DriverNameMismatch));
    let told = |reason, text: &str| {
        let (cause, _) = text.split_once(':').unwrap();
        Some((reason, cause.into(), text.to_owned()))
    };
    let rows = vec![
        (nothing.clone(), of(DriverPhase::Connecting), None),
        (nothing.clone(), of(DriverPhase::Syncing), None),
        (nothing.clone(), of(DriverPhase::Draining), None),
        (
            nothing.clone(),
            of(DriverPhase::Running),
            told(EventReason::Ready, "Running: attaching and detaching volumes"),
        ),
        (of(DriverPhase::Running), of(DriverPhase::Running), None),
        (
            of(DriverPhase::Running),
            missing(),
            told(EventReason::DriverUnreachable, "SocketMissing: no socket"),
        ),
        (missing(), missing(), None),
        // Another text is no other trouble; another reason is.
        (missing(), of(unreachable(SocketMissing, "still no socket")), None),
        (
            missing(),
            of(unreachable(Timeout, "slow")),
            told(EventReason::DriverUnreachable, "Timeout: slow"),
        ),
        (
            missing(),
            of(DriverPhase::Running),
            told(EventReason::Ready, "Running: attaching and detaching volumes"),
        ),
        (
            nothing,
            mismatch(),
            told(EventReason::Stalled, "DriverNameMismatch: mend it"),
        ),
        (mismatch(), mismatch(), None),
        (
            mismatch(),
            of(stalled(SecretForbidden)),
            told(EventReason::Stalled, "SecretForbidden: mend it"),
        ),
        (
            of(DriverPhase::Running),
            of(DriverPhase::Suspended),
            told(EventReason::Suspended, "Suspended: spec.suspend is true"),
        ),
        (of(DriverPhase::Suspended), of(DriverPhase::Suspended), None),
        (of(DriverPhase::Running), of(DriverPhase::Stopped), None),
        (AttacherConfigStatus::default(), of(standby()), None),
        (
            of(standby()),
            of(DriverPhase::Running),
            told(EventReason::Ready, "Running: attaching and detaching volumes"),
        ),
    ];
    for (number, (before, now, expected)) in rows.into_iter().enumerate() {
        assert_eq!(event_for_change(&before, &now), expected, "row {number}");
    }
}

#[test]
fn a_spec_that_cannot_be_used_is_told_beside_what_runs() {
    let running = driver(DriverPhase::Running);
    let problem = crate::supervisor::plan::ConfigProblem {
        reason: condition::ConditionReason::InvalidSpec,
        message: "spec.endpoint: no".to_owned(),
    };
    let invalid = fresh_with(Some(&running), |input| input.problem = Some(&problem));
    let expected = Some((
        EventReason::Stalled,
        "InvalidSpec".into(),
        "InvalidSpec: spec.endpoint: no".to_owned(),
    ));
    assert_eq!(event_for_change(&of(DriverPhase::Running), &invalid), expected);
    assert_eq!(event_for_change(&invalid, &invalid), None);
}

#[test]
fn volumes_without_an_attachment_are_told_when_there_are_more_of_them() {
    let with = |count: usize, handle: &str| {
        let mut driver = driver(DriverPhase::Running);
        let examples = (0..count.min(3)).map(|_| Unclaimed {
            handle: handle.into(),
            node_id: "node-id".into(),
        });
        let found = VolumesWithoutAttachment {
            count,
            examples: examples.collect(),
        };
        driver.last_reconcile = Some(ReconcileSyncResult {
            finished_at: Timestamp::UNIX_EPOCH,
            volumes: 9,
            mismatches: 0,
            without_attachment: Some(found),
            error: None,
        });
        driver
    };
    let status = |driver: &DriverState| fresh(&facts(Some(driver)));
    let two_of = |name: &str| {
        let mut driver = with(2, "vol");
        driver.plugin.as_mut().unwrap().name = name.to_owned();
        status(&driver)
    };
    let nothing = AttacherConfigStatus::default();
    let one = status(&with(1, "vol"));
    let text = "the driver lists 1 volume at nodes of this cluster without a VolumeAttachment, such as volume vol at the node with \
                ID node-id; what nobody uses is to be detached by hand: the operator leaves it alone";
    let told = (EventReason::VolumesWithoutAttachment, Box::default(), text.to_owned());
    assert_eq!(without_attachment(&nothing, &one), Some(told));
    assert_eq!(without_attachment(&one, &one), None);
    // The AttacherConfig served another driver before.
    let mut former = two_of("b.test");
    assert!(without_attachment(&former, &one).is_some());
    former.driver.clone_from(&one.driver);
    assert_eq!(without_attachment(&former, &one), None);
    let two = status(&with(2, &"v".repeat(5000)));
    let note = without_attachment(&one, &two).unwrap().2;
    assert!(note.contains("lists 2 volumes") && note.len() < 1000, "{note}");
    assert_eq!(without_attachment(&two, &one), None, "fewer");
    assert_eq!(without_attachment(&one, &status(&with(0, ""))), None);
    // Who has just taken over, and a comparison that failed, say nothing: what is known stays.
    let mut unknown = with(0, "");
    unknown.last_reconcile.as_mut().unwrap().without_attachment = None;
    let now = crate::supervisor::status::status(&facts(Some(&unknown)), &two, Timestamp::UNIX_EPOCH);
    assert_eq!(
        now.last_reconcile_sync.unwrap().without_attachment,
        two.last_reconcile_sync.unwrap().without_attachment
    );
}
