//! Detaching: section 8.2 of the sidecar's behaviour, 18 scenarios.

use serde_json::json;

use super::builders::{FINALIZER, GCE_DRIVER, GCE_FINALIZER, NODE_ID, Va, attachment, gce_volume, volume};
use super::table::{Row, play, row, tally};
use super::world::{DecideModel, gce_world, world};
use crate::api::names::NOT_ATTACHED_AT_ANNOTATION;
use crate::decide::Failure;

const OTHER: &str = "someone/else";

/// A deleted attachment that was attached. Another finalizer keeps the object after ours, so that the second write can be
/// seen; without it the object goes with the first (see `the_object_goes_with_our_finalizer`).
fn detaching() -> Va {
    attachment()
        .finalizers(&[FINALIZER, OTHER])
        .noted_node(NODE_ID)
        .attached()
        .deleting()
}

fn gce_detaching() -> Va {
    detaching()
        .finalizers(&[GCE_FINALIZER, OTHER])
        .set("/spec/attacher", GCE_DRIVER)
}

fn ready() -> DecideModel {
    world().pv(volume().protected()).node()
}

fn successes() -> Vec<Row> {
    let done = "unpub handle1 nodeID1 | FIN- | DET";
    let filled = r#"SEC(secret) | unpub handle1 nodeID1 secrets{"foo": "bar"} | FIN- | DET"#;
    let empty = "SEC(emptySecret) | unpub handle1 nodeID1 secrets{} | FIN- | DET";
    let inline = |volume| world().va(detaching().inline(&volume));
    vec![
        row("deleted", ready().va(detaching()), done, "F"),
        row("in line", inline(volume()).node(), done, "F"),
        row(
            "secret; the node from the annotation",
            world().pv(volume().protected().secret("secret")).va(detaching()),
            filled,
            "F",
        ),
        row("in line, secret", inline(volume().secret("secret")), filled, "F"),
        row(
            "empty secret",
            world().pv(volume().protected().secret("emptySecret")).va(detaching()),
            empty,
            "F",
        ),
        row(
            "in line, empty secret",
            inline(volume().secret("emptySecret")),
            empty,
            "F",
        ),
        row(
            "detached already",
            ready().va(attachment().finalizers(&[OTHER]).deleting()),
            "",
            "F",
        ),
        row(
            "unknown node: the annotation",
            world()
                .pv(volume().protected())
                .va(detaching().noted_node("annotatedNodeID")),
            "unpub handle1 annotatedNodeID | FIN- | DET",
            "F",
        ),
        row(
            "GCEPersistentDiskVolumeSource",
            gce_world()
                .pv(gce_volume().finalizers(&[GCE_FINALIZER]))
                .node()
                .va(gce_detaching()),
            "unpub projects/UNSPECIFIED/zones/testZone/disks/testpd nodeID1 | FIN- | DET",
            "F",
        ),
    ]
}

fn refusals() -> Vec<Row> {
    vec![
        row(
            "missing secret",
            world()
                .pv(volume().protected().secret("unknownSecret"))
                .node()
                .va(detaching()),
            "SEC(unknownSecret) | DERR(failed to load secret \"default/unknownSecret\": secrets \"unknownSecret\" not found)",
            "R",
        ),
        row(
            "unknown volume",
            world().node().va(detaching()),
            "DERR(persistentvolume \"pv1\" not found) | DERR(persistentvolume \"pv1\" not found)",
            "RR",
        ),
        row(
            "unknown volume, and the error cannot be saved",
            world().node().va(detaching()).refuse_attachment(&[1, 2]),
            "DERR(persistentvolume \"pv1\" not found) 403 | DERR(persistentvolume \"pv1\" not found) 403 \
             | DERR(persistentvolume \"pv1\" not found) | DERR(persistentvolume \"pv1\" not found)",
            "RRRR",
        ),
        row(
            "no source",
            ready().va(detaching().source(json!({}))),
            "DERR(neither InlineCSIVolumeSource nor PersistentVolumeName specified in VA source)",
            "R",
        ),
        row(
            "both sources",
            ready().va(detaching().source(json!({"persistentVolumeName": "pv1", "inlineVolumeSpec": {}}))),
            "DERR(both InlineCSIVolumeSource and PersistentVolumeName specified in VA source)",
            "R",
        ),
        row(
            "unknown node and no annotation",
            world()
                .pv(volume().protected())
                .va(attachment().finalizers(&[FINALIZER]).attached().deleting()),
            "DERR(csinode.storage.k8s.io \"node1\" not found)",
            "R",
        ),
    ]
}

fn retries() -> Vec<Row> {
    let failed = |message: &str| ready().va(detaching()).answer(Err(Failure::plain(message)));
    vec![
        row(
            "call fails",
            failed("mock error"),
            "unpub handle1 nodeID1 | DERR(mock error) | unpub handle1 nodeID1 | FIN- | DET",
            "RF",
        ),
        row(
            "call times out",
            failed("context deadline exceeded"),
            "unpub handle1 nodeID1 | DERR(context deadline exceeded) | unpub handle1 nodeID1 | FIN- | DET",
            "RF",
        ),
        row(
            "finalizer cannot be removed: the call is made again",
            ready().va(detaching()).refuse_attachment(&[1]),
            "unpub handle1 nodeID1 | FIN- 403 | DERR(could not mark as detached: volumeattachments.storage.k8s.io \
             \"pv1-node1\" is forbidden: Mock error) | unpub handle1 nodeID1 | FIN- | DET",
            "RF",
        ),
    ]
}

#[test]
fn detaching_volumes() {
    let rows = [successes(), refusals(), retries()];
    let count = play(rows.into_iter().flatten().collect(), DecideModel::attempt);
    tally("8.2", "detach", count);
}

/// What the sidecar has no test for, and where we differ.
#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn detaching_with_care() {
    let note = json!({"handle": "handle1", "secret": {"namespace": "default", "name": "secret"}});
    let replaced = |volume| {
        world()
            .pv(volume)
            .node()
            .va(detaching().noted_volume(&json!({"handle": "handle1"})))
    };
    let of_former_handle = || {
        detaching().noted_volume(&json!({"handle": "handle1", "former": [{"handle": "handle0", "nodeID": "nodeID1"}]}))
    };
    let rows = vec![
        row(
            "the object goes with our finalizer, and nothing is left to write on",
            ready().va(attachment().claimed().attached().deleting()),
            "unpub handle1 nodeID1 | FIN-",
            "F",
        ),
        row(
            "a volume that was removed by force is detached by the note, with its secret",
            world().node().va(detaching().noted_volume(&note)),
            r#"SEC(secret) | unpub handle1 nodeID1 secrets{"foo": "bar"} | FIN- | DET"#,
            "F",
        ),
        row(
            "a note that cannot be read is none",
            world().node().va(detaching().noted_volume(&json!("?"))),
            "DERR(persistentvolume \"pv1\" not found)",
            "R",
        ),
        row(
            "a volume that was made again under the name with another handle is not the one to detach",
            replaced(volume().set("/spec/csi/volumeHandle", "handle2")),
            "unpub handle1 nodeID1 | FIN- | DET",
            "F",
        ),
        row(
            "nor is one of an in-tree plug-in",
            replaced(volume().in_tree("cinder")),
            "unpub handle1 nodeID1 | FIN- | DET",
            "F",
        ),
        row(
            "an in-tree volume that cannot be translated",
            gce_world()
                .pv(gce_volume().set("/metadata/labels/failure-domain.beta.kubernetes.io~1zone", "a__b"))
                .node()
                .va(gce_detaching()),
            "DERR(failed to translate in tree pv to CSI: failed to get region from zones: zone in unexpected format, \
             expected: {locale}-{region}-{zone}, got: a)",
            "R",
        ),
        row(
            "an in-tree volume whose zone label changed since it was attached is detached by the note",
            gce_world()
                .pv(gce_volume().set("/metadata/labels/failure-domain.beta.kubernetes.io~1zone", "a__b"))
                .node()
                .va(gce_detaching().noted_volume(&json!({"handle": "as it was"}))),
            "unpub as it was nodeID1 | FIN- | DET",
            "F",
        ),
        row(
            "the CSINode comes first, as in the sidecar; a node that came back with another ID has the volume under the old one",
            ready().node_of(Some("nodeID2")).va(detaching()),
            "unpub handle1 nodeID2 | unpub handle1 nodeID1 | FIN- | DET",
            "F",
        ),
        row(
            "a person confirms that the volume is not at a former ID of the node",
            ready()
                .node_of(Some("nodeID2"))
                .va(detaching().annotation(NOT_ATTACHED_AT_ANNOTATION, "nodeID1")),
            "unpub handle1 nodeID2 | FIN- | DET",
            "F",
        ),
        row(
            "a person confirms that of several former IDs",
            ready().node_of(Some("nodeID2")).va(detaching()
                .noted_volume(&json!({"handle": "handle1", "former": [
                    {"handle": "handle1", "nodeID": "a,b"}, {"handle": "handle1", "nodeID": "nodeID0"},
                ]}))
                .annotation(NOT_ATTACHED_AT_ANNOTATION, "nodeID1, nodeID0")),
            "unpub handle1 nodeID2 | unpub handle1 a,b | FIN- | DET",
            "F",
        ),
        row(
            "an ID with a comma is confirmed alone",
            ready().node().va(detaching()
                .noted_volume(&json!({"handle": "handle1", "former": [{"handle": "handle1", "nodeID": "a,b"}]}))
                .annotation(NOT_ATTACHED_AT_ANNOTATION, "a,b")),
            "unpub handle1 nodeID1 | FIN- | DET",
            "F",
        ),
        row(
            "a former handle, where the node is now, is confirmed with the ID",
            ready()
                .node()
                .va(of_former_handle().annotation(NOT_ATTACHED_AT_ANNOTATION, "handle0@nodeID1")),
            "unpub handle1 nodeID1 | FIN- | DET",
            "F",
        ),
        row(
            "the ID alone means the volume of now as well, which nobody can confirm",
            ready()
                .node()
                .va(of_former_handle().annotation(NOT_ATTACHED_AT_ANNOTATION, "nodeID1, handle0")),
            "unpub handle1 nodeID1 | unpub handle0 nodeID1 | FIN- | DET",
            "F",
        ),
        row(
            "where the node is now nobody can confirm it",
            ready()
                .node_of(Some("nodeID2"))
                .va(detaching().annotation(NOT_ATTACHED_AT_ANNOTATION, "nodeID2")),
            "unpub handle1 nodeID2 | unpub handle1 nodeID1 | FIN- | DET",
            "F",
        ),
        row(
            "nor at the only place that is known",
            ready()
                .node_of(None)
                .va(detaching().annotation(NOT_ATTACHED_AT_ANNOTATION, "nodeID1")),
            "unpub handle1 nodeID1 | FIN- | DET",
            "F",
        ),
        row(
            "CSINode without the driver: the annotation",
            ready().node_of(None).va(detaching()),
            "unpub handle1 nodeID1 | FIN- | DET",
            "F",
        ),
        row(
            "never published, or so it seems: the finalizer decides",
            ready().va(attachment().claimed().deleting()),
            "unpub handle1 nodeID1 | FIN-",
            "F",
        ),
        row(
            "a volume that is being deleted is detached",
            world().pv(volume().protected().deleting()).node().va(detaching()),
            "unpub handle1 nodeID1 | FIN- | DET",
            "F",
        ),
        row(
            "of another attacher",
            ready().va(detaching().set("/spec/attacher", "other.test")),
            "",
            "F",
        ),
    ];
    play(rows, DecideModel::attempt);
}

#[test]
fn no_code_counts_as_detached() {
    for code in 1..=16 {
        let failure = Failure {
            message: format!("rpc error: {code}"),
            code: Some(code),
        };
        let mut world = ready().va(detaching()).answer(Err(failure));
        world.attempt();
        let metadata = &world.attachment.as_ref().unwrap()["metadata"];
        assert_eq!(metadata["finalizers"], json!([FINALIZER, OTHER]), "code {code}");
        assert_eq!(
            world.log.last().unwrap(),
            &format!("DERR(rpc error: {code})"),
            "and no code is written"
        );
    }
}
