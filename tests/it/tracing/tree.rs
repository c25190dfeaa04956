//! Spans as trees.

use crate::support::otlp::ReceivedSpan;

/// The spans by their start; a parent comes before its children.
pub fn in_order(spans: &[ReceivedSpan]) -> Vec<&ReceivedSpan> {
    let mut sorted: Vec<_> = spans.iter().collect();
    sorted.sort_by_key(|span| (span.start_unix_nano, span.parent_span_id.is_some()));
    sorted
}

/// Takes out what is about no volume: the traces of comparisons with ListVolumes, which are made now and then and have one
/// page each here.
pub fn without_comparisons(spans: Vec<ReceivedSpan>) -> Vec<ReceivedSpan> {
    let is_comparison = |span: &&ReceivedSpan| span.name == "VolumeAttachment.reconcile_sync";
    let traces: Vec<_> = spans
        .iter()
        .filter(is_comparison)
        .map(|span| span.trace_id.clone())
        .collect();
    let (comparisons, rest) = spans
        .into_iter()
        .partition::<Vec<_>, _>(|span| traces.contains(&span.trace_id));
    for comparison in render(&comparisons) {
        assert_eq!(comparison, "INTERNAL VolumeAttachment.reconcile_sync");
    }
    rest
}

/// The spans without a parent, by their end: a life begins with a time of its object, which has whole seconds, so that a detach
/// may seem to begin before the attach that it follows.
pub fn roots(spans: &[ReceivedSpan]) -> Vec<&ReceivedSpan> {
    let mut roots: Vec<_> = spans.iter().filter(|span| span.parent_span_id.is_none()).collect();
    roots.sort_by_key(|span| span.end_unix_nano);
    roots
}

/// The parent of a span, if it was received; it is in the same trace.
pub fn parent<'s>(span: &ReceivedSpan, spans: &'s [ReceivedSpan]) -> Option<&'s ReceivedSpan> {
    let id = span.parent_span_id.as_ref()?;
    spans
        .iter()
        .find(|other| other.span_id == *id && other.trace_id == span.trace_id)
}

/// A text for each root: kind, name and `error.type` of each span, one on each line, children below their parent.
pub fn render(spans: &[ReceivedSpan]) -> Vec<String> {
    for span in spans {
        let orphan = span.parent_span_id.is_some() && parent(span, spans).is_none();
        assert!(!orphan, "the parent of {span:#?} is missing");
    }
    roots(spans)
        .into_iter()
        .map(|root| {
            let mut lines = Vec::new();
            append(root, spans, 0, &mut lines);
            lines.join("\n")
        })
        .collect()
}

fn append(span: &ReceivedSpan, spans: &[ReceivedSpan], depth: usize, lines: &mut Vec<String>) {
    let kind = format!("{:?}", span.kind).to_uppercase();
    let failure = if span.failed { span.text("error.type") } else { "" };
    let line = format!("{}{kind} {} {failure}", "  ".repeat(depth), span.name);
    lines.push(line.trim_end().to_owned());
    let is_child =
        |other: &&ReceivedSpan| other.parent_span_id.as_ref() == Some(&span.span_id) && other.trace_id == span.trace_id;
    for child in in_order(spans).into_iter().filter(is_child) {
        append(child, spans, depth + 1, lines);
    }
}
