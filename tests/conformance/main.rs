//! `make conformance`: does an attacher do what Kubernetes and CSI drivers rely on?
//!
//! The suite looks from outside. It starts a real API server and a scripted CSI driver, runs the attacher against both,
//! and judges the objects it leaves and the calls it makes, never the attacher itself; so any attacher can be put to it.
//! Where attachers legally differ both ways pass. What only some offer is an extension: it counts as "not supported",
//! not as failed, when the criterion that the scenario names says so.
//!
//! Environment: `ATTACHER_CMD` is the command of an attacher, such as
//! `csi-attacher --kubeconfig={kubeconfig} --csi-address={socket}`; without it both modes of the operator are put to the
//! suite. `CONFORMANCE_LOGS` names a folder for the attachers' logs. Arguments are parts of names: only scenarios whose
//! setup, group or name has one of them are played. `--list` only lists, `--mode=flags` plays only the mode of that name.

use csi_attacher_testbed as support;

mod attacher;
mod command;
mod env;
mod expect;
mod groups;
mod lane;
mod launcher;
mod report;
mod scenario;
mod suite;
mod teardown;
mod test;

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use command::Template;
use lane::Lane;
use report::Column;
use scenario::Setup;
use suite::Mode;
use support::{Error, Result};

/// In the place of a sidecar the operator does as the sidecar: what may be published is never released without a call.
const RELEASES_WITHOUT_CALL: &[&str] = &[
    "after that the finalizers from before are taken off",
    "a deleted attachment with the finalizer from a former driver goes",
];
const LAUNCHER: &str = "with-attacherconfig";

fn main() -> ExitCode {
    // Only one TLS provider may ever be asked for; installing it twice is the only way this can fail.
    let _already_installed = rustls::crypto::ring::default_provider().install_default();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.split_first() {
        Some((first, rest)) if first == LAUNCHER => launcher::run(rest).map(|()| false),
        _ => whole_suite(&arguments),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("conformance: {error}");
            ExitCode::FAILURE
        }
    }
}

/// True when nothing failed, and nothing is left out that must not be.
fn whole_suite(arguments: &[String]) -> Result<bool> {
    let wanted: Vec<String> = arguments
        .iter()
        .filter(|word| !word.starts_with('-'))
        .cloned()
        .collect();
    if arguments.iter().any(|word| word == "--list") {
        say(&list(&wanted))?;
        return Ok(true);
    }
    let runtime = tokio::runtime::Runtime::new().map_err(|error| Error::Other(error.to_string()))?;
    let mode = arguments.iter().find_map(|word| word.strip_prefix("--mode="));
    let mut modes = modes()?;
    modes.retain(|it| mode.is_none_or(|mode| it.name == mode));
    let left_out: Vec<Option<&[&str]>> = modes.iter().map(|it| it.left_out).collect();
    let columns = runtime.block_on(run(&wanted, modes))?;
    runtime.shutdown_background();
    say(&report::table(&columns))?;
    let wrong = |(column, left_out): (&Column, Option<&[&str]>)| {
        column.failed() + left_out.map_or(0, |left_out| column.not_supported_but(left_out))
    };
    Ok(columns.iter().zip(left_out).all(|both| wrong(both) == 0))
}

fn say(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| Error::Other(format!("cannot write the report: {error}")))
}

fn list(wanted: &[String]) -> String {
    let mut text = String::new();
    for setup in lanes(wanted).into_iter().flatten() {
        for scenario in setup.scenarios {
            let criterion = scenario.criterion.map(|it| format!(": {it}")).unwrap_or_default();
            // Writing into a String cannot fail.
            writeln!(
                text,
                "{}: {}: {}{criterion}",
                setup.name,
                scenario.group,
                scenario.full_name()
            )
            .ok();
        }
    }
    text
}

async fn run(wanted: &[String], modes: Vec<Mode>) -> Result<Vec<Column>> {
    let logs = std::env::var_os("CONFORMANCE_LOGS").map(PathBuf::from);
    let count = lanes(wanted).len();
    let starts = (0..count).map(|_| Lane::start(logs.clone()));
    let control_planes = futures::future::try_join_all(starts).await?;
    let mut columns = Vec::new();
    for mode in modes {
        let started = Instant::now();
        let played = control_planes
            .iter()
            .zip(lanes(wanted))
            .map(|(lane, setups)| suite::run_lane(lane, setups, &mode));
        let rows = futures::future::join_all(played).await.into_iter().flatten().collect();
        columns.push(Column {
            mode: mode.name,
            rows,
            took: started.elapsed(),
        });
    }
    Ok(columns)
}

/// The setups that have a wanted scenario, with only such scenarios; each list has a control plane of its own.
fn lanes(wanted: &[String]) -> Vec<Vec<Setup>> {
    let mut lanes = groups::lanes();
    for lane in &mut lanes {
        for setup in lane.iter_mut() {
            let name = setup.name;
            setup.scenarios.retain(|scenario| {
                let full = format!("{name}: {}: {}", scenario.group, scenario.full_name());
                wanted.is_empty() || wanted.iter().any(|part| full.contains(part.as_str()))
            });
        }
        lane.retain(|setup| !setup.scenarios.is_empty());
    }
    lanes.retain(|lane| !lane.is_empty());
    lanes
}

fn modes() -> Result<Vec<Mode>> {
    if let Some(command) = std::env::var("ATTACHER_CMD").ok().filter(|command| !command.is_empty()) {
        let template = Template::parse(&command).map_err(|error| Error::Other(format!("ATTACHER_CMD: {error}")))?;
        let name = "attacher".to_owned();
        return Ok(vec![Mode {
            name,
            template,
            left_out: None,
        }]);
    }
    let operator = env!("CARGO_BIN_EXE_csi-attacher-operator");
    let own = std::env::current_exe().map_err(|error| Error::Other(format!("cannot find this program: {error}")))?;
    let sidecar = [
        "--kubeconfig={kubeconfig}".to_owned(),
        "--csi-address={socket}".to_owned(),
    ];
    let launcher = [
        own.display().to_string(),
        LAUNCHER.to_owned(),
        format!("--operator={operator}"),
        "--admin-kubeconfig={admin_kubeconfig}".to_owned(),
    ];
    let as_config = Mode {
        name: "AttacherConfig".to_owned(),
        template: Template::of(launcher.into_iter().chain(sidecar.clone())),
        left_out: Some(&[]),
    };
    let by_flags = Mode {
        name: "flags".to_owned(),
        template: Template::of(std::iter::once(operator.to_owned()).chain(sidecar)),
        left_out: Some(RELEASES_WITHOUT_CALL),
    };
    Ok(vec![as_config, by_flags])
}
