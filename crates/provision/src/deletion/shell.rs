//! Performs the steps of one attempt: requests, calls behind the fence; and reports what happened.

use std::sync::Arc;
use std::time::Duration;

use super::report;
use crate::api::validated::Tracing;
use crate::apiserver::{ApiError, ApiErrorKind, Returned};
use crate::decide::Write;
use crate::key::VolumeKey;
use crate::lanes::{PROTECT, is_to_delete};
use crate::objects::{
    Claim, ClaimReference, PersistentVolumeClaimWire, PersistentVolumeWire, ResourceVersion, SecretReference, Volume,
};
use crate::provision::attempt::Verdict;
use crate::provision::deletion::{VolumeAttempt, VolumeEvent, VolumeStep};
use crate::provision::{DeletePlan, Deletion, Seen};
use crate::telemetry::names::attr;
use crate::telemetry::traced;
use crate::traces::{Beginning, Operation, describe_volume, made_in};
use csi_attacher_model::attempt::CallEnd;

pub(crate) type Shell<'w> = crate::shell::Shell<'w, VolumeKey>;

impl Shell<'_> {
    /// For how long the volume is to be deleted, as far as this process knows.
    pub fn waited(&self) -> Duration {
        self.progress.begun.as_ref().map(Beginning::elapsed).unwrap_or_default()
    }

    /// Notes when the volume is first seen to be one that is to be deleted, and that it is not to be any more. What it waits for counts.
    fn note_beginning(&mut self, attempt: &VolumeAttempt, step: &VolumeStep) {
        let Some(volume) = attempt.volume() else { return };
        let is_open = attempt.deletion() != Deletion::NotDeleted;
        if is_open || is_to_delete(volume, &self.look.work.driver) {
            let begun = self.progress.begun.unwrap_or_else(Beginning::seen_now);
            self.progress.begun = Some(begun.until_now());
        } else if !matches!(step, VolumeStep::End(_)) {
            // At the end it may be gone, and its last copy says nothing.
            self.progress.begun = None;
        }
    }

    pub async fn perform(&mut self, attempt: &mut VolumeAttempt) -> Verdict {
        let mut event = VolumeEvent::Begin;
        loop {
            // A step may take long, and the next one goes by what is said now.
            self.look.take_settings();
            let step = attempt.next(&self.look, event);
            self.note_beginning(attempt, &step);
            if !matches!(step, VolumeStep::End(_)) {
                self.open(attempt, &step);
                self.keep(attempt);
            }
            for note in attempt.take_notes() {
                report::report(self, attempt, note);
            }
            event = match step {
                VolumeStep::End(verdict) => return verdict,
                VolumeStep::Patch(write) => VolumeEvent::Written(self.patch(&write).await),
                VolumeStep::Remove(uid) => VolumeEvent::Written(self.remove(&uid).await),
                VolumeStep::ReadVolume => {
                    let key = self.look.key;
                    VolumeEvent::VolumeRead(self.read_volume(&key.name, Some(&key.uid)).await)
                }
                VolumeStep::ReadHeir(name) => VolumeEvent::VolumeRead(self.read_other(&name).await),
                VolumeStep::ReadClaim(claim) => VolumeEvent::ClaimRead(self.read_claim(&claim).await),
                VolumeStep::Secret(secret) => VolumeEvent::SecretRead(self.read_secret(secret).await),
                VolumeStep::Delete(plan) => VolumeEvent::Deleted(self.delete(&plan).await),
            };
        }
    }

    /// Keeps what is known: before each step, should the run end in it, and at the end.
    pub fn keep(&self, attempt: &VolumeAttempt) {
        let (known, progress) = (attempt.memory().clone(), self.progress.clone());
        self.look.work.queue.remember(&self.run.key, |memory| {
            memory.volume = known;
            memory.progress = progress;
        });
    }

    /// Opens the span. A write of the finalizer alone is no deletion.
    fn open(&mut self, attempt: &VolumeAttempt, step: &VolumeStep) {
        let is_deletion = self.progress.lifecycle.is_some() || !matches!(step, VolumeStep::Patch(_));
        self.has_tried |= is_deletion;
        let Some(volume) = attempt.volume().filter(|_| is_deletion && self.span.is_disabled()) else {
            return;
        };
        let begun = self.progress.begun.unwrap_or_else(Beginning::seen_now);
        let driver = &self.look.work.facts.name;
        let links = |_: &Tracing| made_in(volume).into_iter().collect::<Vec<_>>();
        self.open_span((Operation::Delete, &*volume.uid), begun, links, |span| {
            describe_volume(span, driver, volume);
        });
        if self.span.is_recording() {
            let handle = volume.spec.csi().map(|source| &*source.handle);
            self.span.knows(handle, volume.names());
        }
    }

    /// Ends the span, and the life cycle, if it ended.
    pub fn end(&mut self, attempt: &VolumeAttempt) {
        let (Some((lifecycle, outcome)), Some(volume)) = (self.end_span(), attempt.volume()) else {
            return;
        };
        let (work, tracer) = (self.look.work, self.look.work.tracer());
        lifecycle.end(&tracer, outcome, None, |root| {
            describe_volume(root, &work.facts.name, volume);
        });
    }

    async fn patch(&self, write: &Write) -> Result<Option<bool>, ApiError> {
        let known = self.known_version();
        let work = self.look.work;
        let answer = self.requests().write(write, None, &self.span).await;
        if answer.is_ok() && self.run.lane == PROTECT {
            work.queue.count_put_back(self.run);
        }
        let answer = answer.and_then(|returned| match returned {
            Returned::Volume(volume) => Ok(Some(*volume)),
            Returned::Attachment(_) => Err(ApiError::garbled("the answer is about another kind of object")),
        });
        self.take_written(answer, known)
    }

    async fn remove(&self, uid: &str) -> Result<Option<bool>, ApiError> {
        let requests = &self.look.work.context.requests;
        let (name, known) = (&*self.look.key.name, self.known_version());
        let answer = requests.delete::<PersistentVolumeWire>(name, uid, &self.span).await;
        self.take_written(answer.map(|left| left.map(Volume::from)), known)
    }

    fn known_version(&self) -> ResourceVersion {
        let key = self.look.key;
        match self.look.work.context.volumes.volume(&key.name) {
            Seen::Here(volume) if *volume.uid == *key.uid => volume.resource_version,
            _ => ResourceVersion::default(),
        }
    }

    /// Takes the answer to a write into the cache: the PersistentVolume as it is now, or that it is gone. `known` is the version that was
    /// known when the request was sent. Answers whether our finalizer was left on it; none where it is gone.
    fn take_written(
        &self,
        answer: Result<Option<Volume>, ApiError>,
        known: ResourceVersion,
    ) -> Result<Option<bool>, ApiError> {
        let (volumes, key) = (&self.look.work.context.volumes, self.look.key);
        match answer {
            // Each write has the UID as its condition.
            Ok(Some(volume)) if *volume.uid != *key.uid => {
                Err(ApiError::garbled("the answer is about another PersistentVolume"))
            }
            Ok(Some(volume)) => {
                let version = volume.resource_version;
                let left = (!volume.is_gone()).then(|| volume.lifecycle.finalizer_at.is_some());
                // The watch may have been faster, and shows what came after our write.
                if volumes.take_answer(volume) || version >= known {
                    return Ok(left);
                }
                Err(volumes.older_answer())
            }
            Ok(None) => {
                volumes.is_gone(&key.name, &key.uid);
                Ok(None)
            }
            Err(error) => {
                if error.kind == ApiErrorKind::NotFound {
                    volumes.is_gone(&key.name, &key.uid);
                }
                Err(error)
            }
        }
    }

    /// Reads the Secret. The permission to read it goes with its namespace, and nobody can give it again: what was in that is not there.
    async fn read_secret(&mut self, secret: SecretReference) -> Result<(), ApiError> {
        self.span.knows(None, [&*secret.namespace, &secret.name]);
        let requests = &self.look.work.context.requests;
        let namespace = secret.namespace.clone();
        let read = self.secret.read(requests, secret, None, &self.span).await;
        match read {
            Err(error) if error.is_forbidden() && requests.is_namespace_gone(&namespace, &self.span).await => Err(
                ApiError::without_answer(ApiErrorKind::NotFound, format!("namespace {namespace} is not there")),
            ),
            read => read,
        }
    }

    /// Reads another PersistentVolume, which the cache knows.
    async fn read_other(&mut self, name: &Arc<str>) -> Result<ResourceVersion, ApiError> {
        self.span.knows(None, [&**name]);
        match self.look.work.context.volumes.volume(name) {
            Seen::Here(known) => self.read_volume(name, Some(&known.uid)).await,
            Seen::Gone | Seen::Unknown => Err(ApiError::without_answer(
                ApiErrorKind::NotFound,
                "it is not known any more",
            )),
        }
    }

    /// The claim that is there under the name.
    async fn read_claim(&mut self, claim: &ClaimReference) -> Result<Arc<Claim>, ApiError> {
        self.span.knows(None, [&*claim.namespace, &claim.name]);
        let requests = &self.look.work.context.requests;
        let name = (&*claim.namespace, &*claim.name);
        let wire = requests
            .get::<PersistentVolumeClaimWire>(name, None, &self.span)
            .await?;
        let claim = Claim::from(wire);
        // Without one nobody can say that it is another claim.
        if claim.uid.is_empty() {
            let error = "the API server answered with a PersistentVolumeClaim without a UID";
            return Err(ApiError::garbled(error));
        }
        Ok(Arc::new(claim))
    }

    async fn delete(&mut self, plan: &DeletePlan) -> Result<(), CallEnd> {
        self.calls += 1;
        let deadline = self.look.provisioning.delete_timeout;
        self.span.set(attr::TIMEOUT, deadline);
        traced!(
            debug,
            self.span,
            driver = &*self.look.work.facts.name,
            PersistentVolume = &*self.look.key.name,
            volumeHandle = &*plan.handle,
            attempt = self.attempt(),
            timeout_seconds = deadline.as_secs_f64(),
            "calling DeleteVolume"
        );
        let client = self.look.work.client();
        let client = if plan.migrated { client.migrated() } else { client };
        self.call_delete(&client, (plan, None), deadline).await
    }
}
