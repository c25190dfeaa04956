//! The families about AttacherConfigs.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::families::per_driver;
use super::family::{DriverFamily, Labels, labels};
use csi_attacher_model::api::condition::ConditionReason;

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
