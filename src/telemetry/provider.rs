//! Builds the trace pipeline: sampler, limits, resource, queue and export thread.
//!
//! The export thread has its own single-threaded runtime, so that neither a slow collector nor a shutdown can block the
//! operator's runtime, whatever its kind. This module installs no global tracer provider.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::trace::TracerProvider;
use opentelemetry::{Context, InstrumentationScope, KeyValue};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use thiserror::Error;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::batch::{self, Processor, Queue, SpanCounters, SpanCounts};
use super::exporter::{ExporterError, Exporters};
use super::ids::Ids;
use super::names;
use super::otel_env::{RootSampler, SamplerSettings, TraceSettings};
use super::share::UnlessChosen;
use super::trace::Tracer;

/// What a caller allows on top of the cap for the export thread to answer.
const ANSWER_SLACK: Duration = Duration::from_millis(250);

/// Why the pipeline cannot be built.
#[derive(Debug, Error)]
pub enum ProviderError {
    /// An exporter cannot be built.
    #[error("tracing stays off: {0}")]
    Exporter(#[from] ExporterError),
    /// The system refused a thread or a runtime.
    #[error("tracing stays off: cannot start the export thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// Result of a flush or a shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushOutcome {
    /// Every span that had ended was handed to the exporters.
    Flushed,
    /// The cap was reached first, or exports failed: this many spans were lost during the call.
    Lost(u64),
}

/// A running pipeline. Dropping it stops the export thread without waiting.
#[derive(Debug)]
pub(super) struct Pipeline {
    pub(super) tracer: Tracer,
    queue: Arc<Queue>,
    counters: Arc<SpanCounters>,
    finished: Option<oneshot::Receiver<()>>,
}

impl Pipeline {
    /// Builds the exporters and starts the export thread.
    pub(super) fn start(settings: &TraceSettings, counters: Arc<SpanCounters>) -> Result<Self, ProviderError> {
        let resource = resource(settings);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let exporters = {
            let _inside = runtime.enter();
            Exporters::build(&settings.exporters, &resource)
        };
        let exporters = match exporters {
            Ok(exporters) => exporters,
            Err(error) => {
                // Dropping a runtime blocks, which a caller inside another runtime may not do.
                runtime.shutdown_background();
                return Err(error.into());
            }
        };
        let queue = Queue::new(settings.batch, Arc::clone(&counters));
        let finished = spawn_export_thread(runtime, Arc::clone(&queue), exporters)?;
        let tracer = tracer(settings, resource, Arc::clone(&queue));
        Ok(Self {
            tracer,
            queue,
            counters,
            finished: Some(finished),
        })
    }

    /// The counts of this pipeline, which stay readable after its end.
    #[cfg(test)]
    pub(super) fn counters(&self) -> Arc<SpanCounters> {
        Arc::clone(&self.counters)
    }

    /// Exports what has ended so far; gives up after `cap`.
    pub(super) async fn flush(&self, cap: Duration) -> FlushOutcome {
        let before = self.counters.read();
        let flushed = tokio::time::timeout(cap, self.queue.flushed()).await;
        let after = self.counters.read();
        match flushed {
            Ok(Ok(())) => outcome(lost(&after) - lost(&before)),
            _ => outcome(lost(&after) - lost(&before) + after.queue_length as u64),
        }
    }

    /// Refuses new spans, exports what is queued, and stops the thread within `cap`.
    pub(super) async fn shutdown(mut self, cap: Duration) -> FlushOutcome {
        let before = self.counters.read();
        self.queue.close(Instant::now() + cap.min(Duration::from_mins(1)));
        if let Some(finished) = self.finished.take() {
            // Neither a late nor a dead thread may hold the caller up; the counts say what became of the spans.
            drop(tokio::time::timeout(cap + ANSWER_SLACK, finished).await);
        }
        let after = self.counters.read();
        outcome(lost(&after) - lost(&before) + after.queue_length as u64)
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        self.queue.close(Instant::now());
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

fn spawn_export_thread(
    runtime: tokio::runtime::Runtime,
    queue: Arc<Queue>,
    exporters: Exporters,
) -> std::io::Result<oneshot::Receiver<()>> {
    let (sender, finished) = oneshot::channel();
    std::thread::Builder::new()
        .name("span-export".to_owned())
        .spawn(move || {
            // Whatever the exporter's own HTTP stack would trace is suppressed on this thread.
            let _suppressed = Context::enter_telemetry_suppressed_scope();
            runtime.block_on(batch::run(queue, exporters));
            // The receiver is gone when nobody waits for the end.
            sender.send(()).ok();
            // A name lookup that hangs must not hold the thread.
            runtime.shutdown_background();
        })?;
    Ok(finished)
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

fn tracer(settings: &TraceSettings, resource: Resource, queue: Arc<Queue>) -> Tracer {
    let limits = settings.limits;
    let sampler = sampler(settings.sampler);
    let provider = SdkTracerProvider::builder()
        .with_sampler(UnlessChosen(sampler.clone()))
        .with_id_generator(Ids::default())
        .with_max_attributes_per_span(limits.attributes)
        .with_max_events_per_span(limits.events)
        .with_max_links_per_span(limits.links)
        .with_max_attributes_per_event(limits.event_attributes)
        .with_max_attributes_per_link(limits.link_attributes)
        .with_resource(resource)
        .with_span_processor(Processor(queue))
        .build();
    let scope = InstrumentationScope::builder(names::SERVICE_NAME)
        .with_version(env!("CARGO_PKG_VERSION"))
        .with_schema_url(names::SCHEMA_URL)
        .build();
    Tracer::new(
        provider.tracer_with_scope(scope),
        sampler,
        limits.value_length,
        settings.propagators,
        settings.conventions,
    )
}

fn sampler(settings: SamplerSettings) -> Sampler {
    let root = match settings.root {
        RootSampler::AlwaysOn => Sampler::AlwaysOn,
        RootSampler::AlwaysOff => Sampler::AlwaysOff,
        RootSampler::Ratio(ratio) => Sampler::TraceIdRatioBased(ratio),
    };
    if settings.parent_based {
        Sampler::ParentBased(Box::new(root))
    } else {
        root
    }
}
