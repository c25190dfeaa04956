//! AttacherConfigs as metrics show them: by driver and by reason, never by the name of the object.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::families::per_driver;
use super::family::{DriverFamily, Labels, labels, of_driver};
use super::{Metrics, to_i64};
use crate::api::condition::ConditionReason;

/// Why an AttacherConfig cannot be used until a person changes something.
const REFUSALS: [ConditionReason; 6] = [
    ConditionReason::InvalidSpec,
    ConditionReason::EndpointConflict,
    ConditionReason::DriverNameMismatch,
    ConditionReason::FinalizerCollision,
    ConditionReason::DriverInvalid,
    ConditionReason::TlsInvalid,
];

/// The families.
pub(super) struct ConfigFamilies {
    pub(super) observed: DriverFamily<Gauge>,
    pub(super) errors: Family<Labels, Counter>,
    pub(super) ready: Family<Labels, Gauge>,
}

impl ConfigFamilies {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let help = "metadata.generation of the AttacherConfig whose settings are in use for the driver";
        let observed = per_driver(
            registry,
            "csi_attacher_config_observed_generation",
            help,
            Gauge::default,
        );
        let errors = Family::<Labels, Counter>::default();
        let help = "AttacherConfigs that were found not to be usable, by the reason of their condition Stalled";
        registry.register("csi_attacher_config_errors", help, errors.clone());
        for reason in REFUSALS {
            drop(errors.get_or_create(&labels([("reason", reason.as_str())])));
        }
        let ready = Family::<Labels, Gauge>::default();
        let help = "AttacherConfigs by the reason of their condition Ready";
        registry.register("csi_attacher_attacherconfigs", help, ready.clone());
        for reason in [ConditionReason::Running, ConditionReason::DriverUnreachable] {
            drop(ready.get_or_create(&labels([("reason", reason.as_str())])));
        }
        Self {
            observed,
            errors,
            ready,
        }
    }
}

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
