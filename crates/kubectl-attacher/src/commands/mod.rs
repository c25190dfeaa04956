//! The commands: read, explain, print; `retry` and `release` write.

mod context;
mod drivers;
mod follow;
mod list;
mod missing;
mod release;
mod retry;
mod wait;
mod why;

pub use context::Context;

use clap::CommandFactory;
use std::io::Write;
use std::pin::Pin;

use crate::cli::{Cli, Command};
use crate::error::{EXIT_OK, PluginError, Result};

/// Runs a command; the number is its exit code.
pub async fn run(cli: Cli) -> Result<u8> {
    match cli.command {
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "kubectl-attacher", &mut script);
            print_bytes(&script)?;
            Ok(EXIT_OK)
        }
        command => {
            let context = Context::connect(&cli.global).await?;
            // Objects of all kinds are in these, so that they are large.
            let run: Pin<Box<dyn Future<Output = Result<u8>> + '_>> = match &command {
                Command::Why(arguments) => Box::pin(why::run(&context, arguments)),
                Command::List(arguments) => Box::pin(list::run(&context, arguments)),
                Command::Drivers(arguments) => Box::pin(drivers::run(&context, arguments)),
                Command::Wait(arguments) => Box::pin(wait::run(&context, arguments)),
                Command::Retry(arguments) => Box::pin(retry::run(&context, arguments)),
                Command::Release(arguments) => Box::pin(release::run(&context, arguments)),
                Command::Completion { .. } => return Ok(EXIT_OK),
            };
            run.await
        }
    }
}

/// Prints a text. Who closed the pipe wants no more.
pub(crate) fn print(text: &str) -> Result<()> {
    print_bytes(text.as_bytes())
}

fn print_bytes(bytes: &[u8]) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(PluginError::Output(error.to_string())),
        _ => Ok(()),
    }
}
