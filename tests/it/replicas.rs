//! Several replicas of the operator: one works for a driver at a time, by the driver's Lease.

mod claims;
mod hand_over;
mod loss;
mod place;
mod settings;
mod traces;

use csi_attacher_model::api::AttacherConfig;
use csi_mock_driver::{CallRecord, CallResult, Method, MockHandle};
use serde_json::{Value, json};

use crate::rig::{LIMIT, World, operator_options, part};
use crate::support::wait::wait_for;
use crate::support::{Operator, OperatorOptions, Result};

/// Each part has a driver of its own, which is served until its end, and replicas of its own.
#[tokio::test]
async fn one_replica_follows_another() -> Result<()> {
    let world = &World::own().await?;
    part("told to stop", hand_over::told_to_stop_it_gives_its_lease_up(world)).await?;
    part(
        "out of reach",
        loss::the_lease_goes_to_a_replica_that_reaches_the_driver(world),
    )
    .await?;
    let change = place::a_change_of_the_namespaces_hands_over_with_a_call_in_flight(world);
    part("other namespaces", change).await?;
    let kill = traces::t3_t4_kill_9_and_failover_leave_one_trace_with_one_root(world);
    part("kill -9", kill).await
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

    /// Waits until an AttacherConfig names this replica as the one that leads.
    async fn reported_holder(&self, config: &str, wanted: Option<&str>) -> Result<()> {
        let api = self.fixtures.cluster::<AttacherConfig>();
        let is_reported = |config: Option<&AttacherConfig>| {
            let status = config.and_then(|config| config.status.as_ref());
            status.is_some_and(|status| status.holder.as_deref() == wanted)
        };
        let what = format!("reports the holder {wanted:?}");
        wait_for(api, config, &what, LIMIT, is_reported).await.map(drop)
    }

    /// How often the status of `<short>` is written during so many renewals of the Lease of `<short>.csi.test`: by this replica alone.
    async fn writes_of(&self, leader: &str, short: &str, renewals: usize) -> Result<usize> {
        let before = self.cluster.audit_events()?.len();
        self.renewals(&format!("{short}.csi.test"), renewals).await?;
        let mut late = self.cluster.audit_events()?.split_off(before);
        late.retain(|event| event.is("patch", "attacherconfigs/status") && event.name == short);
        let late: Vec<Value> = late.iter().filter_map(|event| event.request_body.clone()).collect();
        assert!(late.iter().all(|body| body["status"]["holder"] == leader), "{late:#?}");
        Ok(late.len())
    }
}

/// The calls that publish or unpublish.
pub fn moves(mock: &MockHandle) -> Vec<CallRecord> {
    let moving = [Method::ControllerPublishVolume, Method::ControllerUnpublishVolume];
    let calls = mock.calls().into_iter();
    calls.filter(|call| moving.contains(&call.method)).collect()
}

/// So many calls have moved volumes: each was answered, and no two were for one volume at a time.
fn assert_one_at_a_time(mock: &MockHandle, count: usize) -> Vec<CallRecord> {
    let calls = moves(mock);
    let is_sound = |call: &CallRecord| !call.overlap && call.outcome == CallResult::Answered;
    assert_eq!(calls.len(), count, "{calls:#?}");
    assert!(calls.iter().all(is_sound), "{calls:#?}");
    calls
}
