//! How a call of a driver ended when it did not end well.

use std::time::Duration;
use thiserror::Error;
use tonic::Code;

use crate::decide::Failure;
use crate::telemetry::names;

/// A call that did not answer OK.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("rpc error: code = {} desc = {message}", names::code_camel_case(*.code))]
pub struct CallError {
    /// The gRPC code; our own deadline reads DEADLINE_EXCEEDED.
    pub code: Code,
    /// The driver's words, free of secrets and control characters.
    pub message: String,
    /// Whether it was the transport that failed, so that no driver said this.
    pub transport: bool,
}

impl From<&CallError> for Failure {
    fn from(error: &CallError) -> Self {
        Self {
            message: error.to_string(),
            code: Some(i32::from(error.code)),
        }
    }
}

/// The driver may have done what it was asked to, so that this is not told by a code that would say it did not.
pub(super) fn unreadable(why: &str) -> CallError {
    CallError {
        code: Code::Unavailable,
        message: format!("the driver's answer cannot be read: {why}"),
        transport: false,
    }
}

/// Our own deadline passed.
pub(super) fn deadline_exceeded(deadline: Duration) -> CallError {
    CallError {
        code: Code::DeadlineExceeded,
        message: format!(
            "context deadline exceeded: no answer from the driver within {} s",
            deadline.as_secs_f64()
        ),
        transport: false,
    }
}
