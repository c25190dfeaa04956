//! Trace contexts that others put on the objects of an attachment.

use crate::api::names;
use crate::api::validated::Tracing;
use crate::cache::Snapshot;
use crate::telemetry::{Metrics, SpanContext, incoming, w3c};

/// The trace in which the volume was provisioned, then what is found on the attachment and on its volume.
pub(super) fn contexts(snapshot: &Snapshot, tracing: &Tracing, metrics: &Metrics) -> Vec<SpanContext> {
    let attachment = ("VolumeAttachment", &snapshot.attachment.trace_context);
    let volume = snapshot.volume.as_ref();
    let provisioned = volume.and_then(|volume| {
        let text = volume.trace_context.get(names::TRACEPARENT_ANNOTATION)?;
        w3c::parse(text).ok()
    });
    let volume = volume.map(|volume| ("PersistentVolume", &volume.trace_context));
    incoming::contexts(provisioned, std::iter::once(attachment).chain(volume), tracing, metrics)
}
