//! What is told as an event on an AttacherConfig.

use super::status::{driver, facts, fresh};
use crate::api::AttacherConfigStatus;
use crate::api::condition;
use crate::driver::Phase;
use crate::events::Reason;
use crate::supervisor::news::news;

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
    let rows = [
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
