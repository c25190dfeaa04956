//! `make idle`: what the operator costs while nothing happens.
//!
//! * *quiet*: ten drivers, with `VOLUMES` (5,000) attached, for `SECONDS` (120) after everything has come to rest.
//! * *absent*: one driver, and `ABSENT` (300) AttacherConfigs whose sockets are not there; and the time of a burst of attaches of the
//!   driver that is there, with them and without.
//!
//! Environment besides: `SCENES` (`quiet,absent`), `OPERATOR_BINARY`.

use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use csi_mock_driver::{MockDriver, MockHandle};
use serde_json::json;

use crate::cluster::Bench;
use crate::operator_run::{SMALL_BURST, options};
use crate::process::{self, Memory};
use crate::recorder::Stage;
use crate::support::operator::{IDENTITY, apply_config, wait_condition};
use crate::support::{Error, Operator, Result};
use crate::ten::Usage;
use crate::{progress, requests, setting};

const LIMIT: Duration = Duration::from_mins(20);
const DRIVERS: usize = 10;
/// What a start or a burst leaves to do is done by then: status writes, the first listing, the first look for findings.
const REST: Duration = Duration::from_secs(70);

/// What was seen of an operator at rest.
#[derive(Clone, Debug)]
struct Rest {
    what: String,
    /// Of a core.
    percent: f64,
    percent_target: f64,
    memory: Memory,
    memory_target: f64,
    seconds: u64,
    requests: Usage,
}

/// All figures.
pub struct Report {
    rests: Vec<Rest>,
    /// A burst without and with AttacherConfigs whose drivers are absent.
    bursts: Option<(Duration, Duration)>,
}

/// Measures.
pub async fn measure() -> Result<Report> {
    let scenes = std::env::var("SCENES").unwrap_or_else(|_| "quiet,absent".to_owned());
    let mut report = Report {
        rests: Vec::new(),
        bursts: None,
    };
    if scenes.contains("quiet") {
        report.rests.push(Box::pin(quiet()).await?);
    }
    if scenes.contains("absent") {
        Box::pin(absent(&mut report)).await?;
    }
    Ok(report)
}

fn driver(number: usize) -> String {
    format!("idle-{number}.csi.test")
}

fn group(number: usize) -> String {
    format!("idle-{number}")
}

async fn start_driver(sockets: &Path, number: usize) -> Result<MockHandle> {
    let mock = MockDriver::builder(driver(number)).accept_any_volume();
    let mock = mock.start(sockets.join(format!("{number}.sock"))).await;
    mock.map_err(|error| Error::Other(error.to_string()))
}

async fn configure(bench: &Bench, sockets: &Path, number: usize) -> Result<()> {
    let spec = json!({"endpoint": format!("unix://{}", sockets.join(format!("{number}.sock")).display())});
    apply_config(&bench.client, &group(number), spec).await.map(drop)
}

async fn serve(bench: &Bench, drivers: usize) -> Result<Operator> {
    let kubeconfig = bench.cluster.kubeconfig_for_service_account(IDENTITY, IDENTITY).await?;
    let operator = Operator::start_with(&kubeconfig, options())?;
    operator.wait_ready().await?;
    for number in 0..drivers {
        wait_condition(&bench.client, &group(number), "Ready", "True", Some("Running")).await?;
    }
    Ok(operator)
}

fn sockets() -> Result<tempfile::TempDir> {
    tempfile::tempdir().map_err(|error| Error::Other(error.to_string()))
}

async fn quiet() -> Result<Rest> {
    let volumes = setting("VOLUMES", 5_000)?.div_ceil(DRIVERS);
    let names: Vec<String> = (0..DRIVERS).map(driver).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let bench = Bench::start_for(volumes, &names).await?;
    let sockets = sockets()?;
    let mut mocks = Vec::new();
    for number in 0..DRIVERS {
        mocks.push(start_driver(sockets.path(), number).await?);
        configure(&bench, sockets.path(), number).await?;
    }
    let operator = serve(&bench, DRIVERS).await?;
    progress("quiet: attaching");
    for (number, name) in names.iter().enumerate() {
        bench.create_volumes(&group(number), name, volumes).await?;
        requests::send_all(&bench.client, Bench::attachments(&group(number), name, volumes)).await?;
    }
    for number in 0..DRIVERS {
        bench
            .recorder
            .wait(&group(number), Stage::Attached, volumes, LIMIT)
            .await?;
    }
    let attached = volumes * DRIVERS;
    let targets = if attached > 5_000 { (0.15, 100.0) } else { (0.1, 42.0) };
    at_rest(
        &bench,
        &operator,
        format!("{DRIVERS} drivers, {attached} attached"),
        targets,
    )
    .await
}

/// Watches an operator that has nothing to do.
async fn at_rest(bench: &Bench, operator: &Operator, what: String, targets: (f64, f64)) -> Result<Rest> {
    progress(&format!("{what}: coming to rest"));
    tokio::time::sleep(REST).await;
    let seconds = u64::try_from(setting("SECONDS", 120)?).unwrap_or(u64::MAX);
    progress(&format!("{what}: watching for {seconds} s"));
    let pid = operator.pid()?;
    let (before, cpu) = (Usage::read(&bench.client).await?, process::cpu(pid)?);
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let used = process::cpu(pid)?.saturating_sub(cpu);
    let after = Usage::read(&bench.client).await?;
    Ok(Rest {
        what,
        percent: used.as_secs_f64() / Duration::from_secs(seconds).as_secs_f64() * 100.0,
        percent_target: targets.0,
        memory: process::memory(pid)?,
        memory_target: targets.1,
        seconds,
        requests: after.since(&before, &after),
    })
}

async fn absent(report: &mut Report) -> Result<()> {
    let absent = setting("ABSENT", 300)?;
    let bench = Bench::start_for(SMALL_BURST, &[&driver(0)]).await?;
    let sockets = sockets()?;
    let _mock = start_driver(sockets.path(), 0).await?;
    configure(&bench, sockets.path(), 0).await?;
    let operator = serve(&bench, 1).await?;
    let mut alone = Vec::new();
    let mut beside = Vec::new();
    for round in 0..3 {
        alone.push(burst(&bench, &format!("alone-{round}")).await?);
    }
    for number in 1..=absent {
        configure(&bench, sockets.path(), number).await?;
    }
    let what = format!("1 driver, {absent} AttacherConfigs without theirs");
    report.rests.push(at_rest(&bench, &operator, what, (1.0, 32.0)).await?);
    for round in 0..3 {
        beside.push(burst(&bench, &format!("beside-{round}")).await?);
    }
    report.bursts = Some((median(alone), median(beside)));
    Ok(())
}

/// From the first creation to the last attach of a burst.
async fn burst(bench: &Bench, group: &str) -> Result<Duration> {
    progress(&format!("absent: burst {group}"));
    bench.create_volumes(group, &driver(0), SMALL_BURST).await?;
    let began = Instant::now();
    requests::send_all(&bench.client, Bench::attachments(group, &driver(0), SMALL_BURST)).await?;
    bench.recorder.wait(group, Stage::Attached, SMALL_BURST, LIMIT).await?;
    Ok(began.elapsed())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn verdict(passed: bool) -> &'static str {
    if passed { "pass" } else { "miss" }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for rest in &self.rests {
            writeln!(f, "{}, {} s at rest", rest.what, rest.seconds)?;
            let passed = verdict(rest.percent <= rest.percent_target);
            writeln!(
                f,
                "  CPU of a core  {:>8.3} %    target <= {} %  {passed}",
                rest.percent, rest.percent_target
            )?;
            #[allow(clippy::cast_precision_loss, reason = "the memory of a process is not that large")]
            let memory = rest.memory.now as f64 / 1024.0;
            let target = rest.memory_target;
            let passed = verdict(memory <= target);
            writeln!(
                f,
                "  RSS            {memory:>8.1} MiB  target <= {target} MiB  {passed}"
            )?;
            let requests: Vec<String> = rest
                .requests
                .requests
                .iter()
                .map(|(verb, count)| format!("{verb} {count}"))
                .collect();
            writeln!(
                f,
                "  requests       {}; {} watches open",
                requests.join(", "),
                rest.requests.watches
            )?;
        }
        if let Some((alone, beside)) = self.bursts {
            let ratio = beside.as_secs_f64() / alone.as_secs_f64();
            let passed = verdict(ratio <= 1.1);
            writeln!(
                f,
                "burst of {SMALL_BURST} beside absent drivers {beside:.3?}, without {alone:.3?}: {ratio:.2}  target <= 1.1  {passed}"
            )?;
        }
        Ok(())
    }
}

/// How long all of it may take.
pub fn limit() -> Duration {
    LIMIT * 2
}
