//! How the result of an attempt is recorded: on the object, in the cache, and for people.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::time::Duration;
use tokio::time::Instant;

use super::cause::FailureCause;
use super::state::{Attempt, FailureNote, StepResult, is_settled};
use super::{kept, report};
use crate::apiserver::{ApiError, ApiErrorKind, Requests, Returned};
use crate::cache::Snapshot;
use crate::clock;
use crate::decide::patch::WriteTarget;
use crate::decide::{self, Failure, MAX_ERROR_BYTES, Observed, Outcome, Write, cut};
use crate::objects::{Operation, ResourceVersion};
use crate::queue::RunResult;

/// How often a result is offered to the API server before the attempt counts as failed.
const MAX_WRITES: u32 = 4;
const FIRST_WRITE_PAUSE: Duration = Duration::from_millis(100);
/// How long a result is written again to an API server that answers 429 or 503.
const LONGEST_INSISTENCE: Duration = Duration::from_mins(2);

impl Attempt<'_> {
    pub(in crate::driver) async fn record_success(
        &mut self,
        snapshot: &Snapshot,
        observed: &Observed<'_>,
        outcome: &Outcome,
    ) -> StepResult {
        let rules = self.work.context.rules;
        self.record(snapshot, observed, |observed| {
            (rules.settle)(observed, outcome, clock::now())
        })
        .await
    }

    /// Writes a result down. When somebody else changed the object meanwhile, the writes are made again from what it is
    /// now: the call behind the result is not to be repeated for that.
    pub(in crate::driver) async fn record(
        &mut self,
        snapshot: &Snapshot,
        observed: &Observed<'_>,
        writes: impl Fn(&Observed<'_>) -> Vec<Write>,
    ) -> StepResult {
        let mut fresh = self.cached_snapshot(snapshot).unwrap_or_else(|| snapshot.clone());
        let mut tries = 1;
        loop {
            if !self.is_same_work(snapshot, &fresh) {
                // Whatever was called, it is not what this attachment is about any more.
                return StepResult::Continue;
            }
            let current = Observed {
                attachment: &fresh.attachment,
                ..*observed
            };
            let written = async {
                for write in writes(&current) {
                    // The rest is left out once the object is gone.
                    if !self.write_with_retry(&fresh, &write).await? {
                        break;
                    }
                }
                Ok(())
            };
            let written = written.await;
            let Err(error) = written.and_then(|()| self.is_on_record(snapshot)) else {
                report::report_success(self, snapshot);
                return StepResult::Finish(RunResult::Done);
            };
            match self.cached_snapshot(snapshot) {
                Some(newer) if error.kind == ApiErrorKind::Stale && tries < MAX_WRITES => fresh = newer,
                // Once more: the answer may have been that to another request.
                Some(newer) if error.kind == ApiErrorKind::NotKept && tries == 1 => fresh = newer,
                _ => return self.handle_write_error(snapshot, observed, &error).await,
            }
            tries += 1;
        }
    }

    /// Whether the object shows the result by now, whatever was written: what nobody wrote, no watch would bring, and nobody would
    /// observe again.
    fn is_on_record(&self, snapshot: &Snapshot) -> Result<(), ApiError> {
        let newest = self.cached_snapshot(snapshot);
        let differs = |newest: &Snapshot| self.is_same_work(snapshot, newest) && !is_settled(newest, self.work);
        if newest.as_ref().is_some_and(differs) {
            return Err(ApiError::garbled("the object does not show the result of the call"));
        }
        Ok(())
    }

    /// A result that the API server does not take, though it was offered again and again.
    async fn handle_write_error(
        &mut self,
        snapshot: &Snapshot,
        observed: &Observed<'_>,
        error: &ApiError,
    ) -> StepResult {
        if snapshot.operation() == Operation::Detach {
            let failure = Failure::plain(format!("could not mark as detached: {error}"));
            return self
                .record_failure(snapshot, observed, failure, FailureCause::Other)
                .await;
        }
        // The volume is attached: an attachError would be wrong. The next attempt calls again, which the CSI spec makes
        // harmless, and records the answer.
        let failure = Failure::plain(format!("could not mark as attached: {error}"));
        report::report_failure(self, snapshot, &failure, FailureCause::Other);
        StepResult::Finish(failed_with(observed))
    }

    /// Offers a result again while the API server is out of order: after a call its answer must not get lost. False
    /// when the object is gone, so that there is nothing left to write on.
    async fn write_with_retry(&mut self, snapshot: &Snapshot, write: &Write) -> Result<bool, ApiError> {
        let mut pause = FIRST_WRITE_PAUSE;
        let (mut tries, mut sent) = (1, 0);
        let began = Instant::now();
        loop {
            let requests = self.work.context.requests.with_resends(sent);
            let answer = self.write(&requests, snapshot, write).await;
            self.may_be_on_record |= answer.as_ref().map_or_else(ApiError::may_have_happened, |gone| !gone);
            match answer {
                Ok(gone) => return Ok(!gone),
                Err(error) if error.kind == ApiErrorKind::NotFound => return Ok(false),
                // The next try waits by itself until the API server takes it; this one was refused unread.
                Err(error) if error.retry_after.is_some() && began.elapsed() < LONGEST_INSISTENCE => {}
                Err(error) if error.is_transient() && tries < MAX_WRITES => {
                    // Many attachments are refused at the same time, and are not to come back at the same time.
                    tokio::time::sleep(pause.mul_f64(spread(&snapshot.attachment.uid))).await;
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
            sent += 1;
        }
    }

    /// Records a failure on the attachment and in log, status, span and metrics. That the error itself cannot be
    /// written changes nothing: it is tried again either way.
    pub(in crate::driver) async fn record_failure(
        &mut self,
        snapshot: &Snapshot,
        observed: &Observed<'_>,
        failure: Failure,
        cause: FailureCause,
    ) -> StepResult {
        let operation = snapshot.operation();
        let noted = self.with_trace_id(&failure);
        let outcome = match operation {
            Operation::Attach => Outcome::AttachFailed(noted),
            Operation::Detach => Outcome::DetachFailed(noted),
        };
        let now = Instant::now();
        let turn = self.work.failures.acquire(&snapshot.attachment, operation, now);
        self.noted = FailureNote::NotSent;
        if let Some(_turn) = turn.await {
            let written = self.write_failure(snapshot, observed, &outcome).await;
            self.noted = if written.is_ok() {
                FailureNote::Written
            } else {
                FailureNote::Failed
            };
            if let Err(error) = written {
                let (driver, name) = (&*self.work.facts.name, &*snapshot.attachment.name);
                // That the API server is out of order, or the object is gone, is reported elsewhere.
                let is_refused = matches!(
                    error.kind,
                    ApiErrorKind::Forbidden | ApiErrorKind::Refused | ApiErrorKind::NotKept
                );
                if is_refused {
                    traced!(warn, self.span, driver, VolumeAttachment = name, %error, "could not save the error on the VolumeAttachment");
                } else {
                    traced!(debug, self.span, driver, VolumeAttachment = name, %error, "could not save the error on the VolumeAttachment");
                }
            }
        }
        report::report_failure(self, snapshot, &failure, cause);
        StepResult::Finish(failed_with(observed))
    }

    /// The failure as the attachment shows it: with the ID of the trace, if the AttacherConfig asks for that. The ID is the
    /// same for each attempt of a lifecycle, and the kubelet's Event about it stays one.
    fn with_trace_id(&self, failure: &Failure) -> Failure {
        let asked = self.config.tracing.error_suffix;
        let Some(id) = self.span.trace_id().filter(|_| asked) else {
            return failure.clone();
        };
        let suffix = format!(" [trace {id}]");
        let message = cut(&failure.message, MAX_ERROR_BYTES.saturating_sub(suffix.len()));
        Failure {
            message: format!("{message}{suffix}"),
            ..failure.clone()
        }
    }

    /// Writes a failure down; once more when somebody else changed the object meanwhile, and not at all when the attachment
    /// was claimed again or recorded as attached. One that is to be detached by now shows it too: people wonder why that takes a while, and a driver
    /// that goes on with a call after its deadline gets a moment to end it.
    async fn write_failure(
        &self,
        snapshot: &Snapshot,
        observed: &Observed<'_>,
        outcome: &Outcome,
    ) -> Result<(), ApiError> {
        let mut again = true;
        loop {
            let fresh = self.cached_snapshot(snapshot).unwrap_or_else(|| snapshot.clone());
            if !decide::may_note_failure(&snapshot.attachment, &fresh.attachment, &self.work.facts) {
                return Ok(());
            }
            let current = Observed {
                attachment: &fresh.attachment,
                ..*observed
            };
            let writes = (self.work.context.rules.settle)(&current, outcome, clock::now());
            let Err(error) = self.write_failure_patches(&fresh, writes).await else {
                return Ok(());
            };
            let target = WriteTarget::AttachmentStatus(snapshot.attachment.name.clone());
            let changed = error.kind == ApiErrorKind::Stale
                && std::mem::replace(&mut again, false)
                && self.is_outdated(&fresh, &target).await;
            if !changed {
                return Err(error);
            }
        }
    }

    /// Sends writes that note a failure.
    async fn write_failure_patches(&self, snapshot: &Snapshot, writes: Vec<Write>) -> Result<(), ApiError> {
        for write in writes {
            self.write(&self.work.context.requests, snapshot, &write).await?;
        }
        Ok(())
    }

    /// What the cache knows of the object by now.
    pub(super) fn cached_snapshot(&self, snapshot: &Snapshot) -> Option<Snapshot> {
        let newest = self.work.context.store.attachment(&snapshot.attachment.name);
        newest.filter(|newest| newest.attachment.uid == snapshot.attachment.uid)
    }

    fn is_same_work(&self, one: &Snapshot, other: &Snapshot) -> bool {
        decide::is_same_work(&one.attachment, &other.attachment, &self.work.facts)
    }

    /// Sends a write and applies the answer to the cache. True when the object went with it.
    pub(in crate::driver) async fn write(
        &self,
        requests: &Requests,
        snapshot: &Snapshot,
        write: &Write,
    ) -> Result<bool, ApiError> {
        let outcome = requests.write(write, self.run.group(), &self.span).await;
        let (uid, version) = (snapshot.uid(&write.target), snapshot.version(&write.target));
        apply_write_response(&self.work.context.store, write, uid, version, outcome)
    }

    /// Whether there is a newer copy of an object than the one in `snapshot`, so that a write made from it may well be
    /// refused. It may be in the cache already: of ten attachments that protect one volume at the same time, nine are
    /// refused and find there what the tenth wrote.
    pub(in crate::driver) async fn is_outdated(&self, snapshot: &Snapshot, target: &WriteTarget) -> bool {
        let known = || self.work.context.store.version(target);
        known() != snapshot.version(target)
            || self.refresh(snapshot, target).await
            || known() != snapshot.version(target)
    }

    /// Reads an object again, into the cache; true when it is not there any more.
    async fn refresh(&self, snapshot: &Snapshot, target: &WriteTarget) -> bool {
        let requests = &self.work.context.requests;
        let outcome = requests.read(target, self.run.group(), &self.span).await;
        let (uid, version) = (snapshot.uid(target), snapshot.version(target));
        let known = apply_response(&self.work.context.store, target, uid, version, outcome);
        matches!(known, Err(error) if error.kind == ApiErrorKind::NotFound)
    }
}

/// As [`apply_response`], for a write. It succeeded only if the answer shows what was written, or the object went with it.
pub(in crate::driver) fn apply_write_response(
    store: &crate::cache::Store,
    write: &Write,
    uid: &str,
    version: Option<ResourceVersion>,
    outcome: Result<Returned, ApiError>,
) -> Result<bool, ApiError> {
    let outcome = outcome.and_then(|returned| of_write(returned, uid));
    let kept = outcome.as_ref().map_or(Ok(()), |answer| kept::check(write, answer));
    let gone = apply_response(store, &write.target, uid, version, outcome)?;
    match kept {
        Err(not_kept) if !gone => Err(ApiError::not_kept(not_kept.to_string())),
        _ => Ok(gone),
    }
}

/// What a write brought back, if that is the object that was written to: each write names its UID.
fn of_write(returned: Returned, uid: &str) -> Result<Returned, ApiError> {
    let found = match &returned {
        Returned::Attachment(record) => &record.uid,
        Returned::Volume(record) => &record.uid,
    };
    if **found == *uid {
        Ok(returned)
    } else {
        let message = format!("the answer is about an object with UID {found}, not about that with UID {uid}");
        Err(ApiError::garbled(message))
    }
}

/// Puts an answer of the API server into the cache, so that the next decision sees it. True when the object is gone.
/// `uid` and `version` are those of the copy that the request was made from: by the time of the answer the name may be
/// another one's. An answer that is older than that copy is not of the state that the copy was of.
pub(in crate::driver) fn apply_response(
    store: &crate::cache::Store,
    target: &WriteTarget,
    uid: &str,
    version: Option<ResourceVersion>,
    outcome: Result<Returned, ApiError>,
) -> Result<bool, ApiError> {
    let answered = match &outcome {
        Ok(Returned::Attachment(record)) => Some(record.resource_version),
        Ok(Returned::Volume(record)) => Some(record.resource_version),
        Err(_) => None,
    };
    if answered.is_some_and(|answered| answered != ResourceVersion::default() && Some(answered) < version) {
        store
            .lists()
            .doubt("the API server answered with an older copy of an object than it had shown before");
        return Err(ApiError::garbled(
            "the API server's answer is older than the object that the request was about",
        ));
    }
    match outcome {
        Ok(Returned::Attachment(record)) => {
            let gone = record.is_gone();
            store.apply_response(*record);
            Ok(gone)
        }
        Ok(Returned::Volume(record)) => {
            let gone = record.is_gone();
            store.apply_response(*record);
            Ok(gone)
        }
        Err(error) => {
            if error.kind == ApiErrorKind::NotFound {
                store.mark_deleted(target, uid);
            }
            Err(error)
        }
    }
}

/// From 0.75 to 1.25, for each object another one.
fn spread(uid: &str) -> f64 {
    let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(uid);
    0.75 + f64::from(u16::try_from(hash % 512).unwrap_or_default()) / 1024.0
}

pub(in crate::driver) fn failed_with(observed: &Observed<'_>) -> RunResult {
    RunResult::FailedWith {
        fingerprint: decide::attachment_fingerprint(observed),
    }
}
