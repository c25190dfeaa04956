//! The flags: one row for each, with its owner, field, type, default, name, kind and help.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use super::flags::AlphaLogOption;
use super::values::{FlagValue, any_duration, any_text, buffer_size, gates, positive, split_stream};
use crate::apiserver::RequestDeadlines;
use crate::cli::ValueError;
use crate::telemetry::logs::LogFormat;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlagOwner {
    Sidecar,
    /// The sidecar and the operator: the flag does not show which of the two modes is meant.
    Both,
    Operator,
}

/// The kind of a flag that takes nothing, or a truth value behind `=`.
pub(super) const BOOLEAN: &str = "boolean";

pub(super) struct Flag {
    pub name: &'static str,
    /// [`BOOLEAN`], or the type of the value as Go's usage text calls it.
    pub kind: &'static str,
    pub owner: FlagOwner,
    /// Whether it changes anything here; if not, that is said in the log when it is given.
    pub has_effect: bool,
    help: &'static str,
    default: fn(&Flags) -> String,
    pub set: fn(&mut Flags, &str) -> Result<(), ValueError>,
}

impl Flag {
    pub fn named(name: &str) -> Option<&'static Self> {
        FLAGS.iter().find(|flag| flag.name == name)
    }

    /// Its lines of the usage text.
    pub fn usage(&self, defaults: &Flags) -> String {
        let kind = match self.kind {
            BOOLEAN => String::new(),
            kind => format!(" {kind}"),
        };
        let default = match (self.default)(defaults) {
            text if text.is_empty() => String::new(),
            text => format!(" (default {text})"),
        };
        format!("  -{}{kind}\n    \t{}{default}\n", self.name, self.help)
    }
}

pub(super) fn sorted() -> Vec<&'static Flag> {
    let mut flags: Vec<&Flag> = FLAGS.iter().collect();
    flags.sort_by_key(|flag| flag.name);
    flags
}

/// Reads the value of a flag into its field, by the type of the field unless the row names another reader.
macro_rules! set {
    ($field:ident) => {
        |flags, value| flags.$field.read(value)
    };
    ($field:ident $read:ident) => {
        |flags, value| $read(&mut flags.$field, value)
    };
}

macro_rules! flags {
    (
        fields { $($owner:ident $field:ident: $type:ty = $default:expr, $name:literal $kind:ident $help:literal $($read:ident)?;)* }
        others { $($other:ident $has_effect:literal $other_name:literal $other_kind:ident $other_help:literal $set:expr;)* }
    ) => {
        /// The values of all flags; what is not given has the sidecar's default.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(clippy::struct_excessive_bools, reason = "each is a flag")]
        pub(super) struct Flags {
            $(pub $field: $type,)*
            /// Alpha options of the log that have another value than their default. No feature gate of the sidecar allows one.
            pub alpha_log_options: BTreeSet<AlphaLogOption>,
            /// Feature gates that the sidecar does not know.
            pub unknown_gates: BTreeSet<String>,
            pub given: BTreeSet<&'static str>,
            /// What stood behind the flags.
            pub rest: Vec<String>,
        }

        impl Default for Flags {
            fn default() -> Self {
                Self {
                    $($field: $default,)*
                    alpha_log_options: BTreeSet::new(),
                    unknown_gates: BTreeSet::new(),
                    given: BTreeSet::new(),
                    rest: Vec::new(),
                }
            }
        }

        const FLAGS: &[Flag] = &[
            $(Flag {
                name: $name,
                kind: stringify!($kind),
                owner: FlagOwner::$owner,
                has_effect: true,
                help: $help,
                default: |flags| flags.$field.shown(),
                set: set!($field $($read)?),
            },)*
            $(Flag {
                name: $other_name,
                kind: stringify!($other_kind),
                owner: FlagOwner::$other,
                has_effect: $has_effect,
                help: $other_help,
                default: |_| String::new(),
                set: $set,
            },)*
        ];
    };
}

flags! {
fields {
    Sidecar csi_address: String = "/run/csi/socket".to_owned(), "csi-address" string
        "The driver's socket: an absolute path or unix:///path.";
    Sidecar timeout: Duration = Duration::from_secs(15), "timeout" duration
        "Deadline of each call to the driver.";
    Sidecar worker_threads: u32 = 10, "worker-threads" uint
        "Maximum number of ControllerPublishVolume and ControllerUnpublishVolume calls in flight, together.";
    Sidecar retry_interval_start: Duration = Duration::from_secs(1), "retry-interval-start" duration
        "Wait after the first failure of an attach or detach; doubles with each further one.";
    Sidecar retry_interval_max: Duration = Duration::from_mins(5), "retry-interval-max" duration
        "Maximum wait after a failure.";
    Sidecar resync: Duration = Duration::from_mins(10), "resync" duration
        "A failed attach or detach waits at most this long, but at least 1s; 0 leaves it to --retry-interval-max.";
    Sidecar reconcile_sync: Duration = Duration::from_mins(1), "reconcile-sync" duration
        "Time between two comparisons of the attachments with ListVolumes.";
    Sidecar max_entries: i32 = 0, "max-entries" int
        "Maximum number of entries in a page of ListVolumes; 0 means no limit.";
    Sidecar default_fs_type: String = String::new(), "default-fstype" string
        "File system type of volumes whose PersistentVolume names none.";
    Sidecar kube_api_qps: f32 = 5.0, "kube-api-qps" float
        "Limit of requests to the API server per second. Without this flag there is no limit.";
    Sidecar kube_api_burst: i32 = 10, "kube-api-burst" int
        "Requests that may exceed --kube-api-qps for a moment; has no effect without that flag.";
    Sidecar leader_election: bool = false, "leader-election" boolean
        "Serve the driver only while holding its Lease.";
    Sidecar leader_election_namespace: String = String::new(), "leader-election-namespace" string
        "Namespace of the Lease; that of the pod by default.";
    Sidecar lease_duration: Duration = Duration::from_secs(15), "leader-election-lease-duration" duration
        "How long other replicas wait after the last renewal before they acquire the Lease.";
    Sidecar renew_deadline: Duration = Duration::from_secs(10), "leader-election-renew-deadline" duration
        "How long the holder tries to renew the Lease before it stops.";
    Sidecar retry_period: Duration = Duration::from_secs(5), "leader-election-retry-period" duration
        "Interval between attempts to acquire or renew the Lease.";
    Sidecar leader_election_labels: BTreeMap<String, String> = BTreeMap::new(), "leader-election-labels" value
        "Labels for the Lease, key:value,key:value.";
    Sidecar metrics_address: String = String::new(), "metrics-address" string
        "Deprecated: as --http-endpoint, without /healthz/leader-election.";
    Sidecar verbosity: i32 = 0, "v" int
        "Log level: 0 and 1 mean info, 2 to 5 debug, more trace.";
    Sidecar log_format: LogFormat = LogFormat::Text, "logging-format" string
        "Format of the log lines: text or json.";
    Both kubeconfig: Option<PathBuf> = None, "kubeconfig" string
        "Kubeconfig of the cluster; the pod's service account by default.";
    Both http_endpoint: String = String::new(), "http-endpoint" string
        "Address of the metrics, /livez, /readyz and /healthz/leader-election; none is served by default.";
    Both metrics_path: String = "/metrics".to_owned(), "metrics-path" string
        "Path of the metrics.";
    Both version: bool = false, "version" boolean
        "Print name and version.";
    Operator log_level: Option<String> = None, "log-level" string
        "Log level or filter; overrides -v." any_text;
    Operator kube_api_timeout: RequestDeadlines = RequestDeadlines::default(), "kube-api-timeout" duration
        "Timeout of each request to the API server; by default 15s for one that reads and 40s for one that writes.";
    // A pod is killed after 30 s unless its manifest says otherwise, and those of vendors do not.
    Operator shutdown_grace_period: Duration = Duration::from_secs(25), "shutdown-grace-period" duration
        "How long the process may take to end after SIGTERM; calls that still run 3 s before are cancelled." positive;
    Operator identity: Option<String> = None, "identity" string
        "Name of this replica in the Lease; the host name by default.";
}
others {
    Operator true "log-format" string
        "The same as -logging-format."
        |flags, value| flags.log_format.read(value);
    Sidecar false "max-grpc-log-length" int
        "Accepted without effect: answers of the driver are not logged."
        |_, value| 0_i64.read(value);
    Sidecar false "feature-gates" value
        "Accepted without effect: the features of the sidecar's gates are always on."
        |flags, value| gates(flags, value);
    Sidecar false "vmodule" value
        "Accepted without effect: see -log-level."
        |_, _| Ok(());
    Sidecar false "log-flush-frequency" duration
        "Accepted without effect: log lines are not buffered."
        |_, value| any_duration(value);
    Sidecar false "automaxprocs" boolean
        "Accepted without effect: the number of threads follows the CPU quota anyway."
        |_, value| false.read(value);
    Sidecar false "log-text-split-stream" boolean
        "Must be false: an alpha option that the sidecar refuses too."
        |flags, value| split_stream(flags, AlphaLogOption::TextSplitStream, value);
    Sidecar false "log-text-info-buffer-size" value
        "Must be 0: an alpha option that the sidecar refuses too."
        |flags, value| buffer_size(flags, AlphaLogOption::TextInfoBufferSize, value);
    Sidecar false "log-json-split-stream" boolean
        "Must be false: an alpha option that the sidecar refuses too."
        |flags, value| split_stream(flags, AlphaLogOption::JsonSplitStream, value);
    Sidecar false "log-json-info-buffer-size" value
        "Must be 0: an alpha option that the sidecar refuses too."
        |flags, value| buffer_size(flags, AlphaLogOption::JsonInfoBufferSize, value);
}
}
