//! A rolling update from the former release and back, while volumes are attached and detached and both versions are at work.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::ending;
use super::recorder::Recorder;
use super::report::Part;
use super::secrets;
use super::storm::watch_drivers;
use super::workers::{Order, Workers};
use super::world::{Program, Scale, World, this_version};
use crate::support::{Error, Result};

const SCALE: Scale = Scale {
    drivers: 2,
    volumes: 8,
    nodes: 3,
    replicas: 3,
    claims: 0,
};

/// The program of the former release: `FORMER_OPERATOR`, or what `tests/chaos/former` builds.
pub async fn former() -> Result<Program> {
    let given = std::env::var_os("FORMER_OPERATOR").map(Into::into);
    let path = match given {
        Some(path) => path,
        None => tokio::task::spawn_blocking(build).await??,
    };
    Ok(Program {
        version: "former",
        path,
    })
}

fn build() -> Result<std::path::PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/chaos/former");
    let output = Command::new(&script).stderr(std::process::Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(Error::Other(format!(
            "{} ended with {}",
            script.display(),
            output.status
        )));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().into())
}

/// Does it; each replica is replaced after `pause`.
pub async fn roll(seed: u64, pause: Duration) -> Result<Part> {
    let mut part = Part::new("rolling");
    let started = Instant::now();
    let old = former().await?;
    let world = Arc::new(World::set(SCALE, Recorder::new(true)).await?);
    world.start_replicas(&old).await?;
    let _watched = watch_drivers(&world);
    let workers = Workers::start(&world, seed);
    for program in [this_version(), old] {
        for replica in &world.replicas {
            sleep(pause).await;
            let mut running = replica.running.lock().await;
            if let Some(process) = running.take() {
                world.end(process, "TERM").await?;
            }
            let name = format!("{}-{}", program.version, replica.number);
            world.start(replica, &mut running, &name, &program).await?;
            part.rounds += 1;
        }
        world.recorder.note("", format!("all replicas are {}", program.version));
        sleep(pause).await;
        world.look_after_replicas().await?;
        part.slowest = part.slowest.max(workers.settle(Order::Rest).await);
        workers.order(Order::Work);
    }
    part.faults.insert("replicas updated".to_owned(), part.rounds);
    part.slowest = part.slowest.max(workers.settle(Order::Final).await);
    ending::leave_nothing(&world, &workers).await?;
    secrets::look_for(&world).await?;
    part.judge(&world.recorder.history(world.calls()));
    world.keep_logs().await;
    part.took = started.elapsed();
    Ok(part)
}
