//! What the queue of a driver tells, as metrics: of the queue itself, and of the controllers of controller-runtime.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tracing::error;

use crate::queue::{Lane, Observer, Verdict};
use crate::store::{ATTACH, AttacherKey, DETACH, VOLUME};
use crate::telemetry::metrics::{Controller, ControllerSeries, Metrics, QueueSeries, Reconciled};
use crate::telemetry::names;

/// Feeds the `workqueue_*` families of one driver, and what its queue tells of the controllers.
pub(super) struct QueueMetrics {
    driver: Arc<str>,
    attachments: Series,
    volumes: Series,
    /// Depth of the attach and the detach lane, which make up one queue of the Go sidecar.
    depths: [AtomicUsize; 2],
    /// Runs of each lane.
    running: [AtomicUsize; 3],
}

/// Where one kind of object is counted.
struct Series {
    queue: QueueSeries,
    controller: ControllerSeries,
}

impl QueueMetrics {
    /// Counts for this driver, from zero.
    pub fn new(driver: Arc<str>, metrics: &Metrics) -> Self {
        let series = |queue, controller| Series {
            queue: metrics.queue(&driver, queue),
            controller: metrics.controller(controller).clone(),
        };
        Self {
            attachments: series(names::QUEUE_VOLUME_ATTACHMENT, Controller::VolumeAttachment),
            volumes: series(names::QUEUE_PERSISTENT_VOLUME, Controller::PersistentVolume),
            driver,
            depths: Default::default(),
            running: Default::default(),
        }
    }

    fn of(&self, lane: Lane) -> &Series {
        if lane == VOLUME {
            &self.volumes
        } else {
            &self.attachments
        }
    }
}

impl Drop for QueueMetrics {
    /// What was cut off is not under way any more.
    fn drop(&mut self) {
        for lane in [ATTACH, DETACH, VOLUME] {
            self.in_flight(lane, 0);
        }
    }
}

/// How the end of a run is counted.
pub(super) const fn reconciled(verdict: &Verdict) -> Reconciled {
    match verdict {
        Verdict::Done => Reconciled::Success,
        Verdict::Failed | Verdict::FailedWith { .. } => Reconciled::Error,
        Verdict::Again => Reconciled::Requeue,
        Verdict::After(_) => Reconciled::RequeueAfter,
    }
}

/// The controller that works on a key.
pub(super) const fn controller_of(key: &AttacherKey) -> Controller {
    match key {
        AttacherKey::Attachment(_) => Controller::VolumeAttachment,
        AttacherKey::Volume(_) => Controller::PersistentVolume,
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
        self.of(lane).queue.added();
    }

    fn retried(&self, lane: Lane) {
        self.of(lane).queue.retried();
    }

    fn depth(&self, lane: Lane, depth: usize) {
        let total = match self.depths.get(lane.index()) {
            Some(own) => {
                own.store(depth, Relaxed);
                self.depths.iter().map(|depth| depth.load(Relaxed)).sum()
            }
            None => depth,
        };
        self.of(lane).queue.depth(total);
    }

    fn in_flight(&self, lane: Lane, running: usize) {
        let Some(known) = self.running.get(lane.index()) else {
            return;
        };
        let before = known.swap(running, Relaxed);
        let count = |runs: usize| i64::try_from(runs).unwrap_or(i64::MAX);
        self.of(lane).controller.under_way(count(running) - count(before));
    }

    fn waited(&self, lane: Lane, waited: Duration) {
        self.of(lane).queue.waited(waited);
    }

    fn worked(&self, lane: Lane, worked: Duration) {
        let series = self.of(lane);
        series.queue.worked(worked);
        series.controller.took(worked);
    }

    fn panicked(&self, lane: Lane, key: &dyn Debug, message: &str) {
        self.of(lane).controller.panicked();
        error!(
            driver = &*self.driver,
            ?key,
            message,
            "a reconcile panicked; it will be tried again"
        );
    }
}
