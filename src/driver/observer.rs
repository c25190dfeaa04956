//! What the queue of a driver tells, as metrics.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;
use tracing::error;

use crate::queue::{Lane, Observer};
use crate::store::VOLUME;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::names;

/// Feeds the `workqueue_*` families of one driver.
pub(super) struct QueueMetrics {
    pub driver: Arc<str>,
    pub metrics: Metrics,
    /// Depth of the attach and the detach lane, which make up one queue of the Go sidecar.
    pub depths: [std::sync::atomic::AtomicUsize; 2],
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
        self.metrics.queue_added(&self.driver, queue_name(lane));
    }

    fn retried(&self, lane: Lane) {
        self.metrics.queue_retried(&self.driver, queue_name(lane));
    }

    fn depth(&self, lane: Lane, depth: usize) {
        use std::sync::atomic::Ordering::Relaxed;
        let total = match self.depths.get(lane.index()) {
            Some(own) => {
                own.store(depth, Relaxed);
                self.depths.iter().map(|depth| depth.load(Relaxed)).sum()
            }
            None => depth,
        };
        self.metrics.queue_depth(&self.driver, queue_name(lane), total);
    }

    fn waited(&self, lane: Lane, waited: Duration) {
        self.metrics.queue_waited(&self.driver, queue_name(lane), waited);
    }

    fn worked(&self, lane: Lane, worked: Duration) {
        self.metrics.queue_worked(&self.driver, queue_name(lane), worked);
    }

    fn panicked(&self, _lane: Lane, key: &dyn Debug, message: &str) {
        error!(
            driver = &*self.driver,
            ?key,
            message,
            "a reconcile panicked; it will be tried again"
        );
    }
}
