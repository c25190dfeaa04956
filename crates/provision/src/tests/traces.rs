//! Names that are not to be told, and the ends of life cycles.

use super::*;
use crate::api::AnnotationMode;
use crate::runtime::Work as _;
use crate::telemetry::TelemetryGuard;
use crate::telemetry::names::code_upper_snake;
use crate::telemetry::redact::hash;
use crate::trace_pipeline::pipeline;
use csi_attacher_testbed::otlp::{Attribute, OtlpReceiver, ReceivedSpan};

const ROOT: &str = "PersistentVolumeClaim.provision";
const LIMIT: Duration = Duration::from_secs(20);

/// A world whose traces are received, at the settings of `edit`.
async fn traced(edit: impl FnOnce(&mut AttacherConfigSpec)) -> (OtlpReceiver, World, TelemetryGuard) {
    let receiver = OtlpReceiver::http().await;
    let (tracer, guard) = pipeline(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &receiver.endpoint()),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
        ("OTEL_TRACES_SAMPLER", "always_on"),
        ("OTEL_BSP_SCHEDULE_DELAY", "1"),
    ]);
    let world = World::traced(tracer, edit);
    (receiver, world, guard)
}

/// The same, with a class "gold" and an engine.
async fn working(edit: impl FnOnce(&mut AttacherConfigSpec)) -> (OtlpReceiver, World, TelemetryGuard) {
    let (receiver, mut world, guard) = traced(edit).await;
    world.class("gold", &json!({}));
    world.start();
    (receiver, world, guard)
}

/// What was told of a claim `smith` of the class `tenant-gold` whose first call fails, until its PersistentVolume is saved.
async fn told(edit: impl FnOnce(&mut AttacherConfigSpec)) -> Vec<ReceivedSpan> {
    let (receiver, mut world, guard) = traced(edit).await;
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

fn named<'s>(spans: &'s [ReceivedSpan], name: &'s str) -> impl Iterator<Item = &'s ReceivedSpan> {
    spans.iter().filter(move |span| span.name == name)
}

fn roots(spans: &[ReceivedSpan]) -> impl Iterator<Item = &ReceivedSpan> {
    named(spans, ROOT)
}

fn attempts(spans: &[ReceivedSpan]) -> impl Iterator<Item = &ReceivedSpan> {
    named(spans, "PersistentVolumeClaim.provision.attempt")
}

/// All attempts for an object, whichever traces they are in, are numbered from 1, and each is linked to the one before.
fn assert_in_a_row<'s>(attempts: impl Iterator<Item = &'s ReceivedSpan>) {
    let mut previous: Vec<(String, String)> = Vec::new();
    for (number, attempt) in (1..).zip(attempts) {
        assert_eq!(attempt.attributes["attacher.attempt"], Attribute::I64(number));
        assert_eq!(attempt.links, previous, "{attempt:?}");
        previous = vec![(attempt.trace_id.clone(), attempt.span_id.clone())];
    }
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

/// The ID in the answer is that of somebody else's volume, and the refusal has it, and whose it is.
#[tokio::test]
async fn the_volume_of_another_is_told_by_its_hash() {
    const THEIRS: &str = "handle of pvc-uid-smith";
    let (receiver, mut world, guard) = traced(|spec| {
        spec.tracing.redact.names = crate::api::RedactionMode::Hash;
        spec.tracing.redact.volume_id = crate::api::RedactionMode::Hash;
    })
    .await;
    world.class("tenant-gold", &json!({}));
    world.start();
    world.driver.is_stingy.store(true, Ordering::Relaxed);
    world.volume(json!({
        "metadata": {"name": "pv-of-jones", "uid": "jones-uid"},
        "spec": {
            "persistentVolumeReclaimPolicy": "Retain", "storageClassName": "tenant-gold",
            "csi": {"driver": DRIVER, "volumeHandle": THEIRS},
            "claimRef": {"namespace": "web", "name": "jones", "uid": "uid-jones"},
        },
        "status": {"phase": "Bound"},
    }));
    world.claim("smith", "tenant-gold");
    let is_shared = |span: &ReceivedSpan| span.status_message.contains("as well");
    let spans = receiver.wait_until(LIMIT, |spans| spans.iter().any(is_shared)).await;
    drop(guard);
    let everything = format!("{spans:#?}");
    for name in ["handle of", "pv-of-jones", "pvc-uid-smith", "\"smith\""] {
        assert!(!everything.contains(name), "{name} is in {everything}");
    }
    let shared = attempts(&spans).find(|span| is_shared(span)).unwrap();
    for name in [THEIRS, "pv-of-jones"] {
        assert!(shared.status_message.contains(&hash(name)), "{shared:?}");
    }
}

/// `spec.tracing.outgoingAnnotation` is about each object that is written.
#[tokio::test]
async fn a_persistent_volume_names_its_trace_only_where_that_is_asked() {
    for outgoing_annotation in [true, false] {
        let (receiver, world, guard) = working(|spec| spec.tracing.outgoing_annotation = outgoing_annotation).await;
        world.claim("data", "gold");
        receiver.wait_until(LIMIT, |spans| roots(spans).count() == 1).await;
        drop(guard);
        let saved = world.api.objects.lock()[&format!("{VOLUMES}pvc-uid-data")].clone();
        let noted = &saved["metadata"]["annotations"]["attacher.csi.dev/traceparent"];
        assert_eq!(noted.is_string(), outgoing_annotation, "{saved}");
    }
}

/// Whether a volume may be there, or the last answer said that there is none: then the queue forgets the claim as the role ends.
#[tokio::test]
async fn only_the_end_of_the_config_ends_what_is_pending() {
    for code in [tonic::Code::DeadlineExceeded, tonic::Code::InvalidArgument] {
        let (receiver, mut world, guard) = working(|_| {}).await;
        world.driver.failures.lock().extend([code; 100]);
        world.claim("data", "gold");
        receiver.wait_until(LIMIT, |spans| attempts(spans).count() > 0).await;
        let engine = world.engine.take().unwrap();
        let end = engine.work().end_pending();
        // The end of the process, or of the Lease.
        engine.drain().await;
        assert_eq!(roots(&receiver.spans()).count(), 0);
        end();
        let spans = receiver.wait_until(LIMIT, |spans| roots(spans).count() == 1).await;
        drop(guard);
        let root = roots(&spans).next().unwrap();
        assert_eq!(root.text("attacher.outcome"), "aborted");
        assert_eq!(root.text("k8s.persistentvolumeclaim.name"), "data");
        assert!(root.status_message.contains("AttacherConfig"), "{root:?}");
        assert_eq!(root.text("error.type"), code_upper_snake(code));
    }
}

/// Its root says what failed last as well.
#[tokio::test]
async fn attempts_to_delete_are_in_a_row() {
    let (receiver, mut world, guard) = working(|_| {}).await;
    world.driver.undo_failures.lock().extend([tonic::Code::Internal; 100]);
    world.released("gold", "Delete", &[]);
    let of_deletion = "PersistentVolume.delete.attempt";
    receiver
        .wait_until(LIMIT, |spans| named(spans, of_deletion).count() > 1)
        .await;
    let engine = world.engine.take().unwrap();
    let end = engine.work().end_pending();
    engine.drain().await;
    end();
    let is_root = |span: &ReceivedSpan| span.name == "PersistentVolume.delete";
    let spans = receiver.wait_until(LIMIT, |spans| spans.iter().any(is_root)).await;
    drop(guard);
    assert_in_a_row(named(&spans, of_deletion));
    let root = spans.iter().find(|span| is_root(span)).unwrap();
    assert_eq!(
        (root.text("attacher.outcome"), root.text("error.type")),
        ("aborted", "INTERNAL")
    );
}

/// Nothing was given up: the volume is deleted with the other one.
#[tokio::test]
async fn a_deletion_that_is_left_to_another_one_has_succeeded() {
    let (receiver, world, guard) = working(|_| {}).await;
    for name in ["a", "b"] {
        super::sharers::shared(&world, name, "Released");
    }
    let is_root = |span: &ReceivedSpan| span.name == "PersistentVolume.delete";
    let spans = receiver.wait_until(LIMIT, |spans| spans.iter().any(is_root)).await;
    drop(guard);
    let root = spans.iter().find(|span| is_root(span)).unwrap();
    assert_eq!(
        (root.text("k8s.persistentvolume.name"), root.text("attacher.outcome")),
        ("b", "succeeded")
    );
    assert!(world.driver.deleted.lock().is_empty());
}

/// As on a VolumeAttachment: it is something to point to, or nothing.
#[tokio::test]
async fn a_context_of_somebody_else_on_a_claim_is_linked_to() {
    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";
    for (mode, count) in [(AnnotationMode::Link, 1), (AnnotationMode::Ignore, 0)] {
        let (receiver, mut world, guard) = traced(|spec| spec.tracing.annotation_mode = mode).await;
        world.class("gold", &json!({}));
        world.claim("data", "gold");
        world.change_claim("data", |claim| {
            let annotations = &mut claim["metadata"]["annotations"];
            annotations["tracing.k8s.io/traceparent"] = format!("00-{TRACE}-{SPAN}-01").into();
            annotations["opentelemetry.io/traceparent"] = "no context".into();
        });
        world.start();
        receiver.wait_until(LIMIT, |spans| roots(spans).count() == 1).await;
        drop(guard);
        let spans = receiver.spans();
        let root = roots(&spans).next().unwrap();
        let wanted = vec![(TRACE.to_owned(), SPAN.to_owned()); count];
        assert_eq!((&root.links, &root.parent_span_id), (&wanted, &None));
        assert_ne!(root.trace_id, TRACE);
        let metrics = world.context.metrics.encode_prometheus();
        for result in ["success", "invalid"] {
            let labels = format!("resource_kind=\"PersistentVolumeClaim\",result=\"{result}\"");
            let line = format!("trace_context_annotations_extracted_total{{{labels}}} {count}");
            assert!(metrics.lines().any(|shown| shown == line), "no {line}");
        }
    }
}

/// Nobody makes the call again, so that no time for it is told.
#[tokio::test]
async fn a_failure_that_is_not_tried_again_has_no_delay() {
    let (receiver, world, guard) = working(|_| {}).await;
    world.driver.failures.lock().push(tonic::Code::FailedPrecondition);
    world.claim("data", "gold");
    while world.driver.calls.lock().is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    world.delete_claim("data");
    let is_failed = |span: &ReceivedSpan| span.status_message.contains("no room");
    let spans = receiver.wait_until(LIMIT, |spans| attempts(spans).any(is_failed)).await;
    drop(guard);
    let failed = attempts(&spans).find(|span| is_failed(span)).unwrap();
    assert!(!failed.attributes.contains_key("attacher.retry.delay"), "{failed:?}");
}

/// What comes after the end of a life cycle is a part of it as well.
#[tokio::test]
async fn each_attempt_is_in_the_trace_of_its_claim() {
    let spans = told(|_| {}).await;
    assert_eq!(attempts(&spans).count(), 3);
    assert_in_a_row(attempts(&spans));
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

/// A trace has as many attempts as `spec.tracing` lets it have; the next one goes on with what is to be done.
#[tokio::test]
async fn what_fails_again_and_again_is_continued_in_another_trace() {
    let (receiver, world, guard) = working(|spec| spec.tracing.max_attempts_per_trace = 2).await;
    world.driver.failures.lock().extend([tonic::Code::Internal; 3]);
    world.claim("data", "gold");
    receiver.wait_until(LIMIT, |spans| roots(spans).count() == 2).await;
    drop(guard);
    let spans = receiver.spans();
    let [first, second]: [_; 2] = roots(&spans).collect::<Vec<_>>().try_into().unwrap();
    for (root, outcome, epoch, linked) in [(first, "continued", 0, second), (second, "succeeded", 1, first)] {
        let told = ["attacher.attempts", "attacher.epoch"].map(|key| root.attributes[key].clone());
        assert_eq!(told, [Attribute::I64(2), Attribute::I64(epoch)], "{root:?}");
        assert_eq!(root.text("attacher.outcome"), outcome);
        assert_eq!(root.text("k8s.persistentvolumeclaim.name"), "data");
        let links: Vec<_> = root.links.iter().map(|(trace, _)| trace).collect();
        assert_eq!(links, [&linked.trace_id]);
    }
    assert_eq!(attempts(&spans).count(), 4);
    assert_in_a_row(attempts(&spans));
    assert!(attempts(&spans).all(|span| [&first.trace_id, &second.trace_id].contains(&&span.trace_id)));
    assert_eq!(first.text("error.type"), "INTERNAL");
    let saved = world.api.objects.lock()["/api/v1/persistentvolumes/pvc-uid-data"].clone();
    assert!(saved.to_string().contains(&second.trace_id), "{saved}");
}

/// Who raises the share wants to see what fails now, and not what is claimed next.
#[tokio::test]
async fn a_share_that_is_raised_counts_for_what_fails_now() {
    let (receiver, world, guard) = working(|spec| spec.tracing.sampling_rate_per_million = Some(0)).await;
    world.driver.failures.lock().extend([tonic::Code::Internal; 2]);
    world.claim("data", "gold");
    let mut state = world.state.subscribe();
    let failing = state.wait_for(|state| state.last_failure.is_some());
    tokio::time::timeout(LIMIT, failing).await.unwrap().unwrap();
    world.configure(|settings| settings.tracing.sampling_rate_per_million = Some(1_000_000));
    receiver.wait_until(LIMIT, |spans| roots(spans).count() == 1).await;
    drop(guard);
    let spans = receiver.spans();
    let first = attempts(&spans).next().unwrap();
    assert_eq!(first.attributes["attacher.attempt"], Attribute::I64(2));
}
