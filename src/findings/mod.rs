//! Looks at all attachments now and then and tells what is wrong with them ([`csi_attacher_model::findings`]): as metrics, events and
//! conditions of the AttacherConfig.
//!
//! One task looks for all drivers together, and tells only of those that this process works for: where another replica
//! leads, that one tells. It reads the cache in small parts, so that nobody who works waits for it, and does not even
//! look while nothing changes and nothing waits. The CSIDriver of each driver is read at its start and every few minutes:
//! it hardly ever changes, and a watch for it would be one more stream for ever.
//!
//! It must not change any object but events and status, and must not decide what is attached or detached.

mod csi_driver;
mod scan;
mod unserved;

#[cfg(test)]
mod tests;

use jiff::Timestamp;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};

use crate::apiserver::Requests;
use crate::cache::Store;
use crate::clock;
use crate::driver::SharedContext;
use crate::events::EventRecorder;
use crate::telemetry::Metrics;
use csi_attacher_model::findings::{FindingHistory, FindingThresholds, FindingsSummary};
use csi_driver::CsiDriverCache;
use unserved::UnservedTracker;

/// Share of the interval that is added at random, so that replicas of one start do not stay in step.
const JITTER: f64 = 0.1;
/// Many drivers begin at the same time; they are looked at together.
const GATHER: Duration = Duration::from_secs(1);

/// How attachments are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScannerSettings {
    /// Time between two looks.
    pub interval: Duration,
    /// How long an attach or detach may take, and another state that is wrong may last.
    pub stuck_after: Duration,
}

impl Default for ScannerSettings {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(30),
            stuck_after: Duration::from_mins(5),
        }
    }
}

/// An AttacherConfig whose driver's name is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfiguredDriver {
    /// The driver.
    pub driver: String,
    /// Name of the AttacherConfig.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

/// What was found, and for whom it is looked. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct FindingsHandle(Arc<Mutex<FindingsHandleInner>>);

#[derive(Debug, Default)]
struct FindingsHandleInner {
    summaries: HashMap<Arc<str>, Arc<FindingsSummary>>,
    /// None where there are no AttacherConfigs, in place of the sidecar.
    configs: Option<Vec<ConfiguredDriver>>,
    /// How often that changed.
    changes: u64,
}

impl FindingsHandle {
    /// What was found about a driver that this process works for; none before the first look.
    pub fn summary(&self, driver: &str) -> Option<Arc<FindingsSummary>> {
        self.0.lock().summaries.get(driver).cloned()
    }

    /// Tells which AttacherConfigs there are.
    pub fn configured(&self, configs: Vec<ConfiguredDriver>) {
        let mut board = self.0.lock();
        if board.configs.as_ref() != Some(&configs) {
            board.configs = Some(configs);
            board.changes += 1;
        }
    }

    fn configs(&self) -> Option<Vec<ConfiguredDriver>> {
        self.0.lock().configs.clone()
    }

    fn publish(&self, driver: &Arc<str>, summary: Arc<FindingsSummary>) {
        self.0.lock().summaries.insert(driver.clone(), summary);
    }

    fn withdraw(&self, driver: &str) {
        self.0.lock().summaries.remove(driver);
    }
}

/// What is kept of a driver from look to look.
#[derive(Debug)]
struct ScannedDriver {
    ledger: FindingHistory,
    known: CsiDriverCache,
    summary: Arc<FindingsSummary>,
    /// When it was first looked at for this driver: soon after the Lease was taken.
    leads_since: Timestamp,
}

impl ScannedDriver {
    fn new(leads_since: Timestamp) -> Self {
        Self {
            ledger: FindingHistory::default(),
            known: CsiDriverCache::default(),
            summary: Arc::default(),
            leads_since,
        }
    }
}

/// The task that looks.
pub struct FindingsScanner {
    store: Store,
    requests: Requests,
    events: EventRecorder,
    metrics: Metrics,
    settings: ScannerSettings,
    insights: FindingsHandle,
    drivers: HashMap<Arc<str>, ScannedDriver>,
    unserved: UnservedTracker,
    /// The state of the cache and of the AttacherConfigs in which nothing was found that time alone could change.
    quiet_at: Option<(u64, u64)>,
}

impl FindingsScanner {
    /// A scanner of what the drivers of this process work on.
    pub fn new(context: &SharedContext, settings: ScannerSettings) -> Self {
        Self {
            store: context.store.clone(),
            requests: context.requests.clone(),
            events: context.events.clone(),
            metrics: context.metrics.clone(),
            settings,
            insights: FindingsHandle::default(),
            drivers: HashMap::new(),
            unserved: UnservedTracker::default(),
            quiet_at: None,
        }
    }

    /// Where what is found is shown.
    pub fn findings(&self) -> FindingsHandle {
        self.insights.clone()
    }

    /// Scans now and then, for ever.
    pub async fn run(mut self) {
        self.store.lists().wait_synced().await;
        let mut arrivals = self.store.subscribe_added();
        let mut arrived = true;
        loop {
            self.scan(arrived).await;
            let share = 1.0 + JITTER * fastrand::f64();
            let next = Instant::now() + self.settings.interval.mul_f64(share);
            arrived = tokio::select! {
                () = sleep_until(next) => false,
                // The sender lives in the store.
                _ = arrivals.changed() => {
                    sleep(GATHER.min(self.settings.interval)).await;
                    arrivals.mark_unchanged();
                    true
                }
            };
        }
    }

    async fn scan(&mut self, arrived: bool) {
        let led = self.store.drivers();
        let gone: Vec<_> = self
            .drivers
            .keys()
            .filter(|name| !led.contains_key(*name))
            .cloned()
            .collect();
        for name in &gone {
            self.drivers.remove(name);
            self.insights.withdraw(name);
            self.metrics.forget_findings(name);
        }
        for name in led.keys() {
            let new = || ScannedDriver::new(clock::now());
            self.drivers.entry(name.clone()).or_insert_with(new);
        }
        let learned = self.read_csi_drivers().await;
        let state = (self.store.generation(), self.insights.0.lock().changes);
        if !arrived && gone.is_empty() && !learned && self.quiet_at == Some(state) {
            return;
        }
        let lasting = self.pass(&led, clock::now()).await;
        self.quiet_at = lasting.then_some(state);
    }

    fn rules(&self) -> FindingThresholds {
        FindingThresholds {
            stuck_after: self.settings.stuck_after,
        }
    }
}
