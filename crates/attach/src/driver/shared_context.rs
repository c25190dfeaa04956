//! [`SharedContext`]: what all drivers share.

use csi_attacher_model::attempt;

use super::attempt::unfinished::UnfinishedPublishes;
use crate::apiserver::Requests;
use crate::cache::Store;
use crate::decide::{self, DriverFacts, VolumeAction};
use crate::events::EventRecorder;
use crate::objects::Volume;
use crate::telemetry::Tracer;
use crate::telemetry::metrics::Metrics;

/// What all drivers share.
#[derive(Clone)]
pub struct SharedContext {
    /// The observed state of the cluster.
    pub store: Store,
    /// Writes to the API server.
    pub requests: Requests,
    /// Events.
    pub events: EventRecorder,
    /// Metrics.
    pub metrics: Metrics,
    /// Traces.
    pub tracer: Tracer,
    /// What one engine of a driver leaves to the next.
    pub unfinished: UnfinishedPublishes,
    /// The rules that all engines work by.
    pub rules: Rules,
}

impl SharedContext {
    /// Without Events and traces, by the rules of the product.
    pub fn new(store: Store, requests: Requests, metrics: Metrics) -> Self {
        Self {
            store,
            requests,
            events: EventRecorder::disabled(),
            metrics,
            tracer: Tracer::disabled(),
            unfinished: UnfinishedPublishes::default(),
            rules: Rules::default(),
        }
    }
}

/// The rules that an engine works by, as values: a test of the tests hands in wrong ones. By default [`decide::attachment`],
/// [`decide::settle`] and [`decide::volume`].
#[derive(Clone, Copy)]
pub struct Rules {
    /// About VolumeAttachments.
    pub attempt: attempt::Rules,
    /// The next step for a PersistentVolume.
    pub volume: fn(&Volume, usize, &DriverFacts) -> VolumeAction,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            attempt: attempt::Rules::default(),
            volume: decide::volume,
        }
    }
}
