//! Builds the trace pipeline: sampler, limits, resource, queue and export thread.
//!
//! The export thread has its own single-threaded runtime, so that neither a slow collector nor a shutdown can block the
//! operator's runtime, whatever its kind. This module installs no global tracer provider.

use std::sync::Arc;

use opentelemetry::trace::TracerProvider;
use opentelemetry::{Context, InstrumentationScope, KeyValue};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use thiserror::Error;
use tokio::sync::oneshot;

use super::batch::{self, CountingSpanProcessor, SpanQueue};
use super::collector::without_sdk_warnings;
use super::exporter::Exporters;
use super::ids::SpanIdGenerator;
use super::names;
use super::otel_env::{RootSampler, SamplerSettings, TraceSettings};
use super::share::PresetSampler;
use super::span_counts::SpanCounters;
use super::trace::Tracer;

/// Why a pipeline cannot be started.
#[derive(Debug, Error)]
pub enum ProviderError {
    /// The system refused a thread or a runtime.
    #[error("cannot start the export thread for traces: {0}")]
    Thread(#[from] std::io::Error),
}

/// A running pipeline.
#[derive(Debug)]
pub(super) struct Pipeline {
    pub queue: Arc<SpanQueue>,
    /// Resolves when the export thread is at its end.
    pub finished: oneshot::Receiver<()>,
}

impl Pipeline {
    /// Starts the export thread. Nothing here waits for a file or the network.
    pub(super) fn start(
        settings: &TraceSettings,
        counters: &Arc<SpanCounters>,
    ) -> Result<(Tracer, Self), ProviderError> {
        let resource = resource(settings);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let exporters = Exporters::new(&settings.exporters, settings, &resource);
        let queue = SpanQueue::new(settings.batch, Arc::clone(counters));
        let finished = spawn_export_thread(runtime, Arc::clone(&queue), exporters)?;
        let tracer = tracer(settings, resource, Arc::clone(&queue));
        Ok((tracer, Self { queue, finished }))
    }
}

fn spawn_export_thread(
    runtime: tokio::runtime::Runtime,
    queue: Arc<SpanQueue>,
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

fn tracer(settings: &TraceSettings, resource: Resource, queue: Arc<SpanQueue>) -> Tracer {
    let limits = settings.limits;
    let sampler = sampler(settings.sampler);
    let provider = without_sdk_warnings(SdkTracerProvider::builder)
        .with_sampler(PresetSampler(sampler.clone()))
        .with_id_generator(SpanIdGenerator::default())
        .with_max_attributes_per_span(limits.attributes)
        .with_max_events_per_span(limits.events)
        .with_max_links_per_span(limits.links)
        .with_max_attributes_per_event(limits.event_attributes)
        .with_max_attributes_per_link(limits.link_attributes)
        .with_resource(resource)
        .with_span_processor(CountingSpanProcessor(queue))
        .build();
    let scope = InstrumentationScope::builder(names::SERVICE_NAME)
        .with_version(env!("CARGO_PKG_VERSION"))
        .with_schema_url(names::SCHEMA_URL)
        .build();
    Tracer::new(
        provider.tracer_with_scope(scope),
        sampler,
        limits.value_length,
        settings.propagates,
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
