//! One attempt at a VolumeAttachment: observe, decide, perform one effect, take in the answer, decide again.

use std::time::Duration;
use tokio::time::Instant;

use super::calls::Calls;
use super::engine::Work;
use super::release;
use super::report::{self, Operation};
use crate::api::validated::DriverConfig;
use crate::clock;
use crate::decide::patch::Target;
use crate::decide::{self, Action, Credentials, Failure, Observed, Outcome, Policy, Refusal, Write};
use crate::kubernetes::{ApiError, ApiErrorKind, Returned, SecretData};
use crate::objects::SecretReference;
use crate::queue::{Run, Verdict};
use crate::store::{AttacherKey, Snapshot, observe};
use crate::telemetry::trace::Span;
use std::sync::Arc;

/// An attempt takes four steps at most; more of them mean that somebody changes the objects under our hands.
const MAX_STEPS: usize = 16;
/// How often a result is offered to the API server before the attempt counts as failed.
const MAX_WRITES: u32 = 4;
/// The longest that an attach is held back for the detach of its volume from another node.
const LONGEST_HOLD: Duration = Duration::from_mins(2);
const FIRST_WRITE_PAUSE: Duration = Duration::from_millis(100);
const MAX_WRITE_PAUSE: Duration = Duration::from_secs(5);

/// Everything of one attempt.
pub(super) struct Attempt<'w> {
    pub work: &'w Work,
    pub run: &'w Run<AttacherKey>,
    pub config: Arc<DriverConfig>,
    pub client: Arc<dyn Calls>,
    /// Opened by the first step that does something: looking at a settled object makes no span.
    pub span: Span,
    pub secrets: Option<SecretData>,
    /// The Secret that the volume names, once it was asked for.
    pub needed_secret: Option<SecretReference>,
    /// Whether the API server was asked for a volume that the cache does not know.
    asked_for_volume: bool,
    /// The same, for the CSINode.
    asked_for_node: bool,
    /// Whether the volume was taken back from where earlier tries may have left it.
    pub retracted: bool,
}

/// How a step went.
pub(super) enum Step {
    /// Look again.
    Again,
    /// The attempt is over.
    End(Verdict),
}

/// Runs one attempt.
pub(super) async fn run(work: &Work, run: &Run<AttacherKey>, name: &str) -> Verdict {
    let mut attempt = Attempt {
        work,
        run,
        config: work.config.borrow().clone(),
        client: work.client(),
        span: Span::disabled(),
        secrets: None,
        needed_secret: None,
        asked_for_volume: false,
        asked_for_node: false,
        retracted: false,
    };
    let verdict = to_its_end(&mut attempt, name).await;
    match (verdict, &attempt.needed_secret) {
        (Verdict::Done, _) => {
            work.holds.end(name);
            work.secret_watches.end(name);
            work.forced.end(name);
        }
        (Verdict::Failed | Verdict::FailedWith { .. }, Some(reference)) => {
            let tried = attempt.secrets.as_ref().map(SecretData::version);
            let (requests, queue) = (&work.context.requests, &work.queue);
            work.secret_watches
                .wait(requests, queue, reference, &Arc::from(name), tried);
        }
        _ => {}
    }
    verdict
}

async fn to_its_end(attempt: &mut Attempt<'_>, name: &str) -> Verdict {
    let (work, run, config) = (attempt.work, attempt.run, attempt.config.clone());
    let policy = Policy {
        default_fs_type: config.default_fs_type.as_str().into(),
        orphans: config.orphan_policy,
    };
    // A detach has its answer within its deadline, or a failure, after which nobody waits for it.
    let longest_hold = config.timeouts.unpublish.min(LONGEST_HOLD);
    let mut opened = false;
    for _ in 0..MAX_STEPS {
        let Some(snapshot) = work.context.store.attachment(name) else {
            return Verdict::Done;
        };
        let credentials = if attempt.secrets.is_some() {
            Credentials::Loaded
        } else {
            Credentials::NotLoaded
        };
        let observed = Observed {
            patience: work.holds.patience(name, longest_hold),
            forced: work.forced.contains(&snapshot.attachment),
            ..observe(&snapshot, &work.facts, &policy, credentials)
        };
        let action = (work.rules.attachment)(&observed);
        if let Action::Hold(other) = &action {
            let exists = |name: &str| work.context.store.attachment(name).is_some();
            let rest = work.holds.hold(&snapshot.attachment.name, longest_hold, exists);
            report::held(work, &snapshot, other, rest);
            return Verdict::After(rest);
        }
        if let Action::Ignore(reason) = action {
            tracing::debug!(
                driver = &*work.facts.name,
                VolumeAttachment = name,
                ?reason,
                "nothing to do"
            );
            return Verdict::Done;
        }
        if !std::mem::replace(&mut opened, true) {
            attempt.span = report::open_span(work, run, &snapshot);
            attempt.client = work.client_for(&snapshot);
        }
        match attempt.step(&snapshot, &observed, action).await {
            Step::Again => {}
            Step::End(verdict) => return verdict,
        }
    }
    let failure = Failure::plain("the objects kept changing during the attempt");
    report::failed(attempt, name, None, &failure, "_OTHER");
    Verdict::Failed
}

impl Attempt<'_> {
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
                self.fail(
                    snapshot,
                    observed,
                    Failure::plain(refusal.to_string()),
                    refusal.reason(),
                )
                .await
            }
            Action::ProtectVolume(write) => {
                self.prepare(snapshot, observed, &write, "could not add PersistentVolume finalizer")
                    .await
            }
            Action::Claim(write) => {
                self.prepare(snapshot, observed, &write, "could not save VolumeAttachment")
                    .await
            }
            Action::LoadCredentials(reference) => self.load(snapshot, observed, reference).await,
            Action::Publish(_) if release::overtook(self.work, snapshot).await => Step::Again,
            Action::Publish(plan) => self.publish(snapshot, observed, &plan).await,
            Action::Unpublish(plan) => self.unpublish(snapshot, observed, &plan).await,
            Action::MarkAttached(write) | Action::Release(write) => {
                self.record(snapshot, observed, |_| vec![write.clone()]).await
            }
        }
    }

    /// A write on the way to the call. When it was made from a stale copy, the object is read and looked at again;
    /// when the object is as we knew it, the API server means its refusal.
    async fn prepare(&mut self, snapshot: &Snapshot, observed: &Observed<'_>, write: &Write, what: &str) -> Step {
        let Err(error) = self.write(snapshot, write).await else {
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
        let reason = if error.kind == ApiErrorKind::Stale {
            "conflict"
        } else {
            "_OTHER"
        };
        if error.is_transient() {
            // The API server is out of order: one more write, about an error that is its own, would not help.
            let failure = Failure::plain(format!("{what}: {error}"));
            report::failed(self, &snapshot.attachment.name, Some(snapshot), &failure, reason);
            return Step::End(failed_with(observed));
        }
        self.fail(snapshot, observed, Failure::plain(format!("{what}: {error}")), reason)
            .await
    }

    pub(super) async fn succeed(&mut self, snapshot: &Snapshot, observed: &Observed<'_>, outcome: &Outcome) -> Step {
        let rules = self.work.rules;
        self.record(snapshot, observed, |observed| {
            (rules.settle)(observed, outcome, clock::now())
        })
        .await
    }

    /// Writes a result down. When somebody else changed the object meanwhile, the writes are made anew from what it is
    /// now: the call behind the result is not to be repeated for that.
    async fn record(
        &mut self,
        snapshot: &Snapshot,
        observed: &Observed<'_>,
        writes: impl Fn(&Observed<'_>) -> Vec<Write>,
    ) -> Step {
        let mut fresh = snapshot.clone();
        let mut tries = 1;
        loop {
            let current = Observed {
                attachment: &fresh.attachment,
                ..*observed
            };
            let Err(error) = self.insist_on_all(&fresh, writes(&current)).await else {
                report::succeeded(self, snapshot);
                return Step::End(Verdict::Done);
            };
            let newer = self.work.context.store.attachment(&snapshot.attachment.name);
            let newer = newer.filter(|newer| newer.attachment.uid == snapshot.attachment.uid);
            match newer {
                Some(newer) if error.kind == ApiErrorKind::Stale && tries < MAX_WRITES => fresh = newer,
                _ => return self.not_recorded(snapshot, observed, &error).await,
            }
            tries += 1;
        }
    }

    /// A result that the API server does not take, though it was offered again and again.
    async fn not_recorded(&mut self, snapshot: &Snapshot, observed: &Observed<'_>, error: &ApiError) -> Step {
        if Operation::of(snapshot) == Operation::Detach {
            let failure = Failure::plain(format!("could not mark as detached: {error}"));
            return self.fail(snapshot, observed, failure, "_OTHER").await;
        }
        // The volume is attached: an attachError would be wrong. The next attempt calls again, which the CSI spec makes
        // harmless, and records the answer.
        let failure = Failure::plain(format!("could not mark as attached: {error}"));
        report::failed(self, &snapshot.attachment.name, Some(snapshot), &failure, "_OTHER");
        Step::End(failed_with(observed))
    }

    /// The writes of a result in their order; the rest is left out once the object is gone.
    async fn insist_on_all(&self, snapshot: &Snapshot, writes: Vec<Write>) -> Result<(), ApiError> {
        for write in writes {
            if !self.insist(snapshot, &write).await? {
                break;
            }
        }
        Ok(())
    }

    /// Offers a result again while the API server is out of order: after a call its answer must not get lost. False
    /// when the object is gone, so that there is nothing left to write on.
    async fn insist(&self, snapshot: &Snapshot, write: &Write) -> Result<bool, ApiError> {
        let mut pause = FIRST_WRITE_PAUSE;
        let mut tries = 1;
        loop {
            match self.write(snapshot, write).await {
                Ok(gone) => return Ok(!gone),
                Err(error) if error.kind == ApiErrorKind::NotFound => return Ok(false),
                Err(error) if error.is_transient() && tries < MAX_WRITES => {
                    let wanted = error.retry_after.unwrap_or(pause);
                    tokio::time::sleep(wanted.min(MAX_WRITE_PAUSE)).await;
                    pause *= 4;
                    tries += 1;
                }
                Err(error) if error.kind == ApiErrorKind::Stale && !self.is_outdated(snapshot, &write.target).await => {
                    // Nothing changed, so it was not a stale copy that the API server refused.
                    return Err(ApiError {
                        kind: ApiErrorKind::Refused,
                        ..error
                    });
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Records a failure on the attachment and in log, status, span and metrics. That the error itself cannot be
    /// written changes nothing: it is tried again either way.
    pub(super) async fn fail(
        &mut self,
        snapshot: &Snapshot,
        observed: &Observed<'_>,
        failure: Failure,
        reason: &'static str,
    ) -> Step {
        let outcome = match Operation::of(snapshot) {
            Operation::Attach => Outcome::AttachFailed(failure.clone()),
            Operation::Detach => Outcome::DetachFailed(failure.clone()),
        };
        let (attachment, operation) = (&snapshot.attachment, Operation::of(snapshot));
        let turn = self
            .work
            .records
            .turn(attachment, operation, Instant::now().into_std())
            .await;
        let writes = turn
            .is_some()
            .then(|| (self.work.rules.settle)(observed, &outcome, clock::now()));
        for write in writes.into_iter().flatten() {
            if let Err(error) = self.write(snapshot, &write).await {
                let name = &*snapshot.attachment.name;
                tracing::debug!(VolumeAttachment = name, %error, "could not save the error on the VolumeAttachment");
            }
        }
        drop(turn);
        report::failed(self, &snapshot.attachment.name, Some(snapshot), &failure, reason);
        Step::End(failed_with(observed))
    }

    /// Sends a write and takes the answer into the cache. True when the object went with it.
    async fn write(&self, snapshot: &Snapshot, write: &Write) -> Result<bool, ApiError> {
        let outcome = self.work.context.requests.write(write, &self.span).await;
        take_in(
            &self.work.context.store,
            &write.target,
            snapshot.uid(&write.target),
            outcome,
        )
    }

    /// Whether there is a newer copy of an object than the one in `snapshot`, so that a write made from it may well be
    /// refused. It may be in the cache already: of ten attachments that protect one volume at the same time, nine are
    /// refused and find there what the tenth wrote.
    async fn is_outdated(&self, snapshot: &Snapshot, target: &Target) -> bool {
        let known = || self.work.context.store.version(target);
        known() != snapshot.version(target)
            || self.refresh(snapshot, target).await
            || known() != snapshot.version(target)
    }

    /// Reads an object again, into the cache; true when it is not there any more.
    async fn refresh(&self, snapshot: &Snapshot, target: &Target) -> bool {
        let outcome = self.work.context.requests.read(target, &self.span).await;
        let known = take_in(&self.work.context.store, target, snapshot.uid(target), outcome);
        matches!(known, Err(error) if error.kind == ApiErrorKind::NotFound)
    }
}

/// Puts an answer of the API server into the cache, so that the next decision sees it. True when the object is gone.
/// `uid` is that of the object that the request was about: by the time of the answer the name may be another one's.
pub(super) fn take_in(
    store: &crate::store::Store,
    target: &Target,
    uid: &str,
    outcome: Result<Returned, ApiError>,
) -> Result<bool, ApiError> {
    match outcome {
        Ok(Returned::Attachment(record)) => {
            let gone = record.is_gone();
            store.answered_attachment(*record);
            Ok(gone)
        }
        Ok(Returned::Volume(record)) => {
            let gone = record.is_gone();
            store.answered_volume(*record);
            Ok(gone)
        }
        Err(error) => {
            if error.kind == ApiErrorKind::NotFound {
                store.bury(target, uid);
            }
            Err(error)
        }
    }
}

fn failed_with(observed: &Observed<'_>) -> Verdict {
    Verdict::FailedWith {
        fingerprint: decide::attachment_fingerprint(observed),
    }
}
