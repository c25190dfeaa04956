//! The AttacherConfigs as metrics show them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::plan::Problem;
use crate::api::AttacherConfigStatus;
use crate::api::condition::{ConditionType, Reason};
use crate::telemetry::Metrics;
use crate::telemetry::metrics::{Controller, Reconciled};

/// Counts what the supervisor does.
pub(super) struct Numbers {
    metrics: Metrics,
    /// The drivers whose AttacherConfig's generation is shown.
    shown: BTreeSet<String>,
}

impl Numbers {
    pub fn new(metrics: Metrics) -> Self {
        // Objects are compared with what runs one comparison after another.
        metrics.controller(Controller::AttacherConfig).at_most(1);
        let shown = BTreeSet::new();
        Self { metrics, shown }
    }

    /// A comparison of the objects with what runs ended; these are the objects that could not be used before it and now.
    pub fn compared(&self, began: Instant, before: &BTreeMap<String, Problem>, now: &BTreeMap<String, Problem>) {
        let news = now.iter().any(|(name, problem)| before.get(name) != Some(problem));
        let controller = self.metrics.controller(Controller::AttacherConfig);
        controller.took(began.elapsed());
        controller.reconciled(if news {
            Reconciled::TerminalError
        } else {
            Reconciled::Success
        });
    }

    /// A status was written over this one, or could not be.
    pub fn wrote(&self, before: &AttacherConfigStatus, wanted: &AttacherConfigStatus, written: bool) {
        let controller = self.metrics.controller(Controller::AttacherConfig);
        if !written {
            return controller.reconciled(Reconciled::Error);
        }
        controller.reconciled(Reconciled::Success);
        let known = stalled(before).is_some() && before.observed_generation == wanted.observed_generation;
        if let Some(reason) = stalled(wanted)
            && !(known && stalled(before) == Some(reason))
        {
            self.metrics.config_refused(reason);
        }
    }

    /// Shows the generations in use, by driver. What is not among them any more is gone.
    pub fn in_use(&mut self, generations: BTreeMap<String, i64>) {
        for driver in self.shown.iter().filter(|driver| !generations.contains_key(*driver)) {
            self.metrics.forget_config(driver);
        }
        for (driver, generation) in &generations {
            self.metrics.config_observed(driver, *generation);
        }
        self.shown = generations.into_keys().collect();
    }
}

/// Why a status says that only a person can help, if it does.
fn stalled(status: &AttacherConfigStatus) -> Option<Reason> {
    let of_type = |kind: ConditionType| status.conditions.iter().find(move |found| found.type_ == kind.as_str());
    let found = of_type(ConditionType::Stalled).filter(|found| found.status == "True")?;
    Reason::ALL
        .iter()
        .copied()
        .find(|reason| reason.as_str() == found.reason)
}
