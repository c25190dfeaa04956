//! Trace contexts that follow from objects: our own and those of related lifecycles, of this replica or another.

use crate::api::names;
use crate::cache::Snapshot;
use crate::objects::{Attachment, Operation};
use crate::telemetry::lifecycle::epoch_of;
use crate::telemetry::trace::Tracer;
use crate::telemetry::{SpanContext, TraceIdentity};

/// Detaches of the volume from other nodes that an attach is linked to.
const MOST_LEAVING: usize = 4;

/// The epoch in our own annotation; the first one without an annotation.
pub(super) fn known_epoch(attachment: &Attachment, operation: Operation) -> u32 {
    let noted = attachment.trace_context.get(names::TRACEPARENT_ANNOTATION);
    let other = match operation {
        Operation::Attach => Operation::Detach,
        Operation::Detach => Operation::Attach,
    };
    let epoch = noted.and_then(|noted| epoch_of(noted, operation.as_str(), other.as_str(), &attachment.uid));
    epoch.unwrap_or_default()
}

/// The root of a lifecycle, of this replica or another.
pub(super) fn root_of(tracer: &Tracer, attachment: &Attachment, operation: Operation) -> SpanContext {
    let epoch = known_epoch(attachment, operation);
    let own = TraceIdentity::derive(operation.as_str(), &attachment.uid, epoch);
    own.context(tracer.samples(own.trace_id))
}

/// The detaches of the volume from other nodes that go on now.
pub(super) fn active_detaches(tracer: &Tracer, snapshot: &Snapshot) -> Vec<SpanContext> {
    let elsewhere = snapshot.neighbours.elsewhere.iter();
    let leaving = elsewhere.filter(|other| other.deleting.is_some());
    leaving
        .take(MOST_LEAVING)
        .map(|other| root_of(tracer, other, Operation::Detach))
        .collect()
}
