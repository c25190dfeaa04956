//! What is reported of an attempt: spans, logs, Events, metrics and the driver's status.

use std::time::Duration;

use super::super::context::DriverContext;
use super::events::{self, AttemptEvent, record_traced, volume_and_node};
use super::shell::Shell;
use crate::api::names::NOT_ATTACHED_AT_ANNOTATION;
use crate::apiserver::{ApiError, ApiErrorKind};
use crate::cache::{AttacherKey, LANE_NAMES, Snapshot, VOLUME};
use crate::clock;
use crate::decide::patch::WriteTarget;
use crate::decide::{self, Failure, ReleaseRefusal, ReleaseWithoutCall, VolumeOnNode, shown_handle};
use crate::events::EventReason;
use crate::objects::Operation;
use crate::queue::Run;
use crate::telemetry::names::{self, attr, error_type};
use crate::telemetry::{Span, traced};
use crate::traces::{AttemptResult, describe};
use csi_attacher_model::attempt::{Attempt, FailureCause, LeaseLost, Note, Publish, Undone, Vanished};
use csi_attacher_runtime::report::{self, FailedAttempt};

/// A line of the log about the VolumeAttachment of the attempt, with the trace of that.
macro_rules! log_about {
    ($level:ident, $shell:expr, $($rest:tt)+) => {
        traced!(
            $level,
            $shell.span,
            driver = &*$shell.work.facts.name,
            VolumeAttachment = &*$shell.name,
            $($rest)+
        )
    };
}

/// The same with its volume and its node.
macro_rules! about {
    ($level:ident, $shell:expr, $snapshot:expr, $($rest:tt)+) => {
        log_about!(
            $level,
            $shell,
            volumeHandle = $snapshot.volume_handle(),
            node = &*$snapshot.attachment.node,
            $($rest)+
        )
    };
}

/// The same with a volume and a node by the names that the driver has for them.
macro_rules! place_about {
    ($level:ident, $shell:expr, $place:expr, $($rest:tt)+) => {
        log_about!($level, $shell, volumeHandle = $place.volume_id, nodeID = $place.node_id, $($rest)+)
    };
}

/// What the span of an attempt has from its start.
pub(in crate::driver) fn set_attempt_attributes(
    span: &mut Span,
    work: &DriverContext,
    run: &Run<AttacherKey>,
    attempt: u32,
    snapshot: &Snapshot,
) {
    if span.is_recording() {
        span.set(attr::OPERATION, snapshot.operation().as_str());
        describe(span, &work.facts.name, snapshot);
        if snapshot.attachment.finalizers.contains(&work.facts.finalizer) {
            span.set(attr::FINALIZER_ACTION, "present");
        }
        set_run_attributes(span, work, run, attempt);
    }
}

/// Reports what happened in an attempt, by the objects that it was decided from.
pub(super) fn report(shell: &mut Shell<'_>, attempt: &Attempt, about: Option<&Snapshot>, note: Note) {
    let note = match note {
        Note::Undo(undone) => return undo(shell, attempt, undone),
        Note::LeaseLost(lost) => return lease_lost(shell, lost),
        note => note,
    };
    // An attempt that takes back what a former engine left has decided nothing.
    let left = match about {
        Some(_) => None,
        None => shell.watched().map(|publish| publish.snapshot.clone()),
    };
    let Some(snapshot) = about.or(left.as_ref()) else {
        return;
    };
    match note {
        Note::NothingToDo(reason) => traced!(
            debug,
            shell.work.lifecycles.context_of(snapshot),
            driver = &*shell.work.facts.name,
            VolumeAttachment = &*shell.name,
            ?reason,
            "nothing to do"
        ),
        Note::Prepared(target) => prepared_write(shell, snapshot, &target),
        Note::Retracted(place, error) => retracted(shell, place.borrow(), error.as_deref()),
        Note::Detaches(places) => events::node_gone(shell, snapshot, &places),
        Note::Orphaned(place, answer) => orphaned(shell, snapshot, place.borrow(), &answer),
        Note::Confirmed(place) => confirmed(shell, snapshot, place.borrow()),
        Note::Detached => {
            if let Some(lifecycle) = &shell.lifecycle {
                lifecycle.lock().confirmed = true;
            }
        }
        Note::Succeeded(about) => success(shell, &about),
        Note::Repaired => repaired(shell, snapshot),
        Note::Released(about) => released(shell, &about),
        Note::ReleasedOnRequest(request, basis) => released_on_request(shell, snapshot, &request, basis),
        Note::ReleaseRefused(refusal) => release_refused(shell, snapshot, &refusal),
        Note::AnswerNotSaved(failure) => answer_not_saved(shell, &failure),
        Note::Failed { about, failure, cause } => failed(shell, &about, &failure, cause),
        Note::UpkeepFailed(about, failure) => upkeep_failed(shell, &about, &failure),
        Note::FailureNotSaved(error) => failure_not_saved(shell, &error),
        Note::CapabilityMissed => shell.work.capability_missed.notify_one(),
        Note::RecordBegins | Note::RecordKnown | Note::Undo(_) | Note::LeaseLost(_) => {}
    }
}

/// What became of a Publish whose VolumeAttachment may be gone.
fn undo(shell: &mut Shell<'_>, attempt: &Attempt, undone: Undone) {
    let Some(publish) = attempt.publish().or(shell.watched()) else {
        return;
    };
    match undone {
        Undone::CannotRead(error, pause) => log_about!(
            warn, shell, %error,
            next_try_seconds = pause.as_secs(), "cannot find out whether the VolumeAttachment was deleted"
        ),
        Undone::IsThere => {
            log_about!(
                info,
                shell,
                "the VolumeAttachment is there, though it was believed to be gone"
            );
            let lists = shell.work.context.store.lists();
            lists.doubt("a VolumeAttachment that was believed to be gone is there");
        }
        Undone::CreatedAgain => log_about!(
            info,
            shell,
            "the VolumeAttachment was created again, and its volume is attached for it"
        ),
        Undone::CannotDetach(failure, pause) => log_about!(
            warn,
            shell,
            volumeHandle = publish.place.borrow().volume_id,
            error = failure.message,
            next_try_seconds = pause.as_secs(),
            "cannot detach the volume of a deleted VolumeAttachment"
        ),
        Undone::Vanished(what) => vanished(shell, publish, what),
    }
}

/// The VolumeAttachment of a Publish is gone, or seems to be.
fn vanished(shell: &Shell<'_>, publish: &Publish, what: Vanished) {
    let place = publish.place.borrow();
    let left = match what {
        Vanished::Detached | Vanished::LeaseLost => None,
        Vanished::Stays => Some(
            "giving up: the volume may still be attached although its VolumeAttachment was deleted; detach it by hand",
        ),
        Vanished::Unconfirmed => Some(
            "the VolumeAttachment seems to be gone and the API server does not confirm it: the volume, which is \
             attached, is left alone; if there is no such VolumeAttachment, detach the volume by hand",
        ),
        Vanished::MaybeInUse => Some(
            "the VolumeAttachment is gone and may have been recorded as attached: the volume, which a pod may use, is \
             left alone; if no pod of that node uses it, detach the volume by hand",
        ),
    };
    if let Some(why) = left {
        place_about!(error, shell, place, "{why}");
    } else if what == Vanished::Detached {
        log_about!(
            warn,
            shell,
            volumeHandle = place.volume_id,
            "the VolumeAttachment was deleted while its volume was being attached; detached the volume again"
        );
    }
    events::deleted_event(shell.work, &publish.snapshot, shell.span.traceparent(), what);
}

/// Nothing failed: others may work for the driver by now, or the connection took no more calls.
fn lease_lost(shell: &mut Shell<'_>, lost: LeaseLost) {
    match lost {
        LeaseLost::NotStarted => log_about!(debug, shell, "{lost}"),
        LeaseLost::Cancelled => {
            log_about!(warn, shell, "{lost}");
            shell.span.fail(error_type::SHUTDOWN, &lost.to_string());
        }
    }
}

/// The driver was asked to take a volume back from the place of an earlier attempt.
fn retracted(shell: &Shell<'_>, place: VolumeOnNode<'_>, error: Option<&str>) {
    if let Some(error) = error {
        place_about!(
            warn,
            shell,
            place,
            error,
            "could not unpublish the volume from the node of an earlier attempt"
        );
    } else {
        place_about!(
            info,
            shell,
            place,
            "unpublished the volume from the node of an earlier attempt"
        );
    }
}

/// That the API server is out of order, or the object is gone, is reported elsewhere.
fn failure_not_saved(shell: &Shell<'_>, error: &ApiError) {
    if error.is_refused() || error.kind == ApiErrorKind::NotKept {
        log_about!(warn, shell, %error, "could not save the error on the VolumeAttachment");
    } else {
        log_about!(debug, shell, %error, "could not save the error on the VolumeAttachment");
    }
}

/// A VolumeAttachment was let go without the driver's confirmation, as a person asked. The Event is the record of who did so and why.
fn released_on_request(shell: &mut Shell<'_>, snapshot: &Snapshot, request: &str, basis: &'static str) {
    let (volume, node) = volume_and_node(snapshot);
    let text =
        format!("{volume}: released from node {node} without the driver's confirmation, because {basis}; {request}");
    record_traced(shell, snapshot, AttemptEvent::of(EventReason::Released, text));
    shell.span.set(attr::FINALIZER_ACTION, "removed");
    shell.ended = AttemptResult::Succeeded;
    about!(
        warn,
        shell,
        snapshot,
        request,
        basis,
        "released without the driver's confirmation, as a person asked"
    );
}

/// A release that a person asked for was refused.
fn release_refused(shell: &Shell<'_>, snapshot: &Snapshot, refusal: &ReleaseRefusal) {
    let (volume, node) = volume_and_node(snapshot);
    let text = format!("{volume}: not released from node {node} on request: {refusal}");
    let event = AttemptEvent {
        cause: refusal.reason(),
        ..AttemptEvent::of(EventReason::ReleaseRefused, text)
    };
    record_traced(shell, snapshot, event);
    about!(
        warn,
        shell,
        snapshot,
        reason = refusal.reason(),
        %refusal,
        "not released on request"
    );
}

/// The request is judged again in the next attempt, and the driver is asked to detach all the same.
fn answer_not_saved(shell: &Shell<'_>, failure: &Failure) {
    log_about!(
        warn,
        shell,
        error = &*failure.message,
        "the VolumeAttachment does not show the answer"
    );
}

/// A write on the way to the call was made: that of the VolumeAttachment adds our finalizer, if it was not there.
fn prepared_write(shell: &mut Shell<'_>, snapshot: &Snapshot, target: &WriteTarget) {
    let (facts, attachment) = (&shell.work.facts, &snapshot.attachment);
    if let Some(run) = shell.run.filter(|run| run.lane == VOLUME) {
        // What is attached has all that it needs, unless somebody took it away, and does so again.
        shell.work.queue.count_put_back(run);
    }
    let held = attachment.finalizers.contains(&facts.finalizer);
    if matches!(target, WriteTarget::Attachment(_)) && !held {
        shell.span.set(attr::FINALIZER_ACTION, "added");
        if decide::has_lost_finalizer(attachment, &facts.finalizer) {
            log_about!(
                warn,
                shell,
                node = &*attachment.node,
                "somebody took the finalizer off a VolumeAttachment whose volume is or may be attached; it was put back"
            );
        }
    }
}

/// The number of an attempt, and attributes of the queue's part in it.
pub(in crate::driver) fn set_run_attributes(
    span: &mut Span,
    work: &DriverContext,
    run: &Run<AttacherKey>,
    attempt: u32,
) {
    report::set_run_attributes(span, run, LANE_NAMES);
    span.set(attr::ATTEMPT, attempt);
    let age = work.context.store.age(&run.key).unwrap_or_default();
    span.set(attr::INFORMER_AGE, age.as_secs_f64());
}

/// An attach or detach came to its end.
fn success(shell: &mut Shell<'_>, snapshot: &Snapshot) {
    let operation = snapshot.operation();
    let attachment = &snapshot.attachment;
    let took = attachment.pending_since().map(clock::since).unwrap_or_default();
    if operation == Operation::Detach && attachment.finalizers.contains(&shell.work.facts.finalizer) {
        shell.span.set(attr::FINALIZER_ACTION, "removed");
    }
    let driver = &*shell.work.facts.name;
    let attempts = shell.number;
    shell.work.context.metrics.operation_ended(
        driver,
        operation.as_str(),
        "succeeded",
        took,
        attempts,
        shell.span.ids(),
    );
    events::success_event(shell, snapshot, took);
    shell.ended = AttemptResult::Succeeded;
    about!(info, shell, snapshot, attempt = attempts, "{}ed", operation.as_str());
}

/// What was attached was published once more, or what was detached was taken back once more. It is counted, and becomes an Event, where
/// ListVolumes is compared.
fn repaired(shell: &mut Shell<'_>, snapshot: &Snapshot) {
    shell.ended = AttemptResult::Succeeded;
    about!(info, shell, snapshot, "{}ed again", snapshot.operation().as_str());
}

/// An attempt failed and will be made again. Logged once, here.
fn failed(shell: &mut Shell<'_>, snapshot: &Snapshot, failure: &Failure, cause: FailureCause) {
    let (operation, name) = (snapshot.operation(), &*snapshot.attachment.name);
    let code = failure.code.map(tonic::Code::from);
    // Spans have the names of the semantic conventions, all else has those of the message on the attachment.
    let kind = code.map_or(cause.as_str(), names::code_upper_snake);
    let delay = shell.retry_delay();
    let failed = FailedAttempt {
        operation: operation.as_str(),
        subject: name,
        kind,
        code: failure.code,
        message: &failure.message,
        delay: Some(delay),
        is_news: true,
    };
    let reason = failed.tell(shell.work, &shell.work.context.metrics, &mut shell.span);
    events::failure_event(shell, snapshot, failure, cause, kind, delay);
    shell.ended = AttemptResult::Failed(kind);
    traced!(
        warn,
        shell.span,
        event.name = code.map(|_| names::CALL_EXCEPTION),
        driver = &*shell.work.facts.name,
        VolumeAttachment = name,
        volumeHandle = snapshot.volume_handle(),
        node = &*snapshot.attachment.node,
        nodeID = snapshot.node_id(&shell.work.facts.name),
        attempt = shell.number,
        code = reason,
        error = failure.message,
        next_try_seconds = delay.as_secs_f64(),
        "{} failed",
        operation.as_str()
    );
}

/// What is attached stays so. An operator that takes over thousands of attachments may be refused each, so that only the status of the
/// driver says it, but for what is lost with its deletion.
fn upkeep_failed(shell: &mut Shell<'_>, snapshot: &Snapshot, failure: &Failure) {
    let (name, kind) = (&*snapshot.attachment.name, FailureCause::Other.as_str());
    let failed = FailedAttempt {
        operation: snapshot.operation().as_str(),
        subject: name,
        kind,
        code: None,
        message: &failure.message,
        delay: Some(shell.retry_delay()),
        is_news: true,
    };
    failed.show(shell.work, &mut shell.span);
    let (node, attempt) = (&*snapshot.attachment.node, shell.number);
    let error = &*failure.message;
    if decide::has_lost_finalizer(&snapshot.attachment, &shell.work.facts.finalizer) {
        log_about!(
            warn,
            shell,
            node,
            attempt,
            error,
            "the finalizer of a VolumeAttachment that is attached cannot be put back: once it is deleted, nobody detaches the volume"
        );
    } else {
        log_about!(
            debug,
            shell,
            node,
            attempt,
            error,
            "the volume of what is attached cannot be protected or noted"
        );
    }
}

/// An attach waits for what is done about its volume at another node, by or for the attachment `other`: the volume is being
/// "detached from" or "attached to" it.
pub(in crate::driver) fn report_detach_wait(
    work: &DriverContext,
    snapshot: &Snapshot,
    other: &str,
    done: &str,
    rest: Duration,
) {
    traced!(
        debug,
        work.lifecycles.context_of(snapshot),
        driver = &*work.facts.name,
        VolumeAttachment = &*snapshot.attachment.name,
        waits_for = other,
        longest_seconds = rest.as_secs_f64(),
        "the volume is being {done} another node; waiting for that"
    );
}

/// An attachment that may have been published was let go without a call.
fn released(shell: &mut Shell<'_>, snapshot: &Snapshot) {
    let says = match shell.work.facts.release {
        ReleaseWithoutCall::AttachNotRequired => "the CSIDriver has attachRequired: false",
        _ => "confirmed by the annotation attacher.csi.dev/confirm-capability-lost",
    };
    let ((volume, node), driver) = (volume_and_node(snapshot), &shell.work.facts.name);
    let text = format!(
        "{volume}: released from node {node} without ControllerUnpublishVolume, which driver {driver} does not have any more: {says}"
    );
    let event = AttemptEvent::without_confirmation("capability_lost", text);
    record_traced(shell, snapshot, event);
    about!(
        warn,
        shell,
        snapshot,
        says,
        "released without ControllerUnpublishVolume, which the driver does not have any more"
    );
}

/// A former place that is left out of a detach, as a person confirmed that the volume is not there.
fn confirmed(shell: &mut Shell<'_>, snapshot: &Snapshot, place: VolumeOnNode<'_>) {
    let (volume, node, id) = (
        shown_handle(place.volume_id),
        &snapshot.attachment.node,
        shown_handle(place.node_id),
    );
    let text = format!(
        "volume {volume}: not detached from node {node} (ID {id}), a former place: the annotation {NOT_ATTACHED_AT_ANNOTATION} says \
         that it is not attached there"
    );
    record_traced(shell, snapshot, AttemptEvent::without_confirmation("confirmed", text));
    place_about!(
        warn,
        shell,
        place,
        "not detached at a former node ID: the annotation attacher.csi.dev/not-attached-at says that the volume is not there"
    );
}

/// A detach whose volume or node the driver does not know, which counts as detached by the policy of the AttacherConfig.
fn orphaned(shell: &mut Shell<'_>, snapshot: &Snapshot, place: VolumeOnNode<'_>, answer: &Failure) {
    let ((volume, node), id) = (volume_and_node(snapshot), shown_handle(place.node_id));
    let text = format!(
        "{volume}: the driver does not find it or node {node} (ID {id}); treated as detached because of spec.orphanPolicy of the \
         AttacherConfig: {}",
        answer.message
    );
    record_traced(shell, snapshot, AttemptEvent::without_confirmation("orphaned", text));
    place_about!(
        warn,
        shell,
        place,
        error = answer.message,
        "the driver does not find the volume or the node; treated as detached because of spec.orphanPolicy"
    );
}
