//! Which volume, at which node ID, an attachment stands for, where what says so was changed, blanked or made again.

use serde_json::json;

use super::builders::{FINALIZER, NODE_ID, Pv, Va, attachment, volume};
use super::table::{play, row};
use super::world::{DecideModel, Requeue, world};
use crate::api::names::NODE_ID_ANNOTATION;
use crate::decide::{self, SecretState};

const OTHER: &str = "someone/else";
/// When the attachments of these tables were created.
const BEFORE: &str = "2026-01-01T00:00:00Z";
/// Long after that.
const LATER: &str = "2026-01-02T00:00:00Z";

fn noted() -> serde_json::Value {
    json!({"handle": "handle1"})
}

/// As the sidecar leaves what it attached: without a note of the volume.
fn of_sidecar() -> Va {
    attachment()
        .set("/metadata/creationTimestamp", BEFORE)
        .finalizers(&[FINALIZER, OTHER])
        .noted_node(NODE_ID)
        .attached()
}

fn written_by_sidecar(va: Va, time: &str) -> Va {
    va.set(
        "/metadata/managedFields",
        json!([{"manager": "csi-attacher", "subresource": "status", "time": time}]),
    )
}

fn of_operator() -> Va {
    of_sidecar().noted_volume(&noted())
}

/// The volume of the tables, created before the attachment.
fn former() -> Pv {
    volume().protected().set("/metadata/creationTimestamp", BEFORE)
}

/// The volume that was there long before the attachment.
fn older() -> Pv {
    volume().set("/metadata/creationTimestamp", "2025-01-01T00:00:00Z")
}

/// Another volume under the same name, created after the attachment was attached.
fn remade() -> Pv {
    volume()
        .set("/metadata/creationTimestamp", LATER)
        .set("/spec/csi/volumeHandle", "handle2")
}

/// What a person wrote in the place of the note of a claim.
fn noted_wrongly() -> Va {
    of_sidecar().noted_volume(&json!({"handle": "handleX"}))
}

fn forced(mut world: DecideModel) -> DecideModel {
    world.forced = true;
    world
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn a_blank_id_is_no_id() {
    let blank = |id: &str| of_operator().annotation(NODE_ID_ANNOTATION, id).deleting();
    let no_place = format!(
        "DERR(annotation {NODE_ID_ANNOTATION} of the VolumeAttachment is blank, and csinode.storage.k8s.io \"node1\" not \
         found: the node ID at which the volume is attached is unknown; set the annotation to that node ID)"
    );
    let no_place: &'static str = Box::leak(no_place.into_boxed_str());
    let blank_node =
        "AERR(CSINode node1 has a blank node ID for driver csi/test; restart the driver's pod on that node)";
    play(
        vec![
            row(
                "the annotation is empty, and the CSINode gone",
                world().pv(former()).va(blank("")),
                no_place,
                "R",
            ),
            row("it is one space", world().pv(former()).va(blank(" ")), no_place, "R"),
            row(
                "the CSINode says where the node is",
                world().pv(former()).node().va(blank("")),
                "unpub handle1 nodeID1 | FIN- | DET",
                "F",
            ),
            row(
                "the CSINode has a blank ID",
                world().pv(former()).node_of(Some(" ")).va(attachment()),
                blank_node,
                "R",
            ),
            row(
                "the CSINode has a blank ID, and the annotation says where it was attached",
                world().pv(former()).node_of(Some("")).va(of_operator().deleting()),
                "unpub handle1 nodeID1 | FIN- | DET",
                "F",
            ),
            row(
                "the note names no volume",
                world()
                    .pv(former())
                    .node()
                    .va(of_sidecar().noted_volume(&json!({"handle": ""})).deleting()),
                "unpub handle1 nodeID1 | FIN- | DET",
                "F",
            ),
            row(
                "a former place is blank",
                world().pv(former()).node().va(of_sidecar()
                    .noted_volume(&json!({"handle": "handle1", "former": [{"handle": "handle1", "nodeID": ""}]}))
                    .deleting()),
                "unpub handle1 nodeID1 | FIN- | DET",
                "F",
            ),
            row(
                "the handle of the volume is one space",
                world()
                    .pv(former().set("/spec/csi/volumeHandle", " "))
                    .node()
                    .va(attachment()),
                "AERR(the volumeHandle of the volume is blank)",
                "R",
            ),
        ],
        DecideModel::attempt,
    );
}

#[test]
fn what_is_attached_is_never_published_as_another_volume() {
    let replaced = "AERR(VolumeAttachment pv1-node1 is attached with volume handle1, and PersistentVolume pv1 is volume handle2 \
                    since it was created again; delete the VolumeAttachment once no pod on the node uses the volume)";
    let contradicted = "AERR(annotation attacher.csi.dev/volume of VolumeAttachment pv1-node1 names volume handleX, and PersistentVolume \
                        pv1, which was there before and never changes its handle, is volume handle1: the annotation is wrong; a detach \
                        takes both volumes from the node; run kubectl annotate volumeattachment pv1-node1 attacher.csi.dev/volume- to \
                        have it written again)";
    play(
        vec![
            row(
                "the driver lists the former one elsewhere",
                forced(world().pv(remade().protected()).node().va(of_operator())),
                replaced,
                "R",
            ),
            row(
                "the same volume is published again",
                forced(world().pv(former()).node().va(of_operator())),
                "pub handle1 nodeID1 rw | ATT",
                "F",
            ),
            row(
                "it stands there without being compared",
                world().pv(remade().protected()).node().va(of_operator()),
                "",
                "F",
            ),
            row(
                "the volume was not made again, and its note was changed",
                forced(world().pv(older()).node().va(noted_wrongly())),
                contradicted,
                "R",
            ),
        ],
        DecideModel::attempt,
    );
}

#[test]
fn a_note_that_an_older_volume_contradicts_does_not_outweigh_it() {
    let not_attached = || noted_wrongly().set("/status/attached", false);
    let in_tree = |pv: Pv| pv.in_tree("cinder").set("/spec/cinder/volumeID", "handle1");
    play(
        vec![
            row(
                "it was made in the second of the attachment, before it or again after it",
                world().pv(former()).node().va(noted_wrongly().deleting()),
                "unpub handleX nodeID1 | FIN- | DET",
                "F",
            ),
            row(
                "it was made long before, and has lost our finalizer",
                world().pv(older()).node().va(noted_wrongly().deleting()),
                "unpub handleX nodeID1 | unpub handle1 nodeID1 | FIN- | DET",
                "F",
            ),
            row(
                "it may be attached",
                world().pv(older()).node().va(not_attached().deleting()),
                "unpub handleX nodeID1 | unpub handle1 nodeID1 | FIN- | DET",
                "F",
            ),
            row(
                "it is not known when it was made",
                world().pv(volume()).node().va(noted_wrongly().deleting()),
                "unpub handleX nodeID1 | FIN- | DET",
                "F",
            ),
            row(
                "what is translated from an in-tree volume may have another handle",
                world().pv(in_tree(older())).node().va(noted_wrongly().deleting()),
                "unpub handleX nodeID1 | FIN- | DET",
                "F",
            ),
        ],
        DecideModel::attempt,
    );
}

/// What the error asks for is not waited for until the backoff is over.
#[test]
fn the_note_of_a_person_shows_in_the_fingerprint() {
    let fingerprint = |va: Va| {
        let world = world().pv(remade()).node().va(va);
        let snapshot = world.snapshot().unwrap();
        let observed = decide::observe(&snapshot, &world.driver, &world.policy, SecretState::NotLoaded);
        decide::attachment_fingerprint(&observed)
    };
    let claimed = of_sidecar().set("/status", json!({ "attached": false }));
    let noted = claimed.clone().noted_volume(&noted());
    assert_ne!(fingerprint(claimed.clone()), fingerprint(noted.clone()));
    assert_ne!(fingerprint(claimed.deleting()), fingerprint(noted.deleting()));
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn a_volume_that_was_made_later_is_not_the_one_that_was_attached() {
    let unknown = |error: &str| -> &'static str {
        let text = format!(
            "{error}(PersistentVolume pv1 was created after VolumeAttachment pv1-node1 was attached, and nothing says which \
             volume was: it may be another one than handle2; find out which one is attached to node node1, and run kubectl annotate \
             volumeattachment pv1-node1 'attacher.csi.dev/volume={{\"handle\":\"ID\"}}')"
        );
        Box::leak(text.into_boxed_str())
    };
    let only_claimed = |error: &str| -> &'static str {
        let text = unknown(error).replace("was attached, and", "was claimed, and");
        Box::leak(text.replace("one is attached", "one may be attached").into_boxed_str())
    };
    let long_handle = "h".repeat(1000);
    let shown = format!("than {}...;", &long_handle[..256]);
    let told_to_the_end: &'static str = Box::leak(unknown("DERR").replace("than handle2;", &shown).into_boxed_str());
    play(
        vec![
            row(
                "the handle is long, and the command behind it is not cut off",
                world()
                    .pv(remade().set("/spec/csi/volumeHandle", long_handle))
                    .node()
                    .va(of_sidecar().deleting()),
                told_to_the_end,
                "R",
            ),
            row(
                "it is deleted, and no note tells its volume",
                world().pv(remade()).node().va(of_sidecar().deleting()),
                unknown("DERR"),
                "R",
            ),
            row(
                "the later volume carries our finalizer",
                world().pv(remade().protected()).node().va(of_sidecar().deleting()),
                unknown("DERR"),
                "R",
            ),
            row(
                "the note tells it",
                world().pv(remade()).node().va(of_operator().deleting()),
                "unpub handle1 nodeID1 | FIN- | DET",
                "F",
            ),
            row(
                "a person wrote the note",
                world()
                    .pv(remade())
                    .node()
                    .va(of_sidecar().noted_volume(&noted()).deleting()),
                "unpub handle1 nodeID1 | FIN- | DET",
                "F",
            ),
            row(
                "a sidecar that led in between may have published the later one",
                world()
                    .pv(remade().protected())
                    .node()
                    .va(written_by_sidecar(of_operator(), "2026-01-02T00:00:01Z").deleting()),
                "unpub handle1 nodeID1 | unpub handle2 nodeID1 | FIN- | DET",
                "F",
            ),
            row(
                "a sidecar may have been ended before it wrote the status",
                world()
                    .pv(remade().protected())
                    .node()
                    .va(of_operator().set("/status/attached", false).deleting()),
                "unpub handle1 nodeID1 | unpub handle2 nodeID1 | FIN- | DET",
                "F",
            ),
            row(
                "nobody has protected the later one",
                world()
                    .pv(remade())
                    .node()
                    .va(of_operator().set("/status/attached", false).deleting()),
                "unpub handle1 nodeID1 | FIN- | DET",
                "F",
            ),
            row(
                "a sidecar attached the former one",
                world()
                    .pv(remade().protected())
                    .node()
                    .va(written_by_sidecar(of_operator(), BEFORE).deleting()),
                "unpub handle1 nodeID1 | FIN- | DET",
                "F",
            ),
            row(
                "the later one is protected for another attachment",
                world().pv(remade().protected()).node().va(of_operator().deleting()),
                "unpub handle1 nodeID1 | FIN- | DET",
                "F",
            ),
            row(
                "it is not known when the volume was made",
                world().pv(volume().protected()).node().va(of_sidecar().deleting()),
                "unpub handle1 nodeID1 | FIN- | DET",
                "F",
            ),
            row(
                "the clocks of two API servers differ",
                world()
                    .pv(former().set("/metadata/creationTimestamp", "2026-01-01T00:00:02Z"))
                    .node()
                    .va(of_sidecar().deleting()),
                "unpub handle1 nodeID1 | FIN- | DET",
                "F",
            ),
            row(
                "it was made three seconds later, and our finalizer is on it for another attachment",
                world()
                    .pv(remade()
                        .protected()
                        .set("/metadata/creationTimestamp", "2026-01-01T00:00:03Z"))
                    .node()
                    .va(of_sidecar().deleting()),
                unknown("DERR"),
                "R",
            ),
            row(
                "the later volume is not protected in its place, and not noted",
                world().pv(remade()).node().va(of_sidecar()),
                "",
                "F",
            ),
            row(
                "a claim without a note and a later volume",
                world()
                    .pv(remade())
                    .node()
                    .va(of_sidecar().set("/status/attached", false)),
                only_claimed("AERR"),
                "R",
            ),
            row(
                "it was only claimed, and is deleted",
                world()
                    .pv(remade())
                    .node()
                    .va(of_sidecar().set("/status/attached", false).deleting()),
                only_claimed("DERR"),
                "R",
            ),
        ],
        DecideModel::attempt,
    );
}

#[test]
fn what_the_sidecar_attached_gets_a_note_while_its_volume_is_known() {
    let mut taken_over = world().pv(former()).node().va(of_sidecar());
    assert_eq!(taken_over.attempt(), Requeue::Forget);
    assert_eq!(taken_over.log, ["NOTE"]);
    // The volume is made again before the attachment is deleted.
    let mut later = taken_over.pv(remade());
    let attachment = later.attachment.take().unwrap();
    let mut later = later.va(Va(attachment).deleting());
    assert_eq!(later.attempt(), Requeue::Forget);
    assert_eq!(later.log, ["NOTE", "unpub handle1 nodeID1", "FIN-", "DET"]);
}
