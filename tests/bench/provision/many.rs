//! Very many claims that are bound: what they cost in memory, and a start among them.
//!
//! Environment: `VOLUMES` (5000), `ROUNDS` (3), `OPERATOR_BINARY`.

use std::time::{Duration, Instant};

use serde_json::json;

use csi_attacher_model::objects::{Claim, PersistentVolumeClaimWire};

use super::ceiling;
use super::world::{BOUND, CLASS, DRIVER, Requests, World, claim};
use crate::attacher::{Attacher, Kind};
use crate::cluster::name;
use crate::process::Memory;
use crate::requests::{Prepared, VOLUMES, claims, each};
use crate::stats::{median, mib};
use crate::support::{Operator, Result};
use crate::table::{Row, Topic};
use crate::{attacher, progress, setting};

/// What a start leaves to do is done by then.
const SETTLED: Duration = Duration::from_secs(10);

/// One start, with what is done in its first seconds.
struct Start {
    ready: Duration,
    memory: Memory,
    writes: i64,
    calls: u64,
}

/// Measures.
pub async fn measure() -> Result<Vec<Row>> {
    let (count, rounds) = (setting("VOLUMES", 5000)?, setting("ROUNDS", 3)?);
    let world = World::start(json!({})).await?;
    let empty = starts(&world, rounds, "empty").await?;
    progress(&format!("provisioned: {count} claims"));
    let made = claims_of(&world, count).await?;
    let with_claims = starts(&world, rounds, "claims").await?;
    progress(&format!("provisioned: {count} PersistentVolumes"));
    volumes_of(&world, made).await?;
    let all = starts(&world, rounds, "all").await?;
    let mut peer = None;
    if Kind::all().contains(&Kind::Sidecar) {
        progress("provisioned: external-provisioner");
        let sidecar = Attacher::start_provisioner(&world.bench, Kind::Sidecar, &world.socket, &super::FLAGS).await?;
        tokio::time::sleep(SETTLED).await;
        peer = Some(mib(sidecar.memory()?.now));
    }
    Ok(rows(count, &[empty, with_claims, all], peer))
}

async fn claims_of(world: &World, count: usize) -> Result<Vec<Claim>> {
    let client = world.bench.client.clone();
    let names = (0..count).map(|number| name(BOUND, number)).collect();
    let (made, _) = each(names, move |name: String| {
        let client = client.clone();
        async move {
            let mut wanted = claim(&name, CLASS, DRIVER);
            // A name that is as long as that of a volume.
            wanted["spec"]["volumeName"] = format!("pvc-00000000-0000-0000-0000-{:0>12}", &name[6..]).into();
            Prepared::create(&claims(), &wanted).send(&client).await?;
            let status = json!({"status": {"phase": "Bound"}});
            let bound = Prepared::merge(&format!("{}/{name}/status", claims()), &status);
            bound
                .send_for::<PersistentVolumeClaimWire>(&client)
                .await
                .map(Claim::from)
        }
    })
    .await?;
    Ok(made)
}

async fn volumes_of(world: &World, claims: Vec<Claim>) -> Result<()> {
    let client = world.bench.client.clone();
    each(claims, move |claim: Claim| {
        let client = client.clone();
        async move {
            let name = claim.volume_name.as_deref().unwrap_or_default();
            let mut wanted = ceiling::volume(&claim);
            wanted["metadata"]["name"] = name.into();
            wanted["spec"]["csi"]["driver"] = DRIVER.into();
            wanted["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"] = DRIVER.into();
            Prepared::create(VOLUMES, &wanted).send(&client).await?;
            let status = json!({"status": {"phase": "Bound"}});
            Prepared::merge(&format!("{VOLUMES}/{name}/status"), &status)
                .send(&client)
                .await
                .map(drop)
        }
    })
    .await
    .map(drop)
}

async fn starts(world: &World, rounds: usize, what: &str) -> Result<Vec<Start>> {
    let mut all = Vec::new();
    for round in 0..rounds {
        progress(&format!("provisioned: {what}, start {} of {rounds}", round + 1));
        all.push(start(world).await?);
    }
    Ok(all)
}

async fn start(world: &World) -> Result<Start> {
    let identity = crate::support::operator::IDENTITY;
    let kubeconfig = world
        .bench
        .cluster
        .kubeconfig_for_service_account(identity, identity)
        .await?;
    let (before, calls) = (world.quiet().await?, moves(world));
    let started = Instant::now();
    let operator = Operator::start_with(&kubeconfig, attacher::options())?;
    let ready = crate::start::ready(&operator, started).await?;
    tokio::time::sleep(SETTLED).await;
    let writes = Requests::read(&world.bench.client).await?.since(&before).writes();
    let memory = crate::process::memory(operator.pid()?)?;
    let calls = moves(world) - calls;
    attacher::stop(operator).await?;
    Ok(Start {
        ready,
        memory,
        writes,
        calls,
    })
}

/// Calls of the driver that make or delete a volume.
fn moves(world: &World) -> u64 {
    use csi_mock_driver::Method::{CreateVolume, DeleteVolume};
    let calls = [CreateVolume, DeleteVolume].map(|method| world.driver.calls_of(method).len());
    calls.iter().sum::<usize>() as u64
}

fn rows(count: usize, [empty, claims, all]: &[Vec<Start>; 3], peer: Option<f64>) -> Vec<Row> {
    let middle = |starts: &[Start], value: fn(&Start) -> f64| median(starts.iter().map(value));
    let now = |starts: &[Start]| middle(starts, |start| start.memory.now as f64);
    let each = |more: &[Start], less: &[Start]| (now(more) - now(less)) * 1024.0 / count as f64;
    let what = |name: &str| format!("{count} bound claims: {name}");
    let resident = now(all) / 1024.0;
    vec![
        Row::new(Topic::Memory, what("memory for a claim"), each(claims, empty), "bytes").at_most(1024.0),
        Row::new(
            Topic::Memory,
            what("memory for its PersistentVolume"),
            each(all, claims),
            "bytes",
        )
        .at_most(1536.0),
        Row::new(Topic::Memory, what("RSS"), resident, "MiB")
            .at_most(160.0)
            .sidecar(peer)
            .note(format!("without any {:.1} MiB", now(empty) / 1024.0)),
        Row::new(
            Topic::Memory,
            what("RSS peak of the start"),
            middle(all, |start| mib(start.memory.peak)),
            "MiB",
        )
        .against("RSS afterwards", resident)
        .ratio_at_most(1.3),
        Row::new(
            Topic::Start,
            what("ready"),
            middle(all, |start| start.ready.as_secs_f64()),
            "s",
        )
        .at_most(5.0),
        Row::new(
            Topic::Start,
            what("writes of a start"),
            middle(all, |start| start.writes as f64),
            "",
        )
        .exactly(0.0),
        Row::new(
            Topic::Start,
            what("calls of a start"),
            middle(all, |start| start.calls as f64),
            "",
        )
        .exactly(0.0),
    ]
}
