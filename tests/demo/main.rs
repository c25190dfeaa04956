//! `make demo`: the operator at work on a real control plane, told step by step.
//!
//! Two mock drivers and the operator run as processes of their own; kube-controller-manager makes the
//! VolumeAttachments; this program plays the kubelet and the user. It must not do the operator's work, and it must
//! leave nothing behind: neither processes nor files nor, on a cluster that it did not start, objects.
//!
//! Environment: `ONCE=1` ends after the last step instead of staying up; `KUBECONFIG_TARGET` names the kubeconfig of a
//! cluster to use instead of starting one; `JAEGER=1` sends all traces to a Jaeger of its own.

use csi_attacher_testbed as support;

mod attachments;
mod cluster;
mod foreign;
mod plan;
mod processes;
mod provision;
mod say;
mod scenario;
mod stay;
mod table;
mod traces;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

use attachments::Attachments;
use cluster::Cluster;
use processes::MockDriver;
use say::Say;
use support::{Error, Operator, OperatorOptions, Result, built_program};
use traces::Traces;

/// How long the operator may take to end after SIGTERM.
const ENDS_WITHIN: Duration = Duration::from_secs(20);
/// How many lines of the operator's log go with a failure.
const LOG_LINES: usize = 25;

fn main() -> ExitCode {
    // Only one TLS provider may ever be asked for; installing it twice is the only way this can fail.
    let _already_installed = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let outcome = match tokio::runtime::Runtime::new() {
        Ok(runtime) => {
            let outcome = runtime.block_on(run(Say::new()));
            // A build that was interrupted would be waited for otherwise; its watchdog ends it when this process ends.
            runtime.shutdown_background();
            outcome
        }
        Err(error) => Err(Error::Other(format!("cannot start the runtime: {error}"))),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _gone = writeln!(std::io::stderr(), "\ndemo: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(say: Say) -> Result<()> {
    let target = variable("KUBECONFIG_TARGET").map(PathBuf::from);
    let is_set = |name| variable(name).is_some_and(|value| value != "0");
    let stays = !is_set("ONCE");
    let mut signals = Signals::new()?;
    let opened = async {
        // Before the control plane, which traces too.
        let traces = Traces::start(is_set("JAEGER"), say).await?;
        let cluster = open(target, &traces, say).await?;
        Ok::<_, Error>((traces, cluster))
    };
    let (traces, cluster) = tokio::select! {
        opened = opened => opened?,
        () = signals.next() => return Err(interrupted()),
    };
    // From here on there are objects to remove, whatever happens.
    let mut running = None;
    let outcome = tokio::select! {
        outcome = play(&cluster, &traces, &mut running, say) => outcome,
        () = signals.next() => Err(interrupted()),
    };
    let outcome = match outcome {
        Ok(()) if stays => {
            stay::instructions(&cluster, running.as_ref(), &traces, say).await?;
            signals.next().await;
            Ok(())
        }
        outcome => outcome.map_err(|error| with_log(error, running.as_ref())),
    };
    let cleaned = if cluster.is_foreign() {
        foreign::clean_up(&cluster.client, say).await
    } else {
        Ok(())
    };
    let stopped = match running {
        Some(running) => running.stop(say).await,
        None => Ok(()),
    };
    first_with_rest([outcome, cleaned, stopped])?;
    say.step(if stays {
        "Stopped"
    } else {
        "Done: all volumes were attached and detached, and one was made and deleted"
    });
    Ok(())
}

async fn open(target: Option<PathBuf>, traces: &Traces, say: Say) -> Result<Cluster> {
    match target {
        None => Cluster::start(traces.collector(), say).await,
        Some(kubeconfig) => {
            let cluster = Cluster::existing(&kubeconfig, say).await?;
            foreign::refuse_if_taken(&cluster.client).await?;
            say.line("None of the objects that this demonstration creates is there. They are removed at the end.");
            Ok(cluster)
        }
    }
}

/// The processes beside the control plane.
pub struct Running {
    /// The mock drivers.
    pub drivers: Vec<MockDriver>,
    /// The operator.
    pub operator: Operator,
}

impl Running {
    async fn start(cluster: &Cluster, traces: &Traces, say: Say) -> Result<Self> {
        say.step("Two CSI drivers without storage (csi-mock-driver) and the operator");
        let mut drivers = Vec::new();
        for driver in plan::DRIVERS {
            drivers.push(MockDriver::start(driver, cluster.folder()).await?);
            say.line(format!("{} attaches and detaches in {}", driver.name, driver.delay));
        }
        let mut options = traces.of(OperatorOptions::new(built_program("csi-attacher-operator")?));
        // Whoever opens the log here is a person.
        options.arguments = vec!["--log-format=text".to_owned()];
        let operator = Operator::start_with(&cluster.operator_kubeconfig().await?, options)?;
        operator.wait_ready().await?;
        say.line("csi-attacher-operator is ready, with its ServiceAccount and only the permissions of these two files");
        if cluster.is_traced() {
            say.line("It is also in group system:monitoring: the API server continues the traces of that group only");
        }
        Ok(Self { drivers, operator })
    }

    /// Ends the operator as a kubelet would; the drivers go when they are dropped.
    async fn stop(mut self, say: Say) -> Result<()> {
        say.step("Stopping");
        self.operator.signal("TERM")?;
        let status = self.operator.wait_ended(ENDS_WITHIN).await?;
        if !status.success() {
            return Err(Error::Other(format!(
                "the operator did not end well on SIGTERM: {status}"
            )));
        }
        say.line("The operator exited on SIGTERM, with exit code 0.");
        Ok(())
    }
}

async fn play(cluster: &Cluster, traces: &Traces, running: &mut Option<Running>, say: Say) -> Result<()> {
    scenario::install(cluster, say).await?;
    let Running { drivers, .. } = running.insert(Running::start(cluster, traces, say).await?);
    scenario::configure(cluster, drivers, say).await?;
    scenario::furnish(cluster, say).await?;
    let seen = Attachments::follow(cluster.client.clone(), say);
    scenario::attach(cluster, &seen, say).await?;
    scenario::show_configs(cluster).await?;
    scenario::detach(cluster, &seen, say).await?;
    scenario::check_calls(drivers, say).await?;
    let volume = provision::life(cluster, drivers, say).await?;
    traces.show(say).await?;
    traces.show_life(&volume, say).await
}

/// The first failure is the reason; those that followed are told too.
fn first_with_rest(outcomes: [Result<()>; 3]) -> Result<()> {
    let failures: Vec<String> = outcomes
        .into_iter()
        .filter_map(|outcome| Some(outcome.err()?.to_string()))
        .collect();
    if failures.is_empty() {
        return Ok(());
    }
    Err(Error::Other(failures.join("\n\nthen: ")))
}

fn interrupted() -> Error {
    Error::Other("interrupted".to_owned())
}

fn with_log(error: Error, running: Option<&Running>) -> Error {
    let Some(running) = running else { return error };
    let log = running.operator.log_text();
    let lines: Vec<&str> = log.lines().collect();
    let end = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n");
    Error::Other(format!("{error}\n\nThe end of the operator's log:\n{end}"))
}

/// A variable of the environment; an empty one counts as unset.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Ctrl-C, and what a supervisor sends.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> Result<Self> {
        let of = |kind| signal(kind).map_err(|error| Error::Other(format!("cannot wait for signals: {error}")));
        Ok(Self {
            interrupt: of(SignalKind::interrupt())?,
            terminate: of(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
