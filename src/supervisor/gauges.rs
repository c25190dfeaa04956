//! Gauges of a driver, set once a second: how much waits, and for how long.

use crate::api::condition::ConditionReason;
use crate::api::validated::DriverConfig;
use crate::cache::{ATTACH, AttacherKey, DETACH, VOLUME};
use crate::clock;
use crate::driver::SharedContext;
use crate::queue::Stats;
use crate::telemetry::names;
use tokio::time::Instant;

use super::saturation::Saturation;

/// Sets the gauges of one driver from the figures of its queue.
pub(super) fn set(context: &SharedContext, driver: &str, queue: &Stats<AttacherKey>, config: &DriverConfig) {
    let (store, metrics) = (&context.store, &context.metrics);
    let counts = store.counts(driver);
    metrics.volume_attachments(driver, "attached", counts.attached);
    metrics.volume_attachments(driver, "attaching", counts.attaching);
    metrics.volume_attachments(driver, "detaching", counts.detaching);
    for (operation, pending) in [("attach", counts.attaching), ("detach", counts.detaching)] {
        let oldest = (pending > 0)
            .then(|| store.oldest_pending_of(driver, operation == "detach"))
            .flatten();
        let since = oldest.and_then(|record| record.deleting.or(record.created));
        metrics.oldest_pending(driver, operation, since.map(clock::since).unwrap_or_default());
    }
    let limits = &config.concurrency;
    for (lane, operation, limit) in [(ATTACH, "attach", limits.attach), (DETACH, "detach", limits.detach)] {
        let Some(lane) = queue.lanes.get(lane.index()) else {
            continue;
        };
        let waits = lane
            .oldest_ready_since
            .map(|since| Instant::now().duration_since(since));
        metrics.lane_waiting(driver, operation, lane.ready);
        metrics.lane_oldest_waiting(driver, operation, waits.unwrap_or_default());
        metrics.lane_in_flight(driver, operation, lane.running);
        metrics.lane_limit(driver, operation, limit.map_or(0, std::num::NonZeroUsize::get));
    }
    for (name, of_volumes) in [
        (names::QUEUE_VOLUME_ATTACHMENT, false),
        (names::QUEUE_PERSISTENT_VOLUME, true),
    ] {
        let lanes = || {
            let lanes = queue.lanes.iter().enumerate();
            lanes.filter_map(|(index, lane)| ((index == VOLUME.index()) == of_volumes).then_some(lane))
        };
        let longest = lanes().filter_map(|lane| lane.longest_running).max();
        metrics.queue_unfinished(driver, name, lanes().map(|lane| lane.unfinished).sum());
        metrics.queue_longest(driver, name, longest.unwrap_or_default());
    }
}

/// Sets the gauges behind the condition Saturated.
pub(super) fn set_saturated(context: &SharedContext, driver: &str, saturation: &Saturation) {
    for reason in [
        ConditionReason::LaneFull,
        ConditionReason::RateLimited,
        ConditionReason::NodeLimit,
    ] {
        let holds = saturation.reasons().any(|other| other == reason);
        context.metrics.saturated(driver, reason.as_str(), holds);
    }
}
