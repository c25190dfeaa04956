//! The attaches that are measured: those of the tenth driver, and beside each the same writes without an operator.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use csi_attacher_model::decide::{Capabilities, DriverFacts};
use csi_attacher_model::objects::{Attachment, Volume, VolumeAttachmentWire};

use super::TENTH;
use crate::ceiling;
use crate::cluster::{Bench, NOBODYS_DRIVER};
use crate::recorder::Stage;
use crate::requests::Prepared;
use crate::support::{Error, Result};

/// How long all of one load may take to be attached.
const LIMIT: Duration = Duration::from_mins(5);

/// Attachments that are made one after another, at an even pace whatever becomes of them.
pub struct Load {
    /// How many for each side.
    pub count: usize,
    /// How many a second for each side.
    pub per_second: f64,
    /// The client that writes what an attacher would, with rights and priority of a service account.
    pub writer: Client,
}

/// Group of the tenth driver's attachments.
pub fn operators(group: &str) -> String {
    format!("operator-{group}")
}

/// Group of those that nobody serves and the benchmark writes for.
pub fn own(group: &str) -> String {
    format!("own-{group}")
}

impl Load {
    /// Makes all attachments and waits until they are attached. Their times are with the recorder, under the two groups.
    /// They stay attached: so both kinds of rounds find a cluster of the same size, and nothing else is done meanwhile.
    pub async fn run(&self, bench: &Bench, group: &str) -> Result<()> {
        let (operators, own) = (operators(group), own(group));
        bench.create_volumes(&operators, TENTH, self.count).await?;
        let volumes = ceiling::volumes(bench, &own, self.count).await?;
        let facts = Arc::new(DriverFacts::new(NOBODYS_DRIVER, Capabilities::default()));
        let theirs = Bench::attachments(&operators, TENTH, self.count);
        let ours = Bench::attachments(&own, NOBODYS_DRIVER, self.count);
        let mut pace = interval(Duration::from_secs_f64(0.5 / self.per_second));
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut requests = JoinSet::new();
        for (theirs, (ours, volume)) in theirs.into_iter().zip(ours.into_iter().zip(volumes)) {
            pace.tick().await;
            let client = bench.client.clone();
            requests.spawn(async move { theirs.send(&client).await.map(drop) });
            pace.tick().await;
            requests.spawn(attach(self.writer.clone(), ours, volume, facts.clone()));
        }
        while let Some(outcome) = requests.join_next().await {
            outcome.map_err(|error| Error::Other(error.to_string()))??;
        }
        for group in [&operators, &own] {
            bench.recorder.wait(group, Stage::Attached, self.count, LIMIT).await?;
        }
        Ok(())
    }
}

/// What an attacher writes for a first attach, each after the answer to the one before.
async fn attach(client: Client, create: Prepared, volume: Volume, facts: Arc<DriverFacts>) -> Result<()> {
    let attachment: VolumeAttachmentWire = create.send_for(&client).await?;
    ceiling::Writes::new(&volume, &Attachment::from(attachment), &facts)?
        .send(&client)
        .await
}

/// Attaches and detaches volumes of a group without end, `per_second` of each. Somebody may ask for that.
pub async fn churn(client: Client, group: String, driver: String, volumes: usize, per_second: f64) {
    /// How many are attached at a time.
    const ALIVE: usize = 20;
    let mut pace = interval(Duration::from_secs_f64(1.0 / per_second));
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let alive = ALIVE.min(volumes);
    let run = fastrand::u32(..);
    let name = |number: usize| format!("churn-{run}-{number}");
    for number in 0.. {
        pace.tick().await;
        let volume = crate::cluster::name(&group, number % volumes);
        let create = Prepared::create_attachment(&name(number), &driver, &volume, "node-0");
        let mut requests = vec![create];
        if let Some(old) = number.checked_sub(alive) {
            requests.push(Prepared::delete_attachment(&name(old)));
        }
        for request in requests {
            if let Err(error) = request.send(&client).await {
                eprintln!("bench: churn: {error}");
            }
        }
    }
}
