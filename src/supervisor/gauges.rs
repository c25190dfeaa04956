//! Gauges of a driver, set once a second: how much waits, and for how long.

use crate::api::condition::ConditionReason;
use crate::api::validated::DriverConfig;
use crate::cache::{ATTACH, AttacherKey, DETACH, LANE_NAMES};
use crate::clock;
use crate::driver::SharedContext;
use crate::queue::{Lane, LaneStats, Stats};
use crate::runtime::queue_metrics::{LaneNames, queue_name};
use crate::telemetry::Metrics;
use crate::telemetry::names::QUEUE_CLAIMS;
use csi_attacher_provision::{CREATE, DELETE, WorkKey};
use std::collections::BTreeSet;
use std::num::NonZeroUsize;

use super::provisioning_state::PendingWork;
use super::saturation::Saturation;

/// Sets the gauges of one driver from the figures of its queue, which `saturation` has observed.
pub(super) fn set(
    context: &SharedContext,
    driver: &str,
    queue: &Stats<AttacherKey>,
    config: &DriverConfig,
    saturation: &Saturation,
) {
    let (store, metrics) = (&context.store, &context.metrics);
    let counts = store.counts(driver);
    metrics.volume_attachments(driver, "attached", counts.attached);
    metrics.volume_attachments(driver, "attaching", counts.attaching);
    metrics.volume_attachments(driver, "detaching", counts.detaching);
    for (operation, pending) in [("attach", counts.attaching), ("detach", counts.detaching)] {
        let oldest = (pending > 0)
            .then(|| store.oldest_pending_of(driver, operation == "detach"))
            .flatten();
        let since = oldest.and_then(|record| record.pending_since());
        metrics.oldest_pending(driver, operation, since.map(clock::since).unwrap_or_default());
    }
    let limits = &config.concurrency;
    for (lane, operation, limit) in [(ATTACH, "attach", limits.attach), (DETACH, "detach", limits.detach)] {
        if let Some(lane) = queue.lanes.get(lane.index()) {
            set_lane(metrics, driver, operation, lane, limit, saturation);
        }
    }
    set_work(metrics, driver, queue, LANE_NAMES);
    set_saturated(metrics, driver, ConditionReason::ATTACHING_SATURATED, saturation);
}

/// Sets the gauges of the work in progress, by the name of the queue.
fn set_work<K>(metrics: &Metrics, driver: &str, stats: &Stats<K>, names: LaneNames) {
    for name in names.iter().copied().collect::<BTreeSet<_>>() {
        let lanes = || lanes_of(stats, names, name);
        let longest = lanes().filter_map(|lane| lane.longest_running).max();
        metrics.queue_unfinished(driver, name, lanes().map(|lane| lane.unfinished).sum());
        metrics.queue_longest(driver, name, longest.unwrap_or_default());
    }
}

/// The lanes that count for the queue of a name; those beyond the names count for the last one.
fn lanes_of<'s, K>(
    stats: &'s Stats<K>,
    names: LaneNames,
    name: &'static str,
) -> impl Iterator<Item = &'s LaneStats<K>> {
    let lanes = (0..).map(Lane::new).zip(&stats.lanes);
    lanes.filter_map(move |(lane, stats)| (queue_name(names, lane) == name).then_some(stats))
}

fn set_lane<K>(
    metrics: &Metrics,
    driver: &str,
    operation: &'static str,
    lane: &LaneStats<K>,
    limit: Option<NonZeroUsize>,
    saturation: &Saturation,
) {
    metrics.lane_waiting(driver, operation, lane.ready);
    metrics.lane_oldest_waiting(driver, operation, saturation.oldest_wait(lane));
    metrics.lane_in_flight(driver, operation, lane.running);
    metrics.lane_limit(driver, operation, limit.map_or(0, NonZeroUsize::get));
}

/// Those for which the driver may be called, and those that are only written.
fn lanes_of_claims(stats: &Stats<WorkKey>) -> impl Iterator<Item = &LaneStats<WorkKey>> {
    lanes_of(stats, csi_attacher_provision::LANE_NAMES, QUEUE_CLAIMS)
}

/// How many claims, and how many deletions of volumes, have failed and wait.
pub(super) fn failing(stats: &Stats<WorkKey>) -> (usize, usize) {
    let volumes = stats.lanes.get(DELETE.index()).map_or(0, |lane| lane.failing);
    (lanes_of_claims(stats).map(|lane| lane.failing).sum(), volumes)
}

/// Sets the gauges of the provisioning of one driver from the figures of its queue, which `saturation` has observed.
pub(super) fn set_provisioning(
    metrics: &Metrics,
    driver: &str,
    stats: &Stats<WorkKey>,
    pending: &PendingWork,
    config: &DriverConfig,
    saturation: &Saturation,
) {
    let kept = pending.kept;
    let limits = config.provisioning.as_ref();
    let limits = limits.map(|settings| (settings.create, settings.delete));
    let (create, delete) = limits.unwrap_or_default();
    if let Some(lane) = stats.lanes.get(CREATE.index()) {
        let of_claims = || lanes_of_claims(stats);
        metrics.claims(driver, "waiting", of_claims().map(|lane| lane.ready).sum());
        metrics.claims(driver, "provisioning", of_claims().map(|lane| lane.running).sum());
        metrics.claims(driver, "uncertain", pending.uncertain);
        metrics.claims(driver, "failing", pending.claims.failing);
        set_lane(metrics, driver, "provision", lane, create, saturation);
    }
    if let Some(lane) = stats.lanes.get(DELETE.index()) {
        metrics.volumes(driver, "waiting", lane.ready + kept.attached + kept.unclear);
        metrics.volumes(driver, "deleting", lane.running);
        metrics.volumes(driver, "failing", pending.volumes.failing);
        metrics.volumes(driver, "held", kept.held);
        set_lane(metrics, driver, "delete", lane, delete, saturation);
    }
    metrics.oldest_pending(driver, "provision", pending.claims.age());
    metrics.oldest_pending(driver, "delete", pending.volumes.age());
    set_work(metrics, driver, stats, csi_attacher_provision::LANE_NAMES);
    set_saturated(metrics, driver, ConditionReason::PROVISIONING_SATURATED, saturation);
}

/// Sets the gauges behind the condition Saturated.
fn set_saturated(metrics: &Metrics, driver: &str, reasons: [ConditionReason; 3], saturation: &Saturation) {
    for reason in reasons {
        let holds = saturation.reasons().any(|other| other == reason);
        metrics.saturated(driver, reason.as_str(), holds);
    }
}
