//! Access to the API server: the HTTP/2 connection, and the few requests that an attacher sends.
//!
//! Must not decide anything: it sends what it is given, once, within a deadline, and says exactly how it ended. It never
//! retries by itself; a write that timed out may have happened, and only the caller can look.

mod answer;
mod connect;
mod connection;
mod drivers;
mod error;
mod events;
mod gate;
mod measured;
mod patience;
mod requests;
mod reviews;
mod secret_data;
mod secrets;
mod share;
mod spans;
mod throttle;

#[cfg(test)]
pub(crate) mod tests;

#[cfg(test)]
pub(crate) use connect::over;
pub use connect::{ConnectError, connect, connect_counted, load_config, load_pod_config};
pub use drivers::CsiDriver;
pub use error::{ApiError, ApiErrorKind};
pub use requests::{Requests, Returned};
pub use reviews::Identity;
pub use secret_data::SecretData;
pub use secrets::{SecretEvent, pause_after};
pub use share::{Limits as PlaceLimits, Places};
pub use throttle::{RateLimit, Throttle};
