//! What happened in an attempt, as Events, log lines, metrics, and in the state of the driver.

use std::time::Duration;

use super::shell::Shell;
use crate::decide::Failure;
use crate::events::{of_claim_named, of_volume_named};
use crate::failures::{self, LASTING, kind_of};
use crate::objects::Volume;
use crate::provision::VolumeReason;
use crate::provision::deletion::{VolumeAttempt, VolumeNote};
use crate::provision::event::{self, ProvisionEventReason};
use crate::runtime::report::FailedAttempt;
use crate::telemetry::lifecycle::LifecycleOutcome;
use crate::telemetry::names::error_type;
use crate::telemetry::traced;
use crate::traces::{KEPT, Operation};

const DELETE: &str = Operation::Delete.as_str();

pub(super) fn report(shell: &mut Shell<'_>, attempt: &VolumeAttempt, note: VolumeNote) {
    let Some(volume) = attempt.volume().cloned() else {
        return;
    };
    let volume = &*volume;
    match note {
        VolumeNote::Calls(_) => {}
        VolumeNote::WithoutSecret(secret) => {
            let (reason, cause) = (ProvisionEventReason::VolumeFailedDelete, error_type::SECRET_MISSING);
            record(shell, volume, reason, cause, event::without_secret(&secret));
        }
        VolumeNote::CallFailed(failure) => {
            let kind = kind_of(&failure);
            let retry = (shell.run.retry_delay, true);
            failed(shell, volume, kind, failure.code, &failure.message, retry);
        }
        VolumeNote::Deleted(handle, failure) => deleted(shell, volume, &handle, failure.as_ref()),
        VolumeNote::PerhapsDeleted(handle) => {
            let reason = ProvisionEventReason::VolumeFailedDelete;
            let note = event::perhaps_deleted(&handle);
            record(shell, volume, reason, "perhaps_deleted", note);
            shell.ended = Some(LifecycleOutcome::Aborted(KEPT));
        }
        VolumeNote::LeftTo(heir) => {
            let (reason, cause) = (ProvisionEventReason::VolumeDelete, error_type::HANDLE_SHARED);
            record(shell, volume, reason, cause, event::left_to(&volume.name, &heir));
        }
        VolumeNote::Released => released(shell, volume),
        VolumeNote::Waits(reason, of) => waits(shell, attempt, volume, reason, &of),
        VolumeNote::Refused(_, cause) => {
            let wait = (shell.run.wait_delay, shell.run.waits() == 0);
            failures::know_cause(&mut shell.span, &cause);
            failed(shell, volume, cause.reason(), None, &cause.to_string(), wait);
        }
        VolumeNote::RequestFailed(error) | VolumeNote::NotWritten(error)
            if !error.is_transient() || shell.run.attempt() >= LASTING =>
        {
            let message = event::volume_request_refused(&error).unwrap_or(error.message);
            let retry = (shell.run.retry_delay, true);
            failed(shell, volume, error_type::OTHER, None, &message, retry);
        }
        VolumeNote::RequestFailed(error) | VolumeNote::NotWritten(error) => shell.fail_request(&error),
        VolumeNote::LeaseLost(lost) => {
            if let Some(message) = failures::lease_lost(shell, lost) {
                let wait = (shell.run.wait_delay, true);
                failed(shell, volume, error_type::DRIVER_UNAVAILABLE, None, &message, wait);
            }
        }
    }
}

/// The deletion waits until something changes: told once.
fn waits(shell: &Shell<'_>, attempt: &VolumeAttempt, volume: &Volume, reason: VolumeReason, of: &str) {
    let (level, kind) = match reason {
        VolumeReason::StillAttached => (ProvisionEventReason::VolumeDelete, "attached"),
        VolumeReason::Held => (ProvisionEventReason::VolumeDelete, error_type::DELETION_HELD),
        VolumeReason::HandleShared => (ProvisionEventReason::VolumeDelete, error_type::HANDLE_SHARED),
        VolumeReason::ReleasedWhileBound => (ProvisionEventReason::ReleasedWhileBound, "bound"),
        VolumeReason::NeedsDecision => (ProvisionEventReason::VolumeDelete, "needs_decision"),
        VolumeReason::NotCsi => (ProvisionEventReason::VolumeFailedDelete, "not_csi"),
        VolumeReason::Syncing => (ProvisionEventReason::VolumeFailedDelete, error_type::UNCONFIRMED),
        _ => return,
    };
    let Some(note) = event::volume_waits(reason, volume, of) else {
        return;
    };
    let mut subjects = vec![of_volume_named(&volume.name, &volume.uid)];
    if reason == VolumeReason::ReleasedWhileBound {
        // The claim is what is wrong then.
        let claim = attempt.user(volume);
        subjects.extend(claim.map(|claim| of_claim_named(&claim.namespace, &claim.name, &claim.uid)));
    }
    let (work, traceparent) = (shell.look.work, shell.span.traceparent());
    work.record(traceparent, level, kind, note.clone(), subjects);
    traced!(
        info,
        shell.span,
        driver = &*work.facts.name,
        PersistentVolume = &*volume.name,
        reason = reason.as_str(),
        "the volume is not deleted now: {note}"
    );
}

/// An attempt failed, and is made again after this time; whether that is news.
fn failed(
    shell: &mut Shell<'_>,
    volume: &Volume,
    kind: &'static str,
    code: Option<i32>,
    message: &str,
    (delay, is_news): (Duration, bool),
) {
    let note = event::failed(message, false, shell.attempt(), Some(delay));
    record(shell, volume, ProvisionEventReason::VolumeFailedDelete, kind, note);
    let failed = FailedAttempt {
        operation: DELETE,
        subject: &volume.name,
        kind,
        code,
        message,
        delay: Some(delay),
        is_news,
    };
    failures::deletion_failed(shell, &failed, None);
    let work = shell.look.work;
    work.context.metrics.delete_failed(&work.facts.name, class(volume));
}

/// The volume is deleted; with a failure, one that the settings take for that.
fn deleted(shell: &Shell<'_>, volume: &Volume, handle: &str, failure: Option<&Failure>) {
    let reason = match failure {
        None => ProvisionEventReason::VolumeDeleted,
        Some(_) => ProvisionEventReason::VolumeFailedDelete,
    };
    let note = event::deleted(handle, failure.map(|failure| &*failure.message));
    record(shell, volume, reason, "", note);
    traced!(
        info,
        shell.span,
        driver = &*shell.look.work.facts.name,
        PersistentVolume = &*volume.name,
        volumeHandle = handle,
        attempt = shell.attempt(),
        "volume deleted"
    );
}

/// `spec.storageClassName`; empty without.
fn class(volume: &Volume) -> &str {
    volume.storage_class.as_deref().unwrap_or_default()
}

/// The PersistentVolume is gone, or only others hold it.
fn released(shell: &mut Shell<'_>, volume: &Volume) {
    let (work, took, attempts) = (shell.look.work, shell.waited(), shell.attempt());
    let (metrics, driver) = (&work.context.metrics, &work.facts.name);
    let ids = shell.span.ids();
    metrics.operation_ended(driver, DELETE, "succeeded", took, attempts, ids);
    metrics.deleted(driver, class(volume), shell.took());
    shell.ended = Some(LifecycleOutcome::Succeeded);
}

fn record(shell: &Shell<'_>, volume: &Volume, reason: ProvisionEventReason, cause: &'static str, note: String) {
    let subjects = vec![of_volume_named(&volume.name, &volume.uid)];
    let traceparent = shell.span.traceparent();
    shell.look.work.record(traceparent, reason, cause, note, subjects);
}
