//! The exporters: OTLP over gRPC or HTTP, and the console.
//!
//! Everything the SDK would read from the process environment is handed over from [`OtlpSettings`], so that one parsed
//! environment decides. Must be built and used on the export thread's runtime. This module must not queue or count.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use futures::future::join_all;
use hyper_rustls::{ConfigBuilderExt, HttpsConnectorBuilder};
use opentelemetry::trace::Status;
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_otlp::tonic_types::transport::{Certificate, ClientTlsConfig, Identity};
use opentelemetry_otlp::{ExporterBuildError, Protocol, WithExportConfig, WithHttpConfig, WithTonicConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use thiserror::Error;

use super::batch::Sink;
use super::otel_env::{ExporterSettings, OtlpProtocol, OtlpSettings};

/// Why an exporter cannot be built. The texts hold file names and reasons, no contents.
#[derive(Debug, Error)]
pub enum ExporterError {
    /// A TLS file cannot be read.
    #[error("cannot read {path}: {source}")]
    File {
        /// File the environment named.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// A TLS file holds no usable PEM data.
    #[error("no usable PEM data in {path}: {source}")]
    Pem {
        /// File the environment named.
        path: String,
        /// What is wrong with it.
        source: pem::Error,
    },
    /// Certificate and key do not go together, or the system has no trusted certificates.
    #[error("TLS settings of the collector cannot be used: {0}")]
    Tls(String),
    /// A client certificate without its key, or the other way round.
    #[error("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY need each other")]
    HalfIdentity,
    /// The SDK refused the settings.
    #[error(transparent)]
    Build(#[from] ExporterBuildError),
}

/// One destination.
enum Exporter {
    Otlp(Box<opentelemetry_otlp::SpanExporter>),
    Console,
}

/// All destinations of one pipeline.
pub(super) struct Exporters(Vec<Exporter>);

impl Exporters {
    /// Builds every exporter; the current thread must be inside the export runtime.
    pub(super) fn build(settings: &[ExporterSettings], resource: &Resource) -> Result<Self, ExporterError> {
        let build = |settings: &ExporterSettings| match settings {
            ExporterSettings::Console => Ok(Exporter::Console),
            ExporterSettings::Otlp(otlp) => {
                let mut exporter = match otlp.protocol {
                    OtlpProtocol::Grpc => build_grpc(otlp)?,
                    OtlpProtocol::HttpProtobuf => build_http(otlp)?,
                };
                exporter.set_resource(resource);
                Ok(Exporter::Otlp(Box::new(exporter)))
            }
        };
        settings.iter().map(build).collect::<Result<_, _>>().map(Self)
    }
}

impl Sink for Exporters {
    /// Exports to all destinations at once; fails when one of them fails.
    async fn export(&self, batch: Vec<SpanData>) -> Result<(), String> {
        if let [only] = self.0.as_slice() {
            return only.export(batch).await;
        }
        join_all(self.0.iter().map(|exporter| exporter.export(batch.clone())))
            .await
            .into_iter()
            .collect()
    }
}

impl Exporter {
    async fn export(&self, batch: Vec<SpanData>) -> Result<(), String> {
        match self {
            Self::Otlp(exporter) => exporter.export(batch).await.map_err(|error| error.to_string()),
            Self::Console => write_lines(&batch, &mut std::io::stdout().lock()).map_err(|error| error.to_string()),
        }
    }
}

fn build_grpc(settings: &OtlpSettings) -> Result<opentelemetry_otlp::SpanExporter, ExporterError> {
    let metadata = tonic::metadata::MetadataMap::from_headers(settings.headers.clone());
    let mut builder = opentelemetry_otlp::SpanExporter::builder()
        .with_tonic()
        .with_endpoint(&settings.endpoint)
        .with_protocol(Protocol::Grpc)
        .with_timeout(settings.timeout)
        .with_metadata(metadata);
    if settings.endpoint.starts_with("https:") {
        let mut tls = ClientTlsConfig::new();
        tls = match &settings.certificate {
            Some(path) => tls.ca_certificate(Certificate::from_pem(read(path)?)),
            None => tls.with_native_roots(),
        };
        if let Some((certificate, key)) = identity_files(settings)? {
            tls = tls.identity(Identity::from_pem(read(certificate)?, read(key)?));
        }
        builder = builder.with_tls_config(tls);
    }
    Ok(builder.build()?)
}

fn build_http(settings: &OtlpSettings) -> Result<opentelemetry_otlp::SpanExporter, ExporterError> {
    // The builder percent-decodes values once more, so that a percent sign has to be encoded again.
    let header = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
        Some((name.to_string(), value.to_str().ok()?.replace('%', "%25")))
    };
    let builder = opentelemetry_otlp::SpanExporter::builder()
        .with_http()
        .with_endpoint(&settings.endpoint)
        .with_protocol(Protocol::HttpBinary)
        .with_timeout(settings.timeout)
        .with_headers(settings.headers.iter().filter_map(header).collect());
    // The SDK's own client for the `hyper-client` feature knows no TLS.
    let builder = if settings.endpoint.starts_with("https:") {
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls_config(settings)?)
            .https_only()
            .enable_http1()
            .build();
        builder.with_http_client(HyperClient::new(connector, settings.timeout, None))
    } else {
        builder.with_http_client(HyperClient::with_default_connector(settings.timeout, None))
    };
    Ok(builder.build()?)
}

fn tls_config(settings: &OtlpSettings) -> Result<ClientConfig, ExporterError> {
    let tls_error = |error: rustls::Error| ExporterError::Tls(error.to_string());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(tls_error)?;
    let builder = if let Some(path) = &settings.certificate {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(path)? {
            roots.add(certificate).map_err(tls_error)?;
        }
        builder.with_root_certificates(roots)
    } else {
        builder
            .with_native_roots()
            .map_err(|error| ExporterError::Tls(error.to_string()))?
    };
    match identity_files(settings)? {
        None => Ok(builder.with_no_client_auth()),
        Some((certificate, key)) => {
            let key_der = PrivateKeyDer::from_pem_slice(&read(key)?);
            let key_der = key_der.map_err(|source| pem_error(key, source))?;
            builder
                .with_client_auth_cert(certificates(certificate)?, key_der)
                .map_err(tls_error)
        }
    }
}

fn identity_files(settings: &OtlpSettings) -> Result<Option<(&Path, &Path)>, ExporterError> {
    match (settings.client_certificate.as_deref(), settings.client_key.as_deref()) {
        (None, None) => Ok(None),
        (Some(certificate), Some(key)) => Ok(Some((certificate, key))),
        _ => Err(ExporterError::HalfIdentity),
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ExporterError> {
    let pem = read(path)?;
    let certificates = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.map_err(|source| pem_error(path, source))?;
    if certificates.is_empty() {
        return Err(pem_error(path, pem::Error::NoItemsFound));
    }
    Ok(certificates)
}

fn read(path: &Path) -> Result<Vec<u8>, ExporterError> {
    std::fs::read(path).map_err(|source| ExporterError::File {
        path: path.display().to_string(),
        source,
    })
}

fn pem_error(path: &Path, source: pem::Error) -> ExporterError {
    ExporterError::Pem {
        path: path.display().to_string(),
        source,
    }
}

/// One JSON object a line for each span, for people at a terminal; the form is not an interface.
fn write_lines(batch: &[SpanData], output: &mut impl Write) -> std::io::Result<()> {
    for span in batch {
        let attributes: serde_json::Map<_, _> = span
            .attributes
            .iter()
            .map(|pair| (pair.key.to_string(), pair.value.to_string().into()))
            .collect();
        let error = match &span.status {
            Status::Error { description } => Some(description.as_ref()),
            Status::Unset | Status::Ok => None,
        };
        let events: Vec<&str> = span.events.iter().map(|event| event.name.as_ref()).collect();
        let line = serde_json::json!({
            "name": span.name,
            "kind": format!("{:?}", span.span_kind),
            "trace_id": span.span_context.trace_id().to_string(),
            "span_id": span.span_context.span_id().to_string(),
            "parent_span_id": span.parent_span_id.to_string(),
            "start": timestamp(span.start_time),
            "end": timestamp(span.end_time),
            "error": error,
            "events": events,
            "attributes": attributes,
        });
        writeln!(output, "{line}")?;
    }
    output.flush()
}

fn timestamp(time: std::time::SystemTime) -> Option<String> {
    jiff::Timestamp::try_from(time).ok().map(|time| time.to_string())
}

#[cfg(test)]
#[path = "exporter_tests.rs"]
mod tests;
