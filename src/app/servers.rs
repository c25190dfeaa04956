//! The HTTP server for probes and metrics.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::tasks::SharedTasks;
use super::{ProcessOptions, StartError};
use crate::admin::{self, AdminState};
use crate::health::Health;
use crate::lease::LeaseHealth;
use crate::telemetry::Telemetry;

/// Binds the address and serves it until `stopped`.
pub(super) async fn start(
    options: &ProcessOptions,
    telemetry: &Telemetry,
    health: &Health,
    leases: Option<LeaseHealth>,
    stopped: &CancellationToken,
) -> Result<SharedTasks, StartError> {
    let mut servers = SharedTasks::default();
    if let Some(address) = &options.http_endpoint {
        let listener = address.bind().await.map_err(|source| StartError::Listen {
            address: address.clone(),
            source,
        })?;
        let state = AdminState {
            metrics: Arc::new(telemetry.metrics.clone()),
            health: health.clone(),
            metrics_path: options.metrics_path.clone(),
            leases,
        };
        servers.spawn("http-endpoint", admin::serve(listener, state, stopped.clone()));
    }
    Ok(servers)
}
