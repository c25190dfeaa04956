//! From the outcome of an effect to the writes that record it.

use jiff::Timestamp;

use super::grpc_code;
use super::message::shown_error;
use super::observed::{Observed, OrphanPolicy, Policy};
use super::outcome::{Failure, Outcome};
use super::patch::{self, Write};

/// The API server's limit on `attachmentMetadata`, keys and values together.
const MAX_PUBLISH_CONTEXT_BYTES: usize = 256 * 1024;

/// The writes that record an outcome, in the order in which they must reach the API server.
///
/// At the end of a detach the finalizer goes first and the status second: the other way round, a crash or a stale cache
/// between the two shows an unattached volume that still has our finalizer, and Unpublish is called again. This way round
/// nothing that is left calls for it ([`patch::release`]), though the status may say "attached" until the object goes. The
/// executor leaves out the second write when the answer to the first shows that the object is gone.
pub fn settle(observed: &Observed<'_>, outcome: &Outcome, now: Timestamp) -> Vec<Write> {
    let attachment = observed.attachment;
    match outcome {
        Outcome::Published(context) => vec![patch::attached(attachment, Some(context))],
        Outcome::Unpublished => {
            let release = patch::release(attachment, &observed.driver.finalizer);
            if observed.forced && release.is_none() && !attachment.attached && attachment.detach_error.is_none() {
                // The remains of a detach that is on record already.
                return Vec::new();
            }
            release.into_iter().chain([patch::detached(attachment)]).collect()
        }
        Outcome::AttachFailed(failure) => vec![patch::attach_error(attachment, &shown(failure), now)],
        Outcome::DetachFailed(failure) => vec![patch::detach_error(attachment, &shown(failure), now)],
    }
}

/// What an answer to ControllerUnpublishVolume means: only OK is detached, unless the policy says that a volume or node
/// that the driver does not find is as good. The value is the failure that was taken for success, to be reported.
pub fn unpublished(policy: &Policy, answer: Result<(), Failure>) -> Result<Option<Failure>, Failure> {
    match answer {
        Ok(()) => Ok(None),
        Err(failure)
            if failure.code == Some(grpc_code::NOT_FOUND)
                && policy.orphans == OrphanPolicy::TreatNotFoundAsDetached =>
        {
            Ok(Some(failure))
        }
        Err(failure) => Err(failure),
    }
}

/// The API server refuses the whole status when a message is longer than its limit, and then nobody sees the error.
fn shown(failure: &Failure) -> Failure {
    Failure {
        message: shown_error(&failure.message).into_owned(),
        code: failure.code,
    }
}

/// Checks a publish context against the API server's limit; an error in words if it can never be stored.
pub fn check_publish_context(context: &crate::objects::StringMap) -> Result<(), Failure> {
    let bytes: usize = context.iter().map(|(key, value)| key.len() + value.len()).sum();
    if bytes <= MAX_PUBLISH_CONTEXT_BYTES {
        return Ok(());
    }
    Err(Failure::plain(format!(
        "the driver's publish context has {bytes} bytes, but the API server stores at most {MAX_PUBLISH_CONTEXT_BYTES}"
    )))
}
