//! The flags of the operator beside those of the real sidecar.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::support::controlplane::programs;
use crate::support::{Error, Result};

const LISTED: &str = include_str!("../../../src/sidecar_flags/tests/sidecar/v4.12.flags");

fn run(program: &Path, arguments: &[&str]) -> Result<Output> {
    let mut command = Command::new(program);
    let output = command.args(arguments).output();
    output.map_err(Error::from)
}

async fn sidecar() -> Result<PathBuf> {
    let [program] = programs::locate(["csi-attacher"]).await?;
    Ok(program)
}

/// The list that the unit tests read is that of the program, and it is of this version.
#[tokio::test]
async fn the_list_of_flags_is_that_of_the_real_sidecar() -> Result<()> {
    let program = sidecar().await?;
    let help = String::from_utf8_lossy(&run(&program, &["--help"])?.stderr).into_owned();
    let flags = |text: &str, begin: &str| -> Vec<String> {
        let lines = text.lines().filter_map(|line| line.strip_prefix(begin));
        lines
            .filter_map(|line| line.split_whitespace().next())
            .map(str::to_owned)
            .collect()
    };
    let listed: String = LISTED
        .lines()
        .filter(|line| !line.starts_with('#'))
        .collect::<Vec<_>>()
        .join("\n");
    assert_eq!(flags(&listed, ""), flags(&help, "  -"));
    for row in listed.lines() {
        let default = row.rsplit(' ').next().unwrap_or_default();
        if default != "-" {
            let said = [format!("(default {default})"), format!("(default {default:?})")];
            assert!(said.iter().any(|said| help.contains(said)), "{row}");
        }
    }
    let version = String::from_utf8_lossy(&run(&program, &["--version"])?.stdout).into_owned();
    assert!(
        version.trim_end().ends_with(" v4.12.0"),
        "{version}: a new version needs a new list"
    );
    Ok(())
}

/// Every gate of the sidecar's help is accepted by both, and those of other sidecars by neither.
#[tokio::test]
async fn feature_gates_are_answered_as_by_the_real_sidecar() -> Result<()> {
    let program = sidecar().await?;
    let help = String::from_utf8_lossy(&run(&program, &["--help"])?.stderr).into_owned();
    let gates = help.lines().filter_map(|line| line.split_once("=true|false"));
    let known: Vec<String> = gates
        .filter_map(|(name, _)| name.split_whitespace().last())
        .map(|name| format!("{name}=true"))
        .collect();
    assert!(known.len() > 30, "{help}");
    let programs = [program, PathBuf::from(env!("CARGO_BIN_EXE_csi-attacher-operator"))];
    let mut rows = vec![(known.join(","), None)];
    for gate in [
        "Topology",
        "CrossNamespaceVolumeDataSource",
        "VolumeAttributesClass",
        "allAlpha",
    ] {
        rows.push((format!("{gate}=true"), Some(gate)));
        rows.push((format!("ReleaseLeaderElectionOnExit=true,{gate}=false"), Some(gate)));
    }
    for (given, refused) in rows {
        for program in &programs {
            let output = run(program, &[&format!("-feature-gates={given}"), "-version"])?;
            let said = String::from_utf8_lossy(&output.stderr);
            let code = i32::from(refused.is_some());
            assert_eq!(
                output.status.code(),
                Some(code),
                "{}: {given}: {said}",
                program.display()
            );
            let words = refused.map_or_else(String::new, |gate| format!("unrecognized feature gate: {gate}"));
            assert!(said.contains(&words), "{}: {given}: {said}", program.display());
        }
    }
    Ok(())
}

/// The exit code and the words of both for options of the log.
#[tokio::test]
async fn options_of_the_log_are_answered_as_by_the_real_sidecar() -> Result<()> {
    const FORBIDDEN: &str = "Forbidden: Feature LoggingAlphaOptions is disabled";
    const FORM: &str =
        ": quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'\nUsage of ";
    const SUFFIX: &str = ": unable to parse quantity's suffix\nUsage of ";
    let programs = [
        sidecar().await?,
        PathBuf::from(env!("CARGO_BIN_EXE_csi-attacher-operator")),
    ];
    for (given, code, words) in [
        (&["-log-text-split-stream"][..], 1, "options.text.splitStream: "),
        (&["-log-text-split-stream=1", "-version"], 1, FORBIDDEN),
        (&["-log-json-info-buffer-size=8Ki"], 1, "options.json.infoBufferSize: "),
        (&["-log-text-info-buffer-size=-1"], 1, FORBIDDEN),
        (&["-log-text-info-buffer-size=1e-1"], 1, FORBIDDEN),
        (
            &[
                "-log-json-split-stream",
                "-log-json-info-buffer-size=1",
                "-log-text-split-stream",
            ],
            1,
            "[options.text.splitStream: Forbidden: Feature LoggingAlphaOptions is disabled, options.json.splitStream: ",
        ),
        (&["-log-text-info-buffer-size="], 2, FORM),
        (&["-log-text-info-buffer-size=5KiB"], 2, FORM),
        (&["-log-text-info-buffer-size=1.2.3"], 2, FORM),
        (&["-log-text-info-buffer-size=5K"], 2, SUFFIX),
        (&["-log-text-info-buffer-size=++1"], 2, SUFFIX),
        (&["-log-text-info-buffer-size=1-1"], 2, SUFFIX),
        (
            &[
                "-log-text-info-buffer-size=0Ki",
                "-log-json-split-stream=false",
                "-version",
            ],
            0,
            "",
        ),
        (&["-log-text-info-buffer-size=.", "-version"], 0, ""),
        (&["-log-text-info-buffer-size=+", "-version"], 0, ""),
        (&["-log-text-info-buffer-size=e5", "-version"], 0, ""),
    ] {
        for program in &programs {
            let output = run(program, given)?;
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(
                output.status.code(),
                Some(code),
                "{}: {given:?}: {said}",
                program.display()
            );
            assert!(said.contains(words), "{}: {given:?}: {said}", program.display());
            assert_eq!(
                code == 1,
                said.contains("LoggingConfiguration is invalid"),
                "{given:?}: {said}"
            );
        }
    }
    Ok(())
}
