//! What is found out by looking: comparisons with ListVolumes, and what is wrong with attachments.

use jiff::Timestamp;
use std::time::Duration;

use super::family::{Labels, labels};
use super::{Metrics, to_i64};
use crate::clock;

impl Metrics {
    /// Comparisons with ListVolumes begin: what is counted begins at zero.
    pub fn reconcile_sync_begins(&self, driver: &str) {
        let families = &self.0.reconcile;
        for outcome in ["succeeded", "failed"] {
            let labels = labels([("driver_name", driver), ("outcome", outcome)]);
            families.passes.with(driver, labels, |_| {});
        }
        for direction in ["attach", "detach"] {
            families.forced.with(driver, directed(driver, direction), |_| {});
        }
        families
            .mismatches
            .with(driver, labels([("driver_name", driver)]), |_| {});
    }

    /// A comparison with ListVolumes came to its end.
    pub fn reconcile_sync_succeeded(&self, driver: &str, took: Duration, volumes: usize, mismatches: usize) {
        let families = &self.0.reconcile;
        self.reconcile_sync_ended(driver, took, "succeeded");
        let labels = labels([("driver_name", driver)]);
        families.volumes.with(driver, labels.clone(), |gauge| {
            gauge.set(to_i64(volumes));
        });
        families.mismatches.with(driver, labels.clone(), |gauge| {
            gauge.set(to_i64(mismatches));
        });
        let now = Duration::try_from(clock::now().duration_since(Timestamp::UNIX_EPOCH)).unwrap_or_default();
        families.last_success.with(driver, labels, |gauge| {
            gauge.set(now.as_secs_f64());
        });
    }

    /// A comparison with ListVolumes could not be made. `code` is a gRPC status code, or says what was wrong with the pages.
    pub fn reconcile_sync_failed(&self, driver: &str, took: Duration, code: &'static str) {
        self.reconcile_sync_ended(driver, took, "failed");
        let labels = labels([("driver_name", driver), ("grpc_status_code", code)]);
        self.0.reconcile.errors.with(driver, labels, |counter| {
            counter.inc();
        });
    }

    fn reconcile_sync_ended(&self, driver: &str, took: Duration, outcome: &'static str) {
        let families = &self.0.reconcile;
        let labels = labels([("driver_name", driver), ("outcome", outcome)]);
        families.passes.with(driver, labels.clone(), |counter| {
            counter.inc();
        });
        families
            .seconds
            .with(driver, labels, |histogram| histogram.observe(took.as_secs_f64()));
    }

    /// A volume is attached or detached once more because the driver lists it otherwise.
    pub fn reconcile_sync_forced(&self, driver: &str, direction: &'static str) {
        self.0
            .reconcile
            .forced
            .with(driver, directed(driver, direction), |counter| {
                counter.inc();
            });
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

fn directed(driver: &str, direction: &'static str) -> Labels {
    labels([("driver_name", driver), ("direction", direction)])
}
