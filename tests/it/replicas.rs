//! Several replicas of the operator: one works for a driver at a time, by the driver's Lease.

mod claims;
mod hand_over;
mod loss;
mod place;
mod settings;
mod standstill;
mod traces;

use std::time::Duration;

use csi_attacher_model::api::AttacherConfig;
use csi_attacher_model::api::names::lease_name;
use csi_mock_driver::{CallRecord, Method, MockHandle};
use jiff::SignedDuration;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::rig::{LIMIT, World, operator_options, other};
use crate::support::wait::wait_for;
use crate::support::{Error, Operator, OperatorOptions, Result};

const NAMESPACE: &str = "csi-attacher-operator";
/// Of a Lease whose end is waited for. It outlives a machine that stands still for some seconds.
const LEASE_DURATION: Duration = Duration::from_secs(8);
/// How long after its last renewal such a Lease must be taken, by the times in it: five tries after it is over.
const TAKEN_WITHIN: SignedDuration = SignedDuration::from_secs(8 + 5);

/// Settings with which a Lease runs out soon: for tests in which a replica is killed.
fn short() -> Value {
    json!({"leaderElection": {"leaseDuration": "8s", "renewDeadline": "6s", "retryPeriod": "1s"}})
}

/// Settings with which a Lease is renewed often, and not lost by a machine that is busy.
fn lasting() -> Value {
    json!({"leaderElection": {"leaseDuration": "60s", "renewDeadline": "40s", "retryPeriod": "1s"}})
}

fn named(identity: &str) -> OperatorOptions {
    operator_options().argument(format!("--identity={identity}"))
}

impl World {
    /// Starts a replica of this name and waits until it is ready.
    async fn replica(&self, identity: &str) -> Result<Operator> {
        self.operator(named(identity)).await
    }

    fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Waits until the Lease of a driver is held by this replica, or by nobody.
    async fn holder(&self, driver: &str, wanted: Option<&'static str>) -> Result<Lease> {
        self.holder_within(LIMIT, driver, wanted).await
    }

    /// As [`World::holder`], with a limit of its own.
    async fn holder_within(&self, limit: Duration, driver: &str, wanted: Option<&'static str>) -> Result<Lease> {
        let name = lease_name(driver);
        let what = format!("{name} held by {wanted:?}");
        let held = wait_for(self.leases(), &name, &what, limit, move |lease| {
            let spec = lease.and_then(|lease| lease.spec.as_ref());
            spec.is_some_and(|spec| spec.holder_identity.as_deref() == wanted)
        });
        held.await?.ok_or_else(|| other("the Lease is gone"))
    }

    /// Changes the Lease of a driver, whoever else writes it at the same time.
    async fn change_lease(&self, driver: &str, change: impl Fn(&mut Lease)) -> Result<()> {
        let name = lease_name(driver);
        loop {
            let mut lease = self.leases().get(&name).await?;
            change(&mut lease);
            match self.leases().replace(&name, &PostParams::default(), &lease).await {
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                outcome => return outcome.map(drop).map_err(Error::from),
            }
        }
    }

    /// Waits until an AttacherConfig names this replica as the one that leads.
    async fn reported_holder(&self, config: &str, wanted: Option<&'static str>) -> Result<AttacherConfig> {
        let api: Api<AttacherConfig> = Api::all(self.client.clone());
        let what = format!("{config} reports the holder {wanted:?}");
        let reported = wait_for(api, config, &what, LIMIT, move |config| {
            let status = config.and_then(|config| config.status.as_ref());
            status.is_some_and(|status| status.holder.as_deref() == wanted)
        });
        reported.await?.ok_or_else(|| other("the AttacherConfig is gone"))
    }

    /// Waits until the Lease of a driver was renewed so often from now on: the time of those who hold it.
    pub async fn renewals(&self, driver: &str, count: usize) -> Result<()> {
        let name = lease_name(driver);
        let about = move |event: &crate::support::AuditEvent| event.is("update", "leases") && event.name == name;
        let before = self.cluster.audit_events()?.iter().filter(|event| about(event)).count();
        for wanted in before + 1..=before + count {
            let seen = std::sync::atomic::AtomicUsize::new(0);
            let about = about.clone();
            let nth = move |event: &crate::support::AuditEvent| {
                about(event) && seen.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1 == wanted
            };
            self.cluster
                .wait_for_audit_event("a renewal of the Lease", LIMIT, nth)
                .await?;
        }
        Ok(())
    }

    /// How often the status of an AttacherConfig was written so far.
    fn status_writes(&self, config: &str) -> Result<Vec<Value>> {
        let events = self.cluster.audit_events()?;
        let writes = events
            .iter()
            .filter(|event| event.is("patch", "attacherconfigs/status") && event.name == config);
        Ok(writes.filter_map(|event| event.request_body.clone()).collect())
    }
}

/// The calls that publish or unpublish.
fn moves(mock: &MockHandle) -> Vec<CallRecord> {
    let of = |method| {
        matches!(
            method,
            Method::ControllerPublishVolume | Method::ControllerUnpublishVolume
        )
    };
    mock.calls().into_iter().filter(|call| of(call.method)).collect()
}

async fn leads(operator: &Operator, driver: &str) -> Result<bool> {
    let line = format!("leader_election_master_status{{name=\"{}\"}} 1", lease_name(driver));
    Ok(operator.metrics().await?.lines().any(|found| found == line))
}
