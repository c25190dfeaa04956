//! Answers that are not the API server's: nothing is believed to be gone, nothing is taken back, everything ends well.

use kube::runtime::watcher::{self, Event};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;

use super::*;
use crate::cache::{AttacherKey, EnqueueCause};
use crate::reflect::follow_from_list;
use csi_attacher_base::health::Health;
use csi_attacher_model::ListRests;
use csi_mock_driver::{CallRecord, Rule};

const PAGE: &str = "404 page not found\n";

fn va0(uid: &str) -> Value {
    json!({
        "metadata": {"name": "va0", "uid": uid},
        "spec": {"attacher": DRIVER, "nodeName": "n0", "source": {"persistentVolumeName": "pv1"}},
    })
}

#[tokio::test]
async fn an_untrue_404_to_the_record_of_an_attach_takes_nothing_back() {
    // Once, and for a while.
    for times in [1, 9] {
        let stage = AttemptFixture::retrying_fast().await;
        stage.api.answer_untruly(Method::PATCH, "/va0/status", times, 404, PAGE);
        stage.volume(&json!({"finalizers": [FINALIZER]}));
        stage.attachment("va0", "n0", &json!({}));
        stage.attached("va0").await;
        if times == 1 {
            assert_eq!(stage.calls(PUBLISH), 1, "the call is not made again");
        }
        assert_eq!(stage.calls(UNPUBLISH), 0, "{times} times");
        // It is known as before, and can be detached.
        stage.attachment("va0", "n0", &claimed("id0", true));
        stage.gone("va0").await;
        assert_eq!(stage.calls(UNPUBLISH), 1, "{times} times");
    }
}

#[tokio::test]
async fn an_untrue_404_to_the_end_of_a_detach_is_not_the_end() {
    let stage = AttemptFixture::retrying_fast().await;
    stage.api.answer_untruly(Method::PATCH, "/va0", 1, 404, PAGE);
    stage.driver.drift_attach("h", "id0");
    stage.volume(&json!({"finalizers": [FINALIZER]}));
    stage.attachment("va0", "n0", &claimed("id0", true));
    stage.gone("va0").await;
    assert!(stage.driver.published().is_empty());
}

#[tokio::test]
async fn untrue_404s_on_the_way_to_the_call_do_not_hide_the_objects() {
    let stage = AttemptFixture::retrying_fast().await;
    stage.api.answer_untruly(Method::PATCH, "/pv1", 1, 404, PAGE);
    stage.api.answer_untruly(Method::PATCH, "/va0", 1, 404, PAGE);
    stage.volume(&json!({}));
    stage.attachment("va0", "n0", &json!({}));
    stage.attached("va0").await;
    assert_eq!(stage.finalizers_of_volume(), json!([FINALIZER]));
    assert_eq!(stage.told(), [""; 0]);
}

#[tokio::test]
async fn an_untrue_404_to_the_release_of_a_volume_is_not_the_end() {
    let stage = AttemptFixture::retrying_fast().await;
    stage.api.answer_untruly(Method::PATCH, "/pv1", 1, 404, PAGE);
    stage.volume(&json!({"finalizers": [FINALIZER], "deletionTimestamp": DELETED}));
    stage.api.until(|api| api.objects.lock().is_empty()).await;
}

/// A proxy answers a write with what somebody else was answered, or with the object as it was.
#[tokio::test]
async fn an_answer_that_does_not_show_the_write_is_none() {
    for what in ["another", "older", "recreated"] {
        let stage = AttemptFixture::retrying_fast().await;
        stage.volume(&json!({"finalizers": [FINALIZER]}));
        let mut object = va0("va0-uid");
        object["metadata"]["resourceVersion"] = "1".into();
        match what {
            "another" => object["metadata"]["name"] = "va1".into(),
            "recreated" => object["metadata"]["uid"] = "other".into(),
            _ => {}
        }
        let body = object.to_string();
        stage.api.answer_untruly(Method::PATCH, "/va0/status", 1, 200, &body);
        // Claimed before, so that no write of this attempt makes it run again.
        stage.attachment("va0", "n0", &claimed("id0", false));
        stage.attached("va0").await;
        assert_eq!(stage.calls(UNPUBLISH), 0, "{what}");
        let known = stage.store.attachment("va0").unwrap().attachment;
        assert_eq!(&*known.uid, "va0-uid", "{what}");
    }
}

/// Takes the object away as if somebody had removed all its finalizers, while its volume is being published.
async fn vanish(stage: &AttemptFixture) {
    stage.volume(&json!({"finalizers": [FINALIZER]}));
    stage.driver.script(Rule::on(PUBLISH).delay(Duration::from_millis(300)));
    stage.attachment("va0", "n0", &claimed("id0", false));
    stage.called(PUBLISH).await;
}

fn reads_of_attachment(api: &Api) -> usize {
    let reads = api.reads.lock();
    reads.iter().filter(|path| path.ends_with("/va0")).count()
}

#[tokio::test]
async fn what_vanished_is_taken_back_after_a_live_read_has_confirmed_it() {
    let stage = AttemptFixture::retrying_fast().await;
    vanish(&stage).await;
    stage.vanishes();
    // Two answers of somebody else first.
    stage.api.answer_untruly(Method::GET, "/va0", 1, 404, PAGE);
    stage.api.answer_untruly(Method::GET, "/va0", 1, 502, "<html>");
    stage.called(UNPUBLISH).await;
    assert_eq!(reads_of_attachment(&stage.api), 3);
}

/// A stage on which the Publish of a volume for one node takes a second, as its attachment va0 vanishes and va1 wants the
/// volume at another node.
async fn wanted_elsewhere(edit: impl FnOnce(&mut AttacherConfigSpec)) -> AttemptFixture {
    let stage = AttemptFixture::with(Api::default(), DRIVER, edit).await;
    stage.nodes(2);
    let metadata = json!({"finalizers": [FINALIZER]});
    let spec = json!({"accessModes": ["ReadWriteOnce"]});
    stage.volume_with("pv1", &json!({"metadata": metadata, "spec": spec}));
    let slow = Rule::on(PUBLISH).times(1).delay(Duration::from_secs(1));
    stage.driver.script(slow);
    stage.attachment("va0", "n0", &claimed("id0", false));
    stage.called(PUBLISH).await;
    stage.vanishes();
    stage.attachment("va1", "n1", &json!({}));
    stage
}

/// The calls about volumes with their nodes, as they arrived.
fn moves(stage: &AttemptFixture) -> Vec<(Call, String)> {
    let calls = stage.driver.calls();
    let moving = [PUBLISH, UNPUBLISH];
    let moves = calls.into_iter().filter(|call| moving.contains(&call.method));
    moves.map(|call| (call.method, call.node.unwrap_or_default())).collect()
}

/// The API server can lose our finalizer, when it is added while the object is being deleted.
#[tokio::test]
async fn a_volume_for_one_node_waits_until_it_was_taken_back_from_another() {
    let stage = wanted_elsewhere(|_| {}).await;
    stage.attached("va1").await;
    let (publish, unpublish) = (PUBLISH, UNPUBLISH);
    let expected = [(publish, "id0"), (unpublish, "id0"), (publish, "id1")];
    assert_eq!(moves(&stage), expected.map(|(call, node)| (call, node.to_owned())));
}

/// As long as for a detach from there: the other node may be dead.
#[tokio::test]
async fn a_volume_for_one_node_does_not_wait_for_ever_until_it_was_taken_back() {
    let stage = wanted_elsewhere(|spec| spec.timeouts.unpublish = "1s".parse().unwrap()).await;
    // What takes the volume back fails again and again, for a minute.
    let at_node = Rule::on(UNPUBLISH).node("id0");
    let fails = at_node.fail(tonic::Code::Unavailable, "the node is dead");
    stage.driver.script(fails);
    let called = |call: &CallRecord| call.method == PUBLISH && call.node.as_deref() == Some("id1");
    let called = stage.driver.wait_for_call(called);
    tokio::time::timeout(LIMIT, called).await.expect("in time");
    assert!(stage.driver.published().contains(&("h".to_owned(), "id0".to_owned())));
}

#[tokio::test]
async fn what_another_object_has_the_name_of_is_taken_back() {
    let stage = AttemptFixture::retrying_fast().await;
    vanish(&stage).await;
    stage.is_told_gone();
    stage.api.put(format!("{ATTACHMENTS}va0"), va0("second"));
    stage.called(UNPUBLISH).await;
}

/// The cache still believes in it, and no answer to the writes says that it is gone.
#[tokio::test]
async fn what_vanished_before_its_attach_was_recorded_is_taken_back() {
    let stage = AttemptFixture::retrying_fast().await;
    vanish(&stage).await;
    stage.api.refuse("/va0/status", 9, 410, "expired");
    stage.api.objects.lock().remove(&format!("{ATTACHMENTS}va0"));
    stage.called(UNPUBLISH).await;
}

/// Whether the write that got no answer of the API server was taken in, nobody can tell: a pod may use the volume.
#[tokio::test]
async fn what_may_be_recorded_as_attached_is_not_taken_back() {
    for (code, body) in [(504, ""), (410, PAGE), (408, ""), (403, PAGE), (409, PAGE)] {
        let stage = AttemptFixture::retrying_fast().await;
        vanish(&stage).await;
        stage.api.answer_untruly(Method::PATCH, "/va0/status", 1, code, body);
        stage.api.objects.lock().remove(&format!("{ATTACHMENTS}va0"));
        stage.api.until(|api| reads_of_attachment(api) == 1).await;
        stage.attempts_end().await;
        assert_eq!(stage.calls(UNPUBLISH), 0, "{code}");
    }
}

/// It is published again because the driver did not list it. It was recorded as attached long before, and a pod may use the volume.
#[tokio::test]
async fn what_was_attached_before_its_repair_is_not_taken_back() {
    let stage = AttemptFixture::retrying_fast().await;
    stage.volume(&json!({"finalizers": [FINALIZER]}));
    stage.driver.script(Rule::on(PUBLISH).delay(Duration::from_millis(300)));
    let attached = json!({"metadata": claimed("id0", false), "status": {"attached": true}});
    stage.attachment_with("va0", "n0", &attached);
    stage.store.enqueue("va0", EnqueueCause::ForceSync);
    stage.called(PUBLISH).await;
    stage.vanishes();
    stage.api.until(|api| reads_of_attachment(api) == 1).await;
    stage.attempts_end().await;
    assert_eq!(stage.calls(UNPUBLISH), 0);
}

/// Nobody waits for it, and the time since the attachment was asked for is not how long a repair takes.
#[tokio::test]
async fn a_repair_is_no_attach() {
    let stage = AttemptFixture::retrying_fast().await;
    stage.volume(&json!({}));
    let succeeded = || {
        let text = stage.metrics.encode_prometheus();
        let of_attach = |line: &&str| line.contains("_e2e_seconds_count{") && line.contains(r#"operation="attach""#);
        let line = text.lines().find(of_attach).unwrap_or_default();
        line.rsplit(' ').next().unwrap_or_default().to_owned()
    };
    stage.attachment("va0", "n0", &json!({}));
    eventually(|| succeeded() == "1").await;
    let again = Rule::on(PUBLISH).times(1);
    stage.driver.script(again.delay(Duration::ZERO));
    stage.store.enqueue("va0", EnqueueCause::ForceSync);
    stage.script_ends().await;
    stage.attempts_end().await;
    assert_eq!(succeeded(), "1");
}

/// That a later call is refused says nothing of the write before it that got no answer.
#[tokio::test]
async fn a_refusal_does_not_tell_whether_an_attach_is_on_record() {
    let stage = AttemptFixture::retrying_fast().await;
    stage.volume(&json!({"finalizers": [FINALIZER]}));
    let once = || Rule::on(PUBLISH).times(1);
    let refused = once().fail(tonic::Code::InvalidArgument, "no");
    let (quick, slow) = (once().delay(Duration::ZERO), once().delay(Duration::from_millis(300)));
    for rule in [quick, refused, slow] {
        stage.driver.script(rule);
    }
    // The record of the first call, and the refusal of the second.
    stage.api.answer_untruly(Method::PATCH, "/va0/status", 5, 504, "");
    stage.attachment("va0", "n0", &claimed("id0", false));
    stage.script_ends().await;
    stage.api.objects.lock().remove(&format!("{ATTACHMENTS}va0"));
    let known = reads_of_attachment(&stage.api);
    stage.api.until(|api| reads_of_attachment(api) > known).await;
    stage.attempts_end().await;
    assert_eq!(stage.calls(UNPUBLISH), 0);
}

/// The API server went back to a state in which the attachment was not claimed: the next claim may be for another place.
#[tokio::test]
async fn what_is_not_claimed_any_more_is_taken_back() {
    let stage = AttemptFixture::retrying_fast().await;
    vanish(&stage).await;
    stage.attachment("va0", "n0", &json!({}));
    stage.called(UNPUBLISH).await;
    stage.attached("va0").await;
    assert_eq!(stage.driver.published().len(), 1);
}

#[tokio::test]
async fn what_a_live_read_shows_is_not_taken_back() {
    let stage = AttemptFixture::retrying_fast().await;
    vanish(&stage).await;
    stage.is_told_gone();
    stage.api.until(|api| reads_of_attachment(api) == 1).await;
    stage.attempts_end().await;
    assert_eq!(stage.calls(UNPUBLISH), 0);
}

/// The watch tells the end of a volume while it is read, because the cache did not know it.
#[tokio::test]
async fn a_volume_that_ends_while_it_is_read_does_not_stay() {
    let stage = AttemptFixture::of(Api {
        reads_together: Some(Barrier::new(2)),
        ..Api::default()
    });
    let stage = stage.await;
    stage.nodes(1);
    let (sender, events) = mpsc::unbounded_channel::<watcher::Result<Event<PersistentVolumeWire>>>();
    let mut events = Some(events);
    let check = Health::default().check("watch");
    let watch = move || UnboundedReceiverStream::new(events.take().unwrap());
    tokio::spawn(follow_from_list(watch, stage.store.clone(), check));
    let tell = |event| sender.send(Ok(event)).unwrap();
    tell(Event::Init);
    tell(Event::InitDone);
    let object = json!({
        "metadata": {"name": "pv1", "uid": "pv-uid", "finalizers": [FINALIZER]},
        "spec": {"accessModes": ["ReadWriteMany"], "csi": {"driver": DRIVER, "volumeHandle": "h"}},
    });
    let object = stage.api.put(format!("{VOLUMES}pv1"), object);
    let wire = || serde_json::from_value::<PersistentVolumeWire>(object.clone()).unwrap();
    stage.attachment("va0", "n0", &json!({}));
    let barrier = stage.api.reads_together.as_ref().unwrap();
    tokio::time::timeout(LIMIT, barrier.wait()).await.unwrap();
    // The read has its answer from before.
    stage.api.objects.lock().remove(&format!("{VOLUMES}pv1"));
    tell(Event::Apply(wire()));
    tell(Event::Delete(wire()));
    eventually(|| stage.store.generation() >= 4).await;
    tokio::time::timeout(LIMIT, barrier.wait()).await.unwrap();
    let is_noted = |api: &Api| error_of(api, "attachError").is_some();
    let is_over = |api: &Api| is_noted(api) || AttemptFixture::is_attached(api, "va0");
    stage.api.until(is_over).await;
    assert!(stage.store.volume("pv1").is_none(), "a phantom");
    assert_eq!(stage.calls(PUBLISH), 0);
}

/// Of a driver that fails without an answer that is final, a few failures are noted at a time. What is not noted is not read either.
#[tokio::test]
async fn failures_that_are_not_noted_cost_no_reads() {
    const ATTACHMENTS_OF_DRIVER: usize = 60;
    let stage = AttemptFixture::retrying_fast().await;
    stage.volume(&json!({"finalizers": [FINALIZER]}));
    let away = Rule::on(PUBLISH);
    stage.driver.script(away.fail(tonic::Code::Unavailable, "away"));
    for number in 0..ATTACHMENTS_OF_DRIVER {
        let (node, id) = (format!("m{number}"), format!("id-{number}"));
        stage.store.apply(CsiNode::new(&node, &[(DRIVER, &id)]));
        stage.attachment(&format!("va{number}"), &node, &json!({}));
    }
    eventually(|| stage.calls(PUBLISH) >= 10 * ATTACHMENTS_OF_DRIVER).await;
    let notes = stage.order();
    let notes = notes.iter().filter(|path| path.ends_with("/status")).count();
    assert!(notes < 5 * ATTACHMENTS_OF_DRIVER, "{notes} notes");
    let reads = stage.api.reads.lock();
    let reads = reads.iter().filter(|path| path.starts_with(ATTACHMENTS)).count();
    assert!(reads <= 5, "{reads} reads, {notes} notes");
}

/// Thousands may wait for lists that cannot be had for long.
#[tokio::test]
async fn an_attach_that_waits_for_lists_rests_longer_and_longer() {
    let stage = AttemptFixture::retrying_fast().await;
    stage.volume(&json!({}));
    stage.store.lists().distrust();
    stage.attachment("va0", "n0", &json!({}));
    let key = AttacherKey::Attachment("va0".into());
    let mut expected = ListRests::default();
    for _ in 0..2 {
        expected.next_rest();
    }
    let queue = stage.engine.queue();
    eventually(|| queue.remember(&key, |memory| memory.list_rests) == Some(expected)).await;
    assert_eq!(stage.calls(PUBLISH), 0);
}
