//! The look back at the end of each test: the operator asked for nothing that it is not granted.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::controlplane::audit::AuditLog;
use super::error::Result;
use super::operator::account;
use super::rbac::{Account, Grants, Right};
use super::{AuditEvent, ControlPlane};

/// Looks, when it is dropped, for requests of the operator that were refused because it has no right to them.
///
/// A right that is granted may be refused for a moment all the same: by an API server that has just been started.
pub struct Refusals {
    log: AuditLog,
    accounts: Vec<(Account, BTreeSet<Right>)>,
}

impl Refusals {
    /// Of the operator's own account, with the rights that helm renders for the chart. An error where there is no audit log: then
    /// nothing could be seen.
    pub fn of(cluster: &ControlPlane) -> Result<Self> {
        let granted = Grants::defaults(&account())?.without_what_is_asked().rights();
        Ok(Self {
            log: cluster.audit()?.clone(),
            accounts: vec![(account(), granted)],
        })
    }

    /// Also of the account of a sidecar, with the roles of this manifest, which are the sidecar's. It has no right to read the
    /// CSIDriver: the operator asks for it all the same, and tells in its log that findings about it are off.
    pub fn and_of_sidecar(mut self, account: Account, manifest: &str) -> Result<Self> {
        let mut granted = Grants::of_manifest(manifest)?.rights();
        granted.insert(Right {
            scope: "ClusterRole".to_owned(),
            group: "storage.k8s.io".to_owned(),
            resource: "csidrivers".to_owned(),
            verb: "get".to_owned(),
        });
        self.accounts.push((account, granted));
        Ok(self)
    }

    pub fn refused(&self) -> Vec<Arc<AuditEvent>> {
        let events = self.log.events().into_iter();
        events.filter(|event| self.is_unexpected(event)).collect()
    }

    fn is_unexpected(&self, event: &AuditEvent) -> bool {
        let of = |(account, _): &&(Account, BTreeSet<Right>)| account.user() == event.username;
        let Some((account, granted)) = self.accounts.iter().find(of) else {
            return false;
        };
        // Secrets are granted one by one, and so are Leases elsewhere: tests leave that out on purpose.
        let single = match &*event.resource {
            "secrets" => event.verb == "get",
            "leases" => event.namespace != account.namespace,
            _ => false,
        };
        event.response_code == 403 && !single && !granted.iter().any(|right| right.is_asked_by(event))
    }
}

impl Drop for Refusals {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        assert_eq!(self.log.unread(), [""; 0], "unreadable lines of the audit log");
        let refused = self.refused();
        assert!(
            refused.is_empty(),
            "the operator asked for what it is not granted: {refused:#?}"
        );
    }
}
