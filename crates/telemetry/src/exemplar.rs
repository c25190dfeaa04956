//! Exemplars: the span that a measurement was made in, beside a bucket of a histogram (OpenMetrics 1.0, "Exemplars").
//!
//! A dashboard leads from a slow bucket to the trace behind it. Only ids are kept, and only for as long as the next
//! measurement of the same bucket. This module must not keep spans.

use opentelemetry::trace::{SpanContext, SpanId, TraceId};
use prometheus_client::encoding::{EncodeLabelSet, LabelSetEncoder};
use std::fmt;

/// The ids of a span. As the labels of an exemplar they are `trace_id` and `span_id`, well below the 128 characters that
/// OpenMetrics allows, and become text only when they are scraped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanIds {
    trace: TraceId,
    span: SpanId,
    sampled: bool,
}

impl SpanIds {
    /// Ids of a span that was, or was not, sampled.
    pub const fn new(trace: TraceId, span: SpanId, sampled: bool) -> Self {
        Self { trace, span, sampled }
    }
}

impl From<&SpanContext> for SpanIds {
    fn from(context: &SpanContext) -> Self {
        Self::new(context.trace_id(), context.span_id(), context.is_sampled())
    }
}

/// Which measurements may leave an exemplar: `OTEL_METRICS_EXEMPLAR_FILTER` of the OpenTelemetry specification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExemplarFilter {
    /// Those made in a sampled span: what an exemplar names can be found.
    #[default]
    TraceBased,
    /// Those made in any span, sampled or not.
    AlwaysOn,
    /// None.
    AlwaysOff,
}

impl ExemplarFilter {
    /// What a measurement in this span leaves behind.
    pub(super) fn pass(self, ids: Option<SpanIds>) -> Option<SpanIds> {
        ids.filter(|ids| match self {
            Self::TraceBased => ids.sampled,
            Self::AlwaysOn => true,
            Self::AlwaysOff => false,
        })
    }
}

impl EncodeLabelSet for SpanIds {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), fmt::Error> {
        let Self { trace, span, .. } = self;
        [
            ("trace_id", format!("{trace:032x}")),
            ("span_id", format!("{span:016x}")),
        ]
        .encode(encoder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(sampled: bool) -> SpanIds {
        SpanIds::new(TraceId::from(1_u128), SpanId::from(2_u64), sampled)
    }

    #[test]
    fn the_filter_is_that_of_the_specification() {
        for (filter, sampled, other) in [
            (ExemplarFilter::TraceBased, true, false),
            (ExemplarFilter::AlwaysOn, true, true),
            (ExemplarFilter::AlwaysOff, false, false),
        ] {
            assert_eq!(filter.pass(Some(ids(true))).is_some(), sampled, "{filter:?}");
            assert_eq!(filter.pass(Some(ids(false))).is_some(), other, "{filter:?}");
            assert!(filter.pass(None).is_none(), "{filter:?}");
        }
        assert_eq!(ExemplarFilter::default(), ExemplarFilter::TraceBased);
    }
}
