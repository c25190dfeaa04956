//! Named checks of readiness, which components set.

use std::sync::Arc;

use parking_lot::RwLock;

/// State of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckReport {
    /// Name of the check, such as `watch/volumeattachments`.
    pub name: String,
    /// Why it fails; `None` when it passes.
    pub failure: Option<String>,
}

/// A check, and whether anything needs what it is about.
#[derive(Debug)]
struct Check {
    report: CheckReport,
    is_needed: bool,
}

impl Check {
    fn shown(&self) -> CheckReport {
        let CheckReport { name, failure } = self.report.clone();
        let failure = failure.filter(|_| self.is_needed);
        CheckReport { name, failure }
    }
}

/// The checks of the process, by name. A clone is one reference count.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<RwLock<Vec<Check>>>);

/// Sets one readiness check. Dropping the handle leaves the check as it was last set.
#[derive(Clone, Debug)]
pub struct CheckHandle {
    name: String,
    health: Health,
}

impl Health {
    /// No checks. A process without readiness checks is not ready.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a readiness check, which fails until it is set ready. A name that exists already gives another handle
    /// of the same check and leaves its state.
    pub fn check(&self, name: impl Into<String>) -> CheckHandle {
        let name = name.into();
        let mut checks = self.0.write();
        if let Err(place) = checks.binary_search_by(|check| check.report.name.cmp(&name)) {
            let failure = Some("not ready yet".to_owned());
            let name = name.clone();
            let report = CheckReport { name, failure };
            let is_needed = true;
            checks.insert(place, Check { report, is_needed });
        }
        drop(checks);
        CheckHandle {
            name,
            health: self.clone(),
        }
    }

    /// State of the readiness checks, by name. Without a check, one failing report says so.
    pub fn readiness(&self) -> Vec<CheckReport> {
        let checks = self.0.read();
        if checks.is_empty() {
            let failure = Some("no component has registered yet".to_owned());
            return vec![CheckReport {
                name: "startup".to_owned(),
                failure,
            }];
        }
        checks.iter().map(Check::shown).collect()
    }

    /// Whether all readiness checks pass.
    pub fn is_ready(&self) -> bool {
        self.readiness().iter().all(|report| report.failure.is_none())
    }
}

impl CheckHandle {
    /// Sets whether the check passes.
    pub fn set_ready(&self, ready: bool) {
        self.set(if ready { None } else { Some("not ready".to_owned()) });
    }

    /// Makes the check fail with a reason fit for an unauthenticated reader.
    pub fn set_failing(&self, reason: impl Into<String>) {
        self.set(Some(reason.into()));
    }

    /// Sets whether anything needs what the check is about, as at first. It passes while nothing does, whatever else is set.
    pub fn set_needed(&self, is_needed: bool) {
        self.change(|check| check.is_needed = is_needed);
    }

    fn set(&self, failure: Option<String>) {
        self.change(|check| check.report.failure = failure);
    }

    fn change(&self, change: impl FnOnce(&mut Check)) {
        let mut checks = self.health.0.write();
        if let Some(check) = checks.iter_mut().find(|check| check.report.name == self.name) {
            change(check);
        }
    }
}
