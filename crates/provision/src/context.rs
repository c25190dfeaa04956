//! What all drivers share, and what every attempt of one driver shares.

use parking_lot::Mutex;
use std::collections::HashSet;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::api::validated::Provisioning;
use crate::apiserver::Requests;
use crate::cache::{ClaimRoute, Store};
use crate::clock;
use crate::csi::Call;
use crate::decide::DriverFacts;
use crate::deprecated;
use crate::events::EventRecorder;
use crate::key::{ClaimCause, ClaimKey, ClaimState, KeyMemory, VolumeKey, WorkKey};
use crate::lanes::{lane_of, place_of};
use crate::look::Look;
use crate::nodes::NodeWatch;
use crate::objects::{Claim, ClaimReference, StorageClass, StorageClassWire, Volume};
use crate::open_calls::OpenCalls;
use crate::provision::attempt::{ClaimView, fingerprint, may_call};
use crate::provision::{
    Creation, ProvisionPolicy, ProvisionerCapabilities, ProvisionerFacts, RolePhase, Seen, VolumeReason, deletion,
    is_own_claim, is_own_volume, is_released, needs_claim_work, needs_volume_work,
};
use crate::queue::Item;
use crate::runtime::Workplace;
use crate::runtime::secret_waits::SecretWaits;
use crate::telemetry::metrics::{Metrics, QueueCounts};
use crate::telemetry::{Redaction, Span, Tracer};
use crate::topology_waits::TopologyWaits;
use crate::traces::LeftOpen;
use crate::volumes::VolumeCache;
use csi_attacher_model::attempt::CallEnd;

/// What all drivers share.
#[derive(Clone)]
pub struct SharedContext {
    /// The observed claims and classes.
    pub store: Store,
    /// The observed PersistentVolumes.
    pub volumes: Arc<dyn VolumeCache>,
    /// The observed nodes, for drivers with topology.
    pub nodes: Arc<NodeWatch>,
    /// Requests to the API server.
    pub requests: Requests,
    /// Events.
    pub events: EventRecorder,
    /// Metrics.
    pub metrics: Metrics,
    /// Traces.
    pub tracer: Tracer,
    /// How long the outcome of a call has to be unknown before a person may let a claim go.
    pub stuck_after: Duration,
}

/// What a provisioner has to know of a driver.
pub(crate) fn provisioner_facts(facts: &DriverFacts) -> ProvisionerFacts {
    let creates = facts.capabilities.create_delete_volume;
    ProvisionerFacts {
        name: facts.name.clone(),
        // Slice P5.
        in_tree: None,
        capabilities: ProvisionerCapabilities {
            create_delete_volume: creates,
            // Of a driver that makes no volumes no node is asked for.
            accessibility_constraints: creates && facts.capabilities.accessibility_constraints,
            single_node_multi_writer: facts.capabilities.single_node_multi_writer,
        },
    }
}

/// The parts of a driver that outlive an attempt, and the settings in use.
pub struct DriverContext {
    pub(crate) place: Workplace<WorkKey>,
    pub(crate) context: SharedContext,
    pub(crate) driver: ProvisionerFacts,
    /// Which engine writes: its markers and volumes name it.
    pub(crate) identity: Arc<str>,
    pub(crate) secrets: SecretWaits<WorkKey>,
    pub(crate) topology: TopologyWaits,
    /// Whether the role was on when the settings were looked at last.
    pub(crate) served: AtomicBool,
    pub(crate) stopping: AtomicBool,
    /// Whether the connection is lost.
    pub(crate) away: AtomicBool,
    /// Counts changes of the settings and of the connection.
    pub(crate) epoch: AtomicU64,
    /// Where what is known of open calls is kept at the end.
    pub(crate) open_calls: Arc<OpenCalls>,
    /// Traces of what has no attempt any more.
    pub(crate) left_open: Arc<LeftOpen>,
    /// Volumes that are to be saved.
    pub(crate) unsaved: UnsavedVolumes,
}

/// The claims whose volume is created, and that no PersistentVolume is known to name yet: they are shown as the queue that
/// external-provisioner has for them.
pub(crate) struct UnsavedVolumes {
    /// None once the engine has ended.
    claims: Mutex<Option<HashSet<ClaimKey>>>,
    series: QueueCounts,
}

impl UnsavedVolumes {
    /// None yet.
    pub fn new(series: QueueCounts) -> Self {
        let claims = Mutex::new(Some(HashSet::new()));
        Self { claims, series }
    }

    /// Whether the volume of a claim is one of them, from now on.
    pub fn set(&self, claim: &ClaimKey, is_unsaved: bool) {
        let mut claims = self.claims.lock();
        let Some(claims) = &mut *claims else { return };
        let is_new = if is_unsaved {
            claims.insert(claim.clone())
        } else {
            claims.remove(claim)
        };
        if !is_new {
            return;
        }
        if is_unsaved {
            self.series.added();
        }
        self.series.depth(claims.len());
    }

    /// One of them could not be saved, and is saved again.
    pub fn retried(&self) {
        self.series.retried();
    }

    /// Nobody saves them here any more; what an attempt says that is cut off late counts no more.
    pub fn end(&self) {
        *self.claims.lock() = None;
        self.series.depth(0);
    }
}

impl Deref for DriverContext {
    type Target = Workplace<WorkKey>;

    fn deref(&self) -> &Self::Target {
        &self.place
    }
}

impl DriverContext {
    /// The settings of provisioning, and the policy by them; none when the section was removed.
    pub(crate) fn provisioning(&self) -> Option<(Provisioning, ProvisionPolicy)> {
        let provisioning = self.config.borrow().provisioning.clone()?;
        let policy = provisioning.policy(&self.config_name, &self.identity);
        Some((provisioning, policy))
    }

    /// The tracer with the driver's own settings, as they are now.
    pub(crate) fn tracer(&self) -> Tracer {
        let config = self.config.borrow();
        let redact = config.tracing.redact;
        let tracer = self.context.tracer.sampling(config.tracing.sampling_rate_per_million);
        tracer.redacting(Redaction::new(redact.volume_id, redact.names))
    }

    /// What an attempt for a claim or a PersistentVolume sees, by the settings as they are now; none when the section was removed.
    pub(crate) fn look<'c, K>(&'c self, key: &'c K) -> Option<Look<'c, K>> {
        let (provisioning, policy) = self.provisioning()?;
        Some(Look {
            work: self,
            key,
            provisioning,
            policy,
            traceparent: None,
        })
    }

    /// What the role is about to do.
    pub(crate) fn role(&self) -> RolePhase {
        if self.stopping.load(Ordering::Relaxed) {
            return RolePhase::Stopping;
        }
        let config = self.config.borrow();
        let is_enabled = config.provisioning.as_ref().is_some_and(|settings| settings.enabled);
        if is_enabled && !config.leaving {
            RolePhase::Serving
        } else {
            RolePhase::Disabled
        }
    }

    /// Whether the driver is away, so that nothing is called.
    pub(crate) fn is_away(&self) -> bool {
        self.away.load(Ordering::Relaxed)
    }

    /// Calls the driver behind the fence.
    pub(crate) async fn call<C: Call>(&self, call: &C, deadline: Duration, span: &Span) -> Result<C::Answer, CallEnd> {
        Ok(self.client().call(call, deadline, span).await?)
    }

    /// Has what first calls are made from listed again where it is not watched: a watch that gets no answer does not break.
    pub(crate) fn list_inputs_again(&self) {
        const WHY: &str = "a volume is to be created, and what it is created from is not watched";
        self.context.store.lists().doubt_unwatched::<StorageClassWire>(WHY);
        if self.driver.capabilities.accessibility_constraints {
            self.topology.nodes.doubt_unwatched(WHY);
        }
    }

    /// Whether a claim has work under way that may have made a volume.
    pub(crate) fn may_make_volume(&self, claim: &ClaimReference) -> bool {
        let key = WorkKey::Claim(ClaimKey::named_by(claim));
        let may = self.queue.remember(&key, |memory| memory.claim.known.holds_volume());
        may == Some(true)
    }

    /// The name of a volume with this ID that was created for another claim than `except`, and that no PersistentVolume is known to name.
    pub(crate) fn created_for_another(&self, handle: &str, except: Option<&ClaimKey>) -> Option<Arc<str>> {
        let mut found = None;
        self.queue.remember_all(|key, memory| {
            if let WorkKey::Claim(other) = key
                && Some(other) != except
                && let Some(Creation::Created(volume)) = memory.claim.known.creation()
                && *volume.handle == *handle
            {
                found = Some(Arc::from(&*volume.plan.name));
            }
        });
        found
    }

    /// Enqueues everything that there may be to do, as when the role begins.
    pub(crate) fn enqueue_all(&self, cause: ClaimCause) {
        self.context.store.enqueue_open(self, cause);
        self.context
            .volumes
            .for_each(&mut |volume| self.enqueue_volume(volume, cause));
    }

    /// Enqueues a PersistentVolume if there may be something to do about it, or if it is waited for.
    fn enqueue_volume(&self, volume: &Arc<Volume>, cause: ClaimCause) {
        let of = VolumeKey::of(volume);
        let key = WorkKey::Volume(of.clone());
        if !needs_volume_work(volume, &self.driver) {
            self.queue.wake(&key, cause.into());
            return;
        }
        let Some(look) = self.look(&of) else { return };
        let (retry, now) = (volume.lifecycle.retry_now.as_deref(), clock::now());
        let is_asked = self.queue.remember(&key, |memory| memory.retries.is_asked(retry, now));
        let is_asked = is_asked.unwrap_or_default();
        let cause = if is_asked { ClaimCause::Retry } else { cause };
        let item = Item::new(key, lane_of(volume), deletion::fingerprint(&look, volume));
        self.add(item.because(cause.into()), is_asked, |memory| {
            memory.retries.is_asked(retry, now);
        });
    }

    /// Enqueues the PersistentVolume that was made for a claim which is not, or not any more, bound to it: that may have been what it
    /// waits for.
    fn enqueue_made(&self, claim: &Claim, cause: ClaimCause) {
        let Some((_, policy)) = self.provisioning() else { return };
        let Ok(name) = policy.naming().volume_name(&claim.uid) else {
            return;
        };
        if claim.volume_name.as_deref() != Some(&*name)
            && let Seen::Here(volume) = self.context.volumes.volume(&name)
        {
            self.enqueue_volume(&volume, cause);
        }
    }

    /// Queues an object. A person who asks for a retry is heard whatever it waits for; `remember` hears of `retry-now` as well, as what the
    /// first look sees is nothing new.
    fn add(&self, item: Item<WorkKey>, is_asked: bool, remember: impl FnOnce(&mut KeyMemory)) {
        let key = item.key.clone();
        self.queue.add_and_remember(item, remember);
        if is_asked {
            self.queue.wake(&key, ClaimCause::Retry.into());
        }
    }

    /// Goes on with what the last engine of this process knew of the open call for a claim, where nobody has called since.
    pub(crate) fn go_on(&self, key: &ClaimKey, state: ClaimState, writer: &str) {
        let Seen::Here(claim) = self.context.store.claim(key) else {
            return;
        };
        let state = state.continued(&claim, &self.facts.name, writer);
        let (Some(state), Some(look)) = (state, self.look(key)) else {
            return;
        };
        let item = item_of(&look, &claim, state.known.creation(), ClaimCause::Resync);
        self.queue.add_and_remember(item, |memory| memory.claim = state);
    }
}

/// What is queued for a claim.
fn item_of(look: &Look<'_, ClaimKey>, claim: &Claim, known: Option<&Creation>, cause: ClaimCause) -> Item<WorkKey> {
    let (lane, group) = place_of(claim, may_call(look, claim, known));
    let key = WorkKey::Claim(look.key.clone());
    let item = Item {
        group,
        ..Item::new(key, lane, fingerprint(look, claim))
    };
    item.because(cause.into())
}

impl ClaimRoute for DriverContext {
    fn driver(&self) -> &Arc<str> {
        &self.facts.name
    }

    fn changed(&self, claim: &Claim, cause: ClaimCause) {
        if claim.volume_name.is_some() && is_own_claim(claim, &self.driver) {
            self.enqueue_made(claim, cause);
        }
        let of = ClaimKey::of(claim);
        let key = WorkKey::Claim(of.clone());
        if !needs_claim_work(claim, &self.driver) && self.queue.remember(&key, |_| ()).is_none() {
            return;
        }
        let Some(look) = self.look(&of) else { return };
        let now = look.now();
        // It comes with all the others, as when the role begins or was switched on: others may have served it until now.
        let was_there = cause == ClaimCause::Resync;
        let remembered = self.queue.remember(&key, |memory| {
            let is_asked = memory.retries.is_asked(claim.retry_now.as_deref(), now);
            (is_asked, memory.claim.known.creation().cloned())
        });
        let (is_asked, known) = remembered.unwrap_or_default();
        let cause = if is_asked { ClaimCause::Retry } else { cause };
        let item = item_of(&look, claim, known.as_ref(), cause);
        self.add(item, is_asked, |memory| {
            memory.retries.is_asked(claim.retry_now.as_deref(), now);
            if was_there {
                memory.claim.known.expect_calls_of_others();
            }
        });
        if claim.release.is_some() {
            self.queue.remember(&key, |memory| memory.changed.notify_one());
        }
    }

    /// PersistentVolumes that record no Secret of theirs are deleted with that of the class.
    fn class_changed(&self, class: Option<&StorageClass>) {
        if let Some(told) = class.and_then(|class| deprecated::event(&self.driver.name, class)) {
            self.context.events.record(told);
        }
        let mut waiting = Vec::new();
        self.queue.remember_all(|key, memory| {
            if memory.waits() == Some(VolumeReason::SecretForbidden) {
                waiting.push(key.clone());
            }
        });
        // In an order, so that two processes over the same objects do the same.
        waiting.sort();
        for key in &waiting {
            self.queue.wake(key, ClaimCause::Class.into());
        }
    }

    /// Whatever was begun for it is finished, and its volume may be deleted now.
    fn gone(&self, claim: &Claim) {
        let key = WorkKey::Claim(ClaimKey::of(claim));
        self.queue.wake(&key, ClaimCause::Delete.into());
        let bound_to = claim.volume_name.as_ref().map(|name| self.context.volumes.volume(name));
        if let Some(Seen::Here(volume)) = bound_to {
            self.enqueue_volume(&volume, ClaimCause::Delete);
        }
        self.enqueue_made(claim, ClaimCause::Delete);
    }

    /// Others with its handle may have waited for it.
    fn volume_changed(&self, volume: &Arc<Volume>) {
        let source = volume.spec.csi().filter(|source| *source.driver == *self.facts.name);
        // Almost every change is of a volume of another driver.
        if source.is_none() && !is_own_volume(volume, &self.driver) {
            return;
        }
        self.enqueue_volume(volume, ClaimCause::Volume);
        let Some(source) = source else { return };
        let volumes = &self.context.volumes;
        if let Seen::Here(_) = volumes.handle_owner(&self.facts.name, &source.handle, &volume.name) {
            // Thousands may share a handle: those that are in use wait for nobody.
            let sharers = volumes.sharers(&self.facts.name, &source.handle, &volume.name);
            for other in sharers.iter().filter(|other| is_released(other, &self.driver)) {
                self.enqueue_volume(other, ClaimCause::Volume);
            }
        }
    }

    fn topology_changed(&self, claims: &[Arc<Claim>]) {
        if !self.driver.capabilities.accessibility_constraints {
            return;
        }
        for claim in claims {
            self.changed(claim, ClaimCause::Node);
        }
        for key in self.topology.waiting() {
            self.queue.wake(&key, ClaimCause::Node.into());
        }
    }
}
