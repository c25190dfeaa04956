//! One attempt for a claim: the effects of [`ClaimAttempt`], which decides what is done next.

mod report;
mod shell;

use crate::apiserver::SecretData;
use crate::context::DriverContext;
use crate::key::{ClaimKey, WorkKey};
use crate::lanes::place_of;
use crate::provision::attempt::{ClaimAttempt, Verdict, WaitsFor, may_call};
use crate::queue::{Run, RunResult};
use crate::runtime::{EnqueueCause, LEASE_LOST_REST};
use shell::Shell;

/// Runs an attempt with what is remembered of the claim, and remembers what the next one has to know. That stays with the queue meanwhile,
/// as of the last step: a run that panics has forgotten nothing.
pub(crate) async fn run(work: &DriverContext, run: &Run<WorkKey>, key: &ClaimKey) -> RunResult {
    let Some(look) = work.look(key) else {
        // The section was removed, and the task is about to be stopped.
        return RunResult::RequeueAfter(LEASE_LOST_REST);
    };
    let known = work.queue.remember(&run.key, |memory| {
        let progress = memory.progress.clone();
        (memory.claim.known.clone(), progress, memory.retries.take_due())
    });
    let (mut known, progress, is_asked) = known.unwrap_or_default();
    // A Secret that was changed may be the cure of a call that could not succeed.
    if is_asked || matches!(EnqueueCause::of(run.cause), EnqueueCause::Retry | EnqueueCause::Secret) {
        known.end_holds();
    }
    let mut attempt = ClaimAttempt::new(known);
    let mut shell = Shell::new(look, run, progress);
    let verdict = shell.perform(&mut attempt).await;
    let secret = attempt.needed_secret().filter(|_| verdict != Verdict::Done);
    let tried = shell.secret.of(secret).map(SecretData::version);
    work.secrets.set(&work.context.requests, &run.key, secret, tried);
    let waits_for = attempt.waits_for();
    let refused_with = match waits_for {
        Some(WaitsFor::AnyTopology(nodes)) => Some(nodes),
        _ => None,
    };
    if work.nodes.wait_for_others(&run.key, refused_with) {
        work.queue.wake(&run.key, EnqueueCause::Node.into());
    }
    work.queue.settle_rate(run, shell.calls);
    if let Some(claim) = attempt.claim() {
        let (lane, group) = place_of(claim, may_call(&shell.look, claim, attempt.creation()));
        work.queue.wait_next_in(run, lane, group);
    }
    shell.end(&attempt);
    if matches!(waits_for, Some(WaitsFor::Consumer | WaitsFor::Populator)) {
        // Nobody waits for the driver until a node is selected, or at all.
        shell.progress.begun = None;
    }
    shell.keep(&attempt);
    if verdict == Verdict::Done {
        // The queue forgets the claim, also where its volume is left alone.
        work.know_volume(key, None);
    }
    shell.leave_open(verdict);
    result_of(work, run, verdict)
}

/// What a verdict means for the queue.
pub(crate) fn result_of(work: &DriverContext, run: &Run<WorkKey>, verdict: Verdict) -> RunResult {
    match verdict {
        Verdict::Done => RunResult::Done,
        Verdict::Rest(rest) => RunResult::RequeueAfter(rest),
        Verdict::Failed(fingerprint) => RunResult::FailedWith { fingerprint },
        Verdict::Waits(fingerprint) => RunResult::Waits { fingerprint },
        // Only the connection was in the way: it is tried again after its backoff, or when the driver is connected again.
        Verdict::LeaseLost if work.client().may_start() => RunResult::Waits {
            fingerprint: run.fingerprint,
        },
        Verdict::LeaseLost => RunResult::RequeueAfter(LEASE_LOST_REST),
    }
}
