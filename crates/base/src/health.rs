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

/// The checks of the process, by name. A clone is one reference count.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<RwLock<Vec<CheckReport>>>);

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
        if let Err(place) = checks.binary_search_by(|check| check.name.cmp(&name)) {
            let failure = Some("not ready yet".to_owned());
            let name = name.clone();
            checks.insert(place, CheckReport { name, failure });
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
        checks.clone()
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

    fn set(&self, failure: Option<String>) {
        let mut checks = self.health.0.write();
        if let Some(check) = checks.iter_mut().find(|check| check.name == self.name) {
            check.failure = failure;
        }
    }
}
