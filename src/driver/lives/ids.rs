//! Trace contexts that follow from objects: our own and those of related lives, whoever worked on them.

use super::incoming;
use crate::api::validated::Tracing;
use crate::api::{AnnotationMode, TraceModel, names};
use crate::driver::report::Operation;
use crate::objects::Attachment;
use crate::store::Snapshot;
use crate::telemetry::lifecycle::epoch_of;
use crate::telemetry::trace::Tracer;
use crate::telemetry::{Identity, SpanContext, TraceId, w3c};

/// Detaches of the volume from other nodes that an attach is linked to.
const MOST_LEAVING: usize = 4;

/// The ids of an epoch, in the trace of somebody else if it adopted one.
pub(super) fn identity(operation: Operation, uid: &str, epoch: u32, adopted: Option<TraceId>) -> Identity {
    let own = Identity::derive(operation.as_str(), uid, epoch);
    Identity {
        trace_id: adopted.unwrap_or(own.trace_id),
        ..own
    }
}

pub(super) fn parent_of(incoming: &[SpanContext], tracing: &Tracing) -> Option<SpanContext> {
    let adopts = tracing.annotation_mode == AnnotationMode::Parent;
    incoming.first().filter(|_| adopts).cloned()
}

/// The root of a life that nobody works on in this process.
pub(super) fn derived(tracer: &Tracer, snapshot: &Snapshot, tracing: &Tracing) -> SpanContext {
    let operation = Operation::of(snapshot);
    let parent = parent_of(&incoming::contexts(snapshot, tracing, None), tracing);
    let adopted = parent.as_ref().map(SpanContext::trace_id);
    root_of(tracer, &snapshot.attachment, operation, adopted)
}

/// The epoch that our own annotation tells of; the first one without.
pub(super) fn known_epoch(attachment: &Attachment, operation: Operation, adopted: Option<TraceId>) -> u32 {
    let noted = attachment.trace_context.get(names::TRACEPARENT_ANNOTATION);
    let epoch = noted.and_then(|noted| epoch_of(noted, operation.as_str(), &attachment.uid, adopted));
    epoch.unwrap_or_default()
}

fn root_of(tracer: &Tracer, attachment: &Attachment, operation: Operation, adopted: Option<TraceId>) -> SpanContext {
    let epoch = known_epoch(attachment, operation, adopted);
    let own = identity(operation, &attachment.uid, epoch, adopted);
    own.context(tracer.samples(own.trace_id))
}

/// The trace of the attach that a detach undoes.
pub(super) fn attach_of(
    tracer: &Tracer,
    attachment: &Attachment,
    adopted: Option<TraceId>,
    model: TraceModel,
) -> Option<SpanContext> {
    match model {
        TraceModel::Lifecycle => Some(root_of(tracer, attachment, Operation::Attach, adopted)),
        // The ids of attempts are random, so that the annotation alone knows.
        TraceModel::Attempt => {
            let noted = attachment.trace_context.get(names::TRACEPARENT_ANNOTATION)?;
            w3c::parse(noted, None).ok().map(|parsed| parsed.context)
        }
    }
}

/// The detaches of the volume from other nodes that go on now.
pub(super) fn leaving(tracer: &Tracer, snapshot: &Snapshot, adopted: Option<TraceId>) -> Vec<SpanContext> {
    let elsewhere = snapshot.neighbours.elsewhere.iter();
    let leaving = elsewhere.filter(|other| other.deleting.is_some());
    leaving
        .take(MOST_LEAVING)
        .map(|other| root_of(tracer, other, Operation::Detach, adopted))
        .collect()
}
