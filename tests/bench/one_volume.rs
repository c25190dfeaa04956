//! What one ReadWriteMany volume on a thousand nodes costs another driver, when it is attached and detached everywhere at once.
//!
//! Rounds with that volume at rest and rounds with it being attached and detached take turns.
//!
//! Environment: `NODES` (1000), `ROUNDS` (3), `COUNT` of attaches of the other driver in each load (100), `RATE` of them a
//! second (10), `OPERATOR_BINARY`.

use std::time::Duration;

use crate::fleet::{Fleet, Plan};
use crate::load::{self, Load, Sides};
use crate::recorder::Stage;
use crate::requests::{Prepared, send_all};
use crate::stats::{each_of, median, ms};
use crate::support::Result;
use crate::table::{Row, Topic};
use crate::{cluster, progress, setting};

/// The driver of the volume; the first driver is the other one.
const WIDE: usize = 1;
const VOLUME: &str = "wide-volume";

struct Scene {
    fleet: Fleet,
    load: Load,
    nodes: usize,
}

/// Measures.
pub async fn measure() -> Result<Vec<Row>> {
    let (nodes, rounds) = (setting("NODES", 1000)?, setting("ROUNDS", 3)?);
    let scene = Scene::set(nodes).await?;
    let bench = &scene.fleet.bench;
    progress("one-volume: warming up");
    scene.load.run(bench, "warm-up").await?;
    let mut sides = Sides::default();
    let (mut attaches, mut detaches) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        progress(&format!(
            "one-volume: round {} of {rounds}, the volume at rest",
            round + 1
        ));
        let group = format!("rest-{round}");
        scene.load.run(bench, &group).await?;
        sides.add(bench, &group, false);
        let wide = format!("wide-{round}");
        for (what, stage, costs) in [
            ("attach", Stage::Attached, &mut attaches),
            ("detach", Stage::Gone, &mut detaches),
        ] {
            progress(&format!(
                "one-volume: round {} of {rounds}, {what} at {nodes} nodes",
                round + 1
            ));
            let group = format!("{what}-{round}");
            scene.prepare(&wide, stage).await?;
            let (loaded, mass) = tokio::join!(scene.load.run(bench, &group), scene.mass(&wide, stage));
            loaded?;
            costs.push(mass?);
            sides.add(bench, &group, true);
        }
    }
    let what = format!("one RWX volume on {nodes} nodes");
    let mut rows = sides.rows(&format!("{what} beside another driver"), "volume at rest", 1.5);
    let cpu = |name: &str, costs: Vec<Duration>| {
        Row::new(
            Topic::Cpu,
            format!("{what}: CPU of the mass {name}, each"),
            median(costs.into_iter().map(ms)),
            "ms",
        )
    };
    rows.push(cpu("attach", attaches));
    rows.push(
        cpu("detach", detaches)
            .at_most(3.0)
            .note("with the other driver's attaches meanwhile"),
    );
    Ok(rows)
}

impl Scene {
    async fn set(nodes: usize) -> Result<Self> {
        let fleet = Fleet::start(Plan::new("wide", 2, load::count()?)).await?;
        let driver = fleet.driver(WIDE);
        fleet.bench.create_nodes("many", nodes, &[&driver]).await?;
        let volume = Prepared::create_volume_with(VOLUME, &driver, "ReadWriteMany");
        send_all(&fleet.bench.client, vec![volume]).await?;
        let load = Load::new(&fleet.bench, fleet.driver(0)).await?;
        Ok(Self { fleet, load, nodes })
    }

    /// Makes the attachments, or deletes them, while the volume's driver is suspended: what asks for that many at once, such
    /// as kube-controller-manager, is no part of what is measured.
    async fn prepare(&self, group: &str, stage: Stage) -> Result<()> {
        self.fleet.serve(WIDE, false).await?;
        let driver = self.fleet.driver(WIDE);
        let request = |node: usize| {
            let name = cluster::name(group, node);
            match stage {
                Stage::Gone => Prepared::delete_attachment(&name),
                _ => Prepared::create_attachment(&name, &driver, VOLUME, &cluster::name("many", node)),
            }
        };
        send_all(&self.fleet.bench.client, (0..self.nodes).map(request).collect())
            .await
            .map(drop)
    }

    /// The operator's CPU time for each attachment.
    async fn mass(&self, group: &str, stage: Stage) -> Result<Duration> {
        let cpu = self.fleet.cpu()?;
        self.fleet.serve(WIDE, true).await?;
        self.fleet.wait(group, stage, self.nodes).await?;
        let cpu = self.fleet.cpu()?.saturating_sub(cpu);
        Ok(each_of(cpu, self.nodes))
    }
}
