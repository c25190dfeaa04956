//! Gauges of a driver, set once a second: how much waits, and for how long.

use std::time::Duration;

use crate::clock;
use crate::driver::Context;
use crate::queue::Queue;
use crate::store::{AttacherKey, VOLUME};
use crate::telemetry::names;

/// Sets the gauges of one driver.
pub(super) fn set(context: &Context, driver: &str, queue: &Queue<AttacherKey>) {
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
    for (index, lane) in queue.stats().lanes.iter().enumerate() {
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
