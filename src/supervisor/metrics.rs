//! The AttacherConfigs as metrics show them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;

use crate::api::AttacherConfigStatus;
use crate::api::condition::{self, ConditionReason, ConditionStatus, ConditionType, ConditionUpdate};
use crate::telemetry::Metrics;

/// How long what is shown late of a driver that is gone is removed.
const FORGET_FOR: Duration = Duration::from_mins(1);

/// Counts what the supervisor does.
pub(super) struct SupervisorMetrics {
    pub metrics: Metrics,
    /// The drivers whose AttacherConfig's generation is shown.
    shown: BTreeSet<String>,
    /// The reasons of the condition Ready that are shown.
    reasons: BTreeSet<ConditionReason>,
    known: BTreeSet<String>,
    /// Since when others are gone.
    gone: BTreeMap<String, Instant>,
}

impl SupervisorMetrics {
    pub fn new(metrics: Metrics) -> Self {
        Self {
            metrics,
            shown: BTreeSet::new(),
            reasons: BTreeSet::new(),
            known: BTreeSet::new(),
            gone: BTreeMap::new(),
        }
    }

    /// A status was written over this one.
    pub fn wrote(&self, before: &AttacherConfigStatus, wanted: &AttacherConfigStatus) {
        let known = stalled(before).is_some() && before.observed_generation == wanted.observed_generation;
        if let Some(reason) = stalled(wanted)
            && !(known && stalled(before) == Some(reason))
        {
            self.metrics.config_refused(reason.as_str());
        }
    }

    /// Shows how many AttacherConfigs are ready, or why they are not. Counted from what is written on the objects, which is
    /// the same for all replicas.
    pub fn ready<'a>(&mut self, statuses: impl Iterator<Item = &'a AttacherConfigStatus>) {
        let mut counts: BTreeMap<ConditionReason, usize> = self.reasons.iter().map(|reason| (*reason, 0)).collect();
        for ready in statuses.filter_map(|status| condition_of(status, ConditionType::Ready)) {
            *counts.entry(ready.reason).or_default() += 1;
        }
        for (reason, count) in &counts {
            self.metrics.configs(reason.as_str(), *count);
        }
        self.reasons = counts.into_keys().collect();
    }

    /// These drivers have an AttacherConfig, or a task that works for them. Of one that is not among them any more every series is
    /// removed: the last call of the role that ended last may have made one anew.
    pub fn known(&mut self, drivers: BTreeSet<String>) {
        let now = Instant::now();
        let gone = self.known.difference(&drivers).map(|driver| (driver.clone(), now));
        self.gone.extend(gone);
        self.gone.retain(|driver, _| !drivers.contains(driver));
        for driver in self.gone.keys() {
            self.metrics.forget_driver(driver);
        }
        self.gone.retain(|_, since| now.duration_since(*since) < FORGET_FOR);
        self.known = drivers;
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
fn stalled(status: &AttacherConfigStatus) -> Option<ConditionReason> {
    let stalled = condition_of(status, ConditionType::Stalled)?;
    (stalled.status == ConditionStatus::True).then_some(stalled.reason)
}

/// A condition, if it is there and its reason is one of ours.
fn condition_of(status: &AttacherConfigStatus, kind: ConditionType) -> Option<ConditionUpdate> {
    status.conditions.iter().find_map(|found| condition::read(found, kind))
}
