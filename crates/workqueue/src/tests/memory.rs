use std::sync::Arc;

use fastrand::Rng;
use tokio::time::Instant;

use super::super::lanes::shrink;
use super::super::observer::NoObserver;
use super::super::state::{NextRun, QueueState};
use super::super::{CauseCode, Item, QueueLimits, Rate, RunResult};
use super::{ATTACH, SECOND, plain_backoff};

fn state() -> (QueueState<u32>, Instant) {
    let (now, rng, observer) = (Instant::now(), Rng::with_seed(1), Arc::new(NoObserver));
    let (backoff, limits) = (plain_backoff(), QueueLimits::default());
    let state = QueueState::new(backoff, limits, Rate::default(), rng, observer, now);
    (state, now)
}

#[test]
fn settled_keys_leave_nothing_behind() {
    let (mut state, now) = state();
    for key in 0..50_000 {
        let node = format!("node-{}", key % 500);
        state.add(Item::new(key, ATTACH, 0).in_group(node), |_| (), now);
    }
    let mut runs = Vec::new();
    while let NextRun::Run(run) = state.next(now) {
        runs.push(run);
    }
    assert_eq!(runs.len(), 50_000);
    for run in runs {
        state.finish(&run, RunResult::Done, now);
    }
    assert!(state.is_empty());
    assert!(state.capacity() <= 256, "{}", state.capacity());
}

#[test]
fn holding_a_key_often_costs_no_more_than_holding_it_once() {
    let (mut state, mut now) = state();
    state.add(Item::new(1, ATTACH, 0), |_| (), now);
    for round in 0..10_000_u64 {
        let NextRun::Run(run) = state.next(now) else {
            panic!("woken in each round")
        };
        state.finish(&run, RunResult::Failed, now);
        // With the inputs that failed.
        state.add(Item::new(1, ATTACH, run.fingerprint), |_| (), now);
        assert_eq!((state.held().len(), state.len()), (1, 1));
        now += SECOND / 10;
        if round % 2 == 0 {
            state.wake(&1, CauseCode::default(), now);
        } else {
            state.add(Item::new(1, ATTACH, round), |_| (), now);
        }
    }
    state.forget(&1);
    assert!(state.is_empty());
}

#[test]
fn maps_give_memory_back_after_a_burst() {
    let mut map: std::collections::HashMap<u32, u32> = (0..100_000).map(|key| (key, key)).collect();
    for key in 0..99_990 {
        map.remove(&key);
        shrink(&mut map);
    }
    assert_eq!(map.len(), 10);
    assert!(map.capacity() <= 256, "{}", map.capacity());
}
