//! Scans all attachments now and then and reports what is wrong with them ([`csi_attacher_model::findings`]): as metrics, Events and
//! conditions of the AttacherConfig.
//!
//! One task scans for all drivers together, and reports only on those that this replica leads. It reads the cache in small
//! parts, so that no attempt waits for it, and does not scan while nothing changes and nothing waits. The CSIDriver of each driver is read at its start and every few minutes:
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
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tracing::{debug, info, warn};

use crate::apiserver::{ApiError, ApiErrorKind, CsiDriver, CsiDriverWire};
use crate::clock;
use crate::driver::SharedContext;
use crate::events::{InvolvedObject, NewEvent, involved_objects, objects_of_attachment, of_config};
use crate::telemetry::Span;
use csi_attacher_model::decide::Snapshot;
use csi_attacher_model::findings::{FindingHistory, FindingKind, FindingsPass, FindingsSummary, NewFinding};
use csi_driver::{CsiDriverCache, FINDING_INTERVAL, JITTER};
use scan::{DriverScan, Led, Scan, of_driver};
use unserved::UnservedTracker;

/// Many drivers start at the same time; one scan is for all of them. Longer than the tick of the supervisor, which says what reports them.
const GATHER: Duration = Duration::from_secs(2);

/// So long a scan waits for the CSIDrivers of all drivers together: what is found does not wait for an API server that is slow or asks to wait.
const READ_LIMIT: Duration = Duration::from_secs(10);

/// When attachments are scanned, and what counts as a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScannerSettings {
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
    pub driver: String,
    /// Whether this replica reports on the driver by this AttacherConfig: it works for the driver with it, and no other replica leads.
    pub reports: bool,
    pub name: String,
    pub uid: String,
    /// Whether the AttacherConfig is needed where nothing is attached, because volumes are made by it.
    pub provisions: bool,
}

/// What was found, and the AttacherConfigs that findings are reported on. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct FindingsHandle(Arc<Mutex<FindingsHandleInner>>);

#[derive(Debug, Default)]
struct FindingsHandleInner {
    summaries: HashMap<Arc<str>, Arc<FindingsSummary>>,
    /// None where there are no AttacherConfigs, in place of the sidecar.
    configs: Option<Vec<ConfiguredDriver>>,
    changes: u64,
}

impl FindingsHandle {
    /// What was found about a driver that this replica leads; none before the first scan.
    pub fn summary(&self, driver: &str) -> Option<Arc<FindingsSummary>> {
        self.0.lock().summaries.get(driver).cloned()
    }

    pub fn set_configs(&self, configs: Vec<ConfiguredDriver>) {
        let mut inner = self.0.lock();
        if inner.configs.as_ref() != Some(&configs) {
            inner.configs = Some(configs);
            inner.changes += 1;
        }
    }

    /// The AttacherConfig that is meant.
    pub fn config(&self, is_meant: impl Fn(&ConfiguredDriver) -> bool) -> Option<ConfiguredDriver> {
        let inner = self.0.lock();
        let mut configs = inner.configs.iter().flatten();
        configs.find(|config| is_meant(config)).cloned()
    }
}

/// What is kept of a driver from scan to scan.
#[derive(Debug, Default)]
struct ScannedDriver {
    ledger: FindingHistory,
    known: CsiDriverCache,
    /// When the first scan for this driver was made, soon after the Lease was taken; or when another client wrote last before it, as that is
    /// by the clock of the API server, and ours may be behind. None before the end of that scan.
    leads_since: Option<Timestamp>,
}

pub struct FindingsScanner {
    context: SharedContext,
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
            context: context.clone(),
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
        self.context.store.lists().wait_synced().await;
        let mut arrivals = self.context.store.subscribe_added();
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
        let led = self.context.store.drivers();
        let is_gone = |name: &&Arc<str>| !led.contains_key(*name);
        let gone: Vec<_> = self.drivers.keys().filter(is_gone).cloned().collect();
        for name in &gone {
            self.drivers.remove(name);
            self.insights.0.lock().summaries.remove(name);
            self.context.metrics.forget_findings(name);
        }
        self.keep(&led);
        let learned = self.read_csi_drivers().await;
        let state = (self.context.store.generation(), self.insights.0.lock().changes);
        if !arrived && gone.is_empty() && !learned && self.quiet_at == Some(state) {
            return;
        }
        let lasting = self.pass(&led, clock::now()).await;
        self.quiet_at = lasting.then_some(state);
    }

    /// Begins to keep something of each driver that is led.
    fn keep(&mut self, led: &Led) {
        for (name, facts) in led {
            let kept = self.drivers.entry(name.clone()).or_default();
            kept.known.publishes = facts.capabilities.publish_unpublish;
        }
    }

    /// Reads the CSIDrivers that are due, one after the other, until one is not answered, the API server asks to wait, or
    /// [`READ_LIMIT`] is over; true when one has changed.
    async fn read_csi_drivers(&mut self) -> bool {
        let mut learned = false;
        let until = Instant::now() + READ_LIMIT;
        let soon = FINDING_INTERVAL
            .max(self.settings.interval)
            .min(self.settings.stuck_after);
        for (name, driver) in &mut self.drivers {
            if !driver.known.is_due(Instant::now()) {
                continue;
            }
            let (requests, span) = (&self.context.requests, Span::disabled());
            let answer = timeout_at(until, requests.get::<CsiDriverWire>(&**name, None, &span)).await;
            let late = |_| ApiError::without_answer(ApiErrorKind::Unknown, "it was not answered in time");
            let answer = answer.map_err(late).flatten().map(CsiDriver::from);
            // The others would wait as long, and so would what is found.
            let ends = |error: &ApiError| error.status.is_none() || error.retry_after.is_some();
            let is_last = answer.as_ref().is_err_and(ends);
            if let Err(error) = &answer {
                match error.kind {
                    ApiErrorKind::NotFound => {}
                    _ if error.is_forbidden() => info!(
                        driver = &**name, %error,
                        "cannot read CSIDrivers: permission get csidrivers is missing; findings about CSIDrivers are off"
                    ),
                    _ => debug!(driver = &**name, %error, "cannot read the CSIDriver"),
                }
            }
            learned |= driver.known.update(answer, soon, Instant::now());
            if is_last {
                break;
            }
        }
        learned
    }

    /// Scans every attachment and reports what is found. True when a later scan of the same objects would find the same.
    async fn pass(&mut self, led: &Led, now: Timestamp) -> bool {
        let stuck_after = self.settings.stuck_after;
        let configs = self.insights.0.lock().configs.clone();
        let surveys = self.drivers.iter_mut().map(|(name, driver)| {
            let scan = DriverScan {
                pass: FindingsPass::begin(&mut driver.ledger, stuck_after, now),
                csi_driver: &driver.known,
                written_before: now,
                leads_since: &mut driver.leads_since,
            };
            (name.clone(), scan)
        });
        let configs = configs.as_deref();
        let mut scan = Scan {
            led,
            surveys: surveys.collect(),
            unserved: configs.map(|configs| self.unserved.begin(configs, stuck_after, now)),
        };
        scan.scan_all(&self.context.store).await;
        let mut lasting = true;
        if let Some(mut unserved) = scan.unserved {
            for volume in self.context.store.unreferenced_deleting_volumes() {
                unserved.volume(&volume);
            }
            lasting &= unserved.end(&self.context.metrics);
        }
        let mut found = Vec::new();
        for (name, mut driver) in scan.surveys {
            let mut configs = configs.unwrap_or_default().iter();
            let provisions = configs.any(|config| config.provisions && *config.driver == *name);
            of_driver(&mut driver.pass, &name, driver.csi_driver, provisions);
            driver.leads_since.get_or_insert(driver.written_before);
            let (summary, new, stays) = driver.pass.end();
            lasting &= stays;
            found.push((name, Arc::new(summary), new));
        }
        for (name, summary, new) in &found {
            self.report_findings(name, summary, new, now);
        }
        lasting
    }

    fn report_findings(&self, driver: &Arc<str>, summary: &Arc<FindingsSummary>, new: &[NewFinding], now: Timestamp) {
        let report = FindingsReport::begin(&self.context, driver, true, summary, now);
        let before = self.insights.0.lock().summaries.insert(driver.clone(), summary.clone());
        let before = before.unwrap_or_default();
        for item in new {
            warn!(
                driver = &**driver,
                VolumeAttachment = item.object.as_deref(),
                finding = item.kind.as_str(),
                "{}",
                item.words
            );
            let Some(name) = &item.object else { continue };
            if let Some(snapshot) = self.context.store.attachment(name) {
                let about = &*snapshot.attachment.uid;
                report.record(item.kind, about, item.words.clone(), subjects(item.kind, &snapshot));
            }
        }
        let is_reported_on = |config: &ConfiguredDriver| config.reports && config.driver == **driver;
        report.end(self.insights.config(is_reported_on).as_ref(), &before);
    }
}

/// Of a PersistentVolume that has the name of another volume's by now, only that is told on it.
fn subjects(kind: FindingKind, snapshot: &Snapshot) -> Vec<InvolvedObject> {
    match kind {
        FindingKind::VolumeReplaced => involved_objects(snapshot),
        _ => objects_of_attachment(snapshot),
    }
}

/// Reports what one role found about one driver: as metrics, Events and in the log.
pub(crate) struct FindingsReport<'f> {
    context: &'f SharedContext,
    driver: &'f Arc<str>,
    attaches: bool,
    found: &'f FindingsSummary,
    at: Timestamp,
}

impl<'f> FindingsReport<'f> {
    /// Sets the gauges to what was `found`.
    pub fn begin(
        context: &'f SharedContext,
        driver: &'f Arc<str>,
        attaches: bool,
        found: &'f FindingsSummary,
        at: Timestamp,
    ) -> Self {
        for kind in FindingKind::of_role(attaches) {
            context.metrics.findings(driver, kind.as_str(), found.count(kind));
        }
        Self {
            context,
            driver,
            attaches,
            found,
            at,
        }
    }

    /// Reports kinds of findings that begin or end, as a count: by an Event on the AttacherConfig, or in the log.
    pub fn end(self, config: Option<&ConfiguredDriver>, before: &FindingsSummary) {
        let objects = if self.attaches { "VolumeAttachments" } else { "objects" };
        for kind in FindingKind::of_role(self.attaches) {
            match (before.count(kind), self.found.count(kind)) {
                (0, count) if count > 0 => {
                    let Some(config) = config else { continue };
                    let example = self.found.example(kind).unwrap_or_default();
                    let note = if count > 1 {
                        format!("{count} {objects}; one of them: {example}")
                    } else {
                        example.to_owned()
                    };
                    self.record(kind, "", note, vec![of_config(&config.name, &config.uid)]);
                }
                (count, 0) if count > 0 => {
                    info!(
                        driver = &**self.driver,
                        finding = kind.as_str(),
                        "there are no such findings any more"
                    );
                }
                _ => {}
            }
        }
    }

    /// Records an Event about a finding, `about` which of what its objects may have several of.
    pub fn record(&self, kind: FindingKind, about: &str, note: String, subjects: Vec<InvolvedObject>) {
        let reason = kind.event_reason();
        self.context.events.record(NewEvent {
            driver: self.driver.clone(),
            reason: reason.as_str(),
            level: reason.level(),
            cause: about.into(),
            note,
            traceparent: None,
            at: self.at,
            subjects,
        });
    }
}
