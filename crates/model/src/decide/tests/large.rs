//! What is not kept as a whole: publish contexts, and large fields of volumes.

use serde_json::json;
use std::collections::BTreeMap;

use super::builders::{attachment, volume};
use super::world::{ready, world};

/// The keys are not known here, so that the map is replaced; what others wrote meanwhile is a reason to look again.
#[test]
fn an_older_publish_context_is_replaced_as_a_whole() {
    let old = attachment()
        .claimed()
        .set("/status/attachmentMetadata", json!({"old": "1"}))
        .set("/status/attachError", json!({"message": "m"}));
    let mut world = ready()
        .va(old.clone())
        .answer(Ok(BTreeMap::from([("new".to_owned(), "2".to_owned())])));
    world.attempt();
    let wanted = json!({"attached": true, "attachError": null, "attachmentMetadata": {"new": "2"}});
    assert_eq!(world.attachment.unwrap()["status"], wanted);
    let mut world = ready().va(old).answer(Ok(BTreeMap::new()));
    world.attempt();
    assert_eq!(world.attachment.unwrap()["status"], json!({"attached": true}));
}

#[test]
fn a_volume_that_is_not_kept_as_a_whole_is_refused() {
    let large = volume().set("/spec/csi/volumeAttributes", json!({"key": "v".repeat(70_000)}));
    let mut world = world().node().pv(large).va(attachment());
    world.attempt();
    let error = &world.attachment.as_ref().unwrap()["status"]["attachError"]["message"];
    assert_eq!(
        error,
        "spec.csi.volumeAttributes of PersistentVolume pv1 has 70051 bytes, 48 for each entry among them, and at most 65536 are supported; \
         make the volume with a smaller spec.csi.volumeAttributes"
    );
    assert!(world.attachment.unwrap()["metadata"].get("finalizers").is_none());
}

/// A note of which a part is left out is no missing note: nothing is called for a guess, and what it says is not written over.
#[test]
fn an_attachment_with_a_note_that_is_not_kept_as_a_whole_is_refused() {
    let places: Vec<_> = (0..2_000)
        .map(|at| json!({"handle": "handle1", "nodeID": format!("n{at}")}))
        .collect();
    let note = json!({"handle": "handle1", "former": places});
    let claimed = || attachment().claimed().noted_volume(&note);
    let huge = json!({"handle": "h".repeat(70_000)});
    let without_handle = || attachment().claimed().noted_volume(&huge);
    let newer = json!({"handle": "handle1", "former": [{"handle": "handle1", "node": "n1"}]});
    let unreadable = || attachment().claimed().noted_volume(&newer);
    let rows = [
        (claimed(), "attachError"),
        (claimed().deleting(), "detachError"),
        (claimed().attached().deleting(), "detachError"),
        (without_handle(), "attachError"),
        (without_handle().deleting(), "detachError"),
        (unreadable(), "attachError"),
        (attachment().noted_volume(&newer), "attachError"),
        (unreadable().attached().deleting(), "detachError"),
    ];
    for (object, field) in rows {
        let written = object.0["metadata"]["annotations"].clone();
        let mut world = ready().va(object);
        world.attempt();
        let object = world.attachment.unwrap();
        let error = object["status"][field]["message"].as_str().unwrap_or_default();
        assert!(
            error.starts_with("annotation attacher.csi.dev/volume of VolumeAttachment pv1-node1 ")
                && error.contains("that nothing says for certain where the volume may be"),
            "{field}: {error:?}, {:?}",
            world.log
        );
        assert_eq!(object["metadata"]["annotations"], written);
        let is_call = |step: &String| step.starts_with("pub") || step.starts_with("unpub");
        assert!(!world.log.iter().any(is_call), "{:?}", world.log);
    }
    // What is attached stays so, and its note too.
    for object in [claimed(), without_handle(), unreadable()] {
        let object = object.attached();
        let before = object.0.clone();
        let mut world = ready().va(object);
        world.attempt();
        assert_eq!(world.attachment, Some(before));
    }
}

/// The claim would add a place to a note that is as large as it may be.
#[test]
fn a_claim_that_would_make_the_note_too_large_is_refused() {
    let place = |at: usize| json!({"handle": "handle1", "nodeID": format!("n{at:04}")});
    let places: Vec<_> = (0..1_091).map(place).collect();
    let note = json!({"handle": "handle1", "former": places});
    let object = attachment().claimed().noted_node("former-node").noted_volume(&note);
    let mut world = ready().va(object);
    assert!(world.snapshot().unwrap().attachment.note_fault.is_none());
    world.attempt();
    let object = world.attachment.unwrap();
    let error = object["status"]["attachError"]["message"].as_str().unwrap_or_default();
    assert!(
        error.contains("and at most 65536 are supported"),
        "{error:?}, {:?}",
        world.log
    );
    let kept = object["metadata"]["annotations"][crate::api::names::VOLUME_ANNOTATION].as_str();
    assert_eq!(kept, Some(&*note.to_string()));
}

/// Ours goes on and off a list of which a part is left out, and that of others stays.
#[test]
fn our_finalizer_goes_on_and_off_a_list_that_is_not_kept_as_a_whole() {
    let others = vec!["a/b"; 3_000];
    let mut world = world()
        .node()
        .pv(volume().finalizers(&others))
        .va(attachment().finalizers(&others));
    world.attempt();
    let with_ours = |object: &serde_json::Value| {
        let list = object["metadata"]["finalizers"].as_array().unwrap();
        assert_eq!(list.len(), 3_001);
        assert_eq!(list[3_000], super::builders::FINALIZER);
    };
    with_ours(world.attachment.as_ref().unwrap());
    with_ours(world.volume.as_ref().unwrap());
    assert_eq!(world.attachment.as_ref().unwrap()["status"]["attached"], true);
    for object in [&mut world.attachment, &mut world.volume] {
        object.as_mut().unwrap()["metadata"]["deletionTimestamp"] = json!(super::builders::DELETED_AT);
    }
    world.attempt();
    world.volume_attempt(0);
    for object in [&world.attachment, &world.volume] {
        assert_eq!(object.as_ref().unwrap()["metadata"]["finalizers"], json!(others));
    }
}

/// A copy that is stale is found out by its version where the list cannot be tested.
#[test]
fn a_stale_copy_does_not_put_our_finalizer_twice_on_a_long_list() {
    let others = vec!["a/b"; 3_000];
    let world = world().pv(volume().finalizers(&others).set("/metadata/resourceVersion", "7"));
    let write = crate::decide::patch::protect_volume(&world.volume_record().unwrap(), super::builders::FINALIZER);
    let tests: Vec<_> = write
        .body
        .as_array()
        .unwrap()
        .iter()
        .filter(|step| step["op"] == "test")
        .collect();
    let wanted = &json!({"op": "test", "path": "/metadata/resourceVersion", "value": "7"});
    assert_eq!(tests[1], wanted);
    assert_eq!(tests.len(), 2);
}
