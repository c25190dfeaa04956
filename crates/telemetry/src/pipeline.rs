//! The trace pipeline of the process: sampler, limits, resource, queue and export thread, and its end.
//!
//! There is one or none: the environment of the process says where spans go. The export thread has its own single-threaded
//! runtime, so that neither a slow collector nor a shutdown can block the operator's runtime, whatever its kind. This module
//! must not wait for a collector longer than it is allowed to, and installs no global tracer provider.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::trace::TracerProvider;
use opentelemetry::{Context, InstrumentationScope, KeyValue};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::batch::{self, CountingSpanProcessor, SpanQueue};
use super::collector::without_sdk_warnings;
use super::exporter::Exporters;
use super::ids::SpanIdGenerator;
use super::names;
use super::otel_env::TraceSettings;
use super::share::PresetSampler;
use super::span_counts::{SpanCounters, SpanCounts};
use super::trace::{Tracer, TracerInner};

/// What a caller allows on top of the cap for the export thread to answer.
const ANSWER_SLACK: Duration = Duration::from_millis(250);

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
        let is_wanted = !settings.exporters.is_empty();
        let started = is_wanted
            .then(|| Pipeline::start(settings, &counters))
            .and_then(|started| {
                let tell = |error: &std::io::Error| {
                    tracing::warn!("cannot start the export thread for traces: {error}; tracing is off");
                };
                started.inspect_err(tell).ok()
            });
        let (tracer, pipeline) = started.unzip();
        (tracer.unwrap_or(Tracer::disabled()), Self { pipeline, counters })
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

    /// Spans that have ended and are neither exported nor lost yet.
    pub fn open_spans(&self) -> u64 {
        self.counters.read().open()
    }

    /// Stops taking spans, exports those that have ended, and stops the export thread, all within `cap` (see
    /// `SHUTDOWN_CAP`). Answers how many spans were lost meanwhile, as the cap was reached first or exports failed. Only awaits, so that
    /// it is safe on any runtime.
    pub async fn shutdown(mut self, cap: Duration) -> u64 {
        let before = self.counters.read();
        self.close(cap);
        if let Some(pipeline) = self.pipeline.take() {
            // Neither a late nor a dead thread may hold the caller up; the counts say what became of the spans.
            drop(tokio::time::timeout(cap + ANSWER_SLACK, pipeline.finished).await);
        }
        let after = self.counters.read();
        lost(&after) - lost(&before) + after.open()
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

#[derive(Debug)]
struct Pipeline {
    queue: Arc<SpanQueue>,
    /// Resolves when the export thread is at its end.
    finished: oneshot::Receiver<()>,
}

impl Pipeline {
    /// Starts the export thread. Nothing here waits for a file or the network.
    fn start(settings: &TraceSettings, counters: &Arc<SpanCounters>) -> std::io::Result<(Tracer, Self)> {
        let resource = resource(settings);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let exporters = Exporters::new(settings, &resource);
        let queue = SpanQueue::new(settings.batch, Arc::clone(counters));
        let (sender, finished) = oneshot::channel();
        let exported = Arc::clone(&queue);
        std::thread::Builder::new()
            .name("span-export".to_owned())
            .spawn(move || {
                // Whatever the exporter's own HTTP stack would trace is suppressed on this thread.
                let _suppressed = Context::enter_telemetry_suppressed_scope();
                runtime.block_on(batch::run(exported, exporters));
                // The receiver is gone when nobody waits for the end.
                sender.send(()).ok();
                // A name lookup that hangs must not hold the thread.
                runtime.shutdown_background();
            })?;
        let tracer = tracer(settings, resource, Arc::clone(&queue));
        Ok((tracer, Self { queue, finished }))
    }
}

fn resource(settings: &TraceSettings) -> Resource {
    let attributes = settings
        .resource
        .iter()
        .map(|(key, value)| KeyValue::new(key.clone(), value.clone()));
    Resource::builder_empty()
        .with_detector(Box::new(opentelemetry_sdk::resource::TelemetryResourceDetector))
        .with_attributes(attributes)
        .build()
}

fn tracer(settings: &TraceSettings, resource: Resource, queue: Arc<SpanQueue>) -> Tracer {
    let sampler = settings.sampler.clone();
    let provider = without_sdk_warnings(SdkTracerProvider::builder)
        .with_sampler(PresetSampler(sampler.clone()))
        .with_id_generator(SpanIdGenerator::default())
        .with_span_limits(settings.limits)
        .with_resource(resource)
        .with_span_processor(CountingSpanProcessor(queue))
        .build();
    let scope = InstrumentationScope::builder(names::SERVICE_NAME)
        .with_version(env!("CARGO_PKG_VERSION"))
        .with_schema_url(names::SCHEMA_URL)
        .build();
    Tracer::new(TracerInner {
        tracer: provider.tracer_with_scope(scope),
        sampler,
        value_limit: settings.value_length,
        propagates: settings.propagates,
    })
}

#[cfg(test)]
#[path = "pipeline_tests.rs"]
mod tests;
