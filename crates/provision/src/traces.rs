//! The trace of what is done for a claim: one for all attempts, restarts and replicas.
//!
//! Its ids and those of its root follow from the UID of the claim, so that nothing has to outlive the process. Attempts are exported as
//! they end, and the root once, when the PersistentVolume is saved or nobody wants it any more.

use jiff::Timestamp;
use std::time::SystemTime;

use crate::clock;
use crate::key::{ClaimCause, ClaimKey};
use crate::objects::Claim;
use crate::queue::{Run, Trigger};
use crate::runtime::queue_metrics::queue_name;
use crate::telemetry::names::{attr, error_type, span};
use crate::telemetry::{Span, SpanContext, SpanKind, SpanOptions, TraceIdentity, Tracer};

/// The name of what is done, in ids, labels and attributes.
pub(crate) const PROVISION: &str = "provision";

/// How a life cycle ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LifecycleOutcome {
    /// The PersistentVolume is saved.
    Succeeded,
    /// Nobody wants a volume any more.
    Aborted,
}

/// The life cycle of a provision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lifecycle {
    own: TraceIdentity,
    sampled: bool,
    started: Timestamp,
    /// Whether the time of the start is that of the object.
    from_object: bool,
    attempts: u32,
}

impl Lifecycle {
    /// That of a claim which is seen for the first time.
    pub fn new(tracer: &Tracer, claim: &Claim) -> Self {
        let own = TraceIdentity::derive(PROVISION, &claim.uid, 0);
        // With delayed binding the wish begins when a node is selected, of which no object has the time.
        let created = claim.created.filter(|_| claim.selected_node.is_none());
        Self {
            own,
            sampled: tracer.samples(own.trace_id),
            started: created.unwrap_or_else(clock::now),
            from_object: created.is_some(),
            attempts: 0,
        }
    }

    /// Since when the volume is wanted.
    pub fn started(&self) -> Timestamp {
        self.started
    }

    /// The context of the root.
    pub fn context(&self) -> SpanContext {
        self.own.context(self.sampled)
    }

    /// Opens the span of an attempt.
    pub fn attempt(&mut self, tracer: &Tracer, run: &Run<ClaimKey>) -> Span {
        self.attempts += 1;
        let parent = self.context();
        let mut span = tracer.open(SpanOptions {
            parent: Some(&parent),
            sampled: Some(self.sampled),
            ..SpanOptions::new(span::PROVISION_ATTEMPT, SpanKind::Consumer)
        });
        if span.is_recording() {
            span.set(attr::ATTEMPT, i64::from(run.attempt()));
            span.set(attr::QUEUE_NAME, queue_name(crate::engine::LANE_NAMES, run.lane()));
            span.set(attr::TRIGGER, trigger(run));
            span.set(attr::QUEUE_WAIT, run.waited().as_secs_f64());
            span.set(attr::QUEUE_RETRIES, i64::from(run.failures()));
            span.set(attr::PERMIT_WAIT, run.waited_for_limit().as_secs_f64());
        }
        span
    }

    /// Exports the root, if the trace is sampled.
    pub fn end(
        &self,
        tracer: &Tracer,
        driver: &str,
        claim: &Claim,
        volume: Option<(&str, &str)>,
        outcome: LifecycleOutcome,
    ) {
        if !self.sampled {
            return;
        }
        let mut root = tracer.open(SpanOptions {
            start: Some(SystemTime::from(self.started)),
            identity: Some(self.own),
            sampled: Some(true),
            ..SpanOptions::new(span::PROVISION, SpanKind::Internal)
        });
        describe(&mut root, driver, claim);
        if let Some((name, handle)) = volume {
            root.set(attr::PERSISTENT_VOLUME_NAME, name);
            root.set(attr::CSI_VOLUME_ID, handle);
        }
        root.set(attr::ATTEMPTS, i64::from(self.attempts));
        root.set(attr::EPOCH, 0_u32);
        root.set(
            attr::START_SOURCE,
            if self.from_object { "creation" } else { "observed" },
        );
        match outcome {
            LifecycleOutcome::Succeeded => root.set(attr::OUTCOME, "succeeded"),
            LifecycleOutcome::Aborted => {
                root.set(attr::OUTCOME, "aborted");
                root.fail(
                    error_type::OTHER,
                    "the PersistentVolumeClaim was deleted or has another volume",
                );
            }
        }
        root.end_at(SystemTime::from(clock::now().max(self.started)));
    }
}

/// What a claim says of itself.
pub(crate) fn describe(span: &mut Span, driver: &str, claim: &Claim) {
    span.set(attr::OPERATION, PROVISION);
    span.set(attr::CSI_PLUGIN_NAME, driver);
    span.set(attr::PERSISTENT_VOLUME_CLAIM_NAME, &*claim.name);
    span.set(attr::PERSISTENT_VOLUME_CLAIM_UID, &*claim.uid);
    span.set(attr::NAMESPACE_NAME, &*claim.namespace);
    span.set(attr::STORAGE_CLASS_NAME, &*claim.class);
    if let Some(node) = &claim.selected_node {
        span.set(attr::NODE_NAME, &**node);
    }
}

/// Why an attempt is made, as `attacher.trigger` has it.
fn trigger(run: &Run<ClaimKey>) -> &'static str {
    let cause = match run.trigger() {
        Trigger::Event | Trigger::Wake => ClaimCause::of(run.cause()),
        Trigger::Retry => ClaimCause::Retry,
        Trigger::Again => ClaimCause::Resync,
    };
    cause.as_str()
}
