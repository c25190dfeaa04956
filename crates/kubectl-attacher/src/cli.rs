//! The command line.

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use std::path::PathBuf;

/// kubectl attacher: why is my volume not attached, and what fixes it safely.
#[derive(Debug, Parser)]
#[command(
    name = "kubectl-attacher",
    bin_name = "kubectl attacher",
    version,
    about = "Says why a volume is not attached or detached, and fixes it safely",
    after_help = "Exit codes: 0 as it should be, 1 the cluster could not be asked, 2 wrong command line, 3 a step blocks or something \
                  is stuck, 4 the object does not exist, 5 time is over, 6 a release was refused, 7 what could be read does not say"
)]
pub struct Cli {
    /// Flags of kubectl.
    #[command(flatten)]
    pub global: GlobalOptions,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// Flags that kubectl has too.
#[derive(Debug, Default, Args)]
pub struct GlobalOptions {
    /// Path of the kubeconfig
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,
    /// Namespace of pods and claims
    #[arg(long, short = 'n', global = true, value_name = "NAME")]
    pub namespace: Option<String>,
    /// User to impersonate
    #[arg(long = "as", global = true, value_name = "USER")]
    pub impersonate: Option<String>,
    /// Group to impersonate; may be repeated
    #[arg(long = "as-group", global = true, value_name = "GROUP")]
    pub groups: Vec<String>,
    /// When to colour the output
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN")]
    pub color: ColourWhen,
}

/// When to colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ColourWhen {
    /// On a terminal, unless NO_COLOR is set
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Says why a volume is not attached or detached
    #[command(
        after_help = "Examples:\n  kubectl attacher why pod web-1 -n shop\n  kubectl attacher why pvc data-web-1 -n shop\n  \
                            kubectl attacher why pv pvc-0c4e\n  kubectl attacher why va csi-4ee2\n  kubectl attacher why node worker-3"
    )]
    Why(WhyArguments),
    /// Lists VolumeAttachments
    #[command(
        after_help = "Examples:\n  kubectl attacher list --stuck\n  kubectl attacher list --driver ebs.csi.aws.com --node worker-3 -o wide\n  \
                            kubectl attacher list -w"
    )]
    List(ListArguments),
    /// Lists drivers with health, leader, limits, oldest pending operation and last comparison with ListVolumes
    #[command(after_help = "Examples:\n  kubectl attacher drivers\n  kubectl attacher drivers -o json")]
    Drivers(DriversArguments),
    /// Waits until volumes are attached or detached
    #[command(
        after_help = "Examples:\n  kubectl drain worker-3 && kubectl attacher wait --node worker-3 --for=detached --timeout 10m\n  \
                            kubectl attacher wait pvc data-web-1 -n shop --for=attached"
    )]
    Wait(WaitArguments),
    /// Ends the backoff of a VolumeAttachment, and reports what the next attempt comes to
    #[command(
        after_help = "Examples:\n  kubectl attacher retry csi-4ee2\n  kubectl attacher retry csi-4ee2 --timeout 2m"
    )]
    Retry(RetryArguments),
    /// Releases an object that can never be detached, after the evidence was checked
    #[command(
        after_help = "Examples:\n  kubectl attacher release va csi-4ee2 --reason 'machine is scrapped'\n  \
                            kubectl attacher release pv pvc-0c4e --dry-run=server"
    )]
    Release(ReleaseArguments),
    /// Prints the completion script of a shell
    #[command(after_help = "Examples:\n  kubectl attacher completion bash > /etc/bash_completion.d/kubectl-attacher")]
    Completion {
        /// The shell
        shell: Shell,
    },
}

/// What `why` is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WhyKind {
    /// A pod
    #[value(alias = "po", alias = "pods")]
    Pod,
    /// A PersistentVolumeClaim
    #[value(alias = "persistentvolumeclaim", alias = "claim")]
    Pvc,
    /// A PersistentVolume
    #[value(alias = "persistentvolume")]
    Pv,
    /// A VolumeAttachment
    #[value(alias = "volumeattachment", alias = "volumeattachments")]
    Va,
    /// A node
    #[value(alias = "no", alias = "nodes")]
    Node,
}

/// Arguments of `why`.
#[derive(Debug, Args)]
pub struct WhyArguments {
    /// Kind of the object
    #[arg(value_enum)]
    pub kind: WhyKind,
    /// Name of the object
    #[arg(value_parser = name)]
    pub name: String,
    /// Form of the output
    #[arg(long, short, value_enum, value_name = "FORM")]
    pub output: Option<WhyOutput>,
    /// Show all steps, also when nothing is wrong
    #[arg(long, short)]
    pub verbose: bool,
    /// Address of a Jaeger, such as http://localhost:16686, to print links to the traces of the attempts
    #[arg(long, value_name = "URL")]
    pub traces: Option<String>,
}

/// Forms of `why`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WhyOutput {
    /// As JSON
    Json,
    /// As YAML
    Yaml,
    /// Only the names of the VolumeAttachments
    Name,
}

/// Forms of tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TableOutput {
    /// With more columns
    Wide,
    /// As JSON
    Json,
    /// As YAML
    Yaml,
    /// Only names
    Name,
}

/// Arguments of `list`.
#[derive(Clone, Debug, Args)]
pub struct ListArguments {
    /// Only those that are stuck; exit code 3 if there are any
    #[arg(long)]
    pub stuck: bool,
    /// Only those of a driver
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub driver: Option<String>,
    /// Only those of a node
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub node: Option<String>,
    /// From when on an attach or detach counts as stuck, in seconds; the operator's flag --stuck-after has the same default
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub stuck_after: u64,
    /// Form of the output
    #[arg(long, short, value_enum, value_name = "FORM")]
    pub output: Option<TableOutput>,
    /// Print each change after the list
    #[arg(long, short)]
    pub watch: bool,
}

/// Arguments of `drivers`.
#[derive(Debug, Args)]
pub struct DriversArguments {
    /// Form of the output
    #[arg(long, short, value_enum, value_name = "FORM")]
    pub output: Option<TableOutput>,
}

/// What `wait` waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WaitFor {
    /// No VolumeAttachment is left
    Detached,
    /// At least one VolumeAttachment exists, and all are attached
    Attached,
}

/// Arguments of `wait`.
#[derive(Debug, Args)]
pub struct WaitArguments {
    /// `pvc NAME`, `pv NAME` or `va NAME`; not with --node
    #[arg(num_args = 0..=2, value_names = ["KIND", "NAME"], value_parser = name)]
    pub object: Vec<String>,
    /// All VolumeAttachments of a node
    #[arg(long, value_name = "NAME", value_parser = name, conflicts_with = "object")]
    pub node: Option<String>,
    /// Only those of a driver
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub driver: Option<String>,
    /// Succeed for a node, volume, VolumeAttachment or driver that does not exist, instead of exit code 4
    #[arg(long)]
    pub allow_missing: bool,
    /// The state to wait for
    #[arg(long = "for", value_enum, value_name = "STATE")]
    pub state: WaitFor,
    /// How long to wait: 30s, 10m, 1h; 0 lists once and does not wait
    #[arg(long, default_value = "5m", value_name = "DURATION", value_parser = duration)]
    pub timeout: std::time::Duration,
    /// Print nothing but the result
    #[arg(long, short)]
    pub quiet: bool,
}

/// Arguments of `retry`.
#[derive(Debug, Args)]
pub struct RetryArguments {
    /// Name of the VolumeAttachment
    #[arg(value_parser = name)]
    pub name: String,
    /// How long to wait for the result; 0 does not wait
    #[arg(long, default_value = "1m", value_name = "DURATION", value_parser = duration)]
    pub timeout: std::time::Duration,
}

/// What is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReleaseKind {
    /// A VolumeAttachment
    #[value(alias = "volumeattachment")]
    Va,
    /// A PersistentVolume
    #[value(alias = "persistentvolume")]
    Pv,
}

/// Whether to write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DryRun {
    /// Write
    #[default]
    None,
    /// Send the write to the API server, which checks it and stores nothing
    Server,
}

/// Arguments of `release`.
#[derive(Debug, Args)]
pub struct ReleaseArguments {
    /// Kind of the object
    #[arg(value_enum)]
    pub kind: ReleaseKind,
    /// Name of the object
    #[arg(value_parser = name)]
    pub name: String,
    /// Why; it is recorded in the audit event
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub reason: String,
    /// Go on without proof. If the volume is attached somewhere, its data is lost when two nodes write to it
    #[arg(long)]
    pub i_know_the_volume_is_not_attached_anywhere: bool,
    /// Whether to write
    #[arg(long, value_enum, default_value_t, value_name = "WHERE")]
    pub dry_run: DryRun,
    /// Where nobody serves the driver: for how long no attacher may have shown itself, as one without a Lease does by an error
    #[arg(long, default_value = "5m", value_name = "DURATION", value_parser = duration)]
    pub quiet_for: std::time::Duration,
    /// How long to wait for the operator's answer
    #[arg(long, default_value = "2m", value_name = "DURATION", value_parser = duration)]
    pub timeout: std::time::Duration,
}

/// Reads the name of an object. A shell makes an empty one of a variable that is not set, and that names nothing.
fn name(text: &str) -> Result<String, ArgumentError> {
    match text.trim() {
        "" => Err(ArgumentError::EmptyName),
        _ => Ok(text.to_owned()),
    }
}

/// Why an argument cannot be used.
#[derive(Debug, thiserror::Error)]
enum ArgumentError {
    #[error("the name is empty; is a variable of the shell not set?")]
    EmptyName,
    #[error("expected a duration such as 30s, 10m or 1h")]
    NoDuration,
    #[error("too long")]
    TooLong,
}

/// Reads `30s`, `10m`, `1h`, or a number of seconds.
fn duration(text: &str) -> Result<std::time::Duration, ArgumentError> {
    let (number, factor) = match text.char_indices().last() {
        Some((at, 's')) => (&text[..at], 1),
        Some((at, 'm')) => (&text[..at], 60),
        Some((at, 'h')) => (&text[..at], 3600),
        _ => (text, 1),
    };
    let seconds: u64 = number.parse().map_err(|_| ArgumentError::NoDuration)?;
    seconds
        .checked_mul(factor)
        .map(std::time::Duration::from_secs)
        .ok_or(ArgumentError::TooLong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn no_command_takes_an_empty_name() {
        for line in [
            "why pv",
            "retry",
            "release va",
            "wait node",
            "wait --for=detached --node",
            "list --driver",
        ] {
            let words = |name| {
                ["kubectl-attacher"]
                    .into_iter()
                    .chain(line.split(' '))
                    .chain([name])
                    .chain(after(line))
            };
            assert!(Cli::try_parse_from(words("web")).is_ok(), "{line}");
            for empty in ["", " "] {
                let error = Cli::try_parse_from(words(empty)).unwrap_err();
                assert!(error.to_string().contains("variable of the shell"), "{line}: {error}");
            }
        }
    }

    /// What else a command needs.
    fn after(line: &str) -> Option<&'static str> {
        (line == "wait node").then_some("--for=detached")
    }

    #[test]
    fn durations() {
        let rows = [("30s", 30), ("10m", 600), ("1h", 3600), ("7", 7), ("0", 0)];
        for (text, seconds) in rows {
            assert_eq!(duration(text).unwrap().as_secs(), seconds, "{text}");
        }
        for text in ["", "m", "-1s", "1.5m", "99999999999999999999h"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
