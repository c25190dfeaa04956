//! The trace pipeline of the process, and its end.
//!
//! There is one or none: the environment of the process says where spans go. This module must not wait for a collector
//! longer than it is allowed to.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::otel_env::TraceSettings;
use super::provider::Pipeline;
use super::span_counts::{SpanCounters, SpanCounts};
use super::trace::Tracer;

/// What a caller allows on top of the cap for the export thread to answer.
const ANSWER_SLACK: Duration = Duration::from_millis(250);

/// Result of a flush or a shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushOutcome {
    /// Every span that had ended was handed to the exporters.
    Flushed,
    /// The cap was reached first, or exports failed: this many spans were lost during the call.
    Lost(u64),
}

/// Owns the export thread. Keep it until everything that makes spans has stopped, then call
/// [`TelemetryGuard::shutdown`]; a guard that is only dropped loses the spans not exported yet.
#[derive(Debug)]
#[must_use = "dropping the guard stops the export of spans"]
pub struct TelemetryGuard {
    pipeline: Option<Pipeline>,
    pub(super) counters: Arc<SpanCounters>,
}

impl TelemetryGuard {
    /// Starts the pipeline, if there is one. When it cannot be started, a warning is logged and the tracer does nothing.
    pub(super) fn start(settings: &TraceSettings, counters: Arc<SpanCounters>) -> (Tracer, Self) {
        let none = |counters| {
            let pipeline = None;
            (Tracer::disabled(), Self { pipeline, counters })
        };
        if settings.exporters.is_empty() {
            return none(counters);
        }
        match Pipeline::start(settings, &counters) {
            Ok((tracer, pipeline)) => {
                let pipeline = Some(pipeline);
                (tracer, Self { pipeline, counters })
            }
            Err(error) => {
                tracing::warn!("{error}; tracing is off");
                none(counters)
            }
        }
    }

    /// Resolves when the export thread has ended though nobody closed the pipeline; never without one.
    pub async fn failed(&mut self) {
        match &mut self.pipeline {
            // Whether it said so or panicked.
            Some(pipeline) => drop((&mut pipeline.finished).await),
            None => return std::future::pending().await,
        }
        self.pipeline = None;
    }

    /// Exports the spans that have ended so far; gives up after `cap`.
    pub async fn flush(&self, cap: Duration) -> FlushOutcome {
        let before = self.counters.read();
        let complete = match &self.pipeline {
            Some(pipeline) => matches!(tokio::time::timeout(cap, pipeline.queue.flushed()).await, Ok(Ok(()))),
            None => true,
        };
        let after = self.counters.read();
        let left = if complete { 0 } else { after.open() };
        outcome(lost(&after) - lost(&before) + left)
    }

    /// Stops taking spans, exports those that have ended, and stops the export thread, all within `cap` (see
    /// `SHUTDOWN_CAP`). Only awaits, so that it is safe on any runtime.
    pub async fn shutdown(mut self, cap: Duration) -> FlushOutcome {
        let before = self.counters.read();
        self.close(cap);
        if let Some(pipeline) = self.pipeline.take() {
            // Neither a late nor a dead thread may hold the caller up; the counts say what became of the spans.
            drop(tokio::time::timeout(cap + ANSWER_SLACK, pipeline.finished).await);
        }
        let after = self.counters.read();
        outcome(lost(&after) - lost(&before) + after.open())
    }

    /// Refuses new spans, and stops the thread within `cap`. Returns at once.
    fn close(&self, cap: Duration) {
        if let Some(pipeline) = &self.pipeline {
            pipeline.queue.close(Instant::now() + cap.min(Duration::from_mins(1)));
        }
    }
}

impl Drop for TelemetryGuard {
    fn drop(&mut self) {
        self.close(Duration::ZERO);
    }
}

fn lost(counts: &SpanCounts) -> u64 {
    counts.export_failed + counts.shutdown
}

fn outcome(lost: u64) -> FlushOutcome {
    if lost == 0 {
        FlushOutcome::Flushed
    } else {
        FlushOutcome::Lost(lost)
    }
}

#[cfg(test)]
#[path = "guard_tests.rs"]
mod tests;
