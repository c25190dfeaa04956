//! What the environment says, in types.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use http::HeaderMap;
use opentelemetry_otlp::{Compression, Protocol};
use opentelemetry_sdk::trace::{Sampler, SpanLimits};

use crate::metrics::ExemplarFilter;

/// Everything the environment says about traces.
#[derive(Clone, Debug)]
pub struct TraceSettings {
    /// Where spans go; nothing is traced when that is nowhere.
    pub(crate) exporters: Vec<ExporterSettings>,
    pub(crate) transport: TransportSettings,
    /// Which traces are kept, where the AttacherConfig does not say.
    pub(crate) sampler: Sampler,
    /// Whether outgoing calls carry `traceparent` (`OTEL_PROPAGATORS`). Baggage is accepted and sends nothing, as this
    /// program never has any.
    pub(crate) propagates: bool,
    pub(crate) limits: SpanLimits,
    /// Bytes of one string value.
    pub(crate) value_length: usize,
    /// Limits of the queue between spans and exporters.
    pub(crate) batch: BatchSettings,
    /// Attributes of the resource, the later ones of the environment already merged in.
    pub(crate) resource: BTreeMap<String, String>,
    /// Which observations of a metric carry the id of a trace (`OTEL_METRICS_EXEMPLAR_FILTER`).
    pub(crate) exemplars: ExemplarFilter,
    /// Level asked for the SDK's own log records (`OTEL_LOG_LEVEL`).
    pub(crate) sdk_log_level: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ExporterSettings {
    Otlp(OtlpSettings),
    /// One JSON line a span on standard output.
    Console,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OtlpSettings {
    pub(crate) protocol: Protocol,
    /// Full URL; for HTTP it ends with the signal path.
    pub(crate) endpoint: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TransportSettings {
    pub(crate) compression: Option<Compression>,
    pub(crate) timeout: Duration,
    /// PEM file with the certificates to trust instead of the system's.
    pub(crate) certificate: Option<PathBuf>,
    pub(crate) client_certificate: Option<PathBuf>,
    pub(crate) client_key: Option<PathBuf>,
    /// Extra headers; values are marked sensitive, so that Debug hides them.
    pub(crate) headers: HeaderMap,
}

/// Limits of the queue between spans and exporters (`OTEL_BSP_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchSettings {
    /// Longest time a span waits for its batch to fill.
    pub(crate) schedule_delay: Duration,
    /// Limit of one export, retries included.
    pub(crate) export_timeout: Duration,
    /// Spans kept while the exporter is busy; more are dropped.
    pub(crate) max_queue_size: usize,
    pub(crate) max_batch_size: usize,
}
