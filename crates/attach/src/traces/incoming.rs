//! Trace contexts that others put on objects. They are claims of any client that may annotate an object: something to point to,
//! and no order. `tracestate` and baggage are ignored.

use crate::api::validated::Tracing;
use crate::api::{AnnotationMode, names};
use crate::cache::Snapshot;
use crate::telemetry::{Metrics, SpanContext, w3c};

/// Contexts that are taken from the objects of one attachment.
const MOST: usize = 4;

/// The trace in which the volume was provisioned, then what is found on the attachment and on its volume, in this order and in that of the
/// keys; each once. `metrics` counts what others wrote.
pub(super) fn contexts(snapshot: &Snapshot, tracing: &Tracing, metrics: &Metrics) -> Vec<SpanContext> {
    if tracing.annotation_mode == AnnotationMode::Ignore {
        return Vec::new();
    }
    let attachment = ("VolumeAttachment", &snapshot.attachment.trace_context);
    let volume = snapshot
        .volume
        .as_ref()
        .map(|volume| ("PersistentVolume", &volume.trace_context));
    let provisioned = snapshot.volume.as_ref().and_then(|volume| {
        let text = volume.trace_context.get(names::TRACEPARENT_ANNOTATION)?;
        w3c::parse(text).ok()
    });
    let mut found: Vec<SpanContext> = provisioned.into_iter().collect();
    for (kind, annotations) in std::iter::once(attachment).chain(volume) {
        // What we wrote ourselves is not somebody else's, whatever the list says.
        let keys = tracing
            .annotations
            .iter()
            .filter(|key| *key != names::TRACEPARENT_ANNOTATION);
        for key in keys {
            let Some(text) = annotations.get(key) else {
                continue;
            };
            let context = w3c::parse(text).ok();
            metrics.trace_context_extracted(kind, if context.is_some() { "success" } else { "invalid" });
            let is_new = |context: &SpanContext| {
                let same = |other: &SpanContext| {
                    other.trace_id() == context.trace_id() && other.span_id() == context.span_id()
                };
                !found.iter().any(same)
            };
            if let Some(context) = context.filter(is_new)
                && found.len() < MOST
            {
                found.push(context);
            }
        }
    }
    found
}
