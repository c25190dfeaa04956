//! The flags: one row for each, with how its value is read.

use std::time::Duration;

use super::flags::{AlphaLogOption, Flags};
use super::values::{boolean, buffer_size, format, gates, labels, number, positive, span, split_stream, text};
use crate::api::GoDuration;
use crate::cli::ValueError;

/// What a flag takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlagKind {
    /// Nothing, or a truth value behind `=`.
    Boolean,
    /// A value of this type, as Go's usage text calls it.
    Value(&'static str),
}

/// Which program has a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlagOwner {
    /// The sidecar alone.
    Sidecar,
    /// The sidecar and the operator: it does not tell the two modes apart.
    Both,
    /// The operator alone.
    Operator,
}

/// A flag.
pub(super) struct Flag {
    pub name: &'static str,
    pub kind: FlagKind,
    pub owner: FlagOwner,
    /// Whether it changes anything here; if not, that is said in the log when it is given.
    pub has_effect: bool,
    help: &'static str,
    default: fn(&Flags) -> String,
    pub set: fn(&mut Flags, &str) -> Result<(), ValueError>,
}

impl Flag {
    /// The flag of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        FLAGS.iter().find(|flag| flag.name == name)
    }

    /// Its lines of the usage text.
    pub fn usage(&self, defaults: &Flags) -> String {
        let kind = match self.kind {
            FlagKind::Boolean => String::new(),
            FlagKind::Value(kind) => format!(" {kind}"),
        };
        let default = match (self.default)(defaults) {
            text if text.is_empty() => String::new(),
            text => format!(" (default {text})"),
        };
        format!("  -{}{kind}\n    \t{}{default}\n", self.name, self.help)
    }
}

/// All flags by name.
pub(super) fn sorted() -> Vec<&'static Flag> {
    let mut flags: Vec<&Flag> = FLAGS.iter().collect();
    flags.sort_by_key(|flag| flag.name);
    flags
}

/// A row of the sidecar's.
macro_rules! sidecar {
    ($name:literal, $kind:expr, $help:literal, $default:expr, $set:expr) => {
        Flag {
            name: $name,
            kind: $kind,
            owner: FlagOwner::Sidecar,
            has_effect: true,
            help: $help,
            default: $default,
            set: $set,
        }
    };
}

/// A row of the sidecar's without a meaning here; its value must have the right form all the same.
macro_rules! without_meaning {
    ($name:literal, $kind:expr, $why:literal, $set:expr) => {
        Flag {
            has_effect: false,
            ..sidecar!($name, $kind, $why, nothing, $set)
        }
    };
}

const DURATION: FlagKind = FlagKind::Value("duration");
const STRING: FlagKind = FlagKind::Value("string");
const INT: FlagKind = FlagKind::Value("int");
const VALUE: FlagKind = FlagKind::Value("value");

const FLAGS: &[Flag] = &[
    sidecar!(
        "csi-address",
        STRING,
        "The driver's socket: an absolute path or unix:///path.",
        |flags| flags.csi_address.clone(),
        |flags, value| text(&mut flags.csi_address, value)
    ),
    sidecar!(
        "timeout",
        DURATION,
        "Deadline of each call to the driver.",
        |flags| go(flags.timeout),
        |flags, value| span(&mut flags.timeout, value)
    ),
    sidecar!(
        "worker-threads",
        FlagKind::Value("uint"),
        "Maximum number of ControllerPublishVolume and ControllerUnpublishVolume calls in flight, together.",
        |flags| flags.worker_threads.to_string(),
        |flags, value| number(&mut flags.worker_threads, value)
    ),
    sidecar!(
        "retry-interval-start",
        DURATION,
        "Wait after the first failure of an attach or detach; doubles with each further one.",
        |flags| go(flags.retry_interval_start),
        |flags, value| span(&mut flags.retry_interval_start, value)
    ),
    sidecar!(
        "retry-interval-max",
        DURATION,
        "Maximum wait after a failure.",
        |flags| go(flags.retry_interval_max),
        |flags, value| span(&mut flags.retry_interval_max, value)
    ),
    sidecar!(
        "reconcile-sync",
        DURATION,
        "Time between two comparisons of the attachments with ListVolumes.",
        |flags| go(flags.reconcile_sync),
        |flags, value| span(&mut flags.reconcile_sync, value)
    ),
    sidecar!(
        "max-entries",
        INT,
        "Maximum number of entries in a page of ListVolumes; 0 means no limit.",
        |flags| flags.max_entries.to_string(),
        |flags, value| number(&mut flags.max_entries, value)
    ),
    sidecar!(
        "default-fstype",
        STRING,
        "File system type of volumes whose PersistentVolume names none.",
        |flags| flags.default_fs_type.clone(),
        |flags, value| text(&mut flags.default_fs_type, value)
    ),
    sidecar!(
        "kube-api-qps",
        FlagKind::Value("float"),
        "Limit of requests to the API server per second. Without this flag there is no limit.",
        nothing,
        |flags, value| number(&mut flags.kube_api_qps, value)
    ),
    sidecar!(
        "kube-api-burst",
        INT,
        "Requests that may exceed --kube-api-qps for a moment; has no effect without that flag.",
        |flags| flags.kube_api_burst.to_string(),
        |flags, value| number(&mut flags.kube_api_burst, value)
    ),
    sidecar!(
        "leader-election",
        FlagKind::Boolean,
        "Serve the driver only while holding its Lease.",
        nothing,
        |flags, value| boolean(&mut flags.leader_election, value)
    ),
    sidecar!(
        "leader-election-namespace",
        STRING,
        "Namespace of the Lease; that of the pod by default.",
        nothing,
        |flags, value| text(&mut flags.leader_election_namespace, value)
    ),
    sidecar!(
        "leader-election-lease-duration",
        DURATION,
        "How long other replicas wait after the last renewal before they acquire the Lease.",
        |flags| go(flags.lease_duration),
        |flags, value| span(&mut flags.lease_duration, value)
    ),
    sidecar!(
        "leader-election-renew-deadline",
        DURATION,
        "How long the holder tries to renew the Lease before it stops.",
        |flags| go(flags.renew_deadline),
        |flags, value| span(&mut flags.renew_deadline, value)
    ),
    sidecar!(
        "leader-election-retry-period",
        DURATION,
        "Interval between attempts to acquire or renew the Lease.",
        |flags| go(flags.retry_period),
        |flags, value| span(&mut flags.retry_period, value)
    ),
    sidecar!(
        "leader-election-labels",
        VALUE,
        "Labels for the Lease, key:value,key:value.",
        nothing,
        |flags, value| labels(&mut flags.leader_election_labels, value)
    ),
    sidecar!(
        "metrics-address",
        STRING,
        "Deprecated: as --http-endpoint, without /healthz/leader-election.",
        nothing,
        |flags, value| text(&mut flags.metrics_address, value)
    ),
    sidecar!(
        "v",
        INT,
        "Log level: 0 and 1 mean info, 2 to 5 debug, more trace.",
        |flags| flags.verbosity.to_string(),
        |flags, value| number(&mut flags.verbosity, value)
    ),
    sidecar!(
        "logging-format",
        STRING,
        "Format of the log lines: text or json.",
        |_| "text".to_owned(),
        |flags, value| format(flags, value)
    ),
    Flag {
        owner: FlagOwner::Both,
        ..sidecar!(
            "kubeconfig",
            STRING,
            "Kubeconfig of the cluster; the pod's service account by default.",
            nothing,
            |flags, value| {
                flags.kubeconfig = (!value.is_empty()).then(|| value.into());
                Ok(())
            }
        )
    },
    Flag {
        owner: FlagOwner::Both,
        ..sidecar!(
            "http-endpoint",
            STRING,
            "Address of the metrics, /livez, /readyz and /healthz/leader-election; none is served by default.",
            nothing,
            |flags, value| text(&mut flags.http_endpoint, value)
        )
    },
    Flag {
        owner: FlagOwner::Both,
        ..sidecar!(
            "metrics-path",
            STRING,
            "Path of the metrics.",
            |flags| flags.metrics_path.clone(),
            |flags, value| text(&mut flags.metrics_path, value)
        )
    },
    Flag {
        owner: FlagOwner::Both,
        ..sidecar!(
            "version",
            FlagKind::Boolean,
            "Print name and version.",
            nothing,
            |flags, value| { boolean(&mut flags.version, value) }
        )
    },
    Flag {
        owner: FlagOwner::Operator,
        ..sidecar!(
            "log-level",
            STRING,
            "Log level or filter; overrides -v.",
            nothing,
            |flags, value| {
                flags.log_level = Some(value.to_owned());
                Ok(())
            }
        )
    },
    Flag {
        owner: FlagOwner::Operator,
        ..sidecar!("log-format", STRING, "The same as -logging-format.", nothing, format)
    },
    Flag {
        owner: FlagOwner::Operator,
        ..sidecar!(
            "kube-api-timeout",
            DURATION,
            "Timeout of a request to the API server.",
            |flags| go(flags.kube_api_timeout),
            |flags, value| positive(&mut flags.kube_api_timeout, value)
        )
    },
    Flag {
        owner: FlagOwner::Operator,
        ..sidecar!(
            "shutdown-grace-period",
            DURATION,
            "How long the process may take to end after SIGTERM; calls that still run 3 s before are cancelled.",
            |flags| go(flags.shutdown_grace_period),
            |flags, value| positive(&mut flags.shutdown_grace_period, value)
        )
    },
    Flag {
        owner: FlagOwner::Operator,
        ..sidecar!(
            "identity",
            STRING,
            "Name of this replica in the Lease; the host name by default.",
            nothing,
            |flags, value| {
                flags.identity = (!value.is_empty()).then(|| value.to_owned());
                Ok(())
            }
        )
    },
    without_meaning!(
        "resync",
        DURATION,
        "Accepted without effect: no object has to be delivered again.",
        |_, value| span(&mut Duration::default(), value)
    ),
    without_meaning!(
        "max-grpc-log-length",
        INT,
        "Accepted without effect: answers of the driver are not logged.",
        |_, value| number(&mut 0_i64, value)
    ),
    without_meaning!(
        "feature-gates",
        VALUE,
        "Accepted without effect: the features of the sidecar's gates are always on.",
        |_, value| gates(value)
    ),
    without_meaning!("vmodule", VALUE, "Accepted without effect: see -log-level.", |_, _| Ok(
        ()
    )),
    without_meaning!(
        "log-flush-frequency",
        DURATION,
        "Accepted without effect: log lines are not buffered.",
        |_, value| span(&mut Duration::default(), value)
    ),
    without_meaning!(
        "automaxprocs",
        FlagKind::Boolean,
        "Accepted without effect: the number of threads follows the CPU quota anyway.",
        |_, value| boolean(&mut false, value)
    ),
    without_meaning!(
        "log-text-split-stream",
        FlagKind::Boolean,
        "Must be false: an alpha option that the sidecar refuses too.",
        |flags, value| split_stream(flags, AlphaLogOption::TextSplitStream, value)
    ),
    without_meaning!(
        "log-text-info-buffer-size",
        VALUE,
        "Must be 0: an alpha option that the sidecar refuses too.",
        |flags, value| buffer_size(flags, AlphaLogOption::TextInfoBufferSize, value)
    ),
    without_meaning!(
        "log-json-split-stream",
        FlagKind::Boolean,
        "Must be false: an alpha option that the sidecar refuses too.",
        |flags, value| split_stream(flags, AlphaLogOption::JsonSplitStream, value)
    ),
    without_meaning!(
        "log-json-info-buffer-size",
        VALUE,
        "Must be 0: an alpha option that the sidecar refuses too.",
        |flags, value| buffer_size(flags, AlphaLogOption::JsonInfoBufferSize, value)
    ),
];

fn nothing(_: &Flags) -> String {
    String::new()
}

fn go(span: Duration) -> String {
    GoDuration::from_nanos(i64::try_from(span.as_nanos()).unwrap_or(i64::MAX)).to_string()
}
