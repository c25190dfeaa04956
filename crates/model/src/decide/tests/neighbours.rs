//! Attachments that bear on each other.

use std::sync::Arc;

use serde_json::json;

use super::builders::{FINALIZER, Pv, Va, attachment, volume};
use super::table::{done, held, play, retried, row};
use super::world::{DecideModel, on_node, read, ready};
use crate::decide::{Claimant, VolumeOnNode, is_claimed_for, is_same_volume};
use crate::objects::{Attachment, InTreePlugin, PersistentVolumeWire, Volume, VolumeAttachmentWire};

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
    pub fn claimed(self, other: &Va) -> Self {
        self.claimed_with(other, None, None)
    }

    /// As [`DecideModel::claimed`], with its PersistentVolume and the node ID that its CSINode says.
    fn claimed_with(mut self, other: &Va, volume: Option<&Pv>, registered: Option<&str>) -> Self {
        self.neighbours.claimed.push(Claimant {
            attachment: neighbour(other),
            volume: volume.map(|volume| read::<PersistentVolumeWire, Volume>(&volume.0).into()),
            registered: registered.map(Into::into),
        });
        self
    }
}

/// A volume for one node at a time, wanted on node1.
fn single() -> DecideModel {
    let volume = volume().protected().modes(&["ReadWriteOnce"]);
    on_node(volume).va(attachment())
}

fn leaving() -> Va {
    attachment().claimed().attached().deleting()
}

/// With a detach from nodeID1.
fn detaching() -> DecideModel {
    ready().va(leaving())
}

#[test]
fn a_volume_for_one_node_leaves_it_before_it_goes_to_another() {
    let refused = json!({"message": "no", "errorCode": 5});
    let failed = leaving().set("/status/detachError", json!({"message": "node is dead"}));
    let publish = "FIN+ | pub handle1 nodeID1 rw | ATT";
    let pod = volume().protected().modes(&["ReadWriteOncePod"]);
    let shared = volume().protected().modes(&["ReadWriteMany"]);
    play(vec![
        held("HOLD other").when(vec![
            ("its detach is under way", single().elsewhere(&leaving())),
            ("also for one pod", on_node(pod).va(attachment()).elsewhere(&leaving())),
            (
                "an attach that is in doubt is detached too",
                single().elsewhere(&attachment().claimed().deleting()),
            ),
            (
                "the driver refused it there, and a later call may not be on record",
                single().elsewhere(&attachment().claimed().deleting().set("/status/attachError", refused)),
            ),
        ]),
        done(publish).when(vec![
            (
                "it failed once: the node may be dead, nobody waits",
                single().elsewhere(&failed),
            ),
            ("it took too long", single().elsewhere(&leaving()).out_of_patience()),
            (
                "it is wanted on both nodes: the driver's to judge",
                single().elsewhere(&attachment().claimed().attached()),
            ),
            (
                "it never was there",
                single().elsewhere(&attachment().finalizers(&["a/b"]).deleting()),
            ),
            (
                "a volume for many nodes need not leave",
                on_node(shared).va(attachment()).elsewhere(&leaving()),
            ),
        ]),
    ]);
}

/// Two PersistentVolumes with one handle. The sidecar would take the disk from under the other's pods.
#[test]
fn a_volume_is_not_taken_from_another_attachment_on_the_node() {
    let detach = "unpub handle1 nodeID1 | FIN-";
    play(vec![
        vec![row(
            "attached there",
            detaching().here(&attachment().claimed().attached()),
            "DERR(VolumeAttachment other has the same volume on node node1 attached; a detach now would remove it \
             there)",
            "R",
        )],
        done(detach).when(vec![
            (
                "being attached: it will be published anew",
                detaching().here(&attachment().claimed()),
            ),
            ("leaving too", detaching().here(&leaving())),
        ]),
    ]);
}

fn claimed_at(node_id: &str, handle: &str) -> Va {
    let claimed = attachment().finalizers(&[FINALIZER]).noted_node(node_id);
    claimed.noted_volume(&json!({"handle": handle}))
}

const PV_NAME: &str = "/spec/source/persistentVolumeName";

/// Attached at another node, without a node ID of its own.
fn without_id(handle: &str) -> Va {
    let attached = attachment().finalizers(&[FINALIZER]).attached();
    let attached = attached.set("/spec/nodeName", "node2");
    attached.noted_volume(&json!({"handle": handle}))
}

/// A detach from nodeID1, before which the volume may have been at nodeID0.
fn moved() -> DecideModel {
    let former = json!({"handle": "handle1", "former": [{"handle": "handle1", "nodeID": "nodeID0"}]});
    let leaving = leaving().noted_volume(&former);
    ready().va(leaving)
}

/// An ID can be given to another node, where a pod uses the volume by then.
#[test]
fn a_former_place_is_left_to_who_is_attached_there() {
    let (detach, of_both) = (
        "unpub handle1 nodeID1 | FIN-",
        "unpub handle1 nodeID1 | unpub handle1 nodeID0 | FIN-",
    );
    let by_sidecar = attachment().finalizers(&[FINALIZER]).noted_node("nodeID0").attached();
    let beside = |handle: &str| claimed_at("nodeID0", handle).attached();
    play(vec![
        done(of_both).when(vec![
            ("nobody", moved()),
            (
                "attached, and the annotation is gone: another node",
                moved().claimed_with(&without_id("handle1"), None, Some("nodeID2")),
            ),
            ("another volume", moved().claimed(&beside("handle2"))),
            ("leaving too", moved().claimed(&beside("handle1").deleting())),
        ]),
        done(detach).when(vec![
            ("attached", moved().claimed(&beside("handle1"))),
            ("attached by the sidecar", moved().claimed(&by_sidecar)),
            (
                "attached by the sidecar for another PersistentVolume of the handle",
                moved().claimed_with(&by_sidecar.clone().set(PV_NAME, "pv2"), Some(&volume()), None),
            ),
            (
                "attached, and the annotation is gone: by the CSINode",
                moved().claimed_with(&without_id("handle1"), None, Some("nodeID0")),
            ),
            (
                "attached when its node had another ID",
                moved().claimed_with(&claimed_at("nodeID2", "handle1").attached(), None, Some("nodeID0")),
            ),
        ]),
    ]);
}

/// A replica that has died may have published the volume for another attachment of its handle, and its record may arrive after the
/// detach. The record is void once the claim that it is about is renewed.
#[test]
fn a_detach_renews_the_claims_of_others_for_its_places() {
    let refused = json!({"message": "no", "errorCode": 5});
    let (detach, renewed) = (
        "unpub handle1 nodeID1 | FIN-",
        "RENEW other | unpub handle1 nodeID1 | FIN-",
    );
    let beside = |handle: &str| claimed_at("nodeID1", handle);
    play(vec![
        done(renewed).when(vec![
            ("claimed", detaching().claimed(&claimed_at("nodeID1", "handle1"))),
            (
                "refused: nobody knows what was called before",
                detaching().claimed(&claimed_at("nodeID1", "handle1").set("/status/attachError", refused)),
            ),
        ]),
        done(detach).when(vec![
            ("another handle", detaching().claimed(&claimed_at("nodeID1", "handle2"))),
            ("another node", detaching().claimed(&claimed_at("nodeID2", "handle1"))),
            ("leaving too", detaching().claimed(&beside("handle1").deleting())),
            (
                "not claimed",
                detaching().claimed(&claimed_at("nodeID1", "handle1").finalizers(&["a/b"])),
            ),
        ]),
        done("RENEW other | unpub handle1 nodeID1 | unpub handle1 nodeID0 | FIN-").when(vec![(
            "a former place",
            moved().claimed(&claimed_at("nodeID0", "handle1")),
        )]),
    ]);
}

/// The end of what an attachment waits for is a change of its inputs.
#[test]
fn neighbours_show_in_the_fingerprint() {
    let alone = single();
    assert_ne!(alone.fingerprint(), alone.clone().elsewhere(&leaving()).fingerprint());
    // An attach that failed beside a detach that failed before is tried again when that succeeds.
    let failed = leaving().set("/status/detachError", json!({"message": "busy"}));
    let detached = failed
        .clone()
        .finalizers(&["someone/else"])
        .set("/status/attached", false);
    let beside = |other: &Va| alone.clone().elsewhere(other).fingerprint();
    assert_ne!(beside(&failed), beside(&detached));
    assert_ne!(beside(&failed), beside(&leaving()));
    assert_eq!(beside(&detached), alone.fingerprint());
    let settled = attachment().claimed().attached();
    assert_eq!(beside(&settled), alone.fingerprint());
    assert_ne!(detaching().fingerprint(), detaching().here(&settled).fingerprint());
}

/// The place that a detach begins with is left to who is attached there as well: the detach waits.
#[test]
fn the_present_place_is_not_taken_from_who_is_attached_there() {
    let waits =
        "DERR(VolumeAttachment other has the same volume on node node2 attached; a detach now would remove it there)";
    let there = |id: &str, handle: &str| claimed_at(id, handle).attached().set("/spec/nodeName", "node2");
    let detach = "unpub handle1 nodeID1 | FIN-";
    let by_sidecar = there("nodeID1", "handle1").without_note();
    play(vec![
        retried(waits).when(vec![
            ("attached", detaching().claimed(&there("nodeID1", "handle1"))),
            (
                "attached by the sidecar for another PersistentVolume of the handle",
                detaching().claimed_with(&by_sidecar.set(PV_NAME, "pv2"), Some(&volume()), None),
            ),
            (
                "attached, and the annotation is gone: by the CSINode",
                detaching().claimed_with(&without_id("handle1"), None, Some("nodeID1")),
            ),
        ]),
        done(detach).when(vec![
            ("another machine", detaching().claimed(&there("nodeID2", "handle1"))),
            ("another volume", detaching().claimed(&there("nodeID1", "handle2"))),
            (
                "leaving too",
                detaching().claimed(&there("nodeID1", "handle1").deleting()),
            ),
        ]),
    ]);
}

const BEFORE: &str = "2026-01-01T00:00:00Z";
const LATER: &str = "2026-01-02T00:00:00Z";

fn made(va: &Va) -> Attachment {
    read::<VolumeAttachmentWire, Attachment>(&va.clone().set("/metadata/creationTimestamp", BEFORE).0)
}

fn made_again(handle: &str) -> Volume {
    let volume = volume()
        .set("/spec/csi/volumeHandle", handle)
        .set("/metadata/creationTimestamp", LATER);
    read::<PersistentVolumeWire, Volume>(&volume.0)
}

/// Two handles that are known tell; only where one is not known does the name of the PersistentVolume count.
#[test]
fn a_volume_is_known_by_its_handle_and_else_by_its_name() {
    let of = |va: Va, volume: &str, handle: &str| va.set(PV_NAME, volume).noted_volume(&json!({"handle": handle}));
    let attached = || attachment().claimed().attached();
    let (old, new) = (of(attached(), "pv1", "handle1"), of(attached(), "pv1", "handle2"));
    let unknown = attached().set(PV_NAME, "pv1").without_note();
    let twin = of(attached(), "pv2", "handle1");
    let again = made_again("handle2");
    let is_same = |one: &Va, other: &Va, volume: Option<&Volume>| {
        let (one, other) = (made(one), made(other));
        let of_one = volume.filter(|_| one.volume_name() == other.volume_name());
        let both = [
            is_same_volume((&one, volume), (&other, of_one)),
            is_same_volume((&other, of_one), (&one, volume)),
        ];
        assert_eq!(both[0], both[1], "the same from both sides");
        both[0]
    };
    assert!(!is_same(&old, &new, Some(&again)), "made again under its name");
    assert!(!is_same(&old, &new, None), "also when it is gone");
    assert!(is_same(&old, &twin, None), "two names of one");
    let may_be = is_same(&old, &unknown, Some(&again));
    assert!(may_be, "nobody knows what the second one is");
    assert!(is_same(&old, &unknown, None));
    assert!(!is_same(&twin, &unknown, None), "another name, and no handle");
    let to_attach = of(attachment().finalizers(&[FINALIZER]), "pv1", "handle1");
    let may_be = is_same(&to_attach, &old, Some(&again));
    assert!(!may_be, "it is going to be attached as what has the name now");
    assert!(is_same(&to_attach, &new, Some(&again)));
}

/// The handle of an in-tree volume is made of its labels as well, which may be changed: it is known by its name where it was there before.
#[test]
fn an_in_tree_volume_is_known_by_its_name_if_it_is_older() {
    let of = |handle: &str| {
        let attached = attachment().claimed().attached();
        made(
            &attached
                .set("/metadata/creationTimestamp", "2026-01-01T00:00:00Z")
                .noted_volume(&json!({"handle": handle})),
        )
    };
    let (old, new) = (of("before"), of("after"));
    let place = VolumeOnNode::new("before", "nodeID1").unwrap();
    for (time, in_tree, is_same) in [
        ("2025-01-01T00:00:00Z", true, true),
        ("2025-01-01T00:00:00Z", false, false),
        ("2026-01-01T00:00:00Z", true, false),
    ] {
        let mut volume = made_again("after");
        volume.created = Some(time.parse().unwrap());
        volume.in_tree = in_tree.then_some(InTreePlugin::Cinder);
        let known = Some(&volume);
        let found = is_same_volume((&old, known), (&new, known));
        assert_eq!(found, is_same, "{time} {in_tree}");
        let found = is_claimed_for(&new, known, None, place, &old);
        assert_eq!(found, is_same, "{time} {in_tree}");
    }
}

/// What keeps its place when a former operation is undone.
#[test]
fn who_stands_for_a_place() {
    let place = VolumeOnNode::new("handle1", "nodeID1").unwrap();
    let beside = made(&attachment().set(PV_NAME, "pv1").set("/spec/nodeName", "node9"));
    let holds = |va: &Va, volume: Option<&Volume>, registered: Option<&str>| {
        is_claimed_for(&made(va), volume, registered, place, &beside)
    };
    let claimed = |id: &str| claimed_at(id, "handle1").set(PV_NAME, "pv1");
    assert!(holds(&claimed("nodeID1"), None, None));
    assert!(!holds(&claimed("nodeID2"), None, None));
    let is_held = holds(&claimed("nodeID2"), None, Some("nodeID1"));
    assert!(!is_held, "nothing was sent for it there");
    assert!(holds(&claimed("nodeID2").attached(), None, Some("nodeID1")));
    assert!(holds(&without_id("handle1"), None, Some("nodeID1")));
    assert!(!holds(&without_id("handle1"), None, Some("nodeID2")));
    assert!(!holds(&without_id("handle2"), None, Some("nodeID1")));
    // Without a note: the PersistentVolume of today, unless it was made later; then the name, or what it says.
    let by_sidecar = |name: &str| claimed("nodeID1").attached().without_note().set(PV_NAME, name);
    let mut known = made_again("handle2");
    known.created = made(&attachment()).created;
    assert!(!holds(&by_sidecar("pv1"), Some(&known), None));
    assert!(holds(&by_sidecar("pv1"), Some(&made_again("handle2")), None));
    assert!(holds(&by_sidecar("pv2"), Some(&made_again("handle1")), None));
    assert!(!holds(&by_sidecar("pv2"), Some(&made_again("handle2")), None));
}
