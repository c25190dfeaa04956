//! The metrics of a driver's queue.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tracing::error;

use crate::cache::VOLUME;
use crate::queue::{Lane, Observer};
use crate::telemetry::metrics::{Metrics, QueueSeries};
use crate::telemetry::names;

/// Feeds the families of the work queues of one driver.
pub(super) struct QueueMetrics {
    driver: Arc<str>,
    attachments: QueueSeries,
    volumes: QueueSeries,
    /// Depth of the attach and the detach lane, which make up one queue of the Go sidecar.
    depths: [AtomicUsize; 2],
}

impl QueueMetrics {
    /// Counts for this driver, from zero.
    pub fn new(driver: Arc<str>, metrics: &Metrics) -> Self {
        let series = |queue| metrics.queue(&driver, queue);
        Self {
            attachments: series(names::QUEUE_VOLUME_ATTACHMENT),
            volumes: series(names::QUEUE_PERSISTENT_VOLUME),
            driver,
            depths: Default::default(),
        }
    }

    fn of(&self, lane: Lane) -> &QueueSeries {
        if lane == VOLUME {
            &self.volumes
        } else {
            &self.attachments
        }
    }
}

/// The name of the Go sidecar's queue, in metrics and on spans.
pub(super) fn queue_name(lane: Lane) -> &'static str {
    if lane == VOLUME {
        names::QUEUE_PERSISTENT_VOLUME
    } else {
        names::QUEUE_VOLUME_ATTACHMENT
    }
}

impl Observer for QueueMetrics {
    fn added(&self, lane: Lane) {
        self.of(lane).added();
    }

    fn retried(&self, lane: Lane) {
        self.of(lane).retried();
    }

    fn depth(&self, lane: Lane, depth: usize) {
        let total = match self.depths.get(lane.index()) {
            Some(own) => {
                own.store(depth, Relaxed);
                self.depths.iter().map(|depth| depth.load(Relaxed)).sum()
            }
            None => depth,
        };
        self.of(lane).depth(total);
    }

    fn waited(&self, lane: Lane, waited: Duration) {
        self.of(lane).waited(waited);
    }

    fn worked(&self, lane: Lane, worked: Duration) {
        self.of(lane).worked(worked);
    }

    fn panicked(&self, lane: Lane, key: &dyn Debug, message: &str) {
        self.of(lane).panicked();
        error!(
            driver = &*self.driver,
            ?key,
            message,
            "a reconcile panicked; it will be retried"
        );
    }
}
