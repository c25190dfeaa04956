//! One attempt at a VolumeAttachment: observe, decide, perform one effect, apply the answer, decide again.

pub(super) mod attachment_map;
pub(super) mod call;
mod cause;
pub(super) mod detach_waits;
pub(super) mod events;
pub(super) mod failure_writes;
pub(super) mod in_flight;
mod kept;
pub(super) mod lookup;
mod publish_guard;
pub(super) mod release_request;
pub(super) mod report;
mod span;
pub(super) mod state;
pub(super) mod undo;
pub(super) mod unfinished;
pub(super) mod writes;

use super::context::DriverContext;
use super::release;
use super::secret_waiters::Withheld;
use crate::api::validated::DriverConfig;
use crate::apiserver::{ApiError, ApiErrorKind, SecretData};
use crate::cache::{AttacherKey, EnqueueCause, Snapshot, lane_of, observe};
use crate::decide::patch::{self, WriteTarget};
use crate::decide::{self, Action, Failure, Observed, Policy, Refusal, SecretState, Write};
use crate::queue::{Run, RunResult};
use crate::telemetry::names::error_type;
use crate::telemetry::trace::Span;
use crate::traces::AttemptResult;
use cause::FailureCause;
use csi_attacher_runtime::fence::LeaseLost;
use detach_waits::longest_hold;
use state::{Attempt, FailureNote, LEASE_LOST_REST, LIST_REST, StepResult, is_settled};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use writes::failed_with;

/// An attempt takes four steps at most; more of them mean that somebody changes the objects under our hands.
const MAX_STEPS: usize = 16;

pub(super) async fn run(work: &DriverContext, run: &Run<AttacherKey>, name: &str) -> RunResult {
    work.waits.calls.end(name);
    let mut attempt = Attempt {
        work,
        run,
        config: work.config.borrow().clone(),
        client: work.client(),
        span: Span::disabled(),
        lifecycle: None,
        ended: AttemptResult::NoChange,
        secrets: None,
        needed_secret: None,
        denied_secret: None,
        asked_for_volume: false,
        asked_for_node: false,
        confirmed: false,
        not_kept: None,
        retracted: false,
        noted: FailureNote::NotSent,
        may_be_on_record: false,
        calls: AtomicU32::new(0),
    };
    let result = run_to_completion(&mut attempt, name).await;
    attempt.end_span(name);
    work.queue.settle_rate(run, attempt.calls.load(Ordering::Relaxed));
    attempt.settle_waits(name, result);
    result
}

async fn run_to_completion(attempt: &mut Attempt<'_>, name: &str) -> RunResult {
    let (work, run, config) = (attempt.work, attempt.run, attempt.config.clone());
    let mut policy = policy(work, &config);
    let longest_hold = longest_hold(&config.timeouts);
    let mut opened = false;
    for step in 0..=MAX_STEPS {
        // Without the Lease no step is begun, be it a call or a write. The fence asks again at each call.
        if !work.client().may_start() {
            return attempt.without_lease(name, LeaseLost::NotStarted);
        }
        let Some(snapshot) = work.context.store.attachment(name) else {
            return RunResult::Done;
        };
        // What is claimed for an AttacherConfig that goes would stay behind, so this cannot wait for the next attempt.
        policy.leaving = work.config.borrow().leaving;
        let mut observed = Observed {
            detach_wait: work.waits.holds.state(name, longest_hold),
            forced: work.waits.forced.contains(&snapshot.attachment),
            ..observe(&snapshot, &work.facts, &policy, SecretState::NotLoaded)
        };
        observed.credentials = attempt.credentials_for(&observed);
        let action = (work.context.rules.attachment)(&observed);
        let attaches = snapshot.attachment.deleting.is_none() && !matches!(action, Action::ProtectVolume(_));
        if attaches && !work.context.store.lists().is_of_one_state() {
            // One object may be of another state of the API server than the rest, such as a protected volume. To protect one more
            // volume is right in each of them.
            return RunResult::RequeueAfter(LIST_REST);
        }
        if let Action::AwaitDetach(other) = &action {
            let exists = |name: &str| work.context.store.attachment(name).is_some();
            let rest = work.waits.holds.start(&snapshot.attachment.name, longest_hold, exists);
            report::report_detach_wait(work, &snapshot, other, "detached from", rest);
            return RunResult::RequeueAfter(rest);
        }
        if let Action::Ignore(reason) = action {
            traced!(
                debug,
                work.lifecycles.context_of(&snapshot),
                driver = &*work.facts.name,
                VolumeAttachment = name,
                ?reason,
                "nothing to do"
            );
            return RunResult::Done;
        }
        if lane_of(&snapshot.attachment, observed.forced) != run.lane() {
            // It was deleted since it was handed out, or attached, and must not take the place of an attach: others have lanes of their own.
            work.context.store.enqueue(name, EnqueueCause::Delete);
            return RunResult::Requeue;
        }
        if !std::mem::replace(&mut opened, true) {
            attempt.client = work.client_for(&snapshot);
            if attempt.open_span(&snapshot).await {
                continue;
            }
        }
        let stepped = attempt.step_or_end(step, &snapshot, &observed, action).await;
        if let StepResult::Finish(result) = stepped {
            return result;
        }
    }
    RunResult::Failed
}

/// The settings that decisions are made by.
fn policy(work: &DriverContext, config: &DriverConfig) -> Policy {
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
    fn credentials_for(&mut self, observed: &Observed<'_>) -> SecretState {
        let needed = decide::publish_secret(observed).ok().flatten();
        if self.secrets.is_some() && needed == self.needed_secret.as_ref() {
            return SecretState::Loaded;
        }
        self.secrets = None;
        SecretState::NotLoaded
    }

    /// Takes in what the attachment waits for after the attempt, and shows in the status of the AttacherConfig whether that
    /// is a Secret which the driver is not given.
    fn settle_waits(&self, name: &str, result: RunResult) {
        let (work, waits) = (self.work, &self.work.waits);
        if result == RunResult::Done {
            return waits.end(name);
        }
        // An attempt that did not get as far as the Secret learned nothing about it.
        if self.needed_secret.is_some() || self.denied_secret.is_some() {
            waits.secrets.learn(name, self.denied_secret.as_ref(), &work.publisher);
        }
        let failed = matches!(result, RunResult::Failed | RunResult::FailedWith { .. });
        if let Some(reference) = self.needed_secret.as_ref().filter(|_| failed) {
            let tried = self.secrets.as_ref().map(SecretData::version);
            let (requests, queue) = (&work.context.requests, &work.queue);
            waits.secrets.wait(requests, queue, reference, &Arc::from(name), tried);
        }
        // Asked after the wait began: who takes in the end of the attachment from here on ends it.
        let store = &work.context.store;
        if store.version(&WriteTarget::Attachment(name.into())).is_none() {
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
            ..observe(&snapshot, &work.facts, &policy, SecretState::NotLoaded)
        };
        waits
            .secrets
            .needs(name, &decide::publish_secret(&observed), &work.publisher);
    }

    /// Ends an attempt for which the Lease was lost. Nothing failed and nothing is written: others may work for the driver
    /// by now. The next holder of the Lease observes everything again, this process too.
    pub(super) fn without_lease(&mut self, name: &str, lost: LeaseLost) -> RunResult {
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
        RunResult::RequeueAfter(LEASE_LOST_REST)
    }

    /// A step of the attempt by its number; after too many of them its end.
    async fn step_or_end(
        &mut self,
        number: usize,
        snapshot: &Snapshot,
        observed: &Observed<'_>,
        action: Action<'_>,
    ) -> StepResult {
        if number < MAX_STEPS {
            return self.step(snapshot, observed, action).await;
        }
        let failure = Failure::plain("the objects kept changing during the attempt");
        self.fail_before_call(snapshot, observed, failure, FailureCause::Other)
            .await
    }

    async fn step(&mut self, snapshot: &Snapshot, observed: &Observed<'_>, action: Action<'_>) -> StepResult {
        if self.must_confirm(snapshot, &action) {
            let put_off = self.confirm_copies(snapshot, observed).await;
            return put_off.unwrap_or(StepResult::Continue);
        }
        match action {
            Action::Ignore(_) | Action::AwaitDetach(_) => StepResult::Finish(RunResult::Done),
            Action::Refuse(Refusal::VolumeNotFound(name)) if !std::mem::replace(&mut self.asked_for_volume, true) => {
                self.fetch_volume(name).await;
                StepResult::Continue
            }
            Action::Refuse(Refusal::NodeNotFound(name) | Refusal::DriverNotOnNode { node: name, .. })
                if !std::mem::replace(&mut self.asked_for_node, true) =>
            {
                self.fetch_csi_node(&name).await;
                StepResult::Continue
            }
            Action::JudgeRelease(plan) => self.judge_release(snapshot, observed, &plan).await,
            Action::RefuseRelease(refusal) => self.refuse_release(snapshot, observed, &refusal).await,
            Action::Refuse(refusal) => self.refuse(snapshot, observed, &refusal).await,
            Action::ProtectVolume(write) => {
                self.write_before_call(snapshot, observed, &write, "could not add PersistentVolume finalizer")
                    .await
            }
            Action::Claim(write) => {
                let _claiming = self.work.publisher.claiming();
                if self.work.config.borrow().leaving != observed.policy.leaving {
                    return StepResult::Continue;
                }
                let write = self.with_trace(write);
                self.write_before_call(snapshot, observed, &write, "could not save VolumeAttachment")
                    .await
            }
            Action::LoadCredentials(reference) => self.load_secret(snapshot, observed, reference).await,
            Action::Publish(_) if release::was_released_meanwhile(self.work, snapshot).await => StepResult::Continue,
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
                self.write_before_call(snapshot, observed, &write, "could not remove the finalizer")
                    .await
            }
            Action::Release(write) => {
                let step = self.record(snapshot, observed, |_| vec![write.clone()]).await;
                if matches!(step, StepResult::Finish(RunResult::Done))
                    && decide::is_claimed(&snapshot.attachment, &self.work.facts)
                {
                    report::released(self, snapshot);
                }
                step
            }
        }
    }

    /// Records what the call needs and does not have.
    async fn refuse(&mut self, snapshot: &Snapshot, observed: &Observed<'_>, refusal: &Refusal) -> StepResult {
        let failure = Failure::plain(refusal.to_string());
        let cause = FailureCause::Missing(refusal.reason());
        self.denied_secret = Withheld::not_allowed(refusal);
        let step = self.record_failure(snapshot, observed, failure, cause).await;
        if matches!(refusal, Refusal::CapabilityLost(_)) && self.work.facts.stalls() {
            self.work.capability_missed.notify_one();
        }
        step
    }

    /// A write on the way to the call. When it was made from a stale copy, the object is read and observed again;
    /// when the object is as we knew it, the API server means its refusal.
    async fn write_before_call(
        &mut self,
        snapshot: &Snapshot,
        observed: &Observed<'_>,
        write: &Write,
        what: &str,
    ) -> StepResult {
        let carries = self.lifecycle.is_some() && self.config.tracing.outgoing_annotation;
        let outcome = match &write.target {
            WriteTarget::Attachment(_) if carries => self.write_trace_context(snapshot, write).await,
            _ => self.write(&self.work.context.requests, snapshot, write).await,
        };
        let Err(error) = outcome else {
            report::report_prepared_write(self, snapshot, &write.target);
            return StepResult::Continue;
        };
        self.handle_prepared_error(snapshot, observed, (snapshot, write), what, error)
            .await
    }

    /// A write that the API server did not take, and on which no call depends that was made; with the copy that it was made from.
    pub(in crate::driver) async fn handle_prepared_error(
        &mut self,
        snapshot: &Snapshot,
        observed: &Observed<'_>,
        (copy, write): (&Snapshot, &Write),
        what: &str,
        error: ApiError,
    ) -> StepResult {
        let look_again = match error.kind {
            ApiErrorKind::NotFound => true,
            ApiErrorKind::Stale => self.is_outdated(copy, &write.target).await,
            // Once more: the answer may have been that to another request.
            ApiErrorKind::NotKept => self.not_kept.replace(write.target.clone()).as_ref() != Some(&write.target),
            _ => false,
        };
        if look_again {
            return StepResult::Continue;
        }
        // What is left of the claim is what the failure is about.
        let left = self
            .cached_snapshot(snapshot)
            .filter(|left| error.kind == ApiErrorKind::NotKept && left.operation() == snapshot.operation());
        let snapshot = left.as_ref().unwrap_or(snapshot);
        let cause = if error.kind == ApiErrorKind::Stale {
            FailureCause::Conflict
        } else {
            FailureCause::Other
        };
        let failure = Failure::plain(format!("{what}: {error}"));
        if error.is_transient() {
            // The API server is out of order: one more write, about an error that is its own, would not help.
            report::report_failure(self, snapshot, &failure, cause);
            return StepResult::Finish(failed_with(observed));
        }
        self.fail_before_call(snapshot, observed, failure, cause).await
    }

    /// Ends an attempt that did not get as far as its call. What is attached, whose volume is only to be protected again, shows no
    /// attachError for it.
    async fn fail_before_call(
        &mut self,
        snapshot: &Snapshot,
        observed: &Observed<'_>,
        failure: Failure,
        cause: FailureCause,
    ) -> StepResult {
        if is_settled(snapshot, self.work) && !observed.forced {
            report::report_failure(self, snapshot, &failure, cause);
            return StepResult::Finish(failed_with(observed));
        }
        self.record_failure(snapshot, observed, failure, cause).await
    }
}
