//! Somebody who attaches and detaches volumes all the time, as the attach/detach controller does: by name, and never again
//! before the old VolumeAttachment is gone.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::PER_SECOND;
use crate::support::Result;

pub const DRIVER: &str = "failover.csi.test";
/// Nodes that volumes are attached to.
pub const NODES: usize = 10;

/// What the load leaves, by the numbers of its volumes.
#[derive(Debug, Default)]
pub struct Outcome {
    /// What is to be attached.
    pub wanted: BTreeSet<usize>,
    /// What was deleted last with a finalizer that the API server lost: it was added during the deletion.
    pub lost_finalizer: BTreeSet<usize>,
}

/// Name of volume number `number`, its handle and its attachment.
pub fn name(number: usize) -> String {
    format!("failover-{number}")
}

/// Node of volume number `number`.
pub fn node(number: usize) -> String {
    format!("failover-node-{}", number % NODES)
}

/// Attaches and detaches so many volumes until it is told to stop.
pub async fn work(client: Client, volumes: usize, stop: CancellationToken) -> Result<Outcome> {
    let api: Api<VolumeAttachment> = Api::all(client);
    let mut left = Outcome::default();
    let mut pace = interval(Duration::from_secs(1) / PER_SECOND);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while stop.run_until_cancelled(pace.tick()).await.is_some() {
        let number = fastrand::usize(..volumes);
        let name = name(number);
        if left.wanted.remove(&number) {
            let answer = api.delete(&name, &DeleteParams::default()).await?;
            if answer.left().is_some_and(|object| has_lost_finalizer(&object)) {
                left.lost_finalizer.insert(number);
            }
            continue;
        }
        let spec = json!({"attacher": DRIVER, "nodeName": node(number), "source": {"persistentVolumeName": name}});
        let object = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec}))?;
        match api.create(&PostParams::default(), &object).await {
            // The one before is still being detached.
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            created => {
                created?;
                left.wanted.insert(number);
                left.lost_finalizer.remove(&number);
            }
        }
    }
    Ok(left)
}

/// An object that is answered to a DELETE without a time of deletion was gone at once, and is shown as it was last.
fn has_lost_finalizer(answer: &VolumeAttachment) -> bool {
    answer.metadata.deletion_timestamp.is_none() && !answer.finalizers().is_empty()
}
