//! The benchmarks on a real API server: scenes, each of which gives rows of one table. They print and never judge with the
//! exit code, which is for a scene that cannot be measured. `docs/operate/PERFORMANCE.md` explains them to users,
//! `docs/contribute/PERFORMANCE.md` is the notebook.
//!
//! Environment: `ONLY=words` runs the scenes whose names contain one of the words, `ONLY=--list` lists them; `BENCH_JSON` is
//! the file of the results; `OPERATOR_BINARY` another build of the operator; sizes are with each scene.
//!
//! Words: `docs` writes the results into the documents; `why` and `failover` are benchmarks with tables of their own.

#![allow(clippy::print_stdout, reason = "the table is what this program is for")]

use csi_attacher_testbed as support;

mod attach;
mod attacher;
mod binary;
mod ceiling;
mod cluster;
mod distant;
mod docs;
mod drain;
#[path = "../failover/mod.rs"]
mod failover;
mod fleet;
mod helper;
mod hostile;
mod isolation;
mod listing;
mod load;
mod machine;
mod one_volume;
mod process;
mod provision;
mod quiet;
mod recorder;
mod replicas;
mod requests;
mod results;
mod slow;
mod spans;
mod start;
mod stats;
mod table;
mod ten;
mod traces;
mod usage;
mod why;
mod wide;

use std::pin::Pin;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use results::{Results, SceneResult};
use support::{Error, Result};
use table::{Row, Table};

type Measuring = Pin<Box<dyn Future<Output = Result<Vec<Row>>>>>;

/// Something that is measured on a control plane of its own.
struct Scene {
    name: &'static str,
    about: &'static str,
    /// Minutes within which it is done at its default size, on the slowest machine that anybody has.
    minutes: u64,
    measure: fn() -> Measuring,
}

/// All scenes, the shortest first where nothing else orders them.
const SCENES: [Scene; 17] = [
    scene("binary", "size of the program", 1, || {
        Box::pin(async { binary::measure() })
    }),
    scene(
        "attach",
        "rates, small burst, writes, CPU and memory against ceiling and Go sidecar",
        120,
        || Box::pin(attach::measure()),
    ),
    scene(
        "provisioning",
        "rates, burst, writes and CPU of provisioning against ceiling and external-provisioner",
        60,
        || Box::pin(provision::measure()),
    ),
    scene("provisioned", "memory and start with many bound claims", 60, || {
        Box::pin(provision::many::measure())
    }),
    scene("slow-driver", "a driver that takes seconds for a call", 30, || {
        Box::pin(slow::measure())
    }),
    scene(
        "distant-api",
        "an API server whose answers take a while on the way",
        30,
        || Box::pin(distant::measure()),
    ),
    scene("traces", "what traces cost", 120, || Box::pin(traces::measure())),
    scene("ten-drivers", "ten drivers in one process", 60, || {
        Box::pin(ten::measure())
    }),
    scene("start", "start and take-over with 50,000 attached", 90, || {
        Box::pin(start::measure())
    }),
    scene("reconcile-sync", "comparison with what a driver lists", 60, || {
        Box::pin(listing::measure())
    }),
    scene("quiet", "a cluster in which nothing happens", 90, || {
        Box::pin(quiet::quiet())
    }),
    scene(
        "absent-drivers",
        "AttacherConfigs whose drivers are not there",
        45,
        || Box::pin(quiet::absent()),
    ),
    scene(
        "rwx-nodes",
        "one volume on 5,000 nodes against 5,000 volumes",
        90,
        || Box::pin(wide::measure()),
    ),
    scene(
        "one-volume",
        "one volume on 1,000 nodes beside another driver",
        60,
        || Box::pin(one_volume::measure()),
    ),
    scene("node-drain", "many pods leave a node while others attach", 60, || {
        Box::pin(drain::measure())
    }),
    scene("isolation", "nine hostile drivers and the tenth", 60, || {
        Box::pin(isolation::measure())
    }),
    scene("replicas", "shares of the Leases of three replicas", 30, || {
        Box::pin(replicas::measure())
    }),
];

const fn scene(name: &'static str, about: &'static str, minutes: u64, measure: fn() -> Measuring) -> Scene {
    Scene {
        name,
        about,
        minutes,
        measure,
    }
}

fn main() -> ExitCode {
    // Only one TLS provider may ever be asked for; installing it twice is the only way this can fail.
    let _already_installed = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [helper::BURN, share] = arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        return ended(
            share
                .parse()
                .map_err(|_| Error::Other(format!("{share} is no share")))
                .and_then(helper::burn),
        );
    }
    let outcome = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::Other(format!("cannot start the runtime: {error}")))
        .and_then(|runtime| runtime.block_on(run(&arguments)));
    ended(outcome)
}

fn ended(outcome: Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &[String]) -> Result<()> {
    if arguments.first().is_some_and(|word| word == helper::COLLECTOR) {
        return helper::collect().await;
    }
    if arguments.first().is_some_and(|word| word == helper::SPANS) {
        return helper::spans().await;
    }
    // Cargo adds `--bench`.
    let word = arguments.iter().find(|argument| !argument.starts_with('-'));
    match word.map(String::as_str) {
        None => measure_scenes().await,
        Some("docs") => docs::write(),
        Some("why") => within(why::limit(), why::measure())
            .await
            .map(|report| println!("{report}")),
        // Unlike a figure, a call that is made twice at a time or an attach that is lost is a failure.
        Some("failover") => failover::run(failover_plan()?, progress)
            .await
            .map(|report| println!("{report}")),
        Some(word) => Err(Error::Other(format!("there is no benchmark {word:?}"))),
    }
}

/// The scenes that `ONLY` asks for, one after another, each with its table when it is done.
async fn measure_scenes() -> Result<()> {
    let only = std::env::var("ONLY").unwrap_or_default();
    if only == "--list" {
        for scene in SCENES {
            println!("{:<16} {}", scene.name, scene.about);
        }
        return Ok(());
    }
    let words = || only.split([',', ' ']).filter(|word| !word.is_empty());
    let asked = |scene: &Scene| only.is_empty() || words().any(|word| scene.name.contains(word));
    let wanted: Vec<Scene> = SCENES.into_iter().filter(asked).collect();
    if wanted.is_empty() {
        return Err(Error::Other(format!(
            "no scene has a name with a word of {only:?}; ONLY=--list lists them"
        )));
    }
    let mut results = Results::begin().await?;
    let (mut rows, mut failed) = (Vec::new(), Vec::new());
    for scene in &wanted {
        let result = measure_scene(scene).await;
        match &result.failed {
            Some(why) => {
                eprintln!("bench: {} cannot be measured: {why}", scene.name);
                failed.push(scene.name);
            }
            None => println!("{}\n{}", scene.name, Table(&result.rows)),
        }
        rows.extend(result.rows.clone());
        results.add(result)?;
    }
    println!("{}", results.machine);
    if wanted.len() > 1 {
        println!("{}", Table(&rows));
    }
    let path = results::path();
    println!("results: {}", path.canonicalize().unwrap_or(path).display());
    if failed.is_empty() {
        return Ok(());
    }
    Err(Error::Other(format!("not measured: {}", failed.join(", "))))
}

async fn measure_scene(scene: &Scene) -> SceneResult {
    progress(scene.name);
    let (begun, started) = (SceneResult::begin(scene.name, scene.about), Instant::now());
    let outcome = within(Duration::from_mins(scene.minutes), (scene.measure)()).await;
    begun.end(outcome, started.elapsed())
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
        binary: attacher::binary(),
        mode,
        rounds: setting("HANDOVERS", 200)?,
        kill_every: 2,
        replicas: setting("REPLICAS", 2)?.max(2),
        volumes: 100,
        audited: false,
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

async fn within<R>(limit: Duration, measure: impl Future<Output = Result<R>>) -> Result<R> {
    tokio::time::timeout(limit, Box::pin(measure))
        .await
        .map_err(|_| Error::Other(format!("not done within {limit:?}")))?
}

/// Says on standard error what goes on; the tables are on standard output.
fn progress(what: &str) {
    eprintln!("bench: {what}");
}
