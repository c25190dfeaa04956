//! The traces of what is pending: one for the life of an attach and one for that of a detach, however many attempts,
//! restarts and replicas it takes.
//!
//! The ids of a trace and its root follow from the UID of the VolumeAttachment, so that nothing here has to outlive the
//! process. Attempts are exported as they end; the root once, when the life ends, and by whoever sees it end. It is not
//! exported at the end of the process or at a hand-over: the next one goes on with the same trace. What is kept in
//! memory is only about attachments that are worked on, and nothing at all while tracing is off. It must not decide
//! anything about attachments.

mod ids;
mod incoming;
mod life;
mod recent;
mod root;
mod start;

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::watch;

use super::report::Operation;
use crate::api::validated::DriverConfig;
use crate::clock;
use crate::decide::DriverFacts;
use crate::objects::{Attachment, Volume};
use crate::queue::Run;
use crate::store::{AttacherKey, Rest, Snapshot};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::trace::{Span, Tracer};
use crate::telemetry::{Redaction, SpanContext};
pub(super) use life::{Ended, Plan};
use life::{Life, Outcome};
use recent::Recent;

/// Lives that are remembered at the same time; of those beyond, each attempt stands for itself in the same trace.
const MOST: usize = 100_000;

/// A life that is being worked on.
pub(in crate::driver) type Handle = Arc<Mutex<Life>>;

/// The lives of one driver's attachments. Clones share them.
#[derive(Clone)]
pub(super) struct Lives(Arc<Inner>);

struct Inner {
    facts: Arc<DriverFacts>,
    tracer: Tracer,
    metrics: Metrics,
    config: watch::Receiver<Arc<DriverConfig>>,
    /// By the name of the attachment.
    pending: Mutex<HashMap<Arc<str>, Handle>>,
    /// How many there are, to be read without the lock.
    count: AtomicUsize,
    /// The last detach of each volume.
    detached: Mutex<Recent>,
}

/// What an attempt begins with.
pub(super) struct Begun {
    pub span: Span,
    pub life: Option<Handle>,
    /// That the trace is another one than before, and this is its root; to be noted on the attachment.
    pub rolled: Option<SpanContext>,
}

impl Begun {
    fn untold() -> Self {
        Self {
            span: Span::disabled(),
            life: None,
            rolled: None,
        }
    }
}

impl Lives {
    pub fn new(
        facts: Arc<DriverFacts>,
        tracer: Tracer,
        metrics: Metrics,
        config: watch::Receiver<Arc<DriverConfig>>,
    ) -> Self {
        Self(Arc::new(Inner {
            facts,
            tracer,
            metrics,
            config,
            pending: Mutex::default(),
            count: AtomicUsize::new(0),
            detached: Mutex::default(),
        }))
    }

    /// The tracer with the driver's settings, as they are now.
    pub fn tracer(&self) -> Tracer {
        let config = self.0.config.borrow();
        let redact = config.tracing.redact;
        self.0
            .tracer
            .sampling(config.tracing.samples_per_million)
            .redacting(Redaction::new(redact.volume_id, redact.names))
    }

    /// The same for spans about one attachment, whose names are not found in texts either where they are not to be shown.
    fn tracer_about(&self, snapshot: &Snapshot) -> Tracer {
        let tracer = self.tracer();
        let known = tracer.redaction().map(|redaction| root::known(redaction, snapshot));
        match known {
            Some(redaction) => tracer.redacting(Some(redaction)),
            None => tracer,
        }
    }

    /// The same for spans about a PersistentVolume.
    pub fn tracer_of(&self, volume: &Volume) -> Tracer {
        let tracer = self.tracer();
        let known = tracer.redaction().map(|redaction| {
            let handle = volume.spec.csi().map(|source| &*source.handle);
            redaction.knowing(handle, root::names_of(volume))
        });
        match known {
            Some(redaction) => tracer.redacting(Some(redaction)),
            None => tracer,
        }
    }

    /// Opens the span of an attempt, which is a part of a life unless it repairs what was settled (`repairs`).
    pub fn begin(&self, run: &Run<AttacherKey>, snapshot: &Snapshot, repairs: bool) -> Begun {
        let tracer = self.tracer_about(snapshot);
        let settings = self.0.config.borrow().clone();
        if !tracer.is_enabled() {
            return Begun::untold();
        }
        if repairs {
            let span = life::repair(&tracer, run, snapshot);
            return Begun {
                span,
                ..Begun::untold()
            };
        }
        let handle = self.take_up(&tracer, run, snapshot, &settings);
        let (span, rolled) = {
            let mut life = handle.lock();
            let now = clock::now();
            let rolled = life.is_full(&settings.tracing, now).then(|| {
                let links = self.predecessors(&life);
                life.roll_over(&tracer, &self.0.facts, &links, now)
            });
            (life.attempt(&tracer, run), rolled)
        };
        if Operation::of(snapshot) == Operation::Detach {
            self.remember_detach(snapshot, &handle);
        }
        Begun {
            span,
            life: Some(handle),
            rolled,
        }
    }

    /// The life that is known, or a new one. One of another object or direction under the same name ends.
    fn take_up(&self, tracer: &Tracer, run: &Run<AttacherKey>, snapshot: &Snapshot, settings: &DriverConfig) -> Handle {
        let attachment = &snapshot.attachment;
        let known = self.0.pending.lock().get(&attachment.name).cloned();
        if let Some(known) = known {
            let mut life = known.lock();
            if life.is_about(snapshot) {
                life.subject = root::slim(snapshot);
                drop(life);
                return known;
            }
            let same = *life.subject.attachment.uid == *attachment.uid;
            let outcome = life.outcome_after(same.then_some(attachment), &self.0.facts);
            drop(life);
            self.close(&known, outcome.unwrap_or(Outcome::Aborted(life::DELETED)));
        }
        let mut life = Life::new(tracer, &self.0.metrics, run, snapshot, &self.0.facts, &settings.tracing);
        life.links.extend(self.predecessors(&life));
        life.sampled = tracer.samples(life.own.trace_id);
        let handle = Arc::new(Mutex::new(life));
        let mut pending = self.0.pending.lock();
        if pending.len() < MOST {
            pending.insert(attachment.name.clone(), handle.clone());
            self.0.count.store(pending.len(), Ordering::Relaxed);
        }
        handle
    }

    /// What an attach follows on: the last detach of its volume.
    fn predecessors(&self, life: &Life) -> Vec<SpanContext> {
        let handle = super::report::volume_handle(&life.subject);
        let of_attach = handle.filter(|_| life.operation == Operation::Attach);
        of_attach
            .and_then(|handle| self.last_detach(handle))
            .into_iter()
            .collect()
    }

    fn remember_detach(&self, snapshot: &Snapshot, handle: &Handle) {
        if let Some(volume) = super::report::volume_handle(snapshot) {
            let context = handle.lock().root_context();
            self.0.detached.lock().put(volume, context);
        }
    }

    /// The trace of the last detach of a volume, if it is not too long ago.
    pub fn last_detach(&self, volume: &str) -> Option<SpanContext> {
        self.0.detached.lock().get(volume)
    }

    /// Takes in how an attempt ended, whose span has ended before. `known` asks what is known of the attachment by now.
    pub fn rest(&self, handle: &Handle, ended: Ended, known: impl FnOnce() -> Option<Snapshot>) {
        handle.lock().take_in(ended);
        // Only now is asked what is known: who tells of a change from here on finds a life that nobody is at.
        let known = known();
        let outcome = {
            let mut life = handle.lock();
            let same = known.filter(|known| *known.attachment.uid == *life.subject.attachment.uid);
            if let Some(known) = &same {
                life.subject = root::slim(known);
            }
            match ended {
                Ended::Succeeded => Some(Outcome::Succeeded),
                Ended::Failed(_) | Ended::Neither => {
                    let attachment = same.as_ref().map(|known| &*known.attachment);
                    life.outcome_after(attachment, &self.0.facts)
                }
            }
        };
        if let Some(outcome) = outcome {
            self.close(handle, outcome);
        }
    }

    /// Takes in that an attachment needs no attempt any more.
    pub fn settled(&self, attachment: &Attachment, rest: Rest) {
        if self.0.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let known = self.0.pending.lock().get(&attachment.name).cloned();
        let Some(handle) = known else { return };
        let outcome = {
            let life = handle.lock();
            if life.running || *life.subject.attachment.uid != *attachment.uid {
                // The attempt that runs looks by itself.
                return;
            }
            life.outcome_after((rest == Rest::Settled).then_some(attachment), &self.0.facts)
        };
        if let Some(outcome) = outcome {
            self.close(&handle, outcome);
        }
    }

    /// Ends all lives: nobody will work on them any more.
    pub fn abandon(&self) {
        let all: Vec<Handle> = self.0.pending.lock().values().cloned().collect();
        for handle in all {
            self.close(&handle, Outcome::Aborted(life::ABANDONED));
        }
    }

    fn close(&self, handle: &Handle, outcome: Outcome) {
        let name = {
            let mut life = handle.lock();
            if !std::mem::replace(&mut life.closed, true) {
                let tracer = self.tracer_about(&life.subject);
                let links = self.predecessors(&life);
                life.export(&tracer, &self.0.facts, outcome, &links, clock::now());
            }
            life.subject.attachment.name.clone()
        };
        let mut pending = self.0.pending.lock();
        if pending.get(&name).is_some_and(|known| Arc::ptr_eq(known, handle)) {
            pending.remove(&name);
            self.0.count.store(pending.len(), Ordering::Relaxed);
        }
    }

    /// What a line about an attachment names while no attempt is made: the root of its life.
    pub fn context_of(&self, snapshot: &Snapshot) -> Option<SpanContext> {
        let tracer = self.tracer();
        if !tracer.is_enabled() {
            return None;
        }
        let known = self.0.pending.lock().get(&snapshot.attachment.name).cloned();
        if let Some(known) = known {
            let life = known.lock();
            if life.is_about(snapshot) {
                return Some(life.root_context());
            }
        }
        Some(ids::root_of(&tracer, &snapshot.attachment, Operation::of(snapshot)))
    }

    /// How many lives are remembered.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.0.pending.lock().len()
    }
}

/// When something happened that this process remembers as an instant.
fn wall(instant: tokio::time::Instant) -> jiff::Timestamp {
    let now = clock::now();
    let ago = jiff::SignedDuration::try_from(instant.elapsed()).unwrap_or_default();
    now.checked_sub(ago).unwrap_or(now)
}
