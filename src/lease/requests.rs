//! Reading a Lease.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use tokio::time::timeout;

use crate::error_chain::chain;

/// Why a Lease could not be read.
pub(super) enum Unread {
    /// It may not be; what the API server says.
    Forbidden(String),
    /// Another error, in words.
    Failed(String),
}

/// Reads a Lease as it is, past every cache; none when the API server says of this very object that it is not there.
pub(super) async fn read_lease(api: &Api<Lease>, name: &str, limit: Duration) -> Result<Option<Lease>, Unread> {
    match timeout(limit, api.get(name)).await {
        Ok(Ok(lease)) => Ok(Some(lease)),
        Ok(Err(kube::Error::Api(status))) if status.code == 403 => Err(Unread::Forbidden(status.message.clone())),
        Ok(Err(kube::Error::Api(status)))
            if status.reason == "NotFound" && status.details.as_ref().is_some_and(|details| details.name == name) =>
        {
            Ok(None)
        }
        Ok(Err(error)) => Err(Unread::Failed(chain(&error))),
        Err(_) => Err(Unread::Failed(no_answer(limit))),
    }
}

/// That nothing was answered in time.
pub(super) fn no_answer(limit: Duration) -> String {
    format!("no answer from the API server within {} s", limit.as_secs_f64())
}
