//! The metrics of a driver's queue.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tracing::error;

use crate::queue::{Lane, Observer};
use crate::telemetry::metrics::{Metrics, QueueSeries};

/// The name of the queue that each lane counts for, in metrics and on spans: by the index of the lane. Lanes of one name make up one queue.
pub type LaneNames = &'static [&'static str];

/// Feeds the families of the work queues of one driver.
pub struct QueueMetrics {
    driver: Arc<str>,
    lanes: Vec<LaneSeries>,
}

/// The series of a lane, and how many keys are ready in it.
struct LaneSeries {
    name: &'static str,
    series: QueueSeries,
    depth: AtomicUsize,
}

/// The name of the queue of a lane; a lane without a name counts for the last one.
pub fn queue_name(names: LaneNames, lane: Lane) -> &'static str {
    names.get(lane.index()).or(names.last()).copied().unwrap_or_default()
}

impl QueueMetrics {
    /// Counts for this driver, from zero.
    pub fn new(driver: Arc<str>, names: LaneNames, metrics: &Metrics) -> Self {
        let lane = |name: &&'static str| LaneSeries {
            name,
            series: metrics.queue(&driver, name),
            depth: AtomicUsize::new(0),
        };
        Self {
            lanes: names.iter().map(lane).collect(),
            driver,
        }
    }

    fn of(&self, lane: Lane) -> Option<&LaneSeries> {
        self.lanes.get(lane.index()).or(self.lanes.last())
    }
}

impl Observer for QueueMetrics {
    fn added(&self, lane: Lane) {
        if let Some(lane) = self.of(lane) {
            lane.series.added();
        }
    }

    fn retried(&self, lane: Lane) {
        if let Some(lane) = self.of(lane) {
            lane.series.retried();
        }
    }

    fn depth(&self, lane: Lane, depth: usize) {
        let Some(own) = self.of(lane) else { return };
        own.depth.store(depth, Relaxed);
        let of_queue = self.lanes.iter().filter(|other| other.name == own.name);
        own.series.depth(of_queue.map(|other| other.depth.load(Relaxed)).sum());
    }

    fn waited(&self, lane: Lane, waited: Duration) {
        if let Some(lane) = self.of(lane) {
            lane.series.waited(waited);
        }
    }

    fn worked(&self, lane: Lane, worked: Duration) {
        if let Some(lane) = self.of(lane) {
            lane.series.worked(worked);
        }
    }

    fn panicked(&self, lane: Lane, key: &dyn Debug, message: &str) {
        if let Some(lane) = self.of(lane) {
            lane.series.panicked();
        }
        error!(
            driver = &*self.driver,
            ?key,
            error = message,
            "a reconcile panicked; it will be retried"
        );
    }
}
