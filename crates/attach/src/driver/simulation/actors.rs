//! Fate: what happens to processes, drivers, watches and Leases.

use std::time::Duration;

use futures::future::join_all;
use jiff::SignedDuration;
use tokio::time::{Instant, sleep};

use super::cluster::Kind;
use super::leases::Rival;
use super::mutants::Mutant;
use super::replica::Replica;
use super::scenario::Event;
use super::sidecar::Sidecars;
use super::stage;
use super::world::World;
use super::{configs, leases};

/// The processes of the operator.
pub struct Replicas {
    world: World,
    mutant: Mutant,
    all: Vec<Replica>,
    count: usize,
    /// What works instead of so many replicas.
    instead: Option<(Sidecars, usize)>,
}

impl Replicas {
    pub fn start(world: &World, mutant: Mutant) -> Self {
        let wanted = world.with(|state| state.scenario.replicas) + usize::from(mutant.double);
        let mut replicas = Self {
            world: world.clone(),
            mutant,
            all: Vec::new(),
            count: 0,
            instead: None,
        };
        for _ in 0..wanted {
            replicas.start_one();
        }
        replicas
    }

    fn start_one(&mut self) {
        self.count += 1;
        self.all.push(Replica::start(&self.world, self.count, self.mutant));
    }

    /// Which one works for the first driver, or would; none while a sidecar does.
    fn at_work(&self) -> Option<usize> {
        let holder = self
            .world
            .with(|state| (0..2).find_map(|place| state.terms.holder(&leases::key(place, 0))));
        let found = self
            .all
            .iter()
            .position(|replica| holder == Some(replica.process.number()));
        (!self.all.is_empty()).then(|| found.unwrap_or(0))
    }

    fn worker(&self) -> Option<&Replica> {
        self.at_work().map(|number| &self.all[number])
    }

    fn take_worker(&mut self) -> Option<Replica> {
        self.at_work().map(|number| self.all.remove(number))
    }

    /// All replicas are told to end, and the sidecar of each driver starts.
    async fn give_way(&mut self) {
        if self.instead.is_some() {
            return;
        }
        self.go_on();
        let ending = std::mem::take(&mut self.all);
        let count = ending.len();
        join_all(ending.into_iter().map(Replica::end)).await;
        self.instead = Some((Sidecars::start(&self.world), count));
    }

    /// The sidecars end, and replicas start.
    async fn come_back(&mut self) {
        let Some((sidecars, count)) = self.instead.take() else {
            return;
        };
        sidecars.end().await;
        for _ in 0..count {
            self.start_one();
        }
    }

    /// Whatever stands still goes on.
    pub fn go_on(&self) {
        for replica in &self.all {
            replica.process.go_on();
        }
    }
}

/// Lets an event happen.
pub async fn act(world: &World, replicas: &mut Replicas, event: Event) {
    world.note("world", || format!("{event:?}"));
    match event {
        Event::Crash => {
            let pause = world.with(|state| {
                state.must_undo.clear();
                state.millis(0..=3_000)
            });
            let Some(dying) = replicas.take_worker() else { return };
            dying.die();
            sleep(pause).await;
            replicas.start_one();
        }
        Event::HandOver => {
            let Some(ending) = replicas.take_worker() else { return };
            ending.process.go_on();
            ending.end().await;
            replicas.start_one();
        }
        Event::ConnectionLost(driver) => {
            let pause = world.with(|state| state.millis(0..=3_000));
            if let Some(worker) = replicas.worker() {
                worker.reconnect(driver, pause);
            }
        }
        Event::Reconfigure(variant) => {
            world.with(|state| state.settings = variant);
            for replica in &replicas.all {
                replica.reconfigure(variant);
            }
        }
        Event::WatchBreaks(kind) => replicas.all.iter().for_each(|replica| replica.break_watch(kind)),
        Event::StandStill(polls, millis) | Event::Suspend(polls, millis) => {
            let suspends = matches!(event, Event::Suspend(..));
            if let Some(worker) = replicas.worker() {
                worker
                    .process
                    .stand_still(polls, Duration::from_millis(millis), suspends);
            }
        }
        Event::WallClock(seconds) => {
            if let Some(worker) = replicas.worker() {
                worker.process.set_wall_clock(SignedDuration::from_secs(seconds));
            }
        }
        Event::LeaseGoes(driver) => world.with(|state| {
            let key = leases::key(state.place, driver);
            state.cluster.delete(Kind::Lease, &key);
        }),
        Event::StrangerCompetes(driver, millis) => {
            tokio::spawn(compete(world.clone(), driver, Duration::from_millis(millis)));
        }
        // Whoever moves Leases from where the sidecar has its own lets both work.
        Event::LeaseMoves(_) if replicas.instead.is_some() => {}
        Event::LeaseMoves(place) => {
            world.with(|state| configs::place(state, place));
            for replica in &replicas.all {
                let after = world.with(|state| state.millis(0..=2_000));
                replica.move_leases(after);
            }
        }
        Event::CapabilityGoes(driver) | Event::CapabilityComes(driver) => {
            let able = matches!(event, Event::CapabilityComes(_));
            set_capability(world, replicas, driver, able);
        }
        Event::Restore(back, bumped) => world.with(|state| stage::restore(state, back, bumped)),
        Event::DeleteVolume(number) => stage::delete_volume(world, number),
        Event::SidecarComes => replicas.give_way().await,
        Event::SidecarGoes => replicas.come_back().await,
        Event::Stall(millis) => world.with(|state| state.stall(Duration::from_millis(millis))),
        event => world.with(|state| stage::change(state, event)),
    }
}

/// A driver is another program from now on, with or without ControllerPublishVolume.
fn set_capability(world: &World, replicas: &Replicas, driver: usize, able: bool) {
    let before = world.with(|state| {
        state.lacked[driver] |= !able;
        std::mem::replace(&mut state.capable[driver], able)
    });
    if before == able {
        return;
    }
    for replica in &replicas.all {
        let pause = world.with(|state| state.millis(0..=500));
        replica.reconnect(driver, pause);
    }
}

/// Faults stop, and whatever was amiss is put right.
pub async fn calm_down(world: &World, replicas: &mut Replicas) {
    world.with(|state| {
        state.calm = true;
        state.journal.note("world", || "faults stop".to_owned());
        if state.rollback.is_some() {
            stage::let_go_of_deleted_volumes(state);
        }
    });
    replicas.come_back().await;
    replicas.go_on();
    let drivers = world.with(|state| state.scenario.drivers);
    for driver in 0..drivers {
        set_capability(world, replicas, driver, true);
    }
}

/// A client that is no replica competes for a Lease, for so long.
async fn compete(world: World, driver: usize, pause: Duration) {
    let end = Instant::now() + pause;
    let mut rival = world.with(|state| Rival::new(state, "stranger", driver));
    while Instant::now() < end && !world.with(|state| state.calm) {
        world.with(|state| rival.leads(state));
        sleep(Duration::from_secs(1)).await;
    }
    world.with(|state| rival.leave(state));
}
