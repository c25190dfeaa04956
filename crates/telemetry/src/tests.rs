//! The pipeline from span to collector, with receivers in this process.

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime};

use http::HeaderMap;

use super::*;
use crate::names::{attr, span};
use crate::span_counts::SpanCounts;

mod share;

use csi_attacher_testbed::otlp;
use otlp::{OtlpReceiver, ReceivedSpan};

const LIMIT: Duration = Duration::from_secs(20);

fn environment(pairs: &[(&str, &str)]) -> Environment {
    pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

fn pipeline(pairs: &[(&str, &str)]) -> (Tracer, Metrics, TelemetryGuard) {
    let parsed = otel_env::parse(&environment(pairs), "1.2.3");
    assert_eq!(parsed.warnings, Vec::<String>::new());
    start(&parsed.settings)
}

/// A span without a parent that begins now, with these attributes.
pub fn root_span(tracer: &Tracer, name: &'static str, kind: SpanKind, attributes: &[Attribute<'_>]) -> Span {
    let mut span = tracer.open(SpanOptions::new(name, kind));
    for (key, value) in attributes {
        span.set(key, value.clone());
    }
    span
}

/// A listener whose address swallows packets, as its queue is full, and what fills the queue.
pub(super) fn swallowing_listener() -> (tokio::net::TcpListener, Vec<std::net::TcpStream>) {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut queued = Vec::new();
    while let Ok(stream) = std::net::TcpStream::connect_timeout(&address, Duration::from_millis(300)) {
        queued.push(stream);
        assert!(queued.len() < 100, "the queue has no end");
    }
    (listener, queued)
}

/// Waits until nothing is open. A thread that was told to stop counts what it leaves a moment later.
pub(super) async fn settled(counters: &SpanCounters) -> SpanCounts {
    let settled = async {
        loop {
            let counts = counters.read();
            if counts.open() == 0 && counts.queue_length == 0 {
                return counts;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let limit = Duration::from_secs(20);
    tokio::time::timeout(limit, settled)
        .await
        .expect("the books are closed")
}

fn by_name<'a>(spans: &'a [ReceivedSpan], name: &str) -> &'a ReceivedSpan {
    let mut found = spans.iter().filter(|span| span.name == name);
    match (found.next(), found.next()) {
        (Some(span), None) => span,
        other => panic!("not exactly one span {name}: {other:#?}"),
    }
}

/// Makes one attempt with two calls, one of which fails; returns the ids of the root.
fn trace_an_attempt(tracer: &Tracer, start: SystemTime) -> (String, String) {
    let mut root = tracer.open(SpanOptions {
        start: Some(start),
        ..SpanOptions::new(span::ATTACH_ATTEMPT, SpanKind::Consumer)
    });
    root.set(attr::CSI_PLUGIN_NAME, "driver.example");
    root.set(attr::ATTEMPT, 2i64);
    root.set(attr::ATTEMPT, 3i64);
    root.set(attr::QUEUE_WAIT, Duration::from_millis(500));
    root.set(attr::READ_ONLY, true);
    let mut call = tracer.open(SpanOptions {
        start: Some(start),
        parent: root.context(),
        ..SpanOptions::new("csi.v1.Controller/ControllerPublishVolume", SpanKind::Client)
    });
    call.set(
        attr::RPC_RESPONSE_STATUS_CODE,
        names::code_upper_snake(tonic::Code::DeadlineExceeded),
    );
    call.set(attr::PUBLISH_CONTEXT_KEYS, vec!["device".to_owned(), "lun".to_owned()]);
    call.event("resolved", &[(attr::SECRETS_COUNT, 2usize.into())]);
    call.fail("DEADLINE_EXCEEDED", "no answer\nin time");
    call.end_at(start + Duration::from_secs(1));
    drop(root.child(
        "PATCH /apis/storage.k8s.io/v1/volumeattachments/{:name}/status",
        SpanKind::Client,
    ));
    let ids = (root.trace_id().unwrap(), root.context().unwrap().span_id().to_string());
    root.end();
    ids
}

async fn spans_arrive(receiver: OtlpReceiver, protocol: &str, compression: &str) {
    let (tracer, metrics, guard) = pipeline(&[
        ("OTEL_EXPORTER_OTLP_COMPRESSION", compression),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &receiver.endpoint()),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-token=50%2525%20off"),
        ("OTEL_RESOURCE_ATTRIBUTES", "k8s.cluster.name=test"),
        ("POD_NAME", "attacher-0"),
    ]);
    let start = SystemTime::now() - Duration::from_secs(5);
    let (trace_id, root_id) = trace_an_attempt(&tracer, start);
    assert_eq!(guard.shutdown(LIMIT).await, 0);

    let spans = receiver.wait_until(LIMIT, |spans| spans.len() >= 3).await;
    assert_eq!(spans.len(), 3);
    let root = by_name(&spans, span::ATTACH_ATTEMPT);
    let call = by_name(&spans, "csi.v1.Controller/ControllerPublishVolume");
    let patch = by_name(&spans, "PATCH /apis/storage.k8s.io/v1/volumeattachments/{:name}/status");
    check_root(root, &trace_id, &root_id, start);
    check_call(call);
    for child in [call, patch] {
        assert_eq!(child.kind, otlp_kind_client());
        assert_eq!(
            (&child.trace_id, child.parent_span_id.as_ref()),
            (&trace_id, Some(&root_id))
        );
        assert_ne!(child.span_id, root_id);
    }
    assert!(!patch.failed);
    let headers = &receiver.requests()[0];
    assert_eq!(headers["x-token"], "50%25 off");
    let encoded = headers.get("content-encoding").or(headers.get("grpc-encoding"));
    assert_eq!(
        encoded.is_some_and(|encoding| encoding == "gzip"),
        compression == "gzip"
    );

    let text = metrics.encode_openmetrics();
    assert!(
        text.contains("csi_attacher_trace_spans_total{result=\"exported\"} 3\n"),
        "{text}"
    );
    assert!(
        text.contains("csi_attacher_trace_spans_total{result=\"shutdown\"} 0\n"),
        "{text}"
    );
    // A span that ends after the shutdown is counted and goes nowhere.
    root_span(&tracer, "late", SpanKind::Internal, &[]).end();
    assert!(metrics.encode_openmetrics().contains("{result=\"shutdown\"} 1\n"));
}

fn otlp_kind_client() -> opentelemetry_proto::tonic::trace::v1::span::SpanKind {
    opentelemetry_proto::tonic::trace::v1::span::SpanKind::Client
}

fn check_root(root: &ReceivedSpan, trace_id: &str, root_id: &str, start: SystemTime) {
    assert_eq!(
        root.kind,
        opentelemetry_proto::tonic::trace::v1::span::SpanKind::Consumer
    );
    assert_eq!((root.trace_id.as_str(), root.span_id.as_str()), (trace_id, root_id));
    assert_eq!(root.parent_span_id, None);
    assert!(!root.failed, "a recovered failure of a call is none of the attempt");
    let expected = BTreeMap::from([
        (attr::CSI_PLUGIN_NAME.to_owned(), "driver.example".into()),
        (attr::ATTEMPT.to_owned(), otlp::Attribute::I64(3)),
        (attr::QUEUE_WAIT.to_owned(), otlp::Attribute::F64(0.5)),
        (attr::READ_ONLY.to_owned(), otlp::Attribute::Bool(true)),
    ]);
    assert_eq!(root.attributes, expected);
    let nanos = start.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos();
    assert_eq!(u128::from(root.start_unix_nano), nanos);
    assert!(root.end_unix_nano > root.start_unix_nano);
    for (key, value) in [
        ("service.name", "csi-attacher-operator"),
        ("service.version", "1.2.3"),
        ("k8s.pod.name", "attacher-0"),
        ("k8s.cluster.name", "test"),
        ("telemetry.sdk.language", "rust"),
    ] {
        assert_eq!(root.resource.get(key), Some(&value.into()), "{key}");
    }
    assert_eq!(root.scope, "csi-attacher-operator");
}

fn check_call(call: &ReceivedSpan) {
    assert!(call.failed);
    assert_eq!(call.status_message, "no answerin time");
    assert_eq!(call.text(attr::ERROR_TYPE), "DEADLINE_EXCEEDED");
    assert_eq!(call.text(attr::RPC_RESPONSE_STATUS_CODE), "DEADLINE_EXCEEDED");
    let keys = otlp::Attribute::StrArray(vec!["device".to_owned(), "lun".to_owned()]);
    assert_eq!(call.attributes.get(attr::PUBLISH_CONTEXT_KEYS), Some(&keys));
    let event = BTreeMap::from([(attr::SECRETS_COUNT.to_owned(), otlp::Attribute::I64(2))]);
    assert_eq!(call.events, [("resolved".to_owned(), event)]);
    assert_eq!(call.end_unix_nano - call.start_unix_nano, 1_000_000_000);
}

// The guard must work on a current-thread runtime, which is the default of these tests.

#[tokio::test]
async fn spans_arrive_by_each_protocol_compressed_or_not() {
    for compression in ["none", "gzip"] {
        spans_arrive(OtlpReceiver::grpc().await, "grpc", compression).await;
        for protocol in ["http/protobuf", "http/json"] {
            spans_arrive(OtlpReceiver::http().await, protocol, compression).await;
        }
    }
}

#[tokio::test]
async fn the_batch_timer_exports_without_a_flush() {
    let receiver = OtlpReceiver::http().await;
    let endpoint = format!("{}/v1/traces", receiver.endpoint());
    let (tracer, _, guard) = pipeline(&[
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", &endpoint),
        ("OTEL_BSP_SCHEDULE_DELAY", "20"),
    ]);
    root_span(&tracer, "one", SpanKind::Internal, &[]).end();
    receiver.wait_until(LIMIT, |spans| spans.len() == 1).await;
    drop(root_span(&tracer, "two", SpanKind::Internal, &[]));
    receiver.wait_until(LIMIT, |spans| spans.len() == 2).await;
    assert_eq!(guard.shutdown(SHUTDOWN_CAP).await, 0);
}

#[tokio::test]
async fn a_full_batch_is_exported_at_once() {
    let receiver = OtlpReceiver::grpc().await;
    let (tracer, _, _guard) = pipeline(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &receiver.endpoint()),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_BSP_SCHEDULE_DELAY", "3600000"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "8"),
    ]);
    for _ in 0..16 {
        root_span(&tracer, "one", SpanKind::Internal, &[]).end();
    }
    receiver.wait_until(LIMIT, |spans| spans.len() == 16).await;
}

async fn silence_costs_nothing(protocol: &str) {
    const SPANS: u64 = 20_000;
    let receiver = OtlpReceiver::silent().await;
    let (tracer, metrics, guard) = pipeline(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &receiver.endpoint()),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "64"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "16"),
    ]);
    let counters = guard.counters.clone();
    let began = Instant::now();
    for _ in 0..SPANS {
        root_span(&tracer, "one", SpanKind::Internal, &[]).end();
    }
    let each = began.elapsed() / u32::try_from(SPANS).unwrap();
    // The bound is generous for an unoptimized build on a busy machine; an export would take seconds.
    assert!(each < Duration::from_millis(1), "ending a span took {each:?}");
    receiver.wait_for_request(LIMIT).await;
    let counts = counters.read();
    assert_eq!(counts.ended, SPANS);
    assert!(counts.queue_full >= SPANS - 64 - 16, "{counts:?}");

    let began = Instant::now();
    let cap = Duration::from_millis(300);
    let outcome = guard.shutdown(cap).await;
    let took = began.elapsed();
    // The export that hangs would take ten seconds.
    assert!(took < Duration::from_secs(8), "shutdown took {took:?}");
    let counts = settled(&counters).await;
    let SpanCounts {
        exported,
        export_failed,
        queue_full,
        shutdown,
        queue_length,
        ..
    } = counts;
    assert_eq!((exported, queue_length), (0, 0), "{counts:?}");
    assert_eq!(export_failed + queue_full + shutdown, SPANS, "{counts:?}");
    assert_eq!(outcome, export_failed + shutdown);
    assert!(outcome > 0);
    let text = metrics.encode_openmetrics();
    assert!(text.contains(&format!(
        "csi_attacher_trace_spans_total{{result=\"queue_full\"}} {queue_full}\n"
    )));
}

#[tokio::test]
async fn a_silent_http_collector_costs_nothing() {
    silence_costs_nothing("http/protobuf").await;
}

#[tokio::test]
async fn a_silent_grpc_collector_costs_nothing() {
    silence_costs_nothing("grpc").await;
}

#[tokio::test]
async fn a_refused_connection_counts_as_failed() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let (tracer, _, guard) = pipeline(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint),
        ("OTEL_BSP_EXPORT_TIMEOUT", "200"),
    ]);
    root_span(&tracer, "one", SpanKind::Internal, &[]).end();
    assert_eq!(guard.shutdown(LIMIT).await, 1);
}

#[tokio::test]
async fn an_exporter_that_cannot_be_built_sends_nothing_and_counts() {
    let settings = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://127.0.0.1:1"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nonexistent/ca.pem"),
    ];
    let (tracer, _, guard) = pipeline(&settings);
    root_span(&tracer, "one", SpanKind::Internal, &[]).end();
    let counters = guard.counters.clone();
    assert_eq!(guard.shutdown(LIMIT).await, 1);
    assert_eq!(counters.read().export_failed, 1);
}

#[test]
fn t13_a_disabled_tracer_does_and_sends_nothing() {
    let (tracer, _, _guard) = pipeline(&[]);
    assert!(!tracer.is_enabled());
    let mut root = root_span(&tracer, "one", SpanKind::Internal, &[(attr::NODE_NAME, "n".into())]);
    root.set(attr::OUTCOME, "succeeded");
    root.fail("conflict", "x");
    let child = root.child("two", SpanKind::Client);
    for span in [&root, &child, &Span::disabled()] {
        assert!(!span.is_recording());
        assert_eq!(
            (span.traceparent(), span.trace_id(), span.context()),
            (None, None, None)
        );
        let mut headers = HeaderMap::new();
        span.inject(&mut headers);
        assert!(headers.is_empty());
    }
}

#[tokio::test]
async fn propagation_follows_the_sampler_and_the_propagators() {
    let receiver = OtlpReceiver::http().await;
    let endpoint = receiver.endpoint();
    for (sampler, propagators, flags, injected) in [
        ("parentbased_always_on", "tracecontext,baggage", "01", true),
        ("always_off", "tracecontext", "00", true),
        ("always_on", "none", "01", false),
        ("always_on", "baggage", "01", false),
    ] {
        let (tracer, _, guard) = pipeline(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint),
            ("OTEL_TRACES_SAMPLER", sampler),
            ("OTEL_PROPAGATORS", propagators),
        ]);
        let root = root_span(&tracer, "one", SpanKind::Internal, &[]);
        let child = root.child("two", SpanKind::Client);
        assert_eq!(child.is_recording(), flags == "01");
        let text = crate::w3c::traceparent(child.context().unwrap());
        assert!(text.ends_with(flags), "{text}");
        // An id that no collector gets is named nowhere, and is passed on all the same.
        let is_sampled = flags == "01";
        assert_eq!(child.traceparent(), is_sampled.then(|| text.clone()));
        assert_eq!(root.trace_id().is_some(), is_sampled);
        let mut headers = HeaderMap::new();
        child.inject(&mut headers);
        let mut metadata = tonic::metadata::MetadataMap::new();
        child.inject(metadata.as_mut());
        let expected = injected.then_some(text);
        let in_headers = headers.get("traceparent").map(|value| value.to_str().unwrap());
        let in_metadata = metadata.get("traceparent").map(|value| value.to_str().unwrap());
        let expected = expected.as_deref();
        assert_eq!((in_headers, in_metadata), (expected, expected));
        drop((root, child));
        assert_eq!(guard.shutdown(SHUTDOWN_CAP).await, 0);
    }
    let sampled = receiver.spans().iter().filter(|span| span.name == "one").count();
    assert_eq!(sampled, 3, "an unsampled span is not exported");
}

#[tokio::test]
async fn values_are_cut_and_limits_kept() {
    let receiver = OtlpReceiver::http().await;
    let (tracer, _, guard) = pipeline(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &receiver.endpoint()),
        ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "5"),
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "2"),
        ("OTEL_SPAN_EVENT_COUNT_LIMIT", "1"),
        ("OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT", "1"),
    ]);
    let mut root = root_span(
        &tracer,
        "one",
        SpanKind::Internal,
        &[("a", "123456".into()), ("b", "\u{1b}[31m".into())],
    );
    root.set("c", "dropped");
    root.event("kept", &[("a", "1".into()), ("b", "dropped".into())]);
    root.event("dropped", &[]);
    root.fail("ignored by the count limit", "long description");
    root.end();
    assert_eq!(guard.shutdown(SHUTDOWN_CAP).await, 0);
    let spans = receiver.spans();
    let expected = BTreeMap::from([("a".to_owned(), "12345".into()), ("b".to_owned(), "[31m".into())]);
    assert_eq!(spans[0].attributes, expected);
    assert_eq!(spans[0].status_message, "long ");
    let event = BTreeMap::from([("a".to_owned(), "1".into())]);
    assert_eq!(spans[0].events, [("kept".to_owned(), event)]);
}
