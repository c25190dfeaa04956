//! A share of the traces that is sampled, other than the one of the process.

use opentelemetry::trace::{Link, SpanKind, TraceId, TraceState};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{Sampler, SamplingDecision, SamplingResult, ShouldSample};

const MILLION: u32 = 1_000_000;

/// So many of a million.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SamplingRatio(pub u32);

impl SamplingRatio {
    /// Whether the next one is among them.
    pub fn sample_random(self) -> bool {
        fastrand::u32(0..MILLION) < self.0
    }

    /// Whether this trace is among them, by the same rule as the standard's sampler by ratio: everybody who samples by the
    /// same ratio picks the same traces.
    pub fn samples_trace(self, trace_id: TraceId) -> bool {
        let ratio = f64::from(self.0) / f64::from(MILLION);
        samples(&Sampler::TraceIdRatioBased(ratio), trace_id)
    }
}

/// Whether the spans of a trace of this id are to be exported.
pub(super) fn samples(sampler: &Sampler, trace_id: TraceId) -> bool {
    let result = sampler.should_sample(None, trace_id, "", &SpanKind::Internal, &[], &[]);
    matches!(result.decision, SamplingDecision::RecordAndSample)
}

/// A decision that was made before the sampler is asked; it travels in the context of the span that starts.
#[derive(Clone, Copy, Debug)]
pub(super) struct PresetDecision(pub bool);

/// Asks the sampler of the process only where nothing was [`PresetDecision`].
#[derive(Clone, Debug)]
pub(super) struct PresetSampler(pub Sampler);

impl ShouldSample for PresetSampler {
    fn should_sample(
        &self,
        parent: Option<&Context>,
        trace_id: TraceId,
        name: &str,
        kind: &SpanKind,
        attributes: &[KeyValue],
        links: &[Link],
    ) -> SamplingResult {
        let Some(PresetDecision(sampled)) = parent.and_then(|parent| parent.get::<PresetDecision>()) else {
            return self.0.should_sample(parent, trace_id, name, kind, attributes, links);
        };
        let decision = if *sampled {
            SamplingDecision::RecordAndSample
        } else {
            SamplingDecision::Drop
        };
        SamplingResult {
            decision,
            attributes: Vec::new(),
            trace_state: TraceState::NONE,
        }
    }
}
