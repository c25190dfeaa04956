//! The flags of the real sidecar, as its last three minor versions list them in their `--help`.

use super::super::flags::parse;
use super::super::table::{BOOLEAN, Flag, FlagOwner, Flags};
use super::super::{DropInCommand, read};
use super::arguments;

const VERSIONS: [(&str, &str); 3] = [
    ("v4.12", include_str!("sidecar/v4.12.flags")),
    ("v4.11", include_str!("sidecar/v4.11.flags")),
    ("v4.10", include_str!("sidecar/v4.10.flags")),
];

/// Name, type and default of each flag.
fn rows(text: &'static str) -> Vec<[&'static str; 3]> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let rows = lines.map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        words.try_into().unwrap_or_else(|words| panic!("{words:?}"))
    });
    rows.collect()
}

/// What a flag without a default has in place of one.
fn zero(kind: &str, name: &str) -> &'static str {
    match kind {
        "bool" => "false",
        "int" => "0",
        _ if name == "v" || name.ends_with("-buffer-size") => "0",
        _ => "",
    }
}

#[test]
fn each_flag_of_the_sidecar_is_known_with_its_type_and_default() {
    for (version, text) in VERSIONS {
        let rows = rows(text);
        assert!(rows.len() >= 32, "{version}: {}", rows.len());
        for [name, kind, default] in rows {
            let flag = Flag::named(name).unwrap_or_else(|| panic!("{version}: no flag -{name}"));
            assert_ne!(flag.owner, FlagOwner::Operator, "{version}: -{name}");
            let same = match flag.kind {
                BOOLEAN => kind == "bool",
                // Go writes `value` for every type of a program's own.
                ours => ours == kind || kind == "value",
            };
            assert!(same, "{version}: -{name} is of type {kind} there, {:?} here", flag.kind);

            let default = if default == "-" { zero(kind, name) } else { default };
            for text in [format!("--{name}={default}"), format!("-{name}={default}")] {
                let Some(mut flags) = parse(&arguments(&text)).unwrap() else {
                    panic!("{text}: help");
                };
                assert!(flags.given.remove(name), "{text}");
                assert_eq!(flags, Flags::default(), "{version}: {text} is not our default");
            }
        }
    }
}

#[test]
fn no_flag_of_the_sidecar_is_missing_in_its_newest_version() {
    let there: Vec<&str> = rows(VERSIONS[0].1).iter().map(|row| row[0]).collect();
    let ours = super::super::table::sorted();
    let invented: Vec<&str> = ours
        .iter()
        .filter(|flag| flag.owner != FlagOwner::Operator && !there.contains(&flag.name))
        .map(|flag| flag.name)
        .collect();
    assert!(invented.is_empty(), "{invented:?}");
}

#[test]
fn options_of_the_log_are_refused_as_the_sidecar_refuses_them() {
    let one = |path: &str| format!("{path}: Forbidden: Feature LoggingAlphaOptions is disabled");
    let [text_split, text_buffer, json_split, json_buffer] = [
        "options.text.splitStream",
        "options.text.infoBufferSize",
        "options.json.splitStream",
        "options.json.infoBufferSize",
    ]
    .map(one);
    for (given, expected) in [
        ("--log-text-split-stream", text_split.clone()),
        (
            "--log-text-split-stream=0 --log-text-split-stream=1",
            text_split.clone(),
        ),
        ("--log-text-info-buffer-size=1", text_buffer.clone()),
        ("--log-json-split-stream=true --version", json_split.clone()),
        ("--log-json-info-buffer-size=8Ki", json_buffer.clone()),
        (
            "--feature-gates=LoggingAlphaOptions=true --log-json-split-stream",
            json_split.clone(),
        ),
        (
            "--log-json-info-buffer-size 1 --log-json-split-stream --log-text-split-stream --log-text-info-buffer-size=1m \
             --worker-threads=0",
            format!("[{text_split}, {text_buffer}, {json_split}, {json_buffer}]"),
        ),
    ] {
        let error = read(&arguments(given)).unwrap_err().to_string();
        assert_eq!(error, format!("LoggingConfiguration is invalid: {expected}"), "{given}");
    }
    let given = "--log-text-split-stream=1 --log-text-split-stream=0 --log-json-info-buffer-size=0Ki";
    let Ok(DropInCommand::Serve(settings)) = read(&arguments(given)) else {
        panic!("{given} is refused");
    };
    assert_eq!(
        settings.warnings,
        ["accepted, but without effect here: --log-json-info-buffer-size, --log-text-split-stream"]
    );
}

/// The arguments of another sidecar start no second attacher.
#[test]
fn a_gate_that_the_sidecar_does_not_know_is_refused() {
    for (given, refused) in [
        ("Topology=true", Some("Topology")),
        ("Topology=false", Some("Topology")),
        (
            "CrossNamespaceVolumeDataSource=true",
            Some("CrossNamespaceVolumeDataSource"),
        ),
        ("VolumeAttributesClass=true", Some("VolumeAttributesClass")),
        (
            "RecoverVolumeExpansionFailure=true",
            Some("RecoverVolumeExpansionFailure"),
        ),
        // The gate that both have does not hide the other one.
        ("ReleaseLeaderElectionOnExit=true,Topology=true", Some("Topology")),
        (
            "ReleaseLeaderElectionOnExit=true --feature-gates=Topology=true",
            Some("Topology"),
        ),
        ("Topology=true --version", Some("Topology")),
        ("topology=true", Some("topology")),
        ("ReleaseLeaderElectionOnExit=true", None),
        ("MutableCSINodeAllocatableCount=true", None),
        ("AllAlpha=true,AllBeta=false", None),
        ("APIServerTracing=true,ComponentStatusz=false", None),
    ] {
        let given = format!("--csi-address=/s --feature-gates={given}");
        let read = read(&arguments(&given)).map(drop).map_err(|error| error.to_string());
        let expected = match refused {
            Some(gate) => Err(format!(
                "unrecognized feature gate: {gate}: csi-attacher has no gate of this name. This image takes the place of csi-attacher \
                 only; provisioning is switched on with spec.provisioning of an AttacherConfig"
            )),
            None => Ok(()),
        };
        assert_eq!(read, expected, "{given}");
    }
}

/// The form of quantities; the real sidecar says of each what is expected here (`tests/it/drop_in.rs` asks it).
#[test]
fn quantities_are_read_as_kubernetes_reads_them() {
    const FORM: &str = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
    const SUFFIX: &str = "unable to parse quantity's suffix";
    for (quantity, complaint) in [
        ("", FORM),
        ("zzz", FORM),
        ("5KiB", FORM),
        ("1.2.3", FORM),
        ("0x1", FORM),
        ("1e1.5", FORM),
        ("5K", SUFFIX),
        ("1e", SUFFIX),
    ] {
        let given = format!("--log-text-info-buffer-size={quantity}");
        let error = parse(&arguments(&given)).unwrap_err().to_string();
        let expected = format!("invalid value {quantity:?} for flag -log-text-info-buffer-size: {complaint}");
        assert_eq!(error, expected);
    }
    for zero in ["0", "+0", "-0", "0.000", ".", "0Ki", "0e3", "0E", "0m"] {
        assert!(
            read(&arguments(&format!("--log-text-info-buffer-size={zero}"))).is_ok(),
            "{zero}"
        );
    }
    for other in [
        "1",
        "-1",
        "1.5",
        "0.5",
        "1n",
        "5k",
        "1E",
        "1e3",
        "1e-3",
        "99999999999999999999",
    ] {
        let given = format!("--log-text-info-buffer-size={other}");
        let error = read(&arguments(&given)).unwrap_err().to_string();
        assert!(
            error.contains("options.text.infoBufferSize: Forbidden"),
            "{other}: {error}"
        );
    }
}
