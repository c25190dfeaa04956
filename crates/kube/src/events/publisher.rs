//! The task that writes events: those of one namespace one after the other, so that a namespace whose events are taken slowly, as by an
//! admission webhook, holds up no other one.

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{debug, warn};

use super::event::NewEvent;
use super::series::{EventSeries, EventWrite};
use crate::apiserver::{ApiError, ApiErrorKind, Requests};
use crate::decide::patch::PatchType;
use crate::kinds::EventWire;
use crate::telemetry::{Metrics, Span};

/// How often counts that waited are written.
const WRITE_INTERVAL: Duration = Duration::from_secs(5);
/// Namespaces whose events are written at the same time; the others wait with all that is recorded.
const NAMESPACES_AT_ONCE: usize = 16;
/// Events of one namespace that wait for the one that is being written. What is beyond that is dropped.
const MAX_LINE: usize = 512;

pub(super) struct EventWriter {
    requests: Requests,
    metrics: Metrics,
    series: EventSeries,
    /// Whether the missing permission was logged.
    logged: bool,
}

impl EventWriter {
    pub fn new(requests: Requests, metrics: Metrics, instance: String) -> Self {
        Self {
            requests,
            metrics,
            series: EventSeries::new(instance),
            logged: false,
        }
    }

    pub async fn run(mut self, mut incoming: mpsc::Receiver<NewEvent>) {
        let mut tick = interval(WRITE_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut sent, mut lines) = (FuturesUnordered::new(), NamespaceLines::default());
        // The first of namespaces of which none is being written, as there are enough of others.
        let mut ready = VecDeque::new();
        let mut ended = false;
        while !ended || !sent.is_empty() {
            let takes_more = !ended && sent.len() < NAMESPACES_AT_ONCE;
            let writes = tokio::select! {
                Some(done) = sent.next() => {
                    let next = next_of(&mut lines, &done).or_else(|| ready.pop_front());
                    self.finish(done);
                    sent.extend(next.map(|write| self.send(write)));
                    continue;
                }
                occurrence = incoming.recv(), if takes_more => {
                    ended = occurrence.is_none();
                    occurrence.map(|occurrence| self.writes_of(&occurrence)).unwrap_or_default()
                }
                _ = tick.tick(), if takes_more => self.series.due(Instant::now()),
            };
            for write in writes {
                match lines.get_mut(&write.namespace) {
                    Some(line) if line.len() >= MAX_LINE => self.lost(&write, "dropped"),
                    Some(line) => line.push_back(write),
                    None => {
                        lines.insert(write.namespace.clone(), VecDeque::new());
                        if sent.len() >= NAMESPACES_AT_ONCE {
                            ready.push_back(write);
                        } else {
                            sent.push(self.send(write));
                        }
                    }
                }
            }
        }
    }

    /// The writes that an occurrence asks for.
    pub(super) fn writes_of(&mut self, occurrence: &NewEvent) -> Vec<EventWrite> {
        let mut writes = Vec::new();
        // A claim that a PersistentVolume names without a UID is perhaps no object at all, and a series is kept for a UID.
        let subjects = occurrence.subjects.iter().filter(|subject| !subject.uid.is_empty());
        for subject in subjects {
            match self.series.observe(occurrence, subject, Instant::now()) {
                Ok(write) => writes.extend(write),
                Err(()) => self.metrics.event(&occurrence.driver, occurrence.reason, "dropped"),
            }
        }
        writes
    }

    /// Sends a write.
    pub(super) fn send(&self, write: EventWrite) -> impl Future<Output = SentEvent> + use<> {
        let requests = self.requests.clone();
        async move {
            // An event is about something that has its own spans, so it has none.
            let quiet = Span::disabled();
            let outcome: Result<EventWire, ApiError> = match &write.change {
                None => requests.create(Some(&write.namespace), &write.body, &quiet).await,
                Some(name) => {
                    let name = (&*write.namespace, &**name);
                    requests.patch(name, PatchType::Merge, &write.body, None, &quiet).await
                }
            };
            let outcome = outcome.map(drop);
            SentEvent { write, outcome }
        }
    }

    /// Says that a write is lost: what it would have made is not there.
    fn lost(&mut self, write: &EventWrite, outcome: &'static str) {
        self.metrics.event(&write.driver, write.reason, outcome);
        if write.change.is_none() {
            self.series.forget(write.name());
        }
    }

    /// An event that cannot be written is lost: what it says is on the objects as well.
    pub(super) fn finish(&mut self, sent: SentEvent) {
        let SentEvent { write, outcome } = sent;
        let Err(error) = outcome else {
            return self.metrics.event(&write.driver, write.reason, "written");
        };
        // Events live for an hour; the next occurrence makes a new one.
        self.lost(&write, "failed");
        if error.kind == ApiErrorKind::NotFound {
            self.series.forget(write.name());
        }
        match error.kind {
            // A namespace that is being deleted refuses events as well, as an admission webhook may.
            ApiErrorKind::Forbidden if !self.logged && error.is_of_authorizer() => {
                self.logged = true;
                warn!(
                    namespace = &*write.namespace, %error,
                    "cannot write events; allow create and patch on events in the ClusterRole of the operator"
                );
            }
            _ => debug!(namespace = &*write.namespace, %error, "an event is lost"),
        }
    }
}

/// A write that was sent.
pub(super) struct SentEvent {
    write: EventWrite,
    outcome: Result<(), ApiError>,
}

/// What waits in each namespace of which an event is being written.
type NamespaceLines = HashMap<Box<str>, VecDeque<EventWrite>>;

/// The write that follows one that has ended.
fn next_of(lines: &mut NamespaceLines, ended: &SentEvent) -> Option<EventWrite> {
    let namespace = &ended.write.namespace;
    let next = lines.get_mut(namespace)?.pop_front();
    if next.is_none() {
        lines.remove(namespace);
    }
    next
}
