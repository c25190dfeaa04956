//! Work queues, named as in client-go, with the driver as one more label: a sum by `name` is what the Go sidecars show; and the
//! faults of ours in what they hand out.

use std::time::Duration;

use super::Metrics;
use super::family::{Labels, of_driver};
use super::queue_families::QueueSeries;

impl Metrics {
    /// The series of a work queue of a driver, which start at zero. To be asked for anew after
    /// [`Metrics::forget_driver`].
    pub fn queue(&self, driver: &str, queue: &'static str) -> QueueSeries {
        let families = &self.0.queue;
        let labels = || labels_of(driver, queue);
        families.unfinished.begin(driver, labels());
        families.longest.begin(driver, labels());
        QueueSeries {
            depth: families.depth.series(driver, labels()),
            adds: families.adds.series(driver, labels()),
            retries: families.retries.series(driver, labels()),
            wait: families.wait.series(driver, labels()),
            work: families.work.series(driver, labels()),
            panics: families.panics.series(driver, labels()),
        }
    }

    /// The work in progress has taken this long: the sum over all workers, and the longest of them.
    pub fn queue_in_progress(&self, driver: &str, queue: &'static str, sum: Duration, longest: Duration) {
        let families = &self.0.queue;
        families.unfinished.with(driver, labels_of(driver, queue), |gauge| {
            gauge.set(sum.as_secs_f64());
        });
        families.longest.with(driver, labels_of(driver, queue), |gauge| {
            gauge.set(longest.as_secs_f64());
        });
    }
}

fn labels_of(driver: &str, queue: &'static str) -> Labels {
    of_driver(driver, [("name", queue)])
}
