//! docs/reference/FLAGS.md, written from the two command lines.

use std::fmt::Write as _;

use clap::{Arg, CommandFactory};

use super::Cli;
use crate::sidecar_flags;

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/reference/FLAGS.md");

const HEAD: &str = "\
# Flags, environment, exit codes

<!-- Generated from src/cli.rs and src/sidecar_flags by `make generate`; do not edit. The prose is in src/cli/document_tests.rs. -->

Settings of a driver are not flags, but fields of its AttacherConfig: [FIELDS](FIELDS.md). Durations have Go's format, such as `90s` or `1m30s`.

## The operator

`csi-attacher-operator [FLAGS]`. A flag overrides its environment variable, and the variable overrides the default. In the chart,
`extraArgs` adds flags and `extraEnv` adds variables; many flags have a value of their own there.

";

const DROP_IN: &str = "
## Drop-in mode

With `--csi-address`, or any other flag that only the external-attacher sidecar has, the program serves one driver instead of
the sidecar and parses its flags as the sidecar does, with one dash or two. [DROP-IN](../install/DROP-IN.md) describes each flag in
full, and the differences.

";

const ENVIRONMENT: &str = "
## Environment

The variables of traces, `OTEL_*` among them, are in [TELEMETRY-ENVIRONMENT](TELEMETRY-ENVIRONMENT.md). The others are:

| Variable | Read by | Meaning |
|---|---|---|
| `KUBECONFIG` | the operator | kubeconfig if `--kubeconfig` is not given. Ignored in drop-in mode |
| `KUBERNETES_SERVICE_HOST` | both | address of the API server, with the ServiceAccount that the kubelet mounts; set by the kubelet in every pod |
| `KUBERNETES_SERVICE_PORT` | both | port of the API server; set by the kubelet in every pod |
| `HTTPS_PROXY`, `https_proxy` | both | proxy for the way to the API server, as for Go programs: the first that is not empty; `http://`, `https://` or `socks5://`, with user and password. `proxy-url` of the kubeconfig takes precedence |
| `HTTP_PROXY`, `http_proxy` | both | the same, for an API server whose URL begins with `http://` |
| `NO_PROXY`, `no_proxy` | both | API servers that are reached directly: names, domains, addresses and networks (`10.0.0.0/8`) with commas between, or `*`; loopback addresses always are |
| `SSL_CERT_FILE`, `SSL_CERT_DIR` | both | public CAs, which are trusted where a kubeconfig has no CA data |
| `POD_NAMESPACE` | both | default namespace of the Leases; without it the namespace of the ServiceAccount, else `default`. Also on spans |
| `POD_NAME` | both | the operator's name in Leases and in the status (`--identity`). In drop-in mode only on spans: the Lease then has \
the host name, as with the sidecar |
| `POD_UID` | both | on spans |
| `NODE_NAME` | both | on spans |
| `LOG_LEVEL` | the operator | `--log-level` |
| `LOG_FORMAT` | the operator | `--log-format` |

## Exit codes

| Code | When |
|---|---|
| 0 | it received SIGTERM or SIGINT, and all running calls had ended and were recorded; `--help`, `--version`, `crd` |
| 1 | it cannot start (no cluster is configured, the kubeconfig cannot be read, the address of `--http-endpoint` is in use, a log \
filter is invalid); or it cancelled calls that still ran, shortly before the end of `--shutdown-grace-period` or at a second signal; or \
a task that all drivers need ended, because of a bug, as the log says |
| 2 | an unknown flag, or a value of the wrong form; the message names it |

An unreachable API server or driver, a missing CRD, a lost Lease and an invalid AttacherConfig do not end the process: it reports
the problem and retries.
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

/// The rows of [`sidecar_flags::usage`]: name and kind, help, default.
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
    for [name, default, help] in drop_in_rows(&sidecar_flags::usage()) {
        writeln!(text, "| `{name}` | {default} | {help} |")?;
    }
    text.push_str(ENVIRONMENT);
    Ok(text)
}

#[test]
fn the_document_is_what_the_command_lines_say() {
    let generated = document().expect("a text can be written");
    if std::env::var_os("UPDATE").is_some_and(|value| value == "1") {
        std::fs::write(PATH, &generated).expect("the file can be written");
    }
    let committed = std::fs::read_to_string(PATH).expect("docs/reference/FLAGS.md can be read");
    assert!(
        committed == generated,
        "docs/reference/FLAGS.md is stale: run `make generate`"
    );
}

#[test]
fn every_flag_has_its_row() {
    let text = document().expect("a text can be written");
    for row in [
        "| `--kube-api-timeout DURATION` |  |",
        "| `--log-level LEVEL` | `info` | `LOG_LEVEL` |",
        "| `--version` |",
        "| `--csi-address string` | `/run/csi/socket` |",
        "| `--retry-interval-max duration` | `5m0s` |",
    ] {
        assert!(text.contains(row), "{row} is not in {text}");
    }
    let rows = drop_in_rows(&sidecar_flags::usage());
    assert_eq!(rows.len(), sidecar_flags::usage().matches("\n  -").count());
    assert!(rows.iter().all(|row| !row[2].is_empty()), "{rows:?}");
}

/// A flag of the sidecar, such as `--v=5`, would turn the whole operator into the drop-in mode: the chart refuses it.
#[test]
fn the_chart_takes_the_flags_of_the_operator_alone() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/charts/csi-attacher-operator/values.schema.json"
    );
    let schema = std::fs::read_to_string(path).expect("values.schema.json can be read");
    let schema: serde_json::Value = serde_json::from_str(&schema).expect("values.schema.json is JSON");
    let command = Cli::command();
    let names: Vec<_> = command.get_arguments().filter_map(Arg::get_long).collect();
    assert_eq!(
        schema["properties"]["extraArgs"]["items"]["pattern"],
        format!("^--({})=", names.join("|"))
    );
}
