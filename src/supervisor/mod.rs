//! Runs one driver task for each AttacherConfig and tells the world how they are.
//!
//! It is level-triggered: after each change the whole set of objects is compared with what runs, and only what differs is
//! touched. An invalid object keeps its last good settings running. A task that ends by a fault of ours is started again
//! with backoff, and the others do not notice.

mod deletion;
mod gauges;
mod plan;
mod running;
mod saturation;
mod single;
mod status;

use futures::{Stream, StreamExt};
use kube::runtime::watcher;
use kube::{Api, Client};
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::admin::CheckHandle;
use crate::api::{AttacherConfigObject, AttacherConfigStatus};
use crate::driver::Context;
use crate::store::{RECOVERED, patient};
use plan::{Problem, Step, Wish};
use running::{Drivers, StatusWriter};

pub use single::serve_one;

/// How often the states are looked at for a status that should change.
const LOOK: Duration = Duration::from_secs(1);
/// How long a change of counts waits, so that a burst of attaches is not a burst of status writes.
const UNHURRIED: Duration = Duration::from_secs(2);

/// Owns the drivers.
pub struct Supervisor {
    drivers: Drivers,
    objects: BTreeMap<String, Entry>,
    /// The objects of a list that is still coming in.
    listing: Option<BTreeMap<String, Entry>>,
    /// Whether there was a complete list.
    listed: bool,
    problems: BTreeMap<String, Problem>,
    writer: StatusWriter,
    holder: String,
}

/// An AttacherConfig and what was written on it.
struct Entry {
    object: AttacherConfigObject,
    written: AttacherConfigStatus,
    written_at: Option<Instant>,
}

impl Supervisor {
    /// A supervisor that writes status over `client` and calls itself `holder` there.
    pub fn new(context: Context, client: Client, holder: String) -> Self {
        Self {
            drivers: Drivers::new(context),
            objects: BTreeMap::new(),
            listing: None,
            listed: false,
            problems: BTreeMap::new(),
            writer: StatusWriter::new(client),
            holder,
        }
    }

    /// Follows the AttacherConfig objects until `stop`, then lets all drivers finish.
    pub async fn run(mut self, client: Client, check: CheckHandle, stop: CancellationToken) {
        let events = patient(watcher(
            Api::<AttacherConfigObject>::all(client),
            watcher::Config::default(),
        ));
        self.follow(events, check, &stop).await;
        self.drivers.stop_all();
        while !self.drivers.is_empty() {
            self.drivers.ended().await;
        }
        info!("all drivers finished");
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
        let mut broken: Option<Instant> = None;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                event = events.next() => match event {
                    Some(Ok(event)) => {
                        broken = None;
                        self.take_in(event, &check);
                    }
                    Some(Err(error)) => {
                        let again = broken.replace(Instant::now()).is_some();
                        if !again {
                            warn!(%error, "cannot watch attacherconfigs; is the CustomResourceDefinition installed? trying again");
                        }
                        // An API server makes the storage of a custom resource when it is first asked for one. It may
                        // answer the first list and refuse the watch after it (429, "storage is (re)initializing"); the
                        // next try, a second later, stands, but tells nothing while there are no objects.
                        if again || !self.listed {
                            check.set_failing(format!("cannot watch attacherconfigs: {error}"));
                        }
                    }
                    None => return,
                },
                name = self.drivers.ended(), if !self.drivers.is_empty() => self.drivers.after_end(&name),
                _ = look.tick() => {
                    if self.listed && broken.is_some_and(|at| at.elapsed() >= RECOVERED) {
                        broken = None;
                        check.set_ready(true);
                    }
                    self.drivers.restart_due();
                    self.drivers.look();
                    self.write_statuses().await;
                }
            }
        }
    }

    fn take_in(&mut self, event: watcher::Event<AttacherConfigObject>, check: &CheckHandle) {
        match event {
            watcher::Event::Init => self.listing = Some(BTreeMap::new()),
            watcher::Event::InitApply(object) => {
                let (name, entry) = self.entry(object);
                if let Some(listing) = &mut self.listing {
                    listing.insert(name, entry);
                }
            }
            watcher::Event::InitDone => {
                self.objects = self.listing.take().unwrap_or_default();
                self.listed = true;
                check.set_ready(true);
                self.apply();
            }
            watcher::Event::Apply(object) => {
                let (name, entry) = self.entry(object);
                self.objects.insert(name, entry);
                check.set_ready(true);
                self.apply();
            }
            watcher::Event::Delete(object) => {
                self.objects.remove(object.metadata.name.as_deref().unwrap_or_default());
                self.apply();
            }
        }
    }

    /// An object with what is known of its status: what we wrote ourselves counts more than an older copy of it.
    fn entry(&mut self, object: AttacherConfigObject) -> (String, Entry) {
        let name = object.metadata.name.clone().unwrap_or_default();
        let known = self
            .objects
            .get(&name)
            .filter(|known| known.object.metadata.uid == object.metadata.uid);
        let (written, written_at) = match known {
            Some(known) => (known.written.clone(), known.written_at),
            None => (object.status.clone(), None),
        };
        (
            name,
            Entry {
                object,
                written,
                written_at,
            },
        )
    }

    /// Compares what is wished with what runs.
    fn apply(&mut self) {
        let wishes = plan::wishes(self.objects.values().map(|entry| &entry.object));
        self.problems = wishes
            .iter()
            .filter_map(|(name, wish)| match wish {
                Wish::Refused(problem) => Some((name.clone(), problem.clone())),
                Wish::Run(_) => None,
            })
            .collect();
        for (name, step) in plan::steps(&self.drivers.configs(), &wishes) {
            match step {
                Step::Start(config) => self.drivers.start(&name, config),
                Step::Reload(config) => self.drivers.reload(&name, config),
                Step::Restart(config) => self.drivers.restart(&name, config),
                Step::Stop => self.drivers.stop(&name),
            }
        }
    }

    /// Writes each status that differs from what is there, all at once: one that the API server is slow to take must
    /// not hold up the others.
    async fn write_statuses(&mut self) {
        let (drivers, problems, writer, holder) = (&self.drivers, &self.problems, &self.writer, &self.holder);
        let changes = self.objects.iter_mut().filter_map(|(name, entry)| {
            let meta = &entry.object.metadata;
            let wanted = drivers.status(name, meta.generation, problems.get(name), holder, &entry.written);
            let rested = entry.written_at.is_none_or(|at| at.elapsed() >= UNHURRIED);
            if wanted == entry.written || !(rested || status::is_urgent(&entry.written, &wanted)) {
                return None;
            }
            Some(async move {
                match writer.write(name, entry.object.metadata.uid.as_deref(), &wanted).await {
                    Ok(()) => {
                        entry.written = wanted;
                        entry.written_at = Some(Instant::now());
                    }
                    Err(error) => {
                        warn!(
                            config = name,
                            error, "cannot write the status of the AttacherConfig; trying again"
                        );
                    }
                }
            })
        });
        futures::future::join_all(changes).await;
    }
}

type Name = Arc<str>;

#[cfg(test)]
mod tests;
