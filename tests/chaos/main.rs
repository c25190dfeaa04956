//! `make chaos`: what becomes of volumes while everything around the operator fails.
//!
//! Real processes, a real API server, real sockets. Replicas of the operator are stopped, killed and cut off, they get answers that are not
//! true, drivers fail in every way, settings change, the API server and etcd are restarted and restored. Workers attach and detach all
//! the while, and what the API server says is checked against what the drivers know; see docs/contribute/TESTING.md.
//!
//! Environment: `SEED` repeats the draws; `CHAOS` is how long it takes, such as `3m`; `CHAOS_FAULTS` names kinds of faults and
//! `CHAOS_PARTS` parts of the run; `CHAOS_ROUND` plays one round of the seed again and again; `CHAOS_KEEP_GOING=1` goes on after a
//! violation; `CHAOS_LOGS` names a folder for the logs of the operator, `CHAOS_JSON` a file for the report. `--list` lists faults and parts.

use csi_attacher_testbed as support;

mod checker;
mod claims;
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
mod secrets;
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

/// The parts of a run, and which share of its time each takes.
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

/// The storm has what the run without faults leaves of their share, and not less than one round takes.
const SHORTEST_STORM: Duration = Duration::from_secs(20);

#[allow(clippy::needless_pass_by_value, reason = "it is handed to map_err")]
fn other(error: impl ToString) -> Error {
    Error::Other(error.to_string())
}

fn main() -> ExitCode {
    // Only one TLS provider may ever be asked for; installing it twice is the only way this can fail.
    let _already_installed = rustls::crypto::aws_lc_rs::default_provider().install_default();
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

/// What is to be played.
struct Orders {
    storm: Storm,
    lasts: Duration,
    parts: Vec<String>,
}

impl Orders {
    /// Reads the environment.
    fn read() -> Result<Self> {
        let seed = match variable("SEED") {
            Some(seed) => seed
                .parse()
                .map_err(|_| Error::Other(format!("SEED={seed}: not a number")))?,
            None => fastrand::u64(..1 << 32),
        };
        let lasts = variable("CHAOS").unwrap_or_else(|| "3m".to_owned());
        let lasts = schema::milliseconds(&lasts).map(Duration::from_millis);
        let lasts = lasts.ok_or_else(|| Error::Other("CHAOS: not a duration such as 3m".to_owned()))?;
        let unknown = |variable: &str, name: &str| {
            Error::Other(format!("{variable}: there is no {name}; --list tells what there is"))
        };
        let kinds = Kind::read(&variable("CHAOS_FAULTS").unwrap_or_default());
        let kinds = kinds.map_err(|name| unknown("CHAOS_FAULTS", &name))?;
        let parts = variable("CHAOS_PARTS").unwrap_or_default();
        let parts = parts.split(',').map(|name| name.trim().to_owned());
        let parts: Vec<String> = parts.filter(|name| !name.is_empty()).collect();
        if let Some(name) = parts.iter().find(|name| !PARTS.iter().any(|part| part.0 == *name)) {
            return Err(unknown("CHAOS_PARTS", name));
        }
        let storm = Storm {
            seed,
            lasts,
            kinds,
            keep_going: variable("CHAOS_KEEP_GOING").is_some(),
            only: variable("CHAOS_ROUND").and_then(|number| number.parse().ok()),
        };
        Ok(Self { storm, lasts, parts })
    }

    fn wants(&self, name: &str) -> bool {
        self.parts.is_empty() || self.parts.iter().any(|part| part == name)
    }

    fn share(&self, name: &str) -> Duration {
        let wanted = PARTS.iter().filter(|part| self.wants(part.0));
        let all: f64 = wanted.map(|part| part.1).sum();
        let of = PARTS.iter().find(|part| part.0 == name).map_or(0.0, |part| part.1);
        self.lasts.mul_f64(of / all)
    }

    /// Plays all parts, one after the other.
    async fn play(&self) -> Result<Vec<Part>> {
        let seed = self.storm.seed;
        let mut found = Vec::new();
        if self.wants("storm") {
            let (calm, end) = Box::pin(storm::calm(seed)).await?;
            let lasts = self.share("storm").saturating_sub(calm.took).max(SHORTEST_STORM);
            let storm = Storm {
                lasts,
                ..self.storm.clone()
            };
            found.push(calm);
            found.push(Box::pin(storm::storm(&storm, &end)).await?);
        }
        if self.wants("settings") {
            found.push(Box::pin(settings::walk(seed, self.share("settings"))).await?);
        }
        if self.wants("rolling") {
            // Six replicas are replaced, and all of them have some time before and after.
            found.push(Box::pin(rolling::roll(seed, self.share("rolling") / 10)).await?);
        }
        Ok(found)
    }
}

/// True when nothing was found.
fn run() -> Result<bool> {
    let orders = Orders::read()?;
    let seed = orders.storm.seed;
    eprintln!("chaos: seed {seed}, {:?}; SEED={seed} repeats the plan", orders.lasts);
    let runtime = tokio::runtime::Runtime::new().map_err(other)?;
    let found = runtime.block_on(orders.play())?;
    runtime.shutdown_background();
    say(&report::to_text(seed, &found))?;
    let json = report::to_json(seed, &found);
    match variable("CHAOS_JSON") {
        Some(path) => std::fs::write(&path, format!("{json:#}\n")).map_err(other)?,
        None => say(&format!("{json}\n"))?,
    }
    Ok(found.iter().all(|part| part.violations.is_empty()))
}
