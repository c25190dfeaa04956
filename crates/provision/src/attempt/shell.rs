//! Performs the steps of one attempt: requests, calls behind the fence; and reports what happened.

use serde_json::Value;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout_at};

use super::report;
use crate::api::validated::Tracing;
use crate::apiserver::{ApiError, ApiErrorKind};
use crate::csi::CreateVolume;
use crate::decide::patch::PatchType;
use crate::key::{ClaimKey, KeyMemory};
use crate::objects::{Claim, PersistentVolumeClaimWire, PersistentVolumeWire, ReclaimPolicy, Volume};
use crate::provision::attempt::{ClaimAttempt, ClaimEvent, ClaimStep, ClaimView as _, Verdict, WaitsFor};
use crate::provision::{AnsweredVolume, CallSecret, ClaimWrite, CreatePlan, Creation, DeletePlan, Seen, going};
use crate::reflect::Sink as _;
use crate::telemetry::lifecycle::LifecycleOutcome;
use crate::telemetry::names::attr;
use crate::telemetry::{incoming, traced};
use crate::traces::{Beginning, Operation, describe};
use crate::unsaved::Creating;
use csi_attacher_model::attempt::CallEnd;

/// How long the first attempt for a claim takes before it is told that it is under way.
const ANNOUNCED_AFTER: Duration = Duration::from_secs(1);
/// After what time a marker that could not be written is tried again while its call is under way: an API server that restarts is mostly back
/// within seconds.
const MARKED_AGAIN_AFTER: Duration = Duration::from_secs(1);

pub(crate) type Shell<'w> = crate::shell::Shell<'w, ClaimKey>;

impl Shell<'_> {
    pub async fn perform(&mut self, attempt: &mut ClaimAttempt) -> Verdict {
        let mut event = ClaimEvent::Begin;
        loop {
            // A step may take long, and the next one goes by what is said now.
            self.look.take_settings();
            let step = attempt.next(&self.look, event);
            if !matches!(step, ClaimStep::End(_)) {
                self.has_tried = true;
                self.open(attempt);
                self.keep(attempt);
            }
            self.know_created(attempt);
            // What fails without a step is pending as well, or waits for the driver; what waits for something else is when that is told.
            let is_failed = matches!(step, ClaimStep::End(Verdict::Failed(_)));
            let is_held_up = is_failed || attempt.waits_for() == Some(WaitsFor::Driver);
            if let Some(claim) = attempt.claim().filter(|_| is_held_up) {
                self.begin(claim);
            }
            for note in attempt.take_notes() {
                report::report(self, attempt, note);
            }
            event = match step {
                ClaimStep::End(verdict) => return verdict,
                ClaimStep::Patch(write) => ClaimEvent::Patched(self.patch(&write).await),
                ClaimStep::ReadClaim => ClaimEvent::Read(self.read_claim().await),
                ClaimStep::ReadVolume(name) => ClaimEvent::Read(self.read_named(&name).await),
                ClaimStep::Secret(secret) => ClaimEvent::Read(self.read_secret(secret).await),
                ClaimStep::Create(plan) => ClaimEvent::Created(self.create(attempt, &plan).await),
                ClaimStep::Delete(plan) => ClaimEvent::Deleted(self.delete(attempt, &plan).await),
                ClaimStep::Save(body) => ClaimEvent::Saved(self.save(&body).await),
            };
        }
    }

    /// Keeps what is known: before each step, should the run end in it, and at the end.
    pub fn keep(&self, attempt: &ClaimAttempt) {
        let (known, progress) = (attempt.memory().clone(), self.progress.clone());
        let work = self.look.work;
        work.know_volume(self.look.key, attempt.creation());
        work.queue.remember(&self.run.key, |memory| {
            memory.claim.take(known, &self.secret);
            memory.progress = progress;
        });
    }

    /// Opens the span, and tells the attempt which trace it is a part of.
    fn open(&mut self, attempt: &ClaimAttempt) {
        let Some(claim) = attempt.claim().filter(|_| self.span.is_disabled()) else {
            return;
        };
        if !attempt.memory().is_saved() {
            self.progress.begin_again();
        }
        let (begun, work) = (self.begin(claim), self.look.work);
        let links = |tracing: &Tracing| {
            let annotated = ("PersistentVolumeClaim", &claim.annotations);
            incoming::contexts(None, [annotated], tracing, &work.context.metrics)
        };
        self.open_span((Operation::Provision, &*claim.uid), begun, links, |span| {
            describe(span, &work.facts.name, claim);
        });
        if self.span.is_recording() {
            let names = [&*claim.namespace, &claim.name, &claim.class];
            let volume = claim.volume_name.as_deref();
            self.span.knows(
                None,
                names.into_iter().chain(claim.selected_node.as_deref()).chain(volume),
            );
        }
    }

    /// Finds the volume that the driver answered in texts, and who else has it, where they are not to be shown.
    fn know_created(&mut self, attempt: &ClaimAttempt) {
        if !self.span.is_recording() {
            return;
        }
        if let Some(Creation::Created(volume)) = attempt.creation() {
            self.span.knows([&*volume.handle], volume.owner.as_deref());
        }
    }

    /// Ends the span, and the life cycle, if it ended.
    pub fn end(&mut self, attempt: &ClaimAttempt) {
        if let Some(creation) = attempt.creation().filter(|_| self.span.is_recording()) {
            self.span.set(attr::CREATION, creation.as_str());
        }
        let (Some((lifecycle, outcome)), Some(claim)) = (self.end_span(), attempt.claim()) else {
            return;
        };
        let (work, tracer) = (self.look.work, self.look.work.tracer());
        let saved = attempt.saved().filter(|_| outcome == LifecycleOutcome::Succeeded);
        lifecycle.end(&tracer, outcome, None, |root| {
            describe(root, &work.facts.name, claim);
            if let Some((name, handle)) = saved {
                root.set(attr::PERSISTENT_VOLUME_NAME, name);
                root.set(attr::CSI_VOLUME_ID, handle);
            }
        });
    }

    /// The volume is wanted from now on, as far as this is not known yet.
    pub fn begin(&mut self, claim: &Claim) -> Beginning {
        let begun = self.begun(claim).until_now();
        self.progress.begun = Some(begun);
        begun
    }

    pub fn waited(&self, claim: &Claim) -> Duration {
        self.begun(claim).elapsed()
    }

    fn begun(&self, claim: &Claim) -> Beginning {
        let (work, is_again) = (self.look.work, self.progress.is_again());
        self.progress.begun.unwrap_or_else(|| {
            let asked = work.context.store.asked_since(self.look.key);
            Beginning::of_claim(claim, &work.facts.name, asked, is_again)
        })
    }

    /// Patches the claim, and takes the answer into the cache: the claim as it was stored; none where it went with it.
    async fn patch(&self, write: &ClaimWrite) -> Result<Option<Arc<Claim>>, ApiError> {
        let context = &self.look.work.context;
        let (store, requests, key) = (&context.store, &context.requests, self.look.key);
        let name = (&*write.namespace, &*write.name);
        let known = store.claim(key).here().map(|claim| claim.resource_version);
        // Before its answer a marker shows nowhere, and an AttacherConfig that is being deleted waits for it.
        let _claiming = self.look.work.status.claiming();
        let answer = requests
            .patch::<PersistentVolumeClaimWire>(name, PatchType::Json, &write.body, None, &self.span)
            .await;
        match answer.map(Claim::from) {
            // Each patch tests the UID.
            Ok(claim) if *claim.uid != *key.uid => Err(ApiError::garbled("the answer is about another claim")),
            Ok(claim) => {
                let version = claim.resource_version;
                let shown = (!claim.is_gone()).then(|| Arc::new(claim.clone()));
                // The watch may have been faster, and shows what came after our write.
                if store.take_answer(claim) || known.is_some_and(|known| known <= version) {
                    return Ok(shown);
                }
                Err(store.lists().older_answer())
            }
            Err(error) => {
                if error.kind == ApiErrorKind::NotFound {
                    store.mark_gone(key);
                }
                Err(error)
            }
        }
    }

    async fn read_claim(&self) -> Result<(), ApiError> {
        let context = &self.look.work.context;
        let (store, requests, key) = (&context.store, &context.requests, self.look.key);
        let name = key.name.split_once('/').unwrap_or_default();
        let read = store.read::<Claim>(&key.name);
        let answer = requests.get::<PersistentVolumeClaimWire>(name, None, &self.span).await;
        match answer.map(Claim::from) {
            Ok(claim) => read.apply(claim),
            Err(error) => {
                drop(read);
                if error.kind == ApiErrorKind::NotFound {
                    store.mark_gone(key);
                }
                Err(error)
            }
        }
    }

    /// Reads the Secret. A claim that nobody wants any more is not held by one that went since the call, as with its namespace: the call is
    /// repeated with what it was made with.
    async fn read_secret(&mut self, secret: CallSecret) -> Result<(), ApiError> {
        let (reference, is_wanted) = (secret.reference, secret.is_wanted);
        self.span.knows(None, [&*reference.namespace, &reference.name]);
        let work = self.look.work;
        let read = if let Some(absent) = work.secrets.absent(&reference) {
            Err(absent)
        } else {
            let (requests, reference) = (&work.context.requests, reference.clone());
            self.secret.read(requests, reference, None, &self.span).await
        };
        let error = match read {
            Err(error) if !is_wanted && (error.kind == ApiErrorKind::NotFound || error.is_forbidden()) => error,
            read => return read,
        };
        let kept = work
            .queue
            .remember(&self.run.key, |memory| memory.claim.secret_of_call(&reference));
        self.secret = kept.flatten().ok_or(error)?;
        Ok(())
    }

    async fn read_named(&mut self, name: &str) -> Result<(), ApiError> {
        self.span.knows(None, [name]);
        let known = self.look.work.context.volumes.volume(name).here();
        let uid = known.as_ref().map(|volume| &*volume.uid);
        self.read_volume(&name.into(), uid).await.map(|_| ())
    }

    async fn create(&mut self, attempt: &ClaimAttempt, plan: &CreatePlan) -> Result<Option<AnsweredVolume>, CallEnd> {
        let deadline = self.look.provisioning.create_timeout;
        self.span.knows(None, [&*plan.name]);
        self.begin_call("CreateVolume", &plan.name, deadline);
        let call = CreateVolume {
            plan,
            secrets: self.secret.of(plan.secret.as_ref()),
        };
        let client = self.look.work.client();
        let creating = self.look.work.unsaved.begin_create();
        let answer = async {
            let answer = self.call(&client, &call, deadline).await?;
            if let Some(volume) = &answer {
                self.claim_volume(&creating, plan, &volume.handle)?;
            }
            Ok(answer)
        };
        let mut answer = pin!(self.during(attempt, answer));
        let announced_at = self.run.started + ANNOUNCED_AFTER;
        let is_announced = self.run.attempt() == 1 && attempt.is_wanted(&self.look);
        if let Some(claim) = attempt.claim().filter(|_| is_announced) {
            if let Ok(answer) = timeout_at(announced_at, &mut answer).await {
                return answer;
            }
            self.announce(claim);
        }
        answer.await
    }

    /// The volume that the driver answered is the claim's from now on: unless it may be one that is being deleted. A claim that goes may have
    /// that one as well, where its own is not kept: it is let go, or deletes it, and does not wait for what is somebody else's.
    fn claim_volume(&self, creating: &Creating<'_>, plan: &CreatePlan, handle: &str) -> Result<(), CallEnd> {
        let goes = match self.look.claim() {
            Seen::Here(claim) => claim.deleting.is_some(),
            Seen::Gone => true,
            Seen::Unknown => false,
        };
        let is_kept = plan.volume.reclaim_policy != Some(ReclaimPolicy::Delete) || self.look.policy.hold_deletions;
        if goes && !is_kept {
            return Ok(());
        }
        let of = self.look.work.perhaps_deleted(handle);
        if of.is_none() && creating.take(self.look.key, &plan.name, handle) {
            return Ok(());
        }
        Err(CallEnd::Failed(going(handle, of.as_deref())))
    }

    /// Tells that the first attempt is under way, once.
    fn announce(&self, claim: &Claim) {
        let is_announced = |memory: &mut KeyMemory| std::mem::replace(&mut memory.is_announced, true);
        if self.look.work.queue.remember(&self.run.key, is_announced) == Some(false) {
            report::begun(self, claim);
        }
    }

    async fn delete(&mut self, attempt: &ClaimAttempt, plan: &DeletePlan) -> Result<(), CallEnd> {
        let deadline = self.look.provisioning.delete_timeout;
        self.span.knows([&*plan.handle], []);
        self.begin_call("DeleteVolume", &plan.handle, deadline);
        let client = self.look.work.client();
        let call = self.call_delete(&client, (plan, Some(self.look.key)), deadline);
        self.during(attempt, call).await
    }

    /// Waits for a call, and answers meanwhile who asks to let the claim go, or marks it when the role is switched off or ends.
    async fn during<T>(&self, attempt: &ClaimAttempt, call: impl Future<Output = T>) -> T {
        let changed = self
            .look
            .work
            .queue
            .remember(&self.run.key, |memory| memory.changed.clone());
        let changed = changed.unwrap_or_default();
        let mut call = pin!(call);
        let mut lacks_marker = false;
        loop {
            tokio::select! {
                biased;
                ended = &mut call => return ended,
                () = changed.notified() => {}
                () = sleep(MARKED_AGAIN_AFTER), if lacks_marker => {}
            }
            let mut mark = pin!(self.mark_last(attempt));
            let ended = tokio::select! {
                biased;
                ended = &mut call => Some(ended),
                lacks = &mut mark => {
                    lacks_marker = lacks;
                    None
                }
            };
            if let Some(ended) = ended {
                // Cut off, the write might arrive when nobody takes the marker off again.
                mark.await;
                return ended;
            }
            tokio::select! {
                biased;
                ended = &mut call => return ended,
                () = self.answer_release(attempt) => {}
            }
        }
    }

    /// Answers whether the claim lacks a marker that is to be tried again during the call. One that the API server means to refuse is only tried
    /// again at the end of the attempt, if there is time for that.
    async fn mark_last(&self, attempt: &ClaimAttempt) -> bool {
        let Some(write) = attempt.last_marker(&self.look) else {
            return false;
        };
        let Err(error) = self.patch(&write).await else {
            return false;
        };
        let driver = &*self.look.work.facts.name;
        traced!(debug, self.span, driver, PersistentVolumeClaim = &*self.look.key.name, %error, "a PersistentVolumeClaim could not be marked");
        !error.is_refused()
    }

    /// One that could not be answered is answered after the call.
    async fn answer_release(&self, attempt: &ClaimAttempt) {
        let refused = attempt.refused_release(&self.look);
        let (Some((write, refusal)), Some(claim)) = (refused, attempt.claim()) else {
            return;
        };
        match self.patch(&write).await {
            Ok(_) => report::release_refused(self, claim, &refusal),
            Err(error) => {
                let driver = &*self.look.work.facts.name;
                traced!(debug, self.span, driver, PersistentVolumeClaim = &*claim.key, %error, "a request could not be answered");
            }
        }
    }

    fn begin_call(&mut self, method: &str, volume: &str, deadline: Duration) {
        self.calls += 1;
        self.span.set(attr::TIMEOUT, deadline);
        traced!(
            debug,
            self.span,
            driver = &*self.look.work.facts.name,
            PersistentVolumeClaim = &*self.look.key.name,
            volume,
            attempt = self.attempt(),
            timeout_seconds = deadline.as_secs_f64(),
            "calling {method}"
        );
    }

    /// Creates a PersistentVolume, and takes what the API server made of it into the cache. It counts only if that is what was sent: a
    /// webhook may have changed it.
    async fn save(&mut self, body: &Value) -> Result<(), ApiError> {
        let (volumes, requests) = (&self.look.work.context.volumes, &self.look.work.context.requests);
        let text = |pointer: &str| body.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let name = text("/metadata/name");
        self.span.knows(Some(text("/spec/csi/volumeHandle")), [name]);
        let take = volumes.reading(&Arc::from(name));
        let made = requests.create::<PersistentVolumeWire>(None, body, &self.span).await?;
        let made = Volume::from(made);
        let uid = made.claim.as_ref().map(|claim| &*claim.uid);
        let source = made.spec.csi().map(|source| (&*source.driver, &*source.handle));
        let wanted = (text("/spec/csi/driver"), text("/spec/csi/volumeHandle"));
        if *made.name != *name || uid != Some(&*self.look.key.uid) || source != Some(wanted) {
            return Err(ApiError::not_kept(format!(
                "the API server answered with PersistentVolume {} and not with what was written; check mutating webhooks",
                made.name
            )));
        }
        take(made)?;
        match self.look.volume(name) {
            Seen::Here(_) => Ok(()),
            // It went before its answer came.
            Seen::Gone | Seen::Unknown => Err(ApiError::garbled("the PersistentVolume is gone again")),
        }
    }
}
