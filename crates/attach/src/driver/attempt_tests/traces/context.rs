//! Trace contexts of others, and names that are not to be told.

use super::*;
use crate::api::AnnotationMode;
use crate::telemetry::redact::hash;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";
const OTHER_SPAN: &str = "00f067aa0ba902b7";

fn of(span: &str, flags: &str) -> String {
    format!("00-{TRACE}-{span}-{flags}")
}

async fn attached(
    told: &Told,
    mode: AnnotationMode,
    attachment: &Value,
    volume: &Value,
) -> (AttemptFixture, Vec<ReceivedSpan>) {
    let stage = stage(told, |spec| spec.tracing.annotation_mode = mode).await;
    stage.volume(&json!({ "annotations": volume }));
    stage.attachment("va", "n1", &json!({ "annotations": attachment }));
    stage.attached("va").await;
    let spans = told.ended(ATTACH).await;
    (stage, spans)
}

#[tokio::test]
async fn a_context_of_somebody_else_is_linked_to() {
    let told = Told::always().await;
    let annotations = json!({
        "opentelemetry.io/traceparent": of(OTHER_SPAN, "00"), SHARED: of(SPAN, "01"), "tracing.k8s.io/tracestate": "admin=b",
        "tracing.k8s.io/baggage": "user=admin",
    });
    let volume = json!({ SHARED: of(SPAN, "01") });
    let (stage, spans) = attached(&told, AnnotationMode::Link, &annotations, &volume).await;
    let root = only(&spans, ATTACH);
    // In the order of the keys, and each once.
    let wanted = [SPAN, OTHER_SPAN].map(|span| (TRACE.to_owned(), span.to_owned()));
    assert_eq!((&root.links[..], &root.parent_span_id), (&wanted[..], &None));
    assert_ne!(root.trace_id, TRACE);
    // Ours does not take the place of theirs.
    assert_eq!(stage.annotation("va", SHARED), Some(of(SPAN, "01")));
    assert_eq!(stage.annotation("va", OWN), Some(traceparent(root)));
    // Neither state nor baggage is carried on.
    let calls = format!("{:?}", stage.driver.calls_of(PUBLISH));
    assert!(!calls.contains("admin"), "{calls}");
}

#[tokio::test]
async fn a_context_of_somebody_else_is_ignored_where_that_is_asked() {
    let told = Told::always().await;
    let annotations = json!({ SHARED: of(SPAN, "01") });
    let (stage, spans) = attached(&told, AnnotationMode::Ignore, &annotations, &annotations).await;
    assert_eq!(only(&spans, ATTACH).links, []);
    assert_eq!(extracted(&stage), [0, 0]);
}

/// Counts of what was read, and malformed.
fn extracted(stage: &AttemptFixture) -> [u64; 2] {
    let text = stage.metrics.encode_openmetrics();
    ["success", "invalid"].map(|result| {
        let series = format!("result=\"{result}\"}} ");
        let name = "trace_context_annotations_extracted_total";
        let counts = text.lines().filter(|line| line.starts_with(name));
        let counts = counts.filter_map(|line| line.split_once(&series)?.1.parse::<u64>().ok());
        counts.sum()
    })
}

#[tokio::test]
async fn what_is_no_context_is_ignored_and_counted() {
    let upper_case = of(&SPAN.to_uppercase(), "01");
    let one_of_two = json!({ SHARED: upper_case, "opentelemetry.io/traceparent": of(SPAN, "01") });
    let without_state = json!({ SHARED: of(SPAN, "01"), "tracing.k8s.io/tracestate": "no state" });
    let rows: [(Value, [u64; 2], usize); 5] = [
        (json!({ SHARED: "" }), [0, 1], 0),
        (json!({ SHARED: "x".repeat(1 << 20) }), [0, 1], 0),
        (one_of_two, [1, 1], 1),
        (json!({ SHARED: of("0000000000000000", "01") }), [0, 1], 0),
        (without_state, [1, 0], 1),
    ];
    for (annotations, counts, links) in rows {
        let told = Told::always().await;
        let (stage, spans) = attached(&told, AnnotationMode::Link, &annotations, &json!({})).await;
        assert_eq!(only(&spans, ATTACH).links.len(), links, "{counts:?}");
        assert_eq!(extracted(&stage), counts);
        let injected =
            "trace_context_annotations_injected_total{resource_kind=\"VolumeAttachment\",result=\"success\"} 1\n";
        assert!(stage.metrics.encode_openmetrics().contains(injected));
    }
}

/// T12: whoever annotates objects with a sampled flag has none of them traced.
#[tokio::test]
async fn t12_a_sampled_flag_of_somebody_else_samples_nothing() {
    for (sampler, share) in [
        ("always_off", None),
        ("parentbased_always_off", None),
        ("always_on", Some(0)),
    ] {
        let told = Told::sampled(sampler).await;
        let stage = stage(&told, |spec| spec.tracing.sampling_rate_per_million = share).await;
        for number in 0..20 {
            stage.inline(&format!("va{number}"), &json!({ SHARED: of(SPAN, "01") }));
        }
        // Each takes a claim and a status.
        stage.api.until(|api| api.patches.lock().len() == 2 * 20).await;
        assert_eq!(told.spans().await, [], "{sampler}");
    }
}

impl AttemptFixture {
    /// Makes an attachment with a volume of its own, as the watch brings it.
    fn inline(&self, name: &str, annotations: &Value) {
        let volume = json!({"accessModes": ["ReadWriteOnce"], "csi": {"driver": DRIVER, "volumeHandle": name}});
        let source = json!({"persistentVolumeName": null, "inlineVolumeSpec": volume});
        let object = json!({"metadata": {"annotations": annotations}, "spec": {"source": source}});
        self.attachment_with(name, "n1", &object);
    }
}

#[tokio::test]
async fn names_are_told_by_their_hash_where_that_is_asked() {
    const VOLUME: &str = "patient-record-17";
    let told = Told::always().await;
    let stage = stage(&told, |spec| {
        spec.tracing.redact.names = crate::api::RedactionMode::Hash;
        spec.tracing.redact.volume_id = crate::api::RedactionMode::Hash;
    })
    .await;
    stage.store.apply(CsiNode::new("ward-3", &[(DRIVER, "bed-7")]));
    let text = format!("{VOLUME} of pv1 is not at bed-7 for va-of-smith");
    let fails = Rule::on(PUBLISH).times(1).fail(tonic::Code::Internal, text);
    stage.driver.script(fails);
    let spec = json!({
        "accessModes": ["ReadWriteMany"], "csi": {"driver": DRIVER, "volumeHandle": VOLUME},
        "claimRef": {"name": "claim-of-smith", "namespace": "oncology", "uid": "u"}, "storageClassName": "tenant-gold",
    });
    stage.put_volume(json!({"metadata": {"name": "pv1", "uid": "pv-uid"}, "spec": spec}));
    stage.attachment("va-of-smith", "ward-3", &json!({"uid": "4711"}));
    stage.attached("va-of-smith").await;
    let spans = told.ended(ATTACH).await;
    let everything = format!("{spans:#?}");
    let of_objects = [VOLUME, "pv1", "va-of-smith", "claim-of-smith"];
    for name in of_objects
        .into_iter()
        .chain(["ward-3", "bed-7", "oncology", "tenant-gold"])
    {
        assert!(!everything.contains(name), "{name} is in {everything}");
    }
    for span in [only(&spans, ATTACH), named(&spans, ATTEMPT)[0]] {
        assert_eq!(span.text("container.csi.volume.id"), hash(VOLUME));
        assert_eq!(span.text("k8s.volumeattachment.name"), hash("va-of-smith"));
        assert_eq!(span.text("k8s.persistentvolumeclaim.name"), hash("claim-of-smith"));
        assert_eq!(span.text("container.csi.plugin.name"), DRIVER);
    }
    assert!(named(&spans, ATTEMPT)[0].status_message.contains(&hash("pv1")));
}
