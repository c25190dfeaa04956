//! From the settings of a driver to those of its queue and its requests.

use crate::api::validated::{BackoffSettings, DriverConfig};
use crate::apiserver::RateLimit;
use crate::queue::{Backoff, Rate};

/// Failed attempts that one queue goes on with in a second. A backoff of milliseconds, or thousands of keys that fail, would else take
/// the processor from all other drivers. With the default backoff it takes 6,000 failing keys to reach it.
const FAILURES_PER_SECOND: u32 = 100;

/// How many failed attempts a queue goes on with in a second, and how many that only wait.
pub fn failures_per_second() -> Rate {
    Rate::from(FAILURES_PER_SECOND)
}

/// The limit of the requests to the API server for a driver; none when the settings have none.
pub fn api_limit(config: &DriverConfig) -> Option<RateLimit> {
    config.kubernetes_api.map(|limit| RateLimit {
        per_second: f64::from(limit.qps.get()),
        burst: limit.burst.get(),
    })
}

/// The waits after failures. Settings were validated when the AttacherConfig was read, so that the fall-backs here are never taken.
pub fn backoff(settings: &BackoffSettings) -> Backoff {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let jitter_percent = (settings.jitter * 100.0).round().clamp(0.0, 100.0) as u8;
    Backoff::new(settings.initial, settings.max, settings.factor, jitter_percent).unwrap_or_default()
}
