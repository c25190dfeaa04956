//! Whether the key of a state is enough.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use super::{LeaseSetting, LeaseWorld, Tick, mutants};
use crate::explorer::{Limits, World, explore, story};
use crate::hash::fingerprint;
use crate::parallel::{all_good, cores};

/// How many random ways there are, and how long they are. What a key leaves out is on almost all of them.
const WAYS: usize = 50;
const STEPS: usize = 100;

/// How many states are looked at until a moment, and their keys. Histories end there, because without the key they would not.
fn reached(setting: LeaseSetting, until: Tick, by_key: bool) -> (usize, HashSet<u128>) {
    let mut world = LeaseWorld::new(setting);
    let (mut open, mut found) = (VecDeque::from([world.first()]), Vec::new());
    let (mut states, mut keys) = (HashSet::new(), HashSet::new());
    while let Some(state) = open.pop_front() {
        // The time is a part of both, because histories end by it.
        let key = fingerprint(&(world.key(&state), state.now));
        keys.insert(key);
        if states.insert(if by_key { key } else { fingerprint(&state) }) {
            world.next(&state, &mut found);
            assert!(found.iter().all(|next| next.violation.is_none()), "{setting:?}");
            open.extend(found.drain(..).map(|next| next.state).filter(|next| next.now <= until));
        }
    }
    (states.len(), keys)
}

#[test]
fn the_same_is_reached_with_the_key_and_without_it() {
    // A Lease that is renewed again and again at one moment has no end of records without the key.
    let own = |faults, deletes| LeaseSetting {
        renews_early: false,
        ..LeaseSetting::of_replicas(faults, deletes)
    };
    let beside = LeaseSetting::with_a_sidecar(0, 0);
    let rows = [
        ("the Lease stays", own(0, 0), 3),
        ("the Lease stays, one fault", own(1, 0), 1),
        ("the Lease is deleted", own(1, 1), 1),
        ("with a sidecar", beside, 0),
        ("with a sidecar, the list changes", beside.changing(true, 1), 0),
    ];
    all_good(&rows, cores(), |(name, setting, until)| {
        let [(all, keys_of_all), (few, keys)] = [false, true].map(|by_key| reached(*setting, *until, by_key));
        println!("{name}: {all} and {few}");
        assert!(keys_of_all == keys, "{name}: {} {few}", keys_of_all.len());
        true
    });
}

/// Takes random ways, which go further than all ways can be looked at without the key: in each state on them, the keys of what can
/// happen next are those of every other state with the same key.
fn states_of_one_key_lead_to_the_same_keys(setting: LeaseSetting) {
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
    let keys = known.len();
    println!("{setting:?}: {keys} keys, {again} compared");
    assert!(again > keys / 20, "{setting:?}: {keys} keys, {again} compared");
}

#[test]
fn what_can_follow_depends_on_the_key_alone() {
    let mut settings = Vec::new();
    for flaw in mutants().into_iter().map(|wrong| wrong.world.flaw).chain([None]) {
        for (sidecar, changes, deletes) in [(false, 0, 0), (false, 0, 2), (true, 0, 1), (true, 2, 2)] {
            let setting = |slow| LeaseSetting {
                sidecar,
                flaw,
                slow,
                ..LeaseSetting::of_replicas(2, deletes).changing(sidecar && changes == 0, changes)
            };
            settings.extend([[true; 2], [false; 2]].map(setting));
        }
    }
    all_good(&settings, cores(), |setting| {
        states_of_one_key_lead_to_the_same_keys(*setting);
        true
    });
}

#[test]
fn a_counterexample_is_told_step_by_step() {
    let limits = Limits {
        states: 5_000_000,
        stability: false,
    };
    // The others are found late.
    for wrong in mutants().into_iter().filter(|wrong| wrong.world.faults < 2) {
        let mut world = LeaseWorld::new(wrong.world);
        let steps = explore(&mut world, limits).found.unwrap().steps;
        let first = world.first();
        assert_eq!(story(&mut world, first, &steps).len(), steps.len(), "{}", wrong.what);
    }
}
