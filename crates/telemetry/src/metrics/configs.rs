//! AttacherConfigs as metrics show them: by driver and by reason, never by the name of the object.

use super::Metrics;
use super::family::{labels, of_driver, to_i64};
use csi_attacher_model::api::condition::ConditionReason;

impl Metrics {
    /// The settings of this generation of an AttacherConfig are in use for the driver.
    pub fn config_observed(&self, driver: &str, generation: i64) {
        self.0.configs.observed.with(driver, of_driver(driver, []), |gauge| {
            gauge.set(generation);
        });
    }

    /// So many AttacherConfigs have a condition Ready with this reason.
    pub fn configs(&self, reason: ConditionReason, count: usize) {
        let labels = labels([("reason", reason.as_str())]);
        self.0.configs.ready.get_or_create(&labels).set(to_i64(count));
    }

    /// No AttacherConfig is for the driver any more.
    pub fn forget_config(&self, driver: &str) {
        self.0.configs.observed.forget(driver);
    }

    /// An AttacherConfig was found not to be usable.
    pub fn config_refused(&self, reason: ConditionReason) {
        let labels = labels([("reason", reason.as_str())]);
        self.0.configs.errors.get_or_create(&labels).inc();
    }
}
