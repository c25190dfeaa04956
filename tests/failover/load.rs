//! Somebody who attaches and detaches volumes all the time, as the attach/detach controller does: by name, and never again
//! before the old VolumeAttachment is gone.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::Plan;
use super::scene::{DRIVER, NODES, Scene};
use crate::support::{Error, Result};

/// Time until there must have been enough to do.
const LIMIT: Duration = Duration::from_mins(1);

/// The load; it ends when told to.
pub struct Load {
    stop: CancellationToken,
    asked: watch::Receiver<usize>,
    task: JoinHandle<Result<BTreeSet<usize>>>,
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
    /// Starts to attach.
    pub fn start(scene: &Scene, plan: &Plan) -> Self {
        let stop = CancellationToken::new();
        let (sender, asked) = watch::channel(0);
        let task = tokio::spawn(work(
            scene.client.clone(),
            plan.volumes,
            plan.per_second,
            stop.clone(),
            Arc::new(sender),
        ));
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

    /// Ends it; answers the volumes that are to be attached now.
    pub async fn stop(self) -> Result<BTreeSet<usize>> {
        self.stop.cancel();
        self.task.await.map_err(|error| Error::Other(error.to_string()))?
    }
}

async fn work(
    client: Client,
    volumes: usize,
    per_second: usize,
    stop: CancellationToken,
    asked: Arc<watch::Sender<usize>>,
) -> Result<BTreeSet<usize>> {
    let api: Api<VolumeAttachment> = Api::all(client);
    let mut wanted = BTreeSet::new();
    let mut pace = interval(Duration::from_secs_f64(1.0 / per_second as f64));
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = pace.tick() => {}
            () = stop.cancelled() => return Ok(wanted),
        }
        let number = fastrand::usize(..volumes);
        let outcome = if wanted.remove(&number) {
            api.delete(&name(number), &DeleteParams::default()).await.map(drop)
        } else {
            match api.create(&PostParams::default(), &attachment(number)?).await {
                // The one before is still being detached.
                Err(kube::Error::Api(status)) if status.is_already_exists() => continue,
                created => created.map(|_| {
                    wanted.insert(number);
                }),
            }
        };
        outcome.map_err(|error| Error::Other(format!("{}: {error}", name(number))))?;
        asked.send_modify(|asked| *asked += 1);
    }
}

fn attachment(number: usize) -> Result<VolumeAttachment> {
    let source = json!({"persistentVolumeName": name(number)});
    let spec = json!({"attacher": DRIVER, "nodeName": node(number), "source": source});
    Ok(serde_json::from_value(
        json!({"metadata": {"name": name(number)}, "spec": spec}),
    )?)
}
