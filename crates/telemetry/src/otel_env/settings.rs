//! What the environment says, in types.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use http::uri::Scheme;
use http::{HeaderMap, Uri};
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

/// The protocols by their words in `OTEL_EXPORTER_OTLP_PROTOCOL`.
pub(super) const PROTOCOLS: [(&str, Protocol); 3] = [
    ("grpc", Protocol::Grpc),
    ("http/protobuf", Protocol::HttpBinary),
    ("http/json", Protocol::HttpJson),
];

impl OtlpSettings {
    pub(crate) fn is_encrypted(&self) -> bool {
        let uri = self.endpoint.parse::<Uri>();
        uri.is_ok_and(|uri| uri.scheme() == Some(&Scheme::HTTPS))
    }

    /// Which ports are usual, for errors; nothing where the collector's is the one, or may be that of a load balancer with TLS.
    pub(crate) fn port_hint(&self) -> &'static str {
        let usual = if self.protocol == Protocol::Grpc { 4317 } else { 4318 };
        let port = self.endpoint.parse::<Uri>().ok().and_then(|uri| uri.port_u16());
        let is_public = self.is_encrypted() && port.is_none_or(|port| port == 443);
        if port == Some(usual) || is_public {
            ""
        } else {
            "; gRPC is usually at port 4317, HTTP at 4318"
        }
    }
}

/// For logs: neither user information nor the query, and no other part of the path than OTLP's own, as some vendors have a token there.
impl fmt::Display for OtlpSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let uri = self.endpoint.parse::<Uri>().unwrap_or_default();
        let scheme = uri.scheme_str().unwrap_or_default();
        write!(f, "{scheme}://{}", uri.host().unwrap_or_default())?;
        if let Some(port) = uri.port_u16() {
            write!(f, ":{port}")?;
        }
        for part in uri.path().split('/').filter(|part| !part.is_empty()) {
            let shown = if ["v1", "traces"].contains(&part) { part } else { "…" };
            write!(f, "/{shown}")?;
        }
        let protocol = PROTOCOLS.iter().find(|(_, protocol)| *protocol == self.protocol);
        write!(f, " over {}", protocol.map_or("OTLP", |(word, _)| *word))
    }
}

impl fmt::Display for ExporterSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Otlp(otlp) => write!(f, "{otlp}"),
            Self::Console => f.write_str("standard output"),
        }
    }
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
