//! Leases: who holds them, and who may.

use csi_attacher_model::api::names::{lease_name, sanitise_driver_name};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::Api;
use serde_json::json;

use super::{LIMIT, World, other};
use crate::support::operator::IDENTITY;
use crate::support::wait::wait_for;
use crate::support::{Operator, Result};

/// Waits until a Lease is held by this process, or by nobody.
pub async fn held(leases: Api<Lease>, name: &str, wanted: Option<&str>) -> Result<Lease> {
    let is_held = |lease: Option<&Lease>| {
        let spec = lease.and_then(|lease| lease.spec.as_ref());
        spec.is_some_and(|spec| spec.holder_identity.as_deref() == wanted)
    };
    let held = wait_for(leases, name, &format!("held by {wanted:?}"), LIMIT, is_held).await?;
    held.ok_or_else(|| other("the Lease is gone"))
}

/// Waits until a Lease was renewed so often from now on: the time of those who hold it.
pub async fn renewals(leases: &Api<Lease>, name: &str, count: usize) -> Result<()> {
    let renewed = |lease: &Lease| Some(lease.spec.as_ref()?.renew_time.as_ref()?.0);
    for _ in 0..count {
        let before = leases.get(name).await.ok().as_ref().and_then(renewed);
        let is_renewed = |lease: Option<&Lease>| lease.and_then(renewed) > before;
        let what = format!("renewed after {before:?}");
        wait_for(leases.clone(), name, &what, LIMIT, is_renewed).await?;
    }
    Ok(())
}

/// The name of a process that is given none: that of the host.
pub fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    sanitise_driver_name(name.trim())
}

fn metric(driver: &str, value: u8) -> String {
    let name = lease_name(driver);
    format!("leader_election_master_status{{name=\"{name}\"}} {value}\n")
}

/// Whether a replica shows that it holds the Lease of a driver.
pub async fn leads(operator: &Operator, driver: &str) -> Result<bool> {
    Ok(operator.metrics().await?.contains(&metric(driver, 1)))
}

/// Waits until a replica competes for the Lease of a driver and does not hold it.
pub async fn stands_by(operator: &Operator, driver: &str) -> Result<()> {
    let line = metric(driver, 0);
    let is_shown = operator.wait_for_answer("/metrics", |_, text| text.contains(&line));
    is_shown.await.map(drop)
}

impl World {
    /// The Leases of the operator's namespace.
    pub fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), IDENTITY)
    }

    /// Waits until the Lease of a driver is held by this replica, or by nobody.
    pub async fn holder(&self, driver: &str, wanted: Option<&str>) -> Result<LeaseSpec> {
        let lease = held(self.leases(), &lease_name(driver), wanted).await?;
        Ok(lease.spec.unwrap_or_default())
    }

    /// As [`renewals`], of the Lease of a driver.
    pub async fn renewals(&self, driver: &str, count: usize) -> Result<()> {
        renewals(&self.leases(), &lease_name(driver), count).await
    }

    /// Lets the operator hold these Leases in another namespace, as the chart does.
    pub async fn grant_leases(&self, namespace: &str, leases: &[String]) -> Result<()> {
        let metadata = json!({"name": &leases[0], "namespace": namespace});
        let create = json!({"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]});
        let mut hold = create.clone();
        hold["verbs"] = json!(["get", "list", "watch", "update"]);
        hold["resourceNames"] = json!(leases);
        let role = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata,
            "rules": [create, hold],
        });
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": metadata,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": &leases[0]},
            "subjects": [{"kind": "ServiceAccount", "namespace": IDENTITY, "name": IDENTITY}],
        });
        let manifest = format!("{role}\n---\n{binding}\n");
        self.cluster.apply_yaml(&manifest).await.map(drop)
    }
}
