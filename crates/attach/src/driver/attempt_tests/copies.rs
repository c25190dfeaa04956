//! Calls that rest on copies of objects whose watch is not at work: both a PersistentVolume and a CSINode can be made again under
//! their names meanwhile.

use super::*;
use crate::objects::CsiNodeWire;
use crate::reflect::Kind;

const NODES: &str = "/apis/storage.k8s.io/v1/csinodes/";

/// Volume pv1 with handle "h" and node n0 with ID "id0" are known, and then neither kind can be watched any more.
async fn unwatched() -> AttemptFixture {
    let stage = AttemptFixture::retrying_fast().await;
    stage.volume(&json!({"finalizers": [FINALIZER]}));
    put_node(&stage, "id0");
    for kind in [PersistentVolumeWire::PLURAL, CsiNodeWire::PLURAL] {
        stage.store.lists().set_failure(kind, Some("cannot watch".into()));
    }
    stage
}

/// What the API server has, which no watch brings.
fn put_node(stage: &AttemptFixture, node_id: &str) {
    let node = json!({
        "metadata": {"name": "n0", "uid": format!("{node_id}-uid")},
        "spec": {"drivers": [{"name": DRIVER, "nodeID": node_id}]},
    });
    stage.api.put(format!("{NODES}n0"), node);
}

fn make_volume_again(stage: &AttemptFixture) {
    let volume = json!({
        "metadata": {"name": "pv1", "uid": "second"},
        "spec": {"accessModes": ["ReadWriteOnce"], "csi": {"driver": DRIVER, "volumeHandle": "h-new"}},
    });
    stage.api.put(format!("{VOLUMES}pv1"), volume);
}

fn error_of(api: &Api, kind: &str) -> Option<String> {
    let object = api.get(&format!("{ATTACHMENTS}va0"))?;
    object["status"][kind]["message"].as_str().map(ToOwned::to_owned)
}

#[tokio::test]
async fn a_volume_that_was_made_again_is_not_published_by_its_former_handle() {
    let stage = unwatched().await;
    make_volume_again(&stage);
    stage.attachment("va0", "n0", &json!({}));
    stage.api.until(|api| AttemptFixture::is_attached(api, "va0")).await;
    let published = stage.driver.published();
    assert_eq!(published.len(), 1, "{published:?}");
    assert_eq!(stage.calls(Call::ControllerPublishVolume), 1);
    let volume = stage.api.get(&format!("{VOLUMES}pv1")).unwrap();
    assert_eq!(
        volume["metadata"]["finalizers"],
        json!([FINALIZER]),
        "the later volume is protected"
    );
    let note =
        &stage.api.get(&format!("{ATTACHMENTS}va0")).unwrap()["metadata"]["annotations"]["attacher.csi.dev/volume"];
    assert!(note.as_str().unwrap().contains("h-new"), "{note}");
}

#[tokio::test]
async fn a_node_that_came_back_with_another_id_is_published_at_that_id() {
    let stage = unwatched().await;
    put_node(&stage, "id-new");
    stage.attachment("va0", "n0", &json!({}));
    stage.api.until(|api| AttemptFixture::is_attached(api, "va0")).await;
    let object = stage.api.get(&format!("{ATTACHMENTS}va0")).unwrap();
    assert_eq!(
        object["metadata"]["annotations"]["csi.alpha.kubernetes.io/node-id"],
        "id-new"
    );
    assert_eq!(stage.calls(Call::ControllerPublishVolume), 1);
}

#[tokio::test]
async fn what_is_gone_is_not_published() {
    for what in ["volume", "node"] {
        let stage = unwatched().await;
        match what {
            "volume" => stage.api.objects.lock().remove(&format!("{VOLUMES}pv1")),
            _ => stage.api.objects.lock().remove(&format!("{NODES}n0")),
        };
        stage.attachment("va0", "n0", &json!({}));
        stage
            .api
            .until(|api| error_of(api, "attachError").is_some_and(|text| text.contains("not found")))
            .await;
        assert_eq!(stage.calls(Call::ControllerPublishVolume), 0, "{what}");
    }
}

/// What can be neither watched nor read is not known: the attachment says so, and it goes on by itself.
#[tokio::test]
async fn what_cannot_be_read_puts_the_call_off() {
    for path in ["/pv1", "/n0"] {
        let stage = unwatched().await;
        stage.api.answer_untruly(Method::GET, path, 3, 403, "no");
        stage.attachment("va0", "n0", &json!({}));
        let told =
            |api: &Api| error_of(api, "attachError").is_some_and(|text| text.contains("neither watched nor read"));
        stage.api.until(told).await;
        stage.api.until(|api| AttemptFixture::is_attached(api, "va0")).await;
        assert_eq!(stage.calls(Call::ControllerPublishVolume), 1, "{path}");
    }
}

/// What the sidecar attached, without a note of its volume, is deleted: the handle comes from the PersistentVolume.
#[tokio::test]
async fn a_detach_without_a_note_asks_for_the_volume() {
    let stage = unwatched().await;
    make_volume_again(&stage);
    let second = json!({"metadata": {"creationTimestamp": "2026-01-02T00:00:00Z"}});
    let mut volume = stage.api.get(&format!("{VOLUMES}pv1")).unwrap();
    json_patch::merge(&mut volume, &second);
    stage.api.put(format!("{VOLUMES}pv1"), volume);
    let held = json!({
        "finalizers": [FINALIZER], "deletionTimestamp": "2026-01-03T00:00:00Z", "creationTimestamp": "2026-01-01T00:00:00Z",
        "annotations": {"csi.alpha.kubernetes.io/node-id": "id0"},
    });
    stage.attachment("va0", "n0", &held);
    let told = |api: &Api| error_of(api, "detachError").is_some_and(|text| text.contains("was created after"));
    stage.api.until(told).await;
    assert_eq!(stage.calls(Call::ControllerUnpublishVolume), 0);
}

/// The node ID that was noted was taken off: then the CSINode alone says where the volume is.
#[tokio::test]
async fn a_detach_without_a_node_id_asks_for_the_node() {
    let stage = unwatched().await;
    put_node(&stage, "id-new");
    let held = json!({
        "finalizers": [FINALIZER], "deletionTimestamp": "2026-01-03T00:00:00Z",
        "annotations": {"attacher.csi.dev/volume": "{\"handle\":\"h\"}"},
    });
    stage.attachment("va0", "n0", &held);
    stage
        .api
        .until(|api| api.get(&format!("{ATTACHMENTS}va0")).is_none())
        .await;
    let called = stage.driver.calls_of(Call::ControllerUnpublishVolume);
    let nodes: Vec<_> = called.iter().map(|call| call.node.as_deref()).collect();
    assert_eq!(nodes, [Some("id-new")]);
}

/// While watches are at work nothing is read.
#[tokio::test]
async fn no_read_while_the_watches_are_at_work() {
    let stage = unwatched().await;
    for kind in [PersistentVolumeWire::PLURAL, CsiNodeWire::PLURAL] {
        stage.store.lists().set_failure(kind, None);
    }
    stage.attachment("va0", "n0", &json!({}));
    stage.api.until(|api| AttemptFixture::is_attached(api, "va0")).await;
    assert_eq!(*stage.api.reads.lock(), Vec::<String>::new());
}
