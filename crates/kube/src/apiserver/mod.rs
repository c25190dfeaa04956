//! Access to the API server: the HTTP/2 connection, and the few requests that an attacher sends.
//!
//! Must not decide anything: it sends what it is given, once, within a deadline, and says exactly how it ended. It never
//! retries by itself; a write that timed out may have happened, and only the caller can look.

mod answer;
mod cluster;
mod connect;
mod connect_error;
mod connection;
mod flow;
mod list_watch;
mod pages;
mod proxy;
mod refusal;
mod requests;
mod secret_data;
mod secret_poll;
mod tls;

#[cfg(test)]
pub(crate) mod tests;

pub use answer::ObjectName;
pub use cluster::{load_config, load_pod_config};
#[cfg(test)]
pub(crate) use connect::over;
pub use connect::{WatchConnection, connect, connect_counted};
pub use connect_error::ConnectError;
pub use connection::{WATCHES_DEAD_AFTER, is_unprocessed};
pub use csi_attacher_model::answer::{ApiError, ApiErrorKind, Returned};
pub use flow::slots::{RequestSlots, SlotLimits};
pub use flow::throttle::{RateLimit, Throttle};
pub use requests::{RequestDeadlines, Requests};
pub use secret_data::{HeldSecret, SecretData, SecretWire};
pub use secret_poll::{MAX_PAUSE, SecretEvent, pause_after};

pub use crate::kinds::{CapacityWire, CsiDriver, CsiDriverWire};
