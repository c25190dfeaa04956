//! What is told as an event on an AttacherConfig.

use super::status::{driver, facts, fresh};
use crate::api::AttacherConfigStatus;
use crate::api::condition;
use crate::decide::reconcile::{Unclaimed, WithoutAttachment};
use crate::driver::{DriverStatus, LastReconcile, Phase};
use crate::events::Reason;
use crate::supervisor::news::{news, without_attachment};
use jiff::Timestamp;

fn of(phase: Phase) -> AttacherConfigStatus {
    fresh(&facts(Some(&driver(phase))))
}

fn unreachable(reason: condition::Reason, message: &str) -> Phase {
    let message = message.to_owned();
    Phase::Unreachable { reason, message }
}

fn stalled(reason: condition::Reason) -> Phase {
    let message = "mend it".to_owned();
    Phase::Stalled { reason, message }
}

#[test]
fn what_lasts_is_told_once() {
    use condition::Reason::{DriverNameMismatch, SecretForbidden, SocketMissing, Timeout};
    let nothing = AttacherConfigStatus::default();
    let missing = || of(unreachable(SocketMissing, "no socket"));
    let mismatch = || of(stalled(DriverNameMismatch));
    let told = |reason, text: &str| {
        let (cause, _) = text.split_once(':').unwrap();
        Some((reason, cause.into(), text.to_owned()))
    };
    let rows = vec![
        (nothing.clone(), of(Phase::Connecting), None),
        (nothing.clone(), of(Phase::Syncing), None),
        (nothing.clone(), of(Phase::Draining), None),
        (
            nothing.clone(),
            of(Phase::Running),
            told(Reason::Ready, "Running: attaching and detaching volumes"),
        ),
        (of(Phase::Running), of(Phase::Running), None),
        (
            of(Phase::Running),
            missing(),
            told(Reason::DriverUnreachable, "SocketMissing: no socket"),
        ),
        (missing(), missing(), None),
        // Another text is no other trouble; another reason is.
        (missing(), of(unreachable(SocketMissing, "still no socket")), None),
        (
            missing(),
            of(unreachable(Timeout, "slow")),
            told(Reason::DriverUnreachable, "Timeout: slow"),
        ),
        (
            missing(),
            of(Phase::Running),
            told(Reason::Ready, "Running: attaching and detaching volumes"),
        ),
        (
            nothing,
            mismatch(),
            told(Reason::Stalled, "DriverNameMismatch: mend it"),
        ),
        (mismatch(), mismatch(), None),
        (
            mismatch(),
            of(stalled(SecretForbidden)),
            told(Reason::Stalled, "SecretForbidden: mend it"),
        ),
        (
            of(Phase::Running),
            of(Phase::Suspended),
            told(Reason::Suspended, "Suspended: spec.suspend is true"),
        ),
        (of(Phase::Suspended), of(Phase::Suspended), None),
        (of(Phase::Running), of(Phase::Stopped), None),
    ];
    for (number, (before, now, expected)) in rows.into_iter().enumerate() {
        assert_eq!(news(&before, &now), expected, "row {number}");
    }
}

#[test]
fn a_spec_that_cannot_be_used_is_told_beside_what_runs() {
    let running = driver(Phase::Running);
    let problem = crate::supervisor::plan::Problem {
        reason: condition::Reason::InvalidSpec,
        message: "spec.endpoint: no".to_owned(),
    };
    let invalid = fresh(&crate::supervisor::status::Facts {
        problem: Some(&problem),
        ..facts(Some(&running))
    });
    let expected = Some((
        Reason::Stalled,
        "InvalidSpec".into(),
        "InvalidSpec: spec.endpoint: no".to_owned(),
    ));
    assert_eq!(news(&of(Phase::Running), &invalid), expected);
    assert_eq!(news(&invalid, &invalid), None);
}

#[test]
fn volumes_without_an_attachment_are_told_when_there_are_more_of_them() {
    let with = |count: usize, handle: &str| {
        let mut driver = driver(Phase::Running);
        let examples = (0..count.min(3)).map(|_| Unclaimed {
            handle: handle.into(),
            node_id: "node-id".into(),
        });
        let found = WithoutAttachment {
            count,
            examples: examples.collect(),
        };
        driver.last_reconcile = Some(LastReconcile {
            finished_at: Timestamp::UNIX_EPOCH,
            volumes: 9,
            mismatches: 0,
            without_attachment: Some(found),
            error: None,
        });
        driver
    };
    let status = |driver: &DriverStatus| fresh(&facts(Some(driver)));
    let nothing = AttacherConfigStatus::default();
    let one = status(&with(1, "vol"));
    let text = "the driver lists 1 volume at nodes of this cluster without a VolumeAttachment, such as volume vol at the node with \
                ID node-id; what nobody uses is to be detached by hand: the operator leaves it alone";
    let told = (Reason::VolumesWithoutAttachment, Box::default(), text.to_owned());
    assert_eq!(without_attachment(&nothing, &one), Some(told));
    assert_eq!(without_attachment(&one, &one), None);
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
