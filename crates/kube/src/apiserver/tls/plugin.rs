//! A client certificate from a credential plugin (`exec` of a kubeconfig).

use std::io::{self, IsTerminal as _};
use std::process::{Command, ExitStatus, Stdio};

use jiff::Timestamp;
use kube::config::{ExecConfig, ExecInteractiveMode};
use serde::Deserialize;
use serde_json::json;
use thiserror::Error;

/// Why a credential plugin gives nothing. Never quotes what it printed.
#[derive(Debug, Error)]
pub enum PluginError {
    #[error("exec of the kubeconfig has no command")]
    NoCommand,
    #[error("credential plugin {command}: {source}")]
    Start { command: String, source: io::Error },
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
    let ended = Command::new(name)
        .args(exec.args.iter().flatten())
        .envs(variables)
        .env("KUBERNETES_EXEC_INFO", info.to_string())
        .stdin(if interactive { Stdio::inherit() } else { Stdio::null() })
        .stderr(Stdio::inherit())
        .output();
    let ended = ended.map_err(|source| PluginError::Start {
        command: command(),
        source,
    })?;
    if !ended.status.success() {
        return Err(PluginError::Failed {
            command: command(),
            status: ended.status,
        });
    }
    let answer = serde_json::from_slice::<Answer>(&ended.stdout).ok();
    let status = answer.and_then(|answer| answer.status);
    let status = status.ok_or_else(|| PluginError::Unreadable { command: command() })?;
    let pair = status.client_certificate_data.zip(status.client_key_data);
    Ok(pair.map(|(certificate, key)| PluginPair {
        certificate: certificate.into_bytes(),
        key: key.into_bytes(),
        expires: status.expiration_timestamp,
    }))
}
