//! Whether the key of a state is enough.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::{LeaseFlaw, LeaseSetting, LeaseState, LeaseWorld, Tick, mutants};
use crate::explorer::{Limits, Next, World, explore, story};
use crate::hash::fingerprint;
use crate::parallel::{all_good, cores};

const LIMITS: Limits = Limits {
    states: 5_000_000,
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
}

#[test]
fn the_same_is_reached_with_the_key_and_without_it() {
    // A Lease that is renewed again and again at one moment has no end of records without the key.
    let own = |faults, deletes| LeaseSetting {
        renews_early: false,
        ..LeaseSetting::of_replicas(faults, deletes)
    };
    let beside = LeaseSetting::with_a_sidecar(0, 0);
    let changing = LeaseSetting { changes: 1, ..beside };
    let rows = [
        ("the Lease stays", own(0, 0), 3),
        ("the Lease stays, one fault", own(1, 0), 1),
        ("the Lease is deleted", own(1, 1), 1),
        ("with a sidecar", beside, 0),
        ("with a sidecar, the list changes", changing, 0),
    ];
    all_good(&rows, cores(), |(name, setting, until)| {
        let [(all, keys_of_all), (few, keys_of_few)] = [false, true].map(|by_key| {
            let mut bounded = Bounded {
                world: LeaseWorld::new(*setting),
                until: *until,
                by_key,
                keys: HashSet::new(),
            };
            let explored = explore(&mut bounded, LIMITS);
            assert!(explored.exhausted, "{name}: {explored:?}");
            (explored.states, bounded.keys)
        });
        assert_eq!(keys_of_few.len(), few, "{name}");
        println!("{name}: {all} and {few}");
        assert!(keys_of_all == keys_of_few, "{name}: {} {few}", keys_of_all.len());
        true
    });
}

/// Takes random ways, which go further than all ways can be looked at without the key: in each state on them, the keys of what can
/// happen next are those of every other state with the same key.
fn states_of_one_key_lead_to_the_same_keys(setting: LeaseSetting) -> (usize, usize) {
    let mut world = LeaseWorld::new(setting);
    let mut random = fastrand::Rng::with_seed(1);
    let mut known: HashMap<u128, u128> = HashMap::new();
    let (mut found, mut again) = (Vec::new(), 0);
    for _ in 0..WAYS {
        let mut state = world.first();
        state.faults = random.u8(..=setting.faults);
        state.changes = random.u8(..=setting.changes);
        for _ in 0..STEPS {
            found.clear();
            world.next(&state, &mut found);
            let next = found.iter().map(|next| (world.key(&next.state), next.violation));
            let next = fingerprint(&next.collect::<BTreeSet<_>>());
            if let Some(known) = known.insert(world.key(&state), next) {
                assert_eq!(known, next, "{setting:?}: {state:?}");
                again += 1;
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
            let setting = |slow| LeaseSetting {
                changes,
                listed: sidecar && changes == 0,
                sidecar,
                slow,
                flaw,
                ..LeaseSetting::of_replicas(2, deletes)
            };
            settings.extend([[true; 2], [false; 2]].map(setting));
        }
    }
    all_good(&settings, cores(), |setting| {
        let (keys, again) = states_of_one_key_lead_to_the_same_keys(*setting);
        println!("{setting:?}: {keys} keys, {again} compared");
        assert!(again > keys / 20, "{setting:?}: {keys} keys, {again} compared");
        true
    });
}

#[test]
fn a_counterexample_is_told_step_by_step() {
    // The others are found late.
    for wrong in mutants().into_iter().filter(|wrong| wrong.world.faults < 2) {
        let mut world = LeaseWorld::new(wrong.world);
        let steps = explore(&mut world, LIMITS).found.unwrap().steps;
        let first = world.first();
        assert_eq!(story(&mut world, first, &steps).len(), steps.len(), "{}", wrong.what);
    }
}
