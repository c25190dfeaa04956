//! Runs one driver task for each AttacherConfig and tells the world how they are.
//!
//! It is level-triggered: after each change the whole set of objects is compared with what runs, and only what differs is
//! touched. An invalid object keeps its last good settings running. A task that ends by a fault of ours is started again
//! with backoff, and the others do not notice.

mod attachment_conditions;
mod deletion;
mod drivers;
mod election;
mod gauges;
mod leaving;
mod metrics;
mod plan;
mod saturation;
pub mod single_driver;
mod status;
mod status_author;
mod status_events;
mod watched;
mod writer;
mod writes;

use futures::{Stream, StreamExt};
use kube::runtime::watcher;
use kube::{Api, Client};
use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::api::{AttacherConfigObject, AttacherConfigStatus};
use crate::clock;
use crate::driver::SharedContext;
use crate::events::{EventRecorder, NewEvent, of_config};
use crate::findings::{ConfiguredDriver, FindingsHandle};
use crate::health::CheckHandle;
use crate::lease::LeaderElections;
use crate::reflect::{from_lists, with_backoff};
use crate::runtime::DriverPhase;
use drivers::{Drivers, Name};
use election::LeaderElectionMode;
use metrics::SupervisorMetrics;
use plan::{ConfigProblem, DesiredDriver, Step};
use status_author::{DriverLeader, StatusProposal};
use watched::Watched;
use writer::{StatusWriter, TrackedConfig};
use writes::{FinishedWrite, RunningWrites, StatusChange, WriteKind};

/// How often the states are looked at for a status that should change.
const LOOK: Duration = Duration::from_secs(1);

/// How drivers are ended.
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    /// Nothing new begins, and calls that run finish.
    pub stop: CancellationToken,
    /// There is no more time for that: calls that still run are cancelled.
    pub cut_off: CancellationToken,
}

/// Owns the drivers.
pub struct Supervisor {
    drivers: Drivers,
    objects: BTreeMap<String, TrackedConfig>,
    /// The objects of a list that is still coming in.
    listing: Option<BTreeMap<String, TrackedConfig>>,
    problems: BTreeMap<String, ConfigProblem>,
    writer: StatusWriter,
    writes: RunningWrites,
    holder: String,
    events: EventRecorder,
    insights: FindingsHandle,
    numbers: SupervisorMetrics,
}

impl Supervisor {
    /// A supervisor that writes status over `client`, and works for drivers whose Leases it holds by the name of `office`.
    pub fn new(context: SharedContext, client: Client, office: LeaderElections) -> Self {
        let (holder, events) = (office.identity.clone(), context.events.clone());
        let numbers = SupervisorMetrics::new(context.metrics.clone());
        Self {
            numbers,
            drivers: Drivers::new(context).with_leader_election(LeaderElectionMode::Each(office)),
            objects: BTreeMap::new(),
            listing: None,
            problems: BTreeMap::new(),
            writer: StatusWriter::new(client),
            writes: RunningWrites::default(),
            holder,
            events,
            insights: FindingsHandle::default(),
        }
    }

    /// The same, which shows in the status what was found about attachments.
    #[must_use]
    pub fn showing(self, insights: FindingsHandle) -> Self {
        Self {
            drivers: self.drivers.with_findings(insights.clone()),
            insights,
            ..self
        }
    }

    /// Follows the AttacherConfig objects until `shutdown`, then lets all drivers finish.
    pub async fn run(mut self, client: Client, check: CheckHandle, shutdown: Shutdown) {
        self.drivers = self.drivers.with_cut_off(shutdown.cut_off);
        let api = Api::<AttacherConfigObject>::all(client);
        let events = with_backoff(from_lists(|| watcher(api.clone(), watcher::Config::default())));
        self.follow(events, check, &shutdown.stop).await;
        self.finish().await;
        info!("all drivers finished");
    }

    /// Lets all drivers finish, and writes their last status: for one that led when its last call has ended, while its
    /// Lease is released.
    async fn finish(&mut self) {
        let mut farewells = self.drivers.all_stopped();
        self.drivers.stop_all();
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let all_ended = self.drivers.is_empty() && farewells.is_empty();
            if all_ended && self.writes.is_empty() {
                return;
            }
            tokio::select! {
                biased;
                Some(()) = farewells.next() => self.start_status_writes(),
                _ = self.drivers.ended(), if !self.drivers.is_empty() => {}
                finished = self.writes.finished() => {
                    self.apply_write(finished);
                    // The last status may have waited for this write.
                    self.start_status_writes();
                }
                _ = look.tick(), if !all_ended => self.start_status_writes(),
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
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut watched = Watched::new(check);
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
                name = self.drivers.ended(), if !self.drivers.is_empty() => self.drivers.after_end(&name),
                finished = self.writes.finished() => {
                    let of_metadata = matches!(finished.what, WriteKind::Metadata { .. });
                    self.apply_write(finished);
                    if of_metadata {
                        // The status waited for it.
                        self.start_status_writes();
                    }
                }
                _ = look.tick() => {
                    watched.look();
                    self.drivers.restart_due();
                    self.drivers.update_gauges();
                    self.insights.configured(self.configured());
                    self.numbers.in_use(self.generations());
                    self.numbers.ready(self.objects.values().map(|entry| &entry.written));
                    self.start_metadata_writes();
                    self.start_status_writes();
                }
            }
        }
    }

    fn apply_event(&mut self, event: watcher::Event<AttacherConfigObject>) {
        match event {
            watcher::Event::Init => {
                self.listing = Some(BTreeMap::new());
                self.objects.values_mut().for_each(TrackedConfig::is_listed_again);
            }
            watcher::Event::InitApply(object) => {
                let (name, entry) = self.entry(object);
                if let Some(listing) = &mut self.listing {
                    listing.insert(name, entry);
                }
            }
            watcher::Event::InitDone => {
                self.objects = self.listing.take().unwrap_or_default();
                self.apply();
            }
            watcher::Event::Apply(object) => {
                let (name, entry) = self.entry(object);
                self.objects.insert(name, entry);
                self.apply();
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
        let driver = entry.written.driver.as_ref().map(|driver| driver.name.as_str());
        self.drivers.set_known_as(&name, driver);
        (name, entry)
    }

    /// The AttacherConfigs whose driver is known by name, from its spec or because it answered once.
    fn configured(&self) -> Vec<ConfiguredDriver> {
        // What concerns a driver that another replica leads is told by that one.
        let ours = |name: &str| !matches!(self.drivers.lead(name), DriverLeader::Other | DriverLeader::Unknown);
        let named = self.objects.iter().filter(|(name, _)| ours(name));
        let named = named.filter_map(|(name, entry)| {
            Some(ConfiguredDriver {
                driver: driver_name(&self.drivers, name, entry)?,
                name: name.clone(),
                uid: entry.object.metadata.uid.clone().unwrap_or_default(),
            })
        });
        named.collect()
    }

    /// The generation in use for each driver that is known by name.
    fn generations(&self) -> BTreeMap<String, i64> {
        let used = self
            .objects
            .iter()
            .filter(|(name, entry)| deletion::is_served(&entry.object) && !self.problems.contains_key(*name));
        let used = used.filter_map(|(name, entry)| {
            Some((
                driver_name(&self.drivers, name, entry)?,
                entry.object.metadata.generation?,
            ))
        });
        used.collect()
    }

    /// Compares what is wished with what runs.
    fn apply(&mut self) {
        let ages = self.objects.iter().map(|(name, entry)| {
            let made = entry.object.metadata.creation_timestamp.as_ref();
            (Name::from(name.as_str()), made.map(|time| time.0))
        });
        self.drivers.set_creation_times(ages.collect());
        let wishes = plan::desired_drivers(self.objects.values().map(|entry| &entry.object));
        let problems: BTreeMap<String, ConfigProblem> = wishes
            .iter()
            .filter_map(|(name, wish)| match wish {
                DesiredDriver::Refused(problem) => Some((name.clone(), problem.clone())),
                DesiredDriver::Run(_) => None,
            })
            .collect();
        let configs = self.drivers.configs();
        let steps = plan::steps(&configs, &wishes);
        for (name, step) in steps {
            match step {
                Step::Start(config) => self.drivers.start(&name, config),
                Step::Reload(config) => self.drivers.reload(&name, config),
                Step::Restart(config) => self.drivers.restart(&name, config),
                Step::Stop => self.drivers.stop(&name),
            }
        }
        // What cannot be read goes on with the settings that it had, but claims nothing new either.
        let waiting = |name: &&String| {
            self.objects
                .get(*name)
                .is_some_and(|entry| deletion::is_waiting(&entry.object))
        };
        for name in problems.keys().filter(waiting) {
            self.drivers.leave(name);
        }
        for (name, entry) in &mut self.objects {
            if self.problems.get(name) != problems.get(name) {
                entry.wake();
            }
        }
        self.problems = problems;
    }

    /// Begins to write each status that differs from what is there, all at once: one that the API server is slow to take must
    /// not hold up the others.
    fn start_status_writes(&mut self) {
        let changed = self.drivers.take_changed();
        let (drivers, problems, writer, holder) = (&self.drivers, &self.problems, &self.writer, &self.holder);
        let running = &mut self.writes;
        let cached = drivers.cache_generation();
        for (name, entry) in &mut self.objects {
            if !deletion::is_served(&entry.object) {
                continue;
            }
            let phase = drivers.phase(name);
            let word = StatusProposal {
                waits: matches!(phase, Some(DriverPhase::Standby { .. })),
                ends: phase == Some(DriverPhase::Stopped),
            };
            if changed.contains(name) {
                entry.wake();
            }
            let may_write = entry.voice.may_write(drivers.lead(name), word, Instant::now());
            if !may_write || entry.is_at_rest(cached) || running.is_writing(name) {
                continue;
            }
            let (generation, problem) = (entry.object.metadata.generation, problems.get(name));
            let deletion = leaving::state(drivers, name, entry);
            let (wanted, essence) = drivers.status(name, generation, problem, holder, &entry.written, deletion);
            if entry.voice.has_written(&essence) {
                entry.rest(cached);
                continue;
            }
            if wanted == entry.written {
                entry.voice.set_written(essence);
                entry.rest(cached);
                continue;
            }
            if !entry.is_due(&wanted) {
                continue;
            }
            let (writer, uid, written) = (writer.clone(), entry.object.metadata.uid.clone(), name.clone());
            let change = StatusChange {
                before: entry.written.clone(),
                wanted,
                essence,
            };
            running.start(name, async move {
                let answer = writer.write(&written, uid.as_deref(), &change.wanted).await;
                let change = Box::new(change);
                FinishedWrite {
                    name: written,
                    uid,
                    what: WriteKind::Status { change, answer },
                }
            });
        }
    }
}

/// Tells a change of the status as events. Told by whoever writes the status, hence once whatever the number of replicas.
fn record_status_event(
    events: &EventRecorder,
    name: &str,
    uid: Option<&str>,
    before: &AttacherConfigStatus,
    wanted: &AttacherConfigStatus,
) {
    let news = [
        status_events::event_for_change(before, wanted),
        status_events::without_attachment(before, wanted),
    ];
    let driver = wanted
        .driver
        .as_ref()
        .map_or_else(|| name.to_owned(), |driver| driver.name.clone());
    for (reason, cause, note) in news.into_iter().flatten() {
        events.record(NewEvent {
            driver: driver.as_str().into(),
            reason,
            level: reason.level(),
            cause,
            note,
            traceparent: None,
            at: clock::now(),
            subjects: vec![of_config(name, uid.unwrap_or_default())],
        });
    }
}

/// The driver's name, from what it answers, what it answered once, or the spec.
fn driver_name(drivers: &Drivers, name: &str, entry: &TrackedConfig) -> Option<String> {
    let answered = || entry.written.driver.as_ref().map(|driver| driver.name.clone());
    let told = || entry.object.spec.as_ref().ok()?.driver_name.clone();
    drivers.name(name).or_else(answered).or_else(told)
}

#[cfg(test)]
mod tests;
