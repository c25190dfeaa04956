//! Spans of a life that is longer than a process: with ids, parents and links that are known from elsewhere, and with the
//! decision of their trace.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::SystemTime;

use opentelemetry::trace::{SpanContext, SpanKind, TraceId};
use opentelemetry_sdk::trace::ShouldSample as _;

use super::{Span, SpanStart, Tracer};
use crate::lifecycle::TraceIdentity;
use crate::redact::Redaction;
use crate::share::{SamplingRatio, is_sampled};

/// How a span begins, where that is more than a name and a parent in this process.
#[derive(Clone, Debug)]
pub struct SpanOptions<'a> {
    /// Name of the span.
    pub name: &'static str,
    /// Its kind.
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
    pub const fn new(name: &'static str, kind: SpanKind) -> Self {
        Self {
            name,
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
    /// The same tracer, whose spans and their children show hashes where `redaction` says so.
    #[must_use]
    pub fn redacting(&self, redaction: Option<Redaction>) -> Self {
        Self {
            // Nothing is to be kept from a tracer that tells nothing.
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
            None => is_sampled(
                &shared
                    .sampler
                    .should_sample(None, trace_id, "", &SpanKind::Internal, &[], &[]),
            ),
        }
    }

    /// Starts a span of a life that is longer than a process: see [`SpanOptions`].
    pub fn open(&self, opening: SpanOptions<'_>) -> Span {
        let Some(shared) = &self.shared else {
            return Span(None);
        };
        let start = SpanStart {
            name: Cow::Borrowed(opening.name),
            kind: opening.kind,
            start: opening.start,
            identity: opening.identity,
            links: opening.links,
            chosen: opening.sampled.or_else(|| self.share.map(SamplingRatio::sample_random)),
            redaction: self.redaction.clone(),
        };
        shared.start(opening.parent, start)
    }
}
