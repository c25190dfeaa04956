//! The families about work queues, and the series of one queue.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::families::{FloatGauge, per_driver};
use super::family::{DriverFamily, to_i64};

/// client-go computes its bounds by repeated multiplication, which leaves two of them off by one bit; the same bounds
/// here let a query sum over both. 100 and 1000 are added, as in controller-runtime.
const QUEUE_SECONDS: [f64; 12] = [
    1e-8,
    1e-7,
    1e-6,
    9.999_999_999_999_999e-6,
    9.999_999_999_999_999e-5,
    1e-3,
    1e-2,
    1e-1,
    1.0,
    10.0,
    100.0,
    1000.0,
];

/// The families.
pub(super) struct QueueFamilies {
    pub(super) depth: DriverFamily<Gauge>,
    pub(super) adds: DriverFamily<Counter>,
    pub(super) retries: DriverFamily<Counter>,
    pub(super) wait: DriverFamily<Histogram>,
    pub(super) work: DriverFamily<Histogram>,
    pub(super) unfinished: DriverFamily<FloatGauge>,
    pub(super) longest: DriverFamily<FloatGauge>,
    pub(super) panics: DriverFamily<Counter>,
}

impl QueueFamilies {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let mut histogram = |name, help| per_driver(registry, name, help, || Histogram::new(QUEUE_SECONDS));
        let wait = histogram(
            "workqueue_queue_duration_seconds",
            "How long in seconds an item stays in workqueue before being requested",
        );
        let work = histogram(
            "workqueue_work_duration_seconds",
            "How long in seconds processing an item from workqueue takes",
        );
        let mut counter = |name, help| per_driver(registry, name, help, Counter::default);
        let adds = counter("workqueue_adds", "Total number of adds handled by workqueue");
        let retries = counter("workqueue_retries", "Total number of retries handled by workqueue");
        let panics = counter(
            "csi_attacher_reconcile_panics",
            "Number of reconciles that ended by a fault of the operator",
        );
        let mut seconds = |name, help| per_driver(registry, name, help, FloatGauge::default);
        let unfinished = seconds(
            "workqueue_unfinished_work_seconds",
            "Sum of the seconds that work in progress has taken so far",
        );
        let longest = seconds(
            "workqueue_longest_running_processor_seconds",
            "Seconds the longest running processor has been running",
        );
        let depth = per_driver(
            registry,
            "workqueue_depth",
            "Current depth of workqueue",
            Gauge::default,
        );
        Self {
            depth,
            adds,
            retries,
            wait,
            work,
            unfinished,
            longest,
            panics,
        }
    }

    pub(super) fn forget(&self, driver: &str) {
        self.depth.forget(driver);
        self.adds.forget(driver);
        self.retries.forget(driver);
        self.wait.forget(driver);
        self.work.forget(driver);
        self.unfinished.forget(driver);
        self.longest.forget(driver);
        self.panics.forget(driver);
    }
}

/// One queue of one driver. Records without looking for its series; a clone is a few reference counts.
#[derive(Clone, Debug)]
pub struct QueueSeries {
    pub(super) depth: Gauge,
    pub(super) adds: Counter,
    pub(super) retries: Counter,
    pub(super) wait: Histogram,
    pub(super) work: Histogram,
    pub(super) panics: Counter,
}

impl QueueSeries {
    /// An item was added.
    pub fn added(&self) {
        self.adds.inc();
    }

    /// An item was put back after a failure.
    pub fn retried(&self) {
        self.retries.inc();
    }

    /// The queue holds this many items that wait for a worker.
    pub fn depth(&self, items: usize) {
        self.depth.set(to_i64(items));
    }

    /// An item was taken after waiting this long.
    pub fn waited(&self, waited: Duration) {
        self.wait.observe(waited.as_secs_f64());
    }

    /// The work on an item took this long.
    pub fn worked(&self, worked: Duration) {
        self.work.observe(worked.as_secs_f64());
    }

    /// The work on an item ended by a fault of ours.
    pub fn panicked(&self) {
        self.panics.inc();
    }
}
