//! A start while very many volumes are attached, and the take-over by another process, against a bare client that lists the
//! same objects in the same run.
//!
//! Each round lists, ends the operator, makes one attachment more, and starts another operator: when it is ready, and when
//! the driver is called for that attachment. Nothing else may be called or written.
//!
//! Environment: `VOLUMES` (50000), `ROUNDS` (3), `OPERATOR_BINARY`.

use std::time::{Duration, Instant};

use k8s_openapi::api::storage::v1::CSINode;
use kube::api::ListParams;
use kube::{Api, Client};
use serde::de::DeserializeOwned;

use csi_attacher_model::objects::{PersistentVolumeWire, VolumeAttachmentWire};
use csi_mock_driver::Method;

use crate::attacher::{Attacher, Kind, Others, PHASE_LIMIT};
use crate::cluster::{Bench, name};
use crate::fleet::{Fleet, Plan};
use crate::process::Memory;
use crate::recorder::Stage;
use crate::requests::{Prepared, send_all};
use crate::stats::{median, mib};
use crate::support::{Error, Operator, Result};
use crate::table::{Row, Topic};
use crate::{progress, setting};

/// Objects asked for at a time, as the operator asks.
const PAGE_SIZE: u32 = 500;
/// What a start leaves to do is done by then.
const SETTLED: Duration = Duration::from_secs(10);

/// One start.
struct Start {
    listed: Duration,
    ready: Duration,
    first_call: Duration,
    cpu: Duration,
    /// Calls and writes besides those for the attachment that is new.
    calls: usize,
    writes: i64,
    memory: Memory,
}

/// Measures.
pub async fn measure() -> Result<Vec<Row>> {
    let (volumes, rounds) = (setting("VOLUMES", 50_000)?, setting("ROUNDS", 3)?);
    let mut fleet = Fleet::start(Plan::new("start", 1, volumes)).await?;
    progress(&format!("start: attaching {volumes}"));
    fleet.attach(0, "full", volumes).await?;
    let rate = fleet.bench.recorder.attach_rate("full");
    tokio::time::sleep(SETTLED).await;
    let attached = fleet.memory()?;
    let size = size(&fleet.bench.client, volumes.min(PAGE_SIZE as usize)).await?;
    let mut starts = Vec::new();
    for round in 0..rounds {
        progress(&format!("start: round {} of {rounds}", round + 1));
        let (next, start) = restart(fleet, &format!("last{round}")).await?;
        fleet = next;
        starts.push(start);
    }
    let fleet = fleet.stop().await?;
    let mut others = Vec::new();
    for kind in Kind::others() {
        progress(&format!("start: {kind:?}"));
        others.push((kind, take_over(&fleet, kind).await?));
    }
    let mut rows = rows(volumes, rate, attached, &starts, &others);
    rows.push(Row::new(
        Topic::Requests,
        "an attachment and its volume in a list, JSON",
        size,
        "bytes",
    ));
    Ok(rows)
}

/// What a take-over by another attacher takes.
struct TakeOver {
    first_call: f64,
    cpu: f64,
    memory: f64,
}

async fn take_over(fleet: &Fleet<()>, kind: Kind) -> Result<TakeOver> {
    let group = format!("{kind:?}").to_lowercase();
    let driver = fleet.driver(0);
    fleet.bench.create_volumes(&group, &driver, 1).await?;
    send_all(&fleet.bench.client, Bench::attachments(&group, &driver, 1)).await?;
    let attacher = Attacher::start(&fleet.bench, kind, &fleet.socket(0)).await?;
    // What is made before the process starts, such as its kubeconfig, is no part of it.
    let started = Instant::now();
    let first_call = first_call(fleet, started, format!("vol-{}", name(&group, 0))).await?;
    fleet.wait(&group, Stage::Attached, 1).await?;
    let cpu = attacher.cpu()?;
    tokio::time::sleep(SETTLED).await;
    let memory = attacher.memory()?;
    fleet.remove(&group, 1).await?;
    Ok(TakeOver {
        first_call: first_call.as_secs_f64(),
        cpu: cpu.as_secs_f64(),
        memory: mib(memory.now),
    })
}

async fn restart(fleet: Fleet, group: &str) -> Result<(Fleet, Start)> {
    let listed = bare_list(&fleet.bench.client).await?;
    let stopped = fleet.stop().await?;
    let driver = stopped.driver(0);
    let (calls, counts) = (stopped.mocks[0].call_count(), stopped.bench.counts().await?);
    stopped.bench.create_volumes(group, &driver, 1).await?;
    send_all(&stopped.bench.client, Bench::attachments(group, &driver, 1)).await?;
    let handle = format!("vol-{}", name(group, 0));
    let started = Instant::now();
    let fleet = stopped.start_again()?;
    let (ready, first_call) = tokio::try_join!(ready(&fleet.operator, started), first_call(&fleet, started, handle))?;
    fleet.wait(group, Stage::Attached, 1).await?;
    let cpu = fleet.cpu()?;
    tokio::time::sleep(SETTLED).await;
    let writes = (&fleet.bench.counts().await? - &counts).writes() - 3;
    let moves = [Method::ControllerPublishVolume, Method::ControllerUnpublishVolume];
    let after = fleet.mocks[0].calls();
    let calls = after
        .iter()
        .filter(|call| call.id >= calls && moves.contains(&call.method))
        .count();
    let memory = fleet.memory()?;
    fleet.remove(group, 1).await?;
    Ok((
        fleet,
        Start {
            listed,
            ready,
            first_call,
            cpu,
            calls: calls.saturating_sub(1),
            writes,
            memory,
        },
    ))
}

/// Bytes of an attachment and of its volume in a list.
async fn size(client: &Client, count: usize) -> Result<f64> {
    let lists = [Prepared::list_attachments(count), Prepared::list_volumes(count)];
    let mut bytes = 0;
    for list in lists {
        bytes += list.send(client).await?.len();
    }
    Ok(bytes as f64 / count as f64)
}

/// How long after `started` an operator is ready.
pub async fn ready(operator: &Operator, started: Instant) -> Result<Duration> {
    loop {
        if matches!(operator.get("/readyz").await, Ok((200, _))) {
            return Ok(started.elapsed());
        }
        if started.elapsed() > PHASE_LIMIT {
            return Err(Error::Other(format!("not ready: {}", operator.log_text())));
        }
        // The answer of the probe is what is measured; there is nothing else to wait for.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn first_call<O>(fleet: &Fleet<O>, started: Instant, volume: String) -> Result<Duration> {
    let called = fleet.mocks[0].wait_for_call(move |call| call.volume.as_deref() == Some(&volume));
    let called = tokio::time::timeout(PHASE_LIMIT, called).await;
    called.map_err(|_| Error::Other(format!("no call came within {PHASE_LIMIT:?}")))?;
    Ok(started.elapsed())
}

/// What a client needs that does nothing but list and decode, all kinds at the same time.
async fn bare_list(client: &Client) -> Result<Duration> {
    let started = Instant::now();
    tokio::try_join!(
        list::<VolumeAttachmentWire>(client),
        list::<PersistentVolumeWire>(client),
        list::<CSINode>(client),
    )?;
    Ok(started.elapsed())
}

async fn list<K>(client: &Client) -> Result<usize>
where
    K: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let api = Api::<K>::all(client.clone());
    let mut page = ListParams::default().limit(PAGE_SIZE);
    let mut count = 0;
    loop {
        let answer = api.list(&page).await?;
        count += answer.items.len();
        match answer.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(count),
        }
    }
}

fn rows(volumes: usize, rate: f64, attached: Memory, starts: &[Start], others: &Others<TakeOver>) -> Vec<Row> {
    let middle = |value: fn(&Start) -> f64| median(starts.iter().map(value));
    let listed = middle(|start| start.listed.as_secs_f64());
    let steady = middle(|start| mib(start.memory.now));
    let row = |topic, what: &str, value: f64, unit: &str| {
        Row::new(topic, format!("start with {volumes} attached: {what}"), value, unit)
    };
    let target = if volumes <= 5_000 { 28.0 } else { 100.0 };
    let memory = Row::new(
        Topic::Memory,
        format!("RSS, {volumes} attached"),
        mib(attached.now),
        "MiB",
    );
    let memory = if volumes <= 50_000 {
        memory.at_most(target)
    } else {
        memory
    };
    let take_over = Row::new(
        Topic::Start,
        format!("take-over with {volumes} attached: first call"),
        middle(|start| start.first_call.as_secs_f64()),
        "s",
    );
    vec![
        Row::new(
            Topic::Rate,
            format!("attach rate, {volumes} first attaches in a burst"),
            rate,
            "/s",
        ),
        memory,
        row(Topic::Memory, "RSS afterwards", steady, "MiB")
            .beside(others, |of| of.memory)
            .headline(),
        row(Topic::Memory, "RSS peak", middle(|start| mib(start.memory.peak)), "MiB")
            .against("RSS afterwards", steady)
            .ratio_at_most(1.3),
        row(Topic::Start, "ready", middle(|start| start.ready.as_secs_f64()), "s")
            .against("bare list", listed)
            .ratio_at_most(1.5),
        row(Topic::Cpu, "CPU", middle(|start| start.cpu.as_secs_f64()), "s").beside(others, |of| of.cpu),
        row(Topic::Start, "CSI calls", middle(|start| start.calls as f64), "").exactly(0.0),
        row(
            Topic::Start,
            "writes to VolumeAttachments and PersistentVolumes",
            middle(|start| start.writes as f64),
            "",
        )
        .exactly(0.0),
        take_over
            .against("bare list", listed)
            .at_most(listed + 1.0)
            .beside(others, |of| of.first_call)
            .headline(),
    ]
}
