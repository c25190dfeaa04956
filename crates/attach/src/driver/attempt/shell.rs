//! Performs the steps of one attempt: requests, calls behind the fence, places, pauses; and reports what happened.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use csi_attacher_model::attempt::{
    Answer, Attempt, Call, CallEnd, Event, Note, Patch, Publish, Read, ReadTarget, Rules, RunningWatches, Step, Take,
    Verdict, View,
};
use jiff::Timestamp;
use tokio::sync::SemaphorePermit;
use tokio::time::Instant;

use super::super::context::DriverContext;
use super::in_flight::{CallInFlight, InFlightGuard};
use super::report;
use super::requests::{apply_response, apply_write_response};
use super::unfinished::{PublishGuard, UnfinishedPublish};
use crate::KeyMemory;
use crate::api::validated::DriverConfig;
use crate::apiserver::{ApiError, ApiErrorKind, HeldSecret, Requests, Returned};
use crate::cache::{AttacherKey, DETACH, Snapshot, VOLUME, lane_of};
use crate::clock;
use crate::csi::{ControllerPublishVolume, ControllerUnpublishVolume, mode_name};
use crate::decide::patch::{self, WriteTarget};
use crate::decide::{
    self, DetachWait, DriverFacts, Failure, OwnedVolumeOnNode, PublishRequest, VolumeAccessType, VolumeOnNode, Write,
};
use crate::objects::{Attachment, CsiNode, CsiNodeWire, PersistentVolumeWire, ResourceVersion, StringMap, Volume};
use crate::queue::{LaneSlot, Run, RunResult};
use crate::reflect::Sink as _;
use crate::telemetry::names::attr;
use crate::telemetry::{Span, traced, w3c};
use crate::traces::{AttemptResult, PublishParameters, SharedLifecycle};
use csi_attacher_runtime::fence::CallFailure;

/// The effects of one attempt.
pub(in crate::driver) struct Shell<'w> {
    pub work: &'w DriverContext,
    /// None beside the queue, for what a former engine left.
    pub run: Option<&'w Run<AttacherKey>>,
    pub name: Arc<str>,
    pub config: Arc<DriverConfig>,
    /// The number of the attempt in its life cycle, from 1. That of the queue counts failures in a row.
    pub number: u32,
    /// In a run that needs no call those that others go before.
    requests: Cow<'w, Requests>,
    began: Instant,
    /// Opened by the first step that does something: a settled object makes no span.
    pub span: Span,
    /// The lifecycle that the attempt is a part of, when it is traced.
    pub lifecycle: Option<SharedLifecycle>,
    /// How it ended, as far as it has.
    pub ended: AttemptResult,
    pub secret: HeldSecret,
    /// Calls to the driver that were made. `callsPerSecond` is about these, while the queue counts starts.
    pub calls: u32,
    /// Whether the last of them is one in a row that no connection took, and that is told.
    pub takes_none: bool,
    places: Vec<InFlightGuard>,
    /// The place of a Publish that was taken and not begun.
    published_at: Option<InFlightGuard>,
    publish: Option<PublishGuard>,
    pub occupied: Option<CallInFlight>,
    /// Held while a failure is written.
    turn: Option<SemaphorePermit<'w>>,
    /// Beside the queue, a slot among the calls at once.
    lane_slot: Option<LaneSlot<AttacherKey>>,
}

impl View for Shell<'_> {
    fn rules(&self) -> &Rules {
        &self.work.context.rules.attempt
    }

    fn driver(&self) -> &DriverFacts {
        &self.work.facts
    }

    fn now(&self) -> Timestamp {
        clock::now()
    }

    fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    fn may_start(&self) -> bool {
        self.work.client().may_start()
    }

    fn is_leaving(&self) -> bool {
        self.work.config.borrow().leaving
    }

    fn attachment(&self, name: &str) -> Option<Snapshot> {
        self.work.context.store.attachment(name)
    }

    fn version(&self, target: &WriteTarget) -> Option<ResourceVersion> {
        self.work.context.store.version(target)
    }

    fn is_of_one_state(&self) -> bool {
        let lists = self.work.context.store.lists_for(&self.work.facts);
        lists.is_of_one_state()
    }

    fn watched(&self) -> RunningWatches {
        let lists = self.work.context.store.lists();
        RunningWatches {
            volumes: lists.is_watched::<PersistentVolumeWire>(),
            nodes: lists.is_watched::<CsiNodeWire>(),
        }
    }

    fn detach_wait(&self) -> DetachWait {
        let wait = self.remembered(|memory| memory.detach_wait(&self.config.timeouts));
        wait.unwrap_or(DetachWait::Allowed)
    }

    fn is_forced(&self, snapshot: &Snapshot) -> bool {
        self.remembered(|memory| memory.forces(&snapshot.attachment.uid)) == Some(true)
    }

    fn is_of_this_run(&self, attachment: &Attachment, forced: bool) -> bool {
        self.run.is_none_or(|run| lane_of(attachment, forced) == run.lane)
    }

    fn is_wanted_by_another(&self, snapshot: &Snapshot, place: VolumeOnNode<'_>) -> bool {
        self.work.context.store.is_claimed(&self.work.facts, snapshot, place)
    }

    fn may_be_recorded(&self, attachment: &Attachment) -> bool {
        self.work.context.unfinished.may_be_recorded(attachment)
    }

    fn traceparent(&self) -> Option<String> {
        let asked = self.config.tracing.outgoing_annotation;
        let lifecycle = self.lifecycle.as_ref().filter(|_| asked)?;
        Some(w3c::traceparent(&lifecycle.lock().root_context()))
    }

    fn trace_id(&self) -> Option<String> {
        self.span.trace_id().filter(|_| self.config.tracing.error_suffix)
    }
}

impl<'w> Shell<'w> {
    /// For an attempt in a run of the queue, or beside it.
    pub fn new(
        work: &'w DriverContext,
        run: Option<&'w Run<AttacherKey>>,
        name: Arc<str>,
        config: Arc<DriverConfig>,
    ) -> Self {
        Self {
            work,
            run,
            name,
            config,
            number: 1,
            requests: if run.is_some_and(|run| run.lane == VOLUME) {
                Cow::Owned(work.context.requests.for_upkeep())
            } else {
                Cow::Borrowed(&work.context.requests)
            },
            began: Instant::now(),
            span: Span::disabled(),
            lifecycle: None,
            ended: AttemptResult::NoChange,
            secret: HeldSecret::default(),
            calls: 0,
            takes_none: false,
            places: Vec::new(),
            published_at: None,
            publish: None,
            occupied: None,
            turn: None,
            lane_slot: None,
        }
    }

    /// The same, which watches over a Publish that a former engine left.
    pub fn watching(mut self, guard: PublishGuard) -> Self {
        self.secret = HeldSecret::new(guard.secret());
        self.publish = Some(guard);
        self
    }

    pub async fn perform(&mut self, attempt: &mut Attempt) -> Verdict {
        let mut event = Event::Done;
        loop {
            let step = attempt.next(self, event);
            for (about, note) in attempt.take_notes() {
                self.take_note(attempt, about.as_ref(), note);
            }
            self.hold(attempt);
            event = match step {
                Step::End(verdict) => return verdict,
                Step::Open => self.open(attempt).await,
                Step::Write(write) => self.write(write).await,
                Step::Read(read) => Event::Read(self.read(read).await),
                Step::Secret(reference) => {
                    let node = self.group();
                    Event::Secret(self.secret.read(&self.requests, reference, node, &self.span).await)
                }
                Step::Take(take) => self.take(&take),
                Step::Call(call) => {
                    let answer = self.call(attempt, call).await;
                    self.lane_slot = None;
                    Event::Called(answer)
                }
                Step::Evidence => Event::Evidence(self.evidence(attempt).await.map(Box::new)),
                Step::AwaitLiveRelease => {
                    drop(self.work.live_release.lock().await);
                    Event::Done
                }
                Step::Place => {
                    // A run of the queue has its place among the calls at once.
                    if self.run.is_none() {
                        self.lane_slot = Some(self.work.queue.acquire_slot(DETACH).await);
                    }
                    Event::Done
                }
                Step::Turn(operation) => {
                    self.turn = match attempt.failing() {
                        Some((about, message)) => {
                            let failures = &self.work.failures;
                            failures.acquire(about, operation, message, Instant::now()).await
                        }
                        None => None,
                    };
                    Event::Turn(self.turn.is_some())
                }
                Step::Rest(pause) => {
                    tokio::time::sleep(pause).await;
                    Event::Done
                }
            };
        }
    }

    /// Watches over the Publish that the attempt has begun, and gives back the places and the turn that it holds no longer.
    fn hold(&mut self, attempt: &Attempt) {
        if attempt.places().is_empty() {
            self.places.clear();
        }
        if attempt.failing().is_none() {
            self.turn = None;
        }
        let place = self.published_at.take();
        match (attempt.publish(), &mut self.publish) {
            (Some(_), Some(_)) => {}
            (Some(publish), None) => {
                let secret = self.secret.of(publish.secret.as_ref());
                let left = UnfinishedPublish {
                    secrets: secret.cloned(),
                    publish: publish.clone(),
                    term: self.work.client().term().cloned(),
                };
                self.publish = place.map(|place| PublishGuard::new(self.work, place, left));
            }
            (None, guard) => {
                if let Some(guard) = guard.take() {
                    guard.finished();
                }
            }
        }
    }

    /// What happened goes to the reports, and into what this process keeps of Publishes.
    fn take_note(&mut self, attempt: &Attempt, about: Option<&Snapshot>, note: Note) {
        let unfinished = &self.work.context.unfinished;
        match (note, about) {
            (Note::RecordBegins, Some(snapshot)) => {
                let exists = |name: &str| self.work.context.store.attachment(name).is_some();
                unfinished.begin_record(&snapshot.attachment, exists);
            }
            (Note::RecordKnown, Some(snapshot)) => unfinished.end_record(&snapshot.attachment),
            (note, about) => report::report(self, attempt, about, note),
        }
    }

    async fn open(&mut self, attempt: &Attempt) -> Event {
        let (Some(snapshot), Some(run)) = (attempt.snapshot(), self.run) else {
            return Event::Done;
        };
        let number = self.remembered(|memory| memory.attempts.begin(&snapshot.attachment));
        self.number = number.unwrap_or(1);
        let settled = decide::is_settled(&snapshot.attachment, &self.work.facts.finalizer);
        let (span, lifecycle, rolled) = self.work.lifecycles.start_attempt(run, snapshot, settled);
        (self.span, self.lifecycle) = (span, lifecycle);
        report::set_attempt_attributes(&mut self.span, self.work, run, self.number, snapshot);
        if let Some(root) = rolled.filter(|_| self.config.tracing.outgoing_annotation) {
            // Whoever comes after this process finds the new trace by it. If it cannot be written, nothing is lost but that.
            let note = patch::note_trace(&snapshot.attachment, &w3c::traceparent(&root));
            let noted = self.send(&note, snapshot, 0).await;
            self.count_trace_context(noted.is_ok());
            return Event::Wrote(noted);
        }
        Event::Done
    }

    /// Ends the span of the attempt, and the lifecycle that it is a part of if that is over. That of a key that is settled is not
    /// remembered any longer, whoever began it.
    pub fn end_span(&mut self, result: RunResult) {
        std::mem::take(&mut self.span).end();
        let (store, lifecycles) = (&self.work.context.store, &self.work.lifecycles);
        if let Some(lifecycle) = self.lifecycle.take() {
            let ended = std::mem::replace(&mut self.ended, AttemptResult::NoChange);
            lifecycles.end_attempt(&lifecycle, ended, || store.attachment(&self.name));
        } else if result == RunResult::Done
            && let Some(left) = self.remembered(|memory| memory.lifecycle.take()).flatten()
        {
            lifecycles.end_attempt(&left, AttemptResult::NoChange, || store.attachment(&self.name));
        }
    }

    /// Whether it is still to be told that the node of the detach is gone.
    pub fn tells_node_gone(&self) -> bool {
        let tells = self.remembered(|memory| memory.attempts.tells_node_gone());
        tells.unwrap_or(true)
    }

    /// How long until the next attempt, if this one fails: what did not get as far as a call waits (`Verdict::Waits`), and what no connection
    /// takes.
    pub fn retry_delay(&self) -> Duration {
        match self.run {
            Some(run) if self.calls > 0 && !self.takes_none => run.retry_delay,
            Some(run) => run.wait_delay,
            None => Duration::ZERO,
        }
    }

    pub fn watched(&self) -> Option<&Publish> {
        self.publish.as_ref().map(PublishGuard::publish)
    }

    /// Reads or changes what is remembered of the key, while it is in the queue.
    fn remembered<T>(&self, change: impl FnOnce(&mut KeyMemory) -> T) -> Option<T> {
        let key = AttacherKey::Attachment(self.name.clone());
        self.work.queue.remember(&key, change)
    }

    fn group(&self) -> Option<&'w Arc<str>> {
        self.run.and_then(|run| run.group.as_ref())
    }

    /// Sends a write, and applies the answer to the cache.
    async fn write(&self, patch: Patch) -> Event {
        let _claiming = patch.claims.map(|_| self.work.status.claiming());
        if patch.claims.is_some_and(|leaving| leaving != self.is_leaving()) {
            return Event::Done;
        }
        let outcome = self.send(&patch.write, &patch.copy, patch.resends).await;
        if patch.claims.is_some() && self.traceparent().is_some() {
            self.count_trace_context(outcome.is_ok());
        }
        Event::Wrote(outcome)
    }

    async fn send(&self, write: &Write, copy: &Snapshot, resends: u32) -> Result<bool, ApiError> {
        let requests = self.requests.with_resends(resends);
        let outcome = requests.write(write, self.group(), &self.span).await;
        let (uid, version) = (copy.uid(&write.target), copy.version(&write.target));
        let finalizer = &*self.work.facts.finalizer;
        let held = copy.is_held(&write.target, finalizer).then_some(finalizer);
        apply_write_response(&self.work.context.store, write, uid, version, held, outcome)
    }

    fn count_trace_context(&self, taken: bool) {
        let result = if taken { "success" } else { "failure" };
        let metrics = &self.work.context.metrics;
        metrics.trace_context_injected("VolumeAttachment", result);
    }

    async fn read(&self, read: Read) -> Answer {
        let (store, requests) = (&self.work.context.store, &self.requests);
        match read {
            Read::Again(target, copy) => {
                let outcome = requests.read(&target, self.group(), &self.span).await;
                let (uid, version) = (copy.uid(&target), copy.version(&target));
                apply_response(store, &target, uid, version, outcome).map(|_| None)
            }
            Read::Unwatched(ReadTarget::Volume(name), known) => self.read_volume(&name, known.as_deref()).await,
            Read::Unwatched(ReadTarget::Node(name), known) => {
                let reading = store.read::<CsiNode>(&name);
                let outcome = requests.get::<CsiNodeWire>(&*name, Some(&name), &self.span).await;
                match (outcome, known) {
                    (Ok(node), _) => reading.apply(node.into())?,
                    (Err(error), Some(uid)) if error.kind == ApiErrorKind::NotFound => {
                        store.remove::<CsiNode>(&name, &uid);
                    }
                    (Err(error), _) => return Err(error),
                }
                Ok(None)
            }
            Read::Live(copy) => {
                let attachment = &copy.attachment;
                let target = WriteTarget::Attachment(attachment.name.clone());
                let outcome = requests.read(&target, Some(&attachment.node), &self.span).await;
                if outcome
                    .as_ref()
                    .is_err_and(|error| error.kind == ApiErrorKind::NotFound)
                {
                    store.mark_deleted(&target, &attachment.uid);
                }
                Ok(match outcome? {
                    Returned::Attachment(record) => Some(record),
                    Returned::Volume(_) => None,
                })
            }
        }
    }

    /// Reads a PersistentVolume whose watch may be late. One that has gone meanwhile is not taken in.
    async fn read_volume(&self, name: &Arc<str>, known: Option<&str>) -> Answer {
        let (store, requests) = (&self.work.context.store, &self.requests);
        let target = WriteTarget::Volume(name.clone());
        let reading = store.read::<Volume>(name);
        match (requests.read(&target, self.group(), &self.span).await, known) {
            (Ok(Returned::Volume(record)), _) if !record.is_gone() => reading.apply(*record)?,
            (Ok(Returned::Volume(_)), Some(uid)) => store.mark_deleted(&target, uid),
            (Ok(Returned::Volume(_)), None) => {}
            (Err(error), Some(uid)) if error.kind == ApiErrorKind::NotFound => store.mark_deleted(&target, uid),
            (Ok(_), _) => return Err(ApiError::garbled("the answer is about another object")),
            (Err(error), _) => return Err(error),
        }
        Ok(None)
    }

    /// Takes places, all or none: that other call may be waiting for them. Those that the attempt had before are given back first.
    fn take(&mut self, take: &Take) -> Event {
        self.places.clear();
        let in_flight = &self.work.in_flight;
        let taken: Result<Vec<InFlightGuard>, CallInFlight> = take
            .places
            .iter()
            .map(|place| match take.publish {
                Some(alone) => in_flight.begin_publish(place.borrow(), &self.name, alone),
                None => in_flight.acquire(place.borrow()),
            })
            .collect();
        let mut taken = match taken {
            Ok(taken) => taken,
            Err(occupied) => {
                let elsewhere = occupied.elsewhere.clone();
                self.occupied = Some(occupied);
                return Event::Occupied(elsewhere);
            }
        };
        self.published_at = taken.pop_if(|_| take.publish.is_some());
        self.places = taken;
        Event::Taken
    }

    /// Calls the driver, over the connection that stands now: whether a former one answers, nobody looks any more. A change of its deadline
    /// counts from the next call on as well, not from the next attempt.
    async fn call(&mut self, attempt: &Attempt, call: Call) -> Result<StringMap, CallEnd> {
        // What is taken back from a VolumeAttachment that is gone has tries of its own.
        let is_anew = matches!(call, Call::Unpublish { anew: true, .. });
        let about = match attempt.publish() {
            Some(publish) if is_anew => Some(&publish.snapshot),
            _ => attempt.snapshot(),
        };
        let client = about.map_or_else(|| self.work.client(), |about| self.work.client_for(about));
        let timeouts = self.work.config.borrow().timeouts.clone();
        let secret = self.secret.of(attempt.secret()).cloned();
        let outcome = match call {
            Call::Publish(place) => {
                let deadline = timeouts.publish;
                self.span.set(attr::TIMEOUT, deadline);
                self.begin_call("ControllerPublishVolume", &place, deadline);
                let Some(request) = attempt.publish_request(self) else {
                    return Err(CallEnd::Failed(Failure::plain("there is nothing to publish any more")));
                };
                self.keep_publish_parameters(&request);
                let call = ControllerPublishVolume {
                    request: &request,
                    secrets: secret.as_ref(),
                };
                client.call(&call, deadline, &self.span).await
            }
            Call::Unpublish { place, anew } => {
                let deadline = timeouts.unpublish;
                if !anew {
                    self.span.set(attr::TIMEOUT, deadline);
                }
                self.begin_call("ControllerUnpublishVolume", &place, deadline);
                let call = ControllerUnpublishVolume {
                    place: place.borrow(),
                    secrets: secret.as_ref(),
                };
                let answer = client.call(&call, deadline, &self.span).await;
                answer.map(|()| StringMap::default())
            }
        };
        // What no connection takes for long is told, though it was not sent.
        let count = |memory: &mut KeyMemory| {
            memory.unsent.count(&outcome);
            memory.unsent.lasting().is_some()
        };
        self.takes_none = !is_anew && self.run.is_some() && self.remembered(count) == Some(true);
        let is_told = is_anew || self.takes_none;
        outcome.map_err(|failure| match failure {
            CallFailure::Driver(error) if is_told => CallEnd::Failed(Failure::from(&error)),
            failure => CallEnd::from(failure),
        })
    }

    /// Logs that a call is made, and counts it for `callsPerSecond`.
    fn begin_call(&mut self, method: &str, place: &OwnedVolumeOnNode, deadline: Duration) {
        self.calls += 1;
        let place = place.borrow();
        traced!(
            debug,
            self.span,
            driver = &*self.work.facts.name,
            VolumeAttachment = &*self.name,
            volumeHandle = place.volume_id,
            nodeID = place.node_id,
            attempt = self.run.map(|_| self.number),
            timeout_seconds = deadline.as_secs_f64(),
            "calling {method}"
        );
    }

    /// Keeps what is asked of the driver for the root of the trace.
    fn keep_publish_parameters(&self, request: &PublishRequest<'_>) {
        if let Some(lifecycle) = &self.lifecycle {
            let fs_type = match &request.capability.access {
                VolumeAccessType::Mount { fs_type, .. } => Some(Box::from(&**fs_type)),
                VolumeAccessType::Block => None,
            };
            lifecycle.lock().plan = Some(PublishParameters {
                read_only: request.read_only,
                access_mode: mode_name(request.capability.mode),
                fs_type,
            });
        }
    }
}
