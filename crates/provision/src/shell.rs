//! What performs an attempt, for a claim or a PersistentVolume: where it is in the queue, in its life cycle, and what it did.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use crate::api::validated::Tracing;
use crate::apiserver::{ApiError, ApiErrorKind, HeldSecret, Requests};
use crate::csi::{Call, DeleteVolume};
use crate::key::{ClaimKey, WorkKey};
use crate::lanes::PROTECT;
use crate::look::Look;
use crate::objects::{PersistentVolumeWire, ResourceVersion, Volume};
use crate::provision::attempt::Verdict;
use crate::provision::{DeletePlan, RolePhase, answered_meanwhile, deletion_of};
use crate::queue::Run;
use crate::runtime::fence::FencedClient;
use crate::runtime::report::FailedAttempt;
use crate::telemetry::lifecycle::LifecycleOutcome;
use crate::telemetry::{Span, SpanContext, traced, w3c};
use crate::traces::{Beginning, Lifecycle, Operation, Progress};
use csi_attacher_model::attempt::CallEnd;

/// The effects of one attempt.
pub(crate) struct Shell<'w, K> {
    pub look: Look<'w, K>,
    pub run: &'w Run<WorkKey>,
    /// Opened by the first step that does something.
    pub span: Span,
    /// How far the life cycle had come before, and what began in this attempt.
    pub progress: Progress,
    /// Whether the attempt did something.
    pub has_tried: bool,
    /// That the life cycle has ended in this attempt.
    pub ended: Option<LifecycleOutcome>,
    /// That of its calls.
    pub secret: HeldSecret,
    /// Calls to the driver that were made: `callsPerSecond` is about these, while the queue counts starts.
    pub calls: u32,
}

impl<'w, K> Shell<'w, K> {
    /// For an attempt in a run of the queue.
    pub fn new(look: Look<'w, K>, run: &'w Run<WorkKey>, progress: Progress) -> Self {
        Self {
            look,
            run,
            span: Span::disabled(),
            progress,
            has_tried: false,
            ended: None,
            secret: HeldSecret::default(),
            calls: 0,
        }
    }

    /// What sends requests about PersistentVolumes. Nobody waits where only a finalizer goes on or off, and after a sidecar there may be tens of
    /// thousands of these: others go first.
    pub fn requests(&self) -> Cow<'w, Requests> {
        let requests = &self.look.work.context.requests;
        if self.run.lane == PROTECT {
            Cow::Owned(requests.for_upkeep())
        } else {
            Cow::Borrowed(requests)
        }
    }

    /// The number of the attempt in its life cycle, from 1 on. That of the queue counts failures in a row.
    pub fn attempt(&self) -> u32 {
        self.progress.attempts.saturating_add(1)
    }

    /// Opens the span of an attempt for the object with this UID, where traces are on, and tells which trace it is a part of; `links` finds
    /// what the root of a new one follows, and `describe` says what it is about.
    pub fn open_span(
        &mut self,
        subject: (Operation, &str),
        begun: Beginning,
        links: impl FnOnce(&Tracing) -> Vec<SpanContext>,
        describe: impl Fn(&mut Span),
    ) {
        let work = self.look.work;
        let tracer = work.tracer();
        if !tracer.is_enabled() {
            return;
        }
        let config = work.config.borrow();
        let limits = &config.tracing;
        let links = || links(limits);
        let (number, previous) = (self.attempt(), self.progress.previous.take());
        let lifecycle = self
            .progress
            .lifecycle(&tracer, subject, begun, limits, links, &describe);
        self.span = lifecycle.attempt(&tracer, self.run, (number, previous.as_slice()));
        let is_noted = config.tracing.outgoing_annotation;
        self.look.traceparent = is_noted.then(|| w3c::traceparent(&lifecycle.context()));
        self.progress.previous = self.span.context().cloned().or(previous);
        if self.span.is_recording() {
            describe(&mut self.span);
        }
    }

    /// Tells a failure in the metrics, on the span and in the state of the driver. Answers its name there, for the log.
    pub fn tell(&mut self, failed: &FailedAttempt<'_>) -> &'static str {
        self.note_failure(failed.kind.into());
        let work = self.look.work;
        failed.tell(work, &work.context.metrics, &mut self.span)
    }

    /// Tells on the span and in the log of a request that failed which may succeed a moment later, or that nobody waits for.
    pub fn fail_request(&mut self, error: &ApiError) {
        let kind = error.error_type();
        self.span.fail(&kind, &error.message);
        self.note_failure(kind);
        let (claim, volume) = self.run.key.claim_or_volume();
        let of = claim.map_or("PersistentVolume", |_| "PersistentVolumeClaim");
        traced!(
            warn,
            self.span,
            driver = &*self.look.work.facts.name,
            PersistentVolumeClaim = claim,
            PersistentVolume = volume,
            %error,
            next_try_seconds = self.run.retry_delay.as_secs_f64(),
            "a request about the {of} failed"
        );
    }

    /// Notes `error.type` of a failure, for a root that does not end well. An attempt without a span may fail as well.
    fn note_failure(&mut self, kind: Cow<'static, str>) {
        if let Some(lifecycle) = &mut self.progress.lifecycle {
            lifecycle.failure = Some(kind);
        }
    }

    /// Ends the span, and counts the attempt: the life cycle that ended in it, and how.
    pub fn end_span(&mut self) -> Option<(Lifecycle, LifecycleOutcome)> {
        std::mem::take(&mut self.span).end();
        let lifecycle = self.ended.and_then(|_| self.progress.lifecycle.take());
        self.progress.count_attempt(self.has_tried, self.ended.is_some());
        lifecycle.zip(self.ended)
    }

    /// Keeps the life cycle of an object that the queue forgets though it has not ended, in a role that is off or ends. What has another
    /// attempt after that is not left any more.
    pub fn leave_open(&self, verdict: Verdict) {
        let work = self.look.work;
        let is_left = verdict == Verdict::Done && work.role() != RolePhase::Serving;
        let lifecycle = self.progress.open_lifecycle().filter(|_| is_left);
        let (key, mut left_open) = (&self.run.key, work.left_open.lock());
        match lifecycle {
            Some(lifecycle) => left_open.insert(key.clone(), lifecycle.clone()),
            None => left_open.remove(key),
        };
    }

    /// How long the attempt has taken so far.
    pub fn took(&self) -> Duration {
        self.run.started.elapsed()
    }

    /// Calls the driver behind the fence, and counts what was not sent.
    pub async fn call<C: Call>(
        &self,
        client: &FencedClient,
        call: &C,
        deadline: Duration,
    ) -> Result<C::Answer, CallEnd> {
        let answer = client.call(call, deadline, &self.span).await;
        let queue = &self.look.work.queue;
        queue.remember(&self.run.key, |memory| memory.unsent.count(&answer));
        Ok(answer?)
    }

    /// Calls DeleteVolume for the volume of the claim `of`, or of a PersistentVolume, unless another claim has been answered it meanwhile.
    pub async fn call_delete(
        &self,
        client: &FencedClient,
        (plan, of): (&DeletePlan, Option<&ClaimKey>),
        deadline: Duration,
    ) -> Result<(), CallEnd> {
        let unsaved = &self.look.work.unsaved;
        let meanwhile = |other: Arc<str>| CallEnd::Failed(answered_meanwhile(&plan.handle, &other));
        let mut deleting = unsaved.begin_delete(&plan.handle, of).map_err(meanwhile)?;
        let call = DeleteVolume {
            plan,
            secrets: self.secret.of(plan.secret.as_ref()),
        };
        let answer = self.call(client, &call, deadline).await;
        deleting.ended(deletion_of(&answer, self.look.policy.orphans));
        answer
    }

    /// Reads a PersistentVolume into the cache, where it may have had this UID. An older copy than what is known shows that the API server
    /// went back: then it proves nothing.
    pub async fn read_volume(&self, name: &Arc<str>, known: Option<&str>) -> Result<ResourceVersion, ApiError> {
        let (volumes, requests) = (&self.look.work.context.volumes, self.requests());
        let take = volumes.reading(name);
        let read = requests.get::<PersistentVolumeWire>(&**name, None, &self.span).await;
        let volume = match read {
            Ok(wire) => Volume::from(wire),
            Err(error) => {
                drop(take);
                if let Some(uid) = known.filter(|_| error.kind == ApiErrorKind::NotFound) {
                    volumes.is_gone(name, uid);
                }
                return Err(error);
            }
        };
        let version = volume.resource_version;
        take(volume)?;
        Ok(version)
    }
}
