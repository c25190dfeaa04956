//! What all parts of a history share, behind one lock that is never held across a wait.

use fastrand::Rng;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::backend::{Backend, Pair};
use super::cluster::Cluster;
use super::invariants::NO_BUSY_LOOP;
use super::journal::Journal;
use super::leases::Terms;
use super::scenario::{DRIVERS, Disk, Scenario};
use super::secrets::SecretValues;
use crate::api::names::finalizer_name;

/// Requests and calls that no history needs; one that does is going round in circles.
const MAX_STEPS: usize = 4_000;

/// An attachment for which something was published, as it was claimed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    pub uid: String,
    pub name: String,
    pub volume: String,
}

/// The finalizer of a driver by its index.
pub fn finalizer(driver: usize) -> String {
    finalizer_name(DRIVERS[driver])
}

/// What a restore of the API server took from everybody.
pub struct Rollback {
    /// Names of the objects that were others before.
    pub names: BTreeSet<String>,
    /// What was attached then, with nothing under way for it.
    pub published: BTreeSet<Pair>,
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
    /// Looks at the metadata of Secrets.
    pub secret_looks: usize,
    /// Lists of everything of a kind.
    pub lists: usize,
    /// Until when the API server stands still, and how often it did.
    stalled: Option<Instant>,
    stalls: usize,
    /// Every claim that was ever persisted.
    pub claims: BTreeMap<Pair, BTreeSet<Owner>>,
    /// Volumes, by driver and handle, that may be what a sidecar published: their PersistentVolume has had the finalizer of the driver, or
    /// took the place of one that alone told what was published.
    pub presumed: BTreeSet<(usize, String)>,
    /// UIDs of attachments whose finalizers a user took.
    pub forced: BTreeSet<String>,
    /// Publishes whose attachment vanished meanwhile, with its name; while the operator that made them lives.
    pub must_undo: BTreeMap<Pair, String>,
    /// Names of attachments of which a process may not know whether they are recorded as attached.
    pub unanswered: BTreeSet<String>,
    /// What PersistentVolumes were before they were made again as other volumes.
    pub former_disks: Vec<Disk>,
    /// UIDs of attachments whose PersistentVolume is another volume now.
    pub replaced: BTreeSet<String>,
    /// UIDs of attachments that may be where nothing says any more: somebody blanked the node ID, or removed the PersistentVolume.
    pub unnoted: BTreeSet<String>,
    /// Names of PersistentVolumes whose finalizers a user took.
    pub forced_volumes: BTreeSet<String>,
    /// Who may work for a driver.
    pub terms: Terms,
    /// What the Secrets hold and held.
    pub secrets: SecretValues,
    /// Which drivers have ControllerPublishVolume now.
    pub capable: [bool; DRIVERS.len()],
    /// UIDs of attachments that were recorded as attached while their driver had nothing to publish with.
    pub trivial: BTreeSet<String>,
    /// Which drivers ever had nothing to publish with.
    pub lacked: [bool; DRIVERS.len()],
    /// Where the backend lost volumes by itself.
    pub drifted: BTreeSet<Pair>,
    /// The API server went back.
    pub rollback: Option<Rollback>,
    /// How many changes put the first objects in place.
    pub stage: usize,
    /// Where the Leases are to be, and which settings the drivers are to have.
    pub place: usize,
    pub settings: usize,
}

impl State {
    /// Draws whether something goes wrong, with a chance of so many in a hundred.
    pub fn fault(&mut self, percent: u8) -> bool {
        let drawn = self.rng.u8(0..100) < percent;
        let happens = drawn && !self.calm && self.faults < self.scenario.max_faults;
        self.faults += usize::from(happens);
        happens
    }

    /// The API server stands still for so long, unless it does already.
    pub fn stall(&mut self, pause: Duration) {
        if !self.calm && self.stalled_for().is_zero() {
            (self.stalled, self.stalls) = (Some(Instant::now() + pause), self.stalls + 1);
        }
    }

    /// For how long it still does.
    pub fn stalled_for(&self) -> Duration {
        self.stalled
            .map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()))
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
    pub fn millis(&mut self, range: std::ops::RangeInclusive<u64>) -> Duration {
        Duration::from_millis(self.rng.u64(range))
    }

    /// A process stops: what it has sent may be carried out beside what others do, and nobody takes back what it would.
    pub fn stands_still(&mut self, number: usize, name: &str, pause: Duration) {
        self.must_undo.clear();
        self.backend.leave_open(number);
        self.journal.note(name, || format!("stands still for {pause:?}"));
    }

    /// Whether a backend lost a volume somewhere.
    pub fn has_lost(&self, driver: usize, volume: &str) -> bool {
        let mut lost = self.drifted.iter();
        lost.any(|pair| pair.driver == driver && pair.volume == volume)
    }

    /// Whether an object is another one now than it was before the API server went back.
    pub fn was_rolled_back(&self, name: &str) -> bool {
        self.rollback
            .as_ref()
            .is_some_and(|rollback| rollback.names.contains(name))
    }

    /// Counts a request or call; one too many is a violation.
    pub fn step(&mut self) {
        if self.requests + self.calls > MAX_STEPS {
            self.journal.violated(NO_BUSY_LOOP, || {
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
            secret_looks: 0,
            lists: 0,
            stalled: None,
            stalls: 0,
            claims: BTreeMap::new(),
            presumed: BTreeSet::new(),
            forced: BTreeSet::new(),
            must_undo: BTreeMap::new(),
            unanswered: BTreeSet::new(),
            former_disks: Vec::new(),
            replaced: BTreeSet::new(),
            unnoted: BTreeSet::new(),
            forced_volumes: BTreeSet::new(),
            terms: Terms::default(),
            secrets: SecretValues::default(),
            capable: [true; DRIVERS.len()],
            trivial: BTreeSet::new(),
            lacked: [false; DRIVERS.len()],
            drifted: BTreeSet::new(),
            rollback: None,
            stage: 0,
            place: 0,
            settings: 0,
        };
        Self(Arc::new(Shared {
            state: Mutex::new(state),
            happened: Notify::new(),
        }))
    }

    /// Looks at or changes the state, and tells those who wait for a change.
    pub fn with<R>(&self, act: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.0.state.lock();
        let events = |state: &State| {
            (
                state.cluster.changes.len(),
                state.cluster.restores.len(),
                state.backend.ended,
                state.stalls,
            )
        };
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
