//! docs/FLAGS.md, written from the two command lines.

use std::fmt::Write as _;

use clap::{Arg, CommandFactory};

use super::Cli;
use crate::dropin;

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/FLAGS.md");

const HEAD: &str = "\
# Flags, environment, exit codes

<!-- Made from src/cli.rs and src/dropin by `make generate`; do not edit. What is prose here stands in src/cli/document_tests.rs. -->

What an AttacherConfig can say is not said by a flag: [FIELDS](FIELDS.md). Durations are Go's, such as `90s` or `1m30s`.

## The operator

`csi-attacher-operator [FLAGS]`. A flag comes before its environment variable, and that before the default. In the chart,
`extraArgs` adds flags and `extraEnv` variables; many flags have a value of their own there.

";

const DROP_IN: &str = "
## In the place of the sidecar

With `--csi-address`, or any other flag that only the external-attacher sidecar has, the program serves one driver in the
sidecar's place and reads its flags as the sidecar does, with one dash or two. [DROP-IN](DROP-IN.md) tells what each means in
full, and what is different.

";

const ENVIRONMENT: &str = "
## Environment

The variables of traces, `OTEL_*` among them, are in [TELEMETRY-ENVIRONMENT](TELEMETRY-ENVIRONMENT.md). Besides:

| Variable | Read by | Meaning |
|---|---|---|
| `KUBECONFIG` | the operator | kubeconfig where `--kubeconfig` is not given. Not looked at in the place of the sidecar |
| `KUBERNETES_SERVICE_HOST` | both | address of the API server, with the ServiceAccount that the kubelet mounts; set by the kubelet in every pod |
| `KUBERNETES_SERVICE_PORT` | both | port of the API server; set by the kubelet in every pod |
| `POD_NAMESPACE` | both | namespace of the Leases where none is named; without it that of the ServiceAccount, else `default`. Also on spans |
| `POD_NAME` | both | the operator's name in Leases and in the status (`--identity`). In the place of the sidecar only on spans: the Lease has \
the host name there, as the sidecar's |
| `POD_UID` | both | on spans |
| `NODE_NAME` | both | on spans |
| `LOG_LEVEL` | the operator | `--log-level` |
| `LOG_FORMAT` | the operator | `--log-format` |

## Exit codes

| Code | When |
|---|---|
| 0 | it was told to stop (SIGTERM, SIGINT) and all running calls had ended and were recorded; `--help`, `--version`, `crd` |
| 1 | it cannot start (no cluster is configured, the kubeconfig cannot be read, the address of `--http-endpoint` is taken, a log \
filter is wrong); or it ended with calls still running, at the end of `--shutdown-grace-period` or at a second signal; or by a \
fault of its own |
| 2 | a flag that does not exist, or a value of the wrong form; the message names it |

An API server or a driver that cannot be reached, a missing CustomResourceDefinition, a lost Lease and an AttacherConfig that
cannot be used do not end the process: it says so and tries again.
";

/// A flag with its value's name, as people write it.
fn flag(argument: &Arg) -> String {
    let name = format!("--{}", argument.get_long().unwrap_or_default());
    match argument.get_value_names() {
        Some([value, ..]) if argument.get_action().takes_values() => format!("{name} {value}"),
        _ => name,
    }
}

fn defaults(argument: &Arg) -> String {
    let values = argument
        .get_default_values()
        .iter()
        .map(|value| format!("`{}`", value.to_string_lossy()));
    values.collect::<Vec<_>>().join(", ")
}

fn cell(text: &str) -> String {
    text.trim().replace('|', "\\|").replace('\n', " ")
}

/// The rows of [`dropin::usage`]: name and kind, help, default.
fn drop_in_rows(usage: &str) -> Vec<[String; 3]> {
    let mut rows = Vec::new();
    for piece in usage.split("\n  -").skip(1) {
        let (head, help) = piece.split_once('\n').unwrap_or((piece, ""));
        let help = help.trim();
        let (help, default) = match help.rsplit_once(" (default ") {
            Some((help, default)) => (help, format!("`{}`", default.trim_end_matches(')'))),
            None => (help, String::new()),
        };
        rows.push([format!("--{}", head.trim()), default, cell(help)]);
    }
    rows
}

/// The document.
fn document() -> Result<String, std::fmt::Error> {
    let mut command = Cli::command();
    command.build();
    let mut text = String::from(HEAD);
    writeln!(text, "| Flag | Default | Environment | Meaning |\n|---|---|---|---|")?;
    for argument in command.get_arguments().filter(|argument| argument.get_long().is_some()) {
        let variable = argument
            .get_env()
            .map_or(String::new(), |name| format!("`{}`", name.to_string_lossy()));
        let help = argument
            .get_long_help()
            .or(argument.get_help())
            .map(ToString::to_string)
            .unwrap_or_default();
        writeln!(
            text,
            "| `{}` | {} | {variable} | {} |",
            flag(argument),
            defaults(argument),
            cell(&help)
        )?;
    }
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
        writeln!(text, "\n`csi-attacher-operator {}`: {}", sub.get_name(), cell(&about))?;
    }
    text.push_str(DROP_IN);
    writeln!(text, "| Flag | Default | Meaning |\n|---|---|---|")?;
    for [name, default, help] in drop_in_rows(&dropin::usage()) {
        writeln!(text, "| `{name}` | {default} | {help} |")?;
    }
    text.push_str(ENVIRONMENT);
    Ok(text)
}

#[test]
fn the_document_is_what_the_command_lines_say() {
    let generated = document().expect("a text can be written");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(PATH, &generated).expect("the file can be written");
    }
    let committed = std::fs::read_to_string(PATH).expect("docs/FLAGS.md can be read");
    assert!(committed == generated, "docs/FLAGS.md is stale: run `make generate`");
}

#[test]
fn every_flag_has_its_row() {
    let text = document().expect("a text can be written");
    for row in [
        "| `--kube-api-timeout DURATION` | `15s` |",
        "| `--log-level LEVEL` | `info` | `LOG_LEVEL` |",
        "| `--version` |",
        "| `--csi-address string` | `/run/csi/socket` |",
        "| `--retry-interval-max duration` | `5m0s` |",
    ] {
        assert!(text.contains(row), "{row} is not in {text}");
    }
    let rows = drop_in_rows(&dropin::usage());
    assert_eq!(rows.len(), dropin::usage().matches("\n  -").count());
    assert!(rows.iter().all(|row| !row[2].is_empty()), "{rows:?}");
}
