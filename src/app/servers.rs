//! The HTTP servers: for probes, and for metrics, which may be behind TLS.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{ProcessOptions, StartError};
use crate::admin::{
    self, AdminState, ApiServerReviewer, CertificateFiles, MetricsAuthorizer, SecureState, ServerCertificate,
    serve_secure,
};
use crate::apiserver::Requests;
use crate::health::Health;
use crate::lease::LeaseHealth;
use crate::telemetry::Telemetry;

/// How metrics are served behind TLS, to who may read them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecureMetrics {
    /// Where.
    pub endpoint: SocketAddr,
    /// With which certificate.
    pub certificate: CertificateFiles,
    /// How long the API server's word that a token is good counts.
    pub counts_for: Duration,
}

/// Who may read the metrics.
#[derive(Clone)]
pub(super) struct MetricsReaders(Arc<MetricsAuthorizer<ApiServerReviewer>>);

impl MetricsReaders {
    /// From now on, the API server is asked by these requests.
    pub fn ask(&self, requests: Requests, options: &ProcessOptions) {
        self.0
            .ask(ApiServerReviewer::new(requests, absolute(&options.metrics_path)));
    }
}

/// The servers that run.
pub(super) struct Servers {
    tasks: JoinSet<()>,
    readers: Option<MetricsReaders>,
}

impl Servers {
    /// Binds the addresses and serves them until `stopped`.
    pub async fn start(
        options: &ProcessOptions,
        telemetry: &Telemetry,
        health: &Health,
        leases: Option<LeaseHealth>,
        stopped: &CancellationToken,
    ) -> Result<Self, StartError> {
        let mut servers = Self {
            tasks: JoinSet::new(),
            readers: None,
        };
        if let Some(address) = options.http_endpoint {
            let listener = bind("--http-endpoint", address).await?;
            let state = AdminState {
                metrics: telemetry.metrics.clone(),
                health: health.clone(),
                metrics_path: options.secure_metrics.is_none().then(|| options.metrics_path.clone()),
                leases,
            };
            servers.tasks.spawn(admin::serve(listener, state, stopped.clone()));
        }
        if let Some(secure) = &options.secure_metrics {
            servers.secure(secure, options, telemetry, health, stopped).await?;
        }
        Ok(servers)
    }

    async fn secure(
        &mut self,
        secure: &SecureMetrics,
        options: &ProcessOptions,
        telemetry: &Telemetry,
        health: &Health,
        stopped: &CancellationToken,
    ) -> Result<(), StartError> {
        let listener = bind("--metrics-secure-endpoint", secure.endpoint).await?;
        // Not ready without a certificate, so that an upgrade that has none stops; volumes are attached all the same.
        let check = health.check("metrics/certificate");
        let certificates = ServerCertificate::follow(secure.certificate.clone(), check, stopped.clone()).await;
        let gatekeeper = Arc::new(MetricsAuthorizer::new(secure.counts_for));
        self.readers = Some(MetricsReaders(Arc::clone(&gatekeeper)));
        let state = SecureState {
            metrics: telemetry.metrics.clone(),
            path: absolute(&options.metrics_path),
            gatekeeper,
        };
        info!(
            address = %secure.endpoint,
            "metrics are served over TLS to clients that may get the nonResourceURL {}", state.path
        );
        self.tasks
            .spawn(serve_secure(listener, state, certificates, stopped.clone()));
        Ok(())
    }

    /// Who may read the metrics, if that is asked.
    pub fn readers(&self) -> Option<MetricsReaders> {
        self.readers.clone()
    }

    /// Waits until all of them ended.
    pub async fn ended(mut self) {
        while let Some(ended) = self.tasks.join_next().await {
            if let Err(error) = ended {
                warn!(%error, "an HTTP server ended badly");
            }
        }
    }
}

async fn bind(flag: &'static str, address: SocketAddr) -> Result<TcpListener, StartError> {
    let bound = TcpListener::bind(address).await;
    bound.map_err(|source| StartError::Listen { flag, address, source })
}

/// A path as a request and a rule of a ClusterRole have it.
fn absolute(path: &str) -> String {
    format!("/{}", path.trim_start_matches('/'))
}
