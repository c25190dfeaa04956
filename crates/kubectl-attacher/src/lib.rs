//! `kubectl attacher`: why a volume is not attached, and what fixes it safely.
//!
//! [`explain`] and [`output`] are pure. [`gather`] reads with the permissions of the caller, and what it cannot read is a typed gap.
//! [`commands`] put the two together; only `retry` and `release` write, and what they write is checked again by the operator.

#[cfg(test)]
mod api_server_fixture;
mod cli;
mod commands;
mod error;
mod explain;
mod gather;
mod observed;
mod output;
mod release;

pub use cli::Cli;
pub use commands::{run, tell};
