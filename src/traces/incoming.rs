//! Trace contexts that others put on objects. They are claims of whoever may annotate an object: something to point to,
//! and no order. Baggage is not looked at.

use crate::api::validated::Tracing;
use crate::api::{AnnotationMode, names};
use crate::cache::Snapshot;
use crate::objects::StringMap;
use crate::telemetry::metrics::{Extraction, Metrics};
use crate::telemetry::{SpanContext, w3c};

/// Contexts that are taken from the objects of one attachment.
const MOST: usize = 4;
/// What the keys that are looked at end in, and what the key beside each of them ends in.
const PARENT: &str = "traceparent";
const STATE: &str = "tracestate";

/// What is found on the attachment and on its volume, in this order and in that of the keys; each once. `metrics` counts.
pub(super) fn contexts(snapshot: &Snapshot, tracing: &Tracing, metrics: &Metrics) -> Vec<SpanContext> {
    if tracing.annotation_mode == AnnotationMode::Ignore {
        return Vec::new();
    }
    let attachment = ("VolumeAttachment", &snapshot.attachment.trace_context);
    let volume = snapshot
        .volume
        .as_ref()
        .map(|volume| ("PersistentVolume", &volume.trace_context));
    let mut found: Vec<SpanContext> = Vec::new();
    for (kind, annotations) in std::iter::once(attachment).chain(volume) {
        // What we wrote ourselves is not somebody else's, whatever the list says.
        let keys = tracing
            .annotations
            .iter()
            .filter(|key| *key != names::TRACEPARENT_ANNOTATION);
        for key in keys {
            let Some((context, result)) = read(annotations, key) else {
                continue;
            };
            metrics.trace_context_extracted(kind, result);
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

fn read(annotations: &StringMap, key: &str) -> Option<(Option<SpanContext>, Extraction)> {
    let parent = annotations.get(key)?;
    let state = key.strip_suffix(PARENT).map(|stem| format!("{stem}{STATE}"));
    let state = state.and_then(|key| annotations.get(&key));
    Some(match w3c::parse(parent, state) {
        // A text that was too long was read as none.
        Ok(parsed) if parsed.state_malformed || state == Some("") => {
            (Some(parsed.context), Extraction::InvalidTracestate)
        }
        Ok(parsed) => (Some(parsed.context), Extraction::Success),
        Err(w3c::MalformedTraceContext) => (None, Extraction::Invalid),
    })
}
