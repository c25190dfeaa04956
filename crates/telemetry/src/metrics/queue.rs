//! Work queues, named as in client-go, with the driver as one more label: a sum by `name` is what the Go sidecars show.

use std::ops::Deref;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use super::family::{Owner, to_i64};
use super::table::Families;

/// What one queue of one driver holds and takes in: also of what is shown as a queue and has no workers of its own. It records without
/// looking for its series; a clone is a few reference counts.
#[derive(Clone, Debug)]
pub struct QueueCounts {
    depth: Gauge,
    adds: Counter,
    retries: Counter,
}

impl QueueCounts {
    pub(super) fn new(families: &Families, driver: &str, queue: &'static str) -> Self {
        let labels = || Owner::Driver.labels(driver, [("name", queue)]);
        Self {
            depth: families.queue_depth.series(labels()),
            adds: families.queue_adds.series(labels()),
            retries: families.queue_retries.series(labels()),
        }
    }

    /// Counts an item that was added.
    pub fn added(&self) {
        self.adds.inc();
    }

    /// Counts an item that was put back after a failure.
    pub fn retried(&self) {
        self.retries.inc();
    }

    /// The queue holds this many items that wait for a worker.
    pub fn depth(&self, items: usize) {
        self.depth.set(to_i64(items));
    }
}

/// One queue of one driver, and the work on it.
#[derive(Clone, Debug)]
pub struct QueueSeries {
    counts: QueueCounts,
    wait: Histogram,
    work: Histogram,
    panics: Counter,
}

impl Deref for QueueSeries {
    type Target = QueueCounts;

    fn deref(&self) -> &QueueCounts {
        &self.counts
    }
}

impl QueueSeries {
    pub(super) fn new(families: &Families, driver: &str, queue: &'static str) -> Self {
        let labels = || Owner::Driver.labels(driver, [("name", queue)]);
        families.queue_unfinished.start_at_zero(labels(), &[]);
        families.queue_longest.start_at_zero(labels(), &[]);
        Self {
            counts: QueueCounts::new(families, driver, queue),
            wait: families.queue_wait.series(labels()),
            work: families.queue_work.series(labels()),
            panics: families.queue_panics.series(labels()),
        }
    }

    /// An item was taken after waiting this long.
    pub fn waited(&self, waited: Duration) {
        self.wait.observe(waited.as_secs_f64());
    }

    /// The work on an item took this long.
    pub fn worked(&self, worked: Duration) {
        self.work.observe(worked.as_secs_f64());
    }

    /// The work on an item ended by a fault of the operator.
    pub fn panicked(&self) {
        self.panics.inc();
    }
}
