//! What all parts of a history share, behind one lock that is never held across a wait.

use fastrand::Rng;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use tokio::sync::Notify;

use super::backend::{Backend, Pair};
use super::cluster::Cluster;
use super::journal::Journal;
use super::scenario::Scenario;

pub const DRIVER: &str = "a.test";
pub const FINALIZER: &str = "external-attacher/a-test";
/// Requests and calls that no history needs; one that does is going round in circles.
const MAX_STEPS: usize = 4_000;

/// An attachment for which something was published, as it was claimed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    pub uid: String,
    pub name: String,
    pub volume: String,
}

/// Everything of one history.
pub struct State {
    pub scenario: Scenario,
    pub rng: Rng,
    pub cluster: Cluster,
    pub backend: Backend,
    pub journal: Journal,
    /// Faults have stopped.
    pub calm: bool,
    faults: usize,
    /// Requests to the API server, and calls of the driver.
    pub requests: usize,
    pub calls: usize,
    /// Every claim that was ever persisted.
    pub claims: BTreeMap<Pair, BTreeSet<Owner>>,
    /// UIDs of attachments whose finalizers a user took.
    pub forced: BTreeSet<String>,
    /// Publishes whose attachment vanished meanwhile, with its name; while the operator that made them lives.
    pub must_undo: BTreeMap<Pair, String>,
    /// Names of PersistentVolumes whose finalizers a user took.
    pub forced_volumes: BTreeSet<String>,
}

impl State {
    /// Draws whether something goes wrong, with a chance of so many in a hundred.
    pub fn fault(&mut self, percent: u8) -> bool {
        let drawn = self.rng.u8(0..100) < percent;
        let happens = drawn && !self.calm && self.faults < self.scenario.max_faults;
        self.faults += usize::from(happens);
        happens
    }

    /// How many changes of a hundred make a watch break.
    pub fn watch_faults(&self) -> u8 {
        if self.calm || self.scenario.max_faults == 0 {
            return 0;
        }
        self.scenario.api_faults / 10
    }

    pub fn faults(&self) -> usize {
        self.faults
    }

    /// A time in milliseconds.
    pub fn millis(&mut self, range: std::ops::RangeInclusive<u64>) -> std::time::Duration {
        std::time::Duration::from_millis(self.rng.u64(range))
    }

    /// Counts a request or call; one too many is a violation.
    pub fn step(&mut self) {
        if self.requests + self.calls > MAX_STEPS {
            self.journal.violated("no busy loop", || {
                format!("more than {MAX_STEPS} requests and calls in one history")
            });
        }
    }
}

/// Handle to a history.
#[derive(Clone)]
pub struct World(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// Something happened that somebody may wait for. Wakes in the order of arrival, other than a `watch` channel of
    /// tokio, where chance decides.
    happened: Notify,
}

impl World {
    pub fn new(scenario: Scenario, kept: bool) -> Self {
        let state = State {
            rng: Rng::with_seed(scenario.seed ^ 0x5eed),
            backend: Backend::new(&scenario),
            scenario,
            cluster: Cluster::default(),
            journal: Journal::new(kept),
            calm: false,
            faults: 0,
            requests: 0,
            calls: 0,
            claims: BTreeMap::new(),
            forced: BTreeSet::new(),
            must_undo: BTreeMap::new(),
            forced_volumes: BTreeSet::new(),
        };
        Self(Arc::new(Shared {
            state: Mutex::new(state),
            happened: Notify::new(),
        }))
    }

    /// Looks at or changes the state, and tells those who wait for a change.
    pub fn with<R>(&self, act: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.0.state.lock();
        let events = |state: &State| (state.cluster.changes.len(), state.backend.ended);
        let before = events(&state);
        let result = act(&mut state);
        let happened = events(&state) != before;
        drop(state);
        if happened {
            self.0.happened.notify_waiters();
        }
        result
    }

    /// Waits until there is something to be found.
    pub async fn wait_for<R>(&self, mut found: impl FnMut(&mut State) -> Option<R>) -> R {
        loop {
            let mut happens = pin!(self.0.happened.notified());
            happens.as_mut().enable();
            if let Some(found) = self.with(&mut found) {
                return found;
            }
            happens.await;
        }
    }

    pub fn note(&self, who: &str, what: impl FnOnce() -> String) {
        self.with(|state| state.journal.note(who, what));
    }

    /// Whether the history is over because something was violated: nothing moves on then.
    pub fn is_over(&self) -> bool {
        self.with(|state| state.journal.violation.is_some())
    }
}
