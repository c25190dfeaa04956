//! What the parameters of a class, the size of a claim and its access modes become in a request.

use serde_json::json;
use std::collections::BTreeMap;

use super::builders::{ClaimWorld, NAME, UID, class_with, plan_of, world};
use super::tally;
use crate::api::EventType;
use crate::decide::AccessMode;
use crate::provision::event::{ProvisionEventReason, deprecated_keys};
use crate::provision::{
    ClaimAccessType, ClassParameters, VolumeCapability, VolumeNaming, format_bytes, is_prefix, parse_bytes,
};

type Parameters<'a> = &'a [(&'a str, &'a str)];

/// TestStripPrefixedCSIParams.
#[test]
fn reserved_keys_are_not_sent() {
    let families = [
        "csi.storage.k8s.io/secret-name",
        "csi.storage.k8s.io/provisioner-secret-name",
        "csi.storage.k8s.io/controller-publish-secret-name",
        "csi.storage.k8s.io/node-stage-secret-name",
        "csi.storage.k8s.io/node-publish-secret-name",
        "csi.storage.k8s.io/controller-expand-secret-name",
        "csi.storage.k8s.io/node-expand-secret-name",
        "csi.storage.k8s.io/controller-modify-secret-name",
    ];
    let all: Vec<(String, &str)> = families
        .iter()
        .flat_map(|key| [((*key).to_owned(), "s"), (key.replace("-name", "-namespace"), "ns")])
        .chain([
            ("csi.storage.k8s.io/fstype".to_owned(), "xfs"),
            ("kept".to_owned(), "v"),
        ])
        .collect();
    let all: Vec<(&str, &str)> = all.iter().map(|(key, value)| (key.as_str(), *value)).collect();
    let deprecated = [
        ("csiProvisionerSecretName", "s"),
        ("csiProvisionerSecretNamespace", "ns"),
        ("fsType", "xfs"),
    ];
    let rows: [(Parameters<'_>, Option<Parameters<'_>>); 7] = [
        (
            &[("csiFoo", "bar"), ("bim", "baz")],
            Some(&[("csiFoo", "bar"), ("bim", "baz")]),
        ),
        (
            &[
                ("csi.storage.k8s.io/controller-publish-secret-name", "s"),
                ("csi.storage.k8s.io/controller-publish-secret-namespace", "n"),
                ("bim", "baz"),
            ],
            Some(&[("bim", "baz")]),
        ),
        (
            &[("foo", "csi.storage.k8s.io/fstype")],
            Some(&[("foo", "csi.storage.k8s.io/fstype")]),
        ),
        (&all, Some(&[("kept", "v")])),
        (&deprecated, Some(&deprecated)),
        (&[("csi.storage.k8s.io/unknown", "x"), ("bim", "baz")], None),
        (&[], Some(&[])),
    ];
    for (parameters, wanted) in rows {
        let class = class_with(parameters);
        let found = ClassParameters::of(&class).ok().map(|parameters| parameters.sent);
        let wanted = wanted.map(|wanted| wanted.iter().copied().collect::<BTreeMap<_, _>>());
        assert_eq!(found, wanted, "{parameters:?}");
    }
    tally("TestStripPrefixedCSIParams", rows.len());
}

#[test]
fn keys_that_the_role_writes_are_unknown_in_a_class() {
    for key in ["pvc/name", "pvc/namespace", "pv/name", ""] {
        let class = class_with(&[(&format!("csi.storage.k8s.io/{key}"), "x")]);
        let error = ClassParameters::of(&class).unwrap_err();
        assert!(error.to_string().contains("found unknown parameter key"), "{error}");
    }
}

#[test]
fn deprecated_keys_are_told_with_those_that_took_their_place() {
    let told = |parameters| deprecated_keys(&class_with(parameters));
    assert_eq!(
        told(&[
            ("csi.storage.k8s.io/fstype", "xfs"),
            ("fstypes", "x"),
            ("csiprovisionersecretname", "s")
        ]),
        None
    );
    let note = told(&[("FSTYPE", "xfs"), ("csiNodePublishSecretNamespace", "ns")]).unwrap();
    let fs_type = "FSTYPE in place of csi.storage.k8s.io/fstype";
    let secret = "csiNodePublishSecretNamespace in place of csi.storage.k8s.io/node-publish-secret-namespace";
    // Some drivers read `fstype` themselves, and the new key does not reach them.
    for words in [
        fs_type,
        secret,
        "also sent to the driver",
        "keep an old key where the driver documents it",
    ] {
        assert!(note.contains(words), "{words}: {note}");
    }
    assert_eq!(ProvisionEventReason::DeprecatedParameters.level(), EventType::Normal);
}

fn fs_type(world: &ClaimWorld) -> String {
    match &plan_of(world).capabilities[0].access {
        ClaimAccessType::Block => "block".to_owned(),
        ClaimAccessType::Mount { fs_type, .. } => fs_type.to_string(),
    }
}

/// TestFSTypeProvision.
#[test]
fn the_file_system_type() {
    let with = |default: &str, parameters: serde_json::Value| {
        let world = world().class("/parameters", parameters);
        fs_type(&world.with(|world| world.policy.default_fs_type = default.into()))
    };
    assert_eq!(with("ext4", json!({})), "ext4");
    assert_eq!(with("ext4", json!({"fstype": "xfs"})), "xfs");
    assert_eq!(with("", json!({})), "");
    assert_eq!(with("", json!({"fstype": "xfs"})), "xfs");
    tally("TestFSTypeProvision", 4);
    assert_eq!(with("ext4", json!({"csi.storage.k8s.io/fstype": "xfs"})), "xfs");
    assert_eq!(with("ext4", json!({"FSType": ""})), "ext4", "an empty one is none");
    let block = world()
        .set("/spec/volumeMode", "Block")
        .class("/parameters", json!({"fstype": "xfs"}));
    assert_eq!(fs_type(&block), "block");
    assert_eq!(&*plan_of(&block).volume.fs_type, "");
}

/// TestBytesToQuantity.
#[test]
fn sizes_are_written_in_the_binary_format() {
    let rows = [
        (5_970_004_541, "5970004541"),
        (11 << 29, "5632Mi"),
        (5 << 30, "5Gi"),
        (5_484_052, "5484052"),
        (102_400, "100Ki"),
    ];
    for (bytes, text) in rows {
        assert_eq!(format_bytes(bytes), text);
    }
    tally("TestBytesToQuantity", rows.len());
    for (bytes, text) in [
        (0, "0"),
        (1, "1"),
        (1000, "1k"),
        (1023, "1023"),
        (1536, "1536"),
        (3 << 19, "1536Ki"),
        (i64::MAX, "9223372036854775807"),
    ] {
        assert_eq!(format_bytes(bytes), text);
    }
}

#[test]
fn sizes_are_read_and_rounded_up() {
    let rows = [
        ("1Gi", Some(1 << 30)),
        ("1", Some(1)),
        ("1.5Gi", Some(3 << 29)),
        ("0.5", Some(1)),
        ("1500m", Some(2)),
        ("1n", Some(1)),
        ("1e3", Some(1000)),
        ("1E3", Some(1000)),
        ("1E", Some(1_000_000_000_000_000_000)),
        ("12e-1", Some(2)),
        (".5k", Some(500)),
        ("5.", Some(5)),
        ("+1k", Some(1000)),
        ("7Ei", Some(7 << 60)),
        // 10.1Pi, as the API server writes it.
        ("11371589059110502400m", Some(11_371_589_059_110_503)),
        ("9223372036854775806000000001n", Some(i64::MAX)),
        ("9223372036854775807000000001n", None),
        ("8Ei", None),
        ("-1", None),
        ("", None),
        (".", None),
        ("1.2.3", None),
        ("1 Gi", None),
        ("1gi", None),
        ("1e99999999999", None),
        ("99999999999999999999", None),
        ("0", Some(0)),
    ];
    for (text, bytes) in rows {
        assert_eq!(parse_bytes(text), bytes, "{text}");
    }
    assert_eq!(parse_bytes(&"1".repeat(1 << 20)), None);
    assert_eq!(parse_bytes(&format!("1e{}", "9".repeat(1 << 20))), None);
    // The API server keeps zeros as they are written.
    let zeros = "0".repeat(100);
    assert_eq!(parse_bytes(&format!("{zeros}10Gi")), Some(10 << 30));
    assert_eq!(parse_bytes(&format!("1.5{zeros}Gi")), Some(3 << 29));
}

#[test]
fn each_access_mode_is_mapped_alone() {
    use AccessMode::{
        MultiNodeMultiWriter, MultiNodeReaderOnly, SingleNodeMultiWriter, SingleNodeSingleWriter, SingleNodeWriter,
    };
    let rows = [
        ("ReadWriteOnce", SingleNodeWriter, SingleNodeMultiWriter),
        ("ReadWriteOncePod", SingleNodeWriter, SingleNodeSingleWriter),
        ("ReadOnlyMany", MultiNodeReaderOnly, MultiNodeReaderOnly),
        ("ReadWriteMany", MultiNodeMultiWriter, MultiNodeMultiWriter),
    ];
    let modes = |world: &ClaimWorld| -> Vec<AccessMode> {
        let plan = plan_of(world);
        plan.capabilities
            .iter()
            .map(|VolumeCapability { mode, .. }| *mode)
            .collect()
    };
    for (name, coarse, fine) in rows {
        let world = world().set("/spec/accessModes", json!([name]));
        assert_eq!(modes(&world), [coarse]);
        let found = modes(&world.with(|world| world.driver.capabilities.single_node_multi_writer = true));
        assert_eq!(found, [fine]);
    }
    let two = world().set("/spec/accessModes", json!(["ReadOnlyMany", "ReadWriteOnce"]));
    assert_eq!(modes(&two), [MultiNodeReaderOnly, SingleNodeWriter]);
    // As external-provisioner: one for each entry.
    let same = world().set("/spec/accessModes", json!(["ReadWriteOnce"].repeat(16)));
    assert_eq!(modes(&same), [SingleNodeWriter; 16]);
}

#[test]
fn metadata_is_sent_when_it_is_asked_for() {
    let world = world().class("/parameters", json!({"pool": "a"}));
    let sent = |world: &ClaimWorld| -> Vec<String> {
        plan_of(world)
            .parameters
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect()
    };
    assert_eq!(sent(&world), ["pool=a"]);
    let names = world.with(|world| world.policy.create_metadata = true);
    assert_eq!(
        sent(&names),
        [
            &format!("csi.storage.k8s.io/pv/name={NAME}"),
            "csi.storage.k8s.io/pvc/name=data",
            "csi.storage.k8s.io/pvc/namespace=web",
            "pool=a",
        ]
    );
}

/// The names that external-provisioner makes, so that each finds the volumes of the other.
#[test]
fn names_are_made_from_the_uid() {
    let volume_name = |prefix: &str, uuid_length, uid: &str| VolumeNaming { prefix, uuid_length }.volume_name(uid);
    assert_eq!(&*volume_name("pvc", None, UID).unwrap(), NAME);
    assert_eq!(&*volume_name("pvc", Some(16), UID).unwrap(), "pvc-aaaaaaaa11112222");
    assert_eq!(&*volume_name("test", Some(5), "testid").unwrap(), "test-testi");
    assert_eq!(&*volume_name("k8s-", None, "testid").unwrap(), "k8s--testid");
    for uuid_length in [None, Some(16)] {
        let naming = VolumeNaming {
            prefix: "k8s-",
            uuid_length,
        };
        let name = naming.volume_name(UID).unwrap();
        assert_eq!(VolumeNaming::of_name(&name, UID), Some(naming));
        assert!(naming.is_trusted());
    }
    assert!(volume_name("pvc", None, "").is_err() && volume_name("pvc", Some(32), "short").is_err());
    assert!(volume_name("pvc", Some(0), UID).is_err());
    assert!(volume_name(&"p".repeat(100), None, UID).is_err());
    for (prefix, is_one) in [
        ("pvc", true),
        ("a.b-c", true),
        ("", false),
        ("-a", false),
        ("a-", true),
        ("a.b--", true),
        ("-", false),
        ("a.-", false),
        ("A", false),
        ("a/b", false),
        ("a..b", false),
        ("a.-b", false),
        ("a-.b", false),
    ] {
        assert_eq!(is_prefix(prefix), is_one, "{prefix}");
    }
    assert!(!is_prefix(&"a".repeat(64)));
}
