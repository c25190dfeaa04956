//! What is found out by looking: comparisons with ListVolumes, and what is wrong with attachments.

use jiff::Timestamp;
use std::time::Duration;

use tonic::Code;

use super::Metrics;
use super::family::{Labels, labels, of_driver, to_i64};
use super::reconcile_sync_counts::ReconcileSyncCounts;
use crate::names::code_camel_case;
use csi_attacher_base::clock;

impl Metrics {
    /// Comparisons with ListVolumes begin: what is counted begins at zero.
    pub fn init_reconcile_sync(&self, driver: &str) {
        let families = &self.0.reconcile;
        for outcome in ["succeeded", "failed"] {
            let labels = of_driver(driver, [("outcome", outcome)]);
            families.passes.begin(driver, labels.clone());
            families.seconds.begin(driver, labels);
        }
        for direction in ["attach", "detach"] {
            families.forced.begin(driver, directed(driver, direction));
            families.mismatched.begin(driver, directed(driver, direction));
        }
        for code in (1..=16).map(Code::from_i32).map(code_camel_case) {
            families
                .errors
                .begin(driver, of_driver(driver, [("grpc_status_code", code)]));
        }
        families.mismatches.begin(driver, of_driver(driver, []));
    }

    /// A comparison with ListVolumes is made so often from now on.
    pub fn reconcile_sync_interval(&self, driver: &str, interval: Duration) {
        self.0.reconcile.interval.with(driver, of_driver(driver, []), |gauge| {
            gauge.set(interval.as_secs_f64());
        });
    }

    /// No comparisons are made any more: what the last one found grows old. What was counted stays.
    pub fn reset_reconcile_sync(&self, driver: &str) {
        self.0.reconcile.rest(driver);
    }

    /// A comparison with ListVolumes came to its end.
    pub fn reconcile_sync_succeeded(&self, driver: &str, took: Duration, listed: ReconcileSyncCounts) {
        let families = &self.0.reconcile;
        self.reconcile_sync_ended(driver, took, "succeeded");
        let labels = of_driver(driver, []);
        let gauges = [
            (&families.pages, listed.pages),
            (&families.volumes, listed.volumes),
            (&families.mismatches, listed.to_attach + listed.to_detach),
        ];
        for (family, count) in gauges {
            family.with(driver, labels.clone(), |gauge| {
                gauge.set(to_i64(count));
            });
        }
        if let Some(count) = listed.without_attachment {
            families.without_attachment.with(driver, labels.clone(), |gauge| {
                gauge.set(to_i64(count));
            });
        }
        for (direction, count) in [("attach", listed.to_attach), ("detach", listed.to_detach)] {
            families
                .mismatched
                .with(driver, directed(driver, direction), |counter| {
                    counter.0.inc_by(u64::try_from(count).unwrap_or(u64::MAX))
                });
        }
        let now = Duration::try_from(clock::now().duration_since(Timestamp::UNIX_EPOCH)).unwrap_or_default();
        families.last_success.with(driver, labels, |gauge| {
            gauge.set(now.as_secs_f64());
        });
    }

    /// A comparison with ListVolumes could not be made. `code` is a gRPC status code, or says what was wrong with the pages.
    pub fn reconcile_sync_failed(&self, driver: &str, took: Duration, code: &'static str) {
        self.reconcile_sync_ended(driver, took, "failed");
        let labels = of_driver(driver, [("grpc_status_code", code)]);
        self.0.reconcile.errors.with(driver, labels, |counter| {
            counter.inc();
        });
    }

    fn reconcile_sync_ended(&self, driver: &str, took: Duration, outcome: &'static str) {
        let families = &self.0.reconcile;
        let labels = of_driver(driver, [("outcome", outcome)]);
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
        let labels = of_driver(driver, [("kind", kind)]);
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
    of_driver(driver, [("direction", direction)])
}
