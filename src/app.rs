//! Wiring: what is started in which order, and how it ends.
//!
//! The admin server comes first, so that the kubelet sees a process that is alive but not ready. Then the API server,
//! the watches, the supervisor. A signal stops it in reverse: drivers finish what runs, then watches and server stop,
//! then traces are exported. A second signal ends it at once.

use kube::{Client, Config};
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::admin::{self, AdminState, CheckHandle, Health};
use crate::cli::Options;
use crate::driver::Context;
use crate::events::Events;
use crate::kubernetes::{ConnectError, Requests, connect, load_config};
use crate::objects::{CsiNodeWire, PersistentVolumeWire, VolumeAttachmentWire};
use crate::store::{Store, reflect};
use crate::supervisor::Supervisor;
use crate::telemetry::logs::LogOptions;
use crate::telemetry::{self, SHUTDOWN_CAP, Telemetry};

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Why the operator cannot start.
#[derive(Debug, Error)]
pub enum StartError {
    /// Logging cannot be set up.
    #[error("--log-level: {0}")]
    Log(#[from] telemetry::logs::LogError),
    /// The address of the admin server cannot be used.
    #[error("--http-endpoint {address}: {source}")]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// Signals cannot be received.
    #[error("cannot receive signals: {0}")]
    Signals(io::Error),
    /// The cluster is not configured, or not usably so.
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

/// Runs the operator until a signal; the exit code is 0 when everything that ran was finished.
pub async fn run(options: Options) -> Result<ExitCode, StartError> {
    let log = LogOptions {
        format: options.log_format.into(),
        level: options.log_level.clone(),
    };
    let (telemetry, guard) = Telemetry::init(&telemetry::Options {
        log,
        environment: telemetry::otel_env::process_environment(),
    })?;
    let mut signals = Signals::new().map_err(StartError::Signals)?;
    let health = Health::new();
    let stopped = CancellationToken::new();
    let server = start_server(&options, &telemetry, &health, &stopped).await?;
    info!(version = env!("CARGO_PKG_VERSION"), http_endpoint = %options.http_endpoint, "csi-attacher-operator");
    let code = operate(&options, &telemetry, &health, &mut signals).await?;
    stopped.cancel();
    if let Err(error) = server.await {
        warn!(%error, "the HTTP server ended badly");
    }
    guard.shutdown(SHUTDOWN_CAP).await;
    Ok(code)
}

async fn start_server(
    options: &Options,
    telemetry: &Telemetry,
    health: &Health,
    stopped: &CancellationToken,
) -> Result<tokio::task::JoinHandle<()>, StartError> {
    let address = options.http_endpoint;
    let listener = TcpListener::bind(address)
        .await
        .map_err(|source| StartError::Listen { address, source })?;
    let state = AdminState {
        metrics: telemetry.metrics.clone(),
        health: health.clone(),
        metrics_path: options.metrics_path.clone(),
    };
    let stopped = stopped.clone();
    Ok(tokio::spawn(async move {
        if let Err(error) = admin::serve(listener, state, stopped).await {
            error!(%error, "the HTTP server failed");
        }
    }))
}

/// From the API server to the drivers, and back.
async fn operate(
    options: &Options,
    telemetry: &Telemetry,
    health: &Health,
    signals: &mut Signals,
) -> Result<ExitCode, StartError> {
    let api_server = health.check("apiserver");
    let config = load_config(options.kubeconfig.as_deref()).await?;
    tokio::select! {
        () = reach(&config, &api_server) => {}
        () = signals.next() => return Ok(ExitCode::SUCCESS),
    }
    // Watches keep a connection busy for minutes, writes come in bursts: neither is to wait for the other.
    let (watching, writing) = (connect(&config)?, connect(&config)?);
    let store = Store::default();
    let _watches = watch_all(&watching, &store, health);
    let host = config
        .cluster_url
        .authority()
        .map(ToString::to_string)
        .unwrap_or_default();
    let requests = Requests::new(
        writing.clone(),
        host,
        options.kube_api_timeout,
        telemetry.metrics.clone(),
    );
    let events = Events::start(requests.clone(), telemetry.metrics.clone(), identity(options));
    let context = Context {
        store,
        requests,
        events,
        metrics: telemetry.metrics.clone(),
        tracer: telemetry.tracer.clone(),
    };
    let supervisor = Supervisor::new(context, writing, identity(options));
    let stop = CancellationToken::new();
    let configs = health.check("watch/attacherconfigs");
    let mut supervisor = tokio::spawn(supervisor.run(watching, configs, stop.clone()));
    tokio::select! {
        () = signals.next() => {}
        ended = &mut supervisor => {
            error!(?ended, "the supervisor ended by itself");
            return Ok(ExitCode::FAILURE);
        }
    }
    info!(
        grace_period_seconds = options.shutdown_grace_period.as_secs(),
        "told to stop; finishing what runs"
    );
    stop.cancel();
    Ok(finish(supervisor, options.shutdown_grace_period, signals).await)
}

/// Follows the three kinds of objects until dropped.
fn watch_all(client: &Client, store: &Store, health: &Health) -> JoinSet<()> {
    let mut watches = JoinSet::new();
    watches.spawn(reflect::<VolumeAttachmentWire>(
        client.clone(),
        store.clone(),
        health.check("watch/volumeattachments"),
    ));
    watches.spawn(reflect::<PersistentVolumeWire>(
        client.clone(),
        store.clone(),
        health.check("watch/persistentvolumes"),
    ));
    watches.spawn(reflect::<CsiNodeWire>(
        client.clone(),
        store.clone(),
        health.check("watch/csinodes"),
    ));
    watches
}

async fn finish(supervisor: tokio::task::JoinHandle<()>, grace: Duration, signals: &mut Signals) -> ExitCode {
    let abort = supervisor.abort_handle();
    tokio::select! {
        ended = supervisor => match ended {
            Ok(()) => return ExitCode::SUCCESS,
            Err(error) => error!(%error, "the supervisor failed"),
        },
        () = tokio::time::sleep(grace) => error!("calls were still running at the end of the grace period"),
        () = signals.next() => error!("told twice to stop; leaving running calls behind"),
    }
    abort.abort();
    ExitCode::FAILURE
}

/// Waits until the API server answers, and says what is wrong while it does not.
async fn reach(config: &Config, check: &CheckHandle) {
    let mut pause = FIRST_PAUSE;
    loop {
        let answer = match connect(config) {
            Ok(client) => tokio::time::timeout(LONGEST_PAUSE, client.apiserver_version())
                .await
                .map_err(|_| "no answer".to_owned())
                .and_then(|answer| answer.map_err(|error| crate::error_chain::chain(&error))),
            Err(error) => Err(error.to_string()),
        };
        match answer {
            Ok(version) => {
                info!(url = %config.cluster_url, version = version.git_version, "connected to the API server");
                check.set_ready(true);
                return;
            }
            Err(error) => {
                let text = format!("cannot reach the API server at {}: {error}", config.cluster_url);
                warn!(next_try_seconds = pause.as_secs(), "{text}");
                check.set_failing(text);
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn identity(options: &Options) -> String {
    let host = || std::fs::read_to_string(Path::new("/proc/sys/kernel/hostname")).ok();
    let name = options
        .identity
        .clone()
        .or_else(host)
        .unwrap_or_else(|| "unknown".to_owned());
    name.trim().to_owned()
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

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
