//! What provisioning does for one driver, from the first handshake to the end of the driver.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::api::validated::DriverConfig;
use crate::attempt;
use crate::cache::Registration;
use crate::clock;
use crate::context::{DriverContext, SharedContext, provisioner_facts};
use crate::decide::DriverFacts;
use crate::deletion;
use crate::key::{ClaimKey, WorkKey};
use crate::lanes::{LANE_NAMES, limits};
use crate::nodes::DriverNodes;
use crate::open_calls::OpenCalls;
use crate::provision::RolePhase;
use crate::queue::{Backoff, Queue, QueueLimits, Run, RunResult};
use crate::runtime::queue_metrics::LaneNames;
use crate::runtime::secret_waits::SecretWaits;
use crate::runtime::{Engine, EnqueueCause, Start, Work, Workplace, backoff};
use crate::telemetry::Tracer;
use crate::telemetry::lifecycle::LifecycleOutcome;
use crate::telemetry::names::QUEUE_UNSAVED_VOLUMES;
use crate::traces::{Lifecycle, NOT_PROVISIONED, describe, describe_volume};
use crate::unsaved::UnsavedVolumes;

/// How long the end of a role waits for markers that go.
const MARKERS_OFF_WITHIN: Duration = Duration::from_secs(5);
/// How often it is looked whether all keys were handed out.
const HANDED_OUT_INTERVAL: Duration = Duration::from_millis(20);

/// Takes over the work of a driver; none when another engine already does.
pub(crate) fn start(context: SharedContext, start: Start, open_calls: Arc<OpenCalls>) -> Option<Engine<DriverContext>> {
    context.metrics.init_provisioning(&start.facts.name);
    let place = Workplace::new::<DriverContext>(start, &context.metrics);
    let name = &place.facts.name;
    let requests = place.requests(context.requests);
    let work = Arc::new(DriverContext {
        driver: provisioner_facts(&place.facts),
        // Of the engine and not of the process: a late write of an engine that has ended must not meet a marker of the next one.
        identity: identity(name).into(),
        secrets: SecretWaits::new(place.queue.clone(), EnqueueCause::Secret),
        nodes: DriverNodes::new(name.clone(), context.nodes.nodes().clone()),
        served: false.into(),
        stopping: false.into(),
        away: false.into(),
        epoch: 0.into(),
        open_calls,
        left_open: Arc::default(),
        unsaved: UnsavedVolumes::new(context.metrics.queue_counts(name, QUEUE_UNSAVED_VOLUMES)),
        context: SharedContext { requests, ..context },
        place,
    });
    let registration = work.context.store.register(work.clone())?;
    work.open_calls.hand_over(&work);
    work.context.store.tell_classes(&*work);
    work.served.store(work.role() == RolePhase::Serving, Ordering::Relaxed);
    work.enqueue_all(EnqueueCause::Resync);
    Some(Engine::start(work, registration))
}

/// As external-provisioner has it: the start in milliseconds, a random number, the driver.
fn identity(driver: &str) -> String {
    let (started, random) = (clock::now().as_millisecond(), fastrand::u32(..));
    format!("{started}-{random}-{driver}")
}

impl Work for DriverContext {
    type Key = WorkKey;
    type Guards = Registration;

    const LANE_NAMES: LaneNames = LANE_NAMES;

    fn limits(config: &DriverConfig, _: &DriverFacts) -> Option<(QueueLimits, Backoff)> {
        let settings = config.provisioning.as_ref()?;
        Some((limits(settings), backoff(&settings.backoff)))
    }

    async fn run(&self, run: &Run<WorkKey>) -> RunResult {
        match &run.key {
            WorkKey::Claim(key) => {
                let result = attempt::run(self, run, key).await;
                if matches!(result, RunResult::FailedWith { .. }) {
                    self.tell_left(key);
                }
                result
            }
            WorkKey::Volume(key) => deletion::run(self, run, key).await,
        }
    }

    /// No further call is begun; what needs none goes on, for as long as the driver is away.
    fn pause(&self) {
        self.away.store(true, Ordering::Relaxed);
    }

    fn resume(&self, restores: bool) {
        self.away.store(false, Ordering::Relaxed);
        if restores {
            self.epoch.fetch_add(1, Ordering::Relaxed);
            self.queue.wake_all(EnqueueCause::Retry.into());
        }
    }

    fn reconfigured(&self, _: &DriverConfig) {
        self.epoch.fetch_add(1, Ordering::Relaxed);
        self.queue.wake_all(EnqueueCause::Config.into());
        let serves = self.role() == RolePhase::Serving;
        let was_on = self.served.swap(serves, Ordering::Relaxed);
        if was_on && !serves {
            self.mark_under_way();
        }
        // Nothing is remembered of claims that were looked at while the role was off.
        self.enqueue_all(if serves && !was_on {
            EnqueueCause::Resync
        } else {
            EnqueueCause::Config
        });
    }

    /// Every claim has its turn once more, without a call: the markers that no open call needs go. Whether the role ends for
    /// good is not known here: the section may be removed, or the process be the last one of the operator. For the next leader a claim
    /// without a marker is one less that it has to call for. It waits for that no longer than [`MARKERS_OFF_WITHIN`], and what arrives
    /// late is refused, as its own marker is another one. Who lost the Lease writes nothing.
    async fn finish(&self, _: &mut Registration) {
        self.stopping.store(true, Ordering::Relaxed);
        if self.client().may_start() {
            self.mark_under_way();
            run_all_once(&self.queue).await;
        }
    }

    fn finished(&self) {
        self.open_calls.keep(self);
        self.unsaved.end();
    }

    /// The traces of what is pending end.
    fn end_pending(&self) -> Box<dyn FnOnce() + Send> {
        let (queue, left_open, context) = (self.queue.clone(), self.left_open.clone(), self.context.clone());
        let (facts, tracer) = (self.facts.clone(), self.tracer());
        Box::new(move || {
            let mut open = std::mem::take(&mut *left_open.lock());
            queue.remember_all(|key, memory| {
                let lifecycle = memory.progress.open_lifecycle().cloned();
                memory.progress.lifecycle = None;
                open.extend(lifecycle.map(|lifecycle| (key.clone(), lifecycle)));
            });
            abandon(open, &tracer, &facts.name, &context);
        })
    }
}

impl DriverContext {
    /// Calls that are under way and have no marker get one.
    fn mark_under_way(&self) {
        self.queue.remember_all(|_, memory| memory.changed.notify_one());
    }

    /// Whether a claim whose run failed keeps its marker: at the end of the role there is no other run.
    pub(crate) fn leaves_marker(&self, key: &ClaimKey) -> bool {
        let is_marked = || {
            let claim = self.context.store.claim(key).here();
            claim.is_some_and(|claim| claim.marker_at.is_some())
        };
        self.stopping.load(Ordering::Relaxed) && is_marked()
    }

    /// A claim whose last run at the end of the role failed may keep its marker, which nobody takes off before the next
    /// engine of the driver. What failed was told before, such as a permission that went with the section.
    fn tell_left(&self, key: &ClaimKey) {
        if self.leaves_marker(key) {
            let (driver, claim) = (&*self.facts.name, &*key.name);
            tracing::warn!(
                driver,
                PersistentVolumeClaim = claim,
                "provisioning ends, and the marker may be left on the PersistentVolumeClaim"
            );
        }
    }
}

/// Hands out every key that waits, whatever it waits for, and returns when that is done or takes too long.
async fn run_all_once(queue: &Queue<WorkKey>) {
    // None of these runs makes a call, and none of them waits for one.
    queue.set_limits(QueueLimits::default());
    queue.wake_all(EnqueueCause::Resync.into());
    queue.resume();
    let handed_out = async {
        while queue.stats().lanes.iter().any(|lane| lane.ready > 0) {
            tokio::time::sleep(HANDED_OUT_INTERVAL).await;
        }
    };
    if tokio::time::timeout(MARKERS_OFF_WITHIN, handed_out).await.is_err() {
        tracing::warn!("markers are left on PersistentVolumeClaims, as there was no time to take all of them off");
    }
}

/// Ends life cycles that nobody goes on with: the driver is not provisioned for any more.
fn abandon(open: BTreeMap<WorkKey, Lifecycle>, tracer: &Tracer, driver: &str, context: &SharedContext) {
    let outcome = LifecycleOutcome::Aborted(NOT_PROVISIONED);
    for (key, lifecycle) in open {
        lifecycle.end(tracer, outcome, None, |root| match &key {
            WorkKey::Claim(key) => {
                if let Some(claim) = context.store.claim(key).here() {
                    describe(root, driver, &claim);
                }
            }
            WorkKey::Volume(key) => {
                let volume = context.volumes.volume(&key.name).here();
                if let Some(volume) = volume.filter(|volume| *volume.uid == *key.uid) {
                    describe_volume(root, driver, &volume);
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::CREATE;
    use crate::queue::{Builder, Item, LaneLimits};
    use crate::runtime::runner;
    use csi_attacher_base::schedule;
    use parking_lot::Mutex;

    /// Held keys, those of a paused queue, and those above the limits have their turn; and the end of the role waits for none of them long.
    #[tokio::test(start_paused = true)]
    async fn every_key_that_waits_runs_once_more_before_the_end() {
        let one = LaneLimits {
            max_running: 1,
            rate_limited: true,
        };
        let limits = QueueLimits {
            lanes: vec![one],
            per_group: 1,
            ..QueueLimits::default()
        };
        let queue: Queue<WorkKey> = Builder {
            limits,
            ..Builder::new(Backoff::default())
        }
        .build();
        let runs = Arc::new(Mutex::new(Vec::new()));
        let (seen, ends) = (runs.clone(), Arc::new(std::sync::atomic::AtomicBool::new(false)));
        let is_ending = ends.clone();
        let runner = schedule::spawn(runner::run(queue.clone(), move |run| {
            let WorkKey::Claim(key) = &run.key else {
                panic!("no claim")
            };
            seen.lock().push(key.uid.clone());
            let uid = key.uid.clone();
            let is_ending = is_ending.load(Ordering::Relaxed);
            async move {
                if is_ending {
                    return RunResult::Done;
                }
                if uid.as_ref() == "calls" {
                    std::future::pending::<()>().await;
                }
                RunResult::RequeueAfter(Duration::from_mins(10))
            }
        }));
        let add = |uid: &str| {
            let key = WorkKey::Claim(ClaimKey {
                uid: uid.into(),
                name: "web/data".into(),
            });
            queue.add(Item::new(key, CREATE, 0).in_group("fast"));
        };
        add("held");
        tokio::time::sleep(Duration::from_secs(1)).await;
        add("calls");
        tokio::time::sleep(Duration::from_secs(1)).await;
        add("waits");
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(runs.lock().len(), 2);
        queue.pause();
        ends.store(true, Ordering::Relaxed);
        let started = tokio::time::Instant::now();
        run_all_once(&queue).await;
        queue.close();
        assert!(started.elapsed() < MARKERS_OFF_WITHIN);
        let mut ended = runs.lock().split_off(2);
        ended.sort();
        assert_eq!(ended, [Arc::<str>::from("held"), Arc::<str>::from("waits")]);
        runner.abort();
    }
}
