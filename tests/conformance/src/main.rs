//! `csi-attacher-conformance`: does an attacher, or a provisioner, do what Kubernetes and CSI drivers rely on?
//!
//! The suite looks from outside. It starts a real API server and a scripted CSI driver, runs the attacher against both,
//! and judges the objects it leaves and the calls it makes, never the attacher itself; so any attacher can be put to it.
//! Where attachers legally differ both ways pass. What only some offer is an extension: it counts as "not supported",
//! not as failed, when the criterion that the scenario names says so. `--help` says what can be selected,
//! docs/contribute/CONFORMANCE.md how to put an attacher of one's own to it.

use csi_attacher_testbed as support;

mod arguments;
mod attacher;
mod command;
mod env;
mod expect;
mod groups;
mod lane;
mod launcher;
mod provision;
mod report;
mod role;
mod scenario;
mod suite;
mod teardown;
mod test;

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser as _;
use serde_json::json;

use arguments::Arguments;
use lane::Lane;
use launcher::LAUNCHER;
use report::Column;
use role::Role;
use scenario::Scenario;
use suite::Mode;
use support::{Error, Result};

/// Nothing was played, or the suite could not start.
const NOT_PLAYED: u8 = 2;

fn main() -> ExitCode {
    // Only one TLS provider may ever be asked for; installing it twice is the only way this can fail.
    let _already_installed = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let words: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match words.split_first() {
        Some((first, rest)) if first == LAUNCHER => launcher::run(rest).map(|()| ExitCode::FAILURE),
        _ => whole_suite(&Arguments::parse()),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("csi-attacher-conformance: {error}");
        ExitCode::from(NOT_PLAYED)
    })
}

fn whole_suite(arguments: &Arguments) -> Result<ExitCode> {
    if arguments.list {
        list(arguments)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut modes = Vec::new();
    for role in arguments.roles() {
        if !arguments.lanes(role).is_empty() {
            modes.push((role, arguments.modes(role)?));
        }
    }
    if modes.is_empty() {
        return Err(Error::Other("no scenario is selected; --list lists them".to_owned()));
    }
    let runtime = tokio::runtime::Runtime::new()?;
    let all = modes.iter().flat_map(|(_, modes)| modes);
    let left_out: Vec<Option<&[&str]>> = all.map(|it| it.left_out).collect();
    let columns = runtime.block_on(run(arguments, modes))?;
    runtime.shutdown_background();
    if let Some(file) = &arguments.json {
        write_to(file, &format!("{:#}\n", report::json(&columns)))?;
    }
    if let Some(file) = &arguments.junit {
        write_to(file, &report::junit(&columns))?;
    }
    if let Some(file) = &arguments.document {
        let cannot = |why: &dyn std::fmt::Display| Error::Other(format!("{}: {why}", file.display()));
        let document = std::fs::read_to_string(file).map_err(|error| cannot(&error))?;
        let written = report::in_document(&document, &columns);
        write_to(
            file,
            &written.ok_or_else(|| cannot(&"the marks of the results are missing"))?,
        )?;
    }
    // Standard output is either JSON or the table.
    if arguments.json.as_deref() != Some(Path::new("-")) {
        say(&report::table(&columns))?;
    }
    let wrong = |(column, left_out): (&Column, Option<&[&str]>)| {
        column.failed() + left_out.map_or(0, |left_out| column.not_supported_but(left_out))
    };
    if columns.iter().zip(left_out).all(|both| wrong(both) == 0) {
        Ok(ExitCode::SUCCESS)
    } else {
        Ok(ExitCode::FAILURE)
    }
}

fn write_to(file: &Path, text: &str) -> Result<()> {
    if file == Path::new("-") {
        return say(text);
    }
    std::fs::write(file, text).map_err(|error| Error::Other(format!("cannot write {}: {error}", file.display())))
}

fn say(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| Error::Other(format!("cannot write the report: {error}")))
}

fn list(arguments: &Arguments) -> Result<()> {
    let lanes: Vec<_> = arguments
        .roles()
        .into_iter()
        .flat_map(|role| arguments.lanes(role))
        .collect();
    let scenarios: Vec<&Scenario> = lanes.iter().flatten().flat_map(|setup| &setup.scenarios).collect();
    if let Some(file) = &arguments.json {
        let row = |it: &&Scenario| json!({ "id": it.id, "level": it.level.name(), "title": it.title, "criterion": it.criterion });
        let rows: Vec<_> = scenarios.iter().map(row).collect();
        return write_to(file, &format!("{:#}\n", json!(rows)));
    }
    let mut text = String::new();
    for scenario in scenarios {
        let criterion = scenario.criterion.map(|it| format!(" ({it})")).unwrap_or_default();
        let level = scenario.level.name();
        // Writing into a String cannot fail.
        writeln!(text, "{level:<11}  {}: {}{criterion}", scenario.id, scenario.title).ok();
    }
    say(&text)
}

/// Plays one role after another: control planes of both at a time are more than a small machine runs.
async fn run(arguments: &Arguments, modes: Vec<(Role, Vec<Mode>)>) -> Result<Vec<Column>> {
    let mut columns = Vec::new();
    for (role, modes) in modes {
        let count = arguments.lanes(role).len();
        let starts = (0..count).map(|_| Lane::start(role, arguments.logs.clone()));
        let control_planes = futures::future::try_join_all(starts).await?;
        for mode in modes {
            let started = Instant::now();
            let played = control_planes
                .iter()
                .zip(arguments.lanes(role))
                .map(|(lane, setups)| suite::run_lane(lane, setups, &mode));
            let rows = futures::future::join_all(played).await.into_iter().flatten().collect();
            columns.push(Column {
                role,
                mode: mode.name,
                rows,
                took: started.elapsed(),
            });
        }
    }
    Ok(columns)
}
