//! The attaches that are measured while something else goes on, and beside each the same writes without an operator: what
//! these lose is lost to the API server and the cores, and no operator could do anything about it at that moment.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use csi_attacher_model::decide::{Capabilities, DriverFacts};
use csi_attacher_model::objects::{Attachment, Volume, VolumeAttachmentWire};

use crate::cluster::{Bench, NOBODYS_DRIVER};
use crate::recorder::Stage;
use crate::requests::Prepared;
use crate::stats::{ms, percentile};
use crate::support::Result;
use crate::table::{Row, Topic};
use crate::{ceiling, setting};

/// How long all of one load may take to be attached.
const LIMIT: Duration = Duration::from_mins(5);

/// Attachments that are made one after another, at an even pace whatever becomes of them.
pub struct Load {
    /// The driver that is measured.
    driver: String,
    /// How many for each side, and how many a second.
    pub count: usize,
    per_second: f64,
    /// The client that writes what an attacher would, with rights and priority of a service account.
    writer: Client,
}

/// `COUNT` (100) attaches in each load.
pub fn count() -> Result<usize> {
    setting("COUNT", 100)
}

/// Group of the attachments that the operator serves.
fn operators(group: &str) -> String {
    format!("operator-{group}")
}

/// Group of those that nobody serves and the benchmark writes for.
fn own(group: &str) -> String {
    format!("own-{group}")
}

impl Load {
    /// [`count`] attaches, `RATE` (10) of them a second.
    pub async fn new(bench: &Bench, driver: String) -> Result<Self> {
        Ok(Self {
            driver,
            count: count()?,
            per_second: setting("RATE", 10)? as f64,
            writer: bench.writer().await?,
        })
    }

    /// Makes all attachments and waits until they are attached. Their times are with the recorder, under the two groups.
    /// They stay attached: so both kinds of rounds find a cluster of the same size, and nothing else is done meanwhile.
    pub async fn run(&self, bench: &Bench, group: &str) -> Result<()> {
        let (operators, own) = (operators(group), own(group));
        bench.create_volumes(&operators, &self.driver, self.count).await?;
        let volumes = ceiling::volumes(bench, &own, self.count).await?;
        let facts = Arc::new(DriverFacts::new(NOBODYS_DRIVER, Capabilities::default()));
        let theirs = Bench::attachments(&operators, &self.driver, self.count);
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
            outcome??;
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

/// Times of loads of two kinds: with all else at rest, and with something going on.
#[derive(Default)]
pub struct Sides {
    /// Of the operator, and of the same writes alone.
    rest: [Vec<Duration>; 2],
    motion: [Vec<Duration>; 2],
}

impl Sides {
    /// Takes in the load of a group.
    pub fn add(&mut self, bench: &Bench, group: &str, moving: bool) {
        let times = if moving { &mut self.motion } else { &mut self.rest };
        times[0].extend(bench.recorder.latencies(&operators(group)));
        times[1].extend(bench.recorder.latencies(&own(group)));
    }

    /// The 99th percentile while something goes on, in ms.
    pub fn p99_in_motion(&self) -> f64 {
        ms(percentile(&self.motion[0], 99))
    }

    /// The 99th percentile that has a target, and what explains it: the median, and the same writes alone.
    pub fn rows(&self, what: &str, reference: &str, target: f64) -> Vec<Row> {
        let row = |name: &str, which: usize, percent: usize| {
            let value = |side: &[Vec<Duration>; 2]| ms(percentile(&side[which], percent));
            Row::new(Topic::Latency, format!("{what}: {name}"), value(&self.motion), "ms")
                .against(reference, value(&self.rest))
        };
        vec![
            row("attach p99", 0, 99).ratio_at_most(target),
            row("attach p50", 0, 50),
            row("the same writes without an operator, p99", 1, 99),
        ]
    }
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
