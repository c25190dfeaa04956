//! Trace contexts of others, the cap on what they may ask for, and names that are not to be told.

use std::time::Instant;

use super::*;
use crate::api::AnnotationMode;
use crate::telemetry::redact::hash;

const ATTACH: &str = "VolumeAttachment.attach";
const ATTEMPT: &str = "VolumeAttachment.attach.attempt";
const DETACH: &str = "VolumeAttachment.detach";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";
const OTHER_SPAN: &str = "00f067aa0ba902b7";

fn of(span: &str, flags: &str) -> String {
    format!("00-{TRACE}-{span}-{flags}")
}

async fn attached(told: &Told, mode: AnnotationMode, attachment: &Value, volume: &Value) -> (Stage, Vec<ReceivedSpan>) {
    let stage = stage(told, |spec| spec.tracing.annotation_mode = mode).await;
    stage.volume(&json!({ "annotations": volume }));
    stage.attachment("va", "n1", &json!({ "annotations": attachment }));
    stage.attached("va").await;
    let spans = told.until(|spans| !named(spans, ATTACH).is_empty()).await;
    (stage, spans)
}

#[tokio::test]
async fn a_context_of_somebody_else_is_linked_to() {
    let told = Told::always().await;
    let annotations = json!({
        "opentelemetry.io/traceparent": of(OTHER_SPAN, "00"), SHARED: of(SPAN, "01"), "tracing.k8s.io/tracestate": "a=b",
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
    let calls = stage.driver.calls_of(PUBLISH);
    assert!(
        calls.iter().all(|call| !format!("{call:?}").contains("admin")),
        "baggage is nobody's order"
    );
}

#[tokio::test]
async fn a_context_of_somebody_else_is_the_parent_where_that_is_allowed() {
    let told = Told::always().await;
    let annotations = json!({ SHARED: of(SPAN, "00"), "tracing.k8s.io/tracestate": "vendor=1" });
    let (stage, _) = attached(&told, AnnotationMode::Parent, &annotations, &json!({})).await;
    // The next process reads it from the object.
    let after = joined(stage.kill(), &told, |spec| {
        spec.tracing.annotation_mode = AnnotationMode::Parent
    })
    .await;
    after.watch();
    after.delete("va");
    after.gone("va").await;
    let spans = told.until(|spans| !named(spans, DETACH).is_empty()).await;
    let (attach, detach) = (only(&spans, ATTACH), only(&spans, DETACH));
    for root in [attach, detach] {
        assert_eq!(
            (root.trace_id.as_str(), root.parent_span_id.as_deref()),
            (TRACE, Some(SPAN))
        );
        assert_eq!(root.trace_state, "vendor=1");
    }
    assert_eq!(detach.links, [ids(attach)]);
    let attempt = only(&spans, ATTEMPT);
    assert_eq!(
        (attempt.trace_id.as_str(), attempt.parent_span_id.as_ref()),
        (TRACE, Some(&attach.span_id))
    );
    assert_eq!(attempt.trace_state, "vendor=1");
}

#[tokio::test]
async fn a_context_of_somebody_else_is_ignored_where_that_is_asked() {
    let told = Told::always().await;
    let annotations = json!({ SHARED: of(SPAN, "01") });
    let (stage, spans) = attached(&told, AnnotationMode::Ignore, &annotations, &annotations).await;
    assert_eq!(only(&spans, ATTACH).links, []);
    assert_eq!(extracted(&stage), [0, 0, 0]);
}

/// Counts of what was read, malformed, and read but for its `tracestate`.
fn extracted(stage: &Stage) -> [u64; 3] {
    let text = stage.metrics.encode_openmetrics();
    ["success", "invalid", "invalid_tracestate"].map(|result| {
        let series = format!("result=\"{result}\"}} ");
        let counts = text
            .lines()
            .filter(|line| line.starts_with("trace_context_annotations_extracted_total"));
        let counts = counts.filter_map(|line| line.split_once(&series)?.1.parse::<u64>().ok());
        counts.sum()
    })
}

#[tokio::test]
async fn what_is_no_context_is_ignored_and_counted() {
    let rows: [(Value, [u64; 3], usize); 6] = [
        (json!({ SHARED: "" }), [0, 1, 0], 0),
        (json!({ SHARED: "x".repeat(1 << 20) }), [0, 1, 0], 0),
        (
            json!({ SHARED: of(&SPAN.to_uppercase(), "01"), "opentelemetry.io/traceparent": of(SPAN, "01") }),
            [1, 1, 0],
            1,
        ),
        (json!({ SHARED: of("0000000000000000", "01") }), [0, 1, 0], 0),
        (
            json!({ SHARED: of(SPAN, "01"), "tracing.k8s.io/tracestate": "no state" }),
            [0, 0, 1],
            1,
        ),
        (
            json!({ SHARED: of(SPAN, "01"), "tracing.k8s.io/tracestate": "x=y,".repeat(1 << 18) }),
            [0, 0, 1],
            1,
        ),
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

/// T12: whoever annotates thousands of objects with a sampled flag gets one trace in a second, and no more.
#[tokio::test]
async fn t12_a_sampled_flag_raises_sampling_up_to_the_cap() {
    for (sampler, share, count) in [("always_off", None, 1000), ("always_on", Some(0), 200)] {
        let told = Told::sampled(sampler).await;
        let began = Instant::now();
        let stage = stage(&told, |spec| spec.tracing.samples_per_million = share).await;
        for number in 0..count {
            stage.inline(&format!("va{number}"), &json!({ SHARED: of(SPAN, "01") }));
        }
        // Each takes a claim and a status.
        stage.api.until(|api| api.patches.lock().len() == 2 * count).await;
        let spans = told.spans().await;
        let traces: std::collections::HashSet<_> = spans.iter().map(|span| &span.trace_id).collect();
        let most = 1 + began.elapsed().as_secs() + 1;
        assert!(
            !traces.is_empty() && traces.len() as u64 <= most,
            "{} traces, {most} allowed",
            traces.len()
        );
        assert!(traces.len() < count / 4);
    }
}

impl Stage {
    /// Makes an attachment with a volume of its own, as the watch brings it.
    fn inline(&self, name: &str, annotations: &Value) {
        let volume = json!({"accessModes": ["ReadWriteOnce"], "csi": {"driver": DRIVER, "volumeHandle": name}});
        let object = json!({
            "metadata": {"name": name, "uid": format!("{name}-uid"), "annotations": annotations},
            "spec": {"attacher": DRIVER, "nodeName": "n1", "source": {"inlineVolumeSpec": volume}},
        });
        let object = self.api.put(format!("{ATTACHMENTS}{name}"), object);
        let wire: VolumeAttachmentWire = serde_json::from_value(object).unwrap();
        self.store.apply_attachment(wire.into());
    }
}

#[tokio::test]
async fn names_are_told_by_their_hash_where_that_is_asked() {
    const VOLUME: &str = "patient-record-17";
    let told = Told::always().await;
    let stage = stage(&told, |spec| {
        spec.tracing.redact.names = crate::api::Redaction::Hash;
        spec.tracing.redact.volume_id = crate::api::Redaction::Hash;
    })
    .await;
    stage.store.apply_node(CsiNode::new("ward-3", &[(DRIVER, "bed-7")]));
    let text = format!("{VOLUME} of pv1 is not at bed-7 for va-of-smith");
    stage
        .driver
        .script(Rule::on(PUBLISH).times(1).fail(tonic::Code::Internal, text));
    let spec = json!({
        "accessModes": ["ReadWriteMany"], "csi": {"driver": DRIVER, "volumeHandle": VOLUME},
        "claimRef": {"name": "claim-of-smith", "namespace": "oncology", "uid": "u"}, "storageClassName": "tenant-gold",
    });
    stage.put_volume(json!({"metadata": {"name": "pv1", "uid": "pv-uid"}, "spec": spec}));
    stage.attachment("va-of-smith", "ward-3", &json!({"uid": "4711"}));
    stage.attached("va-of-smith").await;
    let spans = told.until(|spans| !named(spans, ATTACH).is_empty()).await;
    let everything = format!("{spans:#?}");
    for name in [
        VOLUME,
        "ward-3",
        "bed-7",
        "va-of-smith",
        "claim-of-smith",
        "oncology",
        "tenant-gold",
        "pv1",
    ] {
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
