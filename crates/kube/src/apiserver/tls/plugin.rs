//! A client certificate or a token from a credential plugin (`exec` of a kubeconfig).

use std::io::{self, IsTerminal as _, Read as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use csi_attacher_kubeconfig::check_token;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::config::{ExecConfig, ExecInteractiveMode};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal};
use serde::Deserialize;
use serde_json::json;
use thiserror::Error;
use tracing::warn;

use crate::apiserver::connect_error::ConnectError;
use crate::clock;
use crate::objects::time_if_readable;

/// How long a plugin may take that nobody answers questions of.
const RUN_TIMEOUT: Duration = Duration::from_mins(1);
/// How much a plugin may print: many times what a certificate and a key need.
const MAX_OUTPUT: u64 = 1 << 20;
/// So long before the end of what a plugin gave it is run again.
const EXPIRY_MARGIN: SignedDuration = SignedDuration::from_mins(1);
/// So long a plugin is not run again, whatever comes of it: it may ask a server.
const MIN_RUN_INTERVAL: Duration = Duration::from_secs(5);
/// How often it is looked whether it has ended.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// Why a credential plugin gives nothing. Never quotes what it printed.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs, reason = "the messages say what the variants are")]
pub enum PluginProblem {
    #[error("did not end within {} s and was stopped", RUN_TIMEOUT.as_secs())]
    TimedOut,
    #[error("ended with {0}")]
    Failed(ExitStatus),
    #[error("printed no ExecCredential with a status")]
    Unreadable,
    #[error("gave a token with characters that no token has")]
    Token,
    #[error("gave neither a token nor a client certificate with its key")]
    Nothing,
    #[error("gave only one of a client certificate and its key")]
    Half,
}

/// What a plugin gives: a pair or a token, or both. It cannot be printed.
pub(in crate::apiserver) struct PluginAnswer {
    /// A client certificate and its key as PEM.
    pub pair: Option<(Vec<u8>, Vec<u8>)>,
    pub token: Option<String>,
    /// When that ends.
    pub expires: Option<Timestamp>,
}

/// A plugin that can be run again: not while it runs, and not within a rest after that. Clones are one.
#[derive(Clone)]
pub(in crate::apiserver) struct Plugin {
    exec: Arc<ExecConfig>,
    last: Arc<Mutex<LastRun>>,
}

/// The last run, whether it has ended or not.
struct LastRun {
    is_running: bool,
    /// When it began or ended.
    at: Instant,
    /// When what is in use ends.
    expires: Option<Timestamp>,
}

impl Plugin {
    /// Runs a plugin for the first time.
    pub fn first(exec: &ExecConfig) -> Result<(Self, PluginAnswer), ConnectError> {
        let answer = run(exec)?;
        let last = LastRun {
            is_running: false,
            at: Instant::now(),
            expires: answer.expires,
        };
        let (exec, last) = (Arc::new(exec.clone()), Arc::new(Mutex::new(last)));
        Ok((Self { exec, last }, answer))
    }

    /// Whether what is in use ends soon, as the plugin has said.
    pub fn ends_soon(&self) -> bool {
        let ends = |expires: Timestamp| expires.duration_since(clock::now()) <= EXPIRY_MARGIN;
        self.last.lock().expires.is_some_and(ends)
    }

    /// Runs the plugin in a thread of its own, as it may take long. What comes of that is given to `take`, which says
    /// whether it is in use from then on. Nothing is done while it runs, nor within its rest.
    pub fn run_again(&self, take: impl FnOnce(Result<PluginAnswer, ConnectError>) -> bool + Send + 'static) {
        let mut last = self.last.lock();
        if last.is_running || last.at.elapsed() < MIN_RUN_INTERVAL {
            return;
        }
        last.at = Instant::now();
        let plugin = self.clone();
        let started = thread::Builder::new()
            .name("credential-plugin".to_owned())
            .spawn(move || plugin.run_and_give(take));
        match started {
            Ok(_) => last.is_running = true,
            Err(error) => warn!(%error, "cannot start a thread for the credential plugin"),
        }
    }

    fn run_and_give(&self, take: impl FnOnce(Result<PluginAnswer, ConnectError>) -> bool) {
        let answer = run(&self.exec);
        let expires = answer.as_ref().ok().and_then(|answer| answer.expires);
        let is_in_use = take(answer);
        let mut last = self.last.lock();
        (last.is_running, last.at) = (false, Instant::now());
        if is_in_use {
            last.expires = expires;
        }
    }
}

#[derive(Deserialize)]
struct Answer {
    status: Option<Status>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    /// One that is too late for a [`Timestamp`] is as good as none. A token that has ended is asked for anew at the answer 401.
    #[serde(default, deserialize_with = "time_if_readable")]
    expiration_timestamp: Option<Time>,
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

/// Runs the plugin to its end.
fn run(exec: &ExecConfig) -> Result<PluginAnswer, ConnectError> {
    let name = exec.command.as_deref().filter(|command| !command.is_empty());
    let name = name.ok_or(ConnectError::NoCommand)?;
    let useless = |problem| ConnectError::Plugin(name.to_owned(), problem);
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
    let limit = (!interactive).then_some(RUN_TIMEOUT);
    let ended = started.and_then(|child| output(child, limit));
    let ended = ended.map_err(|error| ConnectError::PluginStart(name.to_owned(), error))?;
    let (status, printed) = ended.ok_or_else(|| useless(PluginProblem::TimedOut))?;
    if !status.success() {
        return Err(useless(PluginProblem::Failed(status)));
    }
    answer_of(&printed).map_err(useless)
}

/// What stands in the output of a plugin. As in client-go, an empty value is none, and a plugin that gives nothing has failed.
fn answer_of(printed: &[u8]) -> Result<PluginAnswer, PluginProblem> {
    let answer = serde_json::from_slice::<Answer>(printed).ok();
    let status = answer.and_then(|answer| answer.status);
    let status = status.ok_or(PluginProblem::Unreadable)?;
    let filled = |value: Option<String>| value.filter(|value| !value.is_empty());
    let token = filled(status.token);
    if token.as_deref().is_some_and(|token| check_token(token).is_err()) {
        return Err(PluginProblem::Token);
    }
    let pair = match (filled(status.client_certificate_data), filled(status.client_key_data)) {
        (Some(certificate), Some(key)) => Some((certificate.into_bytes(), key.into_bytes())),
        (None, None) if token.is_some() => None,
        (None, None) => return Err(PluginProblem::Nothing),
        (Some(_), None) | (None, Some(_)) => return Err(PluginProblem::Half),
    };
    Ok(PluginAnswer {
        pair,
        token,
        expires: status.expiration_timestamp.map(|time| time.0),
    })
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

    /// A server may stand behind it, and 401 may be the answer to each request.
    #[test]
    fn it_is_run_again_after_a_rest_and_not_beside_itself() {
        let answer = json!({"status": {"token": "one", "expirationTimestamp": "2026-01-01T00:00:00Z"}});
        let exec = json!({"command": "echo", "args": [answer.to_string()], "interactiveMode": "Never"});
        let (plugin, answer) = Plugin::first(&serde_json::from_value(exec).unwrap()).unwrap();
        assert_eq!(answer.token.as_deref(), Some("one"));
        assert!(answer.pair.is_none() && plugin.ends_soon());
        let (sender, given) = mpsc::channel();
        let (go, goes) = mpsc::channel::<()>();
        let asks = |is_in_use: bool| {
            let sender = sender.clone();
            move |answer: Result<PluginAnswer, ConnectError>| {
                sender.send(answer.unwrap().token).unwrap();
                is_in_use
            }
        };
        plugin.run_again(asks(true));
        assert!(given.recv_timeout(Duration::from_millis(200)).is_err(), "it rests");
        let rested = || plugin.last.lock().at = Instant::now().checked_sub(MIN_RUN_INTERVAL).unwrap();
        rested();
        plugin.run_again(move |_| {
            goes.recv().unwrap();
            false
        });
        rested();
        plugin.run_again(asks(true));
        assert!(given.recv_timeout(Duration::from_millis(200)).is_err(), "it runs");
        go.send(()).unwrap();
        while plugin.last.lock().is_running {
            thread::sleep(LOOK_INTERVAL);
        }
        rested();
        plugin.run_again(asks(true));
        assert_eq!(given.recv().unwrap().as_deref(), Some("one"));
    }

    #[test]
    fn what_ends_soon_is_told_by_the_one_clock() {
        let answer = json!({"status": {"token": "one", "expirationTimestamp": "2100-01-01T00:00:00Z"}});
        let exec = json!({"command": "echo", "args": [answer.to_string()], "interactiveMode": "Never"});
        let (plugin, _) = Plugin::first(&serde_json::from_value(exec).unwrap()).unwrap();
        assert!(!plugin.ends_soon());
        clock::set_source(|| "2099-12-31T23:59:59Z".parse().ok());
        let ends_soon = plugin.ends_soon();
        clock::set_source(|| None);
        assert!(ends_soon);
    }

    #[test]
    fn an_empty_value_of_a_plugin_is_none_and_nothing_at_all_is_an_error() {
        let (certificate, key) = ("clientCertificateData", "clientKeyData");
        let nothing = "gave neither a token nor a client certificate";
        let half = "gave only one of a client certificate and its key";
        for (status, wanted) in [
            (json!({ "token": "t", certificate: "", key: "" }), Ok((false, true))),
            (json!({ "token": "t", certificate: null }), Ok((false, true))),
            (json!({ "token": "", certificate: "c", key: "k" }), Ok((true, false))),
            (json!({ "token": "t", certificate: "c", key: "k" }), Ok((true, true))),
            (
                json!({ "token": "t", "expirationTimestamp": "9999-12-31T23:59:59Z" }),
                Ok((false, true)),
            ),
            (json!({ "token": "t\n" }), Err("characters that no token has")),
            (json!({}), Err(nothing)),
            (json!({ "token": "", certificate: "", key: "" }), Err(nothing)),
            (json!({ "token": "t", certificate: "c", key: "" }), Err(half)),
            (json!({ certificate: "c" }), Err(half)),
            (json!({ key: "k" }), Err(half)),
            (json!(null), Err("printed no ExecCredential with a status")),
        ] {
            let printed = json!({ "kind": "ExecCredential", "status": status }).to_string();
            match (answer_of(printed.as_bytes()), wanted) {
                (Ok(answer), Ok(wanted)) => {
                    assert_eq!((answer.pair.is_some(), answer.token.is_some()), wanted, "{printed}");
                }
                (Err(error), Err(words)) => {
                    assert!(error.to_string().contains(words), "{printed}: {error}");
                }
                (Ok(_), Err(words)) => panic!("{printed}: accepted, not: {words}"),
                (Err(error), Ok(_)) => panic!("{printed}: {error}"),
            }
        }
    }

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
