//! Flags as Go's package `flag` reads them: `-x` and `--x` are the same, a value follows `=` or is the next argument, a
//! boolean takes a value only behind `=`, and the first argument that is no flag ends them.

use std::ffi::OsString;

use thiserror::Error;

use super::table::{BOOLEAN, Flag, Flags};

/// What is said of arguments that are those of another sidecar.
pub(super) const THIS_IMAGE: &str = "This image takes the place of csi-attacher only; provisioning is switched on with spec.provisioning of an \
     AttacherConfig";

/// Flags that only csi-provisioner has, of all sidecars.
const OF_PROVISIONER: [&str; 20] = [
    "capacity-for-immediate-binding",
    "capacity-ownerref-level",
    "capacity-poll-interval",
    "capacity-threads",
    "cloning-protection-threads",
    "controller-publish-readonly",
    "enable-capacity",
    "extra-create-metadata",
    "immediate-topology",
    "kube-api-capacity-burst",
    "kube-api-capacity-qps",
    "node-deployment",
    "node-deployment-base-delay",
    "node-deployment-immediate-binding",
    "node-deployment-max-delay",
    "prevent-volume-mode-conversion",
    "snapshot-orphan-sweep-interval",
    "strict-topology",
    "volume-name-prefix",
    "volume-name-uuid-length",
];

/// Why arguments are not usable flags; the texts are those of Go.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum FlagError {
    #[error("flag provided but not defined: -{0}")]
    NotDefined(String),
    /// A flag of csi-provisioner: the image is in the wrong container.
    #[error("flag provided but not defined: -{0}: it is a flag of csi-provisioner. {THIS_IMAGE}")]
    OfProvisioner(String),
    #[error("flag needs an argument: -{0}")]
    NeedsArgument(String),
    #[error("invalid value {value:?} for flag -{flag}: {reason}")]
    Invalid {
        flag: String,
        value: String,
        reason: String,
    },
    #[error("bad flag syntax: {0}")]
    Syntax(String),
    #[error("an argument is not valid UTF-8: {0}")]
    NotText(String),
}

/// An option of the sidecar's log, in the order in which the sidecar looks at them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AlphaLogOption {
    TextSplitStream,
    TextInfoBufferSize,
    JsonSplitStream,
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

/// Reads arguments, without the program's name; none where they ask for help, by `-h` or `-help`. The last of several values counts.
pub(super) fn parse(arguments: &[OsString]) -> Result<Option<Flags>, FlagError> {
    let words = arguments.iter().map(|argument| {
        let not_text = || FlagError::NotText(argument.to_string_lossy().into_owned());
        argument.to_str().ok_or_else(not_text)
    });
    let mut words = words.collect::<Result<Vec<_>, _>>()?.into_iter().peekable();
    let mut flags = Flags::default();
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
                return Ok(None);
            }
            let name = name.to_owned();
            return Err(if OF_PROVISIONER.contains(&name.as_str()) {
                FlagError::OfProvisioner(name)
            } else {
                FlagError::NotDefined(name)
            });
        };
        let value = match value {
            Some(value) => value,
            None if flag.kind == BOOLEAN => "true",
            None => words.next().ok_or_else(|| FlagError::NeedsArgument(name.to_owned()))?,
        };
        (flag.set)(&mut flags, value).map_err(|reason| FlagError::Invalid {
            flag: name.to_owned(),
            value: value.to_owned(),
            reason: reason.to_string(),
        })?;
        flags.given.insert(flag.name);
    }
    flags.rest = words.map(str::to_owned).collect();
    Ok(Some(flags))
}
