//! A time from now that cannot overflow.

use std::time::Duration;

use tokio::time::Instant;

/// The instant `delay` after `now`; some decades ahead when the sum cannot be represented.
pub(super) fn later(now: Instant, delay: Duration) -> Instant {
    const FAR: Duration = Duration::from_hours(24 * 365 * 30);
    now.checked_add(delay).or_else(|| now.checked_add(FAR)).unwrap_or(now)
}
