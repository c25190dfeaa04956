//! Spans that are kept back: all of a trace or none, and never too many.

use super::otlp::OtlpReceiver;
use super::{FlushOutcome, LIMIT, Metrics, SHUTDOWN_CAP, SpanKind, TelemetryGuard, Tracer, pipeline};
use crate::telemetry::Span;
use crate::telemetry::trace::Hold;

/// Spans of one trace that are kept back at most.
const MOST: usize = 256;

struct Stage {
    receiver: OtlpReceiver,
    tracer: Tracer,
    metrics: Metrics,
    guard: TelemetryGuard,
}

impl Stage {
    async fn new(sampler: &str) -> Self {
        let receiver = OtlpReceiver::http().await;
        let endpoint = receiver.endpoint();
        let (tracer, metrics, guard) = pipeline(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
            ("OTEL_TRACES_SAMPLER", sampler),
        ]);
        Self {
            receiver,
            tracer,
            metrics,
            guard,
        }
    }

    /// A trace that is kept back, with so many children that have ended.
    fn trace(&self, children: usize) -> (Span, Hold) {
        let (root, hold) = self.tracer.held_root("root", SpanKind::Internal);
        for _ in 0..children {
            root.child("child", SpanKind::Client).end();
        }
        (root, hold)
    }

    /// Names of what arrived, as counts of roots, children and grandchildren.
    async fn arrived(&self) -> [usize; 3] {
        assert_eq!(self.guard.flush(LIMIT).await, FlushOutcome::Flushed);
        let spans = self.receiver.spans();
        ["root", "child", "grandchild"].map(|name| spans.iter().filter(|span| span.name == name).count())
    }

    /// Exported and filtered spans, as the metrics count them.
    fn counted(&self) -> [usize; 2] {
        let text = self.metrics.encode_prometheus();
        ["exported", "filtered"].map(|result| {
            let prefix = format!("csi_attacher_trace_spans_total{{result=\"{result}\"}} ");
            let value = text.lines().find_map(|line| line.strip_prefix(&prefix));
            value.expect("a count").parse().unwrap()
        })
    }
}

#[tokio::test]
async fn nothing_is_sent_before_it_is_decided() {
    let stage = Stage::new("always_on").await;
    let (root, hold) = stage.trace(2);
    assert_eq!(stage.arrived().await, [0; 3]);
    assert_eq!(stage.counted(), [0, 0]);
    hold.decide(true);
    // What ends later goes the same way, whatever its parent.
    root.child("child", SpanKind::Client)
        .child("grandchild", SpanKind::Internal)
        .end();
    root.end();
    assert_eq!(stage.arrived().await, [1, 3, 1]);
    let spans = stage.receiver.spans();
    let root = spans.iter().find(|span| span.name == "root").unwrap();
    assert!(spans.iter().all(|span| span.trace_id == root.trace_id));
    assert!(
        spans
            .iter()
            .all(|span| span.name != "child" || span.parent_span_id.as_ref() == Some(&root.span_id))
    );
    assert!(
        spans.iter().all(|span| span.end_unix_nano <= root.end_unix_nano),
        "each ended when it ended, not when it was sent"
    );
    assert_eq!(stage.guard.shutdown(SHUTDOWN_CAP).await, FlushOutcome::Flushed);
}

#[tokio::test]
async fn what_is_left_out_is_counted_as_filtered() {
    let stage = Stage::new("always_on").await;
    let (root, hold) = stage.trace(3);
    hold.decide(false);
    assert_eq!(stage.counted(), [0, 3]);
    drop(root.child("child", SpanKind::Client));
    root.end();
    assert_eq!(stage.counted(), [0, 5]);
    // Of what nobody decides on, as of work that is given up, nothing is sent.
    let (root, hold) = stage.trace(1);
    drop((hold, root));
    assert_eq!(stage.counted(), [0, 7]);
    assert_eq!(stage.arrived().await, [0; 3]);
    // Others are not kept back.
    stage.tracer.root("root", SpanKind::Internal, &[]).end();
    assert_eq!(stage.arrived().await, [1, 0, 0]);
    assert_eq!(stage.counted(), [1, 7]);
}

#[tokio::test]
async fn what_was_not_sampled_is_neither_kept_nor_counted() {
    let stage = Stage::new("always_off").await;
    for send in [true, false] {
        let (root, hold) = stage.trace(2);
        hold.decide(send);
        root.end();
    }
    assert_eq!(stage.arrived().await, [0; 3]);
    assert_eq!(stage.counted(), [0, 0]);
}

/// A listing may have any number of pages: its first ones are kept, and the root in any case.
#[tokio::test]
async fn no_more_spans_are_kept_back_than_so_many() {
    const BEYOND: usize = 44;
    let stage = Stage::new("always_on").await;
    let (root, hold) = stage.trace(MOST);
    assert_eq!(stage.counted(), [0, 0]);
    for beyond in 1..=BEYOND {
        root.child("beyond", SpanKind::Client).end();
        assert_eq!(stage.counted(), [0, beyond]);
    }
    hold.decide(true);
    root.end();
    assert_eq!(stage.arrived().await, [1, MOST, 0]);
    assert_eq!(stage.receiver.spans().len(), MOST + 1, "of those beyond, none");
    assert_eq!(stage.counted(), [MOST + 1, BEYOND]);
}
