//! The attacher under test, as a process that is kept alive the way a kubelet keeps a container alive.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::task::JoinHandle;

use crate::support::Result;
use crate::support::controlplane::watchdog::{Output, Watched};

const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// An attacher may end by itself, as the Go sidecar does when it loses its driver. It comes back after this pause.
const PAUSE_BEFORE_RESTART: Duration = Duration::from_millis(200);
const ENDS_WITHIN: Duration = Duration::from_secs(15);

/// An attacher. Dropping it kills it.
pub struct Attacher {
    state: Arc<Mutex<State>>,
    keeper: JoinHandle<()>,
}

struct State {
    words: Vec<String>,
    log: PathBuf,
    wanted: bool,
    starts: usize,
    process: Option<Watched>,
    ended_at: Option<Instant>,
}

impl Attacher {
    /// Starts the command and starts it again whenever it ends by itself. Its output goes to the file `log`.
    pub fn start(words: Vec<String>, log: &Path) -> Result<Self> {
        let mut state = State {
            words,
            log: log.to_owned(),
            wanted: true,
            starts: 0,
            process: None,
            ended_at: None,
        };
        state.spawn()?;
        let state = Arc::new(Mutex::new(state));
        let kept = Arc::clone(&state);
        let keeper = tokio::spawn(async move {
            loop {
                // There is no portable way to be told of the end of a process without polling it.
                tokio::time::sleep(LOOK_AGAIN).await;
                kept.lock().look_after();
            }
        });
        Ok(Self { state, keeper })
    }

    /// Kills it with everything it started, as a lost node would. It stays away until [`Attacher::again`].
    pub fn kill(&self) {
        let mut state = self.state.lock();
        state.wanted = false;
        // Dropping it kills the whole process group.
        drop(state.process.take());
    }

    /// Starts it again after [`Attacher::kill`] or [`Attacher::stop`].
    pub fn again(&self) -> Result<()> {
        let mut state = self.state.lock();
        state.wanted = true;
        state.spawn()
    }

    /// Asks it to end (SIGTERM) and waits; kills it when it takes too long. It stays away until [`Attacher::again`].
    pub async fn stop(&self) -> Result<()> {
        let group = {
            let mut state = self.state.lock();
            state.wanted = false;
            state.process.as_ref().map(Watched::process_group)
        };
        if let Some(group) = group {
            terminate_children(group);
        }
        let started = Instant::now();
        while self.is_running()? && started.elapsed() < ENDS_WITHIN {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        self.kill();
        Ok(())
    }

    fn is_running(&self) -> Result<bool> {
        match &mut self.state.lock().process {
            Some(process) => Ok(process.ended()?.is_none()),
            None => Ok(false),
        }
    }

    /// How often it was started, by itself included.
    pub fn starts(&self) -> usize {
        self.state.lock().starts
    }

    /// Waits until it was started more often than that, as happens soon to one that does not know a flag of its command line.
    pub async fn started_more_than(&self, times: usize) {
        while self.starts() <= times {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// The end of its log, for a report.
    pub fn log_tail(&self) -> String {
        let state = self.state.lock();
        let text = std::fs::read_to_string(&state.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }
}

impl Drop for Attacher {
    fn drop(&mut self) {
        self.keeper.abort();
        self.kill();
    }
}

impl State {
    fn spawn(&mut self) -> Result<()> {
        // `env` looks the program up in PATH.
        let program = Path::new("/usr/bin/env");
        self.process = Some(Watched::spawn(
            "attacher",
            program,
            &self.words,
            &self.log,
            Output::Log,
        )?);
        self.ended_at = None;
        self.starts += 1;
        Ok(())
    }

    fn look_after(&mut self) {
        let Some(process) = &mut self.process else { return };
        if !self.wanted || matches!(process.ended(), Ok(None)) {
            return;
        }
        let ended = *self.ended_at.get_or_insert_with(Instant::now);
        if ended.elapsed() >= PAUSE_BEFORE_RESTART
            && let Err(error) = self.spawn()
        {
            eprintln!("cannot start the attacher again: {error}");
        }
    }
}

/// Sends SIGTERM to the children of the watchdog which are not the watchdog's own shell: that is the attacher.
fn terminate_children(watchdog: u32) {
    let command_line = |pid: &str| std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let own = command_line(&watchdog.to_string());
    let listing = Command::new("ps")
        .args(["-o", "pid=", "--ppid", &watchdog.to_string()])
        .output();
    let listing = listing.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    for child in listing.unwrap_or_default().split_whitespace() {
        if command_line(child) != own {
            signal(child, "TERM");
        }
    }
}

/// Sends a signal to a process of an attacher.
pub fn signal(process: &str, name: &str) {
    if let Err(error) = Command::new("kill").args([&format!("-{name}"), process]).status() {
        eprintln!("cannot signal the attacher: {error}");
    }
}
