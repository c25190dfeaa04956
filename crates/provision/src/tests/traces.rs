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
    drop(guard);
    receiver.spans()
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

#[tokio::test]
async fn attempts_are_counted_from_the_first_to_the_last() {
    let spans = told(|_| {}).await;
    let attempts = spans
        .iter()
        .filter(|span| span.name == "PersistentVolumeClaim.provision.attempt");
    let numbers: Vec<_> = attempts
        .map(|span| span.attributes["attacher.attempt"].clone())
        .collect();
    assert_eq!(numbers, [Attribute::I64(1), Attribute::I64(2)]);
}
