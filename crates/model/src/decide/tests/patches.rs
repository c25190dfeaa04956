//! Names and patches: section 8.9 of the sidecar's behaviour.

use serde_json::{Value, json};

use super::api_server::apply;
use super::builders::{ATTACHMENT_UID, FINALIZER, VOLUME_UID, Va, attachment, volume};
use super::table::tally;
use super::world::world;
use crate::api::names::{finalizer_name, sanitise_driver_name};
use crate::decide::Failure;
use crate::decide::patch::{self, PatchType, Write, WriteTarget};
use crate::objects::{Attachment, Volume};

fn volume_with(finalizers: &[&str]) -> Volume {
    world().pv(volume().finalizers(finalizers)).volume_record().unwrap()
}

fn attachment_with(finalizers: &[&str]) -> Attachment {
    let world = world().va(attachment().finalizers(finalizers));
    (*world.snapshot().unwrap().attachment).clone()
}

/// The operations after the test of the UID.
fn operations(write: Write, uid: &str) -> Value {
    assert_eq!(write.form, PatchType::Json);
    let Value::Array(mut list) = write.body else {
        panic!("no list")
    };
    let wanted = json!({"op": "test", "path": "/metadata/uid", "value": uid});
    assert_eq!(list.remove(0), wanted);
    list.into()
}

#[test]
fn names() {
    let sanitised = [
        ("no-Change", "no-Change"),
        ("not!allowed/characters", "not-allowed-characters"),
        ("trailing\\", "trailing-X"),
    ];
    tally("8.9", "sanitised driver name", sanitised.len());
    let more = [
        ("trailing-", "trailing-X"),
        ("ebs.csi.aws.com", "ebs-csi-aws-com"),
        ("ünïcode", "-n-code"),
        ("", ""),
    ];
    for (name, wanted) in sanitised.into_iter().chain(more) {
        assert_eq!(sanitise_driver_name(name), wanted);
    }
    let finalizers = [
        ("no-Change", "external-attacher/no-Change"),
        ("s!a@n#i$t(i%z^e&d*", "external-attacher/s-a-n-i-t-i-z-e-d-X"),
    ];
    tally("8.9", "finalizer name", finalizers.len());
    for (name, wanted) in finalizers {
        assert_eq!(finalizer_name(name), wanted);
    }
    let expected = finalizer_name("a-b");
    assert_eq!(finalizer_name("a.b"), expected, "different drivers can collide");
}

/// Divergence: the whole list is tested, so that a stale copy cannot add ours twice. An empty list is an absent one, as the
/// API server stores neither.
#[test]
fn adding_a_finalizer() {
    let none = json!([
        {"op": "test", "path": "/metadata/finalizers", "value": null},
        {"op": "add", "path": "/metadata/finalizers", "value": [FINALIZER]},
    ]);
    let some = json!([
        {"op": "test", "path": "/metadata/finalizers", "value": ["a/b", "c/d"]},
        {"op": "add", "path": "/metadata/finalizers/-", "value": FINALIZER},
    ]);
    let rows: [(Option<&[&str]>, &Value); 3] = [(None, &none), (Some(&[]), &none), (Some(&["a/b", "c/d"]), &some)];
    tally("8.9", "patch that adds a finalizer", rows.len());
    for (finalizers, wanted) in rows {
        let record = finalizers.map_or_else(|| world().pv(volume()).volume_record().unwrap(), volume_with);
        let found = operations(patch::protect_volume(&record, FINALIZER), VOLUME_UID);
        assert_eq!(found, *wanted);
    }
}

#[test]
fn removing_a_finalizer() {
    let rows: [(&[&str], Option<usize>); 6] = [
        (&[FINALIZER], Some(0)),
        (&[FINALIZER, "a/b", "c/d"], Some(0)),
        (&["a/b", FINALIZER, "c/d"], Some(1)),
        (&["a/b", FINALIZER], Some(1)),
        (&["a/b", "c/d"], None),
        (&[], None),
    ];
    tally("8.9", "patch that removes a finalizer", rows.len());
    for (finalizers, at) in rows {
        let wanted = at.map(|at| {
            let path = format!("/metadata/finalizers/{at}");
            json!([{"op": "test", "path": path, "value": FINALIZER}, {"op": "remove", "path": path}])
        });
        let volume = Volume {
            deleting: true,
            ..volume_with(finalizers)
        };
        let of_volume = patch::release_volume(&volume, FINALIZER);
        let found = of_volume.map(|write| operations(write, VOLUME_UID));
        assert_eq!(found, wanted, "{finalizers:?}");
        // Divergence: a JSON patch for the attachment as well, where the sidecar replaces the list by a merge patch.
        let of_attachment = patch::release(&attachment_with(finalizers), FINALIZER);
        let found = of_attachment.map(|write| operations(write, ATTACHMENT_UID));
        assert_eq!(found, wanted, "{finalizers:?}");
    }
}

/// Whoever put it there twice, an answer that shows it still would be taken for the work of a webhook.
#[test]
fn a_finalizer_that_is_there_twice_is_removed_at_once() {
    let finalizers = [FINALIZER, "a/b", FINALIZER];
    let object = attachment().finalizers(&finalizers);
    let write = patch::release(&attachment_with(&finalizers), FINALIZER).unwrap();
    let patched = apply(&object.0, &write).unwrap();
    assert_eq!(patched["metadata"]["finalizers"], json!(["a/b"]));
    let write = patch::release_volume(&volume_with(&finalizers), FINALIZER).unwrap();
    let patched = apply(&volume().finalizers(&finalizers).0, &write).unwrap();
    assert_eq!(patched["metadata"]["finalizers"], json!(["a/b"]));
}

/// In one write, of which the API server takes all or nothing. Where our finalizer alone keeps the object, that is what goes.
#[test]
fn what_was_noted_goes_with_the_finalizer_where_another_keeps_the_object() {
    let noted = |finalizers: &[&str]| {
        let note = json!({"handle": "handle1"});
        let object = attachment()
            .noted_node(" ")
            .noted_volume(&note)
            .annotation("some~one/else", "kept");
        object.finalizers(finalizers)
    };
    let release = |object: &Va| {
        let record = world().va(object.clone()).snapshot().unwrap().attachment;
        patch::release(&record, FINALIZER).unwrap()
    };
    let kept = noted(&["a/b", FINALIZER]);
    let write = release(&kept);
    let others = json!({"some~one/else": "kept"});
    let patched = apply(&kept.0, &write).unwrap();
    assert_eq!(patched["metadata"]["annotations"], others);
    assert_eq!(patched["metadata"]["finalizers"], json!(["a/b"]));
    let changed = kept.set("/metadata/annotations", others);
    let is_refused = apply(&changed.0, &write).is_err();
    assert!(is_refused, "it is made again from what is there");
    assert_eq!(
        operations(release(&noted(&[FINALIZER])), ATTACHMENT_UID),
        json!([
            {"op": "test", "path": "/metadata/finalizers/0", "value": FINALIZER},
            {"op": "remove", "path": "/metadata/finalizers/0"},
        ])
    );
}

#[test]
fn a_finalizer_is_put_back_beside_those_of_others() {
    let object = attachment().noted_node("n").finalizers(&["a/b"]).attached();
    let record = world().va(object.clone()).snapshot().unwrap().attachment;
    let write = patch::hold_again(&record, FINALIZER);
    let mut patched = apply(&object.0, &write).unwrap();
    assert_eq!(patched["metadata"]["finalizers"], json!(["a/b", FINALIZER]));
    patched["metadata"]["finalizers"] = json!(["a/b"]);
    assert_eq!(patched, object.0, "nothing else is written");
    let changed = object.set("/metadata/resourceVersion", "2");
    assert!(apply(&changed.0, &write).is_err(), "it may be deleted by now");
}

#[test]
fn a_claim_keeps_annotations_and_escapes_their_keys() {
    let object = attachment().annotation("some~one/else", "kept").finalizers(&["a/b"]);
    let world = world().pv(volume()).va(object.clone());
    let snapshot = world.snapshot().unwrap();
    let source = snapshot.volume.as_ref().unwrap().spec.csi().unwrap();
    let write = patch::claim(&snapshot.attachment, &world.driver, "n", source).unwrap();
    let patched = apply(&object.0, &write).unwrap();
    assert_eq!(
        patched["metadata"]["annotations"],
        json!({
            "some~one/else": "kept",
            "csi.alpha.kubernetes.io/node-id": "n",
            "attacher.csi.dev/volume": r#"{"handle":"handle1"}"#,
        })
    );
    assert_eq!(patched["metadata"]["finalizers"], json!(["a/b", FINALIZER]));
}

/// What is noted is evidence of a call, whoever took the finalizer off.
#[test]
fn a_claim_keeps_the_former_places_of_what_lost_the_finalizer() {
    let note = json!({"handle": "handle1", "former": [{"handle": "handle1", "nodeID": "nodeID0"}]});
    let object = attachment().noted_node("nodeID1").noted_volume(&note);
    let world = world().pv(volume()).va(object.clone());
    let snapshot = world.snapshot().unwrap();
    let source = snapshot.volume.as_ref().unwrap().spec.csi().unwrap();
    let write = patch::claim(&snapshot.attachment, &world.driver, "nodeID2", source).unwrap();
    let patched = apply(&object.0, &write).unwrap();
    let note = patched["metadata"]["annotations"]["attacher.csi.dev/volume"].as_str();
    let note: Value = serde_json::from_str(note.unwrap()).unwrap();
    let place = |id: &str| json!({"handle": "handle1", "nodeID": id});
    assert_eq!(note["former"], json!([place("nodeID0"), place("nodeID1")]));
}

/// The trace context goes along in the same write, and changes nothing else of it.
#[test]
fn a_claim_takes_the_trace_context_along() {
    const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let rows = [
        attachment(),
        attachment().annotation("some~one/else", "kept"),
        attachment().annotation("attacher.csi.dev/traceparent", "an older one"),
        attachment().annotation("tracing.k8s.io/traceparent", "of somebody else"),
    ];
    for object in rows {
        let world = world().pv(volume()).va(object.clone());
        let snapshot = world.snapshot().unwrap();
        let source = snapshot.volume.as_ref().unwrap().spec.csi().unwrap();
        let write = patch::claim(&snapshot.attachment, &world.driver, "n", source).unwrap();
        let mut wanted = apply(&object.0, &write).unwrap();
        wanted["metadata"]["annotations"]["attacher.csi.dev/traceparent"] = TRACE.into();
        assert_eq!(apply(&object.0, &patch::with_trace(write, TRACE)).unwrap(), wanted);

        let noted = patch::note_trace(&snapshot.attachment, TRACE);
        let mut wanted = object.0.clone();
        wanted["metadata"]["annotations"]["attacher.csi.dev/traceparent"] = TRACE.into();
        let noted = apply(&object.0, &noted).unwrap();
        assert_eq!(noted["metadata"]["annotations"], wanted["metadata"]["annotations"]);
    }
}

/// Somebody who writes a trace context on an object wakes nobody, and neither do we.
#[test]
fn trace_contexts_are_no_change() {
    let fingerprint = |object: Va| world().pv(volume()).va(object).fingerprint();
    for key in ["attacher.csi.dev/traceparent", "tracing.k8s.io/traceparent"] {
        let wanted = fingerprint(attachment().annotation(key, "00-1-2-01"));
        assert_eq!(fingerprint(attachment()), wanted);
    }
}

#[test]
fn what_an_attach_came_to_is_refused_once_the_attachment_was_changed() {
    let record = attachment_with(&[FINALIZER]);
    let failure = Failure::plain("no");
    let changed = attachment()
        .finalizers(&[FINALIZER])
        .set("/metadata/resourceVersion", "9")
        .0;
    let of_attach = [
        patch::attached(&record, None),
        patch::attach_error(&record, &failure, jiff::Timestamp::UNIX_EPOCH),
    ];
    for write in of_attach {
        assert!(apply(&changed, &write).is_err(), "{write:?}");
    }
    // What was taken back is taken back, whatever else happened to the object.
    let of_detach = [
        patch::detached(&record),
        patch::detach_error(&record, &failure, jiff::Timestamp::UNIX_EPOCH),
        patch::release(&record, FINALIZER).unwrap(),
    ];
    for write in of_detach {
        assert!(apply(&changed, &write).is_ok(), "{write:?}");
    }
}

#[test]
fn a_write_for_an_object_that_was_replaced_is_refused() {
    let record = attachment_with(&[FINALIZER]);
    let object = attachment().finalizers(&[FINALIZER]).set("/metadata/uid", "another").0;
    let writes = [
        patch::release(&record, FINALIZER).unwrap(),
        patch::attached(&record, None),
        patch::detached(&record),
    ];
    for write in writes {
        assert!(apply(&object, &write).is_err(), "{write:?}");
    }
    let restored = volume().protected().set("/metadata/uid", "another").0;
    let record = volume_with(&[FINALIZER]);
    assert!(apply(&restored, &patch::release_volume(&record, FINALIZER).unwrap()).is_err());
    let wanted = WriteTarget::AttachmentStatus("pv1-node1".into());
    assert_eq!(patch::detached(&attachment_with(&[])).target, wanted);
}

/// A renewal changes the note alone, and only of the claim that was read.
#[test]
fn a_claim_is_renewed() {
    let note = |renewed: Option<u32>| {
        let former = json!([{"handle": "handle0", "nodeID": "nodeID0"}]);
        let secret = json!({"namespace": "ns", "name": "secret"});
        let mut note = json!({"handle": "handle1", "secret": secret, "former": former});
        if let Some(renewed) = renewed {
            note["renewed"] = renewed.into();
        }
        note
    };
    let record = |va: Va| world().va(va).snapshot().unwrap().attachment;
    let found = patch::renew(&record(attachment().claimed()));
    assert_eq!(found, None, "the claim of a sidecar");
    for (before, after) in [(None, 1), (Some(1), 2), (Some(u32::MAX), 0)] {
        let claimed = attachment().claimed().noted_volume(&note(before));
        let write = patch::renew(&record(claimed.clone())).unwrap();
        let renewed = apply(&claimed.0, &write).unwrap();
        let mut wanted = record(claimed.clone()).as_ref().clone();
        wanted.volume_note.as_mut().unwrap().renewed = after;
        assert_eq!(*record(Va(renewed)), wanted);
        let changed = claimed.set("/metadata/resourceVersion", "2");
        assert!(apply(&changed.0, &write).is_err(), "it may be attached by now");
    }
}
