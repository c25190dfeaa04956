//! What a claim and its class become: request and PersistentVolume, or why there is none.

use serde_json::{Value, json};
use std::collections::BTreeMap;

use crate::provision::tests::builders::{ClaimWorld, IDENTITY, NAME, claim_of, driver, plan_of, world};
use crate::provision::tests::claim_rows::word;
use crate::provision::tests::tally;
use crate::provision::{
    AnsweredVolume, ClaimAccessType, ClaimAction, CreateOutcome, CreatePlan, Creation, NewVolume,
    ProvisionerSecretState, created, persistent_volume,
};

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
    persistent_volume(&claim_of(&world.claim), &volume, &driver(), IDENTITY, None)
}

type Fields = Vec<(&'static str, Value)>;

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

    // Name, what is observed, size of the answer, fields of the request, fields of the PersistentVolume.
    let rows: Vec<(&str, ClaimWorld, i64, Fields, Vec<(String, Value)>)> = vec![
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

/// The rows of TestProvision in which nothing is provisioned.
#[test]
fn what_is_not_asked_for() {
    let secret = [
        (".provisioner-secret-name", "s"),
        (".provisioner-secret-namespace", "n"),
    ];
    let unreadable = |mut world: ClaimWorld| {
        world.secret = ProvisionerSecretState::Unreadable;
        world
    };
    let attributes = || world().set("/spec/volumeAttributesClassName", "test-vac");
    let rows: [(&str, ClaimWorld, &str); 11] = [
        (
            "two keys of the file system",
            parameters(world(), &[("fstype", "ext3"), (".fstype", "ext4")]),
            "Invalid: refuse",
        ),
        // There it changes nothing that is known of an open call. Here no refusal does.
        (
            "a Secret without its namespace",
            parameters(world(), &[(".provisioner-secret-name", "s")]),
            "Invalid: refuse",
        ),
        (
            "a Secret that cannot be read",
            unreadable(parameters(world(), &secret)),
            "SecretForbidden: tell",
        ),
        (
            "a template whose annotation is not there",
            parameters(
                world(),
                &[
                    (".secret-name", "default-${pvc.annotations['team']}"),
                    (".secret-namespace", "n"),
                ],
            ),
            "Invalid: refuse",
        ),
        (
            "a selector",
            world().set("/spec/selector", json!({})),
            "Invalid: refuse",
        ),
        // There a claim without a UID has no name; the API server makes none.
        (
            "a name that is too long",
            world().with(|world| world.policy.volume_name_prefix = "p".repeat(128).as_str().into()),
            "Invalid: refuse",
        ),
        (
            "of a populator",
            world().set(
                "/spec/dataSource",
                json!({"kind": "MyPopulator", "name": "x", "apiGroup": "my.example.io"}),
            ),
            "Populator: ",
        ),
        (
            "a selected node that is not there",
            world().delayed().with(|world| world.nodes.clear()),
            "NodeGone: reschedule",
        ),
        // A later slice serves what the driver can modify.
        (
            "attributes, and MODIFY_VOLUME is missing",
            attributes(),
            "Invalid: refuse",
        ),
        ("attributes of a class that is missing", attributes(), "Invalid: refuse"),
        ("attributes of another driver's class", attributes(), "Invalid: refuse"),
    ];
    for (name, world, wanted) in &rows {
        let decision = world.decide();
        let found = format!("{}: {}", decision.reason.as_str(), word(&decision.action));
        assert!(found.starts_with(wanted), "{name}: {found}");
    }
    let answered = |code: i32| {
        let failure = crate::decide::Failure {
            message: "fake error".to_owned(),
            code: Some(code),
        };
        let world = world();
        created(
            &Creation::Never,
            &plan_of(&world),
            Err(&failure),
            &claim_of(&world.claim),
        )
        .creation
    };
    assert_eq!(answered(16), Creation::Refused, "a final error");
    assert!(answered(4).is_uncertain(), "a transient error");
    let small = AnsweredVolume {
        handle: "test-volume-id".into(),
        capacity_bytes: (1 << 30) - 1,
        ..AnsweredVolume::default()
    };
    let settled = created(
        &Creation::Never,
        &plan_of(&world()),
        Ok(Some(small)),
        &claim_of(&world().claim),
    );
    assert!(
        matches!(settled.outcome, CreateOutcome::Faulty(_)),
        "less capacity: {settled:?}"
    );
    tally("TestProvision", rows.len() + 3);
}

/// TestCanProvision of the library. A driver says itself whether it has block volumes: what is asked for reaches it. The 6 rows of
/// programs that have none are left out.
#[test]
fn every_volume_mode_reaches_the_driver() {
    let rows = [Value::Null, json!("Filesystem"), json!("Block")];
    for mode in &rows {
        let action = world().set("/spec/volumeMode", mode.clone()).decide().action;
        assert!(matches!(action, ClaimAction::Mark(_)), "{mode}: {action:?}");
    }
    tally("library TestCanProvision", rows.len());
}

/// TestTopologyParams of the library: whether the class allows one zone, and whether a node is selected.
#[test]
fn what_topology_is_made_of() {
    let rows = [(false, false), (true, false), (false, true), (true, true)];
    for (allowed, selected) in rows {
        let mut world = world().delayed();
        if !selected {
            world = world
                .class("/volumeBindingMode", "Immediate")
                .annotate("volume.kubernetes.io/selected-node", "");
        }
        if allowed {
            let term = json!([{"matchLabelExpressions": [{"key": "zone", "values": ["a"]}]}]);
            world = world.class("/allowedTopologies", term);
        }
        let plan = plan_of(&world);
        assert_eq!(plan.node.as_deref(), selected.then_some("n1"), "{allowed} {selected}");
        let terms = plan.accessibility.as_ref().map_or(0, |it| it.requisite.len());
        assert_eq!(terms, if allowed { 1 } else { 2 }, "{allowed} {selected}");
    }
    tally("library TestTopologyParams", rows.len());
}

/// TestInfeasibleRetry of the library: the code, whether the time of the hold is over, and whether there is a second call.
#[test]
fn what_is_infeasible_is_held() {
    let rows = [(13, false, true), (3, false, false), (3, true, true)];
    for (code, is_over, is_called) in rows {
        let failure = crate::decide::Failure {
            message: "fake error".to_owned(),
            code: Some(code),
        };
        let first = world().marked();
        let settled = created(
            &Creation::Never,
            &plan_of(&first),
            Err(&failure),
            &claim_of(&first.claim),
        );
        let is_held = settled.outcome == CreateOutcome::Infeasible && !is_over;
        let again = first
            .creation(settled.creation)
            .with(|world| world.infeasible = is_held);
        // The marker is written with what is planned now, if it says something else.
        let action = again.decide().action;
        let goes_on = matches!(action, ClaimAction::Create(_) | ClaimAction::Mark(_));
        assert_eq!(goes_on, is_called, "{code} {is_over}: {action:?}");
    }
    tally("library TestInfeasibleRetry", rows.len());
}
