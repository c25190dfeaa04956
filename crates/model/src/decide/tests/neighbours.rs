//! Attachments that bear on each other.

use std::sync::Arc;

use serde_json::json;

use super::builders::{FINALIZER, Va, attachment, volume};
use super::table::{play, row};
use super::world::{DecideModel, read, world};
use crate::decide::{self, SecretState};
use crate::objects::{Attachment, VolumeAttachmentWire};

fn neighbour(other: &Va) -> Arc<Attachment> {
    read::<VolumeAttachmentWire, Attachment>(&other.clone().named("other").0).into()
}

impl DecideModel {
    /// With another attachment of the volume on another node.
    pub fn elsewhere(mut self, other: &Va) -> Self {
        let other = other.clone().set("/spec/nodeName", "node2");
        self.neighbours.elsewhere.push(neighbour(&other));
        self
    }

    /// With another attachment of the same volume on this node.
    pub fn here(mut self, other: &Va) -> Self {
        self.neighbours.here = Some(neighbour(other));
        self
    }

    /// With another attachment that is claimed where this one may be.
    pub fn claimed(mut self, other: &Va) -> Self {
        self.neighbours.claimed.push(neighbour(other));
        self
    }
}

/// A volume for one node at a time, wanted on node1.
fn single() -> DecideModel {
    let volume = volume().protected().modes(&["ReadWriteOnce"]);
    world().pv(volume).node().va(attachment())
}

fn leaving() -> Va {
    attachment().claimed().attached().deleting()
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn a_volume_for_one_node_leaves_it_before_it_goes_to_another() {
    let refused = json!({"message": "no", "errorCode": 5});
    let failed = leaving().set("/status/detachError", json!({"message": "node is dead"}));
    let publish = "FIN+ | pub handle1 nodeID1 rw | ATT";
    let pod = volume().protected().modes(&["ReadWriteOncePod"]);
    let shared = volume().protected().modes(&["ReadWriteMany"]);
    let rows = vec![
        row(
            "its detach is under way",
            single().elsewhere(&leaving()),
            "HOLD other",
            "W",
        ),
        row(
            "also for one pod",
            world().pv(pod).node().va(attachment()).elsewhere(&leaving()),
            "HOLD other",
            "W",
        ),
        row(
            "an attach that is in doubt is detached too",
            single().elsewhere(&attachment().claimed().deleting()),
            "HOLD other",
            "W",
        ),
        row(
            "it failed once: the node may be dead, nobody waits",
            single().elsewhere(&failed),
            publish,
            "F",
        ),
        row(
            "it took too long",
            single().elsewhere(&leaving()).out_of_patience(),
            publish,
            "F",
        ),
        row(
            "it is wanted on both nodes: the driver's to judge",
            single().elsewhere(&attachment().claimed().attached()),
            publish,
            "F",
        ),
        row(
            "it never was there",
            single().elsewhere(&attachment().finalizers(&["a/b"]).deleting()),
            publish,
            "F",
        ),
        row(
            "the driver refused it there",
            single().elsewhere(&attachment().claimed().deleting().set("/status/attachError", refused)),
            publish,
            "F",
        ),
        row(
            "a volume for many nodes need not leave",
            world().pv(shared).node().va(attachment()).elsewhere(&leaving()),
            publish,
            "F",
        ),
    ];
    play(rows, DecideModel::attempt);
}

/// Two PersistentVolumes with one handle. The sidecar would take the disk from under the other's pods.
#[test]
fn a_volume_is_not_taken_from_another_attachment_on_the_node() {
    let ready = || world().pv(volume().protected()).node().va(leaving());
    let detach = "unpub handle1 nodeID1 | FIN-";
    let rows = vec![
        row(
            "attached there",
            ready().here(&attachment().claimed().attached()),
            "DERR(VolumeAttachment other has the same volume on node node1 attached; a detach now would remove it \
             there)",
            "R",
        ),
        row(
            "being attached: it will be published anew",
            ready().here(&attachment().claimed()),
            detach,
            "F",
        ),
        row("leaving too", ready().here(&leaving()), detach, "F"),
    ];
    play(rows, DecideModel::attempt);
}

fn claimed_at(node_id: &str, handle: &str) -> Va {
    let claimed = attachment().finalizers(&[FINALIZER]).noted_node(node_id);
    claimed.noted_volume(&json!({"handle": handle}))
}

/// A detach from nodeID1, before which the volume may have been at nodeID0.
fn moved() -> DecideModel {
    let former = json!({"handle": "handle1", "former": [{"handle": "handle1", "nodeID": "nodeID0"}]});
    let leaving = leaving().noted_volume(&former);
    world().pv(volume().protected()).node().va(leaving)
}

/// An ID can be given to another node, where a pod uses the volume by then.
#[test]
fn a_former_place_is_left_to_who_is_attached_there() {
    let (detach, of_both) = (
        "unpub handle1 nodeID1 | FIN-",
        "unpub handle1 nodeID1 | unpub handle1 nodeID0 | FIN-",
    );
    let by_sidecar = attachment().finalizers(&[FINALIZER]).noted_node("nodeID0").attached();
    let rows = vec![
        row("nobody", moved(), of_both, "F"),
        row(
            "attached",
            moved().claimed(&claimed_at("nodeID0", "handle1").attached()),
            detach,
            "F",
        ),
        row("attached by the sidecar", moved().claimed(&by_sidecar), detach, "F"),
        row(
            "another volume",
            moved().claimed(&claimed_at("nodeID0", "handle2").attached()),
            of_both,
            "F",
        ),
        row(
            "leaving too",
            moved().claimed(&claimed_at("nodeID0", "handle1").attached().deleting()),
            of_both,
            "F",
        ),
    ];
    play(rows, DecideModel::attempt);
}

/// A replica that has died may have published the volume for another attachment of its handle, and its record may arrive after the
/// detach. The record is void once the claim that it is about is renewed.
#[test]
fn a_detach_renews_the_claims_of_others_for_its_places() {
    let ready = || world().pv(volume().protected()).node().va(leaving());
    let refused = json!({"message": "no", "errorCode": 5});
    let (detach, renewed) = (
        "unpub handle1 nodeID1 | FIN-",
        "RENEW other | unpub handle1 nodeID1 | FIN-",
    );
    let rows = vec![
        row(
            "claimed",
            ready().claimed(&claimed_at("nodeID1", "handle1")),
            renewed,
            "F",
        ),
        row(
            "refused: nobody knows what was called before",
            ready().claimed(&claimed_at("nodeID1", "handle1").set("/status/attachError", refused)),
            renewed,
            "F",
        ),
        row(
            "another handle",
            ready().claimed(&claimed_at("nodeID1", "handle2")),
            detach,
            "F",
        ),
        row(
            "another node",
            ready().claimed(&claimed_at("nodeID2", "handle1")),
            detach,
            "F",
        ),
        row(
            "a former place",
            moved().claimed(&claimed_at("nodeID0", "handle1")),
            "RENEW other | unpub handle1 nodeID1 | unpub handle1 nodeID0 | FIN-",
            "F",
        ),
        row(
            "leaving too",
            ready().claimed(&claimed_at("nodeID1", "handle1").deleting()),
            detach,
            "F",
        ),
        row(
            "not claimed",
            ready().claimed(&claimed_at("nodeID1", "handle1").finalizers(&["a/b"])),
            detach,
            "F",
        ),
    ];
    play(rows, DecideModel::attempt);
}

/// The end of what an attachment waits for is a change of its inputs.
#[test]
fn neighbours_show_in_the_fingerprint() {
    let fingerprint = |world: &DecideModel| {
        let snapshot = world.snapshot().unwrap();
        let observed = crate::decide::observe(&snapshot, &world.driver, &world.policy, SecretState::NotLoaded);
        decide::attachment_fingerprint(&observed)
    };
    let alone = single();
    assert_ne!(fingerprint(&alone), fingerprint(&alone.clone().elsewhere(&leaving())));
    let settled = attachment().claimed().attached();
    assert_eq!(fingerprint(&alone), fingerprint(&alone.clone().elsewhere(&settled)));
    let detaching = world().pv(volume().protected()).node().va(leaving());
    assert_ne!(fingerprint(&detaching), fingerprint(&detaching.clone().here(&settled)));
}
