//! What all drivers share, and what every attempt of one driver shares.

use std::cell::LazyCell;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::api::validated::Provisioning;
use crate::apiserver::Requests;
use crate::cache::{ClaimRoute, Store};
use crate::clock;
use crate::decide::{Capabilities, DriverFacts};
use crate::events::{EventRecorder, InvolvedObject, NewEvent, of_class};
use crate::key::{ClaimKey, ClaimState, KeyMemory, VolumeKey, WorkKey};
use crate::lanes::{lane_of, place_of};
use crate::look::Look;
use crate::nodes::{DriverNodes, NodeWatch};
use crate::objects::{Claim, StorageClass, StorageClassWire, Volume};
use crate::open_calls::OpenCalls;
use crate::provision::attempt::{ClaimView, fingerprint, may_call};
use crate::provision::event::{ProvisionEventReason, deprecated_keys};
use crate::provision::{
    Creation, Deletion, ProvisionPolicy, ProvisionerFacts, RolePhase, Seen, VolumeReason, deletion, is_own_claim,
    is_own_volume, last_to_go, needs_claim_work, needs_volume_work,
};
use crate::queue::Item;
use crate::reflect::Sink as _;
use crate::runtime::secret_waits::SecretWaits;
use crate::runtime::{EnqueueCause, Workplace};
use crate::telemetry::Tracer;
use crate::telemetry::metrics::Metrics;
use crate::traces::LeftOpen;
use crate::unsaved::UnsavedVolumes;
use crate::volumes::VolumeCache;

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
        capabilities: Capabilities {
            // Of a driver that makes no volumes no node is asked for.
            accessibility_constraints: creates && facts.capabilities.accessibility_constraints,
            ..facts.capabilities
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
    pub(crate) nodes: DriverNodes,
    /// Whether the role was on when the settings were looked at last.
    pub(crate) served: AtomicBool,
    pub(crate) stopping: AtomicBool,
    pub(crate) away: AtomicBool,
    /// Counts changes of the settings and of the connection.
    pub(crate) epoch: AtomicU64,
    /// Where what is known of open calls is kept at the end.
    pub(crate) open_calls: Arc<OpenCalls>,
    pub(crate) left_open: Arc<LeftOpen>,
    pub(crate) unsaved: UnsavedVolumes,
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
        self.context.tracer.with_settings(&self.config.borrow().tracing)
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

    /// Records an Event on objects. No text here has a value of a Secret: those of the driver were scrubbed when they came in.
    pub(crate) fn record(
        &self,
        traceparent: Option<String>,
        reason: ProvisionEventReason,
        cause: &str,
        note: String,
        subjects: Vec<InvolvedObject>,
    ) {
        self.context.events.record(NewEvent {
            driver: self.facts.name.clone(),
            reason: reason.as_str(),
            level: reason.level(),
            cause: cause.into(),
            note,
            traceparent,
            at: clock::now(),
            subjects,
        });
    }

    /// Has what first calls are made from listed again where it is not watched: a watch that gets no answer does not break.
    pub(crate) fn list_inputs_again(&self) {
        const WHY: &str = "a volume is to be created, and what it is created from is not watched";
        self.context.store.lists().doubt_unwatched::<StorageClassWire>(WHY);
        if self.driver.capabilities.accessibility_constraints {
            self.nodes.doubt_unwatched(WHY);
        }
    }

    /// Enqueues everything that there may be to do, as when the role begins.
    pub(crate) fn enqueue_all(&self, cause: EnqueueCause) {
        self.context.store.enqueue_open(self, cause);
        self.context
            .volumes
            .for_each(&mut |volume| self.enqueue_volume(volume, cause));
    }

    /// Whether a PersistentVolume may concern the driver. Almost all are of other drivers, and nothing more is asked of those.
    fn concerns(&self, volume: &Volume) -> bool {
        let source = volume.spec.csi();
        source.is_some_and(|source| *source.driver == *self.facts.name) || is_own_volume(volume, &self.driver)
    }

    /// Enqueues a PersistentVolume if there may be something to do about it, or if it is waited for.
    fn enqueue_volume(&self, volume: &Arc<Volume>, cause: EnqueueCause) {
        if !self.concerns(volume) {
            return;
        }
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
        let cause = if is_asked { EnqueueCause::Retry } else { cause };
        let item = Item::new(key, lane_of(volume), deletion::fingerprint(&look, volume));
        self.add(item.because(cause.into()), is_asked, |memory| {
            memory.retries.is_asked(retry, now);
        });
    }

    /// As [`UnsavedVolumes::set`]. The deletion of a PersistentVolume may have waited for the claim to let go of its handle. Where several
    /// have it, they wait for each other.
    pub(crate) fn know_volume(&self, claim: &ClaimKey, known: Option<&Creation>) {
        let Some(handle) = self.unsaved.set(claim, known) else {
            return;
        };
        if let [alone] = &self.context.volumes.sharers(&self.facts.name, &handle)[..] {
            let key = WorkKey::Volume(VolumeKey::of(alone));
            self.queue.wake(&key, EnqueueCause::Volume.into());
        }
    }

    /// The PersistentVolume of this handle whose volume a DeleteVolume may be deleting: of one that is known to be deleted, what the driver
    /// answers after that is another volume.
    pub(crate) fn perhaps_deleted(&self, handle: &str) -> Option<Arc<str>> {
        let sharers = self.context.volumes.sharers(&self.facts.name, handle);
        let found = sharers.iter().find(|volume| {
            let key = WorkKey::Volume(VolumeKey::of(volume));
            let deletion = self.queue.remember(&key, |memory| memory.volume.deletion());
            deletion == Some(Deletion::Uncertain)
        });
        found.map(|volume| volume.name.clone())
    }

    /// Wakes those PersistentVolumes of a handle that may have waited for this one. Nobody can go on while one of them is not to be deleted,
    /// and the last one goes on when it is alone.
    ///
    /// Thousands may share a handle, and each changes as they go: so nothing is worked out here for each of the others, and only those are
    /// woken that can go on now.
    fn wake_sharers(&self, volume: &Volume, handle: &str) {
        let (volumes, driver) = (&self.context.volumes, &self.facts.name);
        let all = volumes.sharers(driver, handle);
        let Some(last) = last_to_go(&all, &self.driver) else {
            return;
        };
        if let [alone] = &all[..] {
            if alone.name != volume.name {
                self.enqueue_volume(alone, EnqueueCause::Volume);
            }
            return;
        }
        // One for all of them, and found among all of them: not asked again for each.
        let is_noted = LazyCell::new(|| volumes.is_noted(driver, handle));
        for other in all.iter().filter(|other| other.name != last.name) {
            let key = WorkKey::Volume(VolumeKey::of(other));
            // Asked before what it waits for: a run that ends in between says that after it has looked again, or is woken here.
            let is_held = self.queue.is_held(&key);
            match self.queue.remember(&key, |memory| memory.waits()) {
                // A role that is switched off has let it go, and now one in deletion waits for it.
                None if last.deleting => self.enqueue_volume(other, EnqueueCause::Volume),
                None => {}
                Some(waits) => {
                    let may_go_on = waits.is_some_and(|waits| match waits {
                        // What it lacks it does not need where the volume is left to another one.
                        VolumeReason::HandleShared | VolumeReason::SecretForbidden | VolumeReason::NotSupported => true,
                        VolumeReason::StillAttached => !*is_noted && !volumes.is_named(&other.name),
                        _ => false,
                    });
                    // A run has looked already, perhaps before the change, and has not said yet what it waits for. That of a role that is
                    // switched off may end and leave nothing to wake.
                    if !is_held && self.role() != RolePhase::Serving {
                        self.enqueue_volume(other, EnqueueCause::Volume);
                    }
                    if may_go_on || !is_held {
                        self.queue.wake(&key, EnqueueCause::Volume.into());
                    }
                }
            }
        }
    }

    /// Enqueues the PersistentVolume that was made for a claim which is not, or not any more, bound to it: that may have been what it
    /// waits for.
    fn enqueue_made(&self, claim: &Claim, cause: EnqueueCause) {
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
            self.queue.wake(&key, EnqueueCause::Retry.into());
        }
    }

    /// Goes on with what the last engine of this process knew of the open call for a claim, where nobody has called since; but not with its
    /// plan, unless the driver `is_same`, with all that it can do.
    pub(crate) fn go_on(&self, key: &ClaimKey, state: ClaimState, writer: &str, is_same: bool) {
        let claim = match self.context.store.claim(key) {
            Seen::Here(claim) => claim,
            Seen::Gone => return self.tell_lost(key, &state),
            Seen::Unknown => return,
        };
        let state = state.continued(&claim, &self.facts.name, writer);
        let (Some(mut state), Some(look)) = (state, self.look(key)) else {
            return;
        };
        if !is_same {
            state.known.forget_plan();
        }
        let item = item_of(&look, &claim, state.known.creation(), EnqueueCause::Resync);
        self.know_volume(key, state.known.creation());
        self.queue.add_and_remember(item, |memory| memory.claim = state);
    }
}

fn item_of(look: &Look<'_, ClaimKey>, claim: &Claim, known: Option<&Creation>, cause: EnqueueCause) -> Item<WorkKey> {
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

    fn changed(&self, of: &ClaimKey, claim: &Claim, cause: EnqueueCause) {
        if claim.volume_name.is_some() && is_own_claim(claim, &self.driver) {
            self.enqueue_made(claim, cause);
        }
        let key = WorkKey::Claim(of.clone());
        if !needs_claim_work(claim, &self.driver) && self.queue.remember(&key, |_| ()).is_none() {
            return;
        }
        let Some(look) = self.look(of) else { return };
        let now = look.now();
        // It comes with all the others, as when the role begins or was switched on: others may have served it until now.
        let was_there = cause == EnqueueCause::Resync;
        let remembered = self.queue.remember(&key, |memory| {
            let is_asked = memory.retries.is_asked(claim.retry_now.as_deref(), now);
            (is_asked, memory.claim.known.creation().cloned())
        });
        let (is_asked, known) = remembered.unwrap_or_default();
        let cause = if is_asked { EnqueueCause::Retry } else { cause };
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
        if let Some(class) = class.filter(|class| class.provisioner == self.driver.name)
            && let Some(note) = deprecated_keys(class)
        {
            let subjects = vec![of_class(&class.name, &class.uid)];
            self.record(None, ProvisionEventReason::DeprecatedParameters, "", note, subjects);
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
            self.queue.wake(key, EnqueueCause::Class.into());
        }
    }

    /// Whatever was begun for it is finished, and its volume may be deleted now.
    fn gone(&self, of: &ClaimKey, claim: &Claim) {
        let key = WorkKey::Claim(of.clone());
        self.queue.wake(&key, EnqueueCause::Delete.into());
        let bound_to = claim.volume_name.as_ref().map(|name| self.context.volumes.volume(name));
        if let Some(Seen::Here(volume)) = bound_to {
            self.enqueue_volume(&volume, EnqueueCause::Delete);
        }
        self.enqueue_made(claim, EnqueueCause::Delete);
    }

    /// Others with its handle may have waited for it.
    fn volume_changed(&self, volume: &Arc<Volume>) {
        self.enqueue_volume(volume, EnqueueCause::Volume);
        let source = volume.spec.csi();
        if let Some(source) = source.filter(|source| *source.driver == *self.facts.name) {
            self.wake_sharers(volume, &source.handle);
        }
    }

    fn topology_changed(&self, claims: &[(ClaimKey, &Claim)]) {
        if !self.driver.capabilities.accessibility_constraints {
            return;
        }
        for (key, claim) in claims {
            self.changed(key, claim, EnqueueCause::Node);
        }
        for key in self.nodes.take_waiting() {
            self.queue.wake(&key, EnqueueCause::Node.into());
        }
    }
}
