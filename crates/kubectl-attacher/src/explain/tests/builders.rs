//! Scenes in a few words.

use csi_attacher_model::api::AttacherConfigObject;
use csi_attacher_model::objects::{Attachment, CsiNode, PersistentVolumeWire, SecretReference, VolumeAttachmentWire};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

use crate::observed::{
    ClaimRecord, ConditionRecord, ConfigRecord, CsiNodeRecord, EventRecord, Holder, HolderPod, LeaseHolder,
    LeaseRecord, Lookup, NodeRecord, PodRecord, PodVolume, PodVolumeSource, Scene,
};

pub const DRIVER: &str = "ssd.csi.test";
pub const FINALIZER: &str = "external-attacher/ssd-csi-test";

/// The time of all scenes.
pub fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

/// This many seconds before.
pub fn before(seconds: i64) -> Timestamp {
    now().checked_sub(SignedDuration::from_secs(seconds)).unwrap()
}

fn text(seconds: i64) -> String {
    before(seconds).to_string()
}

/// A VolumeAttachment of pv1 to node1 that was made 30 seconds ago.
pub fn attachment(edit: Value) -> Arc<Attachment> {
    Arc::new(wire(edit).into())
}

/// The same, as it comes over the wire.
pub fn wire(edit: Value) -> VolumeAttachmentWire {
    let mut object = json!({
        "metadata": {"name": "csi-1", "uid": "uid-1", "resourceVersion": "7", "creationTimestamp": text(30)},
        "spec": {"attacher": DRIVER, "nodeName": "node1", "source": {"persistentVolumeName": "pv1"}},
        "status": {"attached": false},
    });
    json_patch::merge(&mut object, &edit);
    serde_json::from_value(object).unwrap()
}

/// What claims an attachment.
pub fn claimed() -> Value {
    json!({"metadata": {
        "finalizers": [FINALIZER],
        "annotations": {"csi.alpha.kubernetes.io/node-id": "id1", "attacher.csi.dev/volume": "{\"handle\":\"h1\"}"},
    }})
}

/// The same, and deleted for this many seconds.
pub fn detaching(seconds: i64) -> Value {
    let mut edit = claimed();
    edit["metadata"]["deletionTimestamp"] = text(seconds).into();
    edit["status"] = json!({"attached": true});
    edit
}

/// Two edits in one.
pub fn both(mut one: Value, other: &Value) -> Value {
    json_patch::merge(&mut one, other);
    one
}

/// An error of an attach or a detach, ten seconds ago.
pub fn error(field: &str, message: &str) -> Value {
    json!({"status": {field: {"time": text(10), "message": message}}})
}

pub fn pod() -> PodRecord {
    PodRecord {
        namespace: "shop".into(),
        name: "web-1".into(),
        uid: "uid-web-1".into(),
        node: Some("node1".into()),
        phase: "Pending".into(),
        created: Some(before(60)),
        deleting: None,
        owner: None,
        scheduled: Some(ConditionRecord {
            status: "True".into(),
            since: Some(before(45)),
            ..ConditionRecord::default()
        }),
        volumes: vec![PodVolume {
            name: "data".into(),
            source: PodVolumeSource::Claim("data".into()),
        }],
    }
}

pub fn claim() -> ClaimRecord {
    ClaimRecord {
        uid: "claim-uid".into(),
        phase: "Bound".into(),
        volume: Some("pv1".into()),
        created: Some(before(100)),
        storage_class: Some("fast".into()),
    }
}

pub fn node(name: &str) -> NodeRecord {
    NodeRecord {
        name: name.into(),
        ready: Some(ConditionRecord {
            status: "True".into(),
            since: Some(before(5_000)),
            ..ConditionRecord::default()
        }),
        ..NodeRecord::default()
    }
}

pub fn unready(name: &str) -> NodeRecord {
    let mut node = node(name);
    node.ready = Some(ConditionRecord {
        status: "Unknown".into(),
        since: Some(before(120)),
        ..ConditionRecord::default()
    });
    node
}

pub fn volume(edit: Value) -> Lookup<Arc<csi_attacher_model::objects::Volume>> {
    let mut object = json!({
        "metadata": {"name": "pv1", "uid": "pv-uid", "resourceVersion": "3", "finalizers": [FINALIZER]},
        "spec": {"accessModes": ["ReadWriteOnce"], "csi": {"driver": DRIVER, "volumeHandle": "h1"}},
    });
    json_patch::merge(&mut object, &edit);
    Lookup::Found(Arc::new(
        serde_json::from_value::<PersistentVolumeWire>(object).unwrap().into(),
    ))
}

fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": text(200)})
}

/// An AttacherConfig that is ready, with other conditions in the place of its own.
pub fn config(conditions: &[(&str, &str, &str, &str)], spec: &Value) -> Lookup<ConfigRecord> {
    let mut all = vec![
        ("Ready", "True", "Running", ""),
        ("Stalled", "False", "NotStalled", ""),
        ("DriverReachable", "True", "Connected", ""),
        ("Saturated", "False", "NotSaturated", ""),
    ];
    all.retain(|(kind, ..)| conditions.iter().all(|(other, ..)| other != kind));
    all.extend(conditions);
    let conditions: Vec<Value> = all
        .iter()
        .map(|(kind, status, reason, message)| condition(kind, status, reason, message))
        .collect();
    let mut object = json!({
        "metadata": {"name": "ssd", "creationTimestamp": text(9_000)},
        "spec": {"endpoint": "unix:///csi/ssd/csi.sock", "publishSecrets": [{"namespace": "storage"}]},
        "status": {
            "conditions": conditions,
            "driver": {"name": DRIVER, "mode": "Attach", "capabilities": ["PUBLISH_UNPUBLISH_VOLUME"]},
            "holder": "replica-1",
        },
    });
    json_patch::merge(&mut object["spec"], spec);
    let object: AttacherConfigObject = serde_json::from_value(object).unwrap();
    Lookup::Found(object.into())
}

/// The one Lease of the driver, renewed this many seconds ago: a replica's, or a sidecar's.
pub fn lease(holder: &str, is_of_operator: bool, seconds: i64) -> Lookup<Vec<LeaseRecord>> {
    let holder = holder.to_owned();
    let holder = if is_of_operator {
        LeaseHolder::Replica(holder)
    } else {
        LeaseHolder::Sidecar(holder)
    };
    leases([("operator", holder, seconds)])
}

/// The Leases of the driver: namespace, holder, and how many seconds ago each was renewed.
pub fn leases<const N: usize>(all: [(&str, LeaseHolder, i64); N]) -> Lookup<Vec<LeaseRecord>> {
    let record = |(namespace, holder, seconds): (&str, LeaseHolder, i64)| LeaseRecord {
        namespace: namespace.into(),
        holder,
        renewed: Some(before(seconds)),
        duration: Duration::from_secs(15),
    };
    Lookup::Found(all.map(record).into())
}

/// The operator in the place of a sidecar serves the driver.
pub fn drop_in() -> Lookup<Vec<LeaseRecord>> {
    leases([("storage", LeaseHolder::DropIn("vendor-0".into()), 3)])
}

/// An AttacherConfig of which no driver is known.
pub fn nameless(conditions: &[(&str, &str, &str, &str)]) -> Vec<ConfigRecord> {
    let mut found = config(conditions, &json!({})).found().cloned();
    if let Some(config) = &mut found {
        config.name = "minimal".into();
        (config.status.driver, config.status.holder) = (None, None);
    }
    found.into_iter().collect()
}

pub fn csi_node(drivers: &[(&str, &str)], limit: Option<i32>) -> Lookup<CsiNodeRecord> {
    Lookup::Found(CsiNodeRecord {
        drivers: CsiNode::new("node1", drivers),
        limits: limit.into_iter().map(|limit| (DRIVER.to_owned(), limit)).collect(),
    })
}

/// A pod on node1 whose volume waits for its attach, where all is well.
pub fn scene() -> Scene {
    let mut scene = Scene::empty(now());
    scene.pod = Some(pod());
    scene.claim_name = Some("shop/data".into());
    scene.claim = Lookup::Found(claim());
    scene.volume_name = Some("pv1".into());
    scene.volume = volume(json!({}));
    scene.node_name = Some("node1".into());
    scene.node = Lookup::Found(node("node1"));
    scene.csi_node = csi_node(&[(DRIVER, "id1")], None);
    scene.attachment = Lookup::Found(attachment(claimed()));
    scene.events = Lookup::Found(Vec::new());
    scene.holders = Lookup::Found(Vec::new());
    scene.on_node = Some(1);
    scene.driver.name = DRIVER.into();
    scene.driver.crd = Lookup::Found(());
    scene.driver.config = config(&[], &json!({}));
    scene.driver.leases = lease("replica-1", true, 3);
    scene.driver.attach_required = Lookup::Found(true);
    scene
}

/// The scene after a change.
pub fn with(edit: impl FnOnce(&mut Scene)) -> Scene {
    let mut scene = scene();
    edit(&mut scene);
    scene
}

/// A scene without a VolumeAttachment, as kube-controller-manager leaves it.
pub fn unrequested(edit: impl FnOnce(&mut Scene)) -> Scene {
    with(|scene| {
        scene.attachment = Lookup::Missing;
        edit(scene);
    })
}

/// The VolumeAttachment of pv1 at node2.
pub fn holder(edit: Value, node: NodeRecord, pods: &[(&str, Option<i64>)]) -> Holder {
    let at = json!({"metadata": {"name": "csi-2", "uid": "uid-2"}, "spec": {"nodeName": "node2"}});
    Holder {
        attachment: attachment(both(both(claimed(), &at), &edit)),
        node: Lookup::Found(node),
        pods: Lookup::Found(
            pods.iter()
                .map(|(name, deleted)| HolderPod {
                    name: (*name).to_owned(),
                    deleting: deleted.map(before),
                    owner: Some("ReplicaSet/web-5d9".to_owned()),
                })
                .collect(),
        ),
        events: Lookup::Found(Vec::new()),
    }
}

pub fn event(message: &str, seconds: i64) -> EventRecord {
    EventRecord {
        reason: "AttachFailed".into(),
        message: message.into(),
        last: Some(before(seconds)),
    }
}

pub fn secret(found: Lookup<()>) -> Option<(SecretReference, Lookup<()>)> {
    let reference = SecretReference {
        namespace: "storage".into(),
        name: "key".into(),
    };
    Some((reference, found))
}

/// A volume with a publish secret.
pub fn volume_with_secret(namespace: &str) -> Lookup<Arc<csi_attacher_model::objects::Volume>> {
    volume(json!({"spec": {"csi": {"controllerPublishSecretRef": {"namespace": namespace, "name": "key"}}}}))
}
