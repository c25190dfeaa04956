//! The benchmarks on a real API server. They print figures and judge nothing; `docs/contribute/PERFORMANCE.md` explains them.
//!
//! Without a word, as `make bench` runs it: one driver without delay, the operator as its users run it, and the API
//! server's own ceiling for the same writes measured in the same run. Environment: `VOLUMES` (1000), `OPERATOR_BINARY`
//! (another build of the operator, to compare).
//!
//! With a word: `isolation`, `ten`, `one-volume`, `listing`, `overhead`, `why`, `idle` or `failover`; each is a module here, and says what it measures.

#![allow(clippy::print_stdout, reason = "the table is what this program is for")]

use csi_attacher_testbed as support;

mod ceiling;
mod cluster;
#[path = "../failover/mod.rs"]
mod failover;
mod idle;
mod isolation;
mod listing;
mod one_volume;
mod operator_run;
mod overhead;
mod process;
mod recorder;
mod report;
mod requests;
mod ten;
mod why;

use std::process::ExitCode;
use std::time::Duration;

use cluster::Bench;
use report::Report;
use support::{Error, Result};

const DEFAULT_VOLUMES: usize = 1000;
/// Volumes of the first, untimed round, after which API server and etcd are warm.
const WARM_UP: usize = 300;

fn main() -> ExitCode {
    // Only one TLS provider may ever be asked for; installing it twice is the only way this can fail.
    let _already_installed = rustls::crypto::ring::default_provider().install_default();
    let outcome = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::Other(format!("cannot start the runtime: {error}")))
        .and_then(|runtime| runtime.block_on(run()));
    match outcome {
        Ok(report) => {
            println!("{report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<String> {
    // Cargo adds `--bench`.
    let word = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    match word.as_deref() {
        None => attach().await,
        Some("isolation") => within(isolation::limit()?, isolation::measure()).await,
        Some("ten") => within(ten::limit(), ten::measure()).await,
        Some("overhead") => within(overhead::limit()?, overhead::measure()).await,
        Some("one-volume") => within(one_volume::limit()?, one_volume::measure()).await,
        Some("listing") => within(listing::limit(), listing::measure()).await,
        Some("idle") => within(idle::limit(), idle::measure()).await,
        Some("why") => within(why::limit(), why::measure()).await,
        Some("failover") => {
            let plan = failover_plan()?;
            within(plan.limit(), fail_over(plan)).await
        }
        Some(word) => Err(Error::Other(format!("there is no benchmark {word:?}"))),
    }
}

async fn attach() -> Result<String> {
    let volumes = setting("VOLUMES", DEFAULT_VOLUMES)?;
    // Three minutes to start, and for each volume far longer than the slowest machine takes for its 30 requests.
    let limit = Duration::from_mins(3) + Duration::from_millis(400) * u32::try_from(volumes).unwrap_or(u32::MAX);
    within(limit, measure(volumes)).await
}

/// Unlike a figure, a call that is made twice at a time or an attach that is lost is a failure.
async fn fail_over(plan: failover::Plan) -> Result<failover::Report> {
    let report = failover::run(plan, progress).await?;
    if report.is_sound() {
        return Ok(report);
    }
    Err(Error::Other(report.to_string()))
}

/// Environment: `HANDOVERS` (200), of which every other one is a kill, `REPLICAS` (2), `MODE` (`config` or `flags`),
/// `OPERATOR_BINARY`.
fn failover_plan() -> Result<failover::Plan> {
    let mode = match std::env::var("MODE").as_deref() {
        Err(_) | Ok("config") => failover::Mode::Config,
        Ok("flags") => failover::Mode::Flags,
        Ok(other) => return Err(Error::Other(format!("MODE={other} is neither config nor flags"))),
    };
    Ok(failover::Plan {
        binary: operator_run::options().binary,
        mode,
        rounds: setting("HANDOVERS", 200)?,
        kill_every: 2,
        replicas: setting("REPLICAS", 2)?.max(2),
        volumes: 100,
        per_second: 40,
        audited: false,
        call: [Duration::from_millis(20), Duration::from_millis(100)],
    })
}

/// A positive number from the environment.
fn setting(name: &str, default: usize) -> Result<usize> {
    match std::env::var(name) {
        Err(_) => Ok(default),
        Ok(text) => text
            .parse()
            .ok()
            .filter(|number| *number > 0)
            .ok_or_else(|| Error::Other(format!("{name}={text} is not a positive number"))),
    }
}

async fn within<R: std::fmt::Display>(limit: Duration, measure: impl Future<Output = Result<R>>) -> Result<String> {
    tokio::time::timeout(limit, Box::pin(measure))
        .await
        .map_err(|_| Error::Other(format!("not done within {limit:?}")))?
        .map(|report| report.to_string())
}

/// Ceiling, operator, ceiling: a machine that gets slower or busier shows as a difference between the two ceilings.
async fn measure(volumes: usize) -> Result<Report> {
    progress("starting etcd and kube-apiserver");
    let mut bench = Bench::start(volumes).await?;
    progress("warming up");
    ceiling::measure(&bench, "warm-up", WARM_UP).await?;
    progress("measuring the ceiling of the API server");
    let before = ceiling::measure(&bench, "ceiling-before", volumes).await?;
    let operator = operator_run::measure(&mut bench).await?;
    progress("measuring the ceiling of the API server again");
    let after = ceiling::measure(&bench, "ceiling-after", volumes).await?;
    Ok(Report {
        volumes,
        before,
        operator,
        after,
    })
}

/// Says on standard error what goes on; the table on standard output comes last.
fn progress(what: &str) {
    eprintln!("bench: {what}");
}
