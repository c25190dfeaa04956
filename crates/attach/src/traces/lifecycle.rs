//! One lifecycle: an attach or a detach from its request until it is done or not wanted any more.

use jiff::{SignedDuration, Timestamp};
use std::time::{Duration, SystemTime};

use crate::api::names::TRACEPARENT_ANNOTATION;
use crate::api::validated::Tracing;
use crate::cache::{AttacherKey, Snapshot};
use crate::clock::wall;
use crate::decide::{self, DriverFacts, Neighbours};
use crate::objects::{Attachment, Operation};
use crate::queue::Run;
use crate::telemetry::lifecycle::{LifecycleOutcome, epoch_of, is_full};
use crate::telemetry::names::span;
use crate::telemetry::{Metrics, Span, SpanContext, SpanKind, SpanOptions, TraceIdentity, Tracer, incoming, w3c};

/// Resolution of the time stamps of objects.
const TICK: SignedDuration = SignedDuration::from_secs(1);

/// Detaches of the volume from other nodes that an attach is linked to.
const MOST_LEAVING: usize = 4;

/// The start is the object's own time stamp.
const CREATION: &str = "creation";
/// The start is when the object was seen.
const OBSERVED: &str = "observed";

pub(super) const DELETED: &str = "the VolumeAttachment was deleted before its volume was attached";
pub(super) const VANISHED: &str = "the VolumeAttachment was deleted before the driver confirmed the detach";
pub(super) const ABANDONED: &str = "the AttacherConfig of the driver was removed";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttemptResult {
    /// What was to be done is done and on record.
    Succeeded,
    /// It failed, with this `error.type`.
    Failed(&'static str),
    /// There was nothing to do, or something else comes first.
    NoChange,
}

/// What is asked of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PublishParameters {
    pub read_only: bool,
    pub access_mode: &'static str,
    /// None for a volume without a filesystem.
    pub fs_type: Option<Box<str>>,
}

#[allow(clippy::struct_excessive_bools, reason = "each says something else of it")]
pub(crate) struct Lifecycle {
    pub operation: Operation,
    pub subject: Snapshot,
    pub own: TraceIdentity,
    pub epoch: u32,
    pub links: Vec<SpanContext>,
    pub sampled: bool,
    pub started: Timestamp,
    /// What `started` was taken from, for an attribute of the root.
    pub source: &'static str,
    /// How late it was seen.
    pub lag: Duration,
    /// Since when this process knows the epoch.
    since: Timestamp,
    pub attempts: u32,
    pub previous: Option<SpanContext>,
    /// `error.type` of the last failure.
    pub failure: Option<&'static str>,
    pub plan: Option<PublishParameters>,
    /// The driver said that the volume is detached.
    pub confirmed: bool,
    pub running: bool,
    pub closed: bool,
}

impl Lifecycle {
    /// A lifecycle that is seen for the first time. Whether it is sampled is for the caller to say.
    pub fn new(
        tracer: &Tracer,
        metrics: &Metrics,
        run: &Run<AttacherKey>,
        snapshot: &Snapshot,
        facts: &DriverFacts,
        tracing: &Tracing,
    ) -> Self {
        let operation = snapshot.operation();
        let attachment = &*snapshot.attachment;
        let epoch = known_epoch(attachment, operation);
        let (stamp, seen, lag) = start_of(attachment, operation, run, facts, epoch);
        let mut links = incoming_contexts(snapshot, tracing, metrics);
        match operation {
            Operation::Attach => links.extend(active_detaches(tracer, snapshot)),
            Operation::Detach => links.push(root_of(tracer, attachment, Operation::Attach)),
        }
        Self {
            operation,
            subject: without_neighbours(snapshot),
            own: TraceIdentity::derive(operation.as_str(), &attachment.uid, epoch),
            epoch,
            links,
            sampled: false,
            started: stamp.unwrap_or(seen),
            source: if stamp.is_some() { CREATION } else { OBSERVED },
            lag: Duration::try_from(lag).unwrap_or_default(),
            since: seen,
            attempts: 0,
            previous: None,
            failure: None,
            plan: None,
            confirmed: false,
            running: false,
            closed: false,
        }
    }

    /// Whether it is the lifecycle of what is to be done now.
    pub fn is_for(&self, snapshot: &Snapshot) -> bool {
        let same = *self.subject.attachment.uid == *snapshot.attachment.uid;
        same && !self.closed && self.operation == snapshot.operation()
    }

    /// Whether the next engine of the driver goes on with it. Not if another replica has ended it since or continued it in another trace:
    /// that one has exported its root.
    pub fn resume(&mut self, snapshot: &Snapshot) -> bool {
        // A run that was cancelled did not say that it ended.
        self.running = false;
        let is_done = self.operation == Operation::Attach && snapshot.attachment.attached;
        self.is_for(snapshot) && !is_done && known_epoch(&snapshot.attachment, self.operation) <= self.epoch
    }

    pub fn root_context(&self) -> SpanContext {
        self.own.context(self.sampled)
    }

    /// Whether the trace of this epoch is as large or as old as it may be.
    pub fn must_roll_over(&self, tracing: &Tracing, now: Timestamp) -> bool {
        let age = Duration::try_from(now.duration_since(self.since)).unwrap_or_default();
        is_full(tracing, self.epoch, self.attempts, age)
    }

    /// Ends the epoch and begins the next one; both are linked with each other. Answers the new root.
    pub fn roll_over(
        &mut self,
        tracer: &Tracer,
        facts: &DriverFacts,
        links: &[SpanContext],
        now: Timestamp,
    ) -> SpanContext {
        let former = self.root_context();
        let mut next = Self {
            epoch: self.epoch + 1,
            own: TraceIdentity::derive(self.operation.as_str(), &self.subject.attachment.uid, self.epoch + 1),
            subject: self.subject.clone(),
            links: vec![former],
            previous: self.previous.clone(),
            plan: self.plan.clone(),
            started: now,
            source: OBSERVED,
            lag: Duration::ZERO,
            since: now,
            attempts: 0,
            ..*self
        };
        next.sampled = tracer.samples(next.own.trace_id);
        let continued = next.root_context();
        let links: Vec<SpanContext> = links.iter().cloned().chain([continued.clone()]).collect();
        self.export(tracer, facts, LifecycleOutcome::Continued, &links, now);
        *self = next;
        continued
    }

    /// Opens the span of an attempt. It begins when the key was handed out, before anything was observed.
    pub fn attempt(&mut self, tracer: &Tracer, run: &Run<AttacherKey>) -> Span {
        let root = self.root_context();
        let links: Vec<SpanContext> = self.previous.iter().cloned().collect();
        let span = tracer.open(SpanOptions {
            start: Some(SystemTime::from(wall(run.started).max(self.started))),
            parent: Some(&root),
            links: &links,
            sampled: Some(self.sampled),
            ..SpanOptions::new(attempt_name(self.operation), SpanKind::Consumer)
        });
        let span = span.must_end();
        self.previous = span.context().cloned().or_else(|| self.previous.take());
        self.attempts = self.attempts.saturating_add(1);
        self.running = true;
        span
    }

    /// Takes in how the attempt that ran ended.
    pub fn record_attempt(&mut self, ended: AttemptResult) {
        self.running = false;
        if let AttemptResult::Failed(kind) = ended {
            self.failure = Some(kind);
        }
    }

    /// Whether the lifecycle is over, as the attachment is now; none is one that is gone.
    pub fn outcome_after(&self, attachment: Option<&Attachment>, facts: &DriverFacts) -> Option<LifecycleOutcome> {
        let was_attached = self.subject.attachment.attached;
        match (self.operation, attachment) {
            (Operation::Attach, None) if was_attached => Some(LifecycleOutcome::Succeeded),
            (Operation::Attach, None) => Some(LifecycleOutcome::Aborted(DELETED)),
            (Operation::Attach, Some(now)) if now.attached => Some(LifecycleOutcome::Succeeded),
            (Operation::Attach, Some(now)) => now.deleting.map(|_| LifecycleOutcome::Aborted(DELETED)),
            (Operation::Detach, Some(now)) if decide::is_detaching(now, &facts.finalizer) => None,
            (Operation::Detach, _) if self.confirmed => Some(LifecycleOutcome::Succeeded),
            (Operation::Detach, _) => Some(LifecycleOutcome::Aborted(VANISHED)),
        }
    }
}

pub(super) fn attempt_name(operation: Operation) -> &'static str {
    match operation {
        Operation::Attach => span::ATTACH_ATTEMPT,
        Operation::Detach => span::DETACH_ATTEMPT,
    }
}

/// The span of an attempt at what was settled already: the lifecycle is over, so that it stands for itself and points to that.
pub(super) fn start_repair_span(tracer: &Tracer, run: &Run<AttacherKey>, snapshot: &Snapshot) -> Span {
    let operation = snapshot.operation();
    let lifecycle = root_of(tracer, &snapshot.attachment, operation);
    let span = tracer.open(SpanOptions {
        start: Some(SystemTime::from(wall(run.started))),
        links: &[lifecycle],
        ..SpanOptions::new(attempt_name(operation), SpanKind::Consumer)
    });
    span.must_end()
}

/// A snapshot without what is about other attachments.
pub(super) fn without_neighbours(snapshot: &Snapshot) -> Snapshot {
    Snapshot {
        attachment: snapshot.attachment.clone(),
        volume: snapshot.volume.clone(),
        node: snapshot.node.clone(),
        neighbours: Neighbours::default(),
    }
}

/// When a lifecycle began by the time stamp of its object; when this process saw it first, and how late. The time stamp has a resolution of a
/// second, so that what was seen within the next one began when it was seen, unless somebody was at it before us.
fn start_of(
    attachment: &Attachment,
    operation: Operation,
    run: &Run<AttacherKey>,
    facts: &DriverFacts,
    epoch: u32,
) -> (Option<Timestamp>, Timestamp, SignedDuration) {
    let (stamp, known) = match operation {
        Operation::Attach => {
            let claimed = attachment.finalizers.contains(&facts.finalizer);
            (attachment.created, claimed || attachment.attach_error.is_some())
        }
        Operation::Detach => (attachment.deleting, attachment.detach_error.is_some()),
    };
    let pending = wall(run.pending_since);
    let earlier = stamp.is_some_and(|stamp| pending < stamp);
    // It may have been pending as an attach before.
    let seen = if earlier { wall(run.ready_since) } else { pending };
    let lag = stamp.map_or(SignedDuration::ZERO, |stamp| seen.duration_since(stamp));
    let counts = epoch == 0 && (lag >= TICK || (known && lag >= SignedDuration::ZERO));
    (stamp.filter(|_| counts), seen, lag)
}

/// The epoch in our own annotation; the first one without an annotation.
fn known_epoch(attachment: &Attachment, operation: Operation) -> u32 {
    let noted = attachment.trace_context.get(TRACEPARENT_ANNOTATION);
    let other = match operation {
        Operation::Attach => Operation::Detach,
        Operation::Detach => Operation::Attach,
    };
    let epoch = noted.and_then(|noted| epoch_of(noted, operation.as_str(), other.as_str(), &attachment.uid));
    epoch.unwrap_or_default()
}

/// The root of a lifecycle, of this replica or another.
pub(super) fn root_of(tracer: &Tracer, attachment: &Attachment, operation: Operation) -> SpanContext {
    let epoch = known_epoch(attachment, operation);
    let own = TraceIdentity::derive(operation.as_str(), &attachment.uid, epoch);
    own.context(tracer.samples(own.trace_id))
}

/// The detaches of the volume from other nodes that go on now.
fn active_detaches(tracer: &Tracer, snapshot: &Snapshot) -> impl Iterator<Item = SpanContext> {
    let elsewhere = snapshot.neighbours.elsewhere.iter();
    let leaving = elsewhere.filter(|other| other.deleting.is_some()).take(MOST_LEAVING);
    leaving.map(move |other| root_of(tracer, other, Operation::Detach))
}

/// The trace in which the volume was provisioned, then what is found on the attachment and on its volume.
fn incoming_contexts(snapshot: &Snapshot, tracing: &Tracing, metrics: &Metrics) -> Vec<SpanContext> {
    let attachment = ("VolumeAttachment", &snapshot.attachment.trace_context);
    let volume = snapshot.volume.as_ref().map(|volume| &volume.trace_context);
    let provisioned = volume.and_then(|context| w3c::parse(context.get(TRACEPARENT_ANNOTATION)?));
    let volume = volume.map(|context| ("PersistentVolume", context));
    incoming::contexts(provisioned, std::iter::once(attachment).chain(volume), tracing, metrics)
}
