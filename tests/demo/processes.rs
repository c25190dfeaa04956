//! The programs of this package, as processes of their own that end when the demonstration does.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;
use tokio::time::{Instant, interval};

use crate::plan::{self, Driver};
use crate::support::controlplane::watchdog::{Output, Watched};
use crate::support::{Error, Result, built_program};

/// How long a driver may take until it listens.
const LISTENS_WITHIN: Duration = Duration::from_secs(20);

/// A running `csi-mock-driver`.
pub struct MockDriver {
    /// What it plays.
    pub driver: Driver,
    /// Its socket.
    pub socket: PathBuf,
    /// Takes commands while it runs.
    pub control: PathBuf,
    /// What it was asked, one JSON document on each line.
    pub calls: PathBuf,
    process: Watched,
}

impl MockDriver {
    /// Starts a driver with its files in `folder`, and waits until it takes connections.
    pub async fn start(driver: Driver, folder: &Path) -> Result<Self> {
        let file = |extension: &str| folder.join(format!("{}.{extension}", driver.config));
        let (socket, control, calls) = (file("sock"), file("control"), file("calls.jsonl"));
        let nodes: Vec<String> = plan::NODES.into_iter().map(plan::node_id).collect();
        let arguments = [
            format!("--endpoint=unix://{}", socket.display()),
            format!("--name={}", driver.name),
            format!("--nodes={}", nodes.join(",")),
            "--accept-any-volume".to_owned(),
            format!("--delay=ControllerPublishVolume={}", driver.delay),
            format!("--delay=ControllerUnpublishVolume={}", driver.delay),
            format!("--call-log={}", calls.display()),
            format!("--control-socket={}", control.display()),
        ];
        let program = built_program("csi-mock-driver")?;
        let process = Watched::spawn("csi-mock-driver", &program, &arguments, &file("log"), Output::Log)?;
        let mut started = Self {
            driver,
            socket,
            control,
            calls,
            process,
        };
        started.wait_until_it_listens().await?;
        Ok(started)
    }

    /// There is nothing to be told by, so this tries to connect, as a client would.
    async fn wait_until_it_listens(&mut self) -> Result<()> {
        let deadline = Instant::now() + LISTENS_WITHIN;
        let mut ticks = interval(Duration::from_millis(20));
        loop {
            ticks.tick().await;
            let Err(error) = UnixStream::connect(&self.socket).await else {
                return Ok(());
            };
            let ended = self.process.ended()?;
            if ended.is_some() || Instant::now() >= deadline {
                return Err(Error::Other(format!(
                    "csi-mock-driver {} does not listen on {} ({error}); its log:\n{}",
                    self.driver.name,
                    self.socket.display(),
                    self.process.log_tail()
                )));
            }
        }
    }

    /// How many calls of this method it was sent.
    pub async fn count_calls(&self, method: &str) -> Result<usize> {
        let text = tokio::fs::read_to_string(&self.calls).await;
        let text = text.map_err(|error| Error::Other(format!("cannot read {}: {error}", self.calls.display())))?;
        let calls = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        Ok(calls.filter(|call| call["method"] == method).count())
    }
}

/// Writes a file which only its owner can read.
pub async fn write_private(path: &Path, content: &str) -> Result<()> {
    let mut options = tokio::fs::OpenOptions::new();
    options.create(true).truncate(true).write(true).mode(0o600);
    let written = async {
        let mut file = options.open(path).await?;
        file.write_all(content.as_bytes()).await?;
        file.flush().await
    };
    written
        .await
        .map_err(|error| Error::Other(format!("cannot write {}: {error}", path.display())))
}
