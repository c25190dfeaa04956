//! Gauges of a driver, set once a second: how much waits, and for how long.

use std::time::Duration;

use crate::api::condition::Reason;
use crate::api::validated::DriverConfig;
use crate::clock;
use crate::driver::{Context, RELEASES_AT_ONCE};
use crate::queue::Stats;
use crate::store::{ATTACH, AttacherKey, DETACH, VOLUME};
use crate::telemetry::metrics::{Controller, LaneGauges, Metrics};
use crate::telemetry::names;
use tokio::time::Instant;

use super::saturation::Saturation;

/// Sets the gauges of one driver from the figures of its queue.
pub(super) fn set(context: &Context, driver: &str, queue: &Stats<AttacherKey>, config: &DriverConfig) {
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
pub(super) fn set_saturated(context: &Context, driver: &str, saturation: &Saturation) {
    for reason in [Reason::LaneFull, Reason::RateLimited, Reason::NodeLimit] {
        let holds = saturation.reasons().any(|other| other == reason);
        context.metrics.saturated(driver, reason.as_str(), holds);
    }
}

/// How many reconciles may be under way at once, over all drivers.
#[derive(Default)]
pub(super) struct Most {
    attachments: usize,
    volumes: usize,
    /// Some driver has no limit.
    unlimited: bool,
}

impl Most {
    /// Adds what one driver may do.
    pub fn add(&mut self, config: &DriverConfig) {
        let limits = &config.concurrency;
        for lane in [limits.attach, limits.detach] {
            match lane {
                Some(limit) => self.attachments += limit.get(),
                None => self.unlimited = true,
            }
        }
        self.volumes += RELEASES_AT_ONCE;
    }

    pub fn show(&self, metrics: &Metrics) {
        let attachments = if self.unlimited { 0 } else { self.attachments };
        metrics.controller(Controller::VolumeAttachment).at_most(attachments);
        metrics.controller(Controller::PersistentVolume).at_most(self.volumes);
    }
}
