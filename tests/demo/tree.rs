//! A trace as a tree of text.

use crate::support::branch::Edge;
use crate::support::otlp::{Attribute, ReceivedSpan};

/// The attributes that are shown, in this order; the rest would hide what matters.
const SHOWN: [&str; 15] = [
    "attacher.operation",
    "container.csi.plugin.name",
    "container.csi.volume.id",
    "k8s.node.name",
    "k8s.persistentvolume.name",
    "k8s.persistentvolumeclaim.name",
    "attacher.attempt",
    "attacher.trigger",
    "attacher.queue.wait",
    "attacher.csi.node_id",
    "rpc.response.status_code",
    "attacher.publish_context.keys",
    "attacher.secrets.count",
    "http.response.status_code",
    "error.type",
];

/// The spans of the trace in which a volume was attached or detached by this CSI call, or `None` while the call or the
/// root of its trace has not arrived. A root is exported last, as it ends last, so then the trace is complete.
pub fn trace_of<'s>(spans: &'s [ReceivedSpan], call: &str, volume: &str) -> Option<Vec<&'s ReceivedSpan>> {
    let traces = spans.iter().filter(|span| span.name == call).map(|call| {
        let same_trace = |span: &&ReceivedSpan| span.trace_id == call.trace_id;
        spans.iter().filter(same_trace).collect::<Vec<_>>()
    });
    let is_volume = Attribute::Str(volume.to_owned());
    traces.into_iter().find(|trace| {
        let of_volume = trace
            .iter()
            .any(|span| span.attributes.get("k8s.persistentvolume.name") == Some(&is_volume));
        of_volume && trace.iter().any(|span| span.parent_span_id.is_none())
    })
}

/// The trace as a tree: name, kind, duration and delay of each span since the start, its attributes below it.
pub fn render(trace: &[&ReceivedSpan]) -> String {
    let mut trace = trace.to_vec();
    trace.sort_by_key(|span| (span.start_unix_nano, span.end_unix_nano));
    let start = trace.first().map_or(0, |span| span.start_unix_nano);
    let known = |id: &String| trace.iter().any(|span| span.span_id == *id);
    let mut lines = Vec::new();
    for root in &trace {
        if !root.parent_span_id.as_ref().is_some_and(known) {
            branch(&mut lines, &trace, root, start, &Edge::default());
        }
    }
    lines.join("\n") + "\n"
}

fn branch(lines: &mut Vec<String>, trace: &[&ReceivedSpan], span: &ReceivedSpan, start: u64, edge: &Edge) {
    let took = milliseconds(span.end_unix_nano.saturating_sub(span.start_unix_nano));
    let after = milliseconds(span.start_unix_nano.saturating_sub(start));
    let kind = format!("{:?}", span.kind).to_uppercase();
    let failed = if span.failed { "  FAILED" } else { "" };
    lines.push(format!(
        "{}{}  {kind}  {took}  (after {after}){failed}",
        edge.own, span.name
    ));

    let children: Vec<_> = trace
        .iter()
        .filter(|child| child.parent_span_id.as_ref() == Some(&span.span_id))
        .collect();
    let rail = if children.is_empty() { "  " } else { "│ " };
    let shown = SHOWN
        .iter()
        .filter_map(|key| Some(format!("{key}={}", value(span.attributes.get(*key)?))));
    for pairs in shown.collect::<Vec<_>>().chunks(3) {
        lines.push(format!("{}{rail}  {}", edge.below, pairs.join(" ")));
    }
    for (index, child) in children.iter().enumerate() {
        branch(lines, trace, child, start, &edge.child(index + 1 == children.len()));
    }
}

fn milliseconds(nanoseconds: u64) -> String {
    let duration = std::time::Duration::from_nanos(nanoseconds);
    format!("{:.1} ms", duration.as_secs_f64() * 1e3)
}

fn value(attribute: &Attribute) -> String {
    match attribute {
        Attribute::Str(text) => text.clone(),
        Attribute::I64(number) => number.to_string(),
        Attribute::F64(number) => format!("{number:.4}"),
        Attribute::Bool(truth) => truth.to_string(),
        Attribute::StrArray(texts) => format!("[{}]", texts.join(",")),
    }
}

#[cfg(test)]
mod tests {
    use super::{render, trace_of};
    use crate::support::otlp::{Attribute, ReceivedSpan};
    use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
    use std::collections::BTreeMap;

    fn span(name: &str, id: &str, parent: Option<&str>, times: (u64, u64)) -> ReceivedSpan {
        ReceivedSpan {
            name: name.to_owned(),
            kind: SpanKind::Client,
            trace_id: "t1".to_owned(),
            span_id: id.to_owned(),
            parent_span_id: parent.map(str::to_owned),
            attributes: BTreeMap::new(),
            events: Vec::new(),
            links: Vec::new(),
            failed: false,
            status_message: String::new(),
            start_unix_nano: times.0 * 1_000_000,
            end_unix_nano: times.1 * 1_000_000,
            resource: BTreeMap::new(),
            scope: String::new(),
        }
    }

    /// An attempt with a write, and with a call below which there is another span.
    fn trace() -> Vec<ReceivedSpan> {
        let mut attempt = span("attempt", "a", None, (10, 30));
        let volume = Attribute::Str("pv-1".to_owned());
        attempt
            .attributes
            .insert("k8s.persistentvolume.name".to_owned(), volume);
        attempt
            .attributes
            .insert("attacher.attempt".to_owned(), Attribute::I64(2));
        let mut call = span("call", "c", Some("a"), (15, 29));
        call.failed = true;
        let mut other = span("call", "x", None, (0, 1));
        other.trace_id = "t2".to_owned();
        vec![
            other,
            span("inner", "i", Some("c"), (16, 17)),
            call,
            span("write", "w", Some("a"), (11, 14)),
            attempt,
        ]
    }

    #[test]
    fn the_tree_shows_order_parents_and_attributes() {
        let spans = trace();
        let trace = trace_of(&spans, "call", "pv-1").expect("it is complete");
        let expected = "\
attempt  CLIENT  20.0 ms  (after 0.0 ms)
│   k8s.persistentvolume.name=pv-1 attacher.attempt=2
├─ write  CLIENT  3.0 ms  (after 1.0 ms)
└─ call  CLIENT  14.0 ms  (after 5.0 ms)  FAILED
   └─ inner  CLIENT  1.0 ms  (after 6.0 ms)
";
        assert_eq!(render(&trace), expected);
    }

    #[test]
    fn a_trace_is_complete_with_its_root() {
        let mut spans = trace();
        assert!(trace_of(&spans, "call", "pv-2").is_none());
        assert!(trace_of(&spans, "no-such-call", "pv-1").is_none());
        spans.pop();
        assert!(trace_of(&spans, "call", "pv-1").is_none());
    }
}
