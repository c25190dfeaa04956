//! What happened in an attempt, as Events, log lines, metrics, and in the state of the driver.

use super::shell::Shell;
use crate::apiserver::ApiError;
use crate::clock;
use crate::decide::Failure;
use crate::events::{EventType, NewEvent, of_volume};
use crate::objects::Volume;
use crate::provision::VolumeReason;
use crate::provision::deletion::{VolumeAttempt, VolumeNote};
use crate::provision::event::{self, ProvisionEventReason};
use crate::runtime::FailureRecord;
use crate::telemetry::names::{self, attr, error_type};
use crate::telemetry::traced;
use crate::traces::{LifecycleOutcome, Operation};

const DELETE: &str = Operation::Delete.as_str();

/// Reports one thing that happened.
pub(super) fn report(shell: &mut Shell<'_>, attempt: &VolumeAttempt, note: VolumeNote) {
    let Some(volume) = attempt.volume().cloned() else {
        return;
    };
    let volume = &*volume;
    match note {
        VolumeNote::Calls(_) => {}
        VolumeNote::WithoutSecret(secret) => {
            let note = event::without_secret(&secret);
            record(
                shell,
                volume,
                ProvisionEventReason::VolumeFailedDelete,
                error_type::SECRET_MISSING,
                note,
            );
        }
        VolumeNote::CallFailed(failure) => {
            let kind = kind_of(&failure);
            failed(shell, volume, kind, failure.code, &failure.message);
        }
        VolumeNote::Deleted(handle, failure) => deleted(shell, volume, &handle, failure.as_ref()),
        VolumeNote::PerhapsDeleted(handle) => {
            let note = event::perhaps_deleted(&handle);
            record(
                shell,
                volume,
                ProvisionEventReason::VolumeFailedDelete,
                "perhaps_deleted",
                note,
            );
            shell.ended = Some(LifecycleOutcome::Aborted);
        }
        VolumeNote::Released => released(shell),
        VolumeNote::Waits(reason, of) => waits(shell, volume, reason, &of),
        VolumeNote::Refused(_, cause) => failed(shell, volume, cause.reason(), None, &cause.to_string()),
        VolumeNote::NotWritten(error) => request_failed(shell, volume, &error),
        VolumeNote::RequestFailed(error) if !error.is_transient() => {
            let message = event::volume_request_refused(&error);
            failed(shell, volume, error_type::OTHER, None, &message);
        }
        VolumeNote::RequestFailed(error) => {
            shell.span.fail(&error.error_type(), &error.message);
            request_failed(shell, volume, &error);
        }
        VolumeNote::LeaseLost(lost) => {
            let driver = &*shell.look.work.facts.name;
            traced!(debug, shell.span, driver, PersistentVolume = &*volume.name, "{lost}");
        }
    }
}

/// A request that may succeed a moment later, or that nobody waits for.
fn request_failed(shell: &Shell<'_>, volume: &Volume, error: &ApiError) {
    traced!(
        warn,
        shell.span,
        driver = &*shell.look.work.facts.name,
        PersistentVolume = &*volume.name,
        %error,
        next_try_seconds = shell.run.retry_delay().as_secs_f64(),
        "a request about the PersistentVolume failed"
    );
}

fn kind_of(failure: &Failure) -> &'static str {
    failure.code.map_or(error_type::DRIVER_UNAVAILABLE, |code| {
        names::code_upper_snake(code.into())
    })
}

/// The deletion waits until something changes: told once.
fn waits(shell: &Shell<'_>, volume: &Volume, reason: VolumeReason, of: &str) {
    let (level, kind, note) = match reason {
        VolumeReason::StillAttached => (
            ProvisionEventReason::VolumeDelete,
            "attached",
            event::still_attached(&volume.name, of),
        ),
        VolumeReason::Held => (
            ProvisionEventReason::VolumeDelete,
            error_type::DELETION_HELD,
            event::held(&volume.name),
        ),
        VolumeReason::HandleShared => (
            ProvisionEventReason::VolumeDelete,
            error_type::HANDLE_SHARED,
            event::note(of),
        ),
        VolumeReason::ReleasedWhileBound => (
            ProvisionEventReason::ReleasedWhileBound,
            "bound",
            event::released_while_bound(&volume.name, of),
        ),
        VolumeReason::NeedsDecision => (
            ProvisionEventReason::VolumeDelete,
            "needs_decision",
            event::needs_decision(&volume.name, !of.is_empty()),
        ),
        VolumeReason::NotCsi => (
            ProvisionEventReason::VolumeFailedDelete,
            "not_csi",
            event::no_handle(&volume.name),
        ),
        _ => return,
    };
    record(shell, volume, level, kind, note.clone());
    traced!(
        info,
        shell.span,
        driver = &*shell.look.work.facts.name,
        PersistentVolume = &*volume.name,
        reason = reason.as_str(),
        "the volume is not deleted now: {note}"
    );
}

/// An attempt failed, and is made again after its backoff.
fn failed(shell: &mut Shell<'_>, volume: &Volume, kind: &'static str, code: Option<i32>, message: &str) {
    let (work, delay) = (shell.look.work, shell.run.retry_delay());
    let note = event::failed(message, false, shell.run.attempt(), delay);
    record(shell, volume, ProvisionEventReason::VolumeFailedDelete, kind, note);
    let reason = code.map(tonic::Code::from).map_or(kind, names::code_camel_case);
    work.context.metrics.attempt_failed(&work.facts.name, DELETE, reason);
    shell.span.set(attr::RETRY_DELAY, delay.as_secs_f64());
    // The driver's words alone: the code stands beside them.
    let words = message.split_once(" desc = ").map_or(message, |(_, words)| words);
    shell.span.fail(kind, words);
    traced!(
        warn,
        shell.span,
        driver = &*work.facts.name,
        PersistentVolume = &*volume.name,
        attempt = shell.run.attempt(),
        code = reason,
        error = message,
        next_try_seconds = delay.as_secs_f64(),
        "deletion failed"
    );
    work.publisher.failure(FailureRecord {
        at: clock::now(),
        attachment: volume.name.to_string(),
        operation: DELETE,
        code: reason.to_owned(),
        message: message.to_owned(),
        trace_id: shell.span.trace_id(),
    });
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
        attempt = shell.run.attempt(),
        "volume deleted"
    );
}

/// The PersistentVolume is gone, or only others hold it.
fn released(shell: &mut Shell<'_>) {
    let (work, took, attempts) = (shell.look.work, shell.waited(), shell.run.attempt());
    let ids = shell.span.ids();
    work.context
        .metrics
        .operation_ended(&work.facts.name, DELETE, "succeeded", took, attempts, ids);
    shell.ended = Some(LifecycleOutcome::Succeeded);
}

/// Records an Event on the PersistentVolume and on its claim, where that is there. No text here has a value of a Secret: those of the driver
/// were scrubbed when they came in.
fn record(shell: &Shell<'_>, volume: &Volume, reason: ProvisionEventReason, cause: &'static str, note: String) {
    let level: EventType = reason.level();
    shell.look.work.context.events.record(NewEvent {
        driver: shell.look.work.facts.name.clone(),
        reason: reason.as_str(),
        level,
        cause: cause.into(),
        note,
        traceparent: shell.span.traceparent(),
        at: clock::now(),
        // The claim is gone, but where that is what is wrong.
        subjects: of_volume(volume)
            .into_iter()
            .take(if reason == ProvisionEventReason::ReleasedWhileBound {
                2
            } else {
                1
            })
            .collect(),
    });
}
