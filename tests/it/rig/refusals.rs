//! The look back at the end of each test: the operator asked for nothing that the chart does not grant it.

use std::sync::Arc;

use crate::support::operator::{IDENTITY, account};
use crate::support::rbac::{Grants, Right};
use crate::support::{AuditEvent, ControlPlane, Result};

/// Looks, when it is dropped, for requests of the operator that were refused because the chart grants no right to them.
///
/// A right that is granted may be refused for a moment all the same: by an API server that has just been started.
pub struct Refusals {
    cluster: Arc<ControlPlane>,
    granted: Vec<Right>,
}

impl Refusals {
    pub fn of(cluster: Arc<ControlPlane>) -> Result<Self> {
        let granted = Grants::defaults(&account())?.without_what_is_asked().rights();
        Ok(Self {
            cluster,
            granted: granted.into_iter().collect(),
        })
    }

    fn is_unexpected(&self, event: &AuditEvent) -> bool {
        // Secrets are granted one by one, and so are Leases elsewhere: tests leave that out on purpose.
        let single = match &*event.resource {
            "secrets" => event.verb == "get",
            "leases" => event.namespace != IDENTITY,
            _ => false,
        };
        event.response_code == 403 && !single && !self.granted.iter().any(|right| right.is_asked_by(event))
    }
}

impl Drop for Refusals {
    fn drop(&mut self) {
        let user = account().user();
        let Ok(events) = self.cluster.audit_events() else {
            return;
        };
        let mine = events.iter().filter(|event| event.username == user);
        let refused: Vec<_> = mine.filter(|event| self.is_unexpected(event)).collect();
        assert!(
            refused.is_empty() || std::thread::panicking(),
            "the operator asked for what the chart does not grant: {refused:#?}"
        );
    }
}
