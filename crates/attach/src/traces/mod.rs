//! The traces of what is pending: one for the lifecycle of an attach and one for that of a detach, however many attempts, restarts and
//! replicas it takes.
//!
//! The ids of a trace and its root follow from the UID of the VolumeAttachment, so that nothing here has to outlive the process. Attempts
//! are exported as they end; the root once, by the process that sees the lifecycle end: after a hand-over the next one goes on with the
//! same trace, and the next engine in this process also with what was counted (`progress`). It must not decide anything about attachments.

mod lifecycle;
mod recent;
mod root_span;

use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::watch;

use crate::api::validated::DriverConfig;
use crate::cache::{AttacherKey, NoAttemptReason, Snapshot};
use crate::clock;
use crate::decide::DriverFacts;
use crate::objects::{Attachment, Operation, Volume};
use crate::queue::{Queue, Run};
use crate::telemetry::lifecycle::LifecycleOutcome;
use crate::telemetry::{Metrics, Redaction, Span, SpanContext, Tracer};
use lifecycle::Lifecycle;
pub(crate) use lifecycle::{AttemptResult, PublishParameters};
use recent::RecentContexts;
pub(crate) use root_span::{describe, set_volume_attributes};

/// A lifecycle that is being worked on.
pub(crate) type SharedLifecycle = Arc<Mutex<Lifecycle>>;

/// The lifecycles of one driver's attachments. Clones share them.
#[derive(Clone)]
pub(crate) struct LifecycleTraces(Arc<LifecycleTracesInner>);

struct LifecycleTracesInner {
    facts: Arc<DriverFacts>,
    tracer: Tracer,
    metrics: Metrics,
    config: watch::Receiver<Arc<DriverConfig>>,
    queue: Queue<AttacherKey>,
    detached: Mutex<RecentContexts>,
}

/// What an attempt begins with; by default, that it is not traced: its span, its lifecycle, and the root of its trace, to be noted on the
/// attachment, where that trace is another one than before.
pub(crate) type AttemptTrace = (Span, Option<SharedLifecycle>, Option<SpanContext>);

impl LifecycleTraces {
    pub fn new(
        facts: Arc<DriverFacts>,
        queue: Queue<AttacherKey>,
        tracer: Tracer,
        metrics: Metrics,
        config: watch::Receiver<Arc<DriverConfig>>,
    ) -> Self {
        Self(Arc::new(LifecycleTracesInner {
            facts,
            queue,
            tracer,
            metrics,
            config,
            detached: Mutex::default(),
        }))
    }

    /// The tracer with the driver's settings, as they are now.
    pub fn tracer(&self) -> Tracer {
        self.0.tracer.with_settings(&self.0.config.borrow().tracing)
    }

    /// The same for spans about one attachment, whose names are not found in texts either where they are not to be shown.
    fn tracer_about(&self, snapshot: &Snapshot) -> Tracer {
        self.tracer_knowing(|redaction| root_span::redaction_for(redaction, snapshot))
    }

    /// The same for spans about a PersistentVolume.
    pub fn tracer_of(&self, volume: &Volume) -> Tracer {
        let handle = volume.spec.csi().map(|source| &*source.handle);
        self.tracer_knowing(|redaction| redaction.knowing(handle, volume.names()))
    }

    fn tracer_knowing(&self, known: impl FnOnce(&Redaction) -> Redaction) -> Tracer {
        let tracer = self.tracer();
        let redaction = tracer.redaction().map(known);
        tracer.redacting(redaction)
    }

    /// Opens the span of an attempt, which is a part of a lifecycle unless it repairs what was settled (`repairs`).
    pub fn start_attempt(&self, run: &Run<AttacherKey>, snapshot: &Snapshot, repairs: bool) -> AttemptTrace {
        let tracer = self.tracer_about(snapshot);
        let settings = self.0.config.borrow().clone();
        if !tracer.is_enabled() {
            return AttemptTrace::default();
        }
        if repairs {
            return (lifecycle::start_repair_span(&tracer, run, snapshot), None, None);
        }
        let handle = self.get_or_create(&tracer, run, snapshot, &settings);
        let (span, rolled) = {
            let mut lifecycle = handle.lock();
            let now = clock::now();
            let rolled = lifecycle.must_roll_over(&settings.tracing, now).then(|| {
                let links = self.attach_links(&lifecycle);
                lifecycle.roll_over(&tracer, &self.0.facts, &links, now)
            });
            // Who raises the share wants to see what fails now. Half a trace is of no use, so that a lower one counts for the next.
            lifecycle.sampled |= tracer.samples(lifecycle.own.trace_id);
            (lifecycle.attempt(&tracer, run), rolled)
        };
        if snapshot.operation() == Operation::Detach
            && let Some(volume) = snapshot.volume_handle()
        {
            let context = handle.lock().root_context();
            self.0.detached.lock().put(volume, context);
        }
        (span, Some(handle), rolled)
    }

    /// The lifecycle that is known, or a new one. One of another object or direction under the same name ends.
    fn get_or_create(
        &self,
        tracer: &Tracer,
        run: &Run<AttacherKey>,
        snapshot: &Snapshot,
        settings: &DriverConfig,
    ) -> SharedLifecycle {
        let attachment = &snapshot.attachment;
        if let Some(known) = self.known(&attachment.name) {
            let mut lifecycle = known.lock();
            if lifecycle.is_for(snapshot) {
                lifecycle.subject = lifecycle::without_neighbours(snapshot);
                drop(lifecycle);
                return known;
            }
            let same = *lifecycle.subject.attachment.uid == *attachment.uid;
            let outcome = lifecycle.outcome_after(same.then_some(attachment), &self.0.facts);
            drop(lifecycle);
            self.end_lifecycle(&known, outcome.unwrap_or(LifecycleOutcome::Aborted(lifecycle::DELETED)));
        }
        let mut lifecycle = Lifecycle::new(tracer, &self.0.metrics, run, snapshot, &self.0.facts, &settings.tracing);
        lifecycle.links.extend(self.attach_links(&lifecycle));
        lifecycle.sampled = tracer.samples(lifecycle.own.trace_id);
        let handle = Arc::new(Mutex::new(lifecycle));
        self.remember(&attachment.name, |known| *known = Some(handle.clone()));
        handle
    }

    /// The lifecycle that is remembered of an attachment.
    fn known(&self, name: &Arc<str>) -> Option<SharedLifecycle> {
        self.remember(name, |known| known.clone()).flatten()
    }

    /// Remembers a lifecycle that goes on, unless there is another one by now.
    fn keep(&self, name: &Arc<str>, handle: &SharedLifecycle) {
        self.remember(name, |known| {
            known.get_or_insert_with(|| handle.clone());
        });
    }

    fn remember<T>(&self, name: &Arc<str>, change: impl FnOnce(&mut Option<SharedLifecycle>) -> T) -> Option<T> {
        let key = AttacherKey::Attachment(name.clone());
        self.0.queue.remember(&key, |memory| change(&mut memory.lifecycle))
    }

    /// What an attach follows on: the last detach of its volume.
    fn attach_links(&self, lifecycle: &Lifecycle) -> Vec<SpanContext> {
        let handle = lifecycle.subject.volume_handle();
        let of_attach = handle.filter(|_| lifecycle.operation == Operation::Attach);
        let detach = of_attach.and_then(|handle| self.last_detach(handle));
        detach.into_iter().collect()
    }

    /// The trace of the last detach of a volume, if it is not too long ago.
    pub fn last_detach(&self, volume: &str) -> Option<SpanContext> {
        self.0.detached.lock().get(volume)
    }

    /// Takes in how an attempt ended, whose span has ended before. `known` asks what is known of the attachment by now.
    pub fn end_attempt(
        &self,
        handle: &SharedLifecycle,
        ended: AttemptResult,
        known: impl FnOnce() -> Option<Snapshot>,
    ) {
        handle.lock().record_attempt(ended);
        // Asked only now: a change that is reported from here on finds a lifecycle without a running attempt.
        let known = known();
        let outcome = {
            let mut lifecycle = handle.lock();
            let same = known.filter(|known| *known.attachment.uid == *lifecycle.subject.attachment.uid);
            if let Some(known) = &same {
                lifecycle.subject = lifecycle::without_neighbours(known);
            }
            match ended {
                AttemptResult::Succeeded => Some(LifecycleOutcome::Succeeded),
                AttemptResult::Failed(_) | AttemptResult::NoChange => {
                    let attachment = same.as_ref().map(|known| &*known.attachment);
                    lifecycle.outcome_after(attachment, &self.0.facts)
                }
            }
        };
        if let Some(outcome) = outcome {
            self.end_lifecycle(handle, outcome);
        }
    }

    /// Takes in that an attachment needs no attempt any more, of which this was remembered.
    pub fn end_settled(&self, attachment: &Attachment, rest: NoAttemptReason, remembered: Option<SharedLifecycle>) {
        let Some(handle) = remembered else { return };
        let outcome = {
            let lifecycle = handle.lock();
            if lifecycle.running {
                // The attempt that runs observes by itself.
                drop(lifecycle);
                return self.keep(&attachment.name, &handle);
            }
            let is_same = *lifecycle.subject.attachment.uid == *attachment.uid;
            let known = (is_same && rest == NoAttemptReason::Settled).then_some(attachment);
            lifecycle.outcome_after(known, &self.0.facts)
        };
        match outcome {
            Some(outcome) => self.end_lifecycle(&handle, outcome),
            None => self.keep(&attachment.name, &handle),
        }
    }

    /// Ends all lifecycles: the AttacherConfig is removed.
    pub fn end_all(&self) {
        let mut all: Vec<SharedLifecycle> = Vec::new();
        self.0
            .queue
            .remember_all(|_, memory| all.extend(memory.lifecycle.take()));
        for handle in all {
            self.end_lifecycle(&handle, LifecycleOutcome::Aborted(lifecycle::ABANDONED));
        }
    }

    fn end_lifecycle(&self, handle: &SharedLifecycle, outcome: LifecycleOutcome) {
        let name = {
            let mut lifecycle = handle.lock();
            if !std::mem::replace(&mut lifecycle.closed, true) {
                let tracer = self.tracer_about(&lifecycle.subject);
                let links = self.attach_links(&lifecycle);
                lifecycle.export(&tracer, &self.0.facts, outcome, &links, clock::now());
            }
            lifecycle.subject.attachment.name.clone()
        };
        let is_this = |known: &mut SharedLifecycle| Arc::ptr_eq(known, handle);
        self.remember(&name, |known| known.take_if(is_this));
    }

    /// What a line about an attachment names while no attempt is made: the root of its lifecycle.
    pub fn context_of(&self, snapshot: &Snapshot) -> Option<SpanContext> {
        let tracer = self.tracer();
        if !tracer.is_enabled() {
            return None;
        }
        if let Some(known) = self.known(&snapshot.attachment.name) {
            let lifecycle = known.lock();
            if lifecycle.is_for(snapshot) {
                return Some(lifecycle.root_context());
            }
        }
        Some(lifecycle::root_of(&tracer, &snapshot.attachment, snapshot.operation()))
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        let mut count = 0;
        self.0
            .queue
            .remember_all(|_, memory| count += usize::from(memory.lifecycle.is_some()));
        count
    }
}
