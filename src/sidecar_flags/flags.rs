//! Flags as Go's package `flag` reads them: `-x` and `--x` are the same, a value follows `=` or is the next argument, a
//! boolean takes a value only behind `=`, and the first argument that is no flag ends them.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

use super::table::{Flag, FlagKind};
use crate::cli::Format;

/// Why arguments are not usable flags; the texts are those of Go.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum FlagError {
    /// There is no such flag.
    #[error("flag provided but not defined: -{0}")]
    NotDefined(String),
    /// The value is missing.
    #[error("flag needs an argument: -{0}")]
    NeedsArgument(String),
    /// The value is not of the flag's type.
    #[error("invalid value {value:?} for flag -{flag}: {reason}")]
    Invalid {
        /// The flag.
        flag: String,
        /// What was given.
        value: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Dashes and no name.
    #[error("bad flag syntax: {0}")]
    Syntax(String),
    /// Not UTF-8.
    #[error("an argument is not valid UTF-8: {0}")]
    NotText(String),
}

/// An option of the sidecar's log, in the order in which the sidecar looks at them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AlphaLogOption {
    /// `--log-text-split-stream`
    TextSplitStream,
    /// `--log-text-info-buffer-size`
    TextInfoBufferSize,
    /// `--log-json-split-stream`
    JsonSplitStream,
    /// `--log-json-info-buffer-size`
    JsonInfoBufferSize,
}

impl AlphaLogOption {
    /// Its path in the sidecar's logging configuration.
    pub const fn path(self) -> &'static str {
        match self {
            Self::TextSplitStream => "options.text.splitStream",
            Self::TextInfoBufferSize => "options.text.infoBufferSize",
            Self::JsonSplitStream => "options.json.splitStream",
            Self::JsonInfoBufferSize => "options.json.infoBufferSize",
        }
    }
}

/// The values of all flags; what is not given has the sidecar's default.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag")]
pub(super) struct Flags {
    pub csi_address: String,
    pub kubeconfig: Option<PathBuf>,
    pub timeout: Duration,
    pub worker_threads: u32,
    pub retry_interval_start: Duration,
    pub retry_interval_max: Duration,
    pub reconcile_sync: Duration,
    pub max_entries: i32,
    pub default_fs_type: String,
    pub kube_api_qps: f32,
    pub kube_api_burst: i32,
    pub leader_election: bool,
    pub leader_election_namespace: String,
    pub lease_duration: Duration,
    pub renew_deadline: Duration,
    pub retry_period: Duration,
    pub leader_election_labels: BTreeMap<String, String>,
    pub http_endpoint: String,
    pub metrics_address: String,
    pub metrics_path: String,
    pub version: bool,
    pub verbosity: i32,
    pub log_format: Option<Format>,
    /// Alpha options of the log that have another value than their default. No feature gate of the sidecar allows one.
    pub alpha_log_options: BTreeSet<AlphaLogOption>,
    // Flags of the operator, which the sidecar does not have.
    pub log_level: Option<String>,
    pub kube_api_timeout: Duration,
    pub shutdown_grace_period: Duration,
    pub identity: Option<String>,
    /// The flags that were given.
    pub given: BTreeSet<&'static str>,
    /// What stood behind the flags.
    pub rest: Vec<String>,
}

impl Default for Flags {
    fn default() -> Self {
        Self {
            csi_address: "/run/csi/socket".to_owned(),
            kubeconfig: None,
            timeout: Duration::from_secs(15),
            worker_threads: 10,
            retry_interval_start: Duration::from_secs(1),
            retry_interval_max: Duration::from_mins(5),
            reconcile_sync: Duration::from_mins(1),
            max_entries: 0,
            default_fs_type: String::new(),
            kube_api_qps: 5.0,
            kube_api_burst: 10,
            leader_election: false,
            leader_election_namespace: String::new(),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(5),
            leader_election_labels: BTreeMap::new(),
            http_endpoint: String::new(),
            metrics_address: String::new(),
            metrics_path: "/metrics".to_owned(),
            version: false,
            verbosity: 0,
            log_format: None,
            alpha_log_options: BTreeSet::new(),
            log_level: None,
            kube_api_timeout: Duration::from_secs(15),
            // A pod is killed after 30 s unless its manifest says otherwise, and those of vendors do not.
            shutdown_grace_period: Duration::from_secs(25),
            identity: None,
            given: BTreeSet::new(),
            rest: Vec::new(),
        }
    }
}

/// What was read.
#[derive(Debug, PartialEq)]
pub(super) enum ParsedFlags {
    /// `-h` or `-help`.
    Help,
    /// Values.
    Flags(Box<Flags>),
}

/// Reads arguments, without the program's name. The last of several values counts.
pub(super) fn parse(arguments: &[OsString]) -> Result<ParsedFlags, FlagError> {
    let mut words = Vec::with_capacity(arguments.len());
    for argument in arguments {
        let word = argument
            .to_str()
            .ok_or_else(|| FlagError::NotText(argument.to_string_lossy().into_owned()))?;
        words.push(word);
    }
    let mut flags = Flags::default();
    let mut words = words.into_iter().peekable();
    while let Some(word) = words.next_if(|word| word.len() > 1 && word.starts_with('-')) {
        if word == "--" {
            break;
        }
        let body = word.strip_prefix("--").unwrap_or(&word[1..]);
        if body.is_empty() || body.starts_with(['-', '=']) {
            return Err(FlagError::Syntax(word.to_owned()));
        }
        let (name, value) = match body.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (body, None),
        };
        let Some(flag) = Flag::named(name) else {
            if matches!(name, "h" | "help") {
                return Ok(ParsedFlags::Help);
            }
            return Err(FlagError::NotDefined(name.to_owned()));
        };
        let value = match (value, flag.kind) {
            (Some(value), _) => value,
            (None, FlagKind::Boolean) => "true",
            (None, FlagKind::Value(_)) => words.next().ok_or_else(|| FlagError::NeedsArgument(name.to_owned()))?,
        };
        (flag.set)(&mut flags, value).map_err(|reason| FlagError::Invalid {
            flag: name.to_owned(),
            value: value.to_owned(),
            reason: reason.to_string(),
        })?;
        flags.given.insert(flag.name);
    }
    flags.rest = words.map(str::to_owned).collect();
    Ok(ParsedFlags::Flags(Box::new(flags)))
}
