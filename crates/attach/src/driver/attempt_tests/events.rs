//! What Events say of an attempt, and on which objects. The API server takes none, so that each occurrence is sent.

use super::*;
use crate::api::OrphanPolicy;
use crate::events::EventRecorder;
use csi_mock_driver::Rule;
use tonic::Code;

impl AttemptFixture {
    /// With another engine in the place of the first one, whose Events are sent.
    async fn sending_events(self) -> Self {
        self.engine.drain().await;
        let requests = self.context.requests.clone();
        let (events, writing) = EventRecorder::new(requests, self.metrics.clone(), "pod-1".to_owned());
        tokio::spawn(writing);
        let context = SharedContext {
            events,
            ..self.context.clone()
        };
        let engine = engine(&context, self.name, &self.settings, None);
        Self {
            engine,
            context,
            ..self
        }
    }

    /// An attached attachment of pv1 that is to be detached from a node without a CSINode, claimed with this note of its volume.
    fn detaching(&self, note: &Value) {
        let object = json!({"metadata": claimed_with(note, "id0", true), "status": {"attached": true}});
        self.driver.drift_attach("h", "id0");
        self.attachment_with("va0", "gone", &object);
    }
}

/// Kind of the object, and message, of each Event with this reason.
fn events(api: &Api, reason: &str) -> Vec<(String, String)> {
    let patches = api.patches.lock();
    let events = patches.iter().filter(|(_, body, _)| body["reason"] == reason);
    let word = |value: &Value| value.as_str().unwrap().to_owned();
    events
        .map(|(_, body, _)| (word(&body["involvedObject"]["kind"]), word(&body["message"])))
        .collect()
}

/// Waits for the last Event: it is sent after all others of its namespace.
async fn detached(stage: &AttemptFixture) -> String {
    stage.api.until(|api| !events(api, "Detached").is_empty()).await;
    events(&stage.api, "Detached").swap_remove(0).1
}

/// The first attempts of a detach from a node that is gone wait for the Secret: from where it is detached is known later.
#[tokio::test]
async fn a_node_that_is_gone_is_told_once_though_the_first_attempts_waited() {
    let stage = AttemptFixture::retrying_fast().await.sending_events().await;
    let busy = Rule::on(UNPUBLISH).times(1).fail(Code::Internal, "busy");
    stage.driver.script(busy);
    let reference = json!({"namespace": "ns", "name": "s"});
    let csi = json!({"controllerPublishSecretRef": reference});
    stage.volume_with("pv1", &json!({"spec": {"csi": csi}}));
    stage.detaching(&json!({"handle": "h", "secret": reference}));
    let is_blocked = |api: &Api| !events(api, "DetachBlocked").is_empty();
    stage.api.until(is_blocked).await;
    assert_eq!(events(&stage.api, "NodeGone"), []);
    let secret = json!({"metadata": {"name": "s", "namespace": "ns"}, "data": {"key": "c2VjcmV0"}});
    stage.api.put("/api/v1/namespaces/ns/secrets/s".to_owned(), secret);
    let message = detached(&stage).await;
    let (first, second) = ("in attempt 1,", "in attempt 2,");
    assert!(!message.contains(first) && !message.contains(second), "{message}");
    let mut told = events(&stage.api, "NodeGone");
    told.retain(|(kind, _)| kind == "VolumeAttachment");
    let notes: Vec<_> = told.into_iter().map(|(_, note)| note).collect();
    let expected = "volume h: node gone has no CSINode any more; detaching from id0";
    assert_eq!(notes, [expected], "once");
}

/// The driver is registered there, with a node ID that says nothing.
#[tokio::test]
async fn a_blank_node_id_is_not_told_as_a_driver_that_is_not_registered() {
    let stage = AttemptFixture::retrying_fast().await.sending_events().await;
    stage.store.apply(CsiNode::new("gone", &[(DRIVER, "")]));
    stage.volume(&json!({"finalizers": [FINALIZER]}));
    stage.detaching(&json!({"handle": "h"}));
    detached(&stage).await;
    let (_, told) = events(&stage.api, "NodeGone").swap_remove(0);
    let expected = "volume h: node gone has a blank node ID for the driver; detaching from id0";
    assert_eq!(told, expected);
}

/// A handle may be longer than an Event, which is cut at its end.
#[tokio::test]
async fn a_long_handle_leaves_room_for_what_happened() {
    let stage = AttemptFixture::retrying_fast().await.sending_events().await;
    let handle = "h".repeat(1_100);
    stage.volume_with("pv1", &json!({"spec": {"csi": {"volumeHandle": handle}}}));
    stage.detaching(&json!({"handle": handle}));
    let (message, kept) = (detached(&stage).await, "...: detached from node gone in attempt ");
    assert!(message.contains(kept), "{message}");
    let (_, gone) = events(&stage.api, "NodeGone").swap_remove(0);
    assert!(gone.ends_with("detaching from id0"), "{gone}");
}

/// The PersistentVolume was removed by force and made again for another claim, while the former volume is attached.
#[tokio::test]
async fn what_is_about_one_volume_is_not_told_on_the_claim_of_another() {
    let stage = AttemptFixture::retrying_fast().await.sending_events().await;
    let busy = Rule::on(UNPUBLISH).times(1).fail(Code::Internal, "busy");
    stage.driver.script(busy);
    let claim = json!({"namespace": "ns2", "name": "c2", "uid": "c2-uid"});
    let spec = json!({"csi": {"volumeHandle": "another"}, "claimRef": claim});
    stage.volume_with("pv1", &json!({"metadata": {"uid": "another-uid"}, "spec": spec}));
    stage.detaching(&json!({"handle": "h"}));
    detached(&stage).await;
    for reason in ["NodeGone", "DetachFailed", "Detached"] {
        let told = events(&stage.api, reason);
        assert!(!told.is_empty(), "{reason}");
        assert!(told.iter().all(|(kind, _)| kind == "VolumeAttachment"), "{told:?}");
    }
}

/// The driver answered OK, and the API server refuses that the volume is attached.
#[tokio::test]
async fn an_attach_that_cannot_be_recorded_is_not_told_as_one_that_failed() {
    let stage = AttemptFixture::retrying_fast().await.sending_events().await;
    stage.api.refuse("/va0/status", 1, 403, "no");
    stage.volume(&json!({"finalizers": [FINALIZER]}));
    stage.attachment("va0", "n0", &json!({}));
    let is_told = |api: &Api| !events(api, "AttachUncertain").is_empty();
    stage.api.until(is_told).await;
    let (_, told) = events(&stage.api, "AttachUncertain").swap_remove(0);
    let expected = "the driver attached the volume; the result cannot be stored: could not mark as attached";
    assert!(told.contains(expected), "{told}");
    assert!(!told.contains("may still be in progress"), "{told}");
    stage.attached("va0").await;
    assert_eq!(events(&stage.api, "AttachFailed"), []);
}

/// What is taken back after its attachment vanished is detached by the same policy as anything else.
#[tokio::test]
async fn what_vanished_counts_as_detached_by_the_orphan_policy() {
    let stage = AttemptFixture::with(Api::default(), DRIVER, |spec| {
        spec.orphan_policy = OrphanPolicy::TreatNotFoundAsDetached;
    });
    let stage = stage.await.sending_events().await;
    stage.nodes(1);
    let publish = Rule::on(PUBLISH).times(1);
    stage.driver.script(publish.delay(Duration::from_secs(5)));
    let not_found = Rule::on(UNPUBLISH).times(1).fail(Code::NotFound, "no such volume");
    stage.driver.script(not_found);
    stage.volume(&json!({"finalizers": [FINALIZER]}));
    stage.attachment("va0", "n0", &json!({}));
    stage.called(PUBLISH).await;
    stage.vanishes();
    let is_told = |api: &Api, part: &str| events(api, "Detached").iter().any(|(_, told)| told.contains(part));
    let parts = ["treated as detached because of spec.orphanPolicy", "was detached again"];
    stage.api.until(|api| parts.iter().all(|part| is_told(api, part))).await;
    assert_eq!(stage.calls(UNPUBLISH), 1);
}
