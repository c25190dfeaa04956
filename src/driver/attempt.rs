//! One attempt at a VolumeAttachment: observe, decide, perform one effect, take in the answer, decide again.

use std::time::Duration;

use super::engine::Work;
use super::fence::{FencedClient, LeaseLost};
use super::holds::longest_hold;
use super::lives::{Ended, Handle};
use super::record::failed_with;
use super::release;
use super::report::{self, Cause};
use super::secrets::Withheld;
use crate::api::validated::DriverConfig;
use crate::decide::patch::{self, Target};
use crate::decide::{self, Action, Credentials, Failure, Observed, Policy, Refusal, Write};
use crate::kubernetes::{ApiError, ApiErrorKind, SecretData};
use crate::objects::SecretReference;
use crate::queue::{Run, Verdict};
use crate::store::{AttacherKey, Cause as Reason, Snapshot, lane_of, observe};
use crate::telemetry::names::error_type;
use crate::telemetry::trace::Span;
use crate::telemetry::w3c;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// An attempt takes four steps at most; more of them mean that somebody changes the objects under our hands.
const MAX_STEPS: usize = 16;
/// How long an attempt rests that waits for lists.
pub(super) const LIST_REST: Duration = Duration::from_millis(200);
/// How long an attachment is left alone after the Lease was lost. Its queue ends long before that.
pub(super) const LEASE_LOST_REST: Duration = Duration::from_mins(1);

/// Everything of one attempt.
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own, and no state")]
pub(super) struct Attempt<'w> {
    pub work: &'w Work,
    pub run: &'w Run<AttacherKey>,
    pub config: Arc<DriverConfig>,
    pub client: FencedClient,
    /// Opened by the first step that does something: looking at a settled object makes no span.
    pub span: Span,
    /// The life that the attempt is a part of, when it is traced.
    pub life: Option<Handle>,
    /// How it ended, as far as it has.
    pub ended: Ended,
    pub secrets: Option<SecretData>,
    /// The Secret that the volume names, once it was asked for.
    pub needed_secret: Option<SecretReference>,
    /// Why the driver is not given the Secret that the volume names, if it is not.
    pub denied_secret: Option<Withheld>,
    /// Whether the API server was asked for a volume that the cache does not know.
    asked_for_volume: bool,
    /// The same, for the CSINode.
    asked_for_node: bool,
    /// Whether the volume was taken back from where earlier tries may have left it.
    pub retracted: bool,
    /// Whether the last failure is written on the attachment, so that it was there.
    pub noted: bool,
    /// Calls to the driver that were made. `callsPerSecond` is about these, while the queue counts starts.
    pub calls: AtomicU32,
}

/// How a step went.
pub(super) enum Step {
    /// Look again.
    Again,
    /// The attempt is over.
    End(Verdict),
}

/// Whether there is nothing to attach or detach any more for an attachment that is not forced: it is attached, or what was
/// attached is taken back.
pub(super) fn is_settled(snapshot: &Snapshot, work: &Work) -> bool {
    let attachment = &snapshot.attachment;
    if attachment.deleting.is_some() {
        !attachment.finalizers.contains(&work.facts.finalizer)
    } else {
        attachment.attached
    }
}

/// Runs one attempt.
pub(super) async fn run(work: &Work, run: &Run<AttacherKey>, name: &str) -> Verdict {
    work.waits.calls.end(name);
    let mut attempt = Attempt {
        work,
        run,
        config: work.config.borrow().clone(),
        client: work.client(),
        span: Span::disabled(),
        life: None,
        ended: Ended::Neither,
        secrets: None,
        needed_secret: None,
        denied_secret: None,
        asked_for_volume: false,
        asked_for_node: false,
        retracted: false,
        noted: false,
        calls: AtomicU32::new(0),
    };
    let verdict = to_its_end(&mut attempt, name).await;
    attempt.end_span(name);
    work.queue.settle_rate(run, attempt.calls.load(Ordering::Relaxed));
    attempt.settle_waits(name, verdict);
    verdict
}

async fn to_its_end(attempt: &mut Attempt<'_>, name: &str) -> Verdict {
    let (work, run, config) = (attempt.work, attempt.run, attempt.config.clone());
    let mut policy = policy(work, &config);
    let longest_hold = longest_hold(&config.timeouts);
    let mut opened = false;
    for _ in 0..MAX_STEPS {
        // Without the Lease no step is begun, be it a call or a write. Each call is looked at again when it is made.
        if !work.client().may_start() {
            return attempt.without_lease(name, LeaseLost::NotStarted);
        }
        let Some(snapshot) = work.context.store.attachment(name) else {
            return Verdict::Done;
        };
        // What is claimed for an AttacherConfig that goes would stay behind, so this cannot wait for the next attempt.
        policy.leaving = work.config.borrow().leaving;
        let mut observed = Observed {
            patience: work.waits.holds.patience(name, longest_hold),
            forced: work.waits.forced.contains(&snapshot.attachment),
            ..observe(&snapshot, &work.facts, &policy, Credentials::NotLoaded)
        };
        observed.credentials = attempt.credentials_for(&observed);
        let action = (work.rules.attachment)(&observed);
        let attaches = snapshot.attachment.deleting.is_none() && !matches!(action, Action::ProtectVolume(_));
        if attaches && !work.context.store.is_of_one_state() {
            // What was looked at may be of another state of the API server than the rest, such as a protected volume. To protect
            // one more is not wrong in any.
            return Verdict::After(LIST_REST);
        }
        if let Action::Hold(other) = &action {
            let exists = |name: &str| work.context.store.attachment(name).is_some();
            let rest = work.waits.holds.hold(&snapshot.attachment.name, longest_hold, exists);
            report::held(work, &snapshot, other, "detached from", rest);
            return Verdict::After(rest);
        }
        if let Action::Ignore(reason) = action {
            traced!(
                debug,
                work.lives.context_of(&snapshot),
                driver = &*work.facts.name,
                VolumeAttachment = name,
                ?reason,
                "nothing to do"
            );
            return Verdict::Done;
        }
        if lane_of(&snapshot.attachment) != run.lane() {
            // It was deleted since it was handed out, and must not take the place of an attach: a detach has its own lane.
            work.context.store.look_at(name, Reason::Delete);
            return Verdict::Again;
        }
        if !std::mem::replace(&mut opened, true) {
            attempt.client = work.client_for(&snapshot);
            if attempt.open_span(&snapshot).await {
                continue;
            }
        }
        match attempt.step(&snapshot, &observed, action).await {
            Step::Again => {}
            Step::End(verdict) => return verdict,
        }
    }
    let failure = Failure::plain("the objects kept changing during the attempt");
    report::failed(attempt, name, None, &failure, Cause::Other);
    Verdict::Failed
}

/// The settings that decisions are made by.
fn policy(work: &Work, config: &DriverConfig) -> Policy {
    Policy {
        default_fs_type: config.default_fs_type.as_str().into(),
        orphans: config.orphan_policy,
        leaving: config.leaving,
        publish_secrets: config.publish_secrets.clone(),
        config: work.config_name.clone(),
    }
}

impl Attempt<'_> {
    /// Whether the Secret that was read is the one that is needed. A volume that was made again under its name may need another.
    fn credentials_for(&mut self, observed: &Observed<'_>) -> Credentials {
        let needed = decide::publish_secret(observed).ok().flatten();
        if self.secrets.is_some() && needed == self.needed_secret.as_ref() {
            return Credentials::Loaded;
        }
        self.secrets = None;
        Credentials::NotLoaded
    }

    /// Takes in what the attachment waits for after the attempt, and shows in the status of the AttacherConfig whether that
    /// is a Secret which the driver is not given.
    fn settle_waits(&self, name: &str, verdict: Verdict) {
        let (work, waits) = (self.work, &self.work.waits);
        if verdict == Verdict::Done {
            return waits.end(name);
        }
        // An attempt that did not get as far as the Secret learned nothing about it.
        if self.needed_secret.is_some() || self.denied_secret.is_some() {
            waits.secrets.learn(name, self.denied_secret.as_ref(), &work.publisher);
        }
        let failed = matches!(verdict, Verdict::Failed | Verdict::FailedWith { .. });
        if let Some(reference) = self.needed_secret.as_ref().filter(|_| failed) {
            let tried = self.secrets.as_ref().map(SecretData::version);
            let (requests, queue) = (&work.context.requests, &work.queue);
            waits.secrets.wait(requests, queue, reference, &Arc::from(name), tried);
        }
        // Asked after the wait began: who takes in the end of the attachment from here on ends it.
        let store = &work.context.store;
        if store.version(&Target::Attachment(name.into())).is_none() {
            return waits.end(name);
        }
        if !waits.secrets.concern(name) {
            return;
        }
        let Some(snapshot) = store.attachment(name) else {
            return waits.end(name);
        };
        let policy = policy(work, &self.config);
        let observed = Observed {
            forced: waits.forced.contains(&snapshot.attachment),
            ..observe(&snapshot, &work.facts, &policy, Credentials::NotLoaded)
        };
        waits
            .secrets
            .needs(name, &decide::publish_secret(&observed), &work.publisher);
    }

    /// Ends an attempt for which the Lease was lost. Nothing failed and nothing is written: others may work for the driver
    /// by now. Whoever holds the Lease next looks at everything anew, this process too.
    pub(super) fn without_lease(&mut self, name: &str, lost: LeaseLost) -> Verdict {
        let driver = &*self.work.facts.name;
        match lost {
            LeaseLost::NotStarted => {
                traced!(debug, self.span, driver, VolumeAttachment = name, "{lost}");
            }
            LeaseLost::Cancelled => {
                traced!(warn, self.span, driver, VolumeAttachment = name, "{lost}");
                self.span.fail(error_type::OTHER, &lost.to_string());
            }
        }
        Verdict::After(LEASE_LOST_REST)
    }

    /// Opens the span. True when the attachment was written to on the way, so that it has to be looked at again.
    async fn open_span(&mut self, snapshot: &Snapshot) -> bool {
        let begun = self
            .work
            .lives
            .begin(self.run, snapshot, is_settled(snapshot, self.work));
        self.span = begun.span;
        self.life = begun.life;
        report::describe_attempt(&mut self.span, self.work, self.run, snapshot);
        match begun.rolled {
            Some(root) if self.config.tracing.outgoing_annotation => {
                // Whoever comes after this process finds the new trace by it. If it cannot be written, nothing is lost but that.
                let note = patch::note_trace(&snapshot.attachment, &w3c::traceparent(&root));
                self.inject(snapshot, &note).await.ok();
                true
            }
            _ => false,
        }
    }

    /// Ends the span, and the life that it is a part of if that is over.
    fn end_span(&mut self, name: &str) {
        std::mem::take(&mut self.span).end();
        let store = &self.work.context.store;
        if let Some(life) = self.life.take() {
            let ended = std::mem::replace(&mut self.ended, Ended::Neither);
            self.work.lives.rest(&life, ended, || store.attachment(name));
        }
    }

    /// The claim, with the trace that the attach is told in.
    fn with_trace(&self, claim: Write) -> Write {
        match (&self.life, self.config.tracing.outgoing_annotation) {
            (Some(life), true) => {
                let context = life.lock().root_context();
                patch::with_trace(claim, &w3c::traceparent(&context))
            }
            _ => claim,
        }
    }

    /// Sends a write that puts a trace context on the attachment.
    async fn inject(&self, snapshot: &Snapshot, write: &Write) -> Result<bool, ApiError> {
        let outcome = self.write(snapshot, write).await;
        let metrics = &self.work.context.metrics;
        metrics.trace_context_injected("VolumeAttachment", outcome.is_ok());
        outcome
    }

    async fn step(&mut self, snapshot: &Snapshot, observed: &Observed<'_>, action: Action<'_>) -> Step {
        match action {
            Action::Ignore(_) | Action::Hold(_) => Step::End(Verdict::Done),
            Action::Refuse(Refusal::VolumeNotFound(name)) if !std::mem::replace(&mut self.asked_for_volume, true) => {
                self.ask_for_volume(name).await;
                Step::Again
            }
            Action::Refuse(Refusal::NodeNotFound(name) | Refusal::DriverNotOnNode { node: name, .. })
                if !std::mem::replace(&mut self.asked_for_node, true) =>
            {
                self.ask_for_node(&name).await;
                Step::Again
            }
            Action::Refuse(refusal) => {
                let (failure, cause) = (Failure::plain(refusal.to_string()), Cause::Missing(refusal.reason()));
                self.denied_secret = Withheld::not_allowed(&refusal);
                let step = self.fail(snapshot, observed, failure, cause).await;
                if matches!(refusal, Refusal::CapabilityLost(_)) && self.work.facts.stalls() {
                    self.work.capability_missed.notify_one();
                }
                step
            }
            Action::ProtectVolume(write) => {
                self.prepare(snapshot, observed, &write, "could not add PersistentVolume finalizer")
                    .await
            }
            Action::Claim(write) => {
                let _claiming = self.work.publisher.claiming();
                if self.work.config.borrow().leaving != observed.policy.leaving {
                    return Step::Again;
                }
                let write = self.with_trace(write);
                self.prepare(snapshot, observed, &write, "could not save VolumeAttachment")
                    .await
            }
            Action::LoadCredentials(reference) => self.load(snapshot, observed, reference).await,
            Action::Publish(_) if release::overtook(self.work, snapshot).await => Step::Again,
            Action::Publish(plan) => self.publish(snapshot, observed, &plan).await,
            Action::Unpublish(plan) => self.unpublish(snapshot, observed, &plan).await,
            Action::MarkAttached(_) => {
                self.record(snapshot, observed, |observed| {
                    vec![patch::attached(observed.attachment, None)]
                })
                .await
            }
            // It is wanted, and only a finalizer that comes from no publish is taken off.
            Action::Release(write) if snapshot.attachment.deleting.is_none() => {
                self.prepare(snapshot, observed, &write, "could not remove the finalizer")
                    .await
            }
            Action::Release(write) => {
                let step = self.record(snapshot, observed, |_| vec![write.clone()]).await;
                if matches!(step, Step::End(Verdict::Done))
                    && decide::is_claimed(&snapshot.attachment, &self.work.facts)
                {
                    report::released(self, snapshot);
                }
                step
            }
        }
    }

    /// A write on the way to the call. When it was made from a stale copy, the object is read and looked at again;
    /// when the object is as we knew it, the API server means its refusal.
    async fn prepare(&mut self, snapshot: &Snapshot, observed: &Observed<'_>, write: &Write, what: &str) -> Step {
        let carries = self.life.is_some() && self.config.tracing.outgoing_annotation;
        let outcome = match &write.target {
            Target::Attachment(_) if carries => self.inject(snapshot, write).await,
            _ => self.write(snapshot, write).await,
        };
        let Err(error) = outcome else {
            report::prepared(self, snapshot, &write.target);
            return Step::Again;
        };
        let look_again = match error.kind {
            ApiErrorKind::NotFound => true,
            ApiErrorKind::Stale => self.is_outdated(snapshot, &write.target).await,
            _ => false,
        };
        if look_again {
            return Step::Again;
        }
        let cause = if error.kind == ApiErrorKind::Stale {
            Cause::Conflict
        } else {
            Cause::Other
        };
        // The API server is out of order: one more write, about an error that is its own, would not help. And what is attached,
        // whose volume is only to be protected again, shows no attachError for it.
        if error.is_transient() || (is_settled(snapshot, self.work) && !observed.forced) {
            let failure = Failure::plain(format!("{what}: {error}"));
            report::failed(self, &snapshot.attachment.name, Some(snapshot), &failure, cause);
            return Step::End(failed_with(observed));
        }
        self.fail(snapshot, observed, Failure::plain(format!("{what}: {error}")), cause)
            .await
    }
}
