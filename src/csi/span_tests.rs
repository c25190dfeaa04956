//! What the span of a call carries under each convention that the environment can ask for, as a collector gets it.

use std::collections::BTreeMap;
use tonic::Code;

use super::client_tests::{LONG, Stage, within};
use crate::mock::{Method, MockDriver, Rule};
use crate::telemetry::tests::otlp::{Attribute, OtlpReceiver, ReceivedSpan};
use crate::telemetry::{FlushOutcome, SHUTDOWN_CAP, Span, SpanKind, TelemetryGuard, Tracer, pipeline};

/// A collector, and a process that sends it everything.
pub(super) struct Told {
    receiver: OtlpReceiver,
    tracer: Tracer,
    guard: TelemetryGuard,
}

impl Told {
    /// With these variables of the environment beside those of the collector.
    pub async fn with(variables: &[(&str, &str)]) -> Self {
        let receiver = OtlpReceiver::http().await;
        let endpoint = receiver.endpoint();
        let collector = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", &*endpoint),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
            ("OTEL_TRACES_SAMPLER", "always_on"),
        ];
        let (tracer, guard) = pipeline(&[&collector, variables].concat());
        Self {
            receiver,
            tracer,
            guard,
        }
    }

    /// What calls are made in.
    pub fn parent(&self) -> Span {
        self.tracer.root("attempt", SpanKind::Internal, &[])
    }

    /// The spans of calls, in the order of their ends.
    pub async fn calls(self) -> Vec<ReceivedSpan> {
        assert_eq!(self.guard.shutdown(SHUTDOWN_CAP).await, FlushOutcome::Flushed);
        let mut spans = self.receiver.spans();
        spans.retain(|span| span.name.starts_with("csi.v1."));
        spans
    }
}

/// The attributes whose names depend on a convention, and those around them.
fn conventional(span: &ReceivedSpan) -> BTreeMap<&str, Attribute> {
    const PREFIXES: [&str; 4] = ["rpc.", "network.", "server.", "error."];
    let chosen = span
        .attributes
        .iter()
        .filter(|(key, _)| PREFIXES.iter().any(|prefix| key.starts_with(prefix)));
    chosen.map(|(key, value)| (&**key, value.clone())).collect()
}

/// A call that goes well and one that fails, traced in an environment with these variables; and the socket's path.
async fn two_calls(variables: &[(&str, &str)]) -> (ReceivedSpan, ReceivedSpan, String) {
    let told = Told::with(variables).await;
    let stage = Stage::of(MockDriver::builder("client.test")).await;
    let parent = told.parent();
    stage.publish_under(None, LONG, &parent).await.unwrap();
    let rule = Rule::on(Method::ControllerPublishVolume).fail(Code::FailedPrecondition, "in use elsewhere");
    stage.driver.script(rule);
    stage.publish_under(None, LONG, &parent).await.unwrap_err();
    let spans = told.calls().await;
    let [well, failed] = spans.try_into().unwrap_or_else(|other| panic!("{other:#?}"));
    (well, failed, stage.folder.path().join("csi.sock").display().to_string())
}

const METHOD: &str = "csi.v1.Controller/ControllerPublishVolume";

#[tokio::test]
async fn each_convention_has_its_own_names() {
    for (variables, is_new, is_old) in [
        (&[][..], true, false),
        (&[("OTEL_SEMCONV_STABILITY_OPT_IN", "rpc")], true, false),
        (&[("OTEL_SEMCONV_STABILITY_OPT_IN", "rpc/dup")], true, true),
        (&[("OTEL_SEMCONV_STABILITY_OPT_IN", "rpc/old")], false, true),
    ] {
        let (well, failed, socket) = two_calls(variables).await;
        for (span, text, number) in [(&well, "OK", 0), (&failed, "FAILED_PRECONDITION", 9)] {
            let mut wanted = BTreeMap::from([
                ("server.address", Attribute::from(&*socket)),
                ("network.peer.address", Attribute::from(&*socket)),
            ]);
            if is_old {
                wanted.extend([
                    ("rpc.system", "grpc".into()),
                    ("rpc.service", "csi.v1.Controller".into()),
                    ("rpc.method", "ControllerPublishVolume".into()),
                    ("rpc.grpc.status_code", Attribute::I64(number)),
                    ("network.transport", "unix".into()),
                ]);
            }
            // Of the name that both have, the new meaning wins.
            if is_new {
                wanted.extend([
                    ("rpc.system.name", "grpc".into()),
                    ("rpc.method", METHOD.into()),
                    ("rpc.response.status_code", text.into()),
                ]);
            }
            if number != 0 {
                wanted.insert("error.type", text.into());
            }
            assert_eq!(conventional(span), wanted, "{variables:?}");
            assert_eq!((&*span.name, span.failed), (METHOD, number != 0), "{variables:?}");
            assert!(span.events.is_empty(), "{:?}", span.events);
        }
        assert_eq!(failed.status_message, "in use elsewhere", "{variables:?}");
    }
}

#[tokio::test]
async fn a_failed_call_is_an_event_of_its_span_only_if_that_is_asked_for() {
    const NAME: &str = "OTEL_SEMCONV_EXCEPTION_SIGNAL_OPT_IN";
    for (variables, is_event) in [
        (&[][..], false),
        (&[(NAME, "logs")], false),
        (&[(NAME, "logs/dup")], true),
    ] {
        let (well, failed, _) = two_calls(variables).await;
        assert_eq!(well.events, [], "{variables:?}");
        let event = BTreeMap::from([
            ("exception.type".to_owned(), "FAILED_PRECONDITION".into()),
            ("exception.message".to_owned(), "in use elsewhere".into()),
        ]);
        let wanted: Vec<_> = is_event.then(|| ("exception".to_owned(), event)).into_iter().collect();
        assert_eq!(failed.events, wanted, "{variables:?}");
        // The status says it either way.
        assert_eq!((failed.failed, &*failed.status_message), (true, "in use elsewhere"));
    }
}

/// Without a connection there is no peer.
#[tokio::test]
async fn a_driver_that_is_not_there_is_no_peer() {
    let told = Told::with(&[]).await;
    let stage = Stage::of(MockDriver::builder("client.test")).await;
    within(stage.driver.stop()).await;
    stage.publish_under(None, LONG, &told.parent()).await.unwrap_err();
    let spans = told.calls().await;
    let keys: Vec<&str> = conventional(&spans[0]).into_keys().collect();
    assert_eq!(
        keys,
        [
            "error.type",
            "rpc.method",
            "rpc.response.status_code",
            "rpc.system.name",
            "server.address"
        ]
    );
}
