//! Runs one driver task for each AttacherConfig and writes their status.
//!
//! It is level-triggered: after each change that the plan reads the whole set of objects is compared with what runs, and only what
//! differs is touched. An invalid object keeps its last valid settings running, but for what it holds back. A task that ends by a fault of
//! ours is started again with backoff, and the others do not notice.

mod attach_cache;
mod attachment_conditions;
mod deletion;
mod drivers;
mod election;
mod gauges;
mod last_failure;
mod leaving;
mod metrics;
mod observed;
mod plan;
mod provisioners;
mod provisioning_conditions;
mod provisioning_findings;
mod provisioning_state;
mod provisioning_status;
mod saturation;
pub mod single_driver;
mod status;
mod status_author;
mod status_events;
mod tasks;
mod watched;
mod writer;
mod writes;

use futures::{Stream, StreamExt};
use kube::runtime::watcher;
use kube::{Api, Client};
use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::pin::pin;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::api::AttacherConfigObject;
use crate::api::names::STATUS_LEASE;
use crate::api::validated::is_driver_name;
use crate::clock;
use crate::driver::SharedContext;
use crate::events::{EventReason, EventRecorder, NewEvent, of_config};
use crate::findings::{ConfiguredDriver, FindingsHandle};
use crate::health::CheckHandle;
use crate::lease::{LeaderElectionHandle, LeaderElections, LeaseShares, LeaseTimings};
use crate::reflect::{from_lists, with_backoff};
use deletion::{MetadataChange, Remaining};
use drivers::Drivers;
use election::LeaderElectionMode;
use metrics::SupervisorMetrics;
use plan::{ConfigProblem, DesiredDriver, PlanInput};
pub use provisioners::ProvisionSetup;
use status_author::DriverLeader;
use tasks::{Configs, Name};
use watched::WatchReadiness;
use writer::{StatusPart, StatusWriter, TrackedConfig};
use writes::{FinishedWrite, RunningWrites, StatusChange, WriteKind};

/// How often each driver is checked for a status that should change.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How long the last statuses may take after all drivers have ended, with what is under way: long enough for a busy API server.
const LAST_WRITES: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    /// Nothing new begins, and calls that run finish.
    pub stop: CancellationToken,
    /// There is no more time for that: calls that still run are cancelled.
    pub cut_off: CancellationToken,
}

pub struct Supervisor {
    drivers: Drivers,
    objects: BTreeMap<String, TrackedConfig>,
    /// The objects of a list that is still coming in.
    listing: Option<Vec<TrackedConfig>>,
    writer: StatusWriter,
    writes: RunningWrites,
    /// Held by the replica that writes the status of drivers that no replica leads; none before it is competed for, and at the end.
    status_lease: Option<LeaderElectionHandle>,
    elections: LeaderElections,
    metrics: SupervisorMetrics,
}

impl Supervisor {
    /// A supervisor that writes status by the requests of `context`, and serves drivers whose Leases it holds by `elections`. The status shows
    /// what was found about attachments.
    pub fn new(context: SharedContext, elections: LeaderElections, insights: FindingsHandle) -> Self {
        let writer = StatusWriter::new(&context.requests);
        let metrics = SupervisorMetrics::new(context.metrics.clone());
        let mut drivers = Drivers::new(context, LeaderElectionMode::Each(elections.clone()));
        drivers.insights = insights;
        Self {
            metrics,
            drivers,
            objects: BTreeMap::new(),
            listing: None,
            writer,
            writes: RunningWrites::default(),
            status_lease: None,
            elections,
        }
    }

    /// The same, which provisions where an AttacherConfig says so.
    #[must_use]
    pub fn provisioning(mut self, setup: ProvisionSetup) -> Self {
        self.drivers.provisioners.kind.setup = Some(setup);
        self
    }

    /// Follows the AttacherConfig objects until `shutdown`, then lets all drivers finish.
    pub async fn run(mut self, client: Client, check: CheckHandle, shutdown: Shutdown) {
        self.drivers.set_cut_off(&shutdown.cut_off);
        self.status_lease = Some(self.compete_for_status());
        let api = Api::<AttacherConfigObject>::all(client);
        let events = with_backoff(from_lists(|| watcher(api.clone(), watcher::Config::default())));
        self.follow(events, check, &shutdown.stop).await;
        // Another replica writes for drivers that nobody leads while the last calls of this one end.
        let lease = self.status_lease.take();
        let released = async {
            if let Some(lease) = lease {
                lease.release_and_stop().await;
            }
        };
        tokio::join!(self.finish(), released);
        info!("all drivers finished");
    }

    /// Competes for the permission to write the status of drivers that no replica leads. Nothing is called under it, so that a
    /// Lease that is created is held at once, and it does not count when Leases are spread over replicas.
    fn compete_for_status(&self) -> LeaderElectionHandle {
        let mut elections = self.elections.clone();
        elections.shares = LeaseShares::default();
        elections.rules.creators_wait = false;
        let config = elections.config_for("", LeaseTimings::default());
        LeaderElectionHandle::start(config, STATUS_LEASE.to_owned(), self.metrics.metrics.clone())
    }

    /// Lets all drivers finish, and writes their last status: for one that led when its last call has ended, while its
    /// Lease is released.
    async fn finish(&mut self) {
        let mut stopped = self.drivers.all_stopped();
        self.drivers.stop_all();
        let mut ticks = interval(CHECK_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut over_at = None;
        loop {
            let all_ended = self.drivers.is_empty() && stopped.is_empty();
            if all_ended && self.writes.is_empty() {
                return;
            }
            // What is under way may end, and so may the last status, but no more: an API server that does not answer fails all of them.
            let over_at = all_ended.then(|| *over_at.get_or_insert_with(|| Instant::now() + LAST_WRITES));
            let over = async {
                match over_at {
                    Some(at) => sleep_until(at).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                biased;
                () = over => return,
                Some(()) = stopped.next() => self.start_status_writes(&BTreeMap::new()),
                () = self.drivers.ended() => {}
                finished = self.writes.finished() => {
                    self.apply_write(finished);
                    // The last status may have waited for this write.
                    self.start_status_writes(&BTreeMap::new());
                }
                _ = ticks.tick(), if !all_ended => self.start_status_writes(&BTreeMap::new()),
            }
        }
    }

    async fn follow(
        &mut self,
        events: impl Stream<Item = watcher::Result<watcher::Event<AttacherConfigObject>>>,
        check: CheckHandle,
        stop: &CancellationToken,
    ) {
        let mut events = pin!(events);
        let mut ticks = interval(CHECK_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut watched = WatchReadiness::new(check, self.drivers.context.store.lists().answers());
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                event = events.next() => match event {
                    Some(Ok(event)) => {
                        watched.event(&event);
                        self.apply_event(event);
                    }
                    Some(Err(error)) => watched.error(&error),
                    None => return,
                },
                () = self.drivers.ended() => {}
                finished = self.writes.finished() => {
                    let of_metadata = matches!(finished.what, WriteKind::Metadata { .. });
                    self.apply_write(finished);
                    if of_metadata {
                        // The status waited for it.
                        self.start_status_writes(&BTreeMap::new());
                    }
                }
                _ = ticks.tick() => {
                    watched.check_recovery();
                    if self.status_lease.as_ref().is_some_and(LeaderElectionHandle::has_ended) {
                        self.status_lease = Some(self.compete_for_status());
                    }
                    self.drivers.restart_due();
                    self.observe_unserved();
                    self.drivers.insights.set_configs(self.configured());
                    self.drivers.update_gauges();
                    self.metrics.in_use(self.generations());
                    self.metrics.known(self.known_drivers());
                    self.metrics.ready(served(&self.objects).map(|(_, entry)| &entry.written));
                    let remaining = self.start_metadata_writes();
                    self.start_status_writes(&remaining);
                }
            }
        }
    }

    fn apply_event(&mut self, event: watcher::Event<AttacherConfigObject>) {
        match event {
            watcher::Event::Init => {
                self.listing = Some(Vec::new());
                self.objects.values_mut().for_each(TrackedConfig::is_listed_again);
            }
            watcher::Event::InitApply(object) => {
                let (_, entry) = self.entry(object);
                if let Some(listing) = &mut self.listing {
                    listing.push(entry);
                }
            }
            watcher::Event::InitDone => {
                let listed = self.listing.take().unwrap_or_default();
                self.objects = listed.into_iter().map(|entry| (entry.name(), entry)).collect();
                self.apply();
            }
            watcher::Event::Apply(object) => {
                let (name, entry) = self.entry(object);
                // Each write of a status comes back as well, and changes nothing of what should run.
                let is_planned = entry.is_planned();
                self.objects.insert(name, entry);
                if !is_planned {
                    self.apply();
                }
            }
            watcher::Event::Delete(object) => {
                let name = object.metadata.name.as_deref().unwrap_or_default();
                self.objects.remove(name);
                self.drivers.set_known_as(name, None);
                self.apply();
            }
        }
    }

    fn entry(&mut self, object: AttacherConfigObject) -> (String, TrackedConfig) {
        let name = object.metadata.name.clone().unwrap_or_default();
        let entry = TrackedConfig::new(object, self.objects.get(&name));
        self.drivers.set_known_as(&name, known_as(&self.drivers, &name, &entry));
        (name, entry)
    }

    /// The AttacherConfigs whose driver is known by name, from its spec or because it answered once.
    fn configured(&self) -> Vec<ConfiguredDriver> {
        // The replica that leads a driver reports on it, by the one AttacherConfig that it works for the driver with.
        let reports = |name: &str, driver: &str| {
            let is_ours = !self.drivers.lead(name).may_be_other();
            let holder = self.drivers.tasks.reservations.holder(driver);
            is_ours && holder.is_some_and(|holder| *holder == *name)
        };
        let named = served(&self.objects).filter_map(|(name, entry)| {
            let driver = driver_name(&self.drivers, name, entry)?;
            Some(ConfiguredDriver {
                reports: reports(name, &driver),
                driver,
                name: name.clone(),
                uid: entry.object.metadata.uid.clone().unwrap_or_default(),
                provisions: entry.object.spec.as_ref().is_ok_and(|spec| spec.provisioning.is_some()),
            })
        });
        named.collect()
    }

    /// The drivers that have an AttacherConfig or a task, as far as they are known by name.
    fn known_drivers(&self) -> BTreeSet<String> {
        let named = served(&self.objects).filter_map(|(name, entry)| driver_name(&self.drivers, name, entry));
        named.chain(self.drivers.names_in_use()).collect()
    }

    /// The generation in use for each driver that is known by name.
    fn generations(&self) -> BTreeMap<String, i64> {
        let used = served(&self.objects).filter(|(_, entry)| entry.problem.is_none());
        let mut used: Vec<_> = used
            .filter_map(|(name, entry)| {
                let settings = self.drivers.tasks.wanted().get(name);
                let is_active = settings.is_some_and(|settings| !settings.suspend && !settings.leaving);
                let driver = driver_name(&self.drivers, name, entry)?;
                Some((is_active, driver, entry.object.metadata.generation?))
            })
            .collect();
        // Of several for one driver that of the one which works counts.
        used.sort_unstable();
        used.into_iter()
            .map(|(_, driver, generation)| (driver, generation))
            .collect()
    }

    /// Starts, changes and stops drivers so that those run that are desired.
    fn apply(&mut self) {
        let inputs = self.objects.iter();
        let inputs = inputs.map(|(name, entry)| (name.clone(), PlanInput::of(&entry.object)));
        let inputs: BTreeMap<String, PlanInput> = inputs.collect();
        // One that is being deleted comes after all others, and pins no name: another one for its driver takes over, whatever it waits for.
        let staying = inputs.iter().filter(|(_, input)| input.is_served && !input.is_waiting);
        let ages = staying.map(|(name, input)| (Name::from(name.as_str()), input.created));
        self.drivers.set_creation_times(ages.collect());
        let mut wishes = plan::desired_drivers(&inputs);
        let mut wanted = Configs::new();
        // Both are in the order of the names.
        for ((name, entry), input) in self.objects.iter_mut().zip(inputs.into_values()) {
            let wish = wishes.remove(name);
            log_problem(name, entry.problem.as_ref(), wish.as_ref());
            let problem = wish.as_ref().and_then(|wish| wish.as_ref().err()).cloned();
            if entry.problem != problem {
                entry.problem = problem;
                entry.wake();
            }
            let settings = entry.in_use.after(&input, wish);
            wanted.extend(settings.map(|settings| (name.clone(), settings)));
            entry.planned = Some(input);
        }
        self.drivers.apply(wanted);
        for (name, entry) in &self.objects {
            self.drivers.set_known_as(name, known_as(&self.drivers, name, entry));
        }
        self.observe_unserved();
    }

    /// Observes who works for the driver of each AttacherConfig whose spec cannot be used and for which nothing runs here. Another replica may
    /// have settings for it that were valid before: this one began later, and has none.
    fn observe_unserved(&mut self) {
        let drivers = &self.drivers;
        let unserved = served(&self.objects);
        let unserved = unserved.filter(|(name, entry)| entry.problem.is_some() && !drivers.has_task(name));
        let named = unserved.filter_map(|(name, entry)| {
            let driver = driver_name(drivers, name, entry)?;
            is_driver_name(&driver).then(|| (name.clone(), driver))
        });
        let named = named.collect();
        self.drivers.observe(named);
    }

    /// Begins to write each status that differs from what is there, all at once: one that the API server is slow to take must
    /// not hold up the others. What is known already of what `remaining` AttacherConfigs wait for is not looked for again.
    fn start_status_writes(&mut self, remaining: &BTreeMap<String, Remaining>) {
        let changed = self.drivers.take_changed();
        let (drivers, writer, holder) = (&self.drivers, &self.writer, &self.elections.identity);
        let running = &mut self.writes;
        let cached = drivers.context.store.generation();
        // Where the Lease is refused somebody has to say so.
        let status_lease = self.status_lease.as_ref().map(LeaderElectionHandle::status);
        let for_nobody =
            status_lease.is_some_and(|lease| lease.state.term().is_some() || lease.permission_error.is_some());
        for (name, entry) in &mut self.objects {
            if !leaving::has_status(drivers, name, entry) {
                continue;
            }
            let phase = drivers.phase(name);
            if changed.contains(name) {
                entry.wake();
            }
            let now = Instant::now();
            let lead = drivers.lead(name);
            let may_write = entry.author.may_write(lead, phase.as_ref(), for_nobody, now);
            let part = drivers.part_of_status(name, may_write);
            let Some(part) = part else { continue };
            if entry.is_at_rest(cached) || running.is_writing(name) {
                continue;
            }
            let wanted = if part == StatusPart::Provisioning {
                let generation = entry.object.metadata.generation;
                drivers.provisioning_status(name, generation, holder, &entry.written)
            } else {
                let remaining = remaining.get(name).cloned();
                let remaining = remaining.or_else(|| leaving::remaining(drivers, name, entry));
                let deletion = leaving::state(drivers, name, entry, remaining);
                drivers.status(name, entry, holder, deletion)
            };
            if entry.shows(&wanted, part) {
                entry.rest(cached);
                continue;
            }
            if !entry.is_due(&wanted, lead == DriverLeader::Ours || part == StatusPart::Provisioning) {
                continue;
            }
            let (writer, uid, written) = (writer.clone(), entry.object.metadata.uid.clone(), name.clone());
            let change = StatusChange {
                before: entry.written.clone(),
                sent: entry.differing_part(&wanted, part),
                wanted,
                part,
            };
            running.start(name, async move {
                let answer = writer.write(&written, uid.as_deref(), &change).await;
                FinishedWrite {
                    name: written,
                    uid,
                    what: WriteKind::Status(Box::new(change)),
                    answer,
                }
            });
        }
    }

    /// Begins to put the finalizer of `deletionPolicy` on AttacherConfigs, and to take it off when nothing is waited for any more.
    /// Takes away confirmations that are used up. Returns what those wait for that are being deleted, as far as that was looked for.
    fn start_metadata_writes(&mut self) -> BTreeMap<String, Remaining> {
        let mut seen = BTreeMap::new();
        let (drivers, writer, running) = (&self.drivers, &self.writer, &mut self.writes);
        for (name, entry) in &mut self.objects {
            if drivers.is_metadata_left_to_another(name, driver_name(drivers, name, entry).as_deref()) {
                entry.last_list = None;
                continue;
            }
            if running.is_writing(name) {
                continue;
            }
            let remaining = leaving::remaining(drivers, name, entry);
            let done = leaving::waits_for_nothing(drivers, name, entry, remaining.as_ref());
            seen.extend(remaining.map(|remaining| (name.clone(), remaining)));
            let publishes = drivers.publishes(name);
            let needed = [
                deletion::patch(&entry.object, done),
                deletion::withdraw_confirmation(&entry.object, publishes),
            ];
            if needed.iter().all(Option::is_none) && entry.metadata_written() {
                writes::log_success(name, "metadata");
            }
            // One that rests, as somebody undoes it, holds up no other one.
            let mut needed = needed.into_iter().flatten();
            let Some((change, patch)) = needed.find(|(change, _)| entry.may_write_metadata(*change)) else {
                continue;
            };
            let lets_go = change == MetadataChange::LetGo && deletion::is_waiting(&entry.object);
            // By the time of the answer the object may be gone.
            let released = lets_go.then(|| driver_name(drivers, name, entry)).flatten();
            // What another AttacherConfig works for is not left behind.
            let released = released.filter(|driver| !drivers.tasks.is_left_to_another(name, driver));
            let (writer, uid, written) = (writer.clone(), entry.object.metadata.uid.clone(), name.clone());
            running.start(name, async move {
                let answer = writer.write_metadata(&written, &patch).await;
                let answer = answer.and_then(|answer| leaving::kept(change, answer, done, publishes));
                FinishedWrite {
                    name: written,
                    uid,
                    what: WriteKind::Metadata { change, released },
                    answer,
                }
            });
        }
        seen
    }

    fn apply_write(&mut self, finished: FinishedWrite) {
        let FinishedWrite {
            name,
            uid,
            what,
            answer,
        } = finished;
        let uid = uid.as_deref();
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                let failed = |entry: &mut TrackedConfig| match &what {
                    WriteKind::Status(_) => entry.failed(&error),
                    WriteKind::Metadata { .. } => entry.metadata_failed(&error),
                };
                let next = self.tracked(&name, uid).filter_map(failed).max();
                return writes::log_failure(&name, what.as_str(), &error, next);
            }
        };
        match &what {
            WriteKind::Status(change) => {
                self.metrics.wrote(&change.before, &change.wanted);
                let entry = self.objects.get(&name);
                let driver = entry.and_then(|entry| driver_name(&self.drivers, &name, entry));
                let events = &self.drivers.context.events;
                record_status_event(events, (&name, uid), &driver.unwrap_or_default(), change);
            }
            WriteKind::Metadata { released, .. } => {
                if let Some(driver) = released {
                    leaving::report_left_finalizers(&self.drivers, &name, uid, driver);
                }
            }
        }
        let mut had_failed = false;
        for entry in self.tracked(&name, uid) {
            had_failed |= match &what {
                WriteKind::Status(change) => entry.wrote(change, &answer),
                WriteKind::Metadata { change, .. } => {
                    entry.take_in(&answer);
                    entry.wrote_metadata(*change)
                }
            };
        }
        if had_failed {
            writes::log_success(&name, what.as_str());
        }
    }

    /// What is known of an object, also in a list that is still coming in.
    fn tracked<'a>(&'a mut self, name: &'a str, uid: Option<&'a str>) -> impl Iterator<Item = &'a mut TrackedConfig> {
        let listed = self.listing.iter_mut().flatten();
        let listed = listed.filter(move |entry| entry.object.metadata.name.as_deref() == Some(name));
        let entries = self.objects.get_mut(name).into_iter().chain(listed);
        entries.filter(move |entry| entry.object.metadata.uid.as_deref() == uid)
    }
}

/// The AttacherConfigs that are served: one that is being deleted only while it waits for its volumes, whoever else keeps it.
fn served(objects: &BTreeMap<String, TrackedConfig>) -> impl Iterator<Item = (&String, &TrackedConfig)> {
    objects.iter().filter(|(_, entry)| deletion::is_served(&entry.object))
}

/// Says in the log why the spec of an AttacherConfig cannot be used, each reason and text once, and when it can. `before` is why the one before
/// could not.
fn log_problem(config: &str, before: Option<&ConfigProblem>, wish: Option<&DesiredDriver>) {
    match wish {
        Some(Err(problem)) if before != Some(problem) => {
            let (reason, error) = (problem.reason.as_str(), &*problem.message);
            warn!(config, reason, error, "cannot use the spec of the AttacherConfig");
        }
        Some(Ok(_)) if before.is_some() => info!(config, "the latest spec of the AttacherConfig is in use"),
        _ => {}
    }
}

/// Records Events about a change of the status. The replica that writes the status does so, hence once for all replicas. As long as the name of
/// the `driver` is not known it is empty: the name of the AttacherConfig would be a label of metrics that nothing takes away.
fn record_status_event(events: &EventRecorder, (name, uid): (&str, Option<&str>), driver: &str, change: &StatusChange) {
    let (before, wanted) = (&change.before, &change.wanted);
    let driver = wanted.driver.as_ref().map_or(driver, |driver| &driver.name);
    let changes = [
        status_events::event_for_change(before, wanted),
        status_events::without_attachment(before, wanted),
    ];
    for (reason, cause, note) in changes.into_iter().flatten() {
        events.record(config_event(name, uid, driver, reason, cause, note));
    }
}

fn config_event(
    name: &str,
    uid: Option<&str>,
    driver: &str,
    reason: EventReason,
    cause: Box<str>,
    note: String,
) -> NewEvent {
    NewEvent {
        driver: driver.into(),
        reason: reason.as_str(),
        level: reason.level(),
        cause,
        note,
        traceparent: None,
        at: clock::now(),
        subjects: vec![of_config(name, uid.unwrap_or_default())],
    }
}

/// The driver's name: that of the settings in use, what it answers, or answered once, or what the spec says.
fn driver_name(drivers: &Drivers, name: &str, entry: &TrackedConfig) -> Option<String> {
    let in_use = drivers.specified(name).map(str::to_owned);
    let answered = || entry.known_as().map(str::to_owned);
    let specified = || entry.named_by_spec().map(str::to_owned);
    in_use
        .or_else(|| drivers.tasks.get(name)?.answered_name())
        .or_else(answered)
        .or_else(specified)
}

/// The name that the driver answered once, unless the settings in use name another one since.
fn known_as<'e>(drivers: &Drivers, name: &str, entry: &'e TrackedConfig) -> Option<&'e str> {
    let in_use = drivers.specified(name);
    entry
        .known_as()
        .filter(|known| in_use.is_none_or(|named| named == *known))
}

#[cfg(test)]
mod tests;
