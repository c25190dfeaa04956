//! Attaching as a role of a driver's task.

use std::sync::Arc;

use csi_attacher_runtime::{DriverStateSender, Engine, Refusal, Role, Start};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::capability::release_without_call;
use super::context::{DriverContext, SharedContext};
use super::engine;
use crate::api::validated::DriverConfig;
use crate::apiserver::Requests;
use crate::cache::AttacherKey;
use crate::decide::DriverFacts;
use crate::queue::Queue;
use crate::reflect::Lists;
use crate::telemetry::Metrics;

/// Attaches and detaches for one driver.
#[derive(Clone)]
pub struct AttachRole {
    /// What all drivers share.
    pub context: SharedContext,
    /// Where the supervisor finds the queue while there is one.
    pub queue: Arc<Mutex<Option<Queue<AttacherKey>>>>,
}

impl Role for AttachRole {
    type Work = DriverContext;

    fn lists(&self, facts: &DriverFacts) -> Lists {
        self.context.store.lists_for(facts)
    }

    fn requests(&self) -> &Requests {
        &self.context.requests
    }

    fn metrics(&self) -> &Metrics {
        &self.context.metrics
    }

    /// Of a driver that does not publish, the objects must show first whether it ever did.
    fn needs_lists_first(&self, facts: &DriverFacts) -> bool {
        !facts.capabilities.publish_unpublish
    }

    async fn admit(&self, facts: &DriverFacts, config: &DriverConfig, name: &str) -> Result<DriverFacts, Refusal> {
        let release = release_without_call(&self.context, facts, config, name).await?;
        let capabilities = facts.capabilities.of_attaching();
        Ok(DriverFacts {
            capabilities,
            ..facts.clone().releasing(release)
        })
    }

    fn start(&self, start: Start) -> Result<Engine<DriverContext>, Refusal> {
        let started = engine::start(self.context.clone(), start);
        let engine = started.map_err(|conflict| Refusal {
            reason: conflict.reason(),
            message: conflict.to_string(),
        })?;
        *self.queue.lock() = Some(engine.queue().clone());
        Ok(engine)
    }

    fn vacancies(&self) -> watch::Receiver<()> {
        self.context.store.subscribe_removed()
    }

    fn ended(&self, status: &DriverStateSender) {
        status.withheld(None);
        status.lasting_mismatches(None);
        *self.queue.lock() = None;
    }
}
