//! One OTLP collector: an exporter of the SDK over gRPC or HTTP, built again when the files of its certificates change, or when it
//! is not answered.
//!
//! Everything the SDK would read from the process environment is handed over, and the headers that it reads all the same
//! are taken out again, so that one parsed environment decides. Must be used on the export thread's runtime.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::connect::{Connection as _, HttpConnector};
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_http::{Bytes, HttpClient, HttpError};
use opentelemetry_otlp::{
    ExporterBuildError, Protocol, RetryPolicy, SpanExporter, WithExportConfig, WithHttpConfig, WithTonicConfig,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use parking_lot::Mutex;
use rustls::ClientConfig;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use thiserror::Error;
use tokio::time::Instant;
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint};
use tower::BoxError;
use tower::util::ServiceExt as _;

use super::batch::ExportError;
use super::otel_env::{OtlpSettings, TransportSettings};
use csi_attacher_base::error_chain::chain;
use csi_attacher_base::pem::{self, IdentityError};
use csi_attacher_base::server_certificate::{ServerVerifier, Terms, TrustedCertificates, system_authorities};

/// Headers of the SDK itself; all others are ours to decide.
const SDK_HEADERS: [&str; 4] = ["content-type", "content-encoding", "user-agent", "grpc-timeout"];

/// Why there is no gRPC.
const NO_HTTP2: &str = "the collector does not agree on HTTP/2 (ALPN h2): it speaks no gRPC at this port";

/// How long a retry waits at first, and at most unless the collector asks for more. It is the time of a batch that ends retries.
const INITIAL_BACKOFF: Duration = Duration::from_millis(500);
const MAX_BACKOFF: Duration = Duration::from_secs(5);
/// More than there is time for.
const MAX_RETRIES: usize = 1_000;

/// How errors speak of a collector.
const COLLECTOR: Terms = Terms {
    server: "the collector",
    trusted: "the file of OTEL_EXPORTER_OTLP_CERTIFICATE",
    rename: "use one of these in OTEL_EXPORTER_OTLP_ENDPOINT",
};

/// The same where no file names whom to trust.
const PUBLIC_COLLECTOR: Terms = Terms {
    trusted: "the CA certificates of the system",
    ..COLLECTOR
};

/// Why an exporter cannot be built. The texts hold file names and reasons, no contents.
#[derive(Debug, Error)]
enum ExporterError {
    #[error("cannot read {0}: {1}")]
    File(String, std::io::Error),
    #[error("{0} {1}")]
    Pem(String, pem::PemError),
    /// Certificate and key do not go together.
    #[error("the key in {0} is not that of the first certificate in {1}")]
    Mismatch(String, String),
    /// The system has no trusted certificates.
    #[error("TLS settings of the collector cannot be used: {0}")]
    Tls(String),
    #[error("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY need each other")]
    HalfIdentity,
    #[error(transparent)]
    Build(#[from] ExporterBuildError),
    #[error("the collector's URL cannot be used: {0}")]
    Endpoint(String),
}

/// A collector, and the exporter to it while there is one.
pub(super) struct OtlpSink {
    settings: OtlpSettings,
    transport: TransportSettings,
    /// How long a batch may take with all its retries.
    batch_timeout: Duration,
    resource: Resource,
    exporter: Option<SpanExporter>,
    /// Whether a request may have got no answer. Its connection looks like one that works: a proxy that lost the way to the
    /// collector acknowledges what is sent, and a request over gRPC that times out ends its stream alone. Pings would tell, but
    /// servers of gRPC hang up on a client that sends them often.
    is_unanswered: bool,
    /// Why the last request over HTTP failed; the SDK says of each that the network did.
    last_error: LastError,
    /// The TLS files as they were when the exporter was built.
    files: u64,
    /// The error that was logged last, unless the exporter was built since.
    logged: Option<String>,
}

impl OtlpSink {
    /// A collector that each request may take the transport's timeout, and a batch `batch_timeout` with all its retries.
    pub fn new(
        settings: OtlpSettings,
        transport: TransportSettings,
        batch_timeout: Duration,
        resource: Resource,
    ) -> Self {
        Self {
            settings,
            transport,
            batch_timeout,
            resource,
            exporter: None,
            is_unanswered: false,
            last_error: LastError::default(),
            files: 0,
            logged: None,
        }
    }

    /// Builds the exporter when there is none, when a file changed, or when the former one was not answered: its connections
    /// end with it. The former one is kept until the new files can be used. An error is logged once, until it is another one.
    pub fn prepare(&mut self) {
        let files = self.fingerprint();
        let is_changed = files != self.files;
        if self.exporter.is_some() && !is_changed && !self.is_unanswered {
            return;
        }
        match without_sdk_warnings(|| self.build()) {
            Ok(exporter) => {
                if (self.exporter.is_some() && is_changed) || self.logged.take().is_some() {
                    tracing::info!(
                        collector = %self.settings,
                        "the certificates for the collector of traces were read"
                    );
                }
                (self.exporter, self.files, self.logged) = (Some(exporter), files, None);
                self.is_unanswered = false;
            }
            Err(error) => {
                let text = error.to_string();
                if self.logged.as_ref() != Some(&text) {
                    let consequence = match self.exporter {
                        Some(_) => "what was read before stays in use",
                        None => "no spans are sent until that is fixed; attaching is not affected",
                    };
                    tracing::warn!(
                        collector = %self.settings,
                        error = text,
                        "cannot use the settings for the collector of traces: {consequence}"
                    );
                    self.logged = Some(text);
                }
            }
        }
    }

    pub async fn export(&mut self, batch: Vec<SpanData>) -> Result<(), ExportError> {
        self.prepare();
        let Some(exporter) = &self.exporter else {
            return Err(ExportError::NotReady);
        };
        *self.last_error.lock() = None;
        let started = Instant::now();
        // Whoever gives up on this export drops it here.
        self.is_unanswered = true;
        let result = exporter.export(batch).await;
        self.is_unanswered = result.is_err() && started.elapsed() >= self.transport.timeout;
        result.map_err(|error| {
            let cause = self.last_error.lock().take();
            let cause = cause.map(|cause| format!(": {cause}")).unwrap_or_default();
            let hint = self.settings.port_hint();
            ExportError::Failed(format!("{}: {error}{cause}{hint}", self.settings))
        })
    }

    /// Another value when a TLS file has other contents, appeared or went away.
    fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let TransportSettings {
            certificate,
            client_certificate,
            client_key,
            ..
        } = &self.transport;
        for path in [certificate, client_certificate, client_key].into_iter().flatten() {
            if self.settings.is_encrypted() {
                let contents = std::fs::read(path).map_err(|error| error.kind());
                contents.hash(&mut hasher);
            }
        }
        hasher.finish()
    }

    fn build(&self) -> Result<SpanExporter, ExporterError> {
        let mut exporter = match self.settings.protocol {
            Protocol::Grpc => self.build_grpc()?,
            protocol => self.build_http(protocol)?,
        };
        exporter.set_resource(&self.resource);
        Ok(exporter)
    }

    fn build_grpc(&self) -> Result<SpanExporter, ExporterError> {
        let headers = self.transport.headers.clone();
        let ours = move |mut request: tonic::Request<()>| {
            let mut all = std::mem::take(request.metadata_mut()).into_headers();
            replace(&mut all, &headers);
            *request.metadata_mut() = MetadataMap::from_headers(all);
            Ok(request)
        };
        let mut builder = SpanExporter::builder()
            .with_tonic()
            .with_channel(self.channel()?)
            .with_protocol(Protocol::Grpc)
            .with_timeout(self.batch_timeout)
            .with_retry_policy(retry_policy())
            .with_interceptor(ours);
        if let Some(compression) = self.transport.compression {
            builder = builder.with_compression(compression);
        }
        Ok(builder.build()?)
    }

    /// One of our own: the SDK's has one timeout for a request and for a batch with its retries.
    fn channel(&self) -> Result<Channel, ExporterError> {
        let endpoint = Endpoint::from_shared(self.settings.endpoint.clone());
        let endpoint = endpoint.map_err(|error| ExporterError::Endpoint(chain(&error)))?;
        let with_timeouts = |endpoint: Endpoint| {
            endpoint
                .timeout(self.transport.timeout)
                .connect_timeout(self.transport.timeout)
        };
        if !self.settings.is_encrypted() {
            return Ok(with_timeouts(endpoint).connect_with_connector_lazy(self.connector()));
        }
        let https = HttpsConnectorBuilder::new()
            .with_tls_config(tls_config(&self.transport)?)
            .https_only()
            .enable_http2()
            .wrap_connector(self.connector());
        // A URI of https would make tonic ask for TLS of its own, which does not take all certificates of clients.
        let uri = endpoint.uri().clone();
        let dialed = Endpoint::from_static("http://collector").origin(uri.clone());
        let dial = tower::service_fn(move |_: http::Uri| {
            let dial = https.clone().oneshot(uri.clone());
            async move {
                let stream = dial.await?;
                if stream.connected().is_negotiated_h2() {
                    Ok(stream)
                } else {
                    Err(BoxError::from(NO_HTTP2))
                }
            }
        });
        Ok(with_timeouts(dialed).connect_with_connector_lazy(dial))
    }

    /// Connections for all protocols. The addresses that a name has share the time to connect, so that one that swallows packets leaves
    /// some for the next, and all of them leave half of the time of a request for its answer.
    fn connector(&self) -> HttpConnector {
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(self.transport.timeout / 2));
        // A collector whose machine is gone ends the connection: nothing else would before the kernel does, after a quarter of an hour.
        connector.set_tcp_user_timeout(Some(self.transport.timeout));
        connector
    }

    fn build_http(&self, protocol: Protocol) -> Result<SpanExporter, ExporterError> {
        let timeout = self.transport.timeout;
        let mut builder = SpanExporter::builder()
            .with_http()
            .with_endpoint(&self.settings.endpoint)
            .with_protocol(protocol)
            .with_timeout(self.batch_timeout)
            .with_retry_policy(retry_policy());
        if let Some(compression) = self.transport.compression {
            builder = builder.with_compression(compression);
        }
        let headers = self.transport.headers.clone();
        // The SDK's own client for the `hyper-client` feature knows no TLS.
        let client: Arc<dyn HttpClient> = if self.settings.is_encrypted() {
            let connector = HttpsConnectorBuilder::new()
                .with_tls_config(tls_config(&self.transport)?)
                .https_only()
                .enable_http1()
                .wrap_connector(self.connector());
            Arc::new(HyperClient::new(connector, timeout, None))
        } else {
            Arc::new(HyperClient::new(self.connector(), timeout, None))
        };
        let last_error = self.last_error.clone();
        let client = HeaderClient {
            client,
            headers,
            last_error,
        };
        Ok(builder.with_http_client(client).build()?)
    }
}

/// For as long as there is time.
fn retry_policy() -> RetryPolicy {
    RetryPolicy::default()
        .with_max_retries(MAX_RETRIES)
        .with_initial_delay(INITIAL_BACKOFF)
        .with_max_delay(MAX_BACKOFF)
}

/// The SDK reads the environment too when something is built, and would repeat the warnings of `otel_env`.
pub(super) fn without_sdk_warnings<T>(build: impl FnOnce() -> T) -> T {
    tracing::dispatcher::with_default(&tracing::Dispatch::none(), build)
}

/// Sends the headers that we decided on.
#[derive(Debug)]
struct HeaderClient {
    client: Arc<dyn HttpClient>,
    headers: HeaderMap,
    last_error: LastError,
}

type LastError = Arc<Mutex<Option<String>>>;

#[tonic::async_trait]
impl HttpClient for HeaderClient {
    async fn send_bytes(&self, mut request: http::Request<Bytes>) -> Result<http::Response<Bytes>, HttpError> {
        replace(request.headers_mut(), &self.headers);
        let answer = self.client.send_bytes(request).await;
        *self.last_error.lock() = answer.as_ref().err().map(|error| chain(&**error));
        answer
    }
}

/// Takes out what the SDK read from the environment, and puts in what we did.
fn replace(all: &mut HeaderMap, ours: &HeaderMap) {
    let mut kept = HeaderMap::new();
    for name in SDK_HEADERS {
        if let Some(value) = all.get(name) {
            kept.insert(name, value.clone());
        }
    }
    for (name, value) in ours {
        kept.insert(name, value.clone());
    }
    *all = kept;
}

fn tls_config(settings: &TransportSettings) -> Result<ClientConfig, ExporterError> {
    let tls_error = |error: rustls::Error| ExporterError::Tls(error.to_string());
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(tls_error)?;
    let builder = builder
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier(settings)?));
    Ok(match identity(settings)? {
        None => builder.with_no_client_auth(),
        Some(own) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(own))),
    })
}

fn read(path: &Path) -> Result<Vec<u8>, ExporterError> {
    std::fs::read(path).map_err(|error| ExporterError::File(path.display().to_string(), error))
}

/// What is wrong with the text of this file.
fn bad(path: &Path, problem: pem::PemError) -> ExporterError {
    ExporterError::Pem(path.display().to_string(), problem)
}

/// Trusts the certificates of the settings; without any, those of the system are trusted.
fn verifier(settings: &TransportSettings) -> Result<ServerVerifier<TrustedCertificates>, ExporterError> {
    let (trusted, terms) = if let Some(path) = &settings.certificate {
        let trusted = pem::authorities(&read(path)?).map_err(|problem| bad(path, problem))?;
        (trusted.into(), COLLECTOR)
    } else {
        let none = "the system has no CA certificates: set OTEL_EXPORTER_OTLP_CERTIFICATE";
        let trusted = system_authorities().ok_or_else(|| ExporterError::Tls(none.to_owned()))?;
        (trusted, PUBLIC_COLLECTOR)
    };
    Ok(ServerVerifier::new(trusted, terms, &default_provider()))
}

/// The operator's own certificate and its key.
fn identity(settings: &TransportSettings) -> Result<Option<CertifiedKey>, ExporterError> {
    let (certificate, key) = match (&settings.client_certificate, &settings.client_key) {
        (None, None) => return Ok(None),
        (Some(certificate), Some(key)) => (certificate, key),
        _ => return Err(ExporterError::HalfIdentity),
    };
    let own = pem::identity(&read(certificate)?, &read(key)?, &default_provider());
    own.map(Some).map_err(|error| match error {
        IdentityError::Certificate(problem) => bad(certificate, problem),
        IdentityError::Key(problem) => bad(key, problem),
        IdentityError::Mismatch => {
            ExporterError::Mismatch(key.display().to_string(), certificate.display().to_string())
        }
    })
}

#[cfg(test)]
#[path = "collector_tests.rs"]
mod tests;
