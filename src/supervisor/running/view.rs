//! What is seen of the running drivers.

use futures::stream::FuturesUnordered;
use jiff::Timestamp;
use tokio::sync::watch;

use super::Drivers;
use crate::api::AttacherConfigStatus;
use crate::clock;
use crate::driver::{DriverStatus, Phase};
use crate::supervisor::plan::Problem;
use crate::supervisor::status::{self, Facts};
use crate::supervisor::voice::Lead;

impl Drivers {
    /// Who leads the driver of an AttacherConfig, as far as known.
    pub fn lead(&self, name: &str) -> Lead {
        let Some(running) = self.running.get(name) else {
            return Lead::Nobody;
        };
        if !running.elects {
            return Lead::Ours;
        }
        let standing = running.standing.lock();
        match &*standing {
            Some(standing) => Lead::from(&*standing.borrow()),
            // It is about to look at the Lease.
            None if running.known_as.lock().is_some() => Lead::Unknown,
            None => Lead::Nobody,
        }
    }

    /// Resolves for each driver that runs when it has stopped.
    pub fn farewells(&self) -> FuturesUnordered<impl Future<Output = ()> + use<>> {
        let states = self.running.values().map(|running| running.status.clone());
        let farewell = async |mut status: watch::Receiver<DriverStatus>| {
            let _ended = status.wait_for(|status| status.phase == Phase::Stopped).await;
        };
        states.map(farewell).collect()
    }

    /// The status that an AttacherConfig should show after `known`, and what of it does not depend on that.
    pub fn status(
        &self,
        name: &str,
        generation: Option<i64>,
        problem: Option<&Problem>,
        holder: &str,
        known: &AttacherConfigStatus,
    ) -> (AttacherConfigStatus, AttacherConfigStatus) {
        let running = self.running.get(name);
        let driver = running.map(|running| running.status.borrow().clone());
        let plugin = driver.as_ref().and_then(|driver| driver.plugin.as_ref());
        let store = &self.context.store;
        let counts = plugin.map(|plugin| store.counts(&plugin.name)).unwrap_or_default();
        let pending = counts.attaching + counts.detaching > 0;
        let oldest = plugin
            .filter(|_| pending)
            .and_then(|plugin| store.oldest_pending(&plugin.name));
        let queue = running.and_then(|running| running.queue.lock().clone());
        let failing = queue.map_or(0, |queue| queue.stats().lanes.iter().map(|lane| lane.failing).sum());
        let insight = plugin.and_then(|plugin| self.insights.summary(&plugin.name));
        // What was attached or detached since the last look is not shown as stuck.
        let mut stuck = insight.iter().flat_map(|insight| &insight.stuck);
        let stuck = stuck.find(|stuck| store.is_pending(&stuck.name, &stuck.uid));
        let facts = Facts {
            insight: insight.as_deref(),
            stuck,
            generation,
            holder,
            driver: driver.as_ref(),
            problem,
            counts,
            failing,
            oldest: oldest.as_deref(),
            saturation: running.map(|running| &running.saturation),
        };
        let nothing = AttacherConfigStatus::default();
        (
            status::status(&facts, known, clock::now()),
            status::status(&facts, &nothing, Timestamp::UNIX_EPOCH),
        )
    }
}
