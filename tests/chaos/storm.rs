//! The run of random faults: the same work once without faults and once with them, and both ends compared.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use super::ending;
use super::faults;
use super::plan::{Kind, Round};
use super::recorder::Recorder;
use super::report::Part;
use super::restore::restore;
use super::secrets;
use super::workers::{Order, Workers, watch_two_nodes};
use super::world::{Scale, World, this_version};
use crate::support::Result;

/// How large the worlds of both runs are.
const SCALE: Scale = Scale {
    drivers: 3,
    volumes: 12,
    nodes: 4,
    replicas: 3,
    claims: 6,
};
/// How long the run without faults works.
const CALM: Duration = Duration::from_secs(8);
/// Between two rounds.
const BETWEEN: Duration = Duration::from_secs(1);

/// What is played.
#[derive(Clone, Debug)]
pub struct Storm {
    pub seed: u64,
    pub lasts: Duration,
    pub kinds: Vec<Kind>,
    /// Go on with the next round after a violation.
    pub keep_going: bool,
    /// Play this round only, again and again.
    pub only: Option<usize>,
}

/// Watches the drivers as long as it is held.
pub fn watch_drivers(world: &Arc<World>) -> Vec<AbortOnDropHandle<Result<()>>> {
    let watch = |driver| AbortOnDropHandle::new(tokio::spawn(watch_two_nodes(Arc::clone(world), driver)));
    (0..world.drivers.len()).map(watch).collect()
}

/// The run without faults; answers where it ends.
pub async fn calm(seed: u64) -> Result<(Part, Value)> {
    let mut part = Part::new("calm");
    let started = Instant::now();
    let world = Arc::new(World::set(SCALE, Recorder::new(true)).await?);
    world.start_replicas(&this_version()).await?;
    let _watched = watch_drivers(&world);
    let workers = Workers::start(&world, seed);
    sleep(CALM).await;
    part.slowest = workers.settle(Order::Final).await;
    ending::agree(&world).await?;
    let end = ending::reference(&world).await?;
    ending::leave_nothing(&world, &workers).await?;
    secrets::look_for(&world).await?;
    part.judge(&world.recorder.history(world.calls()));
    world.keep_logs().await;
    part.took = started.elapsed();
    Ok((part, end))
}

/// The run with faults, which must end as the one without.
pub async fn storm(storm: &Storm, reference: &Value) -> Result<Part> {
    let mut part = Part::new("storm");
    let started = Instant::now();
    let world = Arc::new(World::set(SCALE, Recorder::new(true)).await?);
    world.start_replicas(&this_version()).await?;
    let _watched = watch_drivers(&world);
    let workers = Workers::start(&world, storm.seed);
    let mut number = storm.only.unwrap_or_default();
    let mut is_sound = true;
    while (started.elapsed() < storm.lasts || part.rounds == 0) && (is_sound || storm.keep_going) {
        let round = Round::draw(storm.seed, number, &storm.kinds, SCALE.replicas, SCALE.drivers);
        world.recorder.note("", format!("round {number}"));
        round
            .faults
            .iter()
            .for_each(|fault| world.recorder.note("", format!("planned: {fault}")));
        part.count(&round);
        workers.order(Order::Work);
        if let [fault] = &round.faults[..]
            && fault.kind == Kind::Restore
        {
            restore(&world, &workers, fault).await?;
        } else {
            faults::strike(&world, &round).await?;
            faults::make_whole(&world).await?;
            part.slowest = part.slowest.max(workers.settle(Order::Rest).await);
            ending::agree(&world).await?;
        }
        secrets::look_for(&world).await?;
        is_sound = part.judge(&world.recorder.history(world.calls()));
        let (cycles, violations) = (part.cycles, part.violations.len());
        world.recorder.note(
            "",
            format!("round {number} is over: {cycles} cycles so far, {violations} violations"),
        );
        number += usize::from(storm.only.is_none());
        sleep(BETWEEN).await;
    }
    if is_sound {
        part.slowest = part.slowest.max(workers.settle(Order::Final).await);
        ending::agree(&world).await?;
        ending::compare(&world, reference).await?;
        ending::leave_nothing(&world, &workers).await?;
        secrets::look_for(&world).await?;
        part.judge(&world.recorder.history(world.calls()));
    }
    world.keep_logs().await;
    part.took = started.elapsed();
    Ok(part)
}
