//! Gauges of a driver, set once a second: how much waits, and for how long.

use std::time::Duration;

use crate::api::condition::ConditionReason;
use crate::api::validated::DriverConfig;
use crate::cache::{ATTACH, AttacherKey, DETACH, VOLUME};
use crate::clock;
use crate::driver::SharedContext;
use crate::queue::Stats;
use crate::telemetry::metrics::LaneGauges;
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
    let (mut attachments, mut volumes) = ((Duration::ZERO, Duration::ZERO), (Duration::ZERO, Duration::ZERO));
    let limits = &config.concurrency;
    for (lane, operation, limit) in [(ATTACH, "attach", limits.attach), (DETACH, "detach", limits.detach)] {
        let Some(lane) = queue.lanes.get(lane.index()) else {
            continue;
        };
        let gauges = LaneGauges {
            waiting: lane.ready,
            oldest_waiting: lane
                .oldest_ready_since
                .map(|since| Instant::now().duration_since(since)),
            in_flight: lane.running,
            limit: limit.map(std::num::NonZeroUsize::get),
        };
        metrics.lane(driver, operation, &gauges);
    }
    for (index, lane) in queue.lanes.iter().enumerate() {
        let sums = if index == VOLUME.index() {
            &mut volumes
        } else {
            &mut attachments
        };
        sums.0 += lane.unfinished;
        sums.1 = sums.1.max(lane.longest_running.unwrap_or_default());
    }
    metrics.queue_in_progress(driver, names::QUEUE_VOLUME_ATTACHMENT, attachments.0, attachments.1);
    metrics.queue_in_progress(driver, names::QUEUE_PERSISTENT_VOLUME, volumes.0, volumes.1);
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
