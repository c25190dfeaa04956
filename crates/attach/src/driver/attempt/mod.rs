//! One attempt at a VolumeAttachment: the effects of [`Attempt`], which decides what is done next.

pub(super) mod events;
pub(super) mod evidence;
pub(super) mod failure_writes;
pub(super) mod in_flight;
mod kept;
pub(super) mod report;
mod requests;
pub(super) mod shell;
pub(super) mod unfinished;

use std::num::NonZero;
use std::sync::Arc;

use csi_attacher_model::attempt::{Attempt, Verdict};
use futures::{StreamExt, stream};
use tokio_util::task::AbortOnDropHandle;

use super::context::DriverContext;
use crate::api::validated::DriverConfig;
use crate::apiserver::SecretData;
use crate::cache::{AttacherKey, EnqueueCause, observe};
use crate::decide::{self, Observed, Policy, SecretState};
use crate::memory::LONGEST_LIST_REST;
use crate::queue::{Run, RunResult};
use crate::schedule;
use csi_attacher_model::ListRests;
use csi_attacher_runtime::LEASE_LOST_REST;
use in_flight::CallInFlight;
pub(super) use requests::{apply_response, apply_write_response};
use shell::Shell;
use unfinished::PublishGuard;

/// How many Publishes that a former engine left are checked in parallel.
const RESUMED_AT_ONCE: usize = 10;

pub(super) async fn run(work: &DriverContext, run: &Run<AttacherKey>, name: &Arc<str>) -> RunResult {
    let known = work.queue.remember(&run.key, |memory| {
        (memory.call.take(), std::mem::take(&mut memory.list_rests))
    });
    let (call, list_rests) = known.unwrap_or_default();
    drop(call);
    let config = work.config.borrow().clone();
    let mut attempt = Attempt::new(name.clone(), policy(work, &config));
    let mut shell = Shell::new(work, Some(run), name.clone(), config);
    let verdict = shell.perform(&mut attempt).await;
    let result = take_verdict(&mut shell, &run.key, &attempt, verdict, list_rests);
    shell.end_span(result);
    work.queue.settle_rate(run, shell.calls);
    settle_waits(&shell, &run.key, &attempt, result);
    result
}

/// What an end means for the queue, and what is waited for until the next attempt.
fn take_verdict(
    shell: &mut Shell<'_>,
    key: &AttacherKey,
    attempt: &Attempt,
    verdict: Verdict,
    list_rests: ListRests,
) -> RunResult {
    let work = shell.work;
    let timeouts = work.config.borrow().timeouts.clone();
    let hold = |other: &str, done: &str| {
        let rest = work.queue.remember(key, |memory| memory.hold_back(&timeouts));
        let rest = rest.unwrap_or_default();
        if let Some(snapshot) = attempt.snapshot() {
            report::report_detach_wait(work, snapshot, other, done, rest);
        }
        rest
    };
    match verdict {
        Verdict::Done => RunResult::Done,
        Verdict::Failed => RunResult::Failed,
        // A failure would end the row of those that were not told, and with it the growth of its pauses.
        Verdict::FailedWith(fingerprint) if shell.takes_none => RunResult::Waits { fingerprint },
        Verdict::FailedWith(fingerprint) => RunResult::FailedWith { fingerprint },
        Verdict::Waits(fingerprint) => RunResult::Waits { fingerprint },
        Verdict::OfAnotherRun => {
            work.context.store.enqueue(&shell.name, EnqueueCause::Delete);
            RunResult::Requeue
        }
        Verdict::AwaitLists => {
            let rest = work.queue.remember(key, |memory| {
                memory.list_rests = list_rests;
                memory.list_rest()
            });
            RunResult::RequeueAfter(rest.unwrap_or(LONGEST_LIST_REST))
        }
        Verdict::AwaitDetach(other) => RunResult::RequeueAfter(hold(&other, "detached from")),
        // It does not wait inside the attempt: that other call may hang and be of the other lane, whose trouble is not to fill this
        // one. A call at another node is waited for as long as a detach from there would be, and no longer: that node may be dead.
        Verdict::AwaitCall(other) => {
            let rest = match other {
                None => timeouts.publish.max(timeouts.unpublish),
                Some(other) => hold(&other, "attached to"),
            };
            if let Some(occupied) = shell.occupied.take() {
                wake_after(work, key, occupied);
            }
            RunResult::RequeueAfter(rest)
        }
        // Only the connection was in the way: it is tried again after its backoff, or when the driver is connected again.
        Verdict::LeaseLost if work.client().may_start() => {
            let observed = attempt.observed(&*shell);
            let fingerprint = observed.map(|observed| decide::attachment_fingerprint(&observed));
            fingerprint.map_or(RunResult::Failed, |fingerprint| RunResult::Waits { fingerprint })
        }
        Verdict::LeaseLost => RunResult::RequeueAfter(LEASE_LOST_REST),
    }
}

/// Has an attachment tried again after a call. It waits for one at most.
fn wake_after(work: &DriverContext, key: &AttacherKey, call: CallInFlight) {
    let (queue, waiting) = (work.queue.clone(), key.clone());
    let task = schedule::spawn(async move {
        call.wait_finished().await;
        queue.wake(&waiting, EnqueueCause::Retry.into());
    });
    let wait = AbortOnDropHandle::new(task);
    work.queue.remember(key, |memory| memory.call = Some(wait));
}

/// Looks again at what the former engine of the driver left unfinished in this term of the Lease. Their places are taken at once,
/// so that nobody calls for these places before.
pub(super) fn resume_unfinished(work: Arc<DriverContext>) -> impl Future<Output = ()> {
    let client = work.client();
    let left = work.context.unfinished.take(&work.facts.name, client.term());
    let begun: Vec<PublishGuard> = left
        .into_iter()
        .filter_map(|left| {
            let name = &left.publish.snapshot.attachment.name;
            // There is one for each place.
            let guard = work
                .in_flight
                .begin_publish(left.publish.place.borrow(), name, false)
                .ok()?;
            // From here on it is kept again if this ends at any moment, also before it has begun.
            Some(PublishGuard::new(&work, guard, left))
        })
        .collect();
    async move {
        let config = work.config.borrow().clone();
        let total = config.concurrency.total.map_or(RESUMED_AT_ONCE, NonZero::get);
        let (work, config) = (&work, &config);
        let attempts = begun.into_iter().map(|guard| async move {
            let publish = guard.publish().clone();
            let name = publish.snapshot.attachment.name.clone();
            let mut attempt = Attempt::resume(publish, policy(work, config));
            let mut shell = Shell::new(work, None, name, config.clone()).watching(guard);
            shell.perform(&mut attempt).await;
        });
        stream::iter(attempts)
            .buffer_unordered(RESUMED_AT_ONCE.min(total))
            .collect::<()>()
            .await;
    }
}

pub(super) fn policy(work: &DriverContext, config: &DriverConfig) -> Policy {
    Policy {
        default_fs_type: config.default_fs_type.as_str().into(),
        orphans: config.orphan_policy,
        leaving: config.leaving,
        publish_secrets: config.publish_secrets.clone(),
        config: work.config_name.clone(),
    }
}

/// Takes in what the attachment waits for after the attempt, and shows in the status of the AttacherConfig whether that
/// is a Secret which the driver is not given.
fn settle_waits(shell: &Shell<'_>, key: &AttacherKey, attempt: &Attempt, result: RunResult) {
    let (work, secrets) = (shell.work, &shell.work.secrets);
    if result == RunResult::Done {
        return secrets.end(key);
    }
    let needed = attempt.needed_secret();
    let denied = attempt.denied_secret();
    // An attempt that did not get as far as the Secret learned nothing about it.
    if needed.is_some() || denied.is_some() {
        secrets.learn(key, denied);
    }
    let failed = matches!(
        result,
        RunResult::Failed | RunResult::FailedWith { .. } | RunResult::Waits { .. }
    );
    if let Some(reference) = needed.filter(|_| failed) {
        let tried = shell.secret.of(Some(reference)).map(SecretData::version);
        secrets.waits.wait(&work.context.requests, reference, key, tried);
    }
    if !secrets.concern(key) {
        return;
    }
    // Asked after the wait began: who takes in the end of the attachment from here on ends it.
    let Some(snapshot) = work.context.store.attachment(&shell.name) else {
        return secrets.end(key);
    };
    let policy = policy(work, &shell.config);
    let uid = &snapshot.attachment.uid;
    let forced = work.queue.remember(key, |memory| memory.forces(uid));
    let observed = Observed {
        forced: forced == Some(true),
        ..observe(&snapshot, &work.facts, &policy, SecretState::NotLoaded)
    };
    secrets.needs(key, &decide::publish_secret(&observed));
}
