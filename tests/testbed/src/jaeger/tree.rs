//! A trace as a person wants to read it in a terminal or a document: a tree with a time line.

use super::super::branch::Edge;
use std::fmt::Write as _;

use super::types::{Span, Trace};

/// The operator's own spans are shown without the name of their service.
const OWN: &str = "csi-attacher-operator";
/// Columns of the tree, and of the time line.
const TREE: usize = 70;
const LINE: usize = 32;
/// What is said below a span, in this order; the rest would hide what matters.
const OF_ROOT: [&str; 8] = [
    "attacher.outcome",
    "attacher.attempts",
    "container.csi.plugin.name",
    "container.csi.volume.id",
    "k8s.node.name",
    "k8s.persistentvolume.name",
    "k8s.persistentvolumeclaim.name",
    "k8s.namespace.name",
];
const OF_ATTEMPT: [&str; 7] = [
    "attacher.attempt",
    "attacher.trigger",
    "attacher.queue.wait",
    "attacher.permit.wait",
    "attacher.retry.delay",
    "error.type",
    STATUS,
];
/// Of a request only what went wrong.
const OF_REQUEST: [&str; 2] = ["error.type", STATUS];
const STATUS: &str = "otel.status_description";

/// The whole trace.
pub fn render(trace: &Trace) -> String {
    let start = trace.spans.iter().map(|span| span.start).min().unwrap_or_default();
    let end = trace.spans.iter().map(Span::end).max().unwrap_or_default();
    let scale = Scale {
        start,
        length: (end - start).max(1),
    };
    let mut text = format!("trace {}  {} spans, {}\n", trace.id, trace.spans.len(), services(trace));
    let _infallible = writeln!(text, "{:TREE$} {:>9}  {}", "", "", ruler(scale.length));
    for span in &trace.spans {
        if trace.parent_of(span).is_none() {
            branch(&mut text, trace, span, &scale, &Edge::default());
        }
    }
    text
}

/// The beginning, the middle and the end of the time line.
fn ruler(length: u64) -> String {
    let (middle, end) = (took(length / 2), took(length));
    let before = (LINE / 2).saturating_sub(1 + middle.len() / 2);
    let between = LINE.saturating_sub(1 + before + middle.len() + end.len());
    format!("0{}{middle}{}{end}", " ".repeat(before), " ".repeat(between))
}

fn services(trace: &Trace) -> String {
    let mut names: Vec<&str> = trace.spans.iter().map(|span| span.service.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    names.join(", ")
}

/// Where on the time line a moment is.
struct Scale {
    start: u64,
    length: u64,
}

impl Scale {
    fn bar(&self, span: &Span) -> String {
        let cell = |time: u64| usize::try_from((time - self.start) * LINE as u64 / self.length).unwrap_or(LINE);
        let from = cell(span.start).min(LINE - 1);
        let to = cell(span.end()).clamp(from, LINE);
        let bar = if to == from {
            "▏".to_owned()
        } else {
            "█".repeat(to - from)
        };
        format!("{}{bar}", " ".repeat(from))
    }
}

fn branch(text: &mut String, trace: &Trace, span: &Span, scale: &Scale, edge: &Edge) {
    let children = shown_children(trace, span);
    let failed = if span.failed() { " FAILED" } else { "" };
    let label = format!("{}{}{failed}", edge.own, label(trace, span, &children));
    let line = format!("{label:TREE$} {:>9}  {}", took(span.duration), scale.bar(span));
    let _infallible = writeln!(text, "{}", line.trim_end());
    let rail = if children.is_empty() { "   " } else { "│  " };
    for told in told(span) {
        let _infallible = writeln!(text, "{}{rail}{told}", edge.below);
    }
    for (index, child) in children.iter().enumerate() {
        branch(text, trace, child, scale, &edge.child(index + 1 == children.len()));
    }
}

/// The name of a span; of another service's span, which answers a request that stands above, its service.
fn label(trace: &Trace, span: &Span, children: &[&Span]) -> String {
    if span.service == OWN {
        return span.name.clone();
    }
    let shown: usize = children.iter().map(|child| 1 + below(trace, child)).sum();
    let name = match trace.parent_of(span) {
        Some(parent) if parent.name == span.name => "",
        _ => &format!(" {}", span.name),
    };
    match below(trace, span) - shown {
        0 => format!("[{}]{name}", span.service),
        hidden => format!("[{}]{name} and {hidden} steps", span.service),
    }
}

/// Below a span of another service the nearest ones of yet another service are shown: its inner steps are its own affair.
fn shown_children<'t>(trace: &'t Trace, span: &Span) -> Vec<&'t Span> {
    let mut shown = Vec::new();
    for child in trace.children(span) {
        if span.service == OWN || child.service != span.service {
            shown.push(child);
        } else {
            shown.extend(shown_children(trace, child));
        }
    }
    shown
}

fn below(trace: &Trace, span: &Span) -> usize {
    trace.children(span).iter().map(|child| 1 + below(trace, child)).sum()
}

fn told(span: &Span) -> Vec<String> {
    let keys: &[&str] = match span.name.as_str() {
        _ if span.service != OWN => &[],
        name if name.ends_with(".attempt") => &OF_ATTEMPT,
        name if name.starts_with("VolumeAttachment.") => &OF_ROOT,
        _ if span.failed() => &OF_REQUEST,
        _ => &[],
    };
    let pairs = keys.iter().filter(|key| span.tags.contains_key(**key));
    let pairs: Vec<String> = pairs
        .map(|key| match *key {
            STATUS => format!("\"{}\"", span.text(key)),
            key => format!("{key}={}", short(&span.text(key))),
        })
        .collect();
    let lines = pairs.chunks(3).map(|pairs| pairs.join("  "));
    lines.collect()
}

/// Seconds with more digits than anybody reads are cut.
fn short(value: &str) -> String {
    match value.parse::<f64>() {
        Ok(number) if value.contains('.') => format!("{number:.4}"),
        _ => value.to_owned(),
    }
}

fn took(microseconds: u64) -> String {
    let seconds = std::time::Duration::from_micros(microseconds).as_secs_f64();
    if seconds >= 1.0 {
        format!("{seconds:.2} s")
    } else {
        format!("{:.1} ms", seconds * 1e3)
    }
}
