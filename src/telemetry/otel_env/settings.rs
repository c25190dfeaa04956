//! What the environment says, in types.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use http::HeaderMap;

use super::semconv::Conventions;

/// Everything the environment says about traces.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceSettings {
    /// Where spans go; empty means tracing is off.
    pub exporters: Vec<ExporterSettings>,
    /// Which traces are kept.
    pub sampler: SamplerSettings,
    /// What is sent along with outgoing calls.
    pub propagators: Propagators,
    /// Limits of one span.
    pub limits: SpanLimitSettings,
    /// Limits of the queue between spans and exporters.
    pub batch: BatchSettings,
    /// Attributes of the resource, the later ones of the environment already merged in.
    pub resource: BTreeMap<String, String>,
    /// Which names attributes have.
    pub conventions: Conventions,
    /// Level asked for the SDK's own log records (`OTEL_LOG_LEVEL`).
    pub sdk_log_level: Option<String>,
}

/// One destination of spans.
#[derive(Clone, Debug, PartialEq)]
pub enum ExporterSettings {
    /// OTLP to a collector.
    Otlp(Box<OtlpSettings>),
    /// One JSON line a span on standard output.
    Console,
}

/// Transport of OTLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtlpProtocol {
    /// gRPC.
    Grpc,
    /// Protobuf over HTTP/1.1.
    HttpProtobuf,
}

/// How to reach the collector.
#[derive(Clone, Debug, PartialEq)]
pub struct OtlpSettings {
    /// Transport.
    pub protocol: OtlpProtocol,
    /// Full URL; for HTTP it ends with the signal path.
    pub endpoint: String,
    /// Extra headers; values are marked sensitive, so that Debug hides them.
    pub headers: HeaderMap,
    /// Limit of one request.
    pub timeout: Duration,
    /// PEM file with the certificates to trust instead of the system's.
    pub certificate: Option<PathBuf>,
    /// PEM file with our certificate.
    pub client_certificate: Option<PathBuf>,
    /// PEM file with our key.
    pub client_key: Option<PathBuf>,
}

/// Head sampling of a root span.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RootSampler {
    /// Keep every trace.
    AlwaysOn,
    /// Keep no trace.
    AlwaysOff,
    /// Keep this share (0 to 1) of the traces, decided from the trace id.
    Ratio(f64),
}

/// `OTEL_TRACES_SAMPLER` and its argument.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplerSettings {
    /// Decision for a span without a parent, and for all spans when `parent_based` is off.
    pub root: RootSampler,
    /// Whether a span follows its parent's decision.
    pub parent_based: bool,
}

/// `OTEL_PROPAGATORS`. Baggage is accepted and sends nothing, as this program never has any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Propagators {
    /// Send `traceparent` and `tracestate`.
    pub trace_context: bool,
}

/// Limits of one span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanLimitSettings {
    /// Bytes of one string value.
    pub value_length: usize,
    /// Attributes of one span.
    pub attributes: u32,
    /// Events of one span.
    pub events: u32,
    /// Links of one span.
    pub links: u32,
    /// Attributes of one event.
    pub event_attributes: u32,
    /// Attributes of one link.
    pub link_attributes: u32,
}

/// Limits of the queue between spans and exporters (`OTEL_BSP_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchSettings {
    /// Longest time a span waits for its batch to fill.
    pub schedule_delay: Duration,
    /// Limit of one export, retries included.
    pub export_timeout: Duration,
    /// Spans kept while the exporter is busy; more are dropped.
    pub max_queue_size: usize,
    /// Spans of one export.
    pub max_batch_size: usize,
}
