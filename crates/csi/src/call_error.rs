//! How a call ended that did not answer OK.

use std::time::Duration;
use thiserror::Error;
use tonic::Code;

use crate::apiserver::SecretData;
use crate::decide::{Failure, SecretValues, cut, plain, scrub};
use crate::telemetry::names;

/// Longest text of a driver in an error; the API server takes a quarter of it.
pub(super) const MAX_MESSAGE_BYTES: usize = 4096;

/// A call that did not answer OK.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("rpc error: code = {} desc = {message}", names::code_camel_case(*.code))]
pub struct CallError {
    /// The gRPC code; DEADLINE_EXCEEDED when the deadline of the operator passed.
    pub code: Code,
    /// Text of the driver, free of secrets and control characters.
    pub message: String,
    /// Whether the transport failed: no driver sent this error.
    pub transport: bool,
    /// Whether no driver can have begun with the call. When in doubt, one has.
    pub unsent: bool,
}

impl CallError {
    /// An answer that cannot be read. The driver may have done what the call asked for, hence a code that does not deny it.
    pub(super) fn unreadable(why: &str) -> Self {
        Self::sent(Code::Unavailable, format!("the driver's answer cannot be read: {why}"))
    }

    pub(super) fn deadline_exceeded(deadline: Duration) -> Self {
        let seconds = deadline.as_secs_f64();
        Self::sent(
            Code::DeadlineExceeded,
            format!("context deadline exceeded: no answer from the driver within {seconds} s"),
        )
    }

    /// The operator did not wait for the answer.
    pub(super) fn cut_off() -> Self {
        let message = "context canceled: the operator cut the call off; the driver may carry it out";
        Self::sent(Code::Cancelled, message.to_owned())
    }

    /// Of a call that a driver may have begun with.
    fn sent(code: Code, message: String) -> Self {
        Self {
            code,
            message,
            transport: false,
            unsent: false,
        }
    }
}

impl From<&CallError> for Failure {
    fn from(error: &CallError) -> Self {
        Self {
            message: error.to_string(),
            code: Some(i32::from(error.code)),
        }
    }
}

/// A text of the driver that may be shown: without the secrets of the call, on one line, and at most `limit` bytes long.
pub(super) fn presentable(text: &str, secrets: Option<&SecretData>, limit: usize) -> String {
    let none = SecretValues::default();
    let scrubbed = scrub(text, secrets.map_or(&none, SecretData::values));
    cut(&plain(&scrubbed), limit).to_owned()
}
