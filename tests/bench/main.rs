//! `make bench`: one driver without delay, the operator as its users run it, and the API server's own ceiling for the
//! same writes measured in the same run. It prints figures and judges nothing; `docs/PERFORMANCE.md` explains them.
//!
//! Environment: `VOLUMES` (1000), `OPERATOR_BINARY` (another build of the operator, to compare).

#![allow(clippy::print_stdout, reason = "the table is what this program is for")]

#[path = "../support/mod.rs"]
mod support;

mod ceiling;
mod cluster;
mod operator_run;
mod process;
mod recorder;
mod report;
mod requests;

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
        .and_then(|runtime| runtime.block_on(bounded()));
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

async fn bounded() -> Result<Report> {
    let volumes = match std::env::var("VOLUMES") {
        Err(_) => DEFAULT_VOLUMES,
        Ok(text) => text
            .parse()
            .ok()
            .filter(|volumes| *volumes > 0)
            .ok_or_else(|| Error::Other(format!("VOLUMES={text} is not a positive number")))?,
    };
    // Three minutes to start, and for each volume far longer than the slowest machine takes for its 30 requests.
    let limit = Duration::from_mins(3) + Duration::from_millis(400) * u32::try_from(volumes).unwrap_or(u32::MAX);
    tokio::time::timeout(limit, measure(volumes))
        .await
        .map_err(|_| Error::Other(format!("not done within {limit:?}")))?
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
