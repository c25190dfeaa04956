//! Clusters by chance.

use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use serde_json::{Value, json};
use std::collections::BTreeMap;

use super::builders::{DRIVER, FINALIZER, Pv, Va, attachment, volume};
use super::world::{DecideModel, world};
use crate::api::names::{NODE_ID_ANNOTATION, VOLUME_ANNOTATION};
use crate::decide::ReleaseWithoutCall::{AttachNotRequired, Confirmed, Nothing, Unclaimed};
use crate::decide::{Capabilities, Failure};

const FOREIGN: [&str; 3] = ["a.b/c", "kubernetes.io/pv-protection", "external-attacher/other"];

/// Finalizers in any order, ours among them or not.
fn finalizers() -> impl Strategy<Value = Vec<&'static str>> {
    let foreign = subsequence(FOREIGN.to_vec(), 0..=FOREIGN.len()).prop_shuffle();
    (foreign, prop::option::of(any::<prop::sample::Index>())).prop_map(|(mut list, ours)| {
        if let Some(at) = ours {
            list.insert(at.index(list.len() + 1), FINALIZER);
        }
        list
    })
}

pub fn volumes() -> impl Strategy<Value = Pv> {
    let source = select(vec!["csi", "csi", "csi", "csi", "other", "cinder", "nfs"]);
    let modes = subsequence(
        vec![
            "ReadWriteOnce",
            "ReadOnlyMany",
            "ReadWriteMany",
            "ReadWriteOncePod",
            "Later",
        ],
        0..=3,
    );
    let secret = select(vec![
        None,
        None,
        Some("secret"),
        Some("emptySecret"),
        Some("unknownSecret"),
    ]);
    let parts = (
        finalizers(),
        source,
        modes,
        secret,
        weighted(),
        any::<bool>(),
        any::<bool>(),
    );
    parts.prop_map(|(finalizers, source, modes, secret, deleting, read_only, attributes)| {
        let mut volume = match source {
            "csi" => volume(),
            "other" => volume().set("/spec/csi/driver", "other.test"),
            field => volume().in_tree(field),
        };
        if source == "csi" {
            volume = if read_only { volume.read_only() } else { volume };
            volume = if attributes { volume.attributes() } else { volume };
            volume = secret.into_iter().fold(volume, Pv::secret);
        }
        volume = volume.modes(if modes.is_empty() { &["ReadWriteOnce"] } else { &modes });
        volume = if finalizers.is_empty() {
            volume
        } else {
            volume.finalizers(&finalizers)
        };
        if deleting { volume.deleting() } else { volume }
    })
}

/// True in one of five cases.
fn weighted() -> impl Strategy<Value = bool> {
    select(vec![false, false, false, false, true])
}

fn annotated() -> impl Strategy<Value = Vec<&'static str>> {
    subsequence(
        vec!["node", "stale", "note", "other", "foreign", "retry", "confirmed"],
        0..=7,
    )
}

pub fn attachments() -> impl Strategy<Value = Va> {
    let source = select(vec!["volume", "volume", "volume", "volume", "inline", "both", "none"]);
    let parts = (
        finalizers(),
        source,
        annotated(),
        volumes(),
        weighted(),
        weighted(),
        weighted(),
        any::<bool>(),
    );
    parts.prop_map(
        |(finalizers, source, notes, volume, attached, other, errors, deleting)| {
            let mut va = match source {
                "inline" => attachment().inline(&volume),
                "both" => {
                    attachment().source(json!({"persistentVolumeName": "pv1", "inlineVolumeSpec": volume.0["spec"]}))
                }
                "none" => attachment().source(json!({})),
                _ => attachment(),
            };
            for note in notes {
                va = match note {
                    "node" => va.noted_node("nodeID1"),
                    "stale" => va.noted_node("nodeID0"),
                    "note" => va.noted_volume(&json!({"handle": "handle1"})),
                    "other" => va.noted_volume(&json!({"handle": "handle2"})),
                    "confirmed" => va.annotation("attacher.csi.dev/not-attached-at", "nodeID0,nodeID1"),
                    "retry" => va.annotation("attacher.csi.dev/retry-now", "1"),
                    _ => va.annotation("someone/else", "kept"),
                };
            }
            va = if finalizers.is_empty() {
                va
            } else {
                va.finalizers(&finalizers)
            };
            va = if attached { va.attached() } else { va };
            va = if other {
                va.set("/spec/attacher", "other.test")
            } else {
                va
            };
            if errors {
                va = va.set("/status/attachError", json!({"message": "old", "errorCode": 8}));
                va = va.set("/status/attachmentMetadata", json!({"old": "1"}));
            }
            // What is deleted and held by nobody does not exist.
            if deleting && !finalizers.is_empty() {
                va.deleting()
            } else {
                va
            }
        },
    )
}

pub fn capabilities() -> impl Strategy<Value = Capabilities> {
    (select(vec![true, true, true, false]), any::<bool>(), any::<bool>()).prop_map(|(publish, readonly, finer)| {
        Capabilities {
            publish_unpublish: publish,
            publish_readonly: readonly,
            single_node_multi_writer: finer,
            ..Capabilities::default()
        }
    })
}

/// Some have much that stops an attach or a detach, and some little.
pub fn worlds() -> impl Strategy<Value = DecideModel> {
    let clear: fn(DecideModel) -> DecideModel = cleared;
    let ways = select(vec![|world| world, clear, clear, without_calls]);
    (any_worlds(), ways).prop_map(|(world, way)| way(world))
}

/// The same world with a driver that has no calls any more, and an attachment of its own that is deleted.
fn without_calls(mut world: DecideModel) -> DecideModel {
    world.driver.capabilities.publish_unpublish = false;
    if let Some(attachment) = &mut world.attachment {
        attachment["spec"]["attacher"] = json!(DRIVER);
        if attachment["metadata"]["finalizers"].is_array() {
            *attachment = Va(attachment.take()).deleting().0;
        }
    }
    world
}

/// The same world with a driver that can publish, a node on which it registered and an attachment of its own that was never
/// attached, and whose finalizer nobody took off; and with a volume that nobody deletes, if there is one.
fn cleared(mut world: DecideModel) -> DecideModel {
    world.driver.capabilities.publish_unpublish = true;
    world.policy.leaving = false;
    if let Some(attachment) = &mut world.attachment {
        attachment["spec"]["attacher"] = json!(DRIVER);
        attachment["status"] = json!({"attached": false});
        forget_claim_without_finalizer(attachment);
    }
    let metadata = world
        .volume
        .as_mut()
        .and_then(|volume| volume["metadata"].as_object_mut());
    metadata.map(|metadata| metadata.remove("deletionTimestamp"));
    world.node()
}

fn forget_claim_without_finalizer(attachment: &mut Value) {
    let Some(metadata) = attachment["metadata"].as_object_mut() else {
        return;
    };
    let finalizers = metadata.get("finalizers").and_then(Value::as_array);
    if finalizers.is_some_and(|list| list.contains(&json!(FINALIZER))) {
        return;
    }
    let annotations = metadata.get_mut("annotations").and_then(Value::as_object_mut);
    let Some(annotations) = annotations else { return };
    annotations.remove(NODE_ID_ANNOTATION);
    annotations.remove(VOLUME_ANNOTATION);
    if annotations.is_empty() {
        metadata.remove("annotations");
    }
}

fn any_worlds() -> impl Strategy<Value = DecideModel> {
    let node = select(vec![
        Some(Some("nodeID1")),
        Some(Some("nodeID1")),
        Some(Some("nodeID2")),
        Some(None),
        None,
    ]);
    let parts = (
        attachments(),
        prop::option::weighted(0.9, volumes()),
        node,
        capabilities(),
        select(vec![Nothing, Unclaimed, AttachNotRequired, Confirmed]),
        weighted(),
    );
    parts.prop_map(|(attachment, volume, node, capabilities, release, leaving)| {
        let mut world = world().capabilities(capabilities).releasing(release).va(attachment);
        world.policy.leaving = leaving;
        // A deleted volume that nobody holds does not exist either.
        let gone = |pv: &Pv| {
            !pv.0["metadata"]["deletionTimestamp"].is_null() && pv.0["metadata"]["finalizers"].as_array().is_none()
        };
        if let Some(volume) = volume.filter(|volume| !gone(volume)) {
            world = world.pv(volume);
        }
        match node {
            Some(node_id) => world.node_of(node_id),
            None => world,
        }
    })
}

pub fn contexts() -> impl Strategy<Value = BTreeMap<String, String>> {
    prop::collection::btree_map("[a-c]", "[a-z]{0,3}", 0..3)
}

pub fn failures() -> impl Strategy<Value = Failure> {
    ("\\PC{0,1500}", prop::option::of(1..17_i32)).prop_map(|(message, code)| Failure { message, code })
}

impl DecideModel {
    /// Blanks something that names a place: the annotation with the node ID, the handle in the note, the ID that the CSINode has, or
    /// nothing.
    pub fn blank(&mut self, what: usize) {
        let annotations = self.attachment.as_mut().map(|va| &mut va["metadata"]["annotations"]);
        match (what, annotations) {
            (0, Some(annotations)) if annotations.is_object() => {
                annotations["csi.alpha.kubernetes.io/node-id"] = json!("");
            }
            (1, Some(annotations)) if annotations.is_object() => {
                annotations["attacher.csi.dev/volume"] =
                    json!(json!({"handle": " ", "former": [{"handle": "", "nodeID": "x"}]}).to_string());
            }
            (2, _) => {
                if let Some(node) = &mut self.node {
                    node["spec"]["drivers"] = json!([{"name": DRIVER, "nodeID": " "}]);
                }
            }
            _ => {}
        }
    }

    /// The PersistentVolume is another one than when the attachment was created.
    pub fn make_volume_again(&mut self) {
        if let Some(attachment) = &mut self.attachment {
            attachment["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        if let Some(volume) = self.volume.as_mut().filter(|volume| volume["spec"]["csi"].is_object()) {
            volume["metadata"]["creationTimestamp"] = json!("2026-01-02T00:00:00Z");
            volume["metadata"]["uid"] = json!("second");
            volume["spec"]["csi"]["volumeHandle"] = json!("handle3");
        }
    }
}
