//! What is told to people as events: which reason, and in which words.

use std::time::Duration;

use super::attempt::Attempt;
use super::engine::Work;
use super::report::{Cause, Operation, volume_handle};
use crate::api::names::NOT_ATTACHED_AT_ANNOTATION;
use crate::clock;
use crate::decide::reconcile::{Expectation, Wanted};
use crate::decide::{Failure, Place, is_final};
use crate::events::{Level, Occurrence, Reason, subjects};
use crate::store::Snapshot;

/// gRPC status RESOURCE_EXHAUSTED: the node takes no more volumes (CSI spec, "ControllerPublishVolume Errors").
const RESOURCE_EXHAUSTED: i32 = 8;

/// What is told.
struct News {
    reason: Reason,
    level: Level,
    cause: &'static str,
    note: String,
}

impl News {
    /// What has one cause only.
    const fn of(reason: Reason, note: String) -> Self {
        Self {
            reason,
            level: reason.level(),
            cause: "",
            note,
        }
    }
}

/// The reason of an event about an attempt that failed.
pub(super) fn reason_of(operation: Operation, failure: &Failure, cause: Cause) -> Reason {
    match (operation, failure.code) {
        (Operation::Attach, Some(RESOURCE_EXHAUSTED)) => Reason::LimitReached,
        (Operation::Attach, Some(code)) if !is_final(code) => Reason::AttachUncertain,
        (Operation::Attach, _) => Reason::AttachFailed,
        (Operation::Detach, None) if matches!(cause, Cause::Missing(_)) => Reason::DetachBlocked,
        (Operation::Detach, _) => Reason::DetachFailed,
    }
}

/// An attach or detach came to its end.
pub(super) fn succeeded(attempt: &Attempt<'_>, snapshot: &Snapshot, took: Duration) {
    let confirmed = attempt.work.facts.capabilities.publish_unpublish;
    if Operation::of(snapshot) == Operation::Detach && !confirmed {
        // Nobody detached it: see [`released`].
        return;
    }
    let (reason, verb) = match Operation::of(snapshot) {
        Operation::Attach => (Reason::Attached, "attached to"),
        Operation::Detach => (Reason::Detached, "detached from"),
    };
    let note = format!(
        "{}: {verb} node {} in attempt {}, {:.1} s after it was requested",
        volume(snapshot),
        snapshot.attachment.node,
        attempt.run.attempt(),
        took.as_secs_f64()
    );
    tell(attempt, snapshot, News::of(reason, note));
}

/// An attempt failed, for what `error.type` has as `kind`.
pub(super) fn failed(
    attempt: &Attempt<'_>,
    snapshot: &Snapshot,
    failure: &Failure,
    cause: Cause,
    kind: &'static str,
    delay: Duration,
) {
    let operation = Operation::of(snapshot);
    let reason = reason_of(operation, failure, cause);
    let direction = match operation {
        Operation::Attach => "to attach it to",
        Operation::Detach => "to detach it from",
    };
    let doubt = match reason {
        Reason::AttachUncertain => "; the call may still be in progress and the volume may be attached",
        _ => "",
    };
    let note = format!(
        "{}: attempt {} {direction} node {} failed{doubt}; retrying in {}: {}",
        volume(snapshot),
        attempt.run.attempt(),
        snapshot.attachment.node,
        seconds(delay),
        failure.message
    );
    let news = News {
        cause: kind,
        ..News::of(reason, note)
    };
    tell(attempt, snapshot, news);
}

/// A volume is detached from a node that is not there as it was when the volume was attached. Told in the first attempt.
pub(super) fn node_gone(attempt: &Attempt<'_>, snapshot: &Snapshot, places: &[Place<'_>]) {
    if attempt.run.attempt() > 1 {
        return;
    }
    let driver = &*attempt.work.facts.name;
    let name = &snapshot.attachment.node;
    let registered = snapshot.node.as_ref().and_then(|node| node.node_id(driver));
    let known = match (registered, places) {
        (Some(_), [_]) => return,
        (Some(_), _) => "came back with another node ID",
        (None, _) if snapshot.node.is_some() => "has no driver registered any more",
        (None, _) => "has no CSINode any more",
    };
    let ids: Vec<&str> = places.iter().map(|place| place.node_id).collect();
    let note = format!(
        "{}: node {name} {known}; detaching from {}",
        volume(snapshot),
        ids.join(", ")
    );
    tell(attempt, snapshot, News::of(Reason::NodeGone, note));
}

/// NOT_FOUND was taken for success, as the AttacherConfig asks.
pub(super) fn orphaned(attempt: &Attempt<'_>, snapshot: &Snapshot, place: Place<'_>, answer: &Failure) {
    let note = format!(
        "{}: the driver does not find it or node {} (ID {}); treated as detached because of spec.orphanPolicy of the \
         AttacherConfig: {}",
        volume(snapshot),
        snapshot.attachment.node,
        place.node_id,
        answer.message
    );
    let news = News {
        level: Level::Warning,
        cause: "orphaned",
        ..News::of(Reason::Detached, note)
    };
    tell(attempt, snapshot, news);
}

/// An attachment that may have been published was let go without a call, as `says` has it.
pub(super) fn released(attempt: &Attempt<'_>, snapshot: &Snapshot, says: &str) {
    let note = format!(
        "{}: released from node {} without ControllerUnpublishVolume, which driver {} does not have any more: {says}",
        volume(snapshot),
        snapshot.attachment.node,
        attempt.work.facts.name,
    );
    let news = News {
        level: Level::Warning,
        cause: "capability_lost",
        ..News::of(Reason::Detached, note)
    };
    tell(attempt, snapshot, news);
}

/// A former place was left out of a detach, as a person confirmed.
pub(super) fn confirmed(attempt: &Attempt<'_>, snapshot: &Snapshot, place: Place<'_>) {
    let note = format!(
        "volume {}: not detached at the former ID {} of node {}: the annotation {NOT_ATTACHED_AT_ANNOTATION} says that it is \
         not attached there",
        place.volume_id, place.node_id, snapshot.attachment.node
    );
    let news = News {
        level: Level::Warning,
        cause: "confirmed",
        ..News::of(Reason::Detached, note)
    };
    tell(attempt, snapshot, news);
}

/// What became of a volume whose VolumeAttachment vanished during the attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Vanished {
    /// It was detached again.
    Detached,
    /// The driver did not detach it.
    Stays,
    /// It was left alone, because the API server did not confirm that the VolumeAttachment is gone.
    Unconfirmed,
}

/// A VolumeAttachment vanished during the attach.
pub(super) fn vanished(attempt: &Attempt<'_>, snapshot: &Snapshot, what: Vanished) {
    let (reason, what) = match what {
        Vanished::Detached => (Reason::Detached, "the volume was detached again"),
        Vanished::Stays => (Reason::DetachFailed, "the volume may still be there; detach it by hand"),
        Vanished::Unconfirmed => (
            Reason::DetachFailed,
            "the API server did not confirm that it is gone, and the volume is left attached; if there is no such \
             VolumeAttachment, detach it by hand",
        ),
    };
    let note = format!(
        "{}: VolumeAttachment {} was deleted while the volume was being attached to node {}; {what}",
        volume(snapshot),
        snapshot.attachment.name,
        snapshot.attachment.node
    );
    let news = News {
        level: Level::Warning,
        cause: "vanished",
        ..News::of(reason, note)
    };
    tell(attempt, snapshot, news);
}

/// Two listings in a row contradict an attachment; it is attached or detached once more.
pub(super) fn mismatch(work: &Work, expected: &Expectation) {
    let (handle, node_id) = (&expected.handle, &expected.node_id);
    let note = match expected.wanted {
        Wanted::Here => format!(
            "volume {handle}: the driver does not list it at the node with ID {node_id}, where it is attached; it is attached \
             again"
        ),
        Wanted::Gone => format!(
            "volume {handle}: the driver still lists it at the node with ID {node_id}, from where it was detached; it is \
             detached again"
        ),
    };
    compared(work, expected, Reason::AttachmentMismatch, note);
}

/// The driver lists a volume as it should, after it did not.
pub(super) fn repaired(work: &Work, expected: &Expectation) {
    let (handle, node_id) = (&expected.handle, &expected.node_id);
    let note = match expected.wanted {
        Wanted::Here => format!("volume {handle}: the driver lists it at the node with ID {node_id} again"),
        Wanted::Gone => format!("volume {handle}: the driver does not list it at the node with ID {node_id} any more"),
    };
    compared(work, expected, Reason::AttachmentRepaired, note);
}

fn compared(work: &Work, expected: &Expectation, reason: Reason, note: String) {
    let known = work.context.store.attachment(&expected.name);
    if let Some(snapshot) = known.filter(|known| known.attachment.uid == expected.uid) {
        record(work, &snapshot, News::of(reason, note), None);
    }
}

fn tell(attempt: &Attempt<'_>, snapshot: &Snapshot, news: News) {
    record(attempt.work, snapshot, news, attempt.span.traceparent());
}

fn record(work: &Work, snapshot: &Snapshot, news: News, traceparent: Option<String>) {
    work.context.events.record(Occurrence {
        driver: work.facts.name.clone(),
        reason: news.reason,
        level: news.level,
        cause: news.cause.into(),
        note: news.note,
        traceparent,
        at: clock::now(),
        subjects: subjects(snapshot),
    });
}

fn volume(snapshot: &Snapshot) -> String {
    volume_handle(snapshot).map_or_else(|| "volume".to_owned(), |handle| format!("volume {handle}"))
}

fn seconds(delay: Duration) -> String {
    format!("{:.1} s", delay.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_of_failures() {
        let coded = |code| Failure {
            message: String::new(),
            code: Some(code),
        };
        let plain = Failure::plain("");
        for (operation, failure, cause, reason) in [
            (Operation::Attach, coded(8), Cause::Other, Reason::LimitReached),
            (Operation::Attach, coded(4), Cause::Other, Reason::AttachUncertain),
            (Operation::Attach, coded(14), Cause::Other, Reason::AttachUncertain),
            (Operation::Attach, coded(5), Cause::Other, Reason::AttachFailed),
            (
                Operation::Attach,
                plain.clone(),
                Cause::Missing("csinode_missing"),
                Reason::AttachFailed,
            ),
            (Operation::Detach, coded(8), Cause::Other, Reason::DetachFailed),
            (
                Operation::Detach,
                plain.clone(),
                Cause::Missing("secret_missing"),
                Reason::DetachBlocked,
            ),
            (
                Operation::Detach,
                plain.clone(),
                Cause::Missing("pv_not_found"),
                Reason::DetachBlocked,
            ),
            (
                Operation::Detach,
                plain.clone(),
                Cause::Missing("volume_shared"),
                Reason::DetachBlocked,
            ),
            (Operation::Detach, plain.clone(), Cause::Other, Reason::DetachFailed),
            (Operation::Detach, plain.clone(), Cause::Conflict, Reason::DetachFailed),
        ] {
            assert_eq!(
                reason_of(operation, &failure, cause),
                reason,
                "{operation:?} {failure:?} {cause:?}"
            );
        }
    }
}
