//! Reading a Lease.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use tokio::time::timeout;

use crate::error_chain::chain;

/// Why a Lease, or the record of its place, could not be read or written.
#[derive(Debug, thiserror::Error)]
pub(super) enum LeaseRequestError {
    /// Nothing was answered in time.
    #[error("no answer from the API server within {} s", .0.as_secs_f64())]
    NoAnswer(Duration),
    /// A permission is missing: what the API server says, and where it is known, which one.
    #[error("{0}")]
    Forbidden(String),
    /// Somebody else holds it.
    #[error("it belongs to {0}")]
    HeldBy(String),
    /// Another answer of the API server, or no connection to it.
    #[error("{0}")]
    Failed(String),
}

impl From<kube::Error> for LeaseRequestError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.code == 403 => Self::Forbidden(status.message.clone()),
            error => Self::Failed(chain(&error)),
        }
    }
}

/// A request, which is given up after a time.
pub(super) async fn bounded<T>(
    limit: Duration,
    request: impl Future<Output = kube::Result<T>>,
) -> Result<kube::Result<T>, LeaseRequestError> {
    timeout(limit, request)
        .await
        .map_err(|_| LeaseRequestError::NoAnswer(limit))
}

/// Reads a Lease as it is, past every cache; none when the API server says of this very object that it is not there.
pub(super) async fn read_lease(
    api: &Api<Lease>,
    name: &str,
    limit: Duration,
) -> Result<Option<Lease>, LeaseRequestError> {
    match bounded(limit, api.get(name)).await? {
        Ok(lease) => Ok(Some(lease)),
        Err(kube::Error::Api(status))
            if status.reason == "NotFound" && status.details.as_ref().is_some_and(|details| details.name == name) =>
        {
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}
