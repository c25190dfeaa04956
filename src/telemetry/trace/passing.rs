//! A tracer whose spans tell nothing but pass on what came in.

use opentelemetry::trace::SpanContext;

use super::{Span, Tracer};
use crate::telemetry::otel_env::Propagators;

/// A span of somebody else that goes on to whoever is called, while nothing is told of our own part.
#[derive(Clone, Debug)]
pub(super) struct Passing {
    pub context: SpanContext,
    pub propagators: Propagators,
}

impl Tracer {
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
