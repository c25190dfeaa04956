//! [`SharedContext`]: what all drivers share.

use super::attempt::unfinished::UnfinishedPublishes;
use super::rules::Rules;
use crate::apiserver::Requests;
use crate::cache::Store;
use crate::events::EventRecorder;
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
