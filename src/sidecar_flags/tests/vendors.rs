//! The arguments that vendors give their attacher: each is a set of flags that this program takes, without a change.

use std::collections::BTreeMap;

use super::super::{DropIn, DropInCommand, is_drop_in, read};
use super::arguments;

macro_rules! vendors {
    ($($name:literal),+ $(,)?) => {
        [$(($name, include_str!(concat!("vendors/", $name, ".args")))),+]
    };
}

const VENDORS: [(&str, &str); 9] = vendors!(
    "aws-ebs",
    "azuredisk",
    "ceph-csi-rbd",
    "cinder",
    "gcp-pd",
    "hostpath",
    "longhorn",
    "rook",
    "vsphere",
);

/// What the head says, and the arguments as the kubelet fills them in.
fn parts(text: &str) -> (BTreeMap<&str, &str>, String) {
    let head = text
        .lines()
        .filter_map(|line| line.strip_prefix("# ")?.split_once(": "));
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let given = lines.collect::<Vec<_>>().join(" ");
    let filled = given
        .replace("$(ADDRESS)", "unix:///csi/csi.sock")
        .replace("$(POD_NAMESPACE)", "longhorn-system")
        .replace("$(PDCSI_NAMESPACE)", "gce-pd-csi-driver");
    (head.collect(), filled)
}

fn settings(name: &str, given: &str) -> DropIn {
    match read(&arguments(given)) {
        Ok(DropInCommand::Serve(settings)) => *settings,
        other => panic!("{name}: {other:?}"),
    }
}

#[test]
fn each_vendor_s_arguments_are_taken_as_they_are() {
    for (name, text) in VENDORS {
        let (head, given) = parts(text);
        for key in ["repository", "file", "version", "lease"] {
            assert!(head.contains_key(key), "{name} does not say its {key}");
        }
        assert!(!given.contains('$'), "{name}: {given}");
        assert!(is_drop_in(&arguments(&given)), "{name}");
        let settings = settings(name, &given);
        assert!(settings.warnings.is_empty(), "{name}: {:?}", settings.warnings);

        // Whether and where it competes for the Lease is what the head says.
        let lease = head["lease"];
        let Some(election) = settings.election else {
            assert!(lease.starts_with("none"), "{name}: {lease}");
            continue;
        };
        match lease.strip_suffix(", as a flag") {
            Some(namespace) => assert_eq!(election.namespace, namespace, "{name}"),
            None => assert!(
                lease.ends_with("that of the pod") && election.namespace.is_empty(),
                "{name}"
            ),
        }
    }
}

#[test]
fn the_deadlines_are_the_vendors() {
    let expected = [
        ("aws-ebs", 360),
        ("azuredisk", 1200),
        ("ceph-csi-rbd", 15),
        ("cinder", 180),
        ("gcp-pd", 250),
        ("hostpath", 15),
        ("longhorn", 110),
        ("rook", 150),
        ("vsphere", 300),
    ];
    let found = VENDORS.map(|(name, text)| (name, settings(name, &parts(text).1).driver.timeouts.publish.as_secs()));
    assert_eq!(found, expected);
}
