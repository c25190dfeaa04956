//! Attaching: section 8.1 of the sidecar's behaviour, 32 scenarios.

use serde_json::json;
use std::collections::BTreeMap;

use super::builders::{FINALIZER, GCE_DRIVER, GCE_FINALIZER, NODE_ID, attachment, gce_volume, volume};
use super::table::{Row, done, mended, play, retried, row, tally};
use super::world::{Answer, NOW, gce_world, on_node, ready, world};
use crate::decide::{Capabilities, Failure};

fn failed(message: &str) -> Answer {
    Err(Failure::plain(message))
}

fn successes() -> Vec<Vec<Row>> {
    let inline = |volume| world().node().va(attachment().inline(&volume));
    vec![
        done("FIN+ | pub handle1 nodeID1 rw | ATT").when(vec![
            ("added", ready().va(attachment())),
            ("in line", inline(volume())),
            // The decision does not know whether an object was added or updated; the next two differ from the first two by
            // what an update may bring.
            (
                "updated",
                ready().va(attachment().set("/metadata/resourceVersion", "2")),
            ),
            (
                "in line, updated",
                world()
                    .node()
                    .va(attachment().inline(&volume()).set("/metadata/resourceVersion", "2")),
            ),
            (
                "the CSINode is enough, no annotation of the Node is needed",
                ready().va(attachment()),
            ),
        ]),
        done("FIN+ | pub handle1 nodeID1 ro | ATT").when(vec![
            ("read-only", on_node(volume().protected().read_only()).va(attachment())),
            ("in line, read-only", inline(volume().read_only())),
        ]),
        done(r#"FIN+ | pub handle1 nodeID1 rw ctx{"foo": "bar"} | ATT"#).when(vec![
            (
                "attributes",
                on_node(volume().protected().attributes()).va(attachment()),
            ),
            ("in line, attributes", inline(volume().attributes())),
        ]),
        done(r#"FIN+ | pub handle1 nodeID1 rw | ATT({"foo":"bar"})"#).when(vec![(
            "publish context is stored",
            ready()
                .va(attachment())
                .answer(Ok([("foo".to_owned(), "bar".to_owned())].into())),
        )]),
        done("PV+ | FIN+ | pub handle1 nodeID1 rw | ATT")
            .when(vec![("volume gets our finalizer", on_node(volume()).va(attachment()))]),
    ]
}

fn secrets() -> Vec<Vec<Row>> {
    let named = |name: &str| on_node(volume().protected().secret(name)).va(attachment());
    let inline = |name: &str| world().node().va(attachment().inline(&volume().secret(name)));
    let filled = r#"SEC(secret) | FIN+ | pub handle1 nodeID1 rw secrets{"foo": "bar"} | ATT"#;
    let empty = "SEC(emptySecret) | FIN+ | pub handle1 nodeID1 rw secrets{} | ATT";
    vec![
        done(filled).when(vec![("secret", named("secret")), ("in line, secret", inline("secret"))]),
        done(empty).when(vec![
            ("empty secret", named("emptySecret")),
            ("in line, empty secret", inline("emptySecret")),
        ]),
        vec![row(
            "missing secret: the attachment is not claimed",
            named("unknownSecret"),
            "SEC(unknownSecret) | AERR(failed to load secret \"default/unknownSecret\": secrets \"unknownSecret\" not found)",
            "R",
        )],
    ]
}

fn refusals() -> Vec<Vec<Row>> {
    let claimed = || attachment().claimed();
    vec![
        done("NOTE").when(vec![
            // Here the sidecar does nothing; it leaves no note of the volume, which is written while it is known.
            ("attached already", ready().va(claimed().attached())),
        ]),
        retried("AERR(PersistentVolume \"pv1\" is marked for deletion)").when(vec![(
            "volume is being deleted",
            on_node(volume().deleting()).va(claimed()),
        )]),
        done("").when(vec![(
            "another attacher",
            ready().va(attachment().set("/spec/attacher", "unknownDriver")),
        )]),
        retried("AERR(persistentvolume \"pv1\" not found)")
            .when(vec![("unknown volume", world().node().va(claimed()))]),
        vec![row(
            "unknown volume, and the error cannot be saved",
            world().node().va(claimed()).refuse_attachment(&[1, 2]),
            "AERR(persistentvolume \"pv1\" not found) 403 | AERR(persistentvolume \"pv1\" not found) 403 \
             | AERR(persistentvolume \"pv1\" not found)",
            "RRR",
        )],
        retried("AERR(neither InlineCSIVolumeSource nor PersistentVolumeName specified in VA source)")
            .when(vec![("no source", ready().va(attachment().source(json!({}))))]),
        retried("AERR(both InlineCSIVolumeSource and PersistentVolumeName specified in VA source)").when(vec![(
            "both sources",
            ready().va(attachment().source(json!({"persistentVolumeName": "pv1", "inlineVolumeSpec": {}}))),
        )]),
        retried("AERR(csinode.storage.k8s.io \"node1\" not found)").when(vec![
            (
                "unknown node: the annotation does not count",
                world().pv(volume().protected()).va(claimed()),
            ),
            // The sidecar has this row twice: with no node at all and with a Node object. We never read Nodes.
            (
                "a Node without CSINode",
                world().pv(volume().protected()).va(attachment()),
            ),
        ]),
        retried("AERR(CSINode node1 does not contain driver csi/test)").when(vec![(
            "CSINode without the driver",
            world().pv(volume().protected()).node_of(None).va(claimed()),
        )]),
    ]
}

/// Here the patches are fed back, so that a retry goes on where the attempt before stopped; the sidecar's harness starts
/// from the first object again and repeats FIN+.
fn retries() -> Vec<Vec<Row>> {
    vec![
        vec![row(
            "volume finalizer cannot be saved",
            on_node(volume()).va(attachment()).refuse_volume(&[1]),
            "PV+ 403 | AERR(could not add PersistentVolume finalizer: persistentvolume \"pv1\" is forbidden: Mock error) \
             | PV+ | FIN+ | pub handle1 nodeID1 rw | ATT",
            "RF",
        )],
        vec![row(
            "claim cannot be saved: no call before it is",
            ready().va(attachment()).refuse_attachment(&[1, 2]),
            "FIN+ 403 | AERR(could not save VolumeAttachment: volumeattachments.storage.k8s.io \"pv1-node1\" is \
             forbidden: Mock error) 403 | FIN+ | pub handle1 nodeID1 rw | ATT",
            "RF",
        )],
        mended("FIN+ | pub handle1 nodeID1 rw | ATT 403 | pub handle1 nodeID1 rw | ATT").when(vec![(
            "result cannot be saved: no error, the call is made again",
            ready().va(attachment()).refuse_attachment(&[2]),
        )]),
        mended("FIN+ | pub handle1 nodeID1 rw | AERR(mock error) | pub handle1 nodeID1 rw | ATT").when(vec![(
            "call fails",
            ready().va(attachment()).answer(failed("mock error")),
        )]),
        vec![row(
            "call times out",
            ready().va(attachment()).answer(failed("context deadline exceeded")),
            "FIN+ | pub handle1 nodeID1 rw | AERR(context deadline exceeded) | pub handle1 nodeID1 rw | ATT",
            "RF",
        )],
    ]
}

#[test]
fn attaching() {
    let in_tree = vec![vec![row(
        "GCEPersistentDiskVolumeSource",
        gce_world()
            .pv(gce_volume().finalizers(&[GCE_FINALIZER]))
            .node()
            .va(attachment().set("/spec/attacher", GCE_DRIVER)),
        r#"FIN+ | pub projects/UNSPECIFIED/zones/testZone/disks/testpd nodeID1 rw ctx{"partition": ""} | ATT"#,
        "F",
    )]];
    let rows = [successes(), secrets(), refusals(), retries(), in_tree];
    let count = play(rows.into_iter().flatten().collect());
    tally("8.1", "attach", count);
}

/// What the sidecar has no test for, and where we differ.
#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn attaching_with_care() {
    play(vec![
        retried("AERR(the volume belongs to CSI driver other.test but the VolumeAttachment names csi/test)").when(
            vec![
                (
                    "a volume of another driver is neither protected nor attached",
                    on_node(volume().set("/spec/csi/driver", "other.test")).va(attachment()),
                ),
                (
                    "an in-line volume of another driver is not attached",
                    world()
                        .node()
                        .va(attachment().inline(&volume().set("/spec/csi/driver", "other.test"))),
                ),
            ],
        ),
        vec![row(
            "an in-tree volume whose CSI driver is another is not protected",
            on_node(volume().in_tree("cinder")).va(attachment()),
            "AERR(the volume belongs to CSI driver cinder.csi.openstack.org but the VolumeAttachment names csi/test)",
            "R",
        )],
        // Divergence: the sidecar protects the volume before it finds that it cannot be translated.
        vec![row(
            "an in-tree volume that cannot be translated is not protected",
            gce_world()
                .pv(gce_volume().set("/metadata/labels/failure-domain.beta.kubernetes.io~1zone", "a__b"))
                .node()
                .va(attachment().set("/spec/attacher", GCE_DRIVER)),
            "AERR(failed to translate in tree pv to CSI: failed to get region from zones: zone in unexpected format, \
             expected: {locale}-{region}-{zone}, got: a)",
            "R",
        )],
        vec![row(
            "an in-tree volume gets our finalizer",
            gce_world()
                .pv(gce_volume().modes(&["ReadWriteMany"]))
                .node()
                .va(attachment().set("/spec/attacher", GCE_DRIVER)),
            r#"PV+ | FIN+ | pub projects/UNSPECIFIED/zones/testZone/disks/testpd nodeID1 rw ctx{"partition": ""} | ATT"#,
            "F",
        )],
        retried("AERR(inline volume spec contains nil CSI source)").when(vec![
            (
                "an in-line in-tree volume, which the attach/detach controller would have translated",
                gce_world()
                    .node()
                    .va(attachment().inline(&gce_volume()).set("/spec/attacher", GCE_DRIVER)),
            ),
            (
                "an in-line volume that is not CSI",
                world().node().va(attachment().inline(&volume().in_tree("nfs"))),
            ),
        ]),
        retried("AERR(pv spec contained non-csi source that was not migrated)").when(vec![(
            "a volume that no attacher serves is not protected",
            on_node(volume().in_tree("nfs")).va(attachment()),
        )]),
        vec![row(
            "access modes that CSI cannot express: protected, but not claimed",
            on_node(volume().modes(&["ReadOnlyMany", "ReadWriteOnce"])).va(attachment()),
            "PV+ | AERR(CSI does not support the combination of access modes of this volume: ReadOnlyMany together with \
             ReadWriteOnce)",
            "R",
        )],
        done("NOTE | pub handle1 nodeID1 rw | ATT").when(vec![(
            "claimed by the sidecar: our note is added before the call",
            ready().va(attachment().claimed()),
        )]),
        done("NOTE former handle1@nodeID1 | unpub handle1 nodeID1 | pub handle1 nodeID2 rw | ATT").when(vec![(
            "claimed for a node ID that is not the node's any more",
            ready().node_of(Some("nodeID2")).va(attachment().claimed()),
        )]),
        retried("AERR(csinode.storage.k8s.io \"node1\" not found)").when(vec![(
            "an attachment that failed for lack of a node goes on when the node appears",
            world().pv(volume().protected()).va(attachment()),
        )]),
    ]);
}

/// Beyond the sidecar: without the finalizer the API server would let it go without a detach.
#[test]
fn what_is_attached_gets_the_finalizer_again() {
    let lost = || attachment().noted_node(NODE_ID).attached();
    let noted = |handle: &str| lost().noted_volume(&json!({"handle": handle}));
    let without_node_id = || attachment().attached().noted_volume(&json!({"handle": "handle1"}));
    let bare = || on_node(volume());
    play(vec![
        done("FIN again | NOTE").when(vec![
            ("of the sidecar", ready().va(lost())),
            ("its node ID taken away", ready().va(without_node_id())),
            ("its node ID blanked", ready().va(without_node_id().noted_node(" "))),
            (
                "its node ID taken away, and in line",
                world().node().va(without_node_id().inline(&volume())),
            ),
        ]),
        done("FIN again").when(vec![
            ("its volume noted", ready().va(noted("handle1"))),
            ("in line", world().node().va(lost().inline(&volume()))),
            ("its volume gone", world().node().va(lost())),
            ("another volume by its name", ready().va(noted("other"))),
            ("its node gone", world().pv(volume().protected()).va(noted("handle1"))),
            (
                "its node ID taken away, and its node gone",
                world().pv(volume().protected()).va(without_node_id()),
            ),
            (
                "its node ID taken away, and another volume by its name",
                ready().va(attachment().attached().noted_volume(&json!({"handle": "other"}))),
            ),
        ]),
        done("FIN again | PV+").when(vec![("its volume lost it too", bare().va(noted("handle1")))]),
        done("").when(vec![
            ("attached without a call", ready().va(attachment().attached())),
            ("of no volume", ready().va(lost().source(json!({})))),
            (
                "of another attacher",
                ready().va(lost().set("/spec/attacher", "other.test")),
            ),
            (
                "of a driver without calls",
                ready().va(lost()).capabilities(Capabilities::default()),
            ),
        ]),
        done("NOTE").when(vec![(
            "the node ID alone taken away",
            ready().va(without_node_id().finalizers(&[FINALIZER])),
        )]),
        done("FIN again | pub handle1 nodeID1 rw | ATT").when(vec![(
            "the driver lists it elsewhere",
            ready().va(noted("handle1")).forced(),
        )]),
    ]);
}

/// The call may have done it though nothing says that it is attached: the finalizer comes before whatever is refused, and no place is
/// forgotten.
#[test]
fn what_was_called_for_gets_the_finalizer_again() {
    let lost = || attachment().noted_node(NODE_ID);
    let noted = || lost().noted_volume(&json!({"handle": "handle1"}));
    let former = json!([{"handle": "handle1", "nodeID": "nodeID0"}]);
    let moved = || lost().noted_volume(&json!({"handle": "handle1", "former": former}));
    let other_handle = || volume().protected().set("/spec/csi/volumeHandle", "handle2");
    play(vec![
        done("FIN again | pub handle1 nodeID1 rw | ATT").when(vec![("by an operator", ready().va(noted()))]),
        done("FIN again | NOTE | pub handle1 nodeID1 rw | ATT").when(vec![
            ("by the sidecar", ready().va(lost())),
            ("its node ID blanked", ready().va(attachment().noted_node(" "))),
        ]),
        vec![row(
            "its node has another ID",
            ready().node_of(Some("nodeID2")).va(noted()),
            "FIN again | NOTE former handle1@nodeID1 | unpub handle1 nodeID1 | pub handle1 nodeID2 rw | ATT",
            "F",
        )],
        done("FIN again | unpub handle1 nodeID0 | pub handle1 nodeID1 rw | ATT")
            .when(vec![("its node had another ID", ready().va(moved()))]),
        vec![row(
            "another volume by its name",
            on_node(other_handle()).va(noted()),
            "FIN again | NOTE former handle1@nodeID1 | unpub handle1 nodeID1 | pub handle2 nodeID1 rw | ATT",
            "F",
        )],
        done("FIN again | PV+ | pub handle1 nodeID1 rw | ATT")
            .when(vec![("its volume lost it too", on_node(volume()).va(noted()))]),
        retried("FIN again | AERR(csinode.storage.k8s.io \"node1\" not found)")
            .when(vec![("its node gone", world().pv(volume().protected()).va(noted()))]),
        done("").when(vec![(
            "being deleted, and not known to be attached",
            ready().va(noted().finalizers(&["a/b"]).deleting()),
        )]),
        done("ATT").when(vec![(
            "of a driver without calls",
            ready().va(noted()).capabilities(Capabilities::default()),
        )]),
    ]);
}

#[test]
fn an_error_of_a_former_attempt_is_cleared_with_its_code() {
    let mut world = ready().va(attachment()).answer(Err(Failure {
        message: "full".to_owned(),
        code: Some(8),
    }));
    world.attempt();
    let code = &world.attachment.as_ref().unwrap()["status"]["attachError"]["errorCode"];
    assert_eq!(*code, 8);
    world.answers.push_back(failed("plain"));
    world.attempt();
    let error = world.attachment.as_ref().unwrap()["status"]["attachError"].clone();
    assert_eq!(error, json!({"message": "plain", "time": NOW}), "the old code is gone");
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
    let wanted = json!({"kept": "2", "new": "3"});
    assert_eq!(world.attachment.unwrap()["status"]["attachmentMetadata"], wanted);
}
