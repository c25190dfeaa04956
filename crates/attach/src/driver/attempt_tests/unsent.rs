//! Calls that were certainly not sent, as their connection took no more: the driver failed at nothing, and nothing is
//! written.

use std::sync::atomic::AtomicUsize;

use tonic::ConnectError;
use tonic::body::Body;

use super::lease::vanished;
use super::*;
use crate::cache::AttacherKey;

/// A connection that takes no call, and how many were tried over it.
fn taking_no_call() -> (FencedClient, Arc<AtomicUsize>) {
    let tried = Arc::<AtomicUsize>::default();
    let count = tried.clone();
    let refusing = tower::service_fn(move |_: http::Request<Body>| {
        count.fetch_add(1, Ordering::SeqCst);
        let error = ConnectError("the connection to the driver was lost".into());
        std::future::ready(Err::<http::Response<Body>, _>(error))
    });
    let client = CsiClient::new(DriverConnection::in_process(refusing), Metrics::default());
    (FencedClient::new(client, None), tried)
}

impl AttemptFixture {
    /// The driver is connected again.
    fn is_connected_again(&self) {
        let connection = DriverConnection::new(&self.settings.borrow().endpoint);
        let client = CsiClient::new(connection, self.metrics.clone());
        self.engine.resume(FencedClient::new(client, None), true);
    }
}

#[tokio::test]
async fn a_call_that_was_not_sent_is_no_failure_and_runs_again_over_the_next_connection() {
    let stage = AttemptFixture::with(Api::default(), DRIVER, |spec| retry(spec, "1h", "1h")).await;
    let (client, tried) = taking_no_call();
    stage.engine.resume(client, true);
    stage.volume(&json!({"finalizers": [FINALIZER]}));
    stage.nodes(1);
    stage.attachment("va0", "n0", &json!({}));
    let key = AttacherKey::Attachment("va0".into());
    eventually(|| tried.load(Ordering::SeqCst) > 0 && stage.engine.queue().is_held(&key)).await;
    assert_eq!(stage.order(), ["va0"], "the claim and nothing else");

    stage.is_connected_again();
    stage.attached("va0").await;
    assert_eq!(stage.calls(PUBLISH), 1);
    let written = ["va0", "va0/status"].map(|path| (path.to_owned(), 200));
    assert_eq!(stage.patches(), written);
    assert_eq!(error_of(&stage.api, "attachError"), None);
}

/// The API server may take its time with a write before the call, and the process behind the former connection may hang.
#[tokio::test]
async fn a_call_is_made_over_the_connection_that_stands_when_it_begins() {
    let stage = AttemptFixture::of(Api::volumes_together(2)).await;
    let (client, tried) = taking_no_call();
    stage.engine.resume(client, true);
    stage.volume(&json!({"finalizers": ["kubernetes.io/pv-protection"]}));
    stage.nodes(1);
    stage.attachment("va0", "n0", &json!({}));
    stage.volume_is_patched().await;
    stage.is_connected_again();
    let answered = stage.api.volumes_together.as_ref().unwrap().wait();
    tokio::time::timeout(LIMIT, answered).await.expect("in time");
    stage.attached("va0").await;
    assert_eq!((tried.load(Ordering::SeqCst), stage.calls(PUBLISH)), (0, 1));
}

/// As behind a proxy that refuses each stream. It is told from the third call in a row on; a failure in between would begin the pauses anew.
#[tokio::test]
async fn a_connection_that_stands_and_takes_no_call_is_told_and_its_pauses_grow() {
    let stage = AttemptFixture::retrying_fast().await;
    let (client, tried) = taking_no_call();
    stage.engine.resume(client, true);
    stage.volume(&json!({"finalizers": [FINALIZER]}));
    stage.attachment("va0", "n0", &json!({}));
    let key = AttacherKey::Attachment("va0".into());
    eventually(|| stage.engine.queue().failures(&key) >= 6).await;
    assert!(tried.load(Ordering::SeqCst) >= 6, "waits in a row");
    let told = error_of(&stage.api, "attachError").unwrap();
    assert!(told.contains("code = Unavailable"), "{told}");

    stage.is_connected_again();
    stage.attached("va0").await;
    assert_eq!(stage.calls(PUBLISH), 1);
    assert_eq!(error_of(&stage.api, "attachError"), None);
}

/// Nobody asks for that detach again.
#[tokio::test]
async fn what_vanished_is_taken_back_though_a_call_was_not_sent() {
    let stage = AttemptFixture::retrying_fast().await;
    vanished(&stage).await;
    let (client, tried) = taking_no_call();
    stage.engine.resume(client, false);
    eventually(|| tried.load(Ordering::SeqCst) > 0).await;
    assert_eq!(stage.calls(UNPUBLISH), 0);
    stage.is_connected_again();
    stage.called(UNPUBLISH).await;
}
