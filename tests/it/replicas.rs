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

use crate::rig::{LIMIT, World, operator_options};
use crate::support::wait::wait_for;
use crate::support::{Operator, OperatorOptions, Result};

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
