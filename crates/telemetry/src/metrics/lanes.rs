//! The lanes of a driver: what waits, what runs, and how much of it may.

use std::time::Duration;

use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::families::{FloatGauge, per_driver};
use super::family::DriverFamily;

/// What waits and what runs in one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneGauges {
    /// Attachments that are ready and queued.
    pub waiting: usize,
    /// How long the first of them waits.
    pub oldest_waiting: Option<Duration>,
    /// Attachments that are worked on.
    pub in_flight: usize,
    /// How many may be worked on at once; none is no limit.
    pub limit: Option<usize>,
}

/// Gauges over the lanes.
pub(super) struct LaneFamilies {
    pub(super) waiting: DriverFamily<Gauge>,
    pub(super) oldest_waiting: DriverFamily<FloatGauge>,
    pub(super) in_flight: DriverFamily<Gauge>,
    pub(super) limit: DriverFamily<Gauge>,
    pub(super) saturated: DriverFamily<Gauge>,
}

impl LaneFamilies {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let help = "Seconds that the oldest ready attachment has been queued";
        let name = "csi_attacher_lane_oldest_waiting_seconds";
        let oldest_waiting = per_driver(registry, name, help, FloatGauge::default);
        let mut gauge = |name, help| per_driver(registry, name, help, Gauge::default);
        Self {
            oldest_waiting,
            waiting: gauge("csi_attacher_lane_waiting", "Attachments that are ready and queued"),
            in_flight: gauge("csi_attacher_lane_in_flight", "Attachments that are worked on"),
            limit: gauge(
                "csi_attacher_lane_limit",
                "Maximum number of attachments in progress in parallel; 0 is no limit",
            ),
            saturated: gauge(
                "csi_attacher_saturated",
                "1 while a limit of spec.concurrency delays attaches or detaches, by the reason of the condition Saturated",
            ),
        }
    }

    pub(super) fn forget(&self, driver: &str) {
        self.waiting.forget(driver);
        self.oldest_waiting.forget(driver);
        self.in_flight.forget(driver);
        self.limit.forget(driver);
        self.saturated.forget(driver);
    }
}
