//! Tracers that keep no pipeline: one that is only remembered, and one whose spans tell nothing but pass on what came in.

use std::sync::{Arc, Weak};

use opentelemetry::trace::SpanContext;

use super::{Shared, Span, Tracer};
use crate::telemetry::otel_env::Propagators;

/// A tracer that does not keep its pipeline.
#[derive(Clone, Debug)]
pub(in crate::telemetry) struct WeakTracer(Weak<Shared>);

impl WeakTracer {
    /// The tracer, when anybody still has it.
    pub fn upgrade(&self) -> Option<Tracer> {
        let shared = Some(self.0.upgrade()?);
        Some(Tracer {
            shared,
            ..Tracer::disabled()
        })
    }
}

/// A span of somebody else that goes on to whoever is called, while nothing is told of our own part.
#[derive(Clone, Debug)]
pub(super) struct Passing {
    pub context: SpanContext,
    pub propagators: Propagators,
}

impl Tracer {
    /// The same without keeping its pipeline; `None` when disabled.
    pub(in crate::telemetry) fn downgrade(&self) -> Option<WeakTracer> {
        Some(WeakTracer(Arc::downgrade(self.shared.as_ref()?)))
    }

    /// A tracer whose spans do nothing but pass on what came in.
    pub(in crate::telemetry) fn passing_on(propagators: Propagators) -> Self {
        Self {
            passing: Some(propagators),
            ..Self::disabled()
        }
    }

    /// Whether spans that tell nothing pass on what came in.
    pub const fn passes_on(&self) -> bool {
        self.passing.is_some()
    }

    /// A span that does nothing, and whose children do nothing, but that passes this context on to whoever is called.
    pub fn pass_on(&self, context: SpanContext) -> Span {
        let passing = self.passing.map(|propagators| Passing { context, propagators });
        Span(None, passing.map(Box::new))
    }
}
