//! The start of the program: arguments, runtime, exit code.

use std::ffi::OsString;
use std::io::Write;
use std::num::NonZero;
use std::process::ExitCode;

use tokio::runtime::Runtime;

use crate::api;
use crate::app::{self, Mode, ProcessOptions};
use crate::cli::{Cli, Command};
use crate::sidecar_flags::{self, DropInCommand, ReadError};

/// Threads that run tasks, at most. The API server and the drivers are the limit long before that many are busy, and each one more
/// costs memory and wake-ups; a machine with 64 cores would have 64.
const MAX_WORKERS: usize = 4;
/// The exit code of wrong flags, for clap as for Go.
const USAGE: u8 = 2;

/// Reads the arguments and runs what they ask for.
pub fn main() -> ExitCode {
    // Only one TLS provider may ever be asked for; installing it twice is the only way this can fail.
    let _already_installed = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    if sidecar_flags::is_drop_in(&arguments) {
        return drop_in(&arguments);
    }
    let cli = Cli::read();
    match cli.command {
        Some(Command::Crd) => match api::crd::crd_yaml() {
            Ok(yaml) => print(&yaml),
            Err(error) => failed(&error.to_string()),
        },
        None => run(cli.options.into(), Mode::Configs),
    }
}

/// In the place of the sidecar.
fn drop_in(arguments: &[OsString]) -> ExitCode {
    match sidecar_flags::read(arguments) {
        Ok(DropInCommand::Help(usage)) => print(&usage),
        Ok(DropInCommand::Version) => print(concat!("csi-attacher-operator ", env!("CARGO_PKG_VERSION"), "\n")),
        Ok(DropInCommand::Serve(settings)) => {
            let mode = Mode::One {
                driver: Box::new(settings.driver),
                election: settings.election,
                remarks: settings.warnings,
            };
            run(settings.process, mode)
        }
        Err(ReadError::Flag(error)) => {
            let _gone = write!(std::io::stderr(), "{error}\n{}", sidecar_flags::usage());
            ExitCode::from(USAGE)
        }
        Err(ReadError::Settings(error)) => failed(&error.to_string()),
    }
}

fn run(options: ProcessOptions, mode: Mode) -> ExitCode {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = match builder.worker_threads(cores.min(MAX_WORKERS)).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&format!("cannot start the runtime: {error}")),
    };
    match run_to_end(runtime, app::run(options, mode)) {
        Ok(code) => code,
        Err(error) => failed(&error.to_string()),
    }
}

/// Runs the program until it has ended. A name lookup cannot be aborted, and one that hangs must not hold the process.
fn run_to_end<F: Future>(runtime: Runtime, program: F) -> F::Output {
    let ended = runtime.block_on(program);
    runtime.shutdown_background();
    ended
}

fn print(text: &str) -> ExitCode {
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error.to_string()),
    }
}

fn failed(message: &str) -> ExitCode {
    // There is no log, or it leaves errors out: this goes straight to standard error.
    let _gone = writeln!(std::io::stderr(), "csi-attacher-operator: {message}");
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn the_process_ends_while_a_name_lookup_hangs() {
        const HANGS: Duration = Duration::from_mins(1);
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).build().unwrap();
        let started = Instant::now();
        run_to_end(runtime, async {
            let (tell, begun) = tokio::sync::oneshot::channel();
            // As the resolver of the system is asked.
            drop(tokio::task::spawn_blocking(move || {
                tell.send(()).unwrap();
                std::thread::sleep(HANGS);
            }));
            begun.await.unwrap();
        });
        assert!(started.elapsed() < HANGS / 2, "{:?}", started.elapsed());
    }
}
