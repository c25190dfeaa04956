//! What a task runs for its driver.

use std::sync::Arc;

use tokio::sync::watch;

use crate::api::condition::ConditionReason;
use crate::api::names::{finalizer_name, lease_name};
use crate::api::validated::DriverConfig;
use crate::apiserver::Requests;
use crate::decide::DriverFacts;
use crate::engine::{Engine, Work};
use crate::fence::FencedClient;
use crate::reflect::Lists;
use crate::state::DriverStateSender;
use crate::telemetry::Metrics;

/// Why a role does not work for a driver, until something changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// For the condition Stalled.
    pub reason: ConditionReason,
    /// What is wrong, and how to fix it.
    pub message: String,
}

/// What an engine starts with.
pub struct Start {
    /// Name of the AttacherConfig.
    pub name: Arc<str>,
    /// Its settings; each run reads them anew.
    pub config: watch::Receiver<Arc<DriverConfig>>,
    /// The driver, as [`Role::admit`] has it.
    pub facts: DriverFacts,
    /// Calls the driver in the term of its Lease.
    pub client: FencedClient,
    /// Where the state goes.
    pub status: DriverStateSender,
}

/// Work that is done for drivers: one role is given to the tasks of all of them.
pub trait Role: Clone + Send + Sync + 'static {
    /// What is done for one driver.
    type Work: Work;

    /// Which lists of what it watches are complete, of the kinds of which anything is read for this driver.
    fn lists(&self, facts: &DriverFacts) -> Lists;

    /// Lists that are needed besides for this driver; they are waited for before its Lease is competed for. By default none are.
    fn lists_of(&self, _facts: &DriverFacts) -> Option<Lists> {
        None
    }

    /// Lists of others that what is proven for this driver rests on besides. They are listed again as well once its Lease is held, but for
    /// what the API server forbids: by that nothing is proven. By default there are none.
    fn proofs_of(&self, _facts: &DriverFacts) -> Vec<Lists> {
        Vec::new()
    }

    /// Requests to the API server.
    fn requests(&self) -> &Requests;

    /// Metrics.
    fn metrics(&self) -> &Metrics;

    /// Where it is shown whether a driver is connected, and which it is; none when another role of the process shows that. Who shows a
    /// driver removes its series when the engine has ended; another role removes its own in [`Role::ended`].
    fn driver_metrics(&self) -> Option<&Metrics> {
        Some(self.metrics())
    }

    /// The name of the Lease that is competed for before a driver is worked for.
    fn lease(&self, driver: &str) -> String {
        lease_name(driver)
    }

    /// The finalizer that it puts on objects of this driver and of no other; none when it has no such.
    fn finalizer(&self, driver: &str) -> Option<String> {
        Some(finalizer_name(driver))
    }

    /// Whether the objects must show something before the Lease of this driver is competed for. If not, everything is listed anew once
    /// the Lease is held, and the first parts of lists are enough.
    fn needs_lists_first(&self, facts: &DriverFacts) -> bool;

    /// What a driver that answered is worked for with; refused when it must not be.
    fn admit(
        &self,
        facts: &DriverFacts,
        config: &DriverConfig,
        name: &str,
    ) -> impl Future<Output = Result<DriverFacts, Refusal>> + Send;

    /// Takes over the work of a driver; refused when another engine of the process already does.
    fn start(&self, start: Start) -> Result<Engine<Self::Work>, Refusal>;

    /// Told when an engine of the process has ended.
    fn vacancies(&self) -> watch::Receiver<()>;

    /// The engine of a driver has ended: what the state shows of its work is over.
    fn ended(&self, status: &DriverStateSender);
}
