//! Shares of their own, in front of every sampler of the process.

use super::otlp::OtlpReceiver;
use super::{SHUTDOWN_CAP, SpanContext, SpanKind, SpanOptions, TraceIdentity, pipeline};

/// How many of `count` traces about different objects arrive when the process samples by `sampler` and a driver by `share`.
/// Each is a root with a child, which go together.
async fn sampled(sampler: &str, share: Option<u32>, count: usize) -> usize {
    let receiver = OtlpReceiver::http().await;
    let endpoint = receiver.endpoint();
    let (tracer, _metrics, guard) = pipeline(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
        ("OTEL_TRACES_SAMPLER", sampler),
        ("OTEL_TRACES_SAMPLER_ARG", "0.5"),
    ]);
    let tracer = tracer.sampling(share);
    for number in 0..count {
        let identity = TraceIdentity::derive("attach", &format!("uid-{number}"), 0);
        let chosen = tracer.samples(identity.trace_id);
        let open = |name, parent: Option<&SpanContext>| {
            tracer.open(SpanOptions {
                identity: parent.is_none().then_some(identity),
                parent,
                sampled: Some(chosen),
                ..SpanOptions::new(name, SpanKind::Consumer)
            })
        };
        let root = open("root", None);
        let context = identity.context(chosen);
        assert_eq!(
            root.context().map(crate::w3c::traceparent),
            Some(crate::w3c::traceparent(&context))
        );
        let child = open("child", Some(&context));
        assert_eq!(
            [root.is_recording(), child.is_recording()],
            [chosen; 2],
            "all of a trace or none"
        );
        assert_eq!(child.context().unwrap().trace_id(), context.trace_id());
        assert_eq!(
            (child.trace_id().is_some(), root.traceparent().is_some()),
            (chosen, chosen)
        );
        assert_eq!(tracer.samples(identity.trace_id), chosen);
    }
    assert_eq!(guard.shutdown(SHUTDOWN_CAP).await, 0);
    let spans = receiver.spans();
    let named = |name: &str| spans.iter().filter(|span| span.name == name).count();
    assert_eq!(named("root"), named("child"));
    named("root")
}

#[tokio::test]
async fn a_share_of_its_own_overrides_any_sampler() {
    for sampler in [
        "always_on",
        "always_off",
        "parentbased_always_on",
        "parentbased_always_off",
        "traceidratio",
    ] {
        assert_eq!(sampled(sampler, Some(1_000_000), 20).await, 20, "{sampler}");
        assert_eq!(sampled(sampler, Some(0), 20).await, 0, "{sampler}");
        let half = sampled(sampler, Some(500_000), 200).await;
        assert!((60..140).contains(&half), "{sampler}: {half} of 200");
    }
    assert_eq!(sampled("parentbased_always_off", None, 20).await, 0);
    assert_eq!(sampled("always_on", None, 20).await, 20);
}
