mod candidate;
mod connection;
mod deadlock;
mod deleted;
mod election;
mod record;
mod rivals;
mod settings;
mod shares;
mod sidecar;
mod standstill;
mod term;

use std::time::Duration;

use super::LeaseTimings;

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The sidecar's times.
fn usual() -> LeaseTimings {
    LeaseTimings::new(seconds(15), seconds(10), seconds(5)).unwrap()
}
