//! What the environment says, in types.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use http::HeaderMap;

use crate::metrics::ExemplarFilter;

/// Everything the environment says about traces.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceSettings {
    /// Where spans go; nothing is traced when that is nowhere.
    pub exporters: Vec<ExporterSettings>,
    /// How collectors are connected to.
    pub transport: TransportSettings,
    /// Extra headers for the collector of the process; values are marked sensitive, so that Debug hides them.
    pub headers: HeaderMap,
    /// Which traces are kept, where the AttacherConfig does not say.
    pub sampler: SamplerSettings,
    /// Whether outgoing calls carry `traceparent` (`OTEL_PROPAGATORS`). Baggage is accepted and sends nothing, as this
    /// program never has any.
    pub propagates: bool,
    /// Limits of one span.
    pub limits: SpanLimitSettings,
    /// Limits of the queue between spans and exporters.
    pub batch: BatchSettings,
    /// Attributes of the resource, the later ones of the environment already merged in.
    pub resource: BTreeMap<String, String>,
    /// Which observations of a metric carry the id of a trace (`OTEL_METRICS_EXEMPLAR_FILTER`).
    pub exemplars: ExemplarFilter,
    /// Level asked for the SDK's own log records (`OTEL_LOG_LEVEL`).
    pub sdk_log_level: Option<String>,
}

/// One destination of spans.
#[derive(Clone, Debug, PartialEq)]
pub enum ExporterSettings {
    /// OTLP to a collector.
    Otlp(OtlpSettings),
    /// One JSON line a span on standard output.
    Console,
}

/// Transport of OTLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OtlpProtocol {
    /// gRPC.
    Grpc,
    /// Protobuf over HTTP/1.1.
    HttpProtobuf,
    /// JSON over HTTP/1.1.
    HttpJson,
}

/// Compression of what is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// None.
    #[default]
    None,
    /// gzip.
    Gzip,
}

/// Where a collector is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtlpSettings {
    /// Transport.
    pub protocol: OtlpProtocol,
    /// Full URL; for HTTP it ends with the signal path.
    pub endpoint: String,
}

/// How collectors are connected to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportSettings {
    /// Compression of requests.
    pub compression: Compression,
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
