//! What is reported of an attempt: spans, logs, metrics and the driver's status.

use jiff::Timestamp;
use std::time::Duration;

use super::super::context::DriverContext;
use super::super::queue_metrics::queue_name;
use super::cause::FailureCause;
use super::events;
use super::state::Attempt;
use crate::cache::{self, AttacherKey, Snapshot};
use crate::clock;
use crate::decide::patch::WriteTarget;
use crate::decide::{Failure, ReleaseWithoutCall, VolumeOnNode};
use crate::objects::Operation;
use crate::queue::{Run, Trigger};
use crate::telemetry::Span;
use crate::telemetry::names::{self, attr};
use crate::traces::{AttemptResult, attributes};
use csi_attacher_runtime::state::FailureRecord;

/// What the span of an attempt has from its start.
pub(in crate::driver) fn set_attempt_attributes(
    span: &mut Span,
    work: &DriverContext,
    run: &Run<AttacherKey>,
    snapshot: &Snapshot,
) {
    if span.is_recording() {
        span.set(attr::OPERATION, snapshot.operation().as_str());
        attributes::describe(span, &work.facts.name, snapshot);
        if snapshot.attachment.finalizers.contains(&work.facts.finalizer) {
            span.set(attr::FINALIZER_ACTION, "present");
        }
        set_run_attributes(span, work, run);
    }
}

/// A write on the way to the call was made: that of the VolumeAttachment adds our finalizer, if it was not there.
pub(in crate::driver) fn report_prepared_write(attempt: &mut Attempt<'_>, snapshot: &Snapshot, target: &WriteTarget) {
    let held = snapshot.attachment.finalizers.contains(&attempt.work.facts.finalizer);
    if matches!(target, WriteTarget::Attachment(_)) && !held {
        attempt.span.set(attr::FINALIZER_ACTION, "added");
    }
}

/// Attributes of the queue's part in an attempt.
pub(in crate::driver) fn set_run_attributes(span: &mut Span, work: &DriverContext, run: &Run<AttacherKey>) {
    span.set(attr::ATTEMPT, i64::from(run.attempt()));
    span.set(attr::QUEUE_NAME, queue_name(run.lane()));
    span.set(attr::TRIGGER, trigger(run));
    span.set(attr::QUEUE_WAIT, run.waited().as_secs_f64());
    span.set(attr::QUEUE_RETRIES, i64::from(run.failures()));
    let age = work.context.store.age(run.key()).unwrap_or_default();
    span.set(attr::INFORMER_AGE, age.as_secs_f64());
    span.set(attr::PERMIT_WAIT, run.waited_for_limit().as_secs_f64());
}

/// Why an attempt is made, as `attacher.trigger` has it.
fn trigger(run: &Run<AttacherKey>) -> &'static str {
    let cause = match run.trigger() {
        Trigger::Event | Trigger::Wake => cache::EnqueueCause::of(run.cause()),
        Trigger::Retry => cache::EnqueueCause::Retry,
        Trigger::Again => cache::EnqueueCause::Resync,
    };
    cause.as_str()
}

/// An attach or detach came to its end.
pub(in crate::driver) fn report_success(attempt: &mut Attempt<'_>, snapshot: &Snapshot) {
    let operation = snapshot.operation();
    let attachment = &snapshot.attachment;
    let start = match operation {
        Operation::Attach => attachment.created,
        Operation::Detach => attachment.deleting,
    };
    let took = start.map(clock::since).unwrap_or_default();
    if operation == Operation::Detach {
        attempt.span.set(attr::FINALIZER_ACTION, "removed");
    }
    let driver = &*attempt.work.facts.name;
    let attempts = attempt.run.attempt();
    attempt.work.context.metrics.operation_ended(
        driver,
        operation.as_str(),
        "succeeded",
        took,
        attempts,
        attempt.span.ids(),
    );
    events::success_event(attempt, snapshot, took);
    attempt.ended = AttemptResult::Succeeded;
    traced!(
        info,
        attempt.span,
        driver,
        VolumeAttachment = &*attachment.name,
        volumeHandle = snapshot.volume_handle(),
        node = &*attachment.node,
        attempt = attempts,
        "{}ed",
        operation.as_str()
    );
}

/// An attempt failed and will be made again. Logged once, here.
pub(in crate::driver) fn report_failure(
    attempt: &mut Attempt<'_>,
    snapshot: &Snapshot,
    failure: &Failure,
    cause: FailureCause,
) {
    let (operation, name) = (snapshot.operation(), &*snapshot.attachment.name);
    let code = failure.code.map(tonic::Code::from);
    // Spans have the names of the semantic conventions, all else has those of the message on the attachment.
    let kind = code.map_or(cause.as_str(), names::code_upper_snake);
    let reason = code.map_or(names::cause_camel_case(cause.as_str()), names::code_camel_case);
    let metrics = &attempt.work.context.metrics;
    metrics.attempt_failed(&attempt.work.facts.name, operation.as_str(), reason);
    let delay = attempt.run.retry_delay();
    attempt.span.set(attr::RETRY_DELAY, delay.as_secs_f64());
    attempt.span.fail(kind, description(failure));
    let trace_id = attempt.span.trace_id();
    events::failure_event(attempt, snapshot, failure, cause, kind, delay);
    attempt.ended = AttemptResult::Failed(kind);
    traced!(
        warn,
        attempt.span,
        // The name that the semantic conventions have for what was an exception of a call.
        event.name = code.map(|_| "rpc.client.call.exception"),
        driver = &*attempt.work.facts.name,
        VolumeAttachment = name,
        volumeHandle = snapshot.volume_handle(),
        node = &*snapshot.attachment.node,
        nodeID = snapshot.node_id(&attempt.work.facts.name),
        attempt = attempt.run.attempt(),
        code = reason,
        error = failure.message,
        next_try_seconds = delay.as_secs_f64(),
        "{} failed",
        operation.as_str()
    );
    attempt.work.publisher.failure(FailureRecord {
        at: whole_seconds(clock::now()),
        attachment: name.to_owned(),
        operation: operation.as_str(),
        code: reason.to_owned(),
        message: failure.message.clone(),
        trace_id,
    });
}

/// The driver's words alone: on a span the code stands beside them as `error.type` and is not to be repeated.
fn description(failure: &Failure) -> &str {
    match (failure.code, failure.message.split_once(" desc = ")) {
        (Some(_), Some((_, words))) => words,
        _ => &failure.message,
    }
}

fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
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
pub(in crate::driver) fn released(attempt: &mut Attempt<'_>, snapshot: &Snapshot) {
    let says = match attempt.work.facts.release {
        ReleaseWithoutCall::AttachNotRequired => "the CSIDriver has attachRequired: false",
        _ => "confirmed by the annotation attacher.csi.dev/confirm-capability-lost",
    };
    events::released(attempt, snapshot, says);
    traced!(
        warn,
        attempt.span,
        driver = &*attempt.work.facts.name,
        VolumeAttachment = &*snapshot.attachment.name,
        volumeHandle = snapshot.volume_handle(),
        node = &*snapshot.attachment.node,
        says,
        "released without ControllerUnpublishVolume, which the driver does not have any more"
    );
}

/// A former place that is left out of a detach, as a person confirmed that the volume is not there.
pub(in crate::driver) fn confirmed(attempt: &mut Attempt<'_>, snapshot: &Snapshot, place: VolumeOnNode<'_>) {
    events::confirmed(attempt, snapshot, place);
    traced!(
        warn,
        attempt.span,
        driver = &*attempt.work.facts.name,
        VolumeAttachment = &*snapshot.attachment.name,
        volumeHandle = place.volume_id,
        nodeID = place.node_id,
        "not detached at a former node ID: the annotation attacher.csi.dev/not-attached-at says that the volume is not there"
    );
}

/// A detach whose volume or node the driver does not know, which counts as detached by the policy of the AttacherConfig.
pub(in crate::driver) fn report_orphaned(
    attempt: &mut Attempt<'_>,
    snapshot: &Snapshot,
    place: VolumeOnNode<'_>,
    answer: &Failure,
) {
    events::orphaned(attempt, snapshot, place, answer);
    traced!(
        warn,
        attempt.span,
        driver = &*attempt.work.facts.name,
        VolumeAttachment = &*snapshot.attachment.name,
        volumeHandle = place.volume_id,
        nodeID = place.node_id,
        error = answer.message,
        "the driver does not find the volume or the node; treated as detached because of spec.orphanPolicy"
    );
}
