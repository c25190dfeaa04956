//! What both kinds of attempts tell alike.

use crate::decide::Failure;
use crate::provision::ProvisionRefusal;
use crate::runtime::report::FailedAttempt;
use crate::shell::Shell;
use crate::telemetry::names::{self, error_type};
use crate::telemetry::{Span, traced};
use csi_attacher_model::attempt::LeaseLost;

/// From this attempt on in a row a request that may succeed a moment later is told: it has not for some time.
pub(crate) const LASTING: u32 = 3;

/// `error.type` of a call that failed.
pub(crate) fn kind_of(failure: &Failure) -> &'static str {
    failure.code.map_or(error_type::DRIVER_UNAVAILABLE, |code| {
        names::code_upper_snake(code.into())
    })
}

/// Finds what a refusal names besides the object itself in the texts of a span, where it is not to be shown.
pub(crate) fn know_cause(span: &mut Span, cause: &ProvisionRefusal) {
    match cause {
        ProvisionRefusal::HandleShared { handle, owner: other }
        | ProvisionRefusal::StillAttached { handle, nodes: other } => span.knows([&**handle], [&**other]),
        ProvisionRefusal::DeletionHeld { handle } | ProvisionRefusal::VolumeUnrecorded { handle, .. } => {
            span.knows([&**handle], []);
        }
        ProvisionRefusal::NameTaken { volume }
        | ProvisionRefusal::VolumeGoing { volume }
        | ProvisionRefusal::VolumeUndecided { volume }
        | ProvisionRefusal::ClassNeeded { volume, .. }
        | ProvisionRefusal::ClassReplaced { volume, .. } => span.knows(None, [&**volume]),
        ProvisionRefusal::SecretNotAllowed { secret, .. }
        | ProvisionRefusal::SecretMissing { secret }
        | ProvisionRefusal::SecretUnreadable { secret } => {
            span.knows(None, [&*secret.namespace, &*secret.name]);
        }
        ProvisionRefusal::NoTopologyKeys { node, .. }
        | ProvisionRefusal::NodeLabelMissing { node, .. }
        | ProvisionRefusal::NodeUnknown { node }
        | ProvisionRefusal::NodeNotAllowed { node, .. } => span.knows(None, [&**node]),
        _ => {}
    }
}

/// A volume is not deleted: on the span, in the metrics and the state of the driver, and in the log. It is that of a PersistentVolume, or one
/// with this handle of a claim, which has none.
pub(crate) fn deletion_failed<K>(shell: &mut Shell<'_, K>, failed: &FailedAttempt<'_>, handle: Option<&str>) {
    let reason = shell.tell(failed);
    let (claim, volume) = shell.run.key.claim_or_volume();
    traced!(
        warn,
        shell.span,
        event.name = failed.code.map(|_| names::CALL_EXCEPTION),
        driver = &*shell.look.work.facts.name,
        PersistentVolumeClaim = claim,
        PersistentVolume = volume,
        volumeHandle = handle,
        attempt = shell.attempt(),
        code = reason,
        error = failed.message,
        next_try_seconds = failed.delay.map(|delay| delay.as_secs_f64()),
        "deletion failed"
    );
}

/// Nothing failed: others may work for the driver by now, or the connection took no more calls. What is to be told of one that takes none for
/// long.
pub(crate) fn lease_lost<K>(shell: &mut Shell<'_, K>, lost: LeaseLost) -> Option<String> {
    let (work, key) = (shell.look.work, &shell.run.key);
    let driver = &*work.facts.name;
    let (claim, volume) = key.claim_or_volume();
    match lost {
        LeaseLost::NotStarted => {
            traced!(
                debug,
                shell.span,
                driver,
                PersistentVolumeClaim = claim,
                PersistentVolume = volume,
                "{lost}"
            );
            let lasting = work.queue.remember(key, |memory| memory.unsent.lasting());
            let count = lasting.flatten()?;
            Some(format!(
                "the call was not sent: the connection to the driver took none of the last {count} calls"
            ))
        }
        LeaseLost::Cancelled => {
            traced!(
                warn,
                shell.span,
                driver,
                PersistentVolumeClaim = claim,
                PersistentVolume = volume,
                "{lost}"
            );
            shell.span.fail(error_type::SHUTDOWN, &lost.to_string());
            None
        }
    }
}
