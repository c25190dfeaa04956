//! The program `kubectl-attacher`, which kubectl finds on PATH as `kubectl attacher`.

use clap::Parser;
use kubectl_attacher::{Cli, run, tell};
use std::process::ExitCode;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run(Cli::parse()).await {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            tell(&format!("error: {error}"));
            ExitCode::from(error.exit_code())
        }
    }
}
