//! The Events of an attempt: how they are recorded, and those of its end; [`super::report`] has the others beside their lines of the log.

use std::collections::BTreeSet;
use std::time::Duration;

use super::super::context::DriverContext;
use super::shell::Shell;
use crate::cache::Snapshot;
use crate::clock;
use crate::decide::{Failure, NodeEntry, OwnedVolumeOnNode, grpc_code, is_final, shown_handle};
use crate::events::{EventReason, EventType, NewEvent, objects_of_attachment};
use crate::findings::FailureNote;
use crate::objects::Operation;
use csi_attacher_model::attempt::{FailureCause, Vanished};

pub(super) struct AttemptEvent {
    pub reason: EventReason,
    pub level: EventType,
    pub cause: &'static str,
    pub note: String,
}

impl AttemptEvent {
    pub const fn of(reason: EventReason, note: String) -> Self {
        Self {
            reason,
            level: reason.level(),
            cause: "",
            note,
        }
    }

    /// A detach that the driver did not confirm: a warning.
    pub const fn without_confirmation(cause: &'static str, note: String) -> Self {
        Self {
            reason: EventReason::Detached,
            level: EventType::Warning,
            cause,
            note,
        }
    }
}

/// The reason of an event about an attempt that failed.
fn reason_of(operation: Operation, failure: &Failure, cause: FailureCause) -> EventReason {
    match (operation, failure.code) {
        // The node takes no more volumes (CSI spec, "ControllerPublishVolume Errors").
        (Operation::Attach, Some(grpc_code::RESOURCE_EXHAUSTED)) => EventReason::LimitReached,
        (Operation::Attach, Some(code)) if !is_final(code) => EventReason::AttachUncertain,
        (Operation::Attach, _) if cause == FailureCause::NotRecorded => EventReason::AttachUncertain,
        (Operation::Attach, _) => EventReason::AttachFailed,
        (Operation::Detach, None) if matches!(cause, FailureCause::Missing(_)) => EventReason::DetachBlocked,
        (Operation::Detach, _) => EventReason::DetachFailed,
    }
}

/// An attach or detach came to its end.
pub(super) fn success_event(shell: &Shell<'_>, snapshot: &Snapshot, took: Duration) {
    let confirmed = shell.work.facts.capabilities.publish_unpublish;
    if snapshot.operation() == Operation::Detach && !confirmed {
        // Nobody detached it: see [`super::report`], `released`.
        return;
    }
    let (reason, verb) = match snapshot.operation() {
        Operation::Attach => (EventReason::Attached, "attached to"),
        Operation::Detach => (EventReason::Detached, "detached from"),
    };
    let (volume, node) = volume_and_node(snapshot);
    let (attempt, took) = (shell.number, took.as_secs_f64());
    let text = format!("{volume}: {verb} node {node} in attempt {attempt}, {took:.1} s after it was requested");
    record_traced(shell, snapshot, AttemptEvent::of(reason, text));
}

/// An attempt failed, for what `error.type` has as `kind`.
pub(super) fn failure_event(
    shell: &Shell<'_>,
    snapshot: &Snapshot,
    failure: &Failure,
    cause: FailureCause,
    kind: &'static str,
    delay: Duration,
) {
    let operation = snapshot.operation();
    let reason = reason_of(operation, failure, cause);
    let note = FailureNote {
        volume: snapshot.volume_handle(),
        attempt: shell.number,
        operation,
        node: &snapshot.attachment.node,
        // What the driver did is known where only the record of it is missing.
        uncertain: reason == EventReason::AttachUncertain && cause != FailureCause::NotRecorded,
        delay,
        message: &failure.message,
    };
    // The command that helps must not wait behind the event of a refusal before the node had another ID.
    let former = cause == FailureCause::FormerNode;
    let event = AttemptEvent {
        cause: if former { "former_node" } else { kind },
        ..AttemptEvent::of(reason, note.to_string())
    };
    record_traced(shell, snapshot, event);
}

/// A volume is detached from a node that is not there as it was when the volume was attached. The Event is written once for each detach: an
/// attempt may end before it is known from where the volume is detached.
pub(super) fn node_gone(shell: &Shell<'_>, snapshot: &Snapshot, places: &[OwnedVolumeOnNode]) {
    let ids: BTreeSet<&str> = places.iter().map(|place| place.borrow().node_id).collect();
    let known = match snapshot.node_entry(&shell.work.facts.name) {
        // Another volume that the PersistentVolume named is no matter of the node.
        NodeEntry::Registered(id) if ids.iter().all(|known| *known == id) => return,
        NodeEntry::Registered(_) => "came back with another node ID",
        NodeEntry::BlankId => "has a blank node ID for the driver",
        NodeEntry::WithoutDriver => "has no driver registered any more",
        NodeEntry::Missing => "has no CSINode any more",
    };
    if !shell.tells_node_gone() {
        return;
    }
    let ids: Vec<&str> = ids.into_iter().collect();
    let ((volume, node), ids) = (volume_and_node(snapshot), ids.join(", "));
    let text = format!("{volume}: node {node} {known}; detaching from {ids}");
    record_traced(shell, snapshot, AttemptEvent::of(EventReason::NodeGone, text));
}

/// A VolumeAttachment vanished during the attach.
pub(super) fn deleted_event(work: &DriverContext, snapshot: &Snapshot, traceparent: Option<String>, what: Vanished) {
    let reason = match what {
        Vanished::Detached => EventReason::Detached,
        _ => EventReason::DetachFailed,
    };
    let what = match what {
        Vanished::Detached => "the volume was detached again",
        Vanished::Stays => "the volume may still be there; detach it by hand",
        Vanished::LeaseLost => {
            "this replica lost the Lease, and no other one knows whether the volume is attached; if no pod of that node uses it, \
             detach it by hand"
        }
        Vanished::Unconfirmed => {
            "the API server did not confirm that it is gone, and the volume is left attached; if there is no such \
             VolumeAttachment, detach it by hand"
        }
        Vanished::MaybeInUse => "a pod may use the volume, which is left attached; if none does, detach it by hand",
    };
    let ((volume, node), name) = (volume_and_node(snapshot), &snapshot.attachment.name);
    let text = format!(
        "{volume}: VolumeAttachment {name} was deleted while the volume was being attached to node {node}; {what}"
    );
    let event = AttemptEvent {
        level: EventType::Warning,
        cause: "vanished",
        ..AttemptEvent::of(reason, text)
    };
    record_event(work, snapshot, event, traceparent);
}

/// An event about an attachment that belongs to no attempt.
pub(in crate::driver) fn record(work: &DriverContext, snapshot: &Snapshot, reason: EventReason, note: String) {
    record_event(work, snapshot, AttemptEvent::of(reason, note), None);
}

pub(super) fn record_traced(shell: &Shell<'_>, snapshot: &Snapshot, event: AttemptEvent) {
    record_event(shell.work, snapshot, event, shell.span.traceparent());
}

fn record_event(work: &DriverContext, snapshot: &Snapshot, event: AttemptEvent, traceparent: Option<String>) {
    work.context.events.record(NewEvent {
        driver: work.facts.name.clone(),
        reason: event.reason.as_str(),
        level: event.level,
        // A PersistentVolume and its claim may have many attachments, whose words would hide each other's.
        cause: format!("{} {}", snapshot.attachment.uid, event.cause).into(),
        note: event.note,
        traceparent,
        at: clock::now(),
        subjects: objects_of_attachment(snapshot),
    });
}

/// How Events name the volume and the node of an attachment. A handle may be longer than any Event, of which the end says who did what, and
/// why.
pub(super) fn volume_and_node(snapshot: &Snapshot) -> (String, &str) {
    let volume = match snapshot.volume_handle() {
        Some(handle) => format!("volume {}", shown_handle(handle)),
        None => "volume".to_owned(),
    };
    (volume, &snapshot.attachment.node)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::too_many_lines, reason = "a table")]
    fn reasons_of_failures() {
        let coded = |code| Failure {
            message: String::new(),
            code: Some(code),
        };
        let plain = Failure::plain("");
        for (operation, failure, cause, reason) in [
            (
                Operation::Attach,
                coded(8),
                FailureCause::Other,
                EventReason::LimitReached,
            ),
            (
                Operation::Attach,
                coded(4),
                FailureCause::Other,
                EventReason::AttachUncertain,
            ),
            (
                Operation::Attach,
                coded(14),
                FailureCause::Other,
                EventReason::AttachUncertain,
            ),
            (
                Operation::Attach,
                coded(5),
                FailureCause::Other,
                EventReason::AttachFailed,
            ),
            (
                Operation::Attach,
                plain.clone(),
                FailureCause::Missing("csinode_missing"),
                EventReason::AttachFailed,
            ),
            (
                Operation::Attach,
                plain.clone(),
                FailureCause::NotRecorded,
                EventReason::AttachUncertain,
            ),
            (
                Operation::Detach,
                coded(8),
                FailureCause::Other,
                EventReason::DetachFailed,
            ),
            (
                Operation::Detach,
                plain.clone(),
                FailureCause::Missing("secret_missing"),
                EventReason::DetachBlocked,
            ),
            (
                Operation::Detach,
                plain.clone(),
                FailureCause::Missing("pv_not_found"),
                EventReason::DetachBlocked,
            ),
            (
                Operation::Detach,
                plain.clone(),
                FailureCause::Missing("volume_shared"),
                EventReason::DetachBlocked,
            ),
            (
                Operation::Detach,
                plain.clone(),
                FailureCause::Other,
                EventReason::DetachFailed,
            ),
            (
                Operation::Detach,
                plain.clone(),
                FailureCause::Conflict,
                EventReason::DetachFailed,
            ),
        ] {
            assert_eq!(
                reason_of(operation, &failure, cause),
                reason,
                "{operation:?} {failure:?} {cause:?}"
            );
        }
    }
}
