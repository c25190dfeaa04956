//! Names that are not to be told, and the ends of life cycles.

use super::*;
use crate::telemetry::redact::hash;
use crate::trace_pipeline::pipeline;
use csi_attacher_testbed::otlp::{Attribute, OtlpReceiver, ReceivedSpan};

const ROOT: &str = "PersistentVolumeClaim.provision";
const LIMIT: Duration = Duration::from_secs(20);

/// What was told of a claim `smith` of the class `tenant-gold` whose first call fails, until its PersistentVolume is saved.
async fn told(edit: impl FnOnce(&mut AttacherConfigSpec)) -> Vec<ReceivedSpan> {
    let receiver = OtlpReceiver::http().await;
    let (tracer, guard) = pipeline(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &receiver.endpoint()),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
        ("OTEL_TRACES_SAMPLER", "always_on"),
        ("OTEL_BSP_SCHEDULE_DELAY", "1"),
    ]);
    let mut world = World::traced(tracer, edit);
    world.class("tenant-gold", &json!({}));
    world.start();
    world.driver.failures.lock().push(tonic::Code::Internal);
    world.claim("smith", "tenant-gold");
    receiver
        .wait_until(LIMIT, |spans| spans.iter().any(|span| span.name == ROOT))
        .await;
    world.change_claim("smith", |claim| {
        claim["spec"]["volumeName"] = "pvc-uid-smith".into();
        claim["status"]["phase"] = "Bound".into();
    });
    receiver.wait_until(LIMIT, |spans| attempts(spans).count() == 3).await;
    assert!(!world.is_marked("smith"));
    drop(guard);
    receiver.spans()
}

fn attempts(spans: &[ReceivedSpan]) -> impl Iterator<Item = &ReceivedSpan> {
    spans
        .iter()
        .filter(|span| span.name == "PersistentVolumeClaim.provision.attempt")
}

#[tokio::test]
async fn names_are_told_by_their_hash_where_that_is_asked() {
    let spans = told(|spec| {
        spec.tracing.redact.names = crate::api::RedactionMode::Hash;
        spec.tracing.redact.volume_id = crate::api::RedactionMode::Hash;
    })
    .await;
    let everything = format!("{spans:#?}");
    for name in [
        "claims/smith",
        "\"smith\"",
        "tenant-gold",
        "/web/",
        "\"web\"",
        "pvc-uid-smith",
        "handle of",
    ] {
        assert!(!everything.contains(name), "{name} is in {everything}");
    }
    let root = spans.iter().find(|span| span.name == ROOT).unwrap();
    assert_eq!(root.text("k8s.persistentvolumeclaim.name"), hash("smith"));
    assert_eq!(root.text("container.csi.volume.id"), hash("handle of pvc-uid-smith"));
    assert_eq!(root.text("container.csi.plugin.name"), DRIVER);
    let refused = spans.iter().find(|span| span.status_message.contains("no room"));
    assert!(refused.unwrap().status_message.contains(&hash("pvc-uid-smith")));
}

/// What comes after the end of a life cycle is a part of it as well.
#[tokio::test]
async fn each_attempt_is_in_the_trace_of_its_claim() {
    let spans = told(|_| {}).await;
    let numbers: Vec<_> = attempts(&spans)
        .map(|span| span.attributes["attacher.attempt"].clone())
        .collect();
    assert_eq!(numbers, [1, 2, 1].map(Attribute::I64));
    for span in attempts(&spans) {
        let parent = span.parent_span_id.as_deref();
        assert!(
            spans
                .iter()
                .any(|root| Some(&*root.span_id) == parent && root.name == ROOT),
            "{span:?}"
        );
    }
}
