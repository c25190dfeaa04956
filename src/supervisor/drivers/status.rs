//! What the running drivers are at: the status of their AttacherConfigs, and the gauges.

use std::collections::BTreeSet;

use jiff::Timestamp;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::Drivers;
use crate::api::AttacherConfigStatus;
use crate::api::names::finalizer_name;
use crate::clock;
use crate::runtime::DriverPhase;
use crate::supervisor::deletion::{DeletionState, Remaining};
use crate::supervisor::drivers::Name;
use crate::supervisor::gauges;
use crate::supervisor::plan::ConfigProblem;
use crate::supervisor::saturation::Saturation;
use crate::supervisor::status::{self, StatusInput};

impl Drivers {
    /// The AttacherConfigs whose drivers have changed since this was asked last.
    pub fn take_changed(&mut self) -> BTreeSet<String> {
        let running = self.running.iter_mut();
        let changed = running.filter_map(|(name, running)| {
            let is_new = running.status.has_changed().unwrap_or(true);
            running.status.mark_unchanged();
            is_new.then(|| name.clone())
        });
        changed.collect()
    }

    /// Changes with every change of what is cached.
    pub fn cache_generation(&self) -> u64 {
        self.context.store.generation()
    }

    /// The status that an AttacherConfig should show after `known`, and what of it does not depend on that.
    pub fn status(
        &self,
        name: &str,
        generation: Option<i64>,
        problem: Option<&ConfigProblem>,
        holder: &str,
        known: &AttacherConfigStatus,
        deletion: DeletionState,
    ) -> (AttacherConfigStatus, AttacherConfigStatus) {
        let running = self.running.get(name);
        let driver = running.map(|running| running.status.borrow().clone());
        let plugin = driver.as_ref().and_then(|driver| driver.plugin.as_ref());
        let store = &self.context.store;
        let counts = plugin.map(|plugin| store.counts(&plugin.name)).unwrap_or_default();
        let pending = counts.attaching + counts.detaching > 0;
        let oldest = plugin
            .filter(|_| pending)
            .and_then(|plugin| store.oldest_pending(&plugin.name));
        let queue = running.and_then(|running| running.queue.lock().clone());
        let failing = queue.map_or(0, |queue| queue.stats().lanes.iter().map(|lane| lane.failing).sum());
        let insight = plugin.and_then(|plugin| self.insights.summary(&plugin.name));
        // What was attached or detached since the last look is not shown as stuck.
        let mut stuck = insight.iter().flat_map(|insight| &insight.stuck);
        let stuck = stuck.find(|stuck| store.is_pending(&stuck.name, &stuck.uid));
        let facts = StatusInput {
            insight: insight.as_deref(),
            stuck,
            generation,
            holder,
            driver: driver.as_ref(),
            problem,
            deletion,
            watch_failure: store.lists().failure(),
            counts,
            failing,
            oldest: oldest.as_deref(),
            saturation: running.map(|running| &running.saturation),
        };
        let nothing = AttacherConfigStatus::default();
        (
            status::status(&facts, known, clock::now()),
            status::status(&facts, &nothing, Timestamp::UNIX_EPOCH),
        )
    }

    /// Looks at the queue of every driver: sets the gauges of those that are known by name, and finds out which limits
    /// make work wait.
    pub fn update_gauges(&mut self) {
        for running in self.running.values_mut() {
            // Locked to the end: who takes the queue away removes the gauges afterwards, and they must not come back.
            let queue = running.queue.lock();
            let Some(queue) = &*queue else {
                running.saturation = Saturation::default();
                continue;
            };
            let stats = queue.stats();
            running.saturation.observe(&stats, &running.config, Instant::now());
            let plugin = running.status.borrow().plugin.clone();
            if let Some(plugin) = plugin {
                gauges::set(&self.context, &plugin.name, &stats, &running.config);
                gauges::set_saturated(&self.context, &plugin.name, &running.saturation);
            }
        }
    }

    /// What of a driver is to be detached or released; unknown before the first complete list.
    pub fn remaining(&self, driver: &str) -> Option<Remaining> {
        let store = &self.context.store;
        let finalizer = finalizer_name(driver);
        store.lists().is_synced().then(|| Remaining {
            attachments: store.claimed(driver, &finalizer),
            volumes: store.protected(&finalizer).0,
        })
    }

    /// The PersistentVolumes that carry a driver's finalizer and are not being deleted.
    pub fn left_protected(&self, driver: &str) -> Vec<Name> {
        self.context.store.protected(&finalizer_name(driver)).1
    }

    /// Whether nothing is claimed any more for an AttacherConfig that is being deleted: its settings say so, and no claim that was
    /// decided before is being written.
    pub fn claims_ended(&self, name: &str) -> bool {
        self.running
            .get(name)
            .is_none_or(|running| running.settings.borrow().leaving && running.status.borrow().claims == 0)
    }

    /// Whether the driver of an AttacherConfig is worked for, and publishes.
    pub fn publishes(&self, name: &str) -> bool {
        let Some(running) = self.running.get(name) else {
            return false;
        };
        let status = running.status.borrow();
        status.phase == DriverPhase::Running && status.plugin.as_ref().is_some_and(|plugin| plugin.publishes)
    }

    /// A task that lists all objects once more.
    pub fn list_anew(&self) -> AbortOnDropHandle<()> {
        let store = self.context.store.clone();
        AbortOnDropHandle::new(tokio::spawn(async move { store.lists().relist().await }))
    }
}
