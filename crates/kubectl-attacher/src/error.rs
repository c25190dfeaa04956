//! What can go wrong, and the exit code of each: scripts rely on them.

use thiserror::Error;

use crate::cli::ArgumentError;
use crate::observed::Gap;

/// Everything is as asked for.
pub const EXIT_OK: u8 = 0;
/// The cluster could not be asked.
pub const EXIT_ERROR: u8 = 1;
/// The command line is wrong.
pub const EXIT_USAGE: u8 = 2;
/// A step blocks, or something is stuck.
pub const EXIT_BLOCKED: u8 = 3;
/// The object does not exist.
pub const EXIT_NOT_FOUND: u8 = 4;
/// The time is over.
pub const EXIT_TIMEOUT: u8 = 5;
/// A release was refused.
pub const EXIT_REFUSED: u8 = 6;
/// What could be read does not say, mostly for lack of a permission.
pub const EXIT_UNKNOWN: u8 = 7;
/// Somebody pressed Ctrl-C: what a shell shows of a program that SIGINT ended, as it does of `wait` and `retry`.
pub const EXIT_INTERRUPTED: u8 = 130;

/// Why a command did not come to its end.
#[derive(Debug, Error)]
pub enum PluginError {
    #[error("cannot use the kubeconfig: {0}")]
    Config(String),
    /// The API server did not answer as it should.
    #[error("{what}: {message}")]
    Api { what: String, message: String },
    #[error("{object} does not exist{}", suggestion(.nearest))]
    NotFound { object: String, nearest: Vec<String> },
    /// Nothing is attached to what is waited for, and it does not exist either.
    #[error("{object} does not exist, and no VolumeAttachment of it was seen{}; if that is as it should be, use --allow-missing", suggestion(.nearest))]
    NothingSeen { object: String, nearest: Vec<String> },
    #[error("{0}")]
    Unreadable(Gap),
    #[error("not within {seconds} s: {what}")]
    Timeout { what: String, seconds: u64 },
    #[error("interrupted: {0}")]
    Interrupted(String),
    #[error("refused: {0}")]
    Refused(String),
    #[error("cannot write the output: {0}")]
    Output(String),
    /// What the command line names is not one object.
    #[error(transparent)]
    Argument(#[from] ArgumentError),
}

fn suggestion(names: &[String]) -> String {
    if names.is_empty() {
        String::new()
    } else {
        format!("; did you mean {}?", names.join(" or "))
    }
}

impl PluginError {
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Api { .. } | Self::Output(_) => EXIT_ERROR,
            Self::Argument(_) => EXIT_USAGE,
            Self::NotFound { .. } | Self::NothingSeen { .. } => EXIT_NOT_FOUND,
            Self::Timeout { .. } => EXIT_TIMEOUT,
            Self::Interrupted(_) => EXIT_INTERRUPTED,
            Self::Refused(_) => EXIT_REFUSED,
            Self::Unreadable(gap) => gap.exit_code(),
        }
    }
}

pub type Result<T, E = PluginError> = std::result::Result<T, E>;

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn waiting_for_nothing_is_a_wrong_command_line() {
        for line in [
            "wait --for=detached",
            "wait pv --for=detached",
            "wait --node --for=detached",
        ] {
            let words = ["kubectl-attacher"].into_iter().chain(line.split(' '));
            let code = match Cli::try_parse_from(words) {
                Ok(parsed) => parsed
                    .command
                    .check()
                    .err()
                    .map(|error| i32::from(PluginError::from(error).exit_code())),
                Err(error) => Some(error.exit_code()),
            };
            assert_eq!(code, Some(i32::from(EXIT_USAGE)), "{line}");
        }
    }
}
