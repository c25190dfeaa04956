//! Trace contexts of objects: those that others put on them, and those that follow from them, our own and those of
//! related lifecycles, of this replica or another.

use crate::api::names;
use crate::api::validated::Tracing;
use crate::cache::Snapshot;
use crate::objects::{Attachment, Operation};
use crate::telemetry::lifecycle::epoch_of;
use crate::telemetry::trace::Tracer;
use crate::telemetry::{Metrics, SpanContext, TraceIdentity, incoming, w3c};

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

/// The trace in which the volume was provisioned, then what is found on the attachment and on its volume.
pub(super) fn incoming_contexts(snapshot: &Snapshot, tracing: &Tracing, metrics: &Metrics) -> Vec<SpanContext> {
    let attachment = ("VolumeAttachment", &snapshot.attachment.trace_context);
    let volume = snapshot.volume.as_ref();
    let provisioned = volume.and_then(|volume| {
        let text = volume.trace_context.get(names::TRACEPARENT_ANNOTATION)?;
        w3c::parse(text)
    });
    let volume = volume.map(|volume| ("PersistentVolume", &volume.trace_context));
    incoming::contexts(provisioned, std::iter::once(attachment).chain(volume), tracing, metrics)
}
