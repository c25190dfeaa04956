//! One ReadWriteMany volume on very many nodes against as many separate volumes, one for each node: attach all, detach all.
//!
//! Both kinds take turns, and their PersistentVolumes stay: from the first counted round on, both write the same.
//!
//! Environment: `NODES` (5000), `ROUNDS` (3), `OPERATOR_BINARY`.

use crate::attacher::{Attacher, Kind, Others};
use crate::cluster;
use crate::fleet::{Fleet, Plan};
use crate::recorder::Stage;
use crate::requests::{Prepared, send_all};
use crate::stats::{median, ms};
use crate::support::Result;
use crate::table::{Row, Topic};
use crate::{process, progress, setting};

const VOLUME: &str = "shared-volume";
const SEPARATE: &str = "separate";

/// Measures.
pub async fn measure() -> Result<Vec<Row>> {
    let (nodes, rounds) = (setting("NODES", 5000)?, setting("ROUNDS", 3)?);
    // Nodes of its own, as there is one for each volume.
    let fleet = Fleet::start(Plan::new("rwx", 1, 1)).await?;
    let driver = fleet.driver(0);
    fleet.bench.create_nodes("many", nodes, &[&driver]).await?;
    let shared = Prepared::create_volume_with(VOLUME, &driver, "ReadWriteMany");
    send_all(&fleet.bench.client, vec![shared]).await?;
    fleet.bench.create_volumes(SEPARATE, &driver, nodes).await?;
    let own = rounds_of(&fleet, "rwx", fleet.operator.pid()?, nodes, rounds).await?;
    let (fleet, mut others) = (fleet.stop().await?, Others::new());
    for kind in Kind::others() {
        let attacher = Attacher::start(&fleet.bench, kind, &fleet.socket(0)).await?;
        let group = format!("{kind:?}").to_lowercase();
        others.push((kind, rounds_of(&fleet, &group, attacher.pid()?, nodes, rounds).await?));
    }
    let name = format!("one RWX volume on {nodes} nodes: CPU to attach and detach all, each");
    Ok(vec![
        Row::new(Topic::Cpu, name, own[1], "ms")
            .against(&format!("{nodes} separate volumes"), own[0])
            .ratio_at_most(1.3)
            .beside(&others, |costs| costs[1]),
    ])
}

/// The medians of the rounds with separate volumes, and of those with one.
async fn rounds_of<O>(fleet: &Fleet<O>, group: &str, pid: u32, nodes: usize, rounds: usize) -> Result<[f64; 2]> {
    let mut costs = [Vec::new(), Vec::new()];
    for round in 0..=rounds {
        for (shared, costs) in costs.iter_mut().enumerate() {
            let what = ["separate volumes", "one volume"][shared];
            progress(&format!("{group}: round {round} of {rounds}, {what} at {nodes} nodes"));
            let cost = cycle(fleet, pid, &format!("{group}{round}x{shared}"), nodes, shared == 1).await?;
            // In the first round the volumes get their finalizers.
            if round > 0 {
                costs.push(cost);
            }
        }
    }
    Ok(costs.map(median))
}

/// The attacher's CPU time in ms for each attachment.
async fn cycle<O>(fleet: &Fleet<O>, pid: u32, group: &str, nodes: usize, shared: bool) -> Result<f64> {
    let cpu = process::cpu(pid)?;
    let driver = fleet.driver(0);
    let create = |node: usize| {
        let volume = if shared {
            VOLUME.to_owned()
        } else {
            cluster::name(SEPARATE, node)
        };
        Prepared::create_attachment(
            &cluster::name(group, node),
            &driver,
            &volume,
            &cluster::name("many", node),
        )
    };
    send_all(&fleet.bench.client, (0..nodes).map(create).collect()).await?;
    fleet.wait(group, Stage::Attached, nodes).await?;
    fleet.bench.delete_attachments(group, nodes).await?;
    fleet.wait(group, Stage::Gone, nodes).await?;
    Ok(ms(process::cpu(pid)?.saturating_sub(cpu)) / nodes as f64)
}
