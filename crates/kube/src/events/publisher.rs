//! The task that writes events.

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
        loop {
            tokio::select! {
                occurrence = incoming.recv() => match occurrence {
                    Some(occurrence) => self.write_event(&occurrence).await,
                    None => return,
                },
                _ = tick.tick() => {
                    for write in self.series.due(Instant::now()) {
                        self.write(&write).await;
                    }
                }
            }
        }
    }

    pub(super) async fn write_event(&mut self, occurrence: &NewEvent) {
        for subject in &occurrence.subjects {
            match self.series.observe(occurrence, subject, Instant::now()) {
                Ok(Some(write)) => self.write(&write).await,
                Ok(None) => {}
                Err(()) => self.metrics.event(&occurrence.driver, occurrence.reason, "dropped"),
            }
        }
    }

    /// An event that cannot be written is lost: what it says is on the objects as well.
    async fn write(&mut self, write: &EventWrite) {
        let outcome: Result<EventWire, ApiError> = match &write.change {
            None => self.requests.create(Some(&write.namespace), &write.body).await,
            Some(name) => {
                let name = (&*write.namespace, &**name);
                // An event is about something that has its own spans, so it has none.
                let quiet = Span::disabled();
                self.requests
                    .patch(name, PatchType::Merge, &write.body, None, &quiet)
                    .await
            }
        };
        let Err(error) = outcome else {
            return self.metrics.event(&write.driver, write.reason, "written");
        };
        self.metrics.event(&write.driver, write.reason, "failed");
        // Events live for an hour, and one that could not be made is not there either; the next occurrence makes a new one.
        if write.change.is_none() || error.kind == ApiErrorKind::NotFound {
            self.series.forget(write.name());
        }
        match error.kind {
            // A namespace that is being deleted refuses events as well, as an admission webhook may.
            ApiErrorKind::Forbidden if !self.logged && lacks_permission(&error) => {
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

/// Whether the API server's authorizer refused the request.
fn lacks_permission(error: &ApiError) -> bool {
    let refused = ["cannot create resource", "cannot patch resource"];
    refused.iter().any(|words| error.message.contains(words))
}
