//! [`Tracer`] and [`Span`]: OpenTelemetry with explicit parents.
//!
//! No context is kept in a thread or a task: a span's parent is the span it was made from. A disabled tracer makes spans
//! that hold nothing and do nothing. This module must not block, and must not know where spans go.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::SystemTime;

use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::trace::{
    Link, Span as _, SpanBuilder, SpanContext, SpanKind, Status, TraceContextExt, TraceId, Tracer as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{Sampler, SdkTracer, Span as SdkSpan};

use super::attribute::{AttrValue, Attribute, clean};
use super::exemplar::SpanIds;
use super::ids::FixedIds;
use super::lifecycle::TraceIdentity;
use super::names::{attr, error_type};
use super::redact::Redaction;
use super::share::{PresetDecision, SamplingRatio, samples};
use super::w3c;
use csi_attacher_model::api::validated::Tracing;

/// The status of what a panic ended.
const PANICKED: &str = "the operator has a bug: see its log for \"panicked\"";
/// The status of what was cut off.
const CUT_OFF: &str = "cut off: the process ends, or does not serve the driver any more";
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Makes root spans. A clone is one reference count.
#[derive(Clone, Debug)]
pub struct Tracer {
    shared: Option<Arc<TracerInner>>,
    /// Which share of the roots is sampled; without, the sampler of the process decides.
    share: Option<SamplingRatio>,
    /// What does not leave the process as it is.
    redaction: Option<Arc<Redaction>>,
}

#[derive(Debug)]
pub(super) struct TracerInner {
    pub tracer: SdkTracer,
    pub sampler: Sampler,
    pub value_limit: usize,
    /// Whether requests carry `traceparent`.
    pub propagates: bool,
}

/// One operation. Ended by [`Span::end`] or by being dropped, and exported exactly once.
///
/// The status stays unset unless [`Span::fail`] is called, or what [`Span::must_end`] is dropped.
#[derive(Debug, Default)]
#[must_use = "a span that is dropped at once measures nothing"]
pub struct Span(Option<Box<ActiveSpan>>);

#[derive(Debug)]
struct ActiveSpan {
    shared: Arc<TracerInner>,
    span: SdkSpan,
    /// Whether a [`SamplingRatio`] decided about the root of this span: its children follow, whatever the sampler of the process is.
    chosen: bool,
    redaction: Option<Arc<Redaction>>,
    must_end: bool,
    /// Kept here until the end, because the SDK would record a key that is set twice as two attributes.
    attributes: Vec<KeyValue>,
}

/// How a span begins, where that is more than a name and a parent in this process.
#[derive(Clone, Debug)]
pub struct SpanOptions<'a> {
    /// Name from [`crate::names::span`], or `{METHOD} {template}` of an API request.
    pub name: Cow<'static, str>,
    /// Role in a trace: CLIENT for a call, INTERNAL for a life cycle.
    pub kind: SpanKind,
    /// When it began; none is now.
    pub start: Option<SystemTime>,
    /// The span it belongs to, which may be one that was not exported yet or that another process made.
    pub parent: Option<&'a SpanContext>,
    /// The ids that it is to have; without, they are random. Those of the trace count only without a parent.
    pub identity: Option<TraceIdentity>,
    /// What it is linked to from the start.
    pub links: &'a [SpanContext],
    /// Whether it is sampled; none leaves it to the sampler.
    pub sampled: Option<bool>,
}

impl SpanOptions<'_> {
    /// A span of this name that begins now.
    pub fn new(name: impl Into<Cow<'static, str>>, kind: SpanKind) -> Self {
        Self {
            name: name.into(),
            kind,
            start: None,
            parent: None,
            identity: None,
            links: &[],
            sampled: None,
        }
    }
}

impl Tracer {
    pub(super) fn new(shared: TracerInner) -> Self {
        Self {
            shared: Some(Arc::new(shared)),
            ..Self::disabled()
        }
    }

    /// A tracer whose spans do nothing.
    pub const fn disabled() -> Self {
        Self {
            shared: None,
            share: None,
            redaction: None,
        }
    }

    /// The same tracer, of whose roots so many of a million are sampled; none leaves it to the sampler of the process.
    #[must_use]
    pub fn sampling(&self, sampling_rate_per_million: Option<u32>) -> Self {
        Self {
            share: sampling_rate_per_million.map(SamplingRatio),
            ..self.clone()
        }
    }

    /// The same tracer with the settings of a driver.
    #[must_use]
    pub fn with_settings(&self, settings: &Tracing) -> Self {
        let redaction = Redaction::new(settings.redact.volume_id, settings.redact.names);
        self.sampling(settings.sampling_rate_per_million).redacting(redaction)
    }

    /// Whether spans of this tracer can go anywhere.
    pub const fn is_enabled(&self) -> bool {
        self.shared.is_some()
    }

    /// The same tracer, whose spans and their children show hashes where `redaction` says so.
    #[must_use]
    pub fn redacting(&self, redaction: Option<Redaction>) -> Self {
        Self {
            // A disabled tracer exports nothing that could be redacted.
            redaction: redaction.filter(|_| self.is_enabled()).map(Arc::new),
            ..self.clone()
        }
    }

    /// What its spans do not show.
    pub fn redaction(&self) -> Option<&Redaction> {
        self.redaction.as_deref()
    }

    /// Whether a trace of this id is sampled: the same answer for each of its spans, and in each process of the same settings.
    pub fn samples(&self, trace_id: TraceId) -> bool {
        let Some(shared) = &self.shared else { return false };
        match self.share {
            Some(share) => share.samples_trace(trace_id),
            None => samples(&shared.sampler, trace_id),
        }
    }

    /// Starts a span of a life that is longer than a process: see [`SpanOptions`].
    pub fn open(&self, options: SpanOptions<'_>) -> Span {
        let Some(shared) = &self.shared else {
            return Span(None);
        };
        let chosen = options.sampled.or_else(|| self.share.map(SamplingRatio::sample_random));
        shared.start(options, chosen, self.redaction.clone())
    }
}

impl TracerInner {
    /// `chosen` is whether the span is sampled, when that is not for the sampler of the process to decide.
    fn start(
        self: &Arc<Self>,
        options: SpanOptions<'_>,
        chosen: Option<bool>,
        redaction: Option<Arc<Redaction>>,
    ) -> Span {
        let mut builder = SpanBuilder::from_name(options.name).with_kind(options.kind);
        builder.start_time = options.start;
        if !options.links.is_empty() {
            let links = options.links.iter().cloned().map(Link::with_context);
            builder.links = Some(links.collect());
        }
        let mut parent = match options.parent {
            Some(parent) => Context::new().with_remote_span_context(parent.clone()),
            None => Context::new(),
        };
        if let Some(sampled) = chosen {
            parent = parent.with_value(PresetDecision(sampled));
        }
        let fixed = options.identity.map(|own| FixedIds::new(own.trace_id, own.root_id));
        let span = self.tracer.build_with_context(builder, &parent);
        drop(fixed);
        Span(Some(Box::new(ActiveSpan {
            shared: Arc::clone(self),
            span,
            chosen: chosen.is_some(),
            redaction,
            must_end: false,
            attributes: Vec::new(),
        })))
    }
}

impl Span {
    /// A span that does nothing, and whose children do nothing.
    pub const fn disabled() -> Self {
        Self(None)
    }

    /// Starts a child of this span.
    pub fn child(&self, name: impl Into<Cow<'static, str>>, kind: SpanKind) -> Self {
        let Some(active) = &self.0 else {
            return Self(None);
        };
        let context = active.span.span_context();
        let options = SpanOptions {
            parent: Some(context),
            ..SpanOptions::new(name, kind)
        };
        let chosen = active.chosen.then(|| context.is_sampled());
        active.shared.start(options, chosen, active.redaction.clone())
    }

    /// Whether there is no span at all: then it has no children either.
    pub fn is_disabled(&self) -> bool {
        self.0.is_none()
    }

    /// Whether attributes and events of this span are kept: false when disabled or not sampled.
    pub fn is_recording(&self) -> bool {
        self.0.as_ref().is_some_and(|active| active.span.is_recording())
    }

    /// Sets an attribute; the last value of a key counts. Strings are cleaned and cut ([`clean`]).
    pub fn set<'a>(&mut self, key: &'static str, value: impl Into<AttrValue<'a>>) {
        let Some(active) = self.recording() else { return };
        let pair = active.shown(key, value.into());
        active.put(pair);
    }

    /// Finds these volume IDs and names in the texts of the span and of later children, where they are not to be shown.
    pub fn knows<'a>(
        &mut self,
        volume_ids: impl IntoIterator<Item = &'a str>,
        names: impl IntoIterator<Item = &'a str>,
    ) {
        let Some(active) = self.recording() else { return };
        if let Some(redaction) = &mut active.redaction
            && let Some(more) = redaction.learning(volume_ids, names)
        {
            *redaction = Arc::new(more);
        }
    }

    /// Links the span to another one; nothing for a context that is not valid.
    pub fn link(&mut self, to: &SpanContext) {
        if let Some(active) = self.recording().filter(|_| to.is_valid()) {
            active.span.add_link(to.clone(), Vec::new());
        }
    }

    /// Marks the operation as failed: status Error with `description`, and the attribute `error.type`. The description
    /// must not repeat the error type, and must be free of secrets.
    pub fn fail(&mut self, error_type: &str, description: &str) {
        let Some(active) = self.recording() else { return };
        let limit = active.shared.value_limit;
        active.put(KeyValue::new(attr::ERROR_TYPE, clean(error_type, limit).into_owned()));
        let description = match &active.redaction {
            Some(redaction) => Cow::Owned(redaction.text(description)),
            None => Cow::Borrowed(description),
        };
        active
            .span
            .set_status(Status::error(clean(&description, limit).into_owned()));
    }

    /// The same span, which says that it was cut off when it is dropped before [`Span::end`]: an attempt does not end in that way by itself.
    pub fn must_end(mut self) -> Self {
        if let Some(active) = &mut self.0 {
            active.must_end = true;
        }
        self
    }

    /// Records an event at this instant.
    pub fn event(&mut self, name: impl Into<Cow<'static, str>>, attributes: &[Attribute<'_>]) {
        let Some(active) = self.recording() else { return };
        let attributes = attributes.iter().cloned();
        let attributes = attributes.map(|(key, value)| active.shown(key, value)).collect();
        active.span.add_event(name, attributes);
    }

    /// The trace id as 32 hexadecimal digits, for messages. `None` when disabled or not sampled: nobody would find that trace.
    pub fn trace_id(&self) -> Option<String> {
        self.sampled().map(|context| format!("{:032x}", context.trace_id()))
    }

    /// The ids of this span, for a measurement that is made in it. `None` when disabled.
    pub fn ids(&self) -> Option<SpanIds> {
        self.context().map(SpanIds::from)
    }

    /// The W3C `traceparent` of this span, for messages. `None` when disabled or not sampled.
    pub fn traceparent(&self) -> Option<String> {
        self.sampled().map(w3c::traceparent)
    }

    /// Writes this span into the headers of an outgoing request, or the metadata of a gRPC one, as `OTEL_PROPAGATORS` asks. Nothing
    /// when disabled.
    pub fn inject(&self, headers: &mut HeaderMap) {
        if self.0.as_ref().is_some_and(|active| active.shared.propagates)
            && let Some(context) = self.context()
            && let Ok(parent) = HeaderValue::try_from(w3c::traceparent(context))
        {
            headers.insert(TRACEPARENT, parent);
        }
    }

    /// Ends the span now.
    pub fn end(mut self) {
        self.finish(None);
    }

    /// Ends the span at a given time, which should not be before its start.
    pub fn end_at(mut self, end: SystemTime) {
        self.finish(Some(end));
    }

    /// The context of this span, whether it is sampled or not. `None` when disabled.
    pub fn context(&self) -> Option<&SpanContext> {
        self.0
            .as_ref()
            .map(|active| active.span.span_context())
            .filter(|context| context.is_valid())
    }

    fn sampled(&self) -> Option<&SpanContext> {
        self.context().filter(|context| context.is_sampled())
    }

    fn recording(&mut self) -> Option<&mut ActiveSpan> {
        self.0.as_deref_mut().filter(|active| active.span.is_recording())
    }

    fn finish(&mut self, end: Option<SystemTime>) {
        let Some(mut active) = self.0.take() else { return };
        let attributes = std::mem::take(&mut active.attributes);
        active.span.set_attributes(attributes);
        match end {
            Some(end) => active.span.end_with_timestamp(end),
            None => active.span.end(),
        }
    }
}

impl ActiveSpan {
    /// An attribute as it may leave the process.
    fn shown(&self, key: &'static str, value: AttrValue<'_>) -> KeyValue {
        let value = match &self.redaction {
            Some(redaction) => redaction.value(key, value),
            None => value,
        };
        KeyValue::new(key, value.into_otel(self.shared.value_limit))
    }

    fn put(&mut self, pair: KeyValue) {
        match self.attributes.iter_mut().find(|known| known.key == pair.key) {
            Some(known) => known.value = pair.value,
            None => self.attributes.push(pair),
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if self.0.as_ref().is_some_and(|active| active.must_end) {
            let (kind, text) = if std::thread::panicking() {
                (error_type::OTHER, PANICKED)
            } else {
                (error_type::SHUTDOWN, CUT_OFF)
            };
            self.fail(kind, text);
        }
        self.finish(None);
    }
}
