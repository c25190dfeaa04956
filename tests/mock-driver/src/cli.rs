//! The program `csi-mock-driver`: flags, signals and exit codes.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::control::{self, CommandError, parse_script};
use super::control_socket::ControlSocket;
use super::facts::Method;
use super::handle::{MockDriverBuilder, MockHandle, MockStartError};
use super::server::{ListenEndpoint, ListenError};
use super::settings::{ControllerCapability, MockSettings};
use super::tls::ServerTls;

/// A CSI driver without storage, for tests and demonstrations.
#[derive(Debug, Parser)]
#[command(name = "csi-mock-driver", version, max_term_width = 100)]
// Each switch stands for itself.
#[allow(clippy::struct_excessive_bools)]
struct MockFlags {
    /// Where to listen: unix:///path, or tcp://127.0.0.1:port
    #[arg(long, env = "CSI_ENDPOINT", default_value = "unix:///tmp/csi-mock-driver.sock")]
    endpoint: ListenEndpoint,
    /// PEM file with the certificate for TLS on a TCP port
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// PEM file with the private key for TLS
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// PEM file with the authority of the client certificates that are demanded; none are when absent
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,
    /// Driver name
    #[arg(long, default_value = "mock.csi.attacher.dev")]
    name: String,
    /// The node ids that exist, separated by commas; every id is accepted when neither this nor --node-count is given
    #[arg(long, value_delimiter = ',', conflicts_with = "node_count")]
    nodes: Option<Vec<String>>,
    /// Makes so many nodes exist, named by --node-prefix and a number from 0
    #[arg(long)]
    node_count: Option<usize>,
    /// Names of the nodes made by --node-count
    #[arg(long, default_value = "mock-node-")]
    node_prefix: String,
    /// The id that NodeGetInfo answers; the first node when absent
    #[arg(long)]
    node_id: Option<String>,
    /// Most volumes on a node
    #[arg(long)]
    attach_limit: Option<usize>,
    /// Volumes that exist from the start, separated by commas
    #[arg(long, value_delimiter = ',')]
    volumes: Vec<String>,
    /// Let volumes spring into being when they are first used
    #[arg(long)]
    accept_any_volume: bool,
    /// The controller capabilities that are on, separated by commas; all but VOLUME_CONDITION when absent
    #[arg(long, value_delimiter = ',', value_parser = read_capability)]
    capabilities: Option<Vec<ControllerCapability>>,
    /// A controller capability that is off; can be repeated
    #[arg(long, value_delimiter = ',', value_parser = read_capability)]
    without_capability: Vec<ControllerCapability>,
    /// Serve no Controller service: a driver whose volumes need no attachment
    #[arg(long)]
    no_controller_service: bool,
    /// The topology keys of the driver, separated by commas; it has no topology when absent
    #[arg(long, value_name = "KEYS", value_delimiter = ',')]
    topology: Vec<String>,
    /// How long the calls of a method take, such as ControllerPublishVolume=200ms; can be repeated
    #[arg(long, value_name = "METHOD=DURATION", value_parser = read_delay)]
    delay: Vec<(Method, Duration)>,
    /// Answer NOT_FOUND to ControllerUnpublishVolume for an unknown volume or node, instead of OK
    #[arg(long)]
    unpublish_unknown_is_not_found: bool,
    /// Answer ABORTED to a call for a volume and node that has another call running
    #[arg(long)]
    abort_overlapping: bool,
    /// Most entries of a list page
    #[arg(long)]
    list_page_limit: Option<usize>,
    /// YAML file with a list of commands to carry out first
    #[arg(long, value_name = "FILE")]
    script: Option<PathBuf>,
    /// Unix socket that takes one command per line of JSON
    #[arg(long, value_name = "PATH")]
    control_socket: Option<PathBuf>,
    /// File that gets a line of JSON for each call; - is the standard output
    #[arg(long, value_name = "FILE")]
    call_log: Option<PathBuf>,
    /// How many calls the control socket remembers
    #[arg(long, default_value_t = 10_000)]
    keep_calls: usize,
}

fn read_capability(name: &str) -> Result<ControllerCapability, CommandError> {
    control::capability(name)
}

fn read_delay(text: &str) -> Result<(Method, Duration), String> {
    let (method, delay) = text.split_once('=').ok_or("want METHOD=DURATION")?;
    let method = Method::from_str(method, false).map_err(|_| format!("unknown method {method:?}"))?;
    let delay: jiff::SignedDuration = delay.parse().map_err(|error: jiff::Error| error.to_string())?;
    Ok((method, delay.try_into().map_err(|_| "the duration is negative")?))
}

/// Why the program ended early.
#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error(transparent)]
    Start(#[from] MockStartError),
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error("script {} is wrong", path.display())]
    Script { path: PathBuf, source: CommandError },
    #[error("cannot open {}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("--tls-cert is for a TCP port; --endpoint is a unix socket")]
    TlsOnUnix,
    #[error("cannot wait for signals")]
    Signals(#[source] io::Error),
}

/// Runs the program with the flags of the process until SIGTERM or SIGINT. A wrong flag is named and the exit code is 2; a failed start
/// gives 1.
pub async fn main() -> ExitCode {
    let flags = match MockFlags::try_parse() {
        Ok(flags) => flags,
        Err(error) => {
            // Nothing is left to tell the user when even this cannot be written.
            drop(error.print());
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let filter = tracing_subscriber::EnvFilter::builder()
        .with_default_directive(tracing::level_filters::LevelFilter::INFO.into())
        .from_env_lossy();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(false)
        .init();
    match run(flags).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{}", with_causes(&error));
            ExitCode::FAILURE
        }
    }
}

/// The error and what caused it, in one line.
fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

async fn run(flags: MockFlags) -> Result<(), RunError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(RunError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(RunError::Signals)?;
    let (endpoint, control_socket) = (flags.endpoint.clone(), flags.control_socket.clone());
    let handle = builder(flags)?.start_on(endpoint).await?;
    let result = serve(&handle, control_socket, &mut terminate, &mut interrupt).await;
    // Also when the control socket failed: nothing is left behind.
    handle.stop().await;
    tracing::info!("csi-mock-driver stopped");
    result
}

/// Serves until a signal comes.
async fn serve(
    handle: &MockHandle,
    control_socket: Option<PathBuf>,
    terminate: &mut Signal,
    interrupt: &mut Signal,
) -> Result<(), RunError> {
    let _control = control_socket
        .map(|path| ControlSocket::start(&path, handle))
        .transpose()?;
    tracing::info!("csi-mock-driver listening on {}", handle.endpoint());
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

fn builder(flags: MockFlags) -> Result<MockDriverBuilder, RunError> {
    let mut builder = MockDriverBuilder::new(settings(&flags)).keep_calls(flags.keep_calls);
    if let Some(tls) = tls(&flags)? {
        builder = builder.tls(tls);
    }
    for volume in flags.volumes {
        builder = builder.volume(volume);
    }
    if let Some(path) = flags.script {
        let text = read(&path)?;
        for command in parse_script(&text).map_err(|source| RunError::Script { path, source })? {
            builder = builder.command(command);
        }
    }
    match flags.call_log {
        Some(path) if path.as_os_str() == "-" => Ok(builder.call_log(io::stdout())),
        Some(path) => Ok(builder.call_log(open_log(path)?)),
        None => Ok(builder),
    }
}

fn tls(flags: &MockFlags) -> Result<Option<ServerTls>, RunError> {
    let (Some(certificate), Some(key)) = (&flags.tls_cert, &flags.tls_key) else {
        return Ok(None);
    };
    if matches!(flags.endpoint, ListenEndpoint::Unix(_)) {
        return Err(RunError::TlsOnUnix);
    }
    Ok(Some(ServerTls {
        certificate: read(certificate)?,
        key: read(key)?,
        client_authority: flags.tls_client_ca.as_deref().map(read).transpose()?,
    }))
}

fn read(path: &Path) -> Result<String, RunError> {
    std::fs::read_to_string(path).map_err(|source| RunError::File {
        path: path.to_owned(),
        source,
    })
}

fn open_log(path: PathBuf) -> Result<impl Write + Send + 'static, RunError> {
    let file: io::Result<File> = OpenOptions::new().create(true).append(true).open(&path);
    file.map_err(|source| RunError::File { path, source })
}

fn settings(flags: &MockFlags) -> MockSettings {
    let mut settings = MockSettings::new(flags.name.clone());
    let counted = |count| {
        (0..count)
            .map(|number| format!("{}{number}", flags.node_prefix))
            .collect::<Vec<_>>()
    };
    let nodes = flags.nodes.clone().or_else(|| flags.node_count.map(counted));
    if let Some(id) = flags
        .node_id
        .clone()
        .or_else(|| nodes.as_ref().and_then(|nodes| nodes.first().cloned()))
    {
        settings.node_id = id;
    }
    settings.nodes = nodes.map(|nodes| nodes.into_iter().collect());
    if let Some(capabilities) = &flags.capabilities {
        settings.capabilities = capabilities.iter().copied().collect();
    }
    settings
        .capabilities
        .retain(|capability| !flags.without_capability.contains(capability));
    settings.controller_service = !flags.no_controller_service;
    settings.topology_keys.clone_from(&flags.topology);
    settings.attach_limit = flags.attach_limit;
    settings.accept_any_volume = flags.accept_any_volume;
    settings.unpublish_unknown_is_not_found = flags.unpublish_unknown_is_not_found;
    settings.abort_overlapping = flags.abort_overlapping;
    settings.list_page_limit = flags.list_page_limit;
    settings.delays = flags.delay.iter().copied().collect();
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<MockSettings, clap::Error> {
        MockFlags::try_parse_from([&["csi-mock-driver"], arguments].concat()).map(|flags| settings(&flags))
    }

    #[test]
    fn flags_become_settings() {
        let found = parse(&[
            "--name=d",
            "--node-count=2",
            "--node-prefix=x",
            "--attach-limit=5",
            "--capabilities=LIST_VOLUMES,GET_VOLUME",
            "--without-capability=GET_VOLUME",
            "--delay=ControllerPublishVolume=200ms",
            "--abort-overlapping",
        ])
        .unwrap();
        assert_eq!(
            (found.driver_name.as_str(), found.node_id.as_str(), found.attach_limit),
            ("d", "x0", Some(5))
        );
        assert_eq!(found.nodes, Some(["x0".to_owned(), "x1".to_owned()].into()));
        assert_eq!(found.capabilities, [ControllerCapability::ListVolumes].into());
        assert_eq!(
            found.delays[&Method::ControllerPublishVolume],
            Duration::from_millis(200)
        );
        assert!(found.abort_overlapping && !found.accept_any_volume);
        assert_eq!(parse(&[]).unwrap().nodes, None);
    }

    #[test]
    fn a_wrong_flag_is_named_and_exits_with_2() {
        for (arguments, named) in [
            (vec!["--nope"], "--nope"),
            (vec!["--endpoint=ftp://x"], "--endpoint"),
            (vec!["--capabilities=FLY"], "FLY"),
            (vec!["--delay=Fly=1s"], "Fly"),
            (vec!["--delay=Probe=-1s"], "negative"),
            (vec!["--nodes=a", "--node-count=1"], "--node-count"),
            (vec!["--tls-cert=a"], "--tls-key"),
        ] {
            let error = parse(&arguments).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains(named), "{error}");
        }
    }
}
