//! The command line of the operator. What an AttacherConfig can say is not said here again. The flags of the sidecar, for
//! one driver without an AttacherConfig, are in `sidecar_flags/`.

use clap::builder::{OsStringValueParser, PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use std::ffi::OsStr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::admin::ListenAddress;
use crate::api::GoDuration;
use crate::apiserver::RequestDeadlines;
use crate::app::{Cluster, ProcessOptions, replica_name};
use crate::findings;
use crate::telemetry::logs::{LogFormat, LogOptions};

const DROP_IN_HELP: &str = "With -csi-address, or another flag of the external-attacher sidecar, it serves one driver instead \
                            of that sidecar; -csi-address=x -help prints its flags.";

/// Attaches and detaches CSI volumes for many drivers, each configured by an AttacherConfig.
#[derive(Clone, Debug, Parser)]
// Of a flag that is given twice the last value counts, as for kubectl and the sidecars: lists of arguments are put together from several files.
#[command(name = "csi-attacher-operator", version, about, after_help = DROP_IN_HELP, args_override_self = true)]
pub struct Cli {
    /// Command to run; without one the operator starts.
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub options: Options,
}

impl Cli {
    /// Reads the arguments of the process, or ends it. A variable that is empty counts as not set, as those of OpenTelemetry do.
    pub fn read() -> Self {
        let is_blank = |value: &OsStr| value.to_string_lossy().trim().is_empty();
        let command = Self::command().mut_args(|argument| {
            let variable = argument.get_env().and_then(std::env::var_os);
            match variable {
                Some(value) if is_blank(&value) => argument.env(None::<&'static str>),
                _ => argument,
            }
        });
        Self::from_arg_matches(&command.get_matches()).unwrap_or_else(|error| error.exit())
    }
}

/// What else the binary can do.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Print the CRD of AttacherConfig as YAML.
    Crd,
}

#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Kubeconfig of the cluster; without it KUBECONFIG or the pod's service account is used.
    #[arg(long, value_name = "FILE", value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub kubeconfig: Option<PathBuf>,
    /// Address of /metrics, /livez and /readyz; ":8080" means all addresses, of IPv4 and IPv6.
    #[arg(long, value_name = "HOST:PORT", default_value = ":8080", value_parser = ListenAddress::from_str)]
    pub http_endpoint: ListenAddress,
    /// Path of the metrics.
    #[arg(long, value_name = "PATH", default_value = "/metrics")]
    pub metrics_path: String,
    /// Log level (off, error, warn, info, debug or trace), or a filter such as "info,csi_attacher=debug".
    #[arg(long, value_name = "LEVEL", default_value = "info", env = "LOG_LEVEL")]
    pub log_level: String,
    /// Format of the log lines.
    #[arg(long, value_name = "FORMAT", default_value = "text", env = "LOG_FORMAT", value_parser = log_formats())]
    pub log_format: LogFormat,
    /// Timeout of each request to the API server. Default: 15s for one that reads, and 40s for one that writes, so that admission webhooks
    /// have their time.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub kube_api_timeout: Option<Duration>,
    /// How long the process may take to end after SIGTERM. Calls that still run shortly before the end are cancelled, so that
    /// the Leases can be released. Set the pod's terminationGracePeriodSeconds above it.
    #[arg(long, value_name = "DURATION", default_value = "75s", value_parser = parse_duration)]
    pub shutdown_grace_period: Duration,
    /// How long an attach or detach may take, or an attachment may lack its node, volume or driver, before it is
    /// reported as a finding.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = parse_duration)]
    pub stuck_after: Duration,
    /// Interval between scans of the attachments for findings.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_duration)]
    pub inspection_interval: Duration,
    /// Name of this replica in Leases and in the status of AttacherConfigs. Default: the pod's name, else the host name.
    #[arg(long, value_name = "NAME", env = "POD_NAME")]
    pub identity: Option<String>,
}

impl From<Options> for ProcessOptions {
    fn from(options: Options) -> Self {
        Self {
            cluster: options.kubeconfig.map_or(Cluster::Environment, Cluster::Kubeconfig),
            http_endpoint: Some(options.http_endpoint),
            metrics_path: options.metrics_path,
            log: LogOptions {
                format: options.log_format,
                level: options.log_level,
            },
            request_deadlines: options
                .kube_api_timeout
                .map_or_else(RequestDeadlines::default, RequestDeadlines::from),
            kube_api_limit: None,
            shutdown_grace_period: options.shutdown_grace_period,
            inspection: findings::ScannerSettings {
                interval: options.inspection_interval,
                stuck_after: options.stuck_after,
            },
            identity: replica_name(options.identity),
        }
    }
}

fn log_formats() -> impl TypedValueParser<Value = LogFormat> {
    let formats = [
        PossibleValue::new("text").help("For people"),
        PossibleValue::new("json").help("One JSON object a line"),
    ];
    PossibleValuesParser::new(formats).map(|format| match format.as_str() {
        "json" => LogFormat::Json,
        _ => LogFormat::Text,
    })
}

/// Why the value of a flag cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ValueError {
    #[error("{0}")]
    Unreadable(String),
    #[error("must not be negative")]
    Negative,
    #[error("must be greater than zero")]
    Zero,
    #[error("must be {0}")]
    NoneOf(&'static str),
    #[error("{0:?} is not of the form key:value")]
    NotAPair(String),
    /// A feature gate without `=true` or `=false`.
    #[error("missing bool value for {0}")]
    GateWithoutValue(String),
    /// Not a quantity of Kubernetes; the text is that of its parser.
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    NotAQuantity,
    /// The same.
    #[error("unable to parse quantity's suffix")]
    UnknownSuffix,
}

impl ValueError {
    /// A duration as Go writes it, zero included.
    pub(crate) fn duration(text: &str) -> Result<Duration, Self> {
        let duration = text.parse::<GoDuration>();
        let duration = duration.map_err(|error| Self::Unreadable(error.to_string()))?;
        duration.to_std().ok_or(Self::Negative)
    }
}

/// As [`ValueError::duration`], but not zero.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, ValueError> {
    let duration = ValueError::duration(text)?;
    if duration.is_zero() {
        return Err(ValueError::Zero);
    }
    Ok(duration)
}

#[cfg(test)]
mod document_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_usable_in_a_pod() {
        let cli = Cli::try_parse_from(["csi-attacher-operator"]).unwrap();
        assert_eq!(cli.options.http_endpoint.to_string(), ":8080");
        assert_eq!(cli.options.log_format, LogFormat::Text);
    }

    #[test]
    fn the_last_of_several_values_counts_and_an_empty_file_is_none() {
        let words = [
            "x",
            "--stuck-after=5m",
            "--kubeconfig=/a",
            "--stuck-after=10m",
            "--kubeconfig=",
        ];
        let process = ProcessOptions::from(Cli::try_parse_from(words).unwrap().options);
        assert_eq!(process.inspection.stuck_after, Duration::from_mins(10));
        assert!(matches!(&process.cluster, Cluster::Kubeconfig(file) if file.as_os_str().is_empty()));
    }

    #[test]
    fn a_replica_has_one_name_which_is_not_blank() {
        let named = |name: &str| {
            let argument = format!("--identity={name}");
            ProcessOptions::from(Cli::try_parse_from(["x", &argument]).unwrap().options).identity
        };
        assert_eq!(named(" me\n"), "me");
        assert!(!named(" ").trim().is_empty(), "it is that of the host");
    }

    #[test]
    fn a_timeout_that_is_given_is_that_of_reads_and_writes() {
        let three = RequestDeadlines::from(Duration::from_secs(3));
        let usual = RequestDeadlines::default();
        for (argument, expected) in [(None, usual), (Some("--kube-api-timeout=3s"), three)] {
            let cli = Cli::try_parse_from(std::iter::once("x").chain(argument)).unwrap();
            assert_eq!(ProcessOptions::from(cli.options).request_deadlines, expected);
        }
    }

    #[test]
    fn a_wrong_flag_or_value_is_named() {
        for (arguments, named) in [
            (vec!["--no-such-flag"], "--no-such-flag"),
            (vec!["--http-endpoint=nowhere"], "--http-endpoint"),
            (vec!["--kube-api-timeout=soon"], "--kube-api-timeout"),
            (vec!["--kube-api-timeout=-1s"], "--kube-api-timeout"),
            (vec!["--stuck-after=never"], "--stuck-after"),
            (vec!["--shutdown-grace-period=0s"], "--shutdown-grace-period"),
            (vec!["--log-format=xml"], "--log-format"),
        ] {
            let error = Cli::try_parse_from(std::iter::once("x").chain(arguments)).unwrap_err();
            assert!(error.to_string().contains(named), "{error}");
            assert_eq!(error.exit_code(), 2);
        }
    }
}
