//! What a claim and its class become: request and PersistentVolume.

use serde_json::{Value, json};
use std::collections::BTreeMap;

use crate::provision::tests::builders::{ClaimWorld, IDENTITY, NAME, claim_of, driver, plan_of, world};
use crate::provision::tests::tally;
use crate::provision::{AnsweredVolume, ClaimAccessType, CreatePlan, NewVolume, persistent_volume};

const RESERVED: &str = "csi.storage.k8s.io/";

/// Parameters of a class; the keys that begin with a dot are reserved ones.
pub fn parameters(world: ClaimWorld, pairs: &[(&str, &str)]) -> ClaimWorld {
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

type Fields = Vec<(&'static str, Value)>;
/// Name, what is observed, size of the answer, fields of the request, fields of the PersistentVolume.
type Row = (&'static str, ClaimWorld, i64, Fields, Vec<(String, Value)>);

/// TestProvision, which is TestShouldProvision as well: what is provisioned. 8 more rows there are of distributed provisioning; the two
/// which send the parameters of a VolumeAttributesClass belong to a later slice.
#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn what_is_asked_for_and_saved() {
    let fs = |world| parameters(world, &[("fstype", "ext3")]);
    let by_default = |mut world: ClaimWorld| {
        world.policy.default_fs_type = "ext4".into();
        world
    };
    let told = |mut world: ClaimWorld| {
        world.policy.create_metadata = true;
        world
    };
    let read_only = |mut world: ClaimWorld| {
        world.policy.read_only_many = true;
        world
    };
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
    let deletion = "/metadata/annotations/volume.kubernetes.io~1provisioner-deletion-secret-name";
    let modify = "/metadata/annotations/volume.kubernetes.io~1controller-modify-secret-name";
    let all_are = |name: &str| {
        let reference = secret(name, "default-ns");
        [
            "controllerPublish",
            "nodeStage",
            "nodePublish",
            "controllerExpand",
            "nodeExpand",
        ]
        .map(|family| (format!("/spec/csi/{family}SecretRef"), reference.clone()))
    };
    let of_default = all_are("default-secret");
    let of_template = all_are("data");
    let fields = |all: &[(String, Value)]| all.to_vec();

    let rows: Vec<Row> = vec![
        (
            "plain",
            fs(world()),
            1 << 30,
            vec![
                ("/name", json!(NAME)),
                ("/bytes", json!(1 << 30)),
                ("/parameters", json!({"fstype": "ext3"})),
            ],
            vec![
                ("/spec/csi/fsType".into(), json!("ext3")),
                ("/spec/csi/volumeHandle".into(), json!("test-volume-id")),
                ("/spec/persistentVolumeReclaimPolicy".into(), json!("Delete")),
                (deletion.into(), json!("")),
                (
                    "/spec/csi/volumeAttributes/storage.kubernetes.io~1csiProvisionerIdentity".into(),
                    json!(IDENTITY),
                ),
            ],
        ),
        (
            "metadata",
            told(fs(world())),
            0,
            vec![(
                "/parameters",
                json!({
                    "fstype": "ext3", "csi.storage.k8s.io/pvc/name": "data", "csi.storage.k8s.io/pvc/namespace": "web",
                    "csi.storage.k8s.io/pv/name": NAME,
                }),
            )],
            vec![("/spec/csi/fsType".into(), json!("ext3"))],
        ),
        (
            "reserved key of the file system",
            parameters(world(), &[(".fstype", "ext3")]),
            0,
            vec![("/parameters", json!({}))],
            vec![("/spec/csi/fsType".into(), json!("ext3"))],
        ),
        (
            "ReadWriteMany",
            by_default(modes(&["ReadWriteMany"])),
            0,
            vec![("/capabilities", json!([["MultiNodeMultiWriter", "ext4", []]]))],
            vec![("/spec/accessModes".into(), json!(["ReadWriteMany"]))],
        ),
        (
            "ReadOnlyMany",
            by_default(modes(&["ReadOnlyMany"])),
            0,
            vec![("/capabilities", json!([["MultiNodeReaderOnly", "ext4", []]]))],
            vec![("/spec/csi/readOnly".into(), Value::Null)],
        ),
        (
            "ReadOnlyMany, published read-only",
            read_only(by_default(modes(&["ReadOnlyMany"]))),
            0,
            vec![("/capabilities", json!([["MultiNodeReaderOnly", "ext4", []]]))],
            vec![("/spec/csi/readOnly".into(), json!(true))],
        ),
        (
            "ReadWriteOnce",
            by_default(modes(&["ReadWriteOnce"])),
            0,
            vec![("/capabilities", json!([["SingleNodeWriter", "ext4", []]]))],
            vec![("/spec/accessModes".into(), json!(["ReadWriteOnce"]))],
        ),
        (
            "ReadWriteOnce, with SINGLE_NODE_MULTI_WRITER",
            with_many_writers(by_default(modes(&["ReadWriteOnce"]))),
            0,
            vec![("/capabilities", json!([["SingleNodeMultiWriter", "ext4", []]]))],
            vec![],
        ),
        (
            "ReadWriteOncePod, with SINGLE_NODE_MULTI_WRITER",
            with_many_writers(by_default(modes(&["ReadWriteOncePod"]))),
            0,
            vec![("/capabilities", json!([["SingleNodeSingleWriter", "ext4", []]]))],
            vec![("/spec/accessModes".into(), json!(["ReadWriteOncePod"]))],
        ),
        (
            "two modes",
            by_default(modes(&["ReadOnlyMany", "ReadWriteOnce"])),
            0,
            vec![(
                "/capabilities",
                json!([["MultiNodeReaderOnly", "ext4", []], ["SingleNodeWriter", "ext4", []]]),
            )],
            vec![("/spec/accessModes".into(), json!(["ReadOnlyMany", "ReadWriteOnce"]))],
        ),
        (
            "Secrets",
            parameters(world(), &families),
            0,
            vec![("/parameters", json!({}))],
            vec![
                (deletion.into(), json!("provisioner")),
                (modify.into(), json!("modify")),
                (
                    "/spec/csi/controllerPublishSecretRef".into(),
                    secret("publish", "default"),
                ),
                ("/spec/csi/nodeStageSecretRef".into(), secret("stage", "default")),
                (
                    "/spec/csi/nodePublishSecretRef".into(),
                    secret("node-publish", "default"),
                ),
                (
                    "/spec/csi/controllerExpandSecretRef".into(),
                    secret("expand", "default"),
                ),
                ("/spec/csi/nodeExpandSecretRef".into(), secret("node-expand", "default")),
            ],
        ),
        (
            "default Secret",
            parameters(world(), &default_secret),
            0,
            vec![],
            fields(&of_default),
        ),
        (
            "default Secret from a template",
            parameters(world(), &of_claim),
            0,
            vec![],
            fields(&of_template),
        ),
        (
            "Filesystem",
            by_default(world().set("/spec/volumeMode", "Filesystem")),
            0,
            vec![],
            vec![
                ("/spec/volumeMode".into(), json!("Filesystem")),
                ("/spec/csi/fsType".into(), json!("ext4")),
            ],
        ),
        (
            "Block",
            by_default(world().set("/spec/volumeMode", "Block")),
            0,
            vec![("/capabilities", json!([["SingleNodeWriter", "block"]]))],
            vec![
                ("/spec/volumeMode".into(), json!("Block")),
                ("/spec/csi/fsType".into(), Value::Null),
            ],
        ),
        (
            "mount options",
            by_default(world().class("/mountOptions", json!(["foo=bar", "baz=qux"]))),
            0,
            vec![(
                "/capabilities",
                json!([["SingleNodeWriter", "ext4", ["foo=bar", "baz=qux"]]]),
            )],
            vec![("/spec/mountOptions".into(), json!(["foo=bar", "baz=qux"]))],
        ),
        (
            "an answer of 0 bytes",
            fs(world()),
            0,
            vec![],
            vec![("/spec/capacity/storage".into(), json!("1Gi"))],
        ),
    ];
    for (name, world, bytes, asked, wanted) in &rows {
        let request = request(&plan_of(world));
        for (path, value) in asked {
            assert_eq!(request.pointer(path), Some(value), "{name}: {path}");
        }
        let volume = saved(world, *bytes);
        for (path, value) in wanted {
            assert_eq!(
                volume.pointer(path).cloned().unwrap_or_default(),
                *value,
                "{name}: {path}"
            );
        }
    }
    tally("TestProvision", rows.len());
}
