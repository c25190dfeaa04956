//! `make chaos`: what becomes of volumes while everything around the operator fails.
//!
//! Real processes, a real API server, real sockets. Replicas of the operator are stopped, killed and cut off, they get answers that are not
//! true, drivers fail in every way, settings change, the API server and etcd are restarted and restored. Workers attach and detach all
//! the while, and what the API server says is checked against what the drivers know; see docs/TESTING.md.
//!
//! Environment: `SEED` repeats the draws; `CHAOS` is how long it takes, such as `3m`; `CHAOS_FAULTS` names kinds of faults and
//! `CHAOS_PARTS` parts of the run; `CHAOS_ROUND` plays one round of the seed again and again; `CHAOS_KEEP_GOING=1` goes on after a
//! violation; `CHAOS_LOGS` names a folder for the logs of the operator, `CHAOS_JSON` a file for the report. `--list` lists faults and parts.

#[path = "../support/mod.rs"]
mod support;

mod checker;
mod effect;
mod ending;
mod faults;
mod history;
mod link;
mod plan;
mod recorder;
mod report;
mod restore;
mod rolling;
mod schema;
mod settings;
mod storm;
mod watched;
mod workers;
mod world;

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use plan::{KINDS, Kind};
use report::Part;
use storm::Storm;
use support::{Error, Result};

/// The parts of a run, and which share of its time each takes. The run without faults takes what it takes.
const PARTS: [(&str, f64, &str); 3] = [
    (
        "storm",
        0.5,
        "faults of all kinds; where it ends is compared with where the same run ends without faults",
    ),
    (
        "settings",
        0.3,
        "a walk through the settings, one field after the other, under load",
    ),
    ("rolling", 0.2, "a rolling update from the former release and back"),
];

#[allow(clippy::needless_pass_by_value, reason = "it is handed to map_err")]
fn other(error: impl ToString) -> Error {
    Error::Other(error.to_string())
}

fn main() -> ExitCode {
    // Only one TLS provider may ever be asked for; installing it twice is the only way this can fail.
    let _already_installed = rustls::crypto::ring::default_provider().install_default();
    if std::env::args().any(|argument| argument == "--list") {
        return if say(&list()).is_ok() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        };
    }
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("chaos: {error}");
            ExitCode::FAILURE
        }
    }
}

fn say(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(other)
}

fn list() -> String {
    let mut text = "faults (CHAOS_FAULTS):\n".to_owned();
    for (_, name, _, what) in KINDS {
        // Writing into a String cannot fail.
        writeln!(text, "  {name:<12}{what}").ok();
    }
    text.push_str("parts (CHAOS_PARTS):\n");
    for (name, _, what) in PARTS {
        writeln!(text, "  {name:<12}{what}").ok();
    }
    text
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// True when nothing was found.
fn run() -> Result<bool> {
    let seed = match variable("SEED") {
        Some(seed) => seed
            .parse()
            .map_err(|_| Error::Other(format!("SEED={seed}: not a number")))?,
        None => fastrand::u64(..1 << 32),
    };
    let lasts = variable("CHAOS").unwrap_or_else(|| "3m".to_owned());
    let lasts = schema::milliseconds(&lasts).map(Duration::from_millis);
    let lasts = lasts.ok_or_else(|| Error::Other("CHAOS: not a duration such as 3m".to_owned()))?;
    let kinds = Kind::read(&variable("CHAOS_FAULTS").unwrap_or_default());
    let kinds =
        kinds.map_err(|name| Error::Other(format!("CHAOS_FAULTS: there is no {name}; --list tells what there is")))?;
    let parts = variable("CHAOS_PARTS").unwrap_or_default();
    let parts: Vec<&str> = parts
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .collect();
    if let Some(wrong) = parts.iter().find(|name| !PARTS.iter().any(|part| part.0 == **name)) {
        return Err(Error::Other(format!(
            "CHAOS_PARTS: there is no {wrong}; --list tells what there is"
        )));
    }
    let wanted = |name: &str| parts.is_empty() || parts.contains(&name);
    let share = |name: &str| {
        let all: f64 = PARTS.iter().filter(|part| wanted(part.0)).map(|part| part.1).sum();
        let of = PARTS.iter().find(|part| part.0 == name).map_or(0.0, |part| part.1);
        lasts.mul_f64(of / all)
    };
    eprintln!("chaos: seed {seed}, {lasts:?}; SEED={seed} repeats the plan");
    let storm = Storm {
        seed,
        lasts: share("storm"),
        kinds,
        keep_going: variable("CHAOS_KEEP_GOING").is_some(),
        only: variable("CHAOS_ROUND").and_then(|number| number.parse().ok()),
    };
    let runtime = tokio::runtime::Runtime::new().map_err(other)?;
    let found: Result<Vec<Part>> = runtime.block_on(async {
        let mut found = Vec::new();
        if wanted("storm") {
            let (calm, end) = Box::pin(storm::calm(seed)).await?;
            found.push(calm);
            found.push(Box::pin(storm::storm(&storm, &end)).await?);
        }
        if wanted("settings") {
            found.push(Box::pin(settings::walk(seed, share("settings"))).await?);
        }
        if wanted("rolling") {
            // Six replicas are replaced.
            found.push(Box::pin(rolling::roll(seed, share("rolling") / 10)).await?);
        }
        Ok(found)
    });
    let found = found?;
    runtime.shutdown_background();
    say(&report::to_text(seed, &found))?;
    let json = report::to_json(seed, &found);
    match variable("CHAOS_JSON") {
        Some(path) => std::fs::write(&path, format!("{json:#}\n")).map_err(other)?,
        None => say(&format!("{json}\n"))?,
    }
    Ok(found.iter().all(|part| part.violations.is_empty()))
}
