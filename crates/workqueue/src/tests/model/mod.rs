//! Random operations against the queue's rules and a simple model of them at once.

mod reference;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use proptest::prelude::*;
use tokio::time::Instant;

use super::super::observer::NoObserver;
use super::super::state::{NextRun, QueueState};
use super::super::{Backoff, CauseCode, Group, Item, Lane, LaneLimits, QueueLimits, Rate, Run, RunResult};
use reference::Model;

const KEYS: u8 = 8;
const LANES: usize = 3;

#[derive(Clone, Debug)]
enum Op {
    Add {
        key: u8,
        lane: u8,
        group: Option<u8>,
        fingerprint: u64,
    },
    Next,
    Finish {
        which: usize,
        /// How many tokens it used, if it tells.
        used: Option<u32>,
        verdict: RunResult,
    },
    Wake(u8),
    WakeAll,
    Forget(u8),
    Advance(u64),
    Limit {
        running: [usize; LANES],
        per_group: usize,
    },
    Pause(bool),
}

fn verdict() -> impl Strategy<Value = RunResult> {
    prop_oneof![
        3 => Just(RunResult::Done),
        3 => Just(RunResult::Failed),
        1 => (0..3_u64).prop_map(|fingerprint| RunResult::FailedWith { fingerprint }),
        2 => (0..3_u64).prop_map(|fingerprint| RunResult::Waits { fingerprint }),
        1 => Just(RunResult::Requeue),
        1 => (0..2_000_u64).prop_map(|millis| RunResult::RequeueAfter(Duration::from_millis(millis))),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let add = (0..KEYS, 0..3_u8, prop::option::of(0..3_u8), 0..3_u64);
    prop_oneof![
        12 => add.prop_map(|(key, lane, group, fingerprint)| Op::Add { key, lane, group, fingerprint }),
        14 => Just(Op::Next),
        10 => (any::<usize>(), prop::option::weighted(0.4, 0..4_u32), verdict())
            .prop_map(|(which, used, verdict)| Op::Finish { which, used, verdict }),
        2 => (0..KEYS).prop_map(Op::Wake),
        1 => Just(Op::WakeAll),
        1 => (0..KEYS).prop_map(Op::Forget),
        6 => (0..1_500_u64).prop_map(Op::Advance),
        1 => ([0..3_usize, 0..3_usize, 0..3_usize], 0..3_usize)
            .prop_map(|(running, per_group)| Op::Limit { running, per_group }),
        1 => any::<bool>().prop_map(Op::Pause),
    ]
}

fn limits(running: [usize; LANES], per_group: usize, rate: u32) -> QueueLimits {
    let lane = |index: usize| LaneLimits {
        max_running: running[index],
        rate_limited: index < 2,
    };
    QueueLimits {
        lanes: (0..LANES).map(lane).collect(),
        per_group,
        max_running: 0,
        starts_per_second: Rate::from(rate),
    }
}

/// The answer of the queue to who is next.
enum Asked {
    Started,
    Later(Instant),
    Nothing,
}

/// The queue, its model and the runs in flight.
struct World {
    state: QueueState<u8>,
    model: Model,
    now: Instant,
    rate: u32,
    backoff: Backoff,
    runs: Vec<Run<u8>>,
}

impl World {
    fn new(rate: u32, seed: u64) -> Self {
        let now = Instant::now();
        let backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(3), 2.0, 20).unwrap();
        let start = limits([2, 2, 0], 2, rate);
        let (pace, rng) = (Rate::default(), Rng::with_seed(seed));
        let state = QueueState::new(backoff, start.clone(), pace, rng, Arc::new(NoObserver), now);
        Self {
            state,
            model: Model::new(start, rate, now),
            now,
            rate,
            backoff,
            runs: Vec::new(),
        }
    }

    fn step(&mut self, op: &Op) {
        match op.clone() {
            Op::Add {
                key,
                lane,
                group,
                fingerprint,
            } => {
                let group: Option<Group> = group.map(|group| format!("group-{group}").into());
                let item = Item {
                    key,
                    lane: Lane::new(lane),
                    group,
                    fingerprint,
                    cause: CauseCode::default(),
                };
                let expected = self.model.add(&item);
                assert_eq!(self.state.add(item, |_| (), self.now), expected);
            }
            Op::Next => {
                self.next();
            }
            Op::Finish { which, used, verdict } => {
                if !self.runs.is_empty() {
                    let run = self.runs.swap_remove(which % self.runs.len());
                    if let Some(used) = used {
                        self.model.settle_rate(run.lane, used, self.now);
                        self.state.lanes_mut().settle_rate(run.lane, used, self.now);
                    }
                    self.finish(&run, verdict);
                }
            }
            Op::Wake(key) => assert_eq!(
                self.state.wake(&key, CauseCode::default(), self.now),
                self.model.wake(key)
            ),
            Op::WakeAll => assert_eq!(
                self.state.wake_all(CauseCode::default(), self.now),
                self.model.wake_all()
            ),
            Op::Forget(key) => assert_eq!(self.state.forget(&key).is_some(), self.model.forget(key)),
            Op::Advance(millis) => self.now += Duration::from_millis(millis),
            Op::Limit { running, per_group } => {
                self.model.limits = limits(running, per_group, self.rate);
                self.state.lanes_mut().set_limits(self.model.limits.clone(), self.now);
            }
            Op::Pause(paused) => {
                self.model.paused = paused;
                self.state.paused = paused;
            }
        }
        self.compare();
    }

    /// Takes the next run, if there is one; if not, returns when to ask again.
    fn next(&mut self) -> Asked {
        self.model.promote(self.now);
        match self.state.next(self.now) {
            NextRun::Run(run) => {
                for (delay, waits) in [(run.retry_delay, false), (run.wait_delay, true)] {
                    let base = self.backoff.base(self.model.in_a_row(run.key, waits));
                    assert!(delay >= base && delay <= base * 6 / 5);
                }
                self.model.started(&run, self.now);
                self.runs.push(run);
                Asked::Started
            }
            NextRun::Wait(at) => {
                self.model.nothing_to_start(at, self.now);
                at.map_or(Asked::Nothing, Asked::Later)
            }
            NextRun::Closed => panic!("nobody closed it"),
        }
    }

    fn finish(&mut self, run: &Run<u8>, verdict: RunResult) {
        self.model.finish(run, verdict, self.now);
        self.state.finish(run, verdict, self.now);
    }

    fn compare(&self) {
        assert_eq!(self.state.len(), self.model.len());
        assert_eq!(self.state.running(), self.runs.len());
        let mut held: HashMap<u8, Instant> = self.state.held().into_iter().collect();
        for key in 0..KEYS {
            assert_eq!(self.state.failures(&key), self.model.failures(key), "failures of {key}");
            assert_eq!(held.remove(&key), self.model.held_until(key), "hold of {key}");
            assert_eq!(self.state.is_held(&key), self.model.held_until(key).is_some());
        }
    }

    /// Lets a willing handler settle everything: each key must come.
    fn drain(&mut self) {
        self.step(&Op::Pause(false));
        self.rate = 0;
        self.model.without_rate();
        self.step(&Op::Limit {
            running: [1, 1, 1],
            per_group: 1,
        });
        for _ in 0..1_000 {
            while let Some(run) = self.runs.pop() {
                self.finish(&run, RunResult::Done);
                self.compare();
            }
            match self.next() {
                Asked::Started => self.compare(),
                Asked::Later(at) => self.now = self.now.max(at),
                Asked::Nothing => break,
            }
        }
        assert_eq!(self.model.len(), 0, "a key was lost");
        assert!(self.state.is_empty(), "state stayed behind");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn follows_the_model(
        rate in prop::sample::select(vec![0_u32, 0, 1, 2, 5]),
        seed in any::<u64>(),
        ops in prop::collection::vec(op(), 1..150),
    ) {
        let mut world = World::new(rate, seed);
        for op in &ops {
            world.step(op);
        }
        world.drain();
    }
}
