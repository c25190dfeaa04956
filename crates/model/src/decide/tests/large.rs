//! What is not kept as a whole: publish contexts, and large fields of volumes.

use serde_json::json;
use std::collections::BTreeMap;

use super::builders::{attachment, volume};
use super::world::{DecideModel, world};

fn ready() -> DecideModel {
    world().pv(volume().protected()).node()
}

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
    assert_eq!(
        world.attachment.unwrap()["status"],
        json!({"attached": true, "attachError": null, "attachmentMetadata": {"new": "2"}})
    );
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
        "spec.csi.volumeAttributes of PersistentVolume pv1 has 70003 bytes, and at most 65536 are supported; make the volume with a \
         smaller spec.csi.volumeAttributes"
    );
    assert!(world.attachment.unwrap()["metadata"].get("finalizers").is_none());
}
