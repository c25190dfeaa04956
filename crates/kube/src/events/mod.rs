//! Kubernetes Events about attachments: on the VolumeAttachment, its PersistentVolume and the claim that it is bound to,
//! where people look first.
//!
//! Events never hold up work: occurrences go into a bounded channel, and one task writes them, repeated ones as a count
//! on the event that is there, within a budget for each driver, and one for AttacherConfigs whose driver has no known name. What does
//! not fit is dropped and counted. Reasons are part of the interface: people filter and alert by them.
//!
//! It must not decide anything, and carries no text that was not scrubbed of secrets before.

mod event;
mod publisher;
mod series;
#[cfg(test)]
mod tests;

use tokio::sync::mpsc;

pub use csi_attacher_model::api::{EventReason, EventType};
pub use event::{
    InvolvedObject, NewEvent, involved_objects, objects_of_attachment, of_claim_named, of_class, of_config, of_volume,
    of_volume_named,
};

use crate::apiserver::Requests;
use crate::telemetry::Metrics;

/// Occurrences that wait to be written. A burst of attaches is longer; of such a burst not every success has an event.
const MAX_WAITING: usize = 1024;

/// Takes occurrences; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct EventRecorder {
    waiting: Option<mpsc::Sender<NewEvent>>,
    metrics: Metrics,
}

impl EventRecorder {
    /// A recorder, and the task that writes its events over `requests`, in the name of the replica `instance`, until all clones
    /// of the recorder are gone.
    pub fn new(
        requests: Requests,
        metrics: Metrics,
        instance: String,
    ) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let (waiting, incoming) = mpsc::channel(MAX_WAITING);
        let writer = publisher::EventWriter::new(requests, metrics.clone(), instance);
        let recorder = Self {
            waiting: Some(waiting),
            metrics,
        };
        (recorder, writer.run(incoming))
    }

    /// A recorder whose events are not written.
    pub fn disabled() -> Self {
        Self::default()
    }

    /// Records what happened, now or never: when too much is waiting, it is dropped and counted.
    pub fn record(&self, occurrence: NewEvent) {
        let Some(waiting) = &self.waiting else { return };
        // While its driver is worked for: what is written later must not bring back series that are gone.
        self.metrics.event_recorded(&occurrence.driver, occurrence.reason);
        if let Err(refused) = waiting.try_send(occurrence) {
            let occurrence = refused.into_inner();
            self.metrics.event(&occurrence.driver, occurrence.reason, "dropped");
        }
    }
}
