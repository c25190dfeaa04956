//! Traces as the HTTP API of Jaeger tells them.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::otlp::{Attribute, ReceivedSpan};

/// An answer with traces.
#[derive(Deserialize)]
pub(super) struct Answer {
    data: Option<Vec<RawTrace>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawTrace {
    #[serde(rename = "traceID")]
    trace_id: String,
    spans: Vec<RawSpan>,
    processes: BTreeMap<String, Process>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Process {
    service_name: String,
    #[serde(default)]
    tags: Vec<Tag>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawSpan {
    #[serde(rename = "spanID")]
    span_id: String,
    operation_name: String,
    #[serde(default)]
    references: Vec<Reference>,
    start_time: u64,
    duration: u64,
    #[serde(default)]
    tags: Vec<Tag>,
    #[serde(default)]
    logs: Vec<Value>,
    #[serde(rename = "processID")]
    process_id: String,
    warnings: Option<Vec<String>>,
}

#[derive(Clone, Deserialize)]
struct Tag {
    key: String,
    value: Value,
}

/// From a span to another one: its parent (`CHILD_OF`) or a link (`FOLLOWS_FROM`).
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Reference {
    ref_type: String,
    #[serde(rename = "traceID")]
    trace_id: String,
    #[serde(rename = "spanID")]
    span_id: String,
}

#[derive(Clone, Debug)]
pub struct Span {
    /// 16 hexadecimal digits.
    pub id: String,
    pub name: String,
    pub service: String,
    /// Its parent and its links.
    pub references: Vec<Reference>,
    /// In microseconds since 1970.
    pub start: u64,
    /// In microseconds.
    pub duration: u64,
    /// Its attributes, with what OpenTelemetry keeps apart: `span.kind`, `otel.status_code`, `otel.status_description`.
    pub tags: BTreeMap<String, Value>,
    /// The attributes of the process that made it.
    pub resource: BTreeMap<String, Value>,
    pub events: Vec<Value>,
    /// What Jaeger says is wrong with it, such as a parent that is not there.
    pub warnings: Vec<String>,
    trace_id: String,
}

impl Span {
    /// The parent, whether it is there or not.
    pub fn parent(&self) -> Option<&str> {
        let parent = |reference: &&Reference| reference.ref_type == "CHILD_OF" && reference.trace_id == self.trace_id;
        let parent = self.references.iter().find(parent)?;
        Some(&parent.span_id)
    }

    /// The trace and span of each link.
    pub fn links(&self) -> Vec<(&str, &str)> {
        let is_link = |reference: &&Reference| reference.ref_type == "FOLLOWS_FROM";
        let links = self.references.iter().filter(is_link);
        links.map(|link| (&*link.trace_id, &*link.span_id)).collect()
    }

    /// An attribute as text; empty if there is none.
    pub fn text(&self, key: &str) -> String {
        match self.tags.get(key) {
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
            None => String::new(),
        }
    }

    pub fn failed(&self) -> bool {
        self.text("otel.status_code") == "ERROR"
    }

    /// As [`Span::start`].
    pub fn end(&self) -> u64 {
        self.start + self.duration
    }
}

/// The spans of one trace, the earliest first.
#[derive(Clone, Debug)]
pub struct Trace {
    /// 32 hexadecimal digits.
    pub id: String,
    pub spans: Vec<Span>,
}

impl Trace {
    pub(super) fn unknown(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            spans: Vec::new(),
        }
    }

    /// What was received of a trace by OTLP, as Jaeger would tell it.
    pub fn received(spans: &[ReceivedSpan], id: &str) -> Self {
        let spans = spans.iter().filter(|span| span.trace_id == id).map(Span::from);
        Self::of(id.to_owned(), spans.collect())
    }

    fn of(id: String, mut spans: Vec<Span>) -> Self {
        spans.sort_by_key(|span| (span.start, std::cmp::Reverse(span.duration)));
        Self { id, spans }
    }

    pub fn roots(&self) -> Vec<&Span> {
        self.spans.iter().filter(|span| span.parent().is_none()).collect()
    }

    pub fn named(&self, name: &str) -> Vec<&Span> {
        self.spans.iter().filter(|span| span.name == name).collect()
    }

    pub fn of_service(&self, service: &str) -> Vec<&Span> {
        self.spans.iter().filter(|span| span.service == service).collect()
    }

    pub fn children(&self, parent: &Span) -> Vec<&Span> {
        let below = |span: &&Span| span.parent() == Some(&parent.id);
        self.spans.iter().filter(below).collect()
    }

    /// The parent of this span, if it is there.
    pub fn parent_of(&self, child: &Span) -> Option<&Span> {
        self.spans.iter().find(|span| child.parent() == Some(&span.id))
    }
}

impl Answer {
    pub(super) fn traces(self) -> Vec<Trace> {
        self.data.into_iter().flatten().map(Trace::from).collect()
    }
}

impl From<RawTrace> for Trace {
    fn from(raw: RawTrace) -> Self {
        let spans = raw.spans.into_iter();
        let spans = spans.map(|span| span.typed(&raw.trace_id, &raw.processes)).collect();
        Self::of(raw.trace_id, spans)
    }
}

impl From<&ReceivedSpan> for Span {
    fn from(span: &ReceivedSpan) -> Self {
        let parent = span.parent_span_id.iter().map(|id| ("CHILD_OF", &span.trace_id, id));
        let links = span.links.iter().map(|(trace, id)| ("FOLLOWS_FROM", trace, id));
        let references = parent.chain(links).map(|(kind, trace_id, span_id)| Reference {
            ref_type: kind.to_owned(),
            trace_id: trace_id.clone(),
            span_id: span_id.clone(),
        });
        let values = |attributes: &BTreeMap<String, Attribute>| -> BTreeMap<String, Value> {
            let values = attributes.iter();
            values.map(|(key, attribute)| (key.clone(), value(attribute))).collect()
        };
        let mut tags = values(&span.attributes);
        if span.failed {
            tags.insert("otel.status_code".to_owned(), "ERROR".into());
            let description = span.status_message.as_str();
            tags.insert("otel.status_description".to_owned(), description.into());
        }
        let resource = values(&span.resource);
        let service = resource.get("service.name").and_then(Value::as_str);
        Self {
            id: span.span_id.clone(),
            name: span.name.clone(),
            service: service.unwrap_or_default().to_owned(),
            references: references.collect(),
            start: span.start_unix_nano / 1_000,
            duration: span.end_unix_nano.saturating_sub(span.start_unix_nano) / 1_000,
            tags,
            resource,
            events: span.events.iter().map(|(name, _)| name.as_str().into()).collect(),
            warnings: Vec::new(),
            trace_id: span.trace_id.clone(),
        }
    }
}

fn value(attribute: &Attribute) -> Value {
    match attribute {
        Attribute::Str(text) => text.as_str().into(),
        Attribute::I64(number) => (*number).into(),
        Attribute::F64(number) => (*number).into(),
        Attribute::Bool(truth) => (*truth).into(),
        Attribute::StrArray(texts) => texts.clone().into(),
    }
}

impl RawSpan {
    fn typed(self, trace_id: &str, processes: &BTreeMap<String, Process>) -> Span {
        let process = processes.get(&self.process_id).cloned().unwrap_or_default();
        Span {
            id: self.span_id,
            name: self.operation_name,
            service: process.service_name,
            references: self.references,
            start: self.start_time,
            duration: self.duration,
            tags: map(self.tags),
            resource: map(process.tags),
            events: self.logs,
            warnings: self.warnings.unwrap_or_default(),
            trace_id: trace_id.to_owned(),
        }
    }
}

fn map(tags: Vec<Tag>) -> BTreeMap<String, Value> {
    tags.into_iter().map(|tag| (tag.key, tag.value)).collect()
}
