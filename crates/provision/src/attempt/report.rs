//! What happened in an attempt, as Events, log lines, metrics, and in the state of the driver.

use std::time::Duration;

use super::shell::Shell;
use crate::decide::{Failure, ReleaseRefusal};
use crate::events::{of_claim_named, of_volume_named};
use crate::failures::{self, LASTING, kind_of};
use crate::objects::{Claim, SecretReference};
use crate::provision::attempt::{ClaimAttempt, ClaimNote, ClaimView as _, UndoFailure};
use crate::provision::event::{self, MARKER_IGNORED_NOTE, POPULATOR_NOTE, ProvisionEventReason};
use crate::provision::{ClaimReason, CreateOutcome, ProvisionRefusal};
use crate::runtime::report::FailedAttempt;
use crate::telemetry::lifecycle::LifecycleOutcome;
use crate::telemetry::names::{self, attr, error_type};
use crate::telemetry::traced;
use crate::traces::{NOT_WANTED, Operation};

const PROVISION: &str = Operation::Provision.as_str();

pub(super) fn report(shell: &mut Shell<'_>, attempt: &ClaimAttempt, note: ClaimNote) {
    let Some(claim) = attempt.claim().cloned() else { return };
    let claim = &*claim;
    count(shell, &note);
    match note {
        ClaimNote::Calls(ClaimReason::FindOut, plan) => {
            let note = event::finding_out(&plan.name);
            record(shell, claim, ProvisionEventReason::ProvisioningCancelled, "", note);
        }
        ClaimNote::Calls(..) => {}
        ClaimNote::CallFailed(outcome, failure, is_retried) => {
            call_failed(shell, claim, &outcome, &failure, is_retried);
        }
        ClaimNote::InvalidAnswer(invalid) => {
            failed(shell, claim, error_type::INVALID_ANSWER, &invalid.to_string(), None);
        }
        ClaimNote::Faulty(fault) => failed(shell, claim, error_type::INVALID_ANSWER, &fault.to_string(), None),
        ClaimNote::WithoutSecret(secret) => without_secret(shell, claim, &secret),
        ClaimNote::Undone(handle, failure) => undone(shell, claim, &handle, failure.as_ref()),
        ClaimNote::UndoFailed(undo) => undo_failed(shell, claim, &undo),
        ClaimNote::Saved(name, handle) => saved(shell, claim, &name, &handle),
        ClaimNote::Recorded(reason, name, handle) => recorded(shell, claim, reason, &name, &handle),
        ClaimNote::HandleShared(name, cause) => handle_shared(shell, claim, Some(&name), &cause),
        ClaimNote::SaveFailed(error, refused) => save_failed(shell, claim, &error.message, refused),
        ClaimNote::Waits(reason, cause) => waits(shell, claim, reason, &cause),
        ClaimNote::LeftAlone(cause) => {
            handle_shared(shell, claim, None, &cause);
            shell.ended = Some(LifecycleOutcome::Aborted(NOT_WANTED));
        }
        ClaimNote::Cancelled => shell.ended = Some(LifecycleOutcome::Aborted(NOT_WANTED)),
        ClaimNote::Populator => {
            let note = POPULATOR_NOTE.to_owned();
            record(shell, claim, ProvisionEventReason::Provisioning, "populator", note);
        }
        ClaimNote::Rescheduled(selected, cause) => {
            let note = event::rescheduled(&selected, cause);
            record(shell, claim, ProvisionEventReason::ProvisioningRescheduled, "", note);
        }
        ClaimNote::LetGo(words, volume) => let_go(shell, claim, &words, &volume),
        ClaimNote::ReleaseRefused(refusal) => release_refused(shell, claim, &refusal),
        ClaimNote::MarkerIgnored => marker_ignored(shell, claim),
        ClaimNote::PossiblyLeaked(volume, cause) => {
            leaked(shell, claim, &volume, cause, event::possibly_leaked(&volume, cause));
        }
        ClaimNote::TwoVolumes { volume, saved, lost } => {
            let note = event::two_volumes(&volume, &saved, &lost);
            leaked(shell, claim, &lost, "the driver made two volumes", note);
        }
        ClaimNote::RequestFailed(error) if !error.is_transient() || shell.run.attempt() >= LASTING => {
            let message = event::request_refused(&error).unwrap_or(error.message);
            failed(shell, claim, error_type::OTHER, &message, None);
        }
        ClaimNote::RequestFailed(error) => shell.fail_request(&error),
        ClaimNote::LeaseLost(lost) => {
            if let Some(message) = failures::lease_lost(shell, lost) {
                let wait = Some(shell.run.wait_delay);
                failed(shell, claim, error_type::DRIVER_UNAVAILABLE, &message, wait);
            }
        }
    }
}

/// What is counted beside what the functions here tell.
fn count(shell: &Shell<'_>, note: &ClaimNote) {
    let (metrics, driver) = (&shell.look.work.context.metrics, &*shell.look.work.facts.name);
    match note {
        ClaimNote::Undone(..) => metrics.volume_undone(driver),
        ClaimNote::SaveFailed(..) => shell.look.work.unsaved.retried(),
        ClaimNote::Rescheduled(..) => metrics.rescheduled(driver),
        note if note.is_possible_leak() => metrics.possible_leak(driver),
        _ => {}
    }
}

/// DeleteVolume is called without the Secret of the call that made the volume: it is not there.
fn without_secret(shell: &Shell<'_>, claim: &Claim, secret: &SecretReference) {
    let (reason, cause) = (ProvisionEventReason::ProvisioningFailed, error_type::SECRET_MISSING);
    record(shell, claim, reason, cause, event::without_secret(secret));
}

pub(super) fn begun(shell: &Shell<'_>, claim: &Claim) {
    let note = event::provisioning(&claim.namespace, &claim.name);
    record(shell, claim, ProvisionEventReason::Provisioning, "", note);
}

fn marker_ignored(shell: &Shell<'_>, claim: &Claim) {
    let reason = ProvisionEventReason::ProvisioningUncertain;
    record(shell, claim, reason, "marker", event::note(MARKER_IGNORED_NOTE));
}

fn let_go(shell: &mut Shell<'_>, claim: &Claim, words: &str, volume: &str) {
    let note = event::note(&format!(
        "let go on request, though volume {volume} may be left in the storage system: {words}"
    ));
    record(shell, claim, ProvisionEventReason::ProvisioningReleased, "", note);
    shell.ended = Some(LifecycleOutcome::Aborted(NOT_WANTED));
}

/// A person asked to let the claim go, and that was refused.
pub(super) fn release_refused(shell: &Shell<'_>, claim: &Claim, refusal: &ReleaseRefusal) {
    let note = event::note(&format!("not let go on request: {refusal}"));
    let reason = ProvisionEventReason::ProvisioningReleaseRefused;
    record(shell, claim, reason, refusal.reason(), note);
}

/// A call ended without a volume that can be used, and is made again or not.
fn call_failed(shell: &mut Shell<'_>, claim: &Claim, outcome: &CreateOutcome, failure: &Failure, is_retried: bool) {
    let kind = kind_of(failure);
    let delay = is_retried.then(|| match outcome {
        CreateOutcome::Infeasible => ClaimAttempt::infeasible_rest(&shell.look),
        _ => shell.run.retry_delay,
    });
    let reason = match outcome {
        CreateOutcome::Uncertain | CreateOutcome::OtherCallOpen => ProvisionEventReason::ProvisioningUncertain,
        _ => ProvisionEventReason::ProvisioningFailed,
    };
    let message = event::call_failed(outcome, &failure.message);
    let is_infeasible = *outcome == CreateOutcome::Infeasible;
    let note = event::failed(&message, is_infeasible, shell.attempt(), delay);
    record(shell, claim, reason, kind, note);
    tell_failure(shell, claim, kind, failure.code, &message, delay, true);
}

/// An attempt failed for another reason than an error of CreateVolume. Without a delay it is made again after its backoff.
fn failed(shell: &mut Shell<'_>, claim: &Claim, kind: &'static str, message: &str, delay: Option<Duration>) {
    let delay = Some(delay.unwrap_or(shell.run.retry_delay));
    let note = event::failed(message, false, shell.attempt(), delay);
    record(shell, claim, ProvisionEventReason::ProvisioningFailed, kind, note);
    tell_failure(shell, claim, kind, None, message, delay, true);
}

/// Nothing can be done until something changes.
fn waits(shell: &mut Shell<'_>, claim: &Claim, reason: ClaimReason, cause: &ProvisionRefusal) {
    // It is pending, also where it rests for a moment only.
    shell.begin(claim);
    let delay = match reason {
        // The driver is asked again.
        ClaimReason::HandleShared => shell.run.retry_delay,
        _ => shell.run.wait_delay,
    };
    if reason == ClaimReason::Unconfirmed {
        shell.look.work.list_inputs_again();
    }
    let (reason, kind, message) = (
        ProvisionEventReason::of_claim(reason),
        cause.reason(),
        cause.to_string(),
    );
    let note = event::waits(&message, shell.attempt(), delay);
    record(shell, claim, reason, kind, note);
    let is_news = shell.run.waits() == 0;
    failures::know_cause(&mut shell.span, cause);
    tell_failure(shell, claim, kind, None, &message, Some(delay), is_news);
}

fn save_failed(shell: &mut Shell<'_>, claim: &Claim, message: &str, refused: Option<Duration>) {
    if refused.is_some() {
        let message = event::save_refused(message);
        failed(shell, claim, error_type::PV_REFUSED, &message, refused);
        return;
    }
    traced!(
        warn,
        shell.span,
        driver = &*shell.look.work.facts.name,
        PersistentVolumeClaim = &*claim.key,
        error = message,
        "the PersistentVolume cannot be saved now; saving it again"
    );
}

/// The span, the log, the metrics and the state of the driver; without a time for what is not made again.
fn tell_failure(
    shell: &mut Shell<'_>,
    claim: &Claim,
    kind: &'static str,
    code: Option<i32>,
    message: &str,
    delay: Option<Duration>,
    is_news: bool,
) {
    let work = shell.look.work;
    let failed = FailedAttempt {
        operation: PROVISION,
        subject: &claim.key,
        kind,
        code,
        message,
        delay,
        is_news,
    };
    let reason = shell.tell(&failed);
    let metrics = &work.context.metrics;
    metrics.provision_failed(&work.facts.name, &claim.class, source(claim));
    traced!(
        warn,
        shell.span,
        event.name = code.map(|_| names::CALL_EXCEPTION),
        driver = &*work.facts.name,
        PersistentVolumeClaim = &*claim.key,
        StorageClass = &*claim.class,
        attempt = shell.attempt(),
        code = reason,
        error = message,
        next_try_seconds = delay.map(|delay| delay.as_secs_f64()),
        "provision failed"
    );
}

fn saved(shell: &mut Shell<'_>, claim: &Claim, name: &str, handle: &str) {
    let (work, took, attempts) = (shell.look.work, shell.waited(claim), shell.attempt());
    let (metrics, driver) = (&work.context.metrics, &*work.facts.name);
    let ids = shell.span.ids();
    metrics.operation_ended(driver, PROVISION, "succeeded", took, attempts, ids);
    metrics.provisioned(driver, &claim.class, source(claim), shell.took());
    shell.span.set(attr::PERSISTENT_VOLUME_NAME, name);
    shell.span.set(attr::CSI_VOLUME_ID, handle);
    let attaches = work.facts.capabilities.publish_unpublish;
    let note = event::succeeded(name, claim, took, attempts, attaches);
    record(shell, claim, ProvisionEventReason::ProvisioningSucceeded, "", note);
    shell.ended = Some(LifecycleOutcome::Succeeded);
    traced!(
        info,
        shell.span,
        driver,
        PersistentVolumeClaim = &*claim.key,
        PersistentVolume = name,
        volumeHandle = handle,
        attempt = attempts,
        "provisioned"
    );
}

/// A volume that nobody wants is deleted. Only what the settings take for that is told, as no PersistentVolume tells of it.
fn undone(shell: &Shell<'_>, claim: &Claim, handle: &str, failure: Option<&Failure>) {
    if let Some(failure) = failure {
        let note = event::deleted(handle, Some(&failure.message));
        record(shell, claim, ProvisionEventReason::VolumeFailedDelete, "", note);
    }
}

/// A volume without a PersistentVolume is not deleted: told on the claim, as no other object tells of it.
fn undo_failed(shell: &mut Shell<'_>, claim: &Claim, undo: &UndoFailure) {
    let kind = kind_of(&undo.failure);
    let (message, delay) = (undo.to_string(), shell.run.retry_delay);
    let note = event::failed(&message, false, shell.attempt(), Some(delay));
    record(shell, claim, ProvisionEventReason::VolumeFailedDelete, kind, note);
    let failed = FailedAttempt {
        operation: Operation::Delete.as_str(),
        subject: &claim.key,
        kind,
        code: undo.failure.code,
        message: &message,
        delay: Some(delay),
        is_news: true,
    };
    failures::deletion_failed(shell, &failed, Some(&undo.handle));
}

/// The PersistentVolume of a volume that nobody wants is saved, by this rule: nothing was provisioned.
fn recorded(shell: &mut Shell<'_>, claim: &Claim, reason: ClaimReason, name: &str, handle: &str) {
    shell.span.set(attr::PERSISTENT_VOLUME_NAME, name);
    shell.span.set(attr::CSI_VOLUME_ID, handle);
    let told = ProvisionEventReason::ProvisioningCancelled;
    let note = event::recorded(reason, name);
    record(shell, claim, told, reason.as_str(), note);
    shell.ended = Some(LifecycleOutcome::Aborted(NOT_WANTED));
    traced!(
        info,
        shell.span,
        driver = &*shell.look.work.facts.name,
        PersistentVolumeClaim = &*claim.key,
        PersistentVolume = name,
        volumeHandle = handle,
        reason = reason.as_str(),
        "the PersistentVolume of a volume that is not wanted is saved"
    );
}

/// The volume that the driver answered is that of another PersistentVolume as well: on the claim, and on the PersistentVolume that was saved
/// for it.
fn handle_shared(shell: &Shell<'_>, claim: &Claim, saved: Option<&str>, cause: &ProvisionRefusal) {
    let saved = saved.and_then(|name| shell.look.volume(name).here());
    let saved = saved.map(|volume| of_volume_named(&volume.name, &volume.uid));
    let claim_named = of_claim_named(&claim.namespace, &claim.name, &claim.uid);
    let subjects = std::iter::once(claim_named).chain(saved).collect();
    let (work, reason) = (shell.look.work, ProvisionEventReason::HandleShared);
    let note = event::note(&cause.to_string());
    work.record(shell.span.traceparent(), reason, cause.reason(), note.clone(), subjects);
    traced!(
        warn,
        shell.span,
        driver = &*work.facts.name,
        PersistentVolumeClaim = &*claim.key,
        "{note}"
    );
}

/// The kind of what a claim's volume is to be filled from.
fn source(claim: &Claim) -> Option<&str> {
    claim.data_source.as_ref().map(|source| &*source.kind)
}

fn leaked(shell: &mut Shell<'_>, claim: &Claim, volume: &str, cause: &str, note: String) {
    record(shell, claim, ProvisionEventReason::VolumePossiblyLeaked, volume, note);
    traced!(
        error,
        shell.span,
        driver = &*shell.look.work.facts.name,
        PersistentVolumeClaim = &*claim.key,
        volume,
        cause,
        "a volume may be left in the storage system"
    );
}

fn record(shell: &Shell<'_>, claim: &Claim, reason: ProvisionEventReason, cause: &str, note: String) {
    let subjects = vec![of_claim_named(&claim.namespace, &claim.name, &claim.uid)];
    let traceparent = shell.span.traceparent();
    shell.look.work.record(traceparent, reason, cause, note, subjects);
}
