//! Trace contexts that others put on objects. They are claims of any client that may annotate an object: something to point to,
//! and no order. `tracestate` and baggage are ignored.

use opentelemetry::trace::SpanContext;

use super::metrics::Metrics;
use super::w3c;
use csi_attacher_model::api::validated::Tracing;
use csi_attacher_model::api::{AnnotationMode, names};
use csi_attacher_model::objects::StringMap;

/// Contexts that are taken from the objects of one life cycle.
const MAX_CONTEXTS: usize = 4;

/// The context of ours that is known, then what is found in the annotations of the objects, each with its kind, in their order and in that
/// of the keys; each once. `metrics` counts what others wrote.
pub fn contexts<'a>(
    own: Option<SpanContext>,
    objects: impl IntoIterator<Item = (&'static str, &'a StringMap)>,
    tracing: &Tracing,
    metrics: &Metrics,
) -> Vec<SpanContext> {
    if tracing.annotation_mode == AnnotationMode::Ignore {
        return Vec::new();
    }
    let mut found: Vec<SpanContext> = own.into_iter().collect();
    for (kind, annotations) in objects {
        // What we wrote ourselves is not somebody else's, whatever the list says.
        let keys = tracing
            .annotations
            .iter()
            .filter(|key| *key != names::TRACEPARENT_ANNOTATION);
        for text in keys.filter_map(|key| annotations.get(key)) {
            let context = w3c::parse(text);
            metrics.trace_context_extracted(kind, if context.is_some() { "success" } else { "invalid" });
            let ids = |context: &SpanContext| (context.trace_id(), context.span_id());
            if let Some(context) = context
                && found.len() < MAX_CONTEXTS
                && !found.iter().any(|known| ids(known) == ids(&context))
            {
                found.push(context);
            }
        }
    }
    found
}
