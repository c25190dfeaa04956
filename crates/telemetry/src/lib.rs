//! Telemetry of the operator: traces over OTLP, metrics for Prometheus, logs on standard error.
//!
//! Traces use OpenTelemetry directly with explicit parents ([`Tracer`], [`Span`]); metrics are families of
//! prometheus-client behind methods named for what happened ([`Metrics`]); logs go through `tracing`. A collector that
//! is down, slow or silent has no effect on the operator. The only global this module installs is the `tracing`
//! subscriber. It must not see secrets: callers hand over only what may leave the process.

pub mod attribute;
mod batch;
mod collector;
mod exemplar;
mod exporter;
mod ids;
pub mod incoming;
pub mod lifecycle;
pub mod logs;
pub mod metrics;
pub mod names;
pub mod otel_env;
mod pipeline;
pub mod redact;
mod share;
mod span_counts;
pub mod trace;
mod traced;
pub mod w3c;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

pub use attribute::{AttrValue, Attribute};
pub use lifecycle::TraceIdentity;
pub use logs::{LogError, LogFormat, LogOptions};
pub use metrics::Metrics;
pub use opentelemetry::trace::{SpanContext, SpanKind, TraceId};
pub use pipeline::TelemetryGuard;
pub use redact::Redaction;
use span_counts::SpanCounters;
pub use trace::{Span, SpanOptions, Tracer};
pub use traced::TraceFields;

use otel_env::Environment;

/// Longest time [`TelemetryGuard::shutdown`] should be given.
pub const SHUTDOWN_CAP: Duration = Duration::from_secs(3);

/// The three signals. A clone is a few reference counts.
#[derive(Clone, Debug)]
pub struct Telemetry {
    /// Makes spans.
    pub tracer: Tracer,
    /// Counts and measures.
    pub metrics: Metrics,
}

impl Telemetry {
    /// Installs the log subscriber and starts the trace pipeline of the process, if there is one. Traces are configured by the variables of
    /// `environment` ([`otel_env::process_environment`] in production).
    ///
    /// Fails only when logging cannot be set up. Unusable `OTEL_*` values, or an exporter that cannot be built, are logged
    /// as warnings and leave the rest working.
    pub fn init(environment: &Environment, log: &LogOptions) -> Result<(Self, TelemetryGuard), LogError> {
        let parsed = otel_env::parse(environment, env!("CARGO_PKG_VERSION"));
        logs::install(log, parsed.settings.sdk_log_level.as_deref())?;
        for warning in &parsed.warnings {
            tracing::warn!("{warning}");
        }
        let exporters = parsed.settings.exporters.iter().map(ToString::to_string);
        let exporters: Vec<String> = exporters.collect();
        if exporters.is_empty() {
            tracing::info!("tracing is off: the environment names no collector, or turns it off");
        } else {
            tracing::info!(exporters = exporters.join(", "), "tracing is on");
        }
        let (tracer, metrics, guard) = start(&parsed.settings);
        Ok((Self { tracer, metrics }, guard))
    }
}

/// Everything but the logs, which are global to the process.
pub fn start(settings: &otel_env::TraceSettings) -> (Tracer, Metrics, TelemetryGuard) {
    let counters = Arc::new(SpanCounters::default());
    let metrics = Metrics::new(Arc::clone(&counters), settings.exemplars);
    let (tracer, guard) = TelemetryGuard::start(settings, counters);
    (tracer, metrics, guard)
}
