//! The tasks of one role, by the name of their AttacherConfig: what starts, changes and ends them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use super::plan::requires_restart;
use super::status_author::DriverLeader;
use crate::api::DriverConfig;
use crate::api::condition::ConditionReason;
use crate::lease::LeaderElectionConfig;
use crate::runtime::leadership::LeaseStatus;
use crate::runtime::reservation::Reservations;
use crate::runtime::{DriverPhase, DriverState, DriverStateSender, DriverTask, Role};

const INITIAL_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_mins(1);
/// A task that ran for so long was well; its next fault counts as the first.
const MIN_HEALTHY_RUN: Duration = Duration::from_mins(10);

/// The name of a driver, or of its AttacherConfig.
pub(super) type Name = Arc<str>;
/// Settings by the name of their AttacherConfig.
pub(super) type Configs = BTreeMap<String, Arc<DriverConfig>>;

/// A role, as far as its tasks differ from those of others.
pub(super) trait TaskKind {
    /// What works.
    type Role: Role;
    /// What is kept of each task besides what is kept of all.
    type Own;

    /// What logs call a task.
    const NAME: &str;

    /// What a task is made of; `former` is of the one before, if that ended by a fault or for other settings. None where there is nothing to
    /// work with.
    fn prepare(&mut self, config: &DriverConfig, former: Option<Self::Own>) -> Option<NewTask<Self::Role, Self::Own>>;

    /// A task has ended.
    fn ended(&self, own: &Self::Own);

    /// No task is left, and none is about to be started again.
    fn unused(&mut self) {}
}

pub(super) struct NewTask<R, X> {
    pub role: R,
    pub election: Option<LeaderElectionConfig>,
    pub own: X,
}

/// A task, or what is left of one that ended by a fault until it is started again.
pub(super) struct RunningTask<X> {
    task: AbortHandle,
    pub config: Arc<DriverConfig>,
    pub settings: watch::Sender<Arc<DriverConfig>>,
    pub status: watch::Receiver<DriverState>,
    /// The name of the driver before it has answered. It stays known from one task to the next.
    pub known_as: Arc<watch::Sender<Option<Name>>>,
    /// The namespace of its Lease; none without an election.
    pub lease_namespace: Option<String>,
    lease_status: LeaseStatus,
    pub own: X,
    stop: CancellationToken,
    removed: Arc<AtomicBool>,
    /// When it is started again after a fault.
    restart_at: Option<Instant>,
    /// Whether it is to end for good, or with other settings.
    pub is_ending: bool,
    started: Instant,
    faults: u32,
}

pub(super) struct Tasks<K: TaskKind> {
    pub kind: K,
    wanted: Configs,
    running: BTreeMap<String, RunningTask<K::Own>>,
    set: JoinSet<()>,
    pub reservations: Reservations,
    /// Whether all end, and none is started any more. What they showed last stays.
    stops: bool,
    /// Cancels the calls that still run when there is no more time for them to finish.
    pub cut_off: CancellationToken,
}

impl<K: TaskKind> Tasks<K> {
    pub fn new(kind: K) -> Self {
        Self {
            kind,
            wanted: BTreeMap::new(),
            running: BTreeMap::new(),
            set: JoinSet::new(),
            reservations: Reservations::default(),
            stops: false,
            cut_off: CancellationToken::new(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.set.is_empty()
    }

    pub fn wanted(&self) -> &Configs {
        &self.wanted
    }

    pub fn get(&self, name: &str) -> Option<&RunningTask<K::Own>> {
        self.running.get(name)
    }

    pub fn all(&self) -> impl Iterator<Item = &RunningTask<K::Own>> {
        self.running.values()
    }

    pub fn named_mut(&mut self) -> impl Iterator<Item = (&String, &mut RunningTask<K::Own>)> {
        self.running.iter_mut()
    }

    /// Whether what there is of a driver is left to another AttacherConfig, and this one has finished with it. That one works for the driver and
    /// goes on, as it is not being deleted; or its settings name the driver, so that it alone may, as soon as its driver answers.
    pub fn is_left_to_another(&self, name: &str, driver: &str) -> bool {
        let holder = self.reservations.holder(driver);
        if holder.as_deref() == Some(name) {
            return false;
        }
        let works = holder.and_then(|holder| self.wanted.get(&*holder));
        works.is_some_and(|config| !config.leaving)
            || pins(&self.wanted).any(|(config, named)| config != name && named == driver)
    }

    /// Starts, changes and stops tasks so that those run that are wanted. Only what differs is touched: a task goes on with other settings,
    /// unless they need another connection or another election.
    ///
    /// A driver that settings name is kept for their task before that runs, and while it ends and is started again.
    pub fn apply(&mut self, wanted: Configs) {
        let named = pins(&wanted).map(|(config, driver)| (Name::from(config), Name::from(driver)));
        self.reservations.set_pins(named.collect());
        self.wanted = wanted;
        for (name, running) in &mut self.running {
            // One that was deleted and made again is gone on with.
            running
                .removed
                .store(!self.wanted.contains_key(name), Ordering::Relaxed);
            match self.wanted.get(name) {
                Some(config) if running.config == *config => {}
                Some(config) if !requires_restart(&running.config, config) => {
                    running.config = config.clone();
                    running.settings.send_replace(config.clone());
                }
                Some(_) if running.restart_at.is_some() => {
                    // There is nothing to finish.
                    (running.restart_at, running.faults) = (Some(Instant::now()), 0);
                }
                _ => {
                    running.is_ending = true;
                    running.stop.cancel();
                }
            }
        }
        self.start_missing();
    }

    /// Starts the tasks that are wanted and do not run: new ones, and those whose pause after a fault is over.
    pub fn start_missing(&mut self) {
        let now = Instant::now();
        self.running
            .retain(|name, running| running.restart_at.is_none() || self.wanted.contains_key(name));
        let due = |running: &RunningTask<K::Own>| running.restart_at.is_some_and(|at| at <= now);
        let wanted = self.wanted.iter();
        let missing = wanted.filter(|(name, _)| self.running.get(*name).is_none_or(due));
        let missing: Vec<_> = missing.map(|(name, config)| (name.clone(), config.clone())).collect();
        for (name, config) in missing {
            let former = self.running.remove(&name);
            self.spawn(&name, config, former);
        }
        if self.running.is_empty() {
            self.kind.unused();
        }
    }

    fn spawn(&mut self, name: &str, config: Arc<DriverConfig>, former: Option<RunningTask<K::Own>>) {
        let former = former.map(|former| (former.faults, former.known_as, Some(former.own)));
        let (faults, known_as, own) = former.unwrap_or_default();
        let Some(new) = self.kind.prepare(&config, own) else {
            return;
        };
        let (settings, settings_seen) = watch::channel(config.clone());
        let (status, mut status_seen) = watch::channel(DriverState::default());
        // The status is written anew, as the task is another one.
        status_seen.mark_changed();
        let (stop, removed) = (CancellationToken::new(), Arc::new(AtomicBool::new(false)));
        let lease_namespace = new.election.as_ref().map(|election| election.namespace.clone());
        let lease_status = LeaseStatus::default();
        let task = DriverTask {
            role: new.role,
            name: Name::from(name),
            config: settings_seen,
            election: new.election,
            reservations: self.reservations.clone(),
            known_as: Arc::clone(&known_as),
            lease_status: Arc::clone(&lease_status),
            stop: stop.clone(),
            cut_off: self.cut_off.clone(),
            removed: removed.clone(),
            status: DriverStateSender::new(status),
        };
        let task = self.set.spawn(task.run());
        info!(config = name, endpoint = %config.endpoint, "{} started", K::NAME);
        let running = RunningTask {
            task,
            config,
            settings,
            status: status_seen,
            known_as,
            lease_namespace,
            lease_status,
            own: new.own,
            stop,
            removed,
            restart_at: None,
            is_ending: false,
            started: Instant::now(),
            faults,
        };
        self.running.insert(name.to_owned(), running);
    }

    pub fn stop_all(&mut self) {
        self.stops = true;
        self.wanted.clear();
        for running in self.running.values_mut() {
            running.is_ending = true;
            running.stop.cancel();
        }
    }

    /// Waits for a task to end, and does what is meant to happen then.
    pub async fn ended(&mut self) {
        let (id, fault) = match self.set.join_next_with_id().await {
            Some(Ok((id, ()))) => (id, None),
            Some(Err(error)) => (error.id(), Some(error)),
            None => return std::future::pending().await,
        };
        let mut tasks = self.running.iter();
        let name = tasks.find_map(|(name, running)| (running.task.id() == id).then(|| name.clone()));
        if let Some(fault) = fault {
            error!(config = name, %fault, "the {} failed", K::NAME);
        }
        if self.stops {
            return;
        }
        if let Some((name, running)) = name.and_then(|name| self.running.remove_entry(&name)) {
            *running.lease_status.lock() = None;
            self.kind.ended(&running.own);
            if !running.is_ending {
                self.running.insert(name, running.after_fault());
            } else if self.wanted.contains_key(&name) {
                let former = RunningTask { faults: 0, ..running };
                let config = self.wanted[&name].clone();
                self.spawn(&name, config, Some(former));
            }
        }
        self.start_missing();
    }

    /// The names whose tasks have changed since this was asked last.
    pub fn take_changed(&mut self) -> BTreeSet<String> {
        let changed = self.running.iter_mut().filter_map(|(name, running)| {
            let is_new = running.status.has_changed().unwrap_or(true);
            running.status.mark_unchanged();
            is_new.then(|| name.clone())
        });
        changed.collect()
    }

    /// Ends a task as a panic would.
    #[cfg(test)]
    pub fn abort_for_test(&self, name: &str) {
        self.running[name].task.abort();
    }
}

/// The driver that the settings of each AttacherConfig name. One that is suspended or being deleted keeps it from nobody.
fn pins(wanted: &Configs) -> impl Iterator<Item = (&str, &str)> {
    let pinning = wanted.iter().filter(|(_, config)| !config.suspend && !config.leaving);
    pinning.filter_map(|(name, config)| Some((name.as_str(), config.driver_name.as_deref()?)))
}

impl<X> RunningTask<X> {
    /// Whether it ends because nobody wants it any more.
    pub fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Relaxed)
    }

    /// Whether it claims nothing any more: its settings say that the AttacherConfig is being deleted, and no claim is being written.
    pub fn claims_ended(&self) -> bool {
        self.settings.borrow().leaving && self.status.borrow().claims == 0
    }

    pub fn answered_name(&self) -> Option<String> {
        let status = self.status.borrow();
        status.plugin.as_ref().map(|plugin| plugin.name.clone())
    }

    /// Who leads the driver, as far as known.
    pub fn lead(&self) -> DriverLeader {
        let is_known = self.known_as.borrow().is_some();
        if self.lease_namespace.is_none() {
            return DriverLeader::Ours;
        }
        match &*self.lease_status.lock() {
            Some(status) => DriverLeader::from(&status.borrow().state),
            // It is about to read the Lease.
            None if is_known => DriverLeader::Unknown,
            None => DriverLeader::Nobody,
        }
    }

    /// What is wrong with the namespaces of its Leases.
    pub fn lease_warning(&self) -> Option<String> {
        let status = self.lease_status.lock();
        status.as_ref()?.borrow().warning.clone()
    }

    /// What it is until it is started again after a pause, which is longer after each fault. What it reported stays known.
    fn after_fault(self) -> Self {
        let faults = if self.started.elapsed() >= MIN_HEALTHY_RUN {
            0
        } else {
            self.faults
        };
        let phase = DriverPhase::Unreachable {
            reason: ConditionReason::Restarting,
            message: "the driver's task ended by a fault of the operator and is started again".to_owned(),
        };
        let last = self.status.borrow().clone();
        Self {
            restart_at: Some(Instant::now() + INITIAL_BACKOFF.saturating_mul(1 << faults.min(6)).min(MAX_BACKOFF)),
            faults: faults.saturating_add(1),
            status: watch::channel(DriverState { phase, ..last }).1,
            ..self
        }
    }
}
