//! Wiring: what is started in which order, and how it ends.
//!
//! The admin server comes first, so that the kubelet sees a process that is alive but not ready. Then the API server,
//! the watches, and the supervisor or the one driver that takes the place of a sidecar. A signal stops it in reverse:
//! drivers finish what runs, then watches and server stop, then traces are exported. A second signal ends it at once, but for half a second
//! for the traces, and a third one ends that too. It stops as well when a task ends that every driver needs, and the exit code says so: a new
//! process has all of them.

use kube::{Client, Config};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::admin::{self, AdminState, ListenAddress};
use crate::api::DriverConfig;
use crate::api::names::sanitise_driver_name;
use crate::apiserver::{
    ConnectError, RateLimit, RequestDeadlines, RequestSlots, Requests, SlotLimits, Throttle, WatchConnection,
    connect_counted, load_config, load_pod_config,
};
use crate::cache::Store;
use crate::driver::SharedContext;
use crate::events::EventRecorder;
use crate::findings::{self, FindingsScanner};
use crate::health::Health;
use crate::lease::{LeaderElectionConfig, LeaderElections, LeaseHealth, LeaseTimings};
use crate::objects::{CsiNodeWire, PersistentVolumeWire, VolumeAttachmentWire};
use crate::open_files;
use crate::reflect::reflect;
use crate::supervisor::single_driver::{DriverChecks, run_single_driver};
use crate::supervisor::{ProvisionSetup, Shutdown, Supervisor};
use crate::telemetry::logs::LogOptions;
use crate::telemetry::{self, SHUTDOWN_CAP, Telemetry, TelemetryGuard};
use crate::watch_answers::WatchAnswers;

mod api_server;
mod ending;
mod tasks;

use tasks::SharedTasks;

#[derive(Debug, Error)]
pub enum StartError {
    #[error("--log-level: {0}")]
    Log(#[from] telemetry::logs::LogError),
    #[error("--http-endpoint {address}: {source}")]
    Listen { address: ListenAddress, source: io::Error },
    #[error("cannot receive signals: {0}")]
    Signals(io::Error),
    /// The cluster is not configured, or not usably so.
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

/// Options of the process, from either command line.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessOptions {
    /// Where the cluster is found.
    pub cluster: Cluster,
    /// Where metrics and health are served; nowhere without.
    pub http_endpoint: Option<ListenAddress>,
    pub metrics_path: String,
    pub log: LogOptions,
    /// Deadlines of requests to the API server.
    pub request_deadlines: RequestDeadlines,
    /// Limit of the requests to the API server, except watches; none without.
    pub kube_api_limit: Option<RateLimit>,
    /// How long the process may take to end after a signal, with the calls that run.
    pub shutdown_grace_period: Duration,
    /// When attachments are scanned for findings, and what counts as one.
    pub inspection: findings::ScannerSettings,
    /// Name of this replica in Leases, Events and the status; see [`replica_name`].
    pub identity: String,
}

/// Where the cluster is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cluster {
    Kubeconfig(PathBuf),
    /// In `KUBECONFIG`, else around the pod.
    Environment,
    Pod,
}

#[derive(Clone, Debug)]
pub enum Mode {
    Configs,
    /// In place of the sidecar.
    One {
        driver: Box<DriverConfig>,
        /// How its Lease is competed for; without, there must be no other replica.
        election: Option<LeaderElectionOptions>,
        /// What the log should say about the arguments.
        remarks: Vec<String>,
    },
}

/// How Leases are competed for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderElectionOptions {
    /// Namespace of the Leases; empty means that of the pod.
    pub namespace: String,
    pub labels: BTreeMap<String, String>,
    pub timing: LeaseTimings,
    /// Whether `/healthz/leader-election` is served.
    pub health: bool,
}

impl Mode {
    fn shows_leases(&self) -> bool {
        match self {
            Self::Configs => true,
            Self::One { election, .. } => election.as_ref().is_some_and(|election| election.health),
        }
    }
}

/// What shows the state of the process.
struct Observability {
    telemetry: Telemetry,
    health: Health,
    leases: LeaseHealth,
}

/// Runs the operator until a signal; the exit code is 0 when everything that ran was finished. Why it cannot start is in the log, where
/// there is one; else it is returned.
pub async fn run(options: ProcessOptions, mode: Mode) -> Result<ExitCode, StartError> {
    // First of all: the kernel drops a SIGTERM that the first process of a container has no handler for.
    let mut signals = Signals::new().map_err(StartError::Signals)?;
    let (telemetry, guard) = Telemetry::init(&telemetry::otel_env::process_environment(), &options.log)?;
    match start(&options, mode, (telemetry, guard), &mut signals).await {
        // A filter may leave it out, and then it would be told nowhere.
        Err(error) if tracing::enabled!(tracing::Level::ERROR) => {
            error!("cannot start: {error}");
            Ok(ExitCode::FAILURE)
        }
        ended => ended,
    }
}

/// The same, with the log.
async fn start(
    options: &ProcessOptions,
    mode: Mode,
    (telemetry, guard): (Telemetry, TelemetryGuard),
    signals: &mut Signals,
) -> Result<ExitCode, StartError> {
    open_files::raise_limit();
    let health = Health::new();
    let stopped = CancellationToken::new();
    let leases = LeaseHealth::default();
    let shown = mode.shows_leases().then(|| leases.clone());
    let servers = serve_http(options, &telemetry, &health, shown, &stopped).await?;
    let http_endpoint = options.http_endpoint.as_ref().map(tracing::field::display);
    info!(
        version = env!("CARGO_PKG_VERSION"),
        http_endpoint, "csi-attacher-operator"
    );
    let observed = Observability {
        telemetry,
        health,
        leases,
    };
    let mut running = SharedParts {
        tasks: SharedTasks::default(),
        servers,
        guard,
        left: SHUTDOWN_CAP,
    };
    let code = operate(options, mode, &observed, &mut running, signals).await?;
    stopped.cancel();
    ending::close(running, async || signals.next().await).await;
    Ok(code)
}

/// What every driver needs, for as long as the process runs.
struct SharedParts {
    tasks: SharedTasks,
    servers: SharedTasks,
    guard: TelemetryGuard,
    /// How long the process may still take to end.
    left: Duration,
}

impl SharedParts {
    /// Resolves when one of them ends, with what ended.
    async fn failed(&mut self) -> String {
        tokio::select! {
            failed = self.tasks.failed() => failed.to_string(),
            failed = self.servers.failed() => failed.to_string(),
            () = self.guard.failed() => "the thread that exports traces ended".to_owned(),
        }
    }
}

async fn config_of(cluster: &Cluster) -> Result<Config, ConnectError> {
    match cluster {
        Cluster::Kubeconfig(path) => load_config(Some(path)).await,
        Cluster::Environment => load_config(None).await,
        Cluster::Pod => load_pod_config(),
    }
}

/// From the API server to the drivers, and back.
async fn operate(
    options: &ProcessOptions,
    mode: Mode,
    observed: &Observability,
    running: &mut SharedParts,
    signals: &mut Signals,
) -> Result<ExitCode, StartError> {
    let Observability { telemetry, health, .. } = observed;
    let reached = health.check("apiserver");
    let config = config_of(&options.cluster).await?;
    // Watches keep a connection busy for minutes, writes come in bursts: neither is to wait for the other.
    let store = Store::default();
    let watches = WatchConnection {
        answer: options.request_deadlines.read * 4,
        answers: store.lists().answers(),
    };
    let watching = tokio::select! {
        watching = api_server::connect_when_possible(&config, &watches, &telemetry.metrics, &reached) => watching,
        () = signals.next() => return Ok(ExitCode::SUCCESS),
    };
    let writing = connect_counted(&config, None, &telemetry.metrics)?;
    watch_objects(&mut running.tasks, &watching, &store, health);
    let first_answer =
        api_server::report_first_answer(config.clone(), telemetry.metrics.clone(), store.clone(), reached);
    running.tasks.spawn("first-answer", async {
        first_answer.await;
        std::future::pending::<()>().await;
    });
    let context = context(&mut running.tasks, &config, writing, store, telemetry, options);
    let shutdown = Shutdown::default();
    let scanner = FindingsScanner::new(&context, options.inspection);
    let insights = scanner.findings();
    running.tasks.spawn("findings", scanner.run());
    let drivers = match mode {
        Mode::Configs => {
            let mut elections = leader_elections(&config, options, BTreeMap::new(), observed)?;
            elections.reports = true;
            let failed = CancellationToken::new();
            let watches = failed.clone().cancelled_owned();
            running.tasks.spawn("provisioning-watches", watches);
            let supervisor = Supervisor::new(context, elections, insights).provisioning(ProvisionSetup {
                client: watching.clone(),
                stuck_after: options.inspection.stuck_after,
                failed,
            });
            let configs = health.check("watch/attacherconfigs");
            tokio::spawn(supervisor.run(watching, configs, shutdown.clone()))
        }
        Mode::One {
            driver,
            election,
            remarks,
        } => {
            for remark in remarks {
                warn!("{remark}");
            }
            let election = election.map(|election| single_election(&config, options, election, observed));
            let (driver, election, checks) = (Arc::from(driver), election.transpose()?, DriverChecks::new(health));
            tokio::spawn(run_single_driver(context, driver, election, checks, shutdown.clone()))
        }
    };
    Ok(serve_until_end(drivers, &shutdown, options, running, signals).await)
}

/// Waits for a signal, or for the end of what must not end; then lets the drivers finish.
async fn serve_until_end(
    mut drivers: JoinHandle<()>,
    shutdown: &Shutdown,
    options: &ProcessOptions,
    running: &mut SharedParts,
    signals: &mut Signals,
) -> ExitCode {
    let failed = tokio::select! {
        () = signals.next() => None,
        failed = running.failed() => Some(failed),
        ended = &mut drivers => {
            error!(?ended, "the supervisor ended unexpectedly");
            return ExitCode::FAILURE;
        }
    };
    let grace_period_seconds = options.shutdown_grace_period.as_secs();
    match &failed {
        None => info!(grace_period_seconds, "stop signal received; finishing running calls"),
        Some(error) => error!(
            error,
            grace_period_seconds, "a task that all drivers need has ended; finishing running calls, then exiting"
        ),
    }
    let grace = options.shutdown_grace_period;
    let (code, left) = ending::finish(drivers, shutdown, grace, async || signals.next().await).await;
    running.left = left;
    if failed.is_some() { ExitCode::FAILURE } else { code }
}

/// The election of the one driver that is served in the sidecar's place.
fn single_election(
    config: &Config,
    options: &ProcessOptions,
    election: LeaderElectionOptions,
    observed: &Observability,
) -> Result<LeaderElectionConfig, StartError> {
    let mut elections = leader_elections(config, options, election.labels, observed)?;
    elections.rules.creators_wait = false;
    Ok(elections.config_for(&election.namespace, election.timing))
}

/// Elections over a connection of their own: no burst of other requests may make a renewal late.
fn leader_elections(
    config: &Config,
    options: &ProcessOptions,
    labels: BTreeMap<String, String>,
    observed: &Observability,
) -> Result<LeaderElections, ConnectError> {
    // A watch that breaks reads the Lease of each driver again; renewals take a new connection by their own deadline.
    let watches = WatchConnection {
        answer: options.request_deadlines.read * 4,
        answers: WatchAnswers::default(),
    };
    let client = connect_counted(config, Some(&watches), &observed.telemetry.metrics)?;
    // The sidecar's rule for its host name.
    let identity = sanitise_driver_name(&options.identity);
    Ok(LeaderElections {
        labels,
        health: observed.leases.clone(),
        ..LeaderElections::new(client, identity)
    })
}

fn watch_objects(tasks: &mut SharedTasks, client: &Client, store: &Store, health: &Health) {
    let (client, store) = (|| client.clone(), || store.clone());
    let name = "watch/volumeattachments";
    tasks.spawn(
        name,
        reflect::<VolumeAttachmentWire, _>(client(), store(), health.check(name)),
    );
    let name = "watch/persistentvolumes";
    tasks.spawn(
        name,
        reflect::<PersistentVolumeWire, _>(client(), store(), health.check(name)),
    );
    let name = "watch/csinodes";
    tasks.spawn(name, reflect::<CsiNodeWire, _>(client(), store(), health.check(name)));
}

fn context(
    tasks: &mut SharedTasks,
    config: &Config,
    client: Client,
    store: Store,
    telemetry: &Telemetry,
    options: &ProcessOptions,
) -> SharedContext {
    let metrics = telemetry.metrics.clone();
    let requests = Requests::new(client, &config.cluster_url, options.request_deadlines, metrics.clone());
    let shared = requests.clone().with_slots(RequestSlots::new(SlotLimits::default()));
    // Events have a budget of their own: they neither wait for the limit nor use it up.
    let (events, writer) = EventRecorder::new(requests, metrics.clone(), options.identity.clone());
    tasks.spawn("events", writer);
    let requests = match options.kube_api_limit {
        Some(limit) => shared.throttled(Throttle::new(limit)),
        None => shared,
    };
    SharedContext {
        events,
        tracer: telemetry.tracer.clone(),
        ..SharedContext::new(store, requests, metrics)
    }
}

/// The name of this replica: the one that it is given, else that of the host. A blank one is no name: as the holder of a Lease it says that
/// nobody holds it. Where there is none, it is one that no other replica has, and another one each time: it is asked for once.
pub fn replica_name(given: Option<String>) -> String {
    let host = || std::fs::read_to_string(Path::new("/proc/sys/kernel/hostname")).ok();
    let not_blank = |name: String| Some(name.trim().to_owned()).filter(|name| !name.is_empty());
    let name = given.and_then(not_blank).or_else(|| host().and_then(not_blank));
    name.unwrap_or_else(|| format!("unknown-{:016x}", fastrand::u64(..)))
}

/// Binds the address and serves it until `stopped`.
async fn serve_http(
    options: &ProcessOptions,
    telemetry: &Telemetry,
    health: &Health,
    leases: Option<LeaseHealth>,
    stopped: &CancellationToken,
) -> Result<SharedTasks, StartError> {
    let mut servers = SharedTasks::default();
    if let Some(address) = &options.http_endpoint {
        let listener = address.bind().await.map_err(|source| StartError::Listen {
            address: address.clone(),
            source,
        })?;
        let state = AdminState {
            metrics: Arc::new(telemetry.metrics.clone()),
            health: health.clone(),
            metrics_path: options.metrics_path.clone(),
            leases,
        };
        servers.spawn("http-endpoint", admin::serve(listener, state, stopped.clone()));
    }
    Ok(servers)
}

/// The signals that end a pod or a foreground process.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Resolves at the next one.
    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
