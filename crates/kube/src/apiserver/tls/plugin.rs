//! A client certificate from a credential plugin (`exec` of a kubeconfig).

use std::io::{self, IsTerminal as _, Read as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use kube::config::{ExecConfig, ExecInteractiveMode};
use rustix::process::{Pid, Signal};
use serde::Deserialize;
use serde_json::json;
use thiserror::Error;

/// How long a plugin may take that nobody answers questions of.
const LIMIT: Duration = Duration::from_mins(1);
/// How much a plugin may print: many times what a certificate and a key need.
const MAX_OUTPUT: u64 = 1 << 20;
/// How often it is looked whether it has ended.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// Why a credential plugin gives nothing. Never quotes what it printed.
#[derive(Debug, Error)]
pub enum PluginError {
    #[error("exec of the kubeconfig has no command")]
    NoCommand,
    #[error("credential plugin {command}: {source}")]
    Start { command: String, source: io::Error },
    #[error("credential plugin {command} did not end within {} s and was stopped", .limit.as_secs())]
    TimedOut { command: String, limit: Duration },
    #[error("credential plugin {command} ended with {status}")]
    Failed { command: String, status: ExitStatus },
    #[error("credential plugin {command} printed no ExecCredential with a status")]
    Unreadable { command: String },
}

/// A client certificate and its key as PEM.
pub(super) struct PluginPair {
    pub certificate: Vec<u8>,
    pub key: Vec<u8>,
    /// When the plugin is to be run again.
    pub expires: Option<Timestamp>,
}

#[derive(Deserialize)]
struct Answer {
    status: Option<Status>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    expiration_timestamp: Option<Timestamp>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

/// Runs the plugin to its end. None when it has no client certificate; a token is asked for by kube.
pub(super) fn run(exec: &ExecConfig) -> Result<Option<PluginPair>, PluginError> {
    let name = exec.command.as_deref().filter(|command| !command.is_empty());
    let name = name.ok_or(PluginError::NoCommand)?;
    let command = || name.to_owned();
    let interactive = exec.interactive_mode != Some(ExecInteractiveMode::Never) && io::stdin().is_terminal();
    let mut spec = json!({ "interactive": interactive });
    if exec.provide_cluster_info {
        spec["cluster"] = json!(exec.cluster);
    }
    let info = json!({ "apiVersion": exec.api_version, "kind": "ExecCredential", "spec": spec });
    let variables = exec.env.iter().flatten();
    let variables = variables.filter_map(|variable| Some((variable.get("name")?, variable.get("value")?)));
    let mut command_line = Command::new(name);
    command_line
        .args(exec.args.iter().flatten())
        .envs(variables)
        .env("KUBERNETES_EXEC_INFO", info.to_string())
        .stdin(if interactive { Stdio::inherit() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit());
    if !interactive {
        // So that what it started is stopped with it. Another group would not have the terminal.
        command_line.process_group(0);
    }
    let started = command_line.spawn();
    // A person may have to log in.
    let limit = (!interactive).then_some(LIMIT);
    let ended = started.and_then(|child| output(child, limit));
    let ended = ended.map_err(|source| PluginError::Start {
        command: command(),
        source,
    })?;
    let (status, printed) = ended.ok_or_else(|| PluginError::TimedOut {
        command: command(),
        limit: LIMIT,
    })?;
    if !status.success() {
        return Err(PluginError::Failed {
            command: command(),
            status,
        });
    }
    let answer = serde_json::from_slice::<Answer>(&printed).ok();
    let status = answer.and_then(|answer| answer.status);
    let status = status.ok_or_else(|| PluginError::Unreadable { command: command() })?;
    let pair = status.client_certificate_data.zip(status.client_key_data);
    Ok(pair.map(|(certificate, key)| PluginPair {
        certificate: certificate.into_bytes(),
        key: key.into_bytes(),
        expires: status.expiration_timestamp,
    }))
}

/// How a process ended and what it printed; none when it did not end in time, and was stopped with all that it started.
fn output(mut child: Child, limit: Option<Duration>) -> io::Result<Option<(ExitStatus, Vec<u8>)>> {
    let ended = wait(&mut child, limit);
    if !matches!(ended, Ok(Some(_))) {
        // It may have ended just now.
        let group = Pid::from_child(&child);
        let _killed = (rustix::process::kill_process_group(group, Signal::KILL), child.kill());
        child.wait()?;
    }
    ended
}

fn wait(child: &mut Child, limit: Option<Duration>) -> io::Result<Option<(ExitStatus, Vec<u8>)>> {
    let until = limit.map(|limit| Instant::now() + limit);
    let (sender, printed) = mpsc::channel();
    if let Some(stdout) = child.stdout.take() {
        thread::Builder::new()
            .name("credential-plugin-output".to_owned())
            .spawn(move || {
                let mut text = Vec::new();
                let read = stdout.take(MAX_OUTPUT).read_to_end(&mut text);
                // Nobody waits for it any more once the process is stopped.
                drop(sender.send(read.map(|_| text)));
            })?;
    }
    let mut text = None;
    loop {
        text = text.or_else(|| printed.try_recv().ok());
        if text.is_some()
            && let Some(status) = child.try_wait()?
        {
            return text.transpose().map(|text| text.map(|text| (status, text)));
        }
        if until.is_some_and(|until| Instant::now() >= until) {
            return Ok(None);
        }
        thread::sleep(LOOK_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(script: &str, limit: Option<Duration>) -> Option<(ExitStatus, Vec<u8>)> {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdout(Stdio::piped()).process_group(0);
        output(command.spawn().unwrap(), limit).unwrap()
    }

    #[test]
    fn a_plugin_that_hangs_is_stopped() {
        let soon = Some(Duration::from_millis(50));
        assert_eq!(run("exec sleep 1000", soon), None);
        assert_eq!(run("exec sleep 1000 >&-", soon), None);
    }

    /// As a script does that calls the program of a vendor. The pipe is open while one of them is there.
    #[test]
    fn what_a_plugin_started_is_stopped_with_it() {
        let (mut from, to) = io::pipe().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000; true"]).stdout(Stdio::piped());
        command.stderr(to).process_group(0);
        let child = command.spawn().unwrap();
        drop(command);
        assert_eq!(output(child, Some(Duration::from_millis(50))).unwrap(), None);
        assert_eq!(from.read(&mut [0]).unwrap(), 0, "nobody writes any more");
    }

    #[test]
    fn what_a_plugin_prints_and_how_it_ends_is_known() {
        for limit in [None, Some(Duration::from_mins(1))] {
            let (status, printed) = run("echo said; exit 3", limit).unwrap();
            assert_eq!((status.code(), &*printed), (Some(3), &b"said\n"[..]));
        }
        let (_, printed) = run("head -c 3000000 /dev/zero", None).unwrap();
        assert_eq!(printed.len() as u64, MAX_OUTPUT);
    }
}
