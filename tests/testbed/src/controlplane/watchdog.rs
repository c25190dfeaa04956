//! Processes that cannot outlive the test process.
//!
//! Each component runs under a small shell script, in a process group of its own, which reads a pipe whose only writer
//! is this process. When this process goes away, by a return, a panic, Ctrl-C or SIGKILL, the kernel closes the pipe,
//! and the script kills its group. That needs no signal handler, no cooperation of the component and no unsafe code,
//! and unlike a parent-death signal it does not depend on the thread which started the component.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::super::error::{Context, Error, Result};

/// How long a process may take until it is ready.
const READY_WITHIN: Duration = Duration::from_secs(90);
/// How often it is asked whether it is.
const PROBE_INTERVAL: Duration = Duration::from_millis(25);
/// How long one such question may take.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs "$@" until it ends or standard input is closed, and ends only when it is gone and reaped: what it held, such as
/// its port, is free then. At last it ends what the component itself may have started, as all of it is in one group;
/// that signal reaches this script too, hence the trap. A shell gives asynchronous lists /dev/null as input, hence the
/// detour by descriptor 3.
const RUN_WHILE_PARENT_LIVES: &str = r#"
exec 3<&0
"$@" </dev/null 3<&- &
component=$!
{ read -r _ <&3; kill -KILL "$component"; } &
reader=$!
wait "$component"
status=$?
kill -KILL "$reader" 2>/dev/null
wait "$reader" 2>/dev/null
trap : TERM
kill -TERM 0
exit "$status"
"#;

/// Removes the folder "$1" once standard input is closed. It tries again for some seconds, as a component which dies
/// at the same moment may still write into the folder while it is emptied.
const REMOVE_AFTER_PARENT: &str = r#"
read -r _
tries=0
while [ "$tries" -lt 50 ]; do
    rm -rf "$1" && break
    tries=$((tries + 1))
    sleep 0.1
done
"#;

/// Where the standard output of a process goes. Its standard error always goes to its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// To the log file.
    Log,
    /// To this process, by [`Watched::take_stdout`].
    Pipe,
}

/// A process under a watchdog. Dropping it kills and reaps it.
#[derive(Debug)]
pub struct Watched {
    name: &'static str,
    watchdog: Child,
    log: PathBuf,
}

impl Watched {
    /// Starts `program` with its output appended to the file `log`.
    pub fn spawn(name: &'static str, program: &Path, args: &[String], log: &Path, output: Output) -> Result<Self> {
        let file = append_to(log)?;
        let stdout = match output {
            Output::Log => Stdio::from(file.try_clone()?),
            Output::Pipe => Stdio::piped(),
        };
        let watchdog = under_watchdog(program)
            .args(args)
            .stdout(stdout)
            .stderr(file)
            .spawn()
            .while_trying(|| format!("start {}", program.display()))?;
        Ok(Self {
            name,
            watchdog,
            log: log.to_owned(),
        })
    }

    /// How the process ended, or `None` while it runs.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        let ended = self.watchdog.try_wait();
        ended.while_trying(|| format!("look after {}", self.name))
    }

    /// Probes until it is ready. Fails when it ends, or is not ready in time.
    pub async fn wait_ready<F: Future<Output = Result<()>>>(&mut self, probe: impl Fn() -> F) -> Result<()> {
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            if let Some(status) = self.ended()? {
                let (component, log) = (self.name, self.log_tail());
                return Err(Error::Ended { component, status, log });
            }
            let answer = timeout(PROBE_TIMEOUT, probe()).await;
            let last = match answer {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => error.to_string(),
                Err(_) => "no answer".to_owned(),
            };
            if Instant::now() >= deadline {
                let (name, log) = (self.name, self.log_tail());
                let text = format!("{name} was not ready after {READY_WITHIN:?}, last answer: {last}; its log:\n{log}");
                return Err(Error::Other(text));
            }
            sleep(PROBE_INTERVAL).await;
        }
    }

    /// The process group which holds the watchdog and the component.
    pub fn process_group(&self) -> u32 {
        self.watchdog.id()
    }

    /// Process ID of the component itself, which goes by this name (its first 15 bytes, as the kernel has it).
    pub fn child(&self, comm: &str) -> Result<u32> {
        let parent = self.process_group();
        let output = Command::new("ps")
            .args(["-o", "pid=,comm=", "--ppid", &parent.to_string()])
            .output()
            .while_trying(|| "run ps".to_owned())?;
        let listing = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = listing.lines().find(|line| line.contains(comm));
        line.and_then(|line| line.split_whitespace().next()?.parse().ok())
            .ok_or_else(|| Error::Other(format!("no {comm} among the children of {parent}: {listing}")))
    }

    /// The standard output, once, if the process was started with [`Output::Pipe`].
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.watchdog.stdout.take()
    }

    /// The last lines of the log, for error messages.
    pub fn log_tail(&self) -> String {
        tail(&self.log).unwrap_or_else(|error| format!("(cannot read {}: {error})", self.log.display()))
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        end(&mut self.watchdog);
    }
}

/// A folder for the state of one control plane, readable by its owner only, in the folder for temporary files. It is
/// removed when this is dropped, and also when this process ends without dropping it.
#[derive(Debug)]
pub struct StateFolder {
    path: PathBuf,
    remover: Child,
}

impl StateFolder {
    /// Makes a folder with a new name.
    pub fn create() -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("csi-attacher-test-")
            .permissions(Permissions::from_mode(0o700))
            .tempdir()
            .while_trying(|| "make a folder for temporary files".to_owned())?;
        let remover = Command::new("sh")
            .args(["-c", REMOVE_AFTER_PARENT, "remover"])
            .arg(folder.path())
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .while_trying(|| "start sh".to_owned())?;
        Ok(Self {
            path: folder.keep(),
            remover,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for StateFolder {
    fn drop(&mut self) {
        end(&mut self.remover);
    }
}

/// A command which runs `program` under the watchdog; the caller adds arguments and the two outputs.
pub fn under_watchdog(program: &Path) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", RUN_WHILE_PARENT_LIVES, "watchdog"])
        .arg(program)
        .process_group(0)
        .stdin(Stdio::piped());
    command
}

/// Closes the pipe to a watchdog, which makes it end, and reaps it.
fn end(watchdog: &mut Child) {
    drop(watchdog.stdin.take());
    // There is nobody to report to; a process that is already gone is what is wanted.
    drop(watchdog.wait());
}

fn append_to(path: &Path) -> Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path)
        .while_trying(|| format!("open {}", path.display()))
}

/// The last 4 KiB of a file, from the first whole line on.
fn tail(path: &Path) -> std::io::Result<String> {
    const LENGTH: u64 = 4096;
    let mut file = File::open(path)?;
    let start = file.metadata()?.len().saturating_sub(LENGTH);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let whole_lines = if start == 0 {
        &text[..]
    } else {
        text.split_once('\n').map_or(&text[..], |(_, rest)| rest)
    };
    Ok(whole_lines.to_owned())
}
