//! What a claim and its class become: request and PersistentVolume.

use serde_json::{Value, json};
use std::collections::BTreeMap;

use crate::provision::tests::builders::{ClaimWorld, IDENTITY, NAME, claim_of, driver, plan_of, world};
use crate::provision::tests::tally;
use crate::provision::{AnsweredVolume, ClaimAccessType, CreatePlan, NewVolume, persistent_volume};

const RESERVED: &str = "csi.storage.k8s.io/";

/// Parameters of a class; the keys that begin with a dot are reserved ones.
fn parameters(world: ClaimWorld, pairs: &[(&str, &str)]) -> ClaimWorld {
    let all: Value = pairs
        .iter()
        .map(|(key, value)| {
            let key = key
                .strip_prefix('.')
                .map_or_else(|| (*key).to_owned(), |key| format!("{RESERVED}{key}"));
            (key, json!(value))
        })
        .collect();
    world.class("/parameters", all)
}

fn modes(modes: &[&str]) -> ClaimWorld {
    world().set("/spec/accessModes", json!(modes))
}

fn with_many_writers(mut world: ClaimWorld) -> ClaimWorld {
    world.driver.capabilities.single_node_multi_writer = true;
    world
}

fn request(plan: &CreatePlan) -> Value {
    let capability = |it: &crate::provision::VolumeCapability| match &it.access {
        ClaimAccessType::Block => json!([format!("{:?}", it.mode), "block"]),
        ClaimAccessType::Mount { fs_type, flags } => json!([format!("{:?}", it.mode), fs_type, flags]),
    };
    let sent: BTreeMap<&str, &str> = plan.parameters.iter().collect();
    json!({
        "name": plan.name, "bytes": plan.required_bytes, "parameters": sent,
        "capabilities": plan.capabilities.iter().map(capability).collect::<Vec<_>>(),
    })
}

/// The PersistentVolume for an answer of this size.
fn saved(world: &ClaimWorld, bytes: i64) -> Value {
    let answer = AnsweredVolume {
        handle: "test-volume-id".into(),
        capacity_bytes: bytes,
        ..AnsweredVolume::default()
    };
    let volume = NewVolume::of_answer(&plan_of(world), Some(answer)).unwrap();
    persistent_volume(&claim_of(&world.claim), &volume, &driver(), IDENTITY)
}

/// Name, what is observed, and fields of the request and of the PersistentVolume.
type Row = (&'static str, ClaimWorld, Value);

/// TestProvision, which is TestShouldProvision as well: what is provisioned. 8 more rows there are of distributed provisioning; the two
/// which send the parameters of a VolumeAttributesClass belong to a later slice.
#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn what_is_asked_for_and_saved() {
    let fs = |world| parameters(world, &[("fstype", "ext3")]);
    let by_default = |world: ClaimWorld| world.with(|world| world.policy.default_fs_type = "ext4".into());
    let told = |world: ClaimWorld| world.with(|world| world.policy.create_metadata = true);
    let read_only = |world: ClaimWorld| world.with(|world| world.policy.read_only_many = true);
    let secret = |name: &str, namespace: &str| json!({"name": name, "namespace": namespace});
    let default_secret = [(".secret-name", "default-secret"), (".secret-namespace", "default-ns")];
    let of_claim = [(".secret-name", "${pvc.name}"), (".secret-namespace", "default-ns")];
    let families = [
        (".provisioner-secret-name", "provisioner"),
        (".provisioner-secret-namespace", "default"),
        (".controller-publish-secret-name", "publish"),
        (".controller-publish-secret-namespace", "default"),
        (".node-stage-secret-name", "stage"),
        (".node-stage-secret-namespace", "default"),
        (".node-publish-secret-name", "node-publish"),
        (".node-publish-secret-namespace", "default"),
        (".controller-expand-secret-name", "expand"),
        (".controller-expand-secret-namespace", "default"),
        (".node-expand-secret-name", "node-expand"),
        (".node-expand-secret-namespace", "default"),
        (".controller-modify-secret-name", "modify"),
        (".controller-modify-secret-namespace", "default"),
    ];
    let all_are = |name: &str| {
        json!({
            "/spec/csi/controllerPublishSecretRef": secret(name, "default-ns"),
            "/spec/csi/nodeStageSecretRef": secret(name, "default-ns"),
            "/spec/csi/nodePublishSecretRef": secret(name, "default-ns"),
            "/spec/csi/controllerExpandSecretRef": secret(name, "default-ns"),
            "/spec/csi/nodeExpandSecretRef": secret(name, "default-ns"),
        })
    };
    let rows: Vec<Row> = vec![
        (
            "plain",
            fs(world()),
            json!({
                "/name": NAME, "/bytes": 1 << 30, "/parameters": {"fstype": "ext3"},
                "/spec/csi/fsType": "ext3", "/spec/csi/volumeHandle": "test-volume-id",
                "/spec/persistentVolumeReclaimPolicy": "Delete",
                "/metadata/annotations/volume.kubernetes.io~1provisioner-deletion-secret-name": "",
                "/spec/csi/volumeAttributes/storage.kubernetes.io~1csiProvisionerIdentity": IDENTITY,
            }),
        ),
        (
            "metadata",
            told(fs(world())),
            json!({
                "/parameters": {
                    "fstype": "ext3", "csi.storage.k8s.io/pvc/name": "data", "csi.storage.k8s.io/pvc/namespace": "web",
                    "csi.storage.k8s.io/pv/name": NAME,
                },
                "/spec/csi/fsType": "ext3",
            }),
        ),
        (
            "reserved key of the file system",
            parameters(world(), &[(".fstype", "ext3")]),
            json!({"/parameters": {}, "/spec/csi/fsType": "ext3"}),
        ),
        (
            "ReadWriteMany",
            by_default(modes(&["ReadWriteMany"])),
            json!({"/capabilities": [["MultiNodeMultiWriter", "ext4", []]], "/spec/accessModes": ["ReadWriteMany"]}),
        ),
        (
            "ReadOnlyMany",
            by_default(modes(&["ReadOnlyMany"])),
            json!({"/capabilities": [["MultiNodeReaderOnly", "ext4", []]], "/spec/csi/readOnly": null}),
        ),
        (
            "ReadOnlyMany, published read-only",
            read_only(by_default(modes(&["ReadOnlyMany"]))),
            json!({"/capabilities": [["MultiNodeReaderOnly", "ext4", []]], "/spec/csi/readOnly": true}),
        ),
        (
            "ReadWriteOnce",
            by_default(modes(&["ReadWriteOnce"])),
            json!({"/capabilities": [["SingleNodeWriter", "ext4", []]], "/spec/accessModes": ["ReadWriteOnce"]}),
        ),
        (
            "ReadWriteOnce, with SINGLE_NODE_MULTI_WRITER",
            with_many_writers(by_default(modes(&["ReadWriteOnce"]))),
            json!({"/capabilities": [["SingleNodeMultiWriter", "ext4", []]]}),
        ),
        (
            "ReadWriteOncePod, with SINGLE_NODE_MULTI_WRITER",
            with_many_writers(by_default(modes(&["ReadWriteOncePod"]))),
            json!({
                "/capabilities": [["SingleNodeSingleWriter", "ext4", []]], "/spec/accessModes": ["ReadWriteOncePod"],
            }),
        ),
        (
            "two modes",
            by_default(modes(&["ReadOnlyMany", "ReadWriteOnce"])),
            json!({
                "/capabilities": [["MultiNodeReaderOnly", "ext4", []], ["SingleNodeWriter", "ext4", []]],
                "/spec/accessModes": ["ReadOnlyMany", "ReadWriteOnce"],
            }),
        ),
        (
            "Secrets",
            parameters(world(), &families),
            json!({
                "/parameters": {},
                "/metadata/annotations/volume.kubernetes.io~1provisioner-deletion-secret-name": "provisioner",
                "/metadata/annotations/volume.kubernetes.io~1controller-modify-secret-name": "modify",
                "/spec/csi/controllerPublishSecretRef": secret("publish", "default"),
                "/spec/csi/nodeStageSecretRef": secret("stage", "default"),
                "/spec/csi/nodePublishSecretRef": secret("node-publish", "default"),
                "/spec/csi/controllerExpandSecretRef": secret("expand", "default"),
                "/spec/csi/nodeExpandSecretRef": secret("node-expand", "default"),
            }),
        ),
        (
            "default Secret",
            parameters(world(), &default_secret),
            all_are("default-secret"),
        ),
        (
            "default Secret from a template",
            parameters(world(), &of_claim),
            all_are("data"),
        ),
        (
            "Filesystem",
            by_default(world().set("/spec/volumeMode", "Filesystem")),
            json!({"/spec/volumeMode": "Filesystem", "/spec/csi/fsType": "ext4"}),
        ),
        (
            "Block",
            by_default(world().set("/spec/volumeMode", "Block")),
            json!({
                "/capabilities": [["SingleNodeWriter", "block"]],
                "/spec/volumeMode": "Block", "/spec/csi/fsType": null,
            }),
        ),
        (
            "mount options",
            by_default(world().class("/mountOptions", json!(["foo=bar", "baz=qux"]))),
            json!({
                "/capabilities": [["SingleNodeWriter", "ext4", ["foo=bar", "baz=qux"]]],
                "/spec/mountOptions": ["foo=bar", "baz=qux"],
            }),
        ),
        (
            "an answer of 0 bytes",
            fs(world()),
            json!({"/spec/capacity/storage": "1Gi"}),
        ),
    ];
    for (name, world, wanted) in &rows {
        let bytes = if *name == "plain" { 1 << 30 } else { 0 };
        let (asked, made) = (request(&plan_of(world)), saved(world, bytes));
        for (path, value) in wanted.as_object().unwrap() {
            let found = asked.pointer(path).or(made.pointer(path));
            assert_eq!(found.unwrap_or(&Value::Null), value, "{name}: {path}");
        }
    }
    tally("TestProvision", rows.len());
}
