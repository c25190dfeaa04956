//! What is told as an event on an AttacherConfig.

use super::status::{driver, facts, fresh, fresh_with, standby};
use crate::api::AttacherConfigStatus;
use crate::api::condition::ConditionReason;
use crate::decide::reconcile::{Unclaimed, VolumesWithoutAttachment};
use crate::events::EventReason;
use crate::runtime::{DriverPhase, DriverState, ReconcileSyncResult};
use crate::supervisor::plan::ConfigProblem;
use crate::supervisor::status_events::{event_for_change, without_attachment};
use jiff::Timestamp;

fn of(phase: DriverPhase) -> AttacherConfigStatus {
    fresh(&facts(Some(&driver(phase))))
}

fn unreachable(reason: ConditionReason, message: &str) -> AttacherConfigStatus {
    let message = message.to_owned();
    of(DriverPhase::Unreachable { reason, message })
}

fn stalled(reason: ConditionReason) -> AttacherConfigStatus {
    let message = "mend it".to_owned();
    of(DriverPhase::Stalled { reason, message })
}

/// The event of this change: its reason, which is followed by its note; and the note begins with its cause.
fn told(before: &AttacherConfigStatus, now: &AttacherConfigStatus) -> Option<String> {
    let (reason, cause, note) = event_for_change(before, now)?;
    assert!(note.starts_with(&format!("{cause}: ")), "{cause}: {note}");
    Some(format!("{} {note}", reason.as_str()))
}

#[test]
fn what_lasts_is_told_once() {
    use ConditionReason::{DriverNameMismatch, SecretForbidden, SocketMissing, Timeout};
    const READY: Option<&str> = Some("Ready Running: attaching and detaching volumes");
    let nothing = AttacherConfigStatus::default();
    let (missing, slow) = (unreachable(SocketMissing, "no socket"), unreachable(Timeout, "slow"));
    let still_missing = unreachable(SocketMissing, "still no socket");
    let (mismatch, forbidden) = (stalled(DriverNameMismatch), stalled(SecretForbidden));
    let (running, suspended) = (of(DriverPhase::Running), of(DriverPhase::Suspended));
    let waiting = of(standby(Some("sidecar-0")));
    let rows = [
        (&nothing, &of(DriverPhase::Connecting), None),
        (&nothing, &of(DriverPhase::Syncing), None),
        (&nothing, &of(DriverPhase::Draining), None),
        (&nothing, &running, READY),
        (&running, &running, None),
        (&running, &missing, Some("DriverUnreachable SocketMissing: no socket")),
        (&missing, &missing, None),
        // Another text is no other trouble; another reason is.
        (&missing, &still_missing, None),
        (&missing, &slow, Some("DriverUnreachable Timeout: slow")),
        (&missing, &running, READY),
        (&nothing, &mismatch, Some("Stalled DriverNameMismatch: mend it")),
        (&mismatch, &mismatch, None),
        (&mismatch, &forbidden, Some("Stalled SecretForbidden: mend it")),
        (&running, &suspended, Some("Suspended Suspended: spec.suspend is true")),
        (&suspended, &suspended, None),
        (&running, &of(DriverPhase::Stopped), None),
        (&nothing, &waiting, None),
        (&waiting, &running, READY),
    ];
    for (number, (before, now, expected)) in rows.into_iter().enumerate() {
        assert_eq!(told(before, now).as_deref(), expected, "row {number}");
    }
}

#[test]
fn a_spec_that_cannot_be_used_is_told_beside_what_runs() {
    let running = driver(DriverPhase::Running);
    let problem = ConfigProblem {
        reason: ConditionReason::InvalidSpec,
        message: "spec.endpoint: no".to_owned(),
    };
    let invalid = fresh_with(Some(&running), |input| input.problem = Some(&problem));
    let expected =
        "Stalled InvalidSpec: spec.endpoint: no; its last valid settings are in use until this replica restarts";
    assert_eq!(told(&of(DriverPhase::Running), &invalid).as_deref(), Some(expected));
    assert_eq!(told(&invalid, &invalid), None);
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
    let wanted = two.last_reconcile_sync.unwrap().without_attachment;
    assert_eq!(now.last_reconcile_sync.unwrap().without_attachment, wanted);
}
