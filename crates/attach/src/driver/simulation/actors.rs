//! Fate: what happens to processes, drivers, watches and Leases.

use std::time::Duration;

use jiff::SignedDuration;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::cluster::{Kind, text};
use super::leases;
use super::mutants::Mutant;
use super::replica::Replica;
use super::scenario::Event;
use super::stage;
use super::world::World;

/// The holder of a Lease that is no replica.
const STRANGER: &str = "stranger";

/// The processes of the operator.
pub struct Replicas {
    world: World,
    mutant: Mutant,
    all: Vec<Replica>,
    count: usize,
}

impl Replicas {
    pub fn start(world: &World, mutant: Mutant) -> Self {
        let wanted = world.with(|state| state.scenario.replicas) + usize::from(mutant.double);
        let mut replicas = Self {
            world: world.clone(),
            mutant,
            all: Vec::new(),
            count: 0,
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

    /// Which one works for the first driver, or would.
    fn at_work(&self) -> usize {
        let holder = self
            .world
            .with(|state| state.terms.holder(&leases::key(leases::OWN, 0)));
        let found = self
            .all
            .iter()
            .position(|replica| holder == Some(replica.process.number()));
        found.unwrap_or(0)
    }

    fn worker(&self) -> &Replica {
        &self.all[self.at_work()]
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
            let dying = replicas.all.remove(replicas.at_work());
            dying.die();
            sleep(pause).await;
            replicas.start_one();
        }
        Event::HandOver => {
            let ending = replicas.all.remove(replicas.at_work());
            ending.process.go_on();
            ending.end().await;
            replicas.start_one();
        }
        Event::ConnectionLost(driver) => {
            let pause = world.with(|state| state.millis(0..=3_000));
            replicas.worker().reconnect(driver, pause);
        }
        Event::Reconfigure(variant) => {
            world.with(|state| state.settings = variant);
            for replica in &replicas.all {
                replica.reconfigure(variant);
            }
        }
        Event::WatchBreaks(kind) => replicas.all.iter().for_each(|replica| replica.break_watch(kind)),
        Event::StandStill(polls, millis) | Event::Suspend(polls, millis) => {
            let process = &replicas.worker().process;
            let suspends = matches!(event, Event::Suspend(..));
            process.stand_still(polls, Duration::from_millis(millis), suspends);
        }
        Event::WallClock(seconds) => {
            let process = &replicas.worker().process;
            process.set_wall_clock(SignedDuration::from_secs(seconds));
        }
        Event::LeaseGoes(driver) => world.with(|state| {
            let key = leases::key(leases::OWN, driver);
            state.cluster.delete(Kind::Lease, &key);
        }),
        Event::StrangerCompetes(driver, millis) => {
            tokio::spawn(compete(world.clone(), driver, Duration::from_millis(millis)));
        }
        Event::LeaseMoves(place) => {
            world.with(|state| state.place = place);
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
pub fn calm_down(world: &World, replicas: &Replicas) {
    world.with(|state| {
        state.calm = true;
        state.journal.note("world", || "faults stop".to_owned());
        if state.rollback.is_some() {
            stage::let_go_of_deleted_volumes(state);
        }
    });
    replicas.go_on();
    let drivers = world.with(|state| state.scenario.drivers);
    for driver in 0..drivers {
        set_capability(world, replicas, driver, true);
    }
}

/// A client that is no replica competes for a Lease, for so long: it takes it when it is free or has run out.
async fn compete(world: World, driver: usize, pause: Duration) {
    let end = Instant::now() + pause;
    let key = world.with(|state| leases::key(state.place, driver));
    let mut holds = false;
    while Instant::now() < end && !world.with(|state| state.calm) {
        world.with(|state| {
            let Some(lease) = state.scenario.lease else { return };
            let known = state.cluster.get(Kind::Lease, &key).cloned();
            let holder = known
                .as_ref()
                .map(|known| text(known, "/spec/holderIdentity").to_owned());
            let mut changes = state.cluster.changes.iter().rev();
            let last = changes
                .find(|change| change.kind == Kind::Lease && text(&change.object, "/metadata/name") == key)
                .map(|change| change.at);
            let over = last.is_none_or(|last| last + lease.duration < Instant::now());
            holds = holder.as_deref() == Some(STRANGER);
            // One that is gone is left alone for as long: its holder may not know yet.
            if holds || over || holder.is_some_and(|holder| holder.is_empty()) {
                holds = true;
                let seconds = lease.duration.as_secs();
                let spec = json!({"holderIdentity": STRANGER, "leaseDurationSeconds": seconds, "leaseTransitions": 1});
                leases::store(state, None, &key, json!({"metadata": {}, "spec": spec}));
            }
        });
        sleep(Duration::from_secs(1)).await;
    }
    world.with(|state| {
        let known = state.cluster.get(Kind::Lease, &key);
        let ours = known.is_some_and(|known| text(known, "/spec/holderIdentity") == STRANGER);
        if holds && ours && state.rng.bool() {
            let spec = json!({"leaseDurationSeconds": 1, "leaseTransitions": 1});
            leases::store(state, None, &key, json!({"metadata": {}, "spec": spec}));
        }
    });
}
