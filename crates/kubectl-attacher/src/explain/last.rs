//! The last error, the last attempt, and what an error says about a Secret.

use csi_attacher_model::decide::grpc_code as codes;
use csi_attacher_model::findings::FailureNote;
use csi_attacher_model::objects::{Attachment, Operation, VolumeError};
use jiff::{SignedDuration, Timestamp};

use super::Case;
use super::report::{LastAttempt, LastError};
use crate::observed::{EventRecord, Lookup, is_settled};

/// How the text of an error that gRPC gave begins, for operator and sidecar.
const RPC_ERROR: &str = "rpc error: code = ";

/// Whether an error is what a call of the driver came to. Others have their cause beside the driver: a webhook, the Lease, an object.
pub(super) fn is_of_call(error: &VolumeError) -> bool {
    error.code.is_some() || error.message.contains(RPC_ERROR)
}

/// The number of the gRPC code of an error: the stored one, or that of its text. API servers before 1.34 do not store it.
pub(super) fn grpc_code(error: &VolumeError) -> Option<i32> {
    if error.code.is_some() {
        return error.code;
    }
    let (_, rest) = error.message.split_once(RPC_ERROR)?;
    codes::of_name(rest.split(' ').next()?)
}

/// The error of an attachment that is about what it is asked for now. One that is settled has none, whatever an attempt left there.
pub(crate) fn current_error(attachment: &Attachment) -> Option<&VolumeError> {
    attachment.pending_error().filter(|_| !is_settled(attachment))
}

/// The same, to be shown.
pub(super) fn last_error(attachment: &Attachment) -> Option<LastError> {
    current_error(attachment).map(|error| LastError {
        code: grpc_code(error).and_then(codes::name).map(str::to_owned),
        message: error.message.to_string(),
        at: error.time,
    })
}

/// The last attempt of an operation that Events tell of.
pub(super) fn last_attempt(events: &Lookup<Vec<EventRecord>>, operation: Operation) -> Option<LastAttempt> {
    let attempts = events.found()?.iter().filter_map(|event| {
        let note = FailureNote::parse(&event.message)?;
        let at: Timestamp = event.last?;
        let delay = SignedDuration::try_from(note.delay).ok()?;
        let attempt = LastAttempt {
            number: note.attempt,
            at,
            next: at.checked_add(delay).ok()?,
        };
        (note.operation == operation).then_some(attempt)
    });
    attempts.max_by_key(|attempt| (attempt.at, attempt.number))
}

/// What an error says about a Secret that could not be read. Operator and sidecar begin such an error with the same words.
pub(super) fn secret_error(error: Option<&VolumeError>) -> Option<Case> {
    let text = &error?.message;
    if !text.contains("failed to load secret") && !text.contains("failed to get secret") {
        return None;
    }
    let text = text.to_ascii_lowercase();
    if text.contains("forbidden") {
        Some(Case::SecretForbidden)
    } else if text.contains("not found") {
        Some(Case::SecretMissing)
    } else {
        None
    }
}
