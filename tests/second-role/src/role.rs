//! What is done about the claims.

use std::sync::Arc;
use std::time::Duration;

use csi_attacher_csi::Probe;
use csi_attacher_kube::apiserver::Requests;
use csi_attacher_kube::lease::Term;
use csi_attacher_kube::reflect::{CacheRecord, Kind, Lists, ObjectTable, Origin, Seen, Sink};
use csi_attacher_model::api::DriverConfig;
use csi_attacher_model::decide::DriverFacts;
use csi_attacher_model::objects::ResourceVersion;
use csi_attacher_runtime::fence::FencedClient;
use csi_attacher_runtime::{DriverStateSender, Engine, Refusal, Role, Start, runner};
use csi_attacher_telemetry::{Metrics, Span};
use csi_attacher_workqueue::{Backoff, Item, Lane, Queue, RunResult};
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use crate::kind::{Claim, ClaimWire};

/// The only lane.
const CLAIMS: Lane = Lane::new(0);
const PROBE_DEADLINE: Duration = Duration::from_secs(5);

/// Counts claims of one storage class, and calls Probe for each that appears.
#[derive(Clone)]
pub struct ClaimRole(Arc<Shared>);

struct Shared {
    class: Arc<str>,
    lists: Lists,
    claims: Mutex<ObjectTable<Claim>>,
    queue: Mutex<Option<Queue<Arc<str>>>>,
    vacancies: watch::Sender<()>,
    requests: Requests,
    metrics: Metrics,
}

impl ClaimRole {
    /// For claims of this class.
    pub fn new(class: &str, requests: Requests, metrics: Metrics) -> Self {
        Self(Arc::new(Shared {
            class: class.into(),
            lists: Lists::new(&[ClaimWire::PLURAL], true),
            claims: Mutex::default(),
            queue: Mutex::default(),
            vacancies: watch::Sender::default(),
            requests,
            metrics,
        }))
    }

    /// How many claims of the class there are.
    pub fn count(&self) -> usize {
        let claims = self.0.claims.lock();
        claims.values().filter(|claim| self.is_mine(claim)).count()
    }

    fn is_mine(&self, claim: &Claim) -> bool {
        claim.class.as_deref() == Some(&*self.0.class)
    }

    fn enqueue(&self, claim: &Claim) {
        if let Some(queue) = self.0.queue.lock().as_ref().filter(|_| self.is_mine(claim)) {
            queue.add(Item::new(claim.name().clone(), CLAIMS, 0));
        }
    }
}

impl Sink<ClaimWire> for ClaimRole {
    const CONSEQUENCE: &'static str = "until then no claim is counted";

    fn lists(&self) -> &Lists {
        &self.0.lists
    }

    fn start_list(&self) {
        self.0.claims.lock().start_list();
    }

    fn take_copy(&self, claim: Claim, origin: Origin) {
        let change = self.0.claims.lock().take_copy(claim, origin);
        if let Some(change) = change.filter(|change| change.previous.is_none()) {
            self.enqueue(&change.current);
        }
    }

    fn finish_list(&self, seen: &Seen) {
        let mut claims = self.0.claims.lock();
        for gone in claims.finish_list(seen) {
            claims.remove(gone.name(), gone.uid());
        }
    }

    fn take_deletion(&self, claim: &Claim) {
        let mut claims = self.0.claims.lock();
        claims.count_deletion(claim.version());
        claims.remove(claim.name(), claim.uid());
    }

    fn newest(&self) -> ResourceVersion {
        self.0.claims.lock().newest()
    }
}

impl Role for ClaimRole {
    type Engine = ClaimEngine;

    fn lists(&self) -> &Lists {
        &self.0.lists
    }

    fn requests(&self) -> &Requests {
        &self.0.requests
    }

    fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    fn needs_lists_first(&self, _: &DriverFacts) -> bool {
        false
    }

    async fn admit(&self, facts: &DriverFacts, _: &DriverConfig, _: &str) -> Result<DriverFacts, Refusal> {
        Ok(facts.clone())
    }

    fn start(&self, start: Start) -> Result<ClaimEngine, Refusal> {
        let queue = Queue::new(Backoff::default());
        *self.0.queue.lock() = Some(queue.clone());
        let known: Vec<_> = self.0.claims.lock().values().cloned().collect();
        for claim in &known {
            self.enqueue(claim);
        }
        let work = Arc::new(Work {
            client: RwLock::new(start.client),
            facts: start.facts,
            publisher: start.publisher,
            queue: queue.clone(),
        });
        let runs = work.clone();
        let runner = tokio::spawn(runner::run(queue, move |_| {
            let work = runs.clone();
            async move { work.probe().await }
        }));
        Ok(ClaimEngine {
            work,
            runner: AbortOnDropHandle::new(runner),
        })
    }

    fn vacancies(&self) -> watch::Receiver<()> {
        self.0.vacancies.subscribe()
    }

    fn ended(&self, _: &DriverStateSender) {
        *self.0.queue.lock() = None;
        self.0.vacancies.send_replace(());
    }
}

/// Works for one driver.
pub struct ClaimEngine {
    work: Arc<Work>,
    runner: AbortOnDropHandle<()>,
}

struct Work {
    client: RwLock<FencedClient>,
    facts: DriverFacts,
    publisher: DriverStateSender,
    queue: Queue<Arc<str>>,
}

impl Work {
    /// Calls Probe.
    async fn probe(&self) -> RunResult {
        let client = self.client.read().clone();
        let answer = client.call(&Probe, PROBE_DEADLINE, &Span::disabled()).await;
        self.publisher.attempt_ended();
        match answer {
            Ok(true) => RunResult::Done,
            Ok(false) | Err(_) => RunResult::Failed,
        }
    }
}

impl Engine for ClaimEngine {
    fn facts(&self) -> &DriverFacts {
        &self.work.facts
    }

    fn term(&self) -> Option<Term> {
        self.work.client.read().term().cloned()
    }

    fn pause(&self) {
        self.work.queue.pause();
    }

    fn resume(&self, client: FencedClient, _: bool) {
        *self.work.client.write() = client;
        self.work.queue.resume();
    }

    fn reconfigure(&self, _: &DriverConfig) {}

    async fn doubts_admission(&self) {
        std::future::pending::<()>().await;
    }

    fn is_admitted_otherwise(&self, _: &DriverConfig) -> bool {
        false
    }

    async fn drain(self) {
        self.work.queue.close();
        // It ends when the last run has; one that was cancelled has ended as well.
        drop(self.runner.await);
    }

    fn drained(&self) -> impl Future<Output = ()> + Send + 'static {
        let queue = self.work.queue.clone();
        async move { queue.drained().await }
    }

    fn end_pending(&self) -> Box<dyn FnOnce() + Send> {
        Box::new(|| {})
    }
}
