//! The trace of what is done for a claim or a PersistentVolume: one for all attempts, restarts and replicas.
//!
//! Its ids and those of its root follow from the UID of the object, so that nothing has to outlive the process. Attempts are exported as
//! they end, and the root once: when the PersistentVolume is saved or nobody wants it any more, and when the volume is deleted.

use jiff::Timestamp;
use parking_lot::Mutex;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::api::names::TRACEPARENT_ANNOTATION;
use crate::api::validated::Tracing;
use crate::clock;
use crate::key::WorkKey;
use crate::objects::{Claim, Volume};
use crate::provision::marked_since;
use crate::queue::Run;
use crate::runtime::report::set_run_attributes;
use crate::telemetry::lifecycle::{LifecycleOutcome, is_full};
use crate::telemetry::names::{attr, error_type, span};
use crate::telemetry::w3c;
use crate::telemetry::{Span, SpanContext, SpanKind, SpanOptions, TraceIdentity, Tracer};

pub(crate) use crate::provision::PendingOperation as Operation;

/// The names of the root and of an attempt.
const fn spans(operation: Operation) -> (&'static str, &'static str) {
    match operation {
        Operation::Provision => (span::PROVISION, span::PROVISION_ATTEMPT),
        Operation::Delete => (span::DELETE, span::DELETE_ATTEMPT),
    }
}

/// Why nobody wants a volume any more.
pub(crate) const NOT_WANTED: &str = "the PersistentVolumeClaim was deleted or has another volume";
/// Why a volume is not deleted after all. One that is left to another PersistentVolume with which it is has succeeded.
pub(crate) const KEPT: &str = "the volume is kept";
/// What the root of a life cycle says that ended with the role.
pub(crate) const NOT_PROVISIONED: &str = "spec.provisioning of the AttacherConfig was removed, or the AttacherConfig";

/// The life cycles of what has no attempt any more and has not ended: the role is off, or ends. Who serves the driver next goes on with them.
pub(crate) type LeftOpen = Mutex<BTreeMap<WorkKey, Lifecycle>>;

/// Since when something is wanted, whether it is traced or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Beginning {
    at: Timestamp,
    /// Whether the time is that of the object.
    from_object: bool,
}

impl Beginning {
    /// That of a volume which a claim wants of a driver, and which is seen for the first time; or `again`, after another one was saved or
    /// given up. `asked` is since when it is asked for, where this process saw the claim before that.
    pub fn of_claim(claim: &Claim, driver: &str, asked: Option<Timestamp>, again: bool) -> Self {
        // With delayed binding the wish begins when a node is selected, and else when there is a class, of which no object has the time. A
        // process that has ended may have begun with it: its marker says when.
        let is_by_claim = claim.selected_node.is_none() && !again;
        let asked = asked.filter(|_| is_by_claim);
        let created = claim.created.filter(|_| is_by_claim && asked.is_none());
        let marked = || marked_since(claim, driver).filter(|_| !again);
        let now = clock::now();
        let at = created.or_else(|| asked.into_iter().chain(marked()).min());
        Self {
            at: at.map_or(now, |at| at.min(now)),
            from_object: created.is_some(),
        }
    }

    /// That of something of which no object has the time.
    pub fn seen_now() -> Self {
        Self {
            at: clock::now(),
            from_object: false,
        }
    }

    /// The same, or now where that is a time to come: a clock that was set back makes no wait longer.
    #[must_use]
    pub fn until_now(self) -> Self {
        Self {
            at: self.at.min(clock::now()),
            ..self
        }
    }

    pub fn at(&self) -> Timestamp {
        self.at
    }

    pub fn elapsed(&self) -> Duration {
        clock::since(self.at)
    }
}

/// What is remembered of an object from attempt to attempt.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress {
    pub begun: Option<Beginning>,
    pub lifecycle: Option<Lifecycle>,
    pub attempts: u32,
    /// The last attempt that has a span, whichever trace that is in.
    pub previous: Option<SpanContext>,
    /// How many life cycles of the object ended before this one, or were continued in it.
    pub epoch: u32,
    /// Whether this one has ended: the volume is saved, or given up. What comes after that, as the end of a marker, is still a part of it.
    pub has_ended: bool,
}

impl Progress {
    /// Counts an attempt that did something or not, and in which the life cycle ended or not.
    pub fn count_attempt(&mut self, has_tried: bool, has_ended: bool) {
        if has_ended {
            (self.begun, self.lifecycle, self.has_ended) = (None, None, true);
        }
        self.attempts = self.attempts.saturating_add(u32::from(has_tried));
    }

    pub fn open_lifecycle(&self) -> Option<&Lifecycle> {
        self.lifecycle.as_ref().filter(|_| !self.has_ended)
    }

    /// A volume is wanted, also again after the end of a life cycle.
    pub fn begin_again(&mut self) {
        if self.has_ended {
            let epoch = self.epoch.saturating_add(1);
            *self = Self {
                epoch,
                ..Self::default()
            };
        }
    }

    /// Whether a volume was saved or given up before.
    pub fn is_again(&self) -> bool {
        self.has_ended || self.epoch > 0
    }

    /// The life cycle that the next attempt is a part of: a new one follows what `links` finds. One whose trace is as large or as old as
    /// `limits` let it be is continued in another one, and both are linked with each other; `describe` says what it is about.
    pub fn lifecycle(
        &mut self,
        tracer: &Tracer,
        (operation, uid): (Operation, &str),
        begun: Beginning,
        limits: &Tracing,
        links: impl FnOnce() -> Vec<SpanContext>,
        describe: impl FnOnce(&mut Span),
    ) -> &mut Lifecycle {
        if let Some(full) = self
            .lifecycle
            .take_if(|known| is_full(limits, known.epoch, known.attempts, clock::since(known.since)))
        {
            self.epoch = full.epoch + 1;
            let former = vec![full.context()];
            let next = Lifecycle {
                failure: full.failure.clone(),
                ..Lifecycle::new(tracer, (operation, uid), Beginning::seen_now(), self.epoch, former)
            };
            full.end(tracer, LifecycleOutcome::Continued, Some(next.context()), describe);
            self.lifecycle = Some(next);
        }
        let new = || Lifecycle::new(tracer, (operation, uid), begun, self.epoch, links());
        let lifecycle = self.lifecycle.get_or_insert_with(new);
        // As for attachments: a share that is raised counts at once, a lower one for the next life cycle.
        lifecycle.sampled |= tracer.samples(lifecycle.own.trace_id);
        lifecycle
    }
}

/// The life cycle of an operation.
#[derive(Clone, Debug)]
pub(crate) struct Lifecycle {
    operation: Operation,
    own: TraceIdentity,
    /// What the root follows: the epoch before, if it is continued in this one.
    links: Arc<[SpanContext]>,
    sampled: bool,
    begun: Beginning,
    /// Since when this process knows the epoch.
    since: Timestamp,
    epoch: u32,
    /// Those of this epoch.
    attempts: u32,
    pub failure: Option<Cow<'static, str>>,
}

impl Lifecycle {
    fn new(
        tracer: &Tracer,
        (operation, uid): (Operation, &str),
        begun: Beginning,
        epoch: u32,
        links: Vec<SpanContext>,
    ) -> Self {
        let own = TraceIdentity::derive(operation.as_str(), uid, epoch);
        Self {
            operation,
            own,
            links: links.into(),
            sampled: tracer.samples(own.trace_id),
            begun,
            since: clock::now(),
            epoch,
            attempts: 0,
            failure: None,
        }
    }

    pub fn context(&self) -> SpanContext {
        self.own.context(self.sampled)
    }

    /// Opens the span of the attempt that has this number in all traces of what is done; it is linked to those before.
    pub fn attempt(&mut self, tracer: &Tracer, run: &Run<WorkKey>, (number, links): (u32, &[SpanContext])) -> Span {
        self.attempts += 1;
        let parent = self.context();
        let span = tracer.open(SpanOptions {
            parent: Some(&parent),
            links,
            sampled: Some(self.sampled),
            ..SpanOptions::new(spans(self.operation).1, SpanKind::Consumer)
        });
        let mut span = span.must_end();
        if span.is_recording() {
            set_run_attributes(&mut span, run, crate::lanes::LANE_NAMES);
            span.set(attr::ATTEMPT, i64::from(number));
        }
        span
    }

    /// Exports the root, if the trace is sampled; `describe` says what it is about, and `next` is the epoch that it is continued in.
    pub fn end(
        &self,
        tracer: &Tracer,
        outcome: LifecycleOutcome,
        next: Option<SpanContext>,
        describe: impl FnOnce(&mut Span),
    ) {
        if !self.sampled {
            return;
        }
        let links: Vec<_> = self.links.iter().cloned().chain(next).collect();
        let mut root = tracer.open(SpanOptions {
            start: Some(SystemTime::from(self.begun.at)),
            identity: Some(self.own),
            links: &links,
            sampled: Some(true),
            ..SpanOptions::new(spans(self.operation).0, SpanKind::Internal)
        });
        describe(&mut root);
        root.set(attr::ATTEMPTS, i64::from(self.attempts));
        root.set(attr::EPOCH, self.epoch);
        root.set(
            attr::START_SOURCE,
            if self.begun.from_object { "creation" } else { "observed" },
        );
        let (word, unmet) = outcome.words();
        root.set(attr::OUTCOME, word);
        if let Some(unmet) = unmet {
            root.fail(self.failure.as_deref().unwrap_or(error_type::OTHER), unmet);
        }
        root.end_at(SystemTime::from(clock::now().max(self.begun.at)));
    }
}

pub(crate) fn describe(span: &mut Span, driver: &str, claim: &Claim) {
    span.set(attr::OPERATION, Operation::Provision.as_str());
    span.set(attr::CSI_PLUGIN_NAME, driver);
    span.set(attr::PERSISTENT_VOLUME_CLAIM_NAME, &*claim.name);
    span.set(attr::PERSISTENT_VOLUME_CLAIM_UID, &*claim.uid);
    span.set(attr::NAMESPACE_NAME, &*claim.namespace);
    span.set(attr::STORAGE_CLASS_NAME, &*claim.class);
    if let Some(node) = &claim.selected_node {
        span.set(attr::NODE_NAME, &**node);
    }
}

pub(crate) fn describe_volume(span: &mut Span, driver: &str, volume: &Volume) {
    span.set(attr::OPERATION, Operation::Delete.as_str());
    span.set(attr::CSI_PLUGIN_NAME, driver);
    span.set(attr::PERSISTENT_VOLUME_NAME, &*volume.name);
    if let Some(source) = volume.spec.csi() {
        span.set(attr::CSI_VOLUME_ID, &*source.handle);
    }
    if let Some(claim) = &volume.claim {
        span.set(attr::PERSISTENT_VOLUME_CLAIM_NAME, &*claim.name);
        span.set(attr::PERSISTENT_VOLUME_CLAIM_UID, &*claim.uid);
        span.set(attr::NAMESPACE_NAME, &*claim.namespace);
    }
    if let Some(class) = &volume.storage_class {
        span.set(attr::STORAGE_CLASS_NAME, &**class);
    }
}

/// The life cycle in which a volume was made, as its PersistentVolume says; none when it says nothing that can be read.
pub(crate) fn made_in(volume: &Volume) -> Option<SpanContext> {
    w3c::parse(volume.trace_context.get(TRACEPARENT_ANNOTATION)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::PersistentVolumeClaimWire;
    use serde_json::json;

    #[test]
    fn what_is_wanted_again_does_not_count_from_the_creation_of_the_claim() {
        let object = json!({
            "metadata": { "name": "data", "namespace": "web", "uid": "u", "creationTimestamp": "2020-01-01T00:00:00Z" },
            "spec": {},
        });
        let claim: Claim = serde_json::from_value::<PersistentVolumeClaimWire>(object)
            .unwrap()
            .into();
        let day = Duration::from_hours(24);
        assert!(Beginning::of_claim(&claim, "csi.test", None, false).elapsed() > day);
        assert!(Beginning::of_claim(&claim, "csi.test", None, true).elapsed() < day);
        // Nor what is asked for later.
        let asked = Some(clock::now());
        assert_eq!(asked, Some(Beginning::of_claim(&claim, "csi.test", asked, false).at()));
    }

    /// Or what is stuck would begin anew with each leader.
    #[test]
    fn a_wish_with_a_selected_node_began_at_the_marker_of_the_former_process() {
        let marker = json!({
            "driver": "csi.test", "uid": "u", "prefix": "pvc", "since": "2020-01-02T00:00:00Z", "writer": "w",
        });
        let object = json!({
            "metadata": {
                "name": "data", "namespace": "web", "uid": "u", "creationTimestamp": "2020-01-01T00:00:00Z",
                "finalizers": ["attacher.csi.dev/provisioning"],
                "annotations": {
                    "volume.kubernetes.io/selected-node": "n1", "attacher.csi.dev/provisioning": marker.to_string(),
                },
            },
            "spec": {},
        });
        let claim: Claim = serde_json::from_value::<PersistentVolumeClaimWire>(object)
            .unwrap()
            .into();
        let since = |driver, again| {
            let begun = Beginning::of_claim(&claim, driver, None, again);
            begun.at().to_string()
        };
        assert_eq!(since("csi.test", false), "2020-01-02T00:00:00Z");
        for now in [since("csi.test", true), since("other.test", false)] {
            assert!(*now > *"2026", "{now}");
        }
    }
}
