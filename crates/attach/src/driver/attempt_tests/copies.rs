//! Calls, Secrets and refusals that rest on copies of objects whose watch is not at work: both a PersistentVolume and a CSINode can be
//! made again under their names meanwhile. And objects that the cache does not have.

use super::*;
use crate::api::PublishSecretsSpec;
use crate::objects::CsiNodeWire;
use crate::reflect::Kind;
use csi_attacher_testbed::api_answers::refusal;

const NODES: &str = "/apis/storage.k8s.io/v1/csinodes/";

/// Volume pv1 with handle "h" and node n0 with ID "id0" are known, and then neither kind can be watched any more.
async fn unwatched() -> AttemptFixture {
    let stage = AttemptFixture::retrying_fast().await;
    stage.volume(&json!({"finalizers": [FINALIZER]}));
    put_node(&stage, "id0");
    break_watches(&stage);
    stage
}

fn break_watches(stage: &AttemptFixture) {
    for kind in [PersistentVolumeWire::PLURAL, CsiNodeWire::PLURAL] {
        stage.store.lists().set_failure(kind, Some("cannot watch".into()));
    }
}

/// Nothing is known. The driver may be given the Secrets of namespace ns.
async fn empty() -> AttemptFixture {
    AttemptFixture::with(Api::default(), DRIVER, |spec| {
        retry(spec, "50ms", "200ms");
        spec.publish_secrets = vec![PublishSecretsSpec {
            namespace: "ns".to_owned(),
            names: None,
        }];
    })
    .await
}

/// Volume pv1 of handle "h", with changes.
fn volume(changes: &Value) -> Value {
    let mut volume = json!({
        "metadata": {"name": "pv1", "uid": "pv-uid"},
        "spec": {"accessModes": ["ReadWriteOnce"], "csi": {"driver": DRIVER, "volumeHandle": "h"}},
    });
    json_patch::merge(&mut volume, changes);
    volume
}

fn with_secret(name: &str) -> Value {
    json!({"spec": {"csi": {"controllerPublishSecretRef": {"namespace": "ns", "name": name}}}})
}

fn put_secret(stage: &AttemptFixture, name: &str) {
    let secret = json!({"metadata": {"name": name, "namespace": "ns"}, "data": {"k": "dg=="}});
    stage.api.put(format!("/api/v1/namespaces/ns/secrets/{name}"), secret);
}

/// How often an object was read whose path ends so.
fn reads(stage: &AttemptFixture, path: &str) -> usize {
    let reads = stage.api.reads.lock();
    reads.iter().filter(|read| read.ends_with(path)).count()
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
    let second = json!({"metadata": {"uid": "second"}, "spec": {"csi": {"volumeHandle": "h-new"}}});
    stage.api.put(format!("{VOLUMES}pv1"), volume(&second));
}

#[tokio::test]
async fn a_volume_that_was_made_again_is_not_published_by_its_former_handle() {
    let stage = unwatched().await;
    make_volume_again(&stage);
    stage.attachment("va0", "n0", &json!({}));
    stage.attached("va0").await;
    let published = stage.driver.published();
    assert_eq!(published.len(), 1, "{published:?}");
    assert_eq!(stage.calls(PUBLISH), 1);
    assert_eq!(stage.finalizers_of_volume(), json!([FINALIZER]), "of the later volume");
    let note = &stage.api.get(&format!("{ATTACHMENTS}va0")).unwrap()["metadata"]["annotations"][NOTE];
    assert!(note.as_str().unwrap().contains("h-new"), "{note}");
}

#[tokio::test]
async fn a_node_that_came_back_with_another_id_is_published_at_that_id() {
    let stage = unwatched().await;
    put_node(&stage, "id-new");
    stage.attachment("va0", "n0", &json!({}));
    stage.attached("va0").await;
    let object = stage.api.get(&format!("{ATTACHMENTS}va0")).unwrap();
    assert_eq!(object["metadata"]["annotations"][NODE_ID], "id-new");
    assert_eq!(stage.calls(PUBLISH), 1);
}

#[tokio::test]
async fn what_is_gone_is_not_published() {
    for what in ["/api/v1/persistentvolumes/pv1", "/apis/storage.k8s.io/v1/csinodes/n0"] {
        let stage = unwatched().await;
        stage.api.objects.lock().remove(what);
        stage.attachment("va0", "n0", &json!({}));
        stage.says("attachError", "not found").await;
        assert_eq!(stage.calls(PUBLISH), 0, "{what}");
    }
}

/// What can be neither watched nor read is not known: the attachment says so, and it goes on by itself.
#[tokio::test]
async fn what_cannot_be_read_puts_the_call_off() {
    for path in ["/pv1", "/n0"] {
        let stage = unwatched().await;
        let forbidden = refusal(403, "no").to_string();
        stage.api.answer_untruly(Method::GET, path, 3, 403, &forbidden);
        stage.attachment("va0", "n0", &json!({}));
        stage.says("attachError", "neither watched nor read").await;
        stage.attached("va0").await;
        assert_eq!(stage.calls(PUBLISH), 1, "{path}");
    }
}

/// What was so when the watches broke, and is not any more, refuses nothing.
#[tokio::test]
async fn a_refusal_does_not_rest_on_a_stale_copy() {
    let deleted = json!({"metadata": {"finalizers": ["kubernetes.io/pv-protection"], "deletionTimestamp": DELETED}});
    let of_another = json!({"spec": {"csi": {"driver": "b.test"}}});
    let secret = with_secret("s");
    let elsewhere = json!({"spec": {"csi": {"controllerPublishSecretRef": {"namespace": "elsewhere", "name": "s"}}}});
    let unchanged = json!({});
    let registered = [(DRIVER, "id0")];
    let blank = [(DRIVER, "")];
    // What is known of the volume, what it is by now, and what is known of the node.
    let rows = [
        ("the volume is deleted", &deleted, &unchanged, &registered[..]),
        ("the volume is another driver's", &of_another, &unchanged, &registered),
        ("its Secret is not allowed", &elsewhere, &secret, &registered),
        ("the node ID is blank", &unchanged, &unchanged, &blank),
        ("the driver is not on the node", &unchanged, &unchanged, &[]),
    ];
    for (case, known, now, drivers) in rows {
        let stage = empty().await;
        put_secret(&stage, "s");
        stage.store.apply(CsiNode::new("n0", drivers));
        put_node(&stage, "id0");
        stage.put_volume(volume(known));
        break_watches(&stage);
        if known != now {
            let mut volume = volume(now);
            volume["metadata"]["uid"] = "second".into();
            stage.api.put(format!("{VOLUMES}pv1"), volume);
        }
        stage.attachment("va0", "n0", &json!({}));
        stage.attached("va0").await;
        assert_eq!(stage.told(), [""; 0], "{case}");
        // Once more before the call, as the Secret may have been waited for.
        let looks = if now == &secret { 2 } else { 1 };
        assert_eq!((reads(&stage, "/pv1"), reads(&stage, "/n0")), (looks, 1), "{case}");
        assert_eq!(stage.calls(PUBLISH), 1, "{case}");
    }
}

/// The volume that was made again names another Secret, and the one that the former volume named went with it.
#[tokio::test]
async fn the_secret_is_that_of_the_volume_that_was_made_again() {
    let stage = empty().await;
    stage.nodes(1);
    let mut former = volume(&with_secret("s-old"));
    former["metadata"]["finalizers"] = json!([FINALIZER]);
    stage.put_volume(former);
    let kind = PersistentVolumeWire::PLURAL;
    stage.store.lists().set_failure(kind, Some("cannot watch".into()));
    let mut second = volume(&with_secret("s-new"));
    second["metadata"]["uid"] = "second".into();
    stage.api.put(format!("{VOLUMES}pv1"), second);
    put_secret(&stage, "s-new");
    stage.attachment("va0", "n0", &json!({}));
    stage.attached("va0").await;
    assert_eq!(stage.told(), [""; 0]);
    // Once more before the call, as the Secret may have been waited for.
    let read = ["/s-old", "/s-new", "/pv1", "/n0"].map(|path| reads(&stage, path));
    assert_eq!(read, [0, 1, 2, 0]);
}

#[tokio::test]
async fn a_refusal_that_cannot_be_confirmed_says_so() {
    let deleted = json!({"finalizers": ["kubernetes.io/pv-protection"], "deletionTimestamp": DELETED});
    let stage = empty().await;
    stage.nodes(1);
    stage.volume(&deleted);
    break_watches(&stage);
    stage.api.answer_untruly(Method::GET, "/pv1", 1, 503, "");
    stage.attachment("va0", "n0", &json!({}));
    // The API server says the same in the end.
    stage.says("attachError", "marked for deletion").await;
    let told = stage.told();
    assert!(told[0].contains("neither watched nor read"), "{told:?}");
    assert_eq!(reads(&stage, "/n0"), 0, "it is not what is refused");
}

#[tokio::test]
async fn a_refusal_that_rests_on_no_copy_reads_nothing() {
    let stage = unwatched().await;
    let nothing = json!({"spec": {"source": {"persistentVolumeName": null}}});
    stage.attachment_with("va0", "n0", &nothing);
    let refused = |api: &Api| error_of(api, "attachError").is_some_and(|text| text.starts_with("neither Inline"));
    stage.api.until(refused).await;
    assert_eq!(*stage.api.reads.lock(), Vec::<String>::new());
}

/// Only the API server can say that an object is gone, be it in the cache or not.
#[tokio::test]
async fn what_is_not_known_is_missing_by_the_word_of_the_api_server_alone() {
    let forbidden = refusal(403, "no").to_string();
    for path in ["/pv1", "/n0"] {
        let page = "404 page not found\n";
        for (code, body) in [(403, &*forbidden), (403, "no"), (503, ""), (404, page)] {
            let stage = empty().await;
            break_watches(&stage);
            stage.api.put(format!("{VOLUMES}pv1"), volume(&json!({})));
            put_node(&stage, "id0");
            stage.api.answer_untruly(Method::GET, path, 2, code, body);
            stage.attachment("va0", "n0", &json!({}));
            stage.attached("va0").await;
            let told = stage.told();
            let unknown = told.iter().filter(|text| text.contains("neither watched nor read"));
            assert_eq!(unknown.count(), told.len().max(1), "{path} {code}: {told:?}");
            assert_eq!(reads(&stage, path), 3, "{path} {code}: once in each attempt");
        }
    }
}

/// While the watch is at work the cache's word is enough.
#[tokio::test]
async fn what_a_watch_does_not_show_is_missing_though_it_cannot_be_read() {
    for (path, missing) in [
        ("/pv1", "persistentvolume \"pv1\" not found"),
        ("/n0", "\"n0\" not found"),
    ] {
        let stage = empty().await;
        if path == "/n0" {
            stage.put_volume(volume(&json!({})));
        }
        stage.api.answer_untruly(Method::GET, path, usize::MAX, 503, "");
        stage.attachment("va0", "n0", &json!({}));
        stage.says("attachError", missing).await;
    }
}

/// The claim noted the volume and its Secret.
#[tokio::test]
async fn a_detach_with_a_note_does_not_wait_for_a_volume_that_cannot_be_read() {
    let stage = empty().await;
    put_secret(&stage, "s");
    stage.put_volume(volume(&with_secret("s")));
    break_watches(&stage);
    let forbidden = refusal(403, "no").to_string();
    let always = usize::MAX;
    stage.api.answer_untruly(Method::GET, "/pv1", always, 403, &forbidden);
    let note = json!({"handle": "h", "secret": {"namespace": "ns", "name": "s"}});
    stage.attachment("va0", "n0", &claimed_with(&note, "id0", true));
    stage.gone("va0").await;
    assert_eq!(stage.calls(UNPUBLISH), 1);
}

/// What the sidecar attached, without a note of its volume, is deleted: the handle comes from the PersistentVolume.
#[tokio::test]
async fn a_detach_without_a_note_asks_for_the_volume() {
    let stage = unwatched().await;
    make_volume_again(&stage);
    let mut volume = stage.api.get(&format!("{VOLUMES}pv1")).unwrap();
    volume["metadata"]["creationTimestamp"] = "2026-01-02T00:00:00Z".into();
    stage.api.put(format!("{VOLUMES}pv1"), volume);
    let held = json!({
        "finalizers": [FINALIZER], "deletionTimestamp": "2026-01-03T00:00:00Z", "creationTimestamp": "2026-01-01T00:00:00Z",
        "annotations": {NODE_ID: "id0"},
    });
    stage.attachment("va0", "n0", &held);
    stage.says("detachError", "was created after").await;
    assert_eq!(stage.calls(UNPUBLISH), 0);
}

/// The node ID that was noted was taken off: then the CSINode alone says where the volume is.
#[tokio::test]
async fn a_detach_without_a_node_id_asks_for_the_node() {
    let stage = unwatched().await;
    put_node(&stage, "id-new");
    let mut held = claimed_with(&json!({"handle": "h"}), "id0", true);
    held["annotations"].as_object_mut().unwrap().remove(NODE_ID);
    stage.attachment("va0", "n0", &held);
    stage.gone("va0").await;
    let called = stage.driver.calls_of(UNPUBLISH);
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
    stage.attached("va0").await;
    assert_eq!(*stage.api.reads.lock(), Vec::<String>::new());
}
