//! A process of the operator: whether it lives, whether it stands still, and what its clocks show.
//!
//! All tasks of a process are polled through [`OfProcess`]; a process that stands still is not polled at all, while time
//! goes on for everybody else. It does so at a given poll, so that a history can stop it at every await point.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::task::Waker;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::mutants::{Flaw, has_flaw};
use super::world::World;
use crate::clock;
use crate::schedule::{self, OfProcess, SimulatedProcess};
use csi_attacher_testbed::ShiftedClock;

thread_local! {
    /// When the history of this thread began; none while there is no history.
    static BEGAN: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// A process of the operator. Clones are the same one.
#[derive(Clone)]
pub struct Process(Arc<Inner>);

struct Inner {
    world: World,
    number: usize,
    name: String,
    over: AtomicBool,
    stand: Mutex<Stand>,
    /// The clocks by which it measures the time of Leases.
    clock: ShiftedClock,
    /// How far its wall clock is off, in milliseconds.
    wall: AtomicI64,
}

/// A stop to come.
#[derive(Clone, Copy)]
struct Stop {
    /// Before which poll.
    at: u64,
    pause: Duration,
    /// The machine is suspended: CLOCK_MONOTONIC stops, too.
    suspends: bool,
}

#[derive(Default)]
struct Stand {
    polls: u64,
    /// The poll before which it stops, and for how long.
    next: Option<Stop>,
    still: bool,
    /// Since when its machine is suspended.
    suspended: Option<Instant>,
    sleepers: Vec<Waker>,
}

impl Process {
    pub fn new(world: &World, number: usize) -> Self {
        Self(Arc::new(Inner {
            world: world.clone(),
            number,
            name: format!("operator{number}"),
            over: AtomicBool::new(false),
            stand: Mutex::default(),
            clock: ShiftedClock::default(),
            wall: AtomicI64::new(0),
        }))
    }

    pub fn number(&self) -> usize {
        self.0.number
    }

    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Whether it has ended. None of its tasks runs any more.
    pub fn is_over(&self) -> bool {
        self.0.over.load(Ordering::Relaxed)
    }

    pub fn end(&self) {
        self.0.over.store(true, Ordering::Relaxed);
    }

    /// Stands still after so many further polls, for so long; and its machine, too, if that is suspended.
    pub fn stand_still(&self, after: u64, pause: Duration, suspends: bool) {
        let mut stand = self.0.stand.lock();
        if !stand.still {
            let at = stand.polls + after;
            stand.next = Some(Stop { at, pause, suspends });
        }
    }

    /// The clocks by which it measures the time of Leases.
    pub fn clock(&self) -> &ShiftedClock {
        &self.0.clock
    }

    /// Goes on, if it stands still or was about to.
    pub fn go_on(&self) {
        let sleepers = {
            let mut stand = self.0.stand.lock();
            stand.next = None;
            if !std::mem::take(&mut stand.still) {
                return;
            }
            if let Some(since) = stand.suspended.take() {
                if has_flaw(Flaw::OneClock) {
                    self.0.clock.both_stood_still(since.elapsed());
                } else {
                    self.0.clock.monotonic_stood_still(since.elapsed());
                }
            }
            std::mem::take(&mut stand.sleepers)
        };
        self.0.world.note(self.name(), || "goes on".to_owned());
        for sleeper in sleepers {
            sleeper.wake();
        }
    }

    /// Its wall clock jumps.
    pub fn set_wall_clock(&self, off: SignedDuration) {
        let millis = i64::try_from(off.as_millis()).unwrap_or_default();
        self.0.wall.store(millis, Ordering::Relaxed);
    }

    /// A future of one of its tasks.
    pub fn run<F: Future>(&self, future: F) -> OfProcess<F> {
        schedule::of_process(Arc::new(self.clone()), future)
    }

    /// Counts a poll; whether there is to be none.
    fn rests(&self, waker: &Waker) -> bool {
        if self.is_over() {
            return true;
        }
        let mut stand = self.0.stand.lock();
        if stand.still {
            stand.sleepers.push(waker.clone());
            return true;
        }
        stand.polls += 1;
        let polls = stand.polls;
        let Some(stop) = stand.next.take_if(|stop| stop.at < polls) else {
            return false;
        };
        let pause = stop.pause;
        stand.still = true;
        stand.suspended = stop.suspends.then(Instant::now);
        stand.sleepers.push(waker.clone());
        drop(stand);
        self.0
            .world
            .with(|state| state.stands_still(self.number(), self.name(), pause));
        let process = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            process.go_on();
        });
        true
    }
}

impl SimulatedProcess for Process {
    fn stands_still(&self, waker: &Waker) -> bool {
        self.rests(waker)
    }

    fn wall_clock_off(&self) -> i64 {
        self.0.wall.load(Ordering::Relaxed)
    }
}

/// Time of the wall clock in a history: that of the process that asks, or of everybody else.
fn simulated_time() -> Option<Timestamp> {
    let began = BEGAN.get()?;
    let off = schedule::current().map_or(0, |process| process.wall_clock_off());
    let begin = Timestamp::from_second(1_767_225_600).ok()?;
    let now = begin.saturating_add(began.elapsed()).ok()?;
    now.saturating_add(SignedDuration::from_millis(off)).ok()
}

/// Sets the wall clock of this thread until it is dropped.
pub struct WallClock;

impl WallClock {
    pub fn start() -> Self {
        clock::set_source(simulated_time);
        BEGAN.set(Some(Instant::now()));
        Self
    }
}

impl Drop for WallClock {
    fn drop(&mut self) {
        BEGAN.set(None);
    }
}
