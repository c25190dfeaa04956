//! Which volume, at which node ID, an attachment stands for, where what says so was changed, blanked or made again.

use serde_json::json;

use super::builders::{FINALIZER, GCE_DRIVER, GCE_FINALIZER, NODE_ID, Pv, Va, attachment, gce_volume, volume};
use super::table::{done, play, retried};
use super::world::{Requeue, gce_world, on_node, ready, world};
use crate::api::names::NODE_ID_ANNOTATION;

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

#[test]
fn a_blank_id_is_no_id() {
    let blank = |id: &str| of_operator().annotation(NODE_ID_ANNOTATION, id).deleting();
    let no_place = format!(
        "DERR(annotation {NODE_ID_ANNOTATION} of the VolumeAttachment is blank, and csinode.storage.k8s.io \"node1\" not \
         found: the node ID at which the volume is attached is unknown; set the annotation to that node ID)"
    );
    let no_place: &'static str = Box::leak(no_place.into_boxed_str());
    let gone = |id: &str| world().pv(former()).va(blank(id));
    let blank_node =
        "AERR(CSINode node1 has a blank node ID for driver csi/test; restart the driver's pod on that node)";
    play(vec![
        retried(no_place).when(vec![
            ("the annotation is empty, and the CSINode gone", gone("")),
            ("it is one space", gone(" ")),
        ]),
        done("unpub handle1 nodeID1 | FIN- | DET").when(vec![
            ("the CSINode says where the node is", on_node(former()).va(blank(""))),
            (
                "the CSINode has a blank ID, and the annotation says where it was attached",
                world().pv(former()).node_of(Some("")).va(of_operator().deleting()),
            ),
            (
                "the note names no volume",
                on_node(former()).va(of_sidecar().noted_volume(&json!({"handle": ""})).deleting()),
            ),
            (
                "a former place is blank",
                on_node(former()).va(of_sidecar()
                    .noted_volume(&json!({"handle": "handle1", "former": [{"handle": "handle1", "nodeID": ""}]}))
                    .deleting()),
            ),
        ]),
        retried(blank_node).when(vec![(
            "the CSINode has a blank ID",
            world().pv(former()).node_of(Some(" ")).va(attachment()),
        )]),
        retried("AERR(the volumeHandle of the volume is blank)").when(vec![(
            "the handle of the volume is one space",
            on_node(former().set("/spec/csi/volumeHandle", " ")).va(attachment()),
        )]),
    ]);
}

#[test]
fn what_is_attached_is_never_published_as_another_volume() {
    let replaced = "AERR(VolumeAttachment pv1-node1 is attached with volume handle1, and PersistentVolume pv1 is volume handle2 \
                    since it was created again; delete the VolumeAttachment once no pod on the node uses the volume)";
    let contradicted = "AERR(annotation attacher.csi.dev/volume of VolumeAttachment pv1-node1 names volume handleX, and PersistentVolume \
                        pv1, which was there before and never changes its handle, is volume handle1: the annotation is wrong; a detach \
                        takes both volumes from the node; run kubectl annotate volumeattachment pv1-node1 attacher.csi.dev/volume- to \
                        have it written again)";
    play(vec![
        retried(replaced).when(vec![(
            "the driver lists the former one elsewhere",
            on_node(remade().protected()).va(of_operator()).forced(),
        )]),
        done("pub handle1 nodeID1 rw | ATT").when(vec![(
            "the same volume is published again",
            on_node(former()).va(of_operator()).forced(),
        )]),
        done("").when(vec![(
            "it stands there without being compared",
            on_node(remade().protected()).va(of_operator()),
        )]),
        retried(contradicted).when(vec![(
            "the volume was not made again, and its note was changed",
            on_node(older()).va(noted_wrongly()).forced(),
        )]),
    ]);
}

/// The handle of an in-tree volume is made of its labels as well, and an administrator may change them: it is the volume that it was.
#[test]
fn a_volume_whose_labels_were_changed_was_not_made_again() {
    let before = "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/testpd";
    let since = |time: &str| {
        let attached = of_sidecar()
            .set("/spec/attacher", GCE_DRIVER)
            .finalizers(&[GCE_FINALIZER]);
        let volume = gce_volume()
            .finalizers(&[GCE_FINALIZER])
            .set("/metadata/creationTimestamp", time);
        let attached = attached.noted_volume(&json!({"handle": before}));
        gce_world().pv(volume).node().va(attached).forced()
    };
    let replaced = "AERR(VolumeAttachment pv1-node1 is attached with volume projects/UNSPECIFIED/zones/UNSPECIFIED/disks/testpd, and \
                    PersistentVolume pv1 is volume projects/UNSPECIFIED/zones/testZone/disks/testpd since it was created again; delete \
                    the VolumeAttachment once no pod on the node uses the volume)";
    play(vec![
        done(
            "NOTE former projects/UNSPECIFIED/zones/UNSPECIFIED/disks/testpd@nodeID1 | \
             pub projects/UNSPECIFIED/zones/testZone/disks/testpd nodeID1 rw ctx{\"partition\": \"\"} | ATT",
        )
        .when(vec![(
            "it is published as it is called now, and a detach will ask for both",
            since("2025-01-01T00:00:00Z"),
        )]),
        retried(replaced).when(vec![
            ("it was made later", since(LATER)),
            ("or in the second of the attachment", since(BEFORE)),
        ]),
    ]);
}

#[test]
fn a_note_that_an_older_volume_contradicts_does_not_outweigh_it() {
    let not_attached = || noted_wrongly().set("/status/attached", false);
    let detaching = |volume: Pv| on_node(volume).va(noted_wrongly().deleting());
    let in_tree = |pv: Pv| pv.in_tree("cinder").set("/spec/cinder/volumeID", "handle1");
    play(vec![
        done("unpub handleX nodeID1 | FIN- | DET").when(vec![
            (
                "it was made in the second of the attachment, before it or again after it",
                detaching(former()),
            ),
            ("it is not known when it was made", detaching(volume())),
            (
                "what is translated from an in-tree volume may have another handle",
                detaching(in_tree(older())),
            ),
        ]),
        done("unpub handleX nodeID1 | unpub handle1 nodeID1 | FIN- | DET").when(vec![
            (
                "it was made long before, and has lost our finalizer",
                detaching(older()),
            ),
            ("it may be attached", on_node(older()).va(not_attached().deleting())),
        ]),
    ]);
}

/// What the error asks for is not waited for until the backoff is over.
#[test]
fn the_note_of_a_person_shows_in_the_fingerprint() {
    let fingerprint = |va: Va| on_node(remade()).va(va).fingerprint();
    let claimed = of_sidecar().set("/status", json!({ "attached": false }));
    let noted = claimed.clone().noted_volume(&noted());
    assert_ne!(fingerprint(claimed.clone()), fingerprint(noted.clone()));
    assert_ne!(fingerprint(claimed.deleting()), fingerprint(noted.deleting()));
}

/// The error where nobody knows which volume was attached.
fn unknown(error: &str) -> &'static str {
    let text = format!(
        "{error}(PersistentVolume pv1 was created after VolumeAttachment pv1-node1 was attached, and nothing says which \
         volume was: it may be another one than handle2; find out which one is attached to node node1, and run kubectl annotate \
         volumeattachment pv1-node1 'attacher.csi.dev/volume={{\"handle\":\"ID\"}}' --overwrite)"
    );
    Box::leak(text.into_boxed_str())
}

/// A detach has to be given the Secret of the attach, and a person pastes the command as it stands.
#[test]
fn the_note_that_a_person_is_asked_for_has_the_secret_of_the_volume() {
    let noting = |name: &str| -> &'static str {
        let secret = format!(r#"{{"handle":"ID","secret":{{"namespace":"default","name":"{name}"}}}}"#);
        let text = unknown("DERR").replace(r#"{"handle":"ID"}"#, &secret);
        Box::leak(text.into_boxed_str())
    };
    let detaching = |volume: Pv| on_node(volume).va(of_sidecar().deleting());
    let noted = json!({"handle": "handle1", "secret": {"namespace": "default", "name": "secret"}});
    play(vec![
        retried(noting("secret")).when(vec![(
            "the PersistentVolume names a Secret",
            detaching(remade().secret("secret")),
        )]),
        retried(noting("NAME")).when(vec![(
            "a shell would not take its name as it is",
            detaching(remade().secret("it's")),
        )]),
        retried(unknown("DERR")).when(vec![
            (
                "the driver may not be given it",
                detaching(remade().set(
                    "/spec/csi/controllerPublishSecretRef",
                    json!({"namespace": "other", "name": "secret"}),
                )),
            ),
            (
                "it is that of another driver",
                detaching(remade().secret("secret").set("/spec/csi/driver", "other")),
            ),
        ]),
        done(r#"SEC(secret) | unpub handle1 nodeID1 secrets{"foo": "bar"} | FIN- | DET"#).when(vec![(
            "a person wrote that note",
            on_node(remade().secret("secret")).va(of_sidecar().noted_volume(&noted).deleting()),
        )]),
    ]);
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn a_volume_that_was_made_later_is_not_the_one_that_was_attached() {
    let only_claimed = |error: &str| -> &'static str {
        let text = unknown(error).replace("was attached, and", "was claimed, and");
        Box::leak(text.replace("one is attached", "one may be attached").into_boxed_str())
    };
    let long_handle = "h".repeat(1000);
    let shown = format!("than {}...;", &long_handle[..256]);
    let told_to_the_end: &'static str = Box::leak(unknown("DERR").replace("than handle2;", &shown).into_boxed_str());
    let (sidecar, operator) = (|| of_sidecar().deleting(), || of_operator().deleting());
    let later = |va: Va| on_node(remade()).va(va);
    let protected = |va: Va| on_node(remade().protected()).va(va);
    let unattached = |va: Va| va.set("/status/attached", false);
    play(vec![
        retried(told_to_the_end).when(vec![(
            "the handle is long, and the command behind it is not cut off",
            on_node(remade().set("/spec/csi/volumeHandle", long_handle)).va(of_sidecar().deleting()),
        )]),
        retried(unknown("DERR")).when(vec![
            ("it is deleted, and no note tells its volume", later(sidecar())),
            ("the later volume carries our finalizer", protected(sidecar())),
            (
                "it was made three seconds later, and our finalizer is on it for another attachment",
                on_node(
                    remade()
                        .protected()
                        .set("/metadata/creationTimestamp", "2026-01-01T00:00:03Z"),
                )
                .va(of_sidecar().deleting()),
            ),
        ]),
        done("unpub handle1 nodeID1 | FIN- | DET").when(vec![
            ("the note tells it", later(operator())),
            ("a person wrote the note", later(sidecar().noted_volume(&noted()))),
            ("nobody has protected the later one", later(unattached(operator()))),
            (
                "a sidecar attached the former one",
                on_node(remade().protected()).va(written_by_sidecar(of_operator(), BEFORE).deleting()),
            ),
            (
                "the later one is protected for another attachment",
                on_node(remade().protected()).va(of_operator().deleting()),
            ),
            ("it is not known when the volume was made", ready().va(sidecar())),
            (
                "the clocks of two API servers differ",
                on_node(former().set("/metadata/creationTimestamp", "2026-01-01T00:00:02Z"))
                    .va(of_sidecar().deleting()),
            ),
        ]),
        done("unpub handle1 nodeID1 | unpub handle2 nodeID1 | FIN- | DET").when(vec![
            (
                "a sidecar that led in between may have published the later one",
                on_node(remade().protected()).va(written_by_sidecar(of_operator(), "2026-01-02T00:00:01Z").deleting()),
            ),
            (
                "a sidecar may have been ended before it wrote the status",
                on_node(remade().protected()).va(of_operator().set("/status/attached", false).deleting()),
            ),
        ]),
        done("").when(vec![(
            "the later volume is not protected in its place, and not noted",
            on_node(remade()).va(of_sidecar()),
        )]),
        retried(only_claimed("AERR")).when(vec![(
            "a claim without a note and a later volume",
            on_node(remade()).va(of_sidecar().set("/status/attached", false)),
        )]),
        retried(only_claimed("DERR")).when(vec![(
            "it was only claimed, and is deleted",
            on_node(remade()).va(of_sidecar().set("/status/attached", false).deleting()),
        )]),
    ]);
}

#[test]
fn what_the_sidecar_attached_gets_a_note_while_its_volume_is_known() {
    let mut taken_over = on_node(former()).va(of_sidecar());
    assert_eq!(taken_over.attempt(), Requeue::Forget);
    assert_eq!(taken_over.log, ["NOTE"]);
    // The volume is made again before the attachment is deleted.
    let mut later = taken_over.pv(remade());
    let attachment = later.attachment.take().unwrap();
    let mut later = later.va(Va(attachment).deleting());
    assert_eq!(later.attempt(), Requeue::Forget);
    assert_eq!(later.log, ["NOTE", "unpub handle1 nodeID1", "FIN-", "DET"]);
}
