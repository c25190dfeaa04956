//! The command line.

mod object;

pub use object::{ArgumentError, ObjectWord};

use clap::builder::{OsStringValueParser, TypedValueParser as _};
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use std::path::PathBuf;

use object::{ATTACHMENTS, CLAIMS, DRIVERS, NODES, PODS, VOLUMES, name, name_of, object};

/// kubectl attacher: why is my volume not attached, and what fixes it safely.
#[derive(Debug, Parser)]
#[command(
    name = "kubectl-attacher",
    bin_name = "kubectl attacher",
    version,
    args_override_self = true,
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
    #[arg(long, global = true, value_name = "FILE", value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,
    /// Namespace of pods and claims
    #[arg(long, short = 'n', global = true, value_name = "NAME", value_parser = name)]
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
                            kubectl attacher why pv pvc-0c4e\n  kubectl attacher why va csi-4ee2\n  kubectl attacher why node/worker-3"
    )]
    Why(WhyArguments),
    /// Lists VolumeAttachments
    #[command(
        after_help = "Examples:\n  kubectl attacher list --stuck\n  kubectl attacher list --stuck -o name | xargs -rn1 kubectl attacher retry\n  \
                            kubectl attacher list --driver ebs.csi.aws.com --node worker-3 -o wide\n  \
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
        after_help = "Examples:\n  kubectl attacher release va NAME --reason 'machine is scrapped'\n  \
                            kubectl attacher release pv NAME --dry-run=server"
    )]
    Release(ReleaseArguments),
    /// Prints the completion script of a shell
    #[command(after_help = "Examples:\n  kubectl attacher completion bash > /etc/bash_completion.d/kubectl-attacher")]
    Completion {
        /// The shell
        shell: Shell,
    },
}

impl Command {
    /// What the parser cannot see: a name that is missing, or there twice. It is found before a cluster is asked.
    pub(crate) fn check(&self) -> Result<(), ArgumentError> {
        match self {
            Self::Why(why) => why.object.with(why.name.as_deref()).map(drop),
            Self::Release(release) => release.object.with(release.name.as_deref()).map(drop),
            Self::Wait(wait) if wait.node.is_none() => {
                let object = wait.object.as_ref().ok_or(ArgumentError::NothingToWaitFor)?;
                object.with(wait.name.as_deref()).map(drop)
            }
            _ => Ok(()),
        }
    }
}

/// What `why` is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WhyKind {
    /// A pod
    #[value(aliases = PODS)]
    Pod,
    /// A PersistentVolumeClaim
    #[value(aliases = CLAIMS)]
    Pvc,
    /// A PersistentVolume
    #[value(aliases = VOLUMES)]
    Pv,
    /// A VolumeAttachment
    #[value(aliases = ATTACHMENTS)]
    Va,
    /// A node
    #[value(aliases = NODES)]
    Node,
}

/// Arguments of `why`.
#[derive(Debug, Args)]
pub struct WhyArguments {
    /// Kind of the object, or KIND/NAME
    #[arg(value_name = "KIND", value_parser = object::<WhyKind>())]
    pub object: ObjectWord<WhyKind>,
    /// Name of the object
    #[arg(value_parser = name)]
    pub name: Option<String>,
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
    #[arg(long, value_name = "NAME", value_parser = driver_name)]
    pub driver: Option<String>,
    /// Only those of a node
    #[arg(long, value_name = "NAME", value_parser = node_name)]
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

/// Whose VolumeAttachments are waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WaitKind {
    /// A PersistentVolumeClaim
    #[value(aliases = CLAIMS)]
    Pvc,
    /// A PersistentVolume
    #[value(aliases = VOLUMES)]
    Pv,
    /// A VolumeAttachment
    #[value(aliases = ATTACHMENTS)]
    Va,
    /// A node, as with --node
    #[value(aliases = NODES)]
    Node,
}

/// Arguments of `wait`.
#[derive(Debug, Args)]
pub struct WaitArguments {
    /// Kind of the object, or KIND/NAME; not with --node
    #[arg(value_name = "KIND", value_parser = object::<WaitKind>())]
    pub object: Option<ObjectWord<WaitKind>>,
    /// Name of the object
    #[arg(value_parser = name)]
    pub name: Option<String>,
    /// All VolumeAttachments of a node
    #[arg(long, value_name = "NAME", value_parser = node_name, conflicts_with = "object")]
    pub node: Option<String>,
    /// Only those of a driver
    #[arg(long, value_name = "NAME", value_parser = driver_name)]
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
    #[arg(value_parser = attachment_name)]
    pub name: String,
    /// How long to wait for the result; 0 does not wait
    #[arg(long, default_value = "1m", value_name = "DURATION", value_parser = duration)]
    pub timeout: std::time::Duration,
}

/// What is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReleaseKind {
    /// A VolumeAttachment
    #[value(aliases = ATTACHMENTS)]
    Va,
    /// A PersistentVolume
    #[value(aliases = VOLUMES)]
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
    /// Kind of the object, or KIND/NAME
    #[arg(value_name = "KIND", value_parser = object::<ReleaseKind>())]
    pub object: ObjectWord<ReleaseKind>,
    /// Name of the object
    #[arg(value_parser = name)]
    pub name: Option<String>,
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
    /// How long to wait for the operator's answer; where nobody serves the driver, how long its Lease may be watched
    #[arg(long, default_value = "3m", value_name = "DURATION", value_parser = duration)]
    pub timeout: std::time::Duration,
}

/// The kind of what a driver is named after.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum DriverKind {
    /// A CSIDriver
    #[value(name = "csidriver", aliases = DRIVERS)]
    Driver,
}

fn attachment_name(text: &str) -> Result<String, ArgumentError> {
    name_of(&ReleaseKind::Va, text)
}

fn node_name(text: &str) -> Result<String, ArgumentError> {
    name_of(&WaitKind::Node, text)
}

fn driver_name(text: &str) -> Result<String, ArgumentError> {
    name_of(&DriverKind::Driver, text)
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
            "why pod web-1 -n",
            "list --namespace",
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

    #[test]
    fn the_last_of_several_values_counts_and_an_empty_file_is_none() {
        let line = "kubectl-attacher why pod web-1 --context a --kubeconfig= --as-group g --context b --as-group h";
        let global = Cli::try_parse_from(line.split(' ')).unwrap().global;
        assert_eq!(global.context.as_deref(), Some("b"));
        assert_eq!(global.kubeconfig, Some(PathBuf::new()));
        assert_eq!(global.groups, ["g", "h"]);
    }

    /// Kind and name of what a command line is about, or why it cannot be read.
    fn object_of(line: &str) -> Result<(String, String), String> {
        fn shown<K: std::fmt::Debug>(found: Result<(K, String), ArgumentError>) -> Result<(String, String), String> {
            let (kind, name) = found.map_err(|error| error.to_string())?;
            Ok((format!("{kind:?}"), name))
        }
        let words = ["kubectl-attacher"].into_iter().chain(line.split(' '));
        let parsed = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
        let alone = |name: Option<String>| Ok((String::new(), name.unwrap_or_default()));
        match parsed.command {
            Command::Why(why) => shown(why.object.with(why.name.as_deref())),
            Command::Release(release) => shown(release.object.with(release.name.as_deref())),
            Command::Wait(wait) => match &wait.object {
                Some(object) => shown(object.with(wait.name.as_deref())),
                None => alone(wait.node.or(wait.driver)),
            },
            Command::Retry(retry) => alone(Some(retry.name)),
            Command::List(list) => alone(list.node.or(list.driver)),
            Command::Drivers(_) | Command::Completion { .. } => alone(None),
        }
    }

    #[test]
    fn an_object_is_named_as_kubectl_prints_it() {
        for (line, kind, name) in [
            ("why pod web-1", "Pod", "web-1"),
            ("why pod/web-1", "Pod", "web-1"),
            ("why pods/web-1 -n shop", "Pod", "web-1"),
            ("why persistentvolumeclaim/data", "Pvc", "data"),
            ("why persistentvolume/pvc-1", "Pv", "pvc-1"),
            ("why volumeattachment.storage.k8s.io/csi-1", "Va", "csi-1"),
            ("why va volumeattachment.storage.k8s.io/csi-1", "Va", "csi-1"),
            ("why node/worker-3", "Node", "worker-3"),
            ("release volumeattachment.storage.k8s.io/csi-1", "Va", "csi-1"),
            ("release persistentvolume/pvc-1", "Pv", "pvc-1"),
            ("wait node/worker-3 --for=detached", "Node", "worker-3"),
            ("wait pvc data --for=attached", "Pvc", "data"),
            ("wait --node node/worker-3 --for=detached", "", "worker-3"),
            ("wait --driver csidriver.storage.k8s.io/a.b --for=detached", "", "a.b"),
            ("retry volumeattachment.storage.k8s.io/csi-1", "", "csi-1"),
            ("retry va/csi-1", "", "csi-1"),
            ("retry csi-1", "", "csi-1"),
            ("list --node node/worker-3", "", "worker-3"),
            ("list --driver csidriver.storage.k8s.io/a.b", "", "a.b"),
        ] {
            assert_eq!(object_of(line), Ok((kind.to_owned(), name.to_owned())), "{line}");
        }
    }

    #[test]
    fn an_object_of_another_kind_is_refused() {
        for (line, part) in [
            ("why secret/web", "possible values: pod, pvc, pv, va, node"),
            ("why web", "possible values: pod, pvc, pv, va, node"),
            ("why pod", "the name is missing"),
            ("why pod/", "variable of the shell"),
            ("why pod/web/1", "expected NAME or pod/NAME, not pod/web/1"),
            ("why pod node/web", "expected NAME or pod/NAME, not node/web"),
            ("why pod/web other", "web and other are two names"),
            ("release pod/web", "possible values: va, pv"),
            ("wait pod/web --for=detached", "possible values: pvc, pv, va, node"),
            ("wait pvc/data --node worker-3 --for=detached", "cannot be used with"),
            ("retry pod/web", "expected NAME or va/NAME, not pod/web"),
            ("list --node pod/web", "expected NAME or node/NAME, not pod/web"),
            (
                "list --driver node/web",
                "expected NAME or csidriver/NAME, not node/web",
            ),
        ] {
            let said = object_of(line).expect_err(line);
            assert!(said.contains(part), "{line}: {said}");
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
