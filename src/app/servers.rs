//! The HTTP servers: for probes, and for metrics, which may be behind TLS.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::tasks::{SharedTaskError, SharedTasks};
use super::{ProcessOptions, StartError};
use crate::admin::{
    self, AdminState, ApiServerReviewer, CertificateFiles, ListenAddress, MetricsAuthorizer, SecureState,
    ServerCertificate, serve_secure,
};
use crate::apiserver::Requests;
use crate::health::Health;
use crate::lease::LeaseHealth;
use crate::telemetry::Telemetry;

/// How metrics are served behind TLS, to who may read them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecureMetrics {
    /// Where.
    pub endpoint: ListenAddress,
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
    tasks: SharedTasks,
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
            tasks: SharedTasks::default(),
            readers: None,
        };
        if let Some(address) = &options.http_endpoint {
            let listener = bind("--http-endpoint", address).await?;
            let state = AdminState {
                metrics: telemetry.metrics.clone(),
                health: health.clone(),
                metrics_path: options.secure_metrics.is_none().then(|| options.metrics_path.clone()),
                leases,
            };
            let server = admin::serve(listener, state, stopped.clone());
            servers.tasks.spawn("http-endpoint", server);
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
        let listener = bind("--metrics-secure-endpoint", &secure.endpoint).await?;
        // Not ready without a certificate, so that an upgrade that has none stops; volumes are attached all the same.
        let check = health.check("metrics/certificate");
        let files = secure.certificate.clone();
        let (certificates, follow) = ServerCertificate::follow(files, check, stopped.clone()).await;
        self.tasks.spawn("metrics-certificate", follow);
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
        let server = serve_secure(listener, state, certificates, stopped.clone());
        self.tasks.spawn("metrics-secure-endpoint", server);
        Ok(())
    }

    /// Who may read the metrics, if that is asked.
    pub fn readers(&self) -> Option<MetricsReaders> {
        self.readers.clone()
    }

    /// Resolves when one of them ends.
    pub async fn failed(&mut self) -> SharedTaskError {
        self.tasks.failed().await
    }

    /// Waits until all of them ended, after they were asked to.
    pub async fn ended(self) {
        self.tasks.ended().await;
    }
}

async fn bind(flag: &'static str, address: &ListenAddress) -> Result<TcpListener, StartError> {
    let failed = |source| StartError::Listen {
        flag,
        address: address.clone(),
        source,
    };
    address.bind().await.map_err(failed)
}

/// A path as a request and a rule of a ClusterRole have it.
fn absolute(path: &str) -> String {
    format!("/{}", path.trim_start_matches('/'))
}
