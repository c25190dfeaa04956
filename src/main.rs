//! The operator binary: arguments, runtime, exit code.

use clap::Parser;
use csi_attacher_operator::cli::{Cli, Command};
use csi_attacher_operator::{api, app};
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    // Only one TLS provider may ever be asked for; installing it twice is the only way this can fail.
    let _already_installed = rustls::crypto::ring::default_provider().install_default();
    let cli = Cli::parse();
    match cli.command {
        Some(Command::Crd) => print_crd(),
        None => run(cli),
    }
}

fn run(cli: Cli) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&format!("cannot start the runtime: {error}")),
    };
    match runtime.block_on(app::run(cli.options)) {
        Ok(code) => code,
        Err(error) => failed(&error.to_string()),
    }
}

fn print_crd() -> ExitCode {
    match api::crd::crd_yaml() {
        Ok(yaml) => match std::io::stdout().write_all(yaml.as_bytes()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => failed(&error.to_string()),
        },
        Err(error) => failed(&error.to_string()),
    }
}

fn failed(message: &str) -> ExitCode {
    // Logging may not be set up yet, so this goes straight to standard error.
    let _gone = writeln!(std::io::stderr(), "csi-attacher-operator: {message}");
    ExitCode::FAILURE
}
