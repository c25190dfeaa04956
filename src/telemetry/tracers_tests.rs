use std::time::Duration;

use opentelemetry::trace::SpanKind;

use super::*;
use crate::api::attacher_config::TracingProtocol;
use crate::telemetry::tests::otlp::OtlpReceiver;
use crate::telemetry::{otel_env, w3c};

const LIMIT: Duration = Duration::from_secs(30);

fn tracers(pairs: &[(&str, &str)]) -> Tracers {
    let pairs = pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Tracers::start(otel_env::parse(&pairs.collect(), "0").settings, None, Arc::default())
}

fn collector(receiver: &OtlpReceiver, protocol: TracingProtocol) -> Collector {
    Collector {
        endpoint: receiver.endpoint(),
        protocol,
    }
}

fn end_span(tracer: &Tracer, name: &'static str) {
    tracer.root(name, SpanKind::Internal, &[]).end();
}

async fn arrived(receiver: &OtlpReceiver, name: &str) {
    receiver
        .wait_until(LIMIT, |spans| spans.iter().any(|span| span.name == name))
        .await;
}

/// Threads end a moment after what they wait for.
async fn until_running(tracers: &Tracers, count: usize) {
    let waiting = async {
        while tracers.running() != count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LIMIT, waiting).await.unwrap();
}

#[tokio::test]
async fn drivers_that_name_the_same_collector_share_a_pipeline() {
    let [one, two] = [OtlpReceiver::grpc().await, OtlpReceiver::http().await];
    let tracers = tracers(&[]);
    assert_eq!((tracers.running(), tracers.counters().read().queue_capacity), (0, 0));
    let [first, second, third] = [(); 3].map(|()| DriverTracer::new(tracers.clone()));
    let shared = collector(&one, TracingProtocol::Grpc);
    end_span(&first.get(Some(&shared)), "first");
    end_span(&second.get(Some(&shared)), "second");
    assert_eq!(tracers.running(), 1);
    end_span(&third.get(Some(&collector(&two, TracingProtocol::HttpJson))), "third");
    assert_eq!((tracers.running(), tracers.counters().read().queue_capacity), (2, 4096));
    assert!(!third.get(None).is_enabled());
    // Nobody names the second one any more, and its last span is sent all the same.
    arrived(&two, "third").await;
    until_running(&tracers, 1).await;
    drop(first);
    end_span(&second.get(Some(&shared)), "fourth");
    drop(second);
    for name in ["first", "second", "fourth"] {
        arrived(&one, name).await;
    }
    until_running(&tracers, 0).await;
    let counts = tracers.counters().read();
    assert_eq!((counts.exported, counts.queue_capacity, counts.queue_length), (4, 0, 0));
}

#[tokio::test]
async fn a_span_goes_where_it_began_when_the_collector_changes() {
    let [old, new] = [OtlpReceiver::grpc().await, OtlpReceiver::http().await];
    let tracers = tracers(&[("OTEL_BSP_SCHEDULE_DELAY", "3600000")]);
    let driver = DriverTracer::new(tracers.clone());
    let tracer = driver.get(Some(&collector(&old, TracingProtocol::Grpc)));
    end_span(&tracer, "before");
    let across = tracer.root("across", SpanKind::Internal, &[]);
    drop(tracer);
    let tracer = driver.get(Some(&collector(&new, TracingProtocol::HttpProtobuf)));
    end_span(&tracer, "after");
    assert_eq!(tracers.running(), 2, "a span of the old one has not ended");
    across.child("child", SpanKind::Client).end();
    across.end();
    // Not the schedule, but the end of the old pipeline sends them.
    for name in ["before", "across", "child"] {
        arrived(&old, name).await;
    }
    until_running(&tracers, 1).await;
    assert_eq!(tracers.shutdown(LIMIT).await, FlushOutcome::Flushed);
    arrived(&new, "after").await;
    assert_eq!((old.spans().len(), new.spans().len()), (3, 1));
}

#[tokio::test]
async fn a_change_away_from_a_silent_collector_waits_for_nothing() {
    let [silent, new] = [OtlpReceiver::silent().await, OtlpReceiver::http().await];
    let tracers = tracers(&[("OTEL_BSP_SCHEDULE_DELAY", "10")]);
    let driver = DriverTracer::new(tracers.clone());
    end_span(
        &driver.get(Some(&collector(&silent, TracingProtocol::HttpJson))),
        "lost",
    );
    silent.wait_for_request(LIMIT).await;
    end_span(&driver.get(Some(&collector(&new, TracingProtocol::HttpJson))), "found");
    arrived(&new, "found").await;
    // The end of the process cuts the last exports of the old pipeline short.
    assert_eq!(
        tracers.shutdown(Duration::from_millis(100)).await,
        FlushOutcome::Lost(1)
    );
    let counts = tracers.counters().settled().await;
    assert_eq!((counts.exported, counts.export_failed), (1, 1));
    assert!(!driver.get(None).is_enabled());
    assert!(
        !tracers
            .of(Some(&collector(&silent, TracingProtocol::Grpc)))
            .is_enabled()
    );
}

#[tokio::test]
async fn the_environment_comes_first_and_its_headers_are_for_its_own_collector() {
    let [named, own] = [OtlpReceiver::http().await, OtlpReceiver::http().await];
    let own_collector = collector(&own, TracingProtocol::HttpProtobuf);
    let headers = ("OTEL_EXPORTER_OTLP_HEADERS", "x-token=secret");
    let endpoint = named.endpoint();
    let of_process = tracers(&[headers, ("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)]);
    end_span(&DriverTracer::new(of_process.clone()).get(Some(&own_collector)), "one");
    assert_eq!(of_process.shutdown(LIMIT).await, FlushOutcome::Flushed);
    assert_eq!((named.spans().len(), own.spans().len()), (1, 0));
    assert_eq!(named.requests()[0]["x-token"], "secret");

    let of_config = tracers(&[headers]);
    end_span(&of_config.of(Some(&own_collector)), "two");
    assert_eq!(of_config.shutdown(LIMIT).await, FlushOutcome::Flushed);
    assert_eq!(own.spans().len(), 1);
    assert_eq!(own.requests()[0].get("x-token"), None);
}

#[tokio::test]
async fn what_is_switched_off_stays_off() {
    let receiver = OtlpReceiver::grpc().await;
    let collector = collector(&receiver, TracingProtocol::Grpc);
    for variable in [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")] {
        let tracers = tracers(&[variable]);
        let tracer = DriverTracer::new(tracers.clone()).get(Some(&collector));
        assert!(!tracer.is_enabled(), "{variable:?}");
        assert_eq!(tracers.running(), 0, "{variable:?}");
        assert_eq!(tracer.passes_on(), variable.0 == "OTEL_SDK_DISABLED");
    }
}

#[tokio::test]
async fn what_came_in_goes_on_while_the_sdk_is_disabled() {
    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let context = || w3c::parse(PARENT, Some("vendor=1")).unwrap().context;
    for (propagators, passed) in [("", true), ("tracecontext", true), ("none", false)] {
        let tracers = tracers(&[("OTEL_SDK_DISABLED", "true"), ("OTEL_PROPAGATORS", propagators)]);
        let span = tracers.of(None).pass_on(context());
        // Nothing of it is ours to tell of.
        assert_eq!(
            (span.is_recording(), span.traceparent(), span.trace_id()),
            (false, None, None)
        );
        let mut headers = http::HeaderMap::new();
        span.child("call", SpanKind::Client).inject(&mut headers);
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let expected = passed.then_some((PARENT, "vendor=1"));
        assert_eq!(
            header("traceparent").zip(header("tracestate")),
            expected,
            "{propagators}"
        );
    }
    let mut headers = http::HeaderMap::new();
    Tracer::disabled().pass_on(context()).inject(&mut headers);
    assert!(headers.is_empty());
}
