use opentelemetry::trace::SpanKind;

use super::*;
use crate::otel_env;
use csi_attacher_testbed::otlp::OtlpReceiver;

use crate::tests::{root_span, settled, swallowing_listener};

const LIMIT: Duration = Duration::from_secs(30);

fn start(pairs: &[(&str, &str)]) -> (Tracer, TelemetryGuard) {
    let pairs = pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let settings = otel_env::parse(&pairs.collect(), "0").settings;
    TelemetryGuard::start(&settings, Arc::default())
}

#[tokio::test]
async fn a_silent_collector_holds_up_a_shutdown_for_no_longer_than_the_cap() {
    let silent = OtlpReceiver::silent().await;
    let endpoint = silent.endpoint();
    let (tracer, guard) = start(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint),
        ("OTEL_BSP_SCHEDULE_DELAY", "10"),
    ]);
    root_span(&tracer, "lost", SpanKind::Internal, &[]).end();
    silent.wait_for_request(LIMIT).await;
    let counters = guard.counters.clone();
    assert_eq!(guard.shutdown(Duration::from_millis(100)).await, 1);
    let counts = settled(&counters).await;
    assert_eq!((counts.exported, counts.export_failed), (0, 1));
    assert_eq!((counts.queue_capacity, counts.queue_length), (0, 0));
}

/// The export is under way, and still connects.
#[tokio::test]
async fn a_collector_that_swallows_packets_holds_up_a_shutdown_for_no_longer_than_the_cap() {
    let (listener, _queued) = swallowing_listener();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let (tracer, guard) = start(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
        ("OTEL_BSP_SCHEDULE_DELAY", "10"),
        // It connects for half of this.
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "60000"),
        ("OTEL_BSP_EXPORT_TIMEOUT", "60000"),
    ]);
    root_span(&tracer, "lost", SpanKind::Internal, &[]).end();
    while guard.counters.read().queue_length > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let started = std::time::Instant::now();
    assert_eq!(guard.shutdown(Duration::from_millis(100)).await, 1);
    assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
}

#[tokio::test]
async fn what_is_switched_off_stays_off() {
    let receiver = OtlpReceiver::grpc().await;
    let endpoint = receiver.endpoint();
    for variable in [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")] {
        let (tracer, guard) = start(&[variable, ("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)]);
        assert!(!tracer.is_enabled() && guard.pipeline.is_none(), "{variable:?}");
        assert_eq!(guard.shutdown(LIMIT).await, 0);
    }
    let (tracer, guard) = start(&[]);
    assert!(!tracer.is_enabled() && guard.pipeline.is_none());
}
