//! The PersistentVolume, field by field.

use serde_json::{Value, json};

use super::builders::{
    ClaimWorld, DRIVER, FINALIZER, IDENTITY, NAME, UID, answered_volume, claim_of, driver, plan_of, volume_of, world,
};
use crate::objects::MAX_VOLUME_FIELD;
use crate::provision::topology::Segment;
use crate::provision::{AnsweredVolume, NewVolume, is_saved, persistent_volume};

fn saved(world: &ClaimWorld, change: impl FnOnce(&mut AnsweredVolume)) -> Value {
    let mut answer = answered_volume();
    change(&mut answer);
    let volume = NewVolume::of_answer(&plan_of(world), Some(answer)).unwrap();
    persistent_volume(&claim_of(&world.claim), &volume, &driver(), IDENTITY)
}

/// Whatever context is accepted: one byte more than is read again, and the volume could never be attached.
#[test]
fn what_is_saved_can_be_read_again() {
    let plan = plan_of(&world());
    // With the longest name of a driver, and the longest identity that one has.
    let driver = crate::provision::ProvisionerFacts {
        name: "d".repeat(63).into(),
        ..driver()
    };
    let identity = format!("{}-{}-{}", i64::MAX, u32::MAX, driver.name);
    let mut usable = 0;
    for length in MAX_VOLUME_FIELD - 400..=MAX_VOLUME_FIELD {
        let answer = AnsweredVolume {
            context: std::collections::BTreeMap::from([("k".to_owned(), "v".repeat(length))]).into(),
            ..answered_volume()
        };
        let volume = NewVolume::of_answer(&plan, Some(answer)).unwrap();
        if volume.is_usable() {
            usable += 1;
            let saved = persistent_volume(&claim_of(&world().claim), &volume, &driver, &identity);
            assert_eq!(volume_of(&saved).spec.too_large, None, "{length} bytes");
        }
    }
    assert!(usable > 0);
}

#[test]
fn the_plain_one() {
    let wanted = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": NAME,
            "finalizers": [FINALIZER],
            "annotations": {
                "pv.kubernetes.io/provisioned-by": DRIVER,
                "volume.kubernetes.io/provisioner-deletion-secret-name": "",
                "volume.kubernetes.io/provisioner-deletion-secret-namespace": "",
            },
        },
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "fast",
            "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "namespace": "web", "name": "data", "uid": UID, "resourceVersion": "7",
            },
            "csi": {
                "driver": DRIVER, "volumeHandle": "vol-1",
                "volumeAttributes": {"storage.kubernetes.io/csiProvisionerIdentity": IDENTITY},
            },
        },
    });
    assert_eq!(saved(&world(), |_| {}), wanted);
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn all_that_may_be_said() {
    let key = |family: &str, part: &str| format!("csi.storage.k8s.io/{family}-secret-{part}");
    let families = [
        "provisioner",
        "controller-publish",
        "node-stage",
        "node-publish",
        "controller-expand",
        "node-expand",
        "controller-modify",
    ];
    let mut parameters = json!({"csi.storage.k8s.io/fstype": "xfs", "pool": "a"});
    for family in families {
        parameters[key(family, "name")] = format!("{family}-${{pvc.name}}").into();
        parameters[key(family, "namespace")] = "${pvc.namespace}".into();
    }
    let world = world()
        .class("/parameters", parameters)
        .class("/mountOptions", json!(["noatime", "ro"]))
        .class("/reclaimPolicy", "Retain")
        .set("/spec/volumeMode", "Filesystem")
        .set("/spec/accessModes", json!(["ReadOnlyMany"]))
        .with(|world| world.policy.read_only_many = true)
        .with(|world| world.nodes = vec![super::builders::node("n1", &[("zone", "a")])])
        .with(|world| world.driver.capabilities.accessibility_constraints = true);
    let volume = saved(&world, |answer| {
        answer.capacity_bytes = 3 << 30;
        answer.topology = vec![Segment::from([("zone", "a")])];
        answer.context = std::collections::BTreeMap::from([
            ("k".to_owned(), "v".to_owned()),
            (
                "storage.kubernetes.io/csiProvisionerIdentity".to_owned(),
                "driver wins".to_owned(),
            ),
        ])
        .into();
    });
    let secret = |family: &str| json!({"name": format!("{family}-data"), "namespace": "web"});
    assert_eq!(
        volume["spec"]["csi"],
        json!({
            "driver": DRIVER, "volumeHandle": "vol-1", "fsType": "xfs", "readOnly": true,
            "volumeAttributes": {"k": "v", "storage.kubernetes.io/csiProvisionerIdentity": "driver wins"},
            "controllerPublishSecretRef": secret("controller-publish"),
            "nodeStageSecretRef": secret("node-stage"),
            "nodePublishSecretRef": secret("node-publish"),
            "controllerExpandSecretRef": secret("controller-expand"),
            "nodeExpandSecretRef": secret("node-expand"),
        })
    );
    let annotations = &volume["metadata"]["annotations"];
    for (key, value) in [
        ("provisioner-deletion-secret-name", "provisioner-data"),
        ("provisioner-deletion-secret-namespace", "web"),
        ("controller-modify-secret-name", "controller-modify-data"),
        ("controller-modify-secret-namespace", "web"),
    ] {
        assert_eq!(annotations[format!("volume.kubernetes.io/{key}")], value, "{key}");
    }
    let is_bare = volume["metadata"].get("finalizers").is_none();
    assert!(is_bare, "Retain: one write less than the sidecar");
    let spec = &volume["spec"];
    assert_eq!(spec["capacity"]["storage"], "3Gi");
    let wanted = (&json!("Filesystem"), &json!(["noatime", "ro"]));
    assert_eq!((&spec["volumeMode"], &spec["mountOptions"]), wanted);
    let values = &spec["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"][0]["values"];
    assert_eq!(*values, json!(["a"]));
    // What was written is read back, and needs nothing.
    let record = volume_of(&volume);
    assert_eq!(record.spec.csi().map(|csi| &*csi.handle), Some("vol-1"));
    assert!(!crate::provision::needs_volume_work(&record, &driver()));
}

#[test]
fn what_is_left_out() {
    let block = world()
        .set("/spec/volumeMode", "Block")
        .class("/parameters", json!({"fstype": "xfs"}))
        .class("/reclaimPolicy", json!(null));
    let volume = saved(&block, |_| {});
    assert_eq!(volume["spec"]["volumeMode"], "Block");
    assert!(volume["spec"]["csi"].get("fsType").is_none());
    assert!(volume["spec"].get("persistentVolumeReclaimPolicy").is_none());
    // As the sidecar: a driver that does not announce topology has none.
    let silent = saved(&world(), |answer| {
        answer.topology = vec![Segment::from([("zone", "a")])];
    });
    assert!(silent["spec"].get("nodeAffinity").is_none());
    // One that announced it when it was called, and does not now, said where the volume is.
    let later = saved(&world().delayed(), |answer| {
        answer.topology = vec![Segment::from([("zone", "a")])];
    });
    assert!(!driver().capabilities.accessibility_constraints && later["spec"].get("nodeAffinity").is_some());
    let two = world()
        .set("/spec/accessModes", json!(["ReadOnlyMany", "ReadWriteOnce"]))
        .with(|world| world.policy.read_only_many = true);
    assert!(saved(&two, |_| {})["spec"]["csi"].get("readOnly").is_none());
}

/// What a 409 means.
#[test]
fn whose_the_one_is_that_is_there() {
    let claim = claim_of(&world().claim);
    let compare = |change: &dyn Fn(&mut Value)| {
        let mut volume = super::builders::volume_json();
        change(&mut volume);
        is_saved(&volume_of(&volume), &claim, DRIVER, "vol-1")
    };
    let set = |pointer: &'static str, value: Value| {
        move |volume: &mut Value| super::builders::put(volume, pointer, value.clone())
    };
    assert!(compare(&|_| {}));
    for other in [
        set("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z")),
        set("/spec/csi/volumeHandle", json!("vol-2")),
        set("/spec/claimRef/uid", json!("x")),
        set("/spec/claimRef", json!(null)),
        set("/spec/csi/driver", json!("x")),
    ] {
        assert!(!compare(&other));
    }
}
