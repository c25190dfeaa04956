//! Whether the key of a state is enough.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::{LeaseFlaw, LeaseSetting, LeaseState, LeaseWorld, Tick, mutants};
use crate::explorer::{Explored, Limits, Next, World, explore};
use crate::hash::fingerprint;

const LIMITS: Limits = Limits {
    states: 5_000_000,
    time: Duration::MAX,
    stability: false,
};

/// How many random ways there are, and how long they are. What a key leaves out is on almost all of them.
const WAYS: usize = 50;
const STEPS: usize = 100;

/// A world whose histories end, because without the key its states would not.
struct Bounded {
    world: LeaseWorld,
    until: Tick,
    /// Whether the explorer goes by the key.
    by_key: bool,
    /// The keys of all states that it saw.
    keys: HashSet<u128>,
}

impl World for Bounded {
    type State = LeaseState;

    fn first(&mut self) -> LeaseState {
        self.world.first()
    }

    fn fingerprint(&mut self, state: &LeaseState) -> u128 {
        // The time is a part of both, because histories end by it.
        let key = fingerprint(&(self.world.key(state), state.now));
        self.keys.insert(key);
        if self.by_key { key } else { fingerprint(state) }
    }

    fn next(&mut self, state: &LeaseState, found: &mut Vec<Next<LeaseState>>) {
        self.world.next(state, found);
        found.retain(|next| next.state.now <= self.until);
    }

    fn unrest(&mut self, _state: &LeaseState) -> Option<(&'static str, String)> {
        None
    }
}

fn explored(setting: LeaseSetting, until: Tick, by_key: bool) -> (Explored, HashSet<u128>) {
    let mut bounded = Bounded {
        world: LeaseWorld::new(setting),
        until,
        by_key,
        keys: HashSet::new(),
    };
    let explored = explore(&mut bounded, LIMITS);
    (explored, bounded.keys)
}

/// The same states are reached with the key and without it, and nothing is found.
fn the_same_is_reached(setting: LeaseSetting, until: Tick) {
    let (all, keys_of_all) = explored(setting, until, false);
    let (few, keys_of_few) = explored(setting, until, true);
    assert!(all.exhausted && few.exhausted, "{all:?} {few:?}");
    assert_eq!(keys_of_few.len(), few.states);
    println!("{setting:?} until {until}: {} and {}", all.states, few.states);
    let (all, few) = (keys_of_all.len(), keys_of_few.len());
    assert!(keys_of_all == keys_of_few, "{all} {few}");
}

fn own(faults: u8, deletes: u8) -> LeaseSetting {
    LeaseSetting {
        // A Lease that is renewed again and again at one moment has no end of versions without the key.
        renews_early: false,
        ..LeaseSetting::of_replicas(faults, deletes)
    }
}

#[test]
fn the_same_is_reached_when_the_lease_stays() {
    the_same_is_reached(own(0, 0), 3);
    the_same_is_reached(own(1, 0), 1);
}

#[test]
fn the_same_is_reached_when_the_lease_is_deleted() {
    the_same_is_reached(own(1, 1), 1);
}

#[test]
fn the_same_is_reached_with_a_sidecar() {
    let beside = LeaseSetting {
        listed: true,
        sidecar: true,
        slow: [false; 2],
        ..own(0, 0)
    };
    the_same_is_reached(beside, 0);
    the_same_is_reached(LeaseSetting { changes: 1, ..beside }, 0);
}

/// Takes random ways, which go further than all ways can be looked at without the key: in each state on them, the keys of what can
/// happen next are those of every other state with the same key.
fn states_of_one_key_lead_to_the_same_keys(setting: LeaseSetting, ways: usize) -> (usize, usize) {
    let mut world = LeaseWorld::new(setting);
    let mut random = fastrand::Rng::with_seed(1);
    let mut known: HashMap<Vec<u8>, u128> = HashMap::new();
    let (mut found, mut again) = (Vec::new(), 0);
    for _ in 0..ways {
        let mut state = world.first();
        state.faults = random.u8(..=setting.faults);
        state.changes = random.u8(..=setting.changes);
        for _ in 0..STEPS {
            found.clear();
            world.next(&state, &mut found);
            let next = found.iter().map(|next| (world.key(&next.state), next.violation));
            let next: BTreeSet<_> = next.collect();
            let next = fingerprint(&next.into_iter().collect::<Vec<_>>());
            let key = world.key(&state);
            if let Some(known) = known.get(&key) {
                assert_eq!(*known, next, "{setting:?}: {state:?}");
                again += 1;
            } else {
                known.insert(key, next);
            }
            let chosen = found.swap_remove(random.usize(..found.len()));
            if chosen.violation.is_some() {
                break;
            }
            state = chosen.state;
        }
    }
    (known.len(), again)
}

#[test]
fn what_can_follow_depends_on_the_key_alone() {
    let mutants = mutants().into_iter().map(|wrong| wrong.world.flaw);
    let mut settings = Vec::new();
    for flaw in std::iter::once(LeaseFlaw::None).chain(mutants) {
        for (sidecar, changes, deletes) in [(false, 0, 0), (false, 0, 2), (true, 0, 1), (true, 2, 2)] {
            for slow in [[true, true], [false, false]] {
                settings.push(LeaseSetting {
                    changes,
                    listed: sidecar && changes == 0,
                    sidecar,
                    slow,
                    flaw,
                    ..LeaseSetting::of_replicas(2, deletes)
                });
            }
        }
    }
    let next = AtomicUsize::new(0);
    let compare = || {
        while let Some(setting) = settings.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (keys, again) = states_of_one_key_lead_to_the_same_keys(*setting, WAYS);
            println!("{setting:?}: {keys} keys, {again} compared");
            assert!(again > keys / 20, "{setting:?}: {keys} keys, {again} compared");
        }
    };
    std::thread::scope(|scope| {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let _others: Vec<_> = (1..cores).map(|_| scope.spawn(compare)).collect();
        compare();
    });
}

#[test]
fn a_counterexample_is_told_step_by_step() {
    // The others are found late.
    for wrong in mutants().into_iter().filter(|wrong| wrong.world.faults < 2) {
        let mut world = LeaseWorld::new(wrong.world);
        let found = explore(&mut world, LIMITS).found.unwrap();
        assert_eq!(world.story(&found.steps).len(), found.steps.len(), "{}", wrong.what);
    }
}
