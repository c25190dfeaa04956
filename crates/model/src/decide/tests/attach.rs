//! Attaching: section 8.1 of the sidecar's behaviour, 32 scenarios.

use serde_json::json;
use std::collections::BTreeMap;

use super::builders::{FINALIZER, GCE_DRIVER, GCE_FINALIZER, NODE_ID, attachment, gce_volume, volume};
use super::table::{Row, play, row, tally};
use super::world::{Answer, DecideModel, gce_world, world};
use crate::decide::{Capabilities, Failure};

fn failed(message: &str) -> Answer {
    Err(Failure::plain(message))
}

/// A volume with our finalizer, and a node with the driver.
fn ready() -> DecideModel {
    world().pv(volume().protected()).node()
}

#[allow(clippy::too_many_lines, reason = "a table")]
fn successes() -> Vec<Row> {
    let inline = |volume| world().node().va(attachment().inline(&volume));
    vec![
        row(
            "added",
            ready().va(attachment()),
            "FIN+ | pub handle1 nodeID1 rw | ATT",
            "F",
        ),
        row("in line", inline(volume()), "FIN+ | pub handle1 nodeID1 rw | ATT", "F"),
        row(
            "read-only",
            world().pv(volume().protected().read_only()).node().va(attachment()),
            "FIN+ | pub handle1 nodeID1 ro | ATT",
            "F",
        ),
        row(
            "in line, read-only",
            inline(volume().read_only()),
            "FIN+ | pub handle1 nodeID1 ro | ATT",
            "F",
        ),
        // The decision does not know whether an object was added or updated; the next two differ from the first two by
        // what an update may bring.
        row(
            "updated",
            ready().va(attachment().set("/metadata/resourceVersion", "2")),
            "FIN+ | pub handle1 nodeID1 rw | ATT",
            "F",
        ),
        row(
            "in line, updated",
            world()
                .node()
                .va(attachment().inline(&volume()).set("/metadata/resourceVersion", "2")),
            "FIN+ | pub handle1 nodeID1 rw | ATT",
            "F",
        ),
        row(
            "attributes",
            world().pv(volume().protected().attributes()).node().va(attachment()),
            r#"FIN+ | pub handle1 nodeID1 rw ctx{"foo": "bar"} | ATT"#,
            "F",
        ),
        row(
            "in line, attributes",
            inline(volume().attributes()),
            r#"FIN+ | pub handle1 nodeID1 rw ctx{"foo": "bar"} | ATT"#,
            "F",
        ),
        row(
            "publish context is stored",
            ready()
                .va(attachment())
                .answer(Ok([("foo".to_owned(), "bar".to_owned())].into())),
            r#"FIN+ | pub handle1 nodeID1 rw | ATT({"foo":"bar"})"#,
            "F",
        ),
        row(
            "volume gets our finalizer",
            world().pv(volume()).node().va(attachment()),
            "PV+ | FIN+ | pub handle1 nodeID1 rw | ATT",
            "F",
        ),
        row(
            "the CSINode is enough, no annotation of the Node is needed",
            ready().va(attachment()),
            "FIN+ | pub handle1 nodeID1 rw | ATT",
            "F",
        ),
    ]
}

fn secrets() -> Vec<Row> {
    let named = |name: &str| world().pv(volume().protected().secret(name)).node().va(attachment());
    let inline = |name: &str| world().node().va(attachment().inline(&volume().secret(name)));
    let filled = r#"SEC(secret) | FIN+ | pub handle1 nodeID1 rw secrets{"foo": "bar"} | ATT"#;
    let empty = "SEC(emptySecret) | FIN+ | pub handle1 nodeID1 rw secrets{} | ATT";
    vec![
        row("secret", named("secret"), filled, "F"),
        row("in line, secret", inline("secret"), filled, "F"),
        row("empty secret", named("emptySecret"), empty, "F"),
        row("in line, empty secret", inline("emptySecret"), empty, "F"),
        row(
            "missing secret: the attachment is not claimed",
            named("unknownSecret"),
            "SEC(unknownSecret) | AERR(failed to load secret \"default/unknownSecret\": secrets \"unknownSecret\" not found)",
            "R",
        ),
    ]
}

fn refusals() -> Vec<Row> {
    let claimed = || attachment().claimed();
    vec![
        // Here the sidecar does nothing; it leaves no note of the volume, which is written while it is known.
        row("attached already", ready().va(claimed().attached()), "NOTE", "F"),
        row(
            "volume is being deleted",
            world().pv(volume().deleting()).node().va(claimed()),
            "AERR(PersistentVolume \"pv1\" is marked for deletion)",
            "R",
        ),
        row(
            "another attacher",
            ready().va(attachment().set("/spec/attacher", "unknownDriver")),
            "",
            "F",
        ),
        row(
            "unknown volume",
            world().node().va(claimed()),
            "AERR(persistentvolume \"pv1\" not found)",
            "R",
        ),
        row(
            "unknown volume, and the error cannot be saved",
            world().node().va(claimed()).refuse_attachment(&[1, 2]),
            "AERR(persistentvolume \"pv1\" not found) 403 | AERR(persistentvolume \"pv1\" not found) 403 \
             | AERR(persistentvolume \"pv1\" not found)",
            "RRR",
        ),
        row(
            "no source",
            ready().va(attachment().source(json!({}))),
            "AERR(neither InlineCSIVolumeSource nor PersistentVolumeName specified in VA source)",
            "R",
        ),
        row(
            "both sources",
            ready().va(attachment().source(json!({"persistentVolumeName": "pv1", "inlineVolumeSpec": {}}))),
            "AERR(both InlineCSIVolumeSource and PersistentVolumeName specified in VA source)",
            "R",
        ),
        row(
            "unknown node: the annotation does not count",
            world().pv(volume().protected()).va(claimed()),
            "AERR(csinode.storage.k8s.io \"node1\" not found)",
            "R",
        ),
        // The sidecar has this row twice: with no node at all and with a Node object. We never read Nodes.
        row(
            "a Node without CSINode",
            world().pv(volume().protected()).va(attachment()),
            "AERR(csinode.storage.k8s.io \"node1\" not found)",
            "R",
        ),
        row(
            "CSINode without the driver",
            world().pv(volume().protected()).node_of(None).va(claimed()),
            "AERR(CSINode node1 does not contain driver csi/test)",
            "R",
        ),
    ]
}

/// Here the patches are fed back, so that a retry goes on where the attempt before stopped; the sidecar's harness starts
/// from the first object again and repeats FIN+.
fn retries() -> Vec<Row> {
    vec![
        row(
            "volume finalizer cannot be saved",
            world().pv(volume()).node().va(attachment()).refuse_volume(&[1]),
            "PV+ 403 | AERR(could not add PersistentVolume finalizer: persistentvolume \"pv1\" is forbidden: Mock error) \
             | PV+ | FIN+ | pub handle1 nodeID1 rw | ATT",
            "RF",
        ),
        row(
            "claim cannot be saved: no call before it is",
            ready().va(attachment()).refuse_attachment(&[1, 2]),
            "FIN+ 403 | AERR(could not save VolumeAttachment: volumeattachments.storage.k8s.io \"pv1-node1\" is \
             forbidden: Mock error) 403 | FIN+ | pub handle1 nodeID1 rw | ATT",
            "RF",
        ),
        row(
            "result cannot be saved: no error, the call is made again",
            ready().va(attachment()).refuse_attachment(&[2]),
            "FIN+ | pub handle1 nodeID1 rw | ATT 403 | pub handle1 nodeID1 rw | ATT",
            "RF",
        ),
        row(
            "call fails",
            ready().va(attachment()).answer(failed("mock error")),
            "FIN+ | pub handle1 nodeID1 rw | AERR(mock error) | pub handle1 nodeID1 rw | ATT",
            "RF",
        ),
        row(
            "call times out",
            ready().va(attachment()).answer(failed("context deadline exceeded")),
            "FIN+ | pub handle1 nodeID1 rw | AERR(context deadline exceeded) | pub handle1 nodeID1 rw | ATT",
            "RF",
        ),
    ]
}

#[test]
fn attaching() {
    let in_tree = row(
        "GCEPersistentDiskVolumeSource",
        gce_world()
            .pv(gce_volume().finalizers(&[GCE_FINALIZER]))
            .node()
            .va(attachment().set("/spec/attacher", GCE_DRIVER)),
        r#"FIN+ | pub projects/UNSPECIFIED/zones/testZone/disks/testpd nodeID1 rw ctx{"partition": ""} | ATT"#,
        "F",
    );
    let rows = [successes(), secrets(), refusals(), retries(), vec![in_tree]];
    let count = play(rows.into_iter().flatten().collect(), DecideModel::attempt);
    tally("8.1", "attach", count);
}

/// What the sidecar has no test for, and where we differ.
#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn attaching_with_care() {
    let rows = vec![
        row(
            "a volume of another driver is neither protected nor attached",
            world()
                .pv(volume().set("/spec/csi/driver", "other.test"))
                .node()
                .va(attachment()),
            "AERR(the volume belongs to CSI driver other.test but the VolumeAttachment names csi/test)",
            "R",
        ),
        row(
            "an in-line volume of another driver is not attached",
            world()
                .node()
                .va(attachment().inline(&volume().set("/spec/csi/driver", "other.test"))),
            "AERR(the volume belongs to CSI driver other.test but the VolumeAttachment names csi/test)",
            "R",
        ),
        row(
            "an in-tree volume whose CSI driver is another is not protected",
            world().pv(volume().in_tree("cinder")).node().va(attachment()),
            "AERR(the volume belongs to CSI driver cinder.csi.openstack.org but the VolumeAttachment names csi/test)",
            "R",
        ),
        // Divergence: the sidecar protects the volume before it finds that it cannot be translated.
        row(
            "an in-tree volume that cannot be translated is not protected",
            gce_world()
                .pv(gce_volume().set("/metadata/labels/failure-domain.beta.kubernetes.io~1zone", "a__b"))
                .node()
                .va(attachment().set("/spec/attacher", GCE_DRIVER)),
            "AERR(failed to translate in tree pv to CSI: failed to get region from zones: zone in unexpected format, \
             expected: {locale}-{region}-{zone}, got: a)",
            "R",
        ),
        row(
            "an in-tree volume gets our finalizer",
            gce_world()
                .pv(gce_volume().modes(&["ReadWriteMany"]))
                .node()
                .va(attachment().set("/spec/attacher", GCE_DRIVER)),
            r#"PV+ | FIN+ | pub projects/UNSPECIFIED/zones/testZone/disks/testpd nodeID1 rw ctx{"partition": ""} | ATT"#,
            "F",
        ),
        row(
            "an in-line in-tree volume, which the attach/detach controller would have translated",
            gce_world()
                .node()
                .va(attachment().inline(&gce_volume()).set("/spec/attacher", GCE_DRIVER)),
            "AERR(inline volume spec contains nil CSI source)",
            "R",
        ),
        row(
            "a volume that no attacher serves is not protected",
            world().pv(volume().in_tree("nfs")).node().va(attachment()),
            "AERR(pv spec contained non-csi source that was not migrated)",
            "R",
        ),
        row(
            "an in-line volume that is not CSI",
            world().node().va(attachment().inline(&volume().in_tree("nfs"))),
            "AERR(inline volume spec contains nil CSI source)",
            "R",
        ),
        row(
            "access modes that CSI cannot express: protected, but not claimed",
            world()
                .pv(volume().modes(&["ReadOnlyMany", "ReadWriteOnce"]))
                .node()
                .va(attachment()),
            "PV+ | AERR(CSI does not support the combination of access modes of this volume: ReadOnlyMany together with \
             ReadWriteOnce)",
            "R",
        ),
        row(
            "claimed by the sidecar: our note is added before the call",
            ready().va(attachment().claimed()),
            "NOTE | pub handle1 nodeID1 rw | ATT",
            "F",
        ),
        row(
            "claimed for a node ID that is not the node's any more",
            ready().node_of(Some("nodeID2")).va(attachment().claimed()),
            "NOTE former handle1@nodeID1 | unpub handle1 nodeID1 | pub handle1 nodeID2 rw | ATT",
            "F",
        ),
        row(
            "an attachment that failed for lack of a node goes on when the node appears",
            world().pv(volume().protected()).va(attachment()),
            "AERR(csinode.storage.k8s.io \"node1\" not found)",
            "R",
        ),
    ];
    play(rows, DecideModel::attempt);
}

/// Beyond the sidecar: without the finalizer the API server would let it go without a detach.
#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn what_is_attached_gets_the_finalizer_again() {
    let lost = || attachment().noted_node(NODE_ID).attached();
    let noted = |handle: &str| lost().noted_volume(&json!({"handle": handle}));
    let without_node_id = || attachment().attached().noted_volume(&json!({"handle": "handle1"}));
    let bare = || world().pv(volume()).node();
    let mut rows = vec![
        row("of the sidecar", ready().va(lost()), "FIN again | NOTE", "F"),
        row("its volume noted", ready().va(noted("handle1")), "FIN again", "F"),
        row("in line", world().node().va(lost().inline(&volume())), "FIN again", "F"),
        row("its volume gone", world().node().va(lost()), "FIN again", "F"),
        row(
            "another volume by its name",
            ready().va(noted("other")),
            "FIN again",
            "F",
        ),
        row(
            "its volume lost it too",
            bare().va(noted("handle1")),
            "FIN again | PV+",
            "F",
        ),
        row(
            "its node gone",
            world().pv(volume().protected()).va(noted("handle1")),
            "FIN again",
            "F",
        ),
        row("attached without a call", ready().va(attachment().attached()), "", "F"),
        row(
            "its node ID taken away",
            ready().va(without_node_id()),
            "FIN again | NOTE",
            "F",
        ),
        row(
            "its node ID blanked",
            ready().va(without_node_id().noted_node(" ")),
            "FIN again | NOTE",
            "F",
        ),
        row(
            "its node ID taken away, and its node gone",
            world().pv(volume().protected()).va(without_node_id()),
            "FIN again",
            "F",
        ),
        row(
            "its node ID taken away, and another volume by its name",
            ready().va(attachment().attached().noted_volume(&json!({"handle": "other"}))),
            "FIN again",
            "F",
        ),
        row(
            "its node ID taken away, and in line",
            world().node().va(without_node_id().inline(&volume())),
            "FIN again | NOTE",
            "F",
        ),
        row(
            "the node ID alone taken away",
            ready().va(without_node_id().finalizers(&[FINALIZER])),
            "NOTE",
            "F",
        ),
        row(
            "being deleted",
            ready().va(lost().finalizers(&["a/b"]).deleting()),
            "",
            "F",
        ),
        row("of no volume", ready().va(lost().source(json!({}))), "", "F"),
        row(
            "of another attacher",
            ready().va(lost().set("/spec/attacher", "other.test")),
            "",
            "F",
        ),
        row(
            "of a driver without calls",
            ready().va(lost()).capabilities(Capabilities::default()),
            "",
            "F",
        ),
    ];
    let mut forced = ready().va(noted("handle1"));
    forced.forced = true;
    rows.push(row(
        "the driver lists it elsewhere",
        forced,
        "FIN again | pub handle1 nodeID1 rw | ATT",
        "F",
    ));
    play(rows, DecideModel::attempt);
}

#[test]
fn an_error_of_a_former_attempt_is_cleared_with_its_code() {
    let mut world = ready().va(attachment()).answer(Err(Failure {
        message: "full".to_owned(),
        code: Some(8),
    }));
    world.attempt();
    assert_eq!(
        world.attachment.as_ref().unwrap()["status"]["attachError"]["errorCode"],
        8
    );
    world.answers.push_back(failed("plain"));
    world.attempt();
    let error = world.attachment.as_ref().unwrap()["status"]["attachError"].clone();
    assert_eq!(
        error,
        json!({"message": "plain", "time": super::world::NOW}),
        "the old code is gone"
    );
    world.attempt();
    let status = &world.attachment.as_ref().unwrap()["status"];
    assert_eq!(*status, json!({"attached": true}));
}

#[test]
fn keys_of_an_older_publish_context_go() {
    let context = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    };
    let old = attachment()
        .claimed()
        .set("/status/attachmentMetadata", json!({"old": "1", "kept": "1"}));
    let mut world = ready().va(old).answer(Ok(context(&[("kept", "2"), ("new", "3")])));
    world.attempt();
    assert_eq!(
        world.attachment.unwrap()["status"]["attachmentMetadata"],
        json!({"kept": "2", "new": "3"})
    );
}
