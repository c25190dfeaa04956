//! The program `kubectl-attacher`, which kubectl finds on PATH as `kubectl attacher`.

use clap::Parser;
use kubectl_attacher::cli::Cli;
use kubectl_attacher::commands;
use std::io::Write;
use std::process::ExitCode;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match commands::run(Cli::parse()).await {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            // Nobody is left to tell when standard error is closed.
            drop(writeln!(std::io::stderr(), "error: {error}"));
            ExitCode::from(error.exit_code())
        }
    }
}
