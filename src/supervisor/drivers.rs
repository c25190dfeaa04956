//! The running driver tasks.

mod status;

use futures::stream::FuturesUnordered;
use jiff::Timestamp;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::{Id, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use super::election::LeaderElectionMode;
use super::saturation::Saturation;
use super::status_author::DriverLeader;
use crate::api::DriverConfig;
use crate::api::condition::ConditionReason;
use crate::cache::AttacherKey;
use crate::driver::{AttachRole, SharedContext};
use crate::findings::FindingsHandle;
use crate::lease::LeaderState;
use crate::queue::Queue;
use crate::runtime::reservation::Reservations;
use crate::runtime::{DriverPhase, DriverState, DriverStateSender, DriverTask};

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// A task that ran for so long was well; its next fault counts as the first.
const HEALTHY: Duration = Duration::from_mins(10);

/// The name of a driver, or of its AttacherConfig.
pub(super) type Name = Arc<str>;

/// A driver task, or the wish for one while the one before still finishes.
struct RunningTask {
    config: Arc<DriverConfig>,
    settings: watch::Sender<Arc<DriverConfig>>,
    status: watch::Receiver<DriverState>,
    queue: Arc<Mutex<Option<Queue<AttacherKey>>>>,
    saturation: Saturation,
    known_as: Arc<Mutex<Option<Name>>>,
    elects: bool,
    standing: Arc<Mutex<Option<watch::Receiver<LeaderState>>>>,
    stop: CancellationToken,
    removed: Arc<AtomicBool>,
    /// What happens when the task ends.
    then: AfterExit,
    started: Instant,
    faults: u32,
}

#[derive(Clone, Debug, PartialEq)]
enum AfterExit {
    /// It should not end: start it again.
    Again,
    /// Start it with these settings.
    Start(Arc<DriverConfig>),
    /// Forget it.
    Nothing,
    /// Start it at this time.
    At(Instant),
}

/// All driver tasks by the name of their AttacherConfig.
pub(super) struct Drivers {
    context: SharedContext,
    running: BTreeMap<String, RunningTask>,
    tasks: JoinSet<()>,
    names: HashMap<Id, String>,
    insights: FindingsHandle,
    election: LeaderElectionMode,
    claims: Reservations,
    /// Names of drivers that may not have answered yet.
    known_as: BTreeMap<String, Name>,
    /// Cancels the calls that still run.
    cut_off: CancellationToken,
    #[cfg(test)]
    handles: HashMap<String, tokio::task::AbortHandle>,
}

impl Drivers {
    pub fn new(context: SharedContext) -> Self {
        Self {
            context,
            running: BTreeMap::new(),
            tasks: JoinSet::new(),
            names: HashMap::new(),
            insights: FindingsHandle::default(),
            election: LeaderElectionMode::None,
            claims: Reservations::default(),
            known_as: BTreeMap::new(),
            cut_off: CancellationToken::new(),
            #[cfg(test)]
            handles: HashMap::new(),
        }
    }

    /// The same, of which each driver started from now on is worked for only while its Lease is held, if need be.
    pub fn with_leader_election(self, election: LeaderElectionMode) -> Self {
        Self { election, ..self }
    }

    /// The same, which shows what was found about attachments.
    pub fn with_findings(self, insights: FindingsHandle) -> Self {
        Self { insights, ..self }
    }

    /// The same, whose calls are cancelled by this when there is no more time for them to finish.
    pub fn with_cut_off(self, cut_off: CancellationToken) -> Self {
        Self { cut_off, ..self }
    }

    /// The name that a driver answered.
    pub fn name(&self, name: &str) -> Option<String> {
        let status = self.running.get(name)?.status.borrow();
        status.plugin.as_ref().map(|plugin| plugin.name.clone())
    }

    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// The settings of each driver that runs or is about to.
    pub fn configs(&self) -> BTreeMap<String, Arc<DriverConfig>> {
        let kept = self
            .running
            .iter()
            .filter(|(_, running)| running.then != AfterExit::Nothing);
        kept.map(|(name, running)| {
            let config = if let AfterExit::Start(next) = &running.then {
                next
            } else {
                &running.config
            };
            (name.clone(), config.clone())
        })
        .collect()
    }

    pub fn start(&mut self, name: &str, config: Arc<DriverConfig>) {
        if let Some(finishing) = self.running.get_mut(name) {
            // An object that was deleted and made again: the old task still finishes.
            finishing.then = AfterExit::Start(config);
            return;
        }
        self.spawn(name, config, 0);
    }

    fn spawn(&mut self, name: &str, config: Arc<DriverConfig>, faults: u32) {
        let (settings, settings_seen) = watch::channel(config.clone());
        let (status, mut status_seen) = watch::channel(DriverState::default());
        // That the task is another one is news.
        status_seen.mark_changed();
        let queue = Arc::new(Mutex::new(None));
        let known_as = Arc::new(Mutex::new(self.known_as.get(name).cloned()));
        let standing = Arc::new(Mutex::new(None));
        let campaign = self.election.campaign(name, &config);
        let elects = campaign.as_ref().is_some_and(|campaign| campaign.settings.enabled);
        let stop = CancellationToken::new();
        let removed = Arc::new(AtomicBool::new(false));
        let task = DriverTask {
            role: AttachRole {
                context: self.context.clone(),
                queue: queue.clone(),
            },
            name: Name::from(name),
            config: settings_seen,
            campaign,
            claims: self.claims.clone(),
            known_as: known_as.clone(),
            standing: standing.clone(),
            stop: stop.clone(),
            cut_off: self.cut_off.clone(),
            removed: removed.clone(),
            status: DriverStateSender::new(status),
        };
        let handle = self.tasks.spawn(task.run());
        #[cfg(test)]
        self.handles.insert(name.to_owned(), handle.clone());
        self.names.insert(handle.id(), name.to_owned());
        info!(config = name, endpoint = %config.endpoint, "driver task started");
        let running = RunningTask {
            config,
            settings,
            status: status_seen,
            queue,
            saturation: Saturation::default(),
            known_as,
            elects,
            standing,
            stop,
            removed,
            then: AfterExit::Again,
            started: Instant::now(),
            faults,
        };
        self.running.insert(name.to_owned(), running);
    }

    pub fn reload(&mut self, name: &str, config: Arc<DriverConfig>) {
        let Some(running) = self.running.get_mut(name) else {
            return;
        };
        if let AfterExit::Start(next) = &mut running.then {
            *next = config;
            return;
        }
        running.config = config.clone();
        running.settings.send_replace(config);
    }

    /// Lets a driver claim nothing new.
    pub fn leave(&mut self, name: &str) {
        let Some(running) = self.running.get(name) else {
            return;
        };
        let config = if let AfterExit::Start(next) = &running.then {
            next
        } else {
            &running.config
        };
        if !config.leaving {
            let config = DriverConfig {
                leaving: true,
                ..(**config).clone()
            };
            self.reload(name, Arc::new(config));
        }
    }

    pub fn restart(&mut self, name: &str, config: Arc<DriverConfig>) {
        let Some(running) = self.running.get_mut(name) else {
            return;
        };
        if matches!(running.then, AfterExit::At(_)) {
            // The task ended by a fault and waits: there is nothing to finish.
            self.running.remove(name);
            self.spawn(name, config, 0);
            return;
        }
        running.then = AfterExit::Start(config);
        running.stop.cancel();
    }

    /// Ends a driver whose AttacherConfig is gone.
    pub fn stop(&mut self, name: &str) {
        let Some(running) = self.running.get_mut(name) else {
            return;
        };
        let waiting = matches!(running.then, AfterExit::At(_));
        running.then = AfterExit::Nothing;
        running.removed.store(true, Ordering::Relaxed);
        running.stop.cancel();
        if waiting {
            self.running.remove(name);
        }
    }

    pub fn stop_all(&mut self) {
        for running in self.running.values_mut() {
            running.then = AfterExit::Nothing;
            running.stop.cancel();
        }
    }

    /// Ends a task as a panic would.
    #[cfg(test)]
    pub fn abort_for_test(&self, name: &str) {
        self.handles[name].abort();
    }

    /// Waits for a task to end and tells whose it was.
    pub async fn ended(&mut self) -> String {
        let (id, fault) = match self.tasks.join_next_with_id().await {
            Some(Ok((id, ()))) => (id, None),
            Some(Err(error)) => (error.id(), Some(error)),
            None => return std::future::pending().await,
        };
        let name = self.names.remove(&id).unwrap_or_default();
        if let Some(fault) = fault {
            error!(config = name, %fault, "the driver task failed");
        }
        name
    }

    /// Does what was meant to happen after the end of a task.
    pub fn after_end(&mut self, name: &str) {
        let Some(running) = self.running.get_mut(name) else {
            return;
        };
        match std::mem::replace(&mut running.then, AfterExit::Nothing) {
            AfterExit::Nothing => {
                self.running.remove(name);
            }
            AfterExit::Start(config) => {
                self.running.remove(name);
                self.spawn(name, config, 0);
            }
            AfterExit::Again | AfterExit::At(_) => {
                if running.started.elapsed() >= HEALTHY {
                    running.faults = 0;
                }
                let pause = FIRST_PAUSE
                    .saturating_mul(1 << running.faults.min(6))
                    .min(LONGEST_PAUSE);
                running.then = AfterExit::At(Instant::now() + pause);
                running.faults = running.faults.saturating_add(1);
                let last = running.status.borrow().clone();
                running.status = ended(last);
                *running.queue.lock() = None;
            }
        }
    }

    /// Starts the tasks again whose pause after a fault is over.
    pub fn restart_due(&mut self) {
        let now = Instant::now();
        let due: Vec<_> = self
            .running
            .iter()
            .filter(|(_, running)| matches!(running.then, AfterExit::At(at) if at <= now))
            .map(|(name, running)| (name.clone(), running.config.clone(), running.faults))
            .collect();
        for (name, config, faults) in due {
            self.spawn(&name, config, faults);
        }
    }

    /// What a driver is at.
    pub fn phase(&self, name: &str) -> Option<DriverPhase> {
        self.running
            .get(name)
            .map(|running| running.status.borrow().phase.clone())
    }

    /// Tells when each AttacherConfig that there is was made.
    pub fn set_creation_times(&self, ages: BTreeMap<Name, Option<Timestamp>>) {
        self.claims.set_ages(ages);
    }

    /// Tells the name of a driver that may not have answered yet.
    pub fn set_known_as(&mut self, name: &str, driver: Option<&str>) {
        let driver = driver.map(Name::from);
        if let Some(running) = self.running.get(name) {
            running.known_as.lock().clone_from(&driver);
        }
        match driver {
            Some(driver) => self.known_as.insert(name.to_owned(), driver),
            None => self.known_as.remove(name),
        };
    }

    /// Who leads the driver of an AttacherConfig, as far as known.
    pub fn lead(&self, name: &str) -> DriverLeader {
        let Some(running) = self.running.get(name) else {
            return DriverLeader::Nobody;
        };
        let standing = running.standing.lock();
        let standing = standing.as_ref().map(|standing| standing.borrow().clone());
        if !running.elects {
            // Unless another replica still has a Lease from before.
            let waits = standing.filter(|standing| matches!(standing, LeaderState::Waiting { holder: Some(_) }));
            return waits.as_ref().map_or(DriverLeader::Ours, DriverLeader::from);
        }
        match &standing {
            Some(standing) => DriverLeader::from(standing),
            // It is about to look at the Lease.
            None if running.known_as.lock().is_some() => DriverLeader::Unknown,
            None => DriverLeader::Nobody,
        }
    }

    /// Resolves for each driver that runs when it has stopped.
    pub fn all_stopped(&self) -> FuturesUnordered<impl Future<Output = ()> + use<>> {
        let states = self.running.values().map(|running| running.status.clone());
        let farewell = async |mut status: watch::Receiver<DriverState>| {
            let _ended = status.wait_for(|status| status.phase == DriverPhase::Stopped).await;
        };
        states.map(farewell).collect()
    }
}

/// The state of a driver whose task ended by a fault: what it told stays known, but it is at nothing.
fn ended(last: DriverState) -> watch::Receiver<DriverState> {
    let phase = DriverPhase::Unreachable {
        reason: ConditionReason::Restarting,
        message: "the driver's task ended by a fault of the operator and is started again".to_owned(),
    };
    watch::channel(DriverState { phase, ..last }).1
}
