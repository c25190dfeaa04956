//! Ids of spans: random, but for a span whose ids are fixed beforehand.
//!
//! The SDK asks for ids while it builds a span, on the thread that builds it, and takes no ids otherwise. Must not outlive
//! the building of that one span.

use std::cell::Cell;

use opentelemetry::trace::{SpanId, TraceId};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator};

thread_local! {
    static FIXED: Cell<Option<(TraceId, SpanId)>> = const { Cell::new(None) };
}

/// Random ids, unless [`FixedIds`] says otherwise.
#[derive(Debug, Default)]
pub(super) struct SpanIdGenerator(RandomIdGenerator);

impl IdGenerator for SpanIdGenerator {
    fn new_trace_id(&self) -> TraceId {
        FIXED.get().map_or_else(|| self.0.new_trace_id(), |(trace, _)| trace)
    }

    fn new_span_id(&self) -> SpanId {
        FIXED.get().map_or_else(|| self.0.new_span_id(), |(_, span)| span)
    }
}

/// Fixes the ids of the span that is built on this thread while the guard lives.
pub(super) struct FixedIds(());

impl FixedIds {
    pub(super) fn new(trace: TraceId, span: SpanId) -> Self {
        FIXED.set(Some((trace, span)));
        Self(())
    }
}

impl Drop for FixedIds {
    fn drop(&mut self) {
        FIXED.set(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_fixed_for_one_span_and_one_thread() {
        let ids = SpanIdGenerator::default();
        let fixed = (TraceId::from(7_u128), SpanId::from(8_u64));
        {
            let _guard = FixedIds::new(fixed.0, fixed.1);
            assert_eq!((ids.new_trace_id(), ids.new_span_id()), fixed);
            let elsewhere = std::thread::scope(|scope| scope.spawn(|| ids.new_trace_id()).join().unwrap());
            assert_ne!(elsewhere, fixed.0);
        }
        assert_ne!(ids.new_trace_id(), fixed.0);
        assert_ne!(ids.new_span_id(), fixed.1);
    }
}
