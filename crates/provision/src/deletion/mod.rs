//! One attempt for a PersistentVolume whose volume is to be deleted: the effects of [`VolumeAttempt`], which decides what is done next.

mod report;
mod shell;

use crate::apiserver::SecretData;
use crate::attempt::result_of;
use crate::context::DriverContext;
use crate::key::{VolumeKey, WorkKey};
use crate::provision::RolePhase;
use crate::provision::attempt::Verdict;
use crate::provision::deletion::VolumeAttempt;
use crate::queue::{Run, RunResult};
use crate::runtime::LEASE_LOST_REST;
use crate::telemetry::lifecycle::LifecycleOutcome;
use crate::traces::KEPT;
use shell::Shell;

/// Runs an attempt with what is remembered of the PersistentVolume, and remembers what the next one has to know. That stays with the queue
/// meanwhile, as of the last step: a run that panics has forgotten nothing.
pub(crate) async fn run(work: &DriverContext, run: &Run<WorkKey>, key: &VolumeKey) -> RunResult {
    let Some(look) = work.look(key) else {
        // The section was removed, and the task is about to be stopped.
        return RunResult::RequeueAfter(LEASE_LOST_REST);
    };
    let known = work
        .queue
        .remember(&run.key, |memory| (memory.volume.clone(), memory.progress.clone()));
    let (known, progress) = known.unwrap_or_default();
    let mut attempt = VolumeAttempt::new(known);
    let mut shell = Shell::new(look, run, progress);
    let verdict = shell.perform(&mut attempt).await;
    let secret = attempt.needed_secret().filter(|_| verdict != Verdict::Done);
    let tried = shell.secret.of(secret).map(SecretData::version);
    work.secrets.set(&work.context.requests, &run.key, secret, tried);
    work.queue.settle_rate(run, shell.calls);
    if verdict == Verdict::Done && work.role() == RolePhase::Serving {
        // It has gone for another one, or the volume is kept, where nothing else was said.
        let outcome = if attempt.is_left() {
            LifecycleOutcome::Succeeded
        } else {
            LifecycleOutcome::Aborted(KEPT)
        };
        shell.ended.get_or_insert(outcome);
    }
    shell.end(&attempt);
    shell.keep(&attempt);
    shell.leave_open(verdict);
    result_of(work, run, verdict)
}
