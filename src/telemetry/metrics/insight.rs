//! What is found out by looking: comparisons with ListVolumes, and what is wrong with attachments.

use super::family::labels;
use super::{Metrics, to_i64};

impl Metrics {
    /// A comparison with ListVolumes ended; `mismatches` are those it found, when it came to its end.
    pub fn reconcile_sync(&self, driver: &str, outcome: &'static str, mismatches: Option<usize>) {
        let families = &self.0.operation;
        let with_outcome = labels([("driver_name", driver), ("outcome", outcome)]);
        families.reconcile_passes.with(driver, with_outcome, |counter| {
            counter.inc();
        });
        if let Some(mismatches) = mismatches {
            let labels = labels([("driver_name", driver)]);
            families.reconcile_mismatches.with(driver, labels, |gauge| {
                gauge.set(to_i64(mismatches));
            });
        }
    }

    /// There are this many findings of a kind about the driver's attachments.
    pub fn findings(&self, driver: &str, kind: &'static str, count: usize) {
        let labels = labels([("driver_name", driver), ("kind", kind)]);
        self.0.operation.findings.with(driver, labels, |gauge| {
            gauge.set(to_i64(count));
        });
    }

    /// Removes the findings about a driver that is not worked for any more.
    pub fn forget_findings(&self, driver: &str) {
        self.0.operation.findings.forget(driver);
    }

    /// So many objects of this resource wait for an attacher, and no AttacherConfig has their driver.
    pub fn unserved(&self, resource: &'static str, count: usize) {
        let labels = labels([("resource", resource)]);
        self.0.connection.unserved.get_or_create(&labels).set(to_i64(count));
    }
}
