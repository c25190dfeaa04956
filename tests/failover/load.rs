//! Somebody who attaches and detaches volumes all the time, as the attach/detach controller does: by name, and never again
//! before the old VolumeAttachment is gone.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::PER_SECOND;
use super::scene::{DRIVER, NODES};
use crate::support::{Error, Result};

/// Time until there must have been enough to do.
const LIMIT: Duration = Duration::from_mins(1);

pub struct Load {
    stop: CancellationToken,
    asked: watch::Receiver<usize>,
    task: JoinHandle<Result<Outcome>>,
}

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

impl Load {
    pub fn start(client: Client, volumes: usize) -> Self {
        let stop = CancellationToken::new();
        let (sender, asked) = watch::channel(0);
        let task = tokio::spawn(work(Api::all(client), volumes, stop.clone(), sender));
        Self { stop, asked, task }
    }

    /// Waits until attaches and detaches are under way.
    pub async fn wait_busy(&self) -> Result<()> {
        let mut asked = self.asked.clone();
        let enough = asked.wait_for(|asked| *asked > 20);
        match tokio::time::timeout(LIMIT, enough).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(Error::Other("the load did not begin".to_owned())),
        }
    }

    pub async fn stop(self) -> Result<Outcome> {
        self.stop.cancel();
        self.task.await?
    }
}

async fn work(
    api: Api<VolumeAttachment>,
    volumes: usize,
    stop: CancellationToken,
    asked: watch::Sender<usize>,
) -> Result<Outcome> {
    let mut left = Outcome::default();
    let mut pace = interval(Duration::from_secs(1) / PER_SECOND);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = pace.tick() => {}
            () = stop.cancelled() => return Ok(left),
        }
        let number = fastrand::usize(..volumes);
        let outcome = if left.wanted.remove(&number) {
            let deleted = api.delete(&name(number), &DeleteParams::default()).await;
            deleted.map(|answer| {
                if answer.left().is_some_and(|object| has_lost_finalizer(&object)) {
                    left.lost_finalizer.insert(number);
                }
            })
        } else {
            match api.create(&PostParams::default(), &attachment(number)?).await {
                // The one before is still being detached.
                Err(kube::Error::Api(status)) if status.is_already_exists() => continue,
                created => created.map(|_| {
                    left.wanted.insert(number);
                    left.lost_finalizer.remove(&number);
                }),
            }
        };
        outcome.map_err(|error| Error::Other(format!("{}: {error}", name(number))))?;
        asked.send_modify(|asked| *asked += 1);
    }
}

/// An object that is answered to a DELETE without a time of deletion was gone at once, and is shown as it was last.
fn has_lost_finalizer(answer: &VolumeAttachment) -> bool {
    answer.metadata.deletion_timestamp.is_none() && !answer.finalizers().is_empty()
}

fn attachment(number: usize) -> Result<VolumeAttachment> {
    let source = json!({"persistentVolumeName": name(number)});
    let spec = json!({"attacher": DRIVER, "nodeName": node(number), "source": source});
    let object = json!({"metadata": {"name": name(number)}, "spec": spec});
    Ok(serde_json::from_value(object)?)
}
