//! What the span of a call carries, as a collector gets it.

use std::collections::BTreeMap;
use tonic::Code;

use super::client_tests::{ClientFixture, LONG, within};
use super::{CsiClient, DriverConnection};
use crate::api::validated::Endpoint;
use crate::trace_pipeline::pipeline;
use csi_attacher_testbed::otlp::{Attribute, OtlpReceiver, ReceivedSpan};
use csi_mock_driver::{Method, MockDriver, Rule};

use crate::telemetry::{Metrics, SHUTDOWN_CAP, Span, SpanKind, SpanOptions, TelemetryGuard, Tracer};

/// A collector, and a process that sends it everything.
pub(super) struct RecordedSpans {
    receiver: OtlpReceiver,
    tracer: Tracer,
    guard: TelemetryGuard,
}

impl RecordedSpans {
    pub async fn start() -> Self {
        let receiver = OtlpReceiver::http().await;
        let endpoint = receiver.endpoint();
        let (tracer, guard) = pipeline(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", &*endpoint),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
            ("OTEL_TRACES_SAMPLER", "always_on"),
        ]);
        Self {
            receiver,
            tracer,
            guard,
        }
    }

    /// What calls are made in.
    pub fn parent(&self) -> Span {
        self.tracer.open(SpanOptions::new("attempt", SpanKind::Internal))
    }

    /// The spans of calls, in the order of their ends.
    pub async fn calls(self) -> Vec<ReceivedSpan> {
        assert_eq!(self.guard.shutdown(SHUTDOWN_CAP).await, 0);
        let mut spans = self.receiver.spans();
        spans.retain(|span| span.name.starts_with("csi.v1."));
        spans
    }
}

/// The attributes of the call and of the connection.
fn conventional(span: &ReceivedSpan) -> BTreeMap<&str, Attribute> {
    const PREFIXES: [&str; 4] = ["rpc.", "network.", "server.", "error."];
    let chosen = span
        .attributes
        .iter()
        .filter(|(key, _)| PREFIXES.iter().any(|prefix| key.starts_with(prefix)));
    chosen.map(|(key, value)| (&**key, value.clone())).collect()
}

/// A call that goes well and one that fails; and the socket's path.
async fn two_calls() -> (ReceivedSpan, ReceivedSpan, String) {
    let told = RecordedSpans::start().await;
    let stage = ClientFixture::of(MockDriver::builder("client.test")).await;
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

/// As when the Lease is lost, or the grace period is over: whether the driver carries it out is not known.
#[tokio::test]
async fn a_call_that_is_cut_off_is_told_as_cancelled() {
    let told = RecordedSpans::start().await;
    let mut stage = ClientFixture::of(MockDriver::builder("client.test")).await;
    let metrics = Metrics::default();
    let endpoint = Endpoint::Unix(stage.folder.path().join("csi.sock"));
    let client = CsiClient::new(DriverConnection::new(&endpoint), metrics.clone());
    stage.client = client.with_driver_name("client.test".into());
    let method = Method::ControllerPublishVolume;
    stage.driver.script(Rule::on(method).hang());
    within(async {
        let parent = told.parent();
        tokio::select! {
            ended = stage.publish_under(None, LONG, &parent) => panic!("{ended:?}"),
            () = stage.driver.wait_until(|driver| driver.in_flight_of(method).now == 1) => {}
        }
    })
    .await;
    let [span] = <[_; 1]>::try_from(told.calls().await).unwrap();
    let found = conventional(&span);
    assert_eq!(found["rpc.response.status_code"], "CANCELLED".into());
    assert_eq!(found["error.type"], "CANCELLED".into());
    assert!(
        span.failed && span.status_message.contains("cut the call off"),
        "{span:#?}"
    );
    let text = metrics.encode_prometheus();
    let counted = text
        .lines()
        .any(|line| line.contains("grpc_status_code=\"Canceled\"") && line.ends_with(" 1"));
    assert!(counted, "{text}");
}

#[tokio::test]
async fn a_call_carries_the_names_of_the_conventions_and_its_failure_is_its_status() {
    let (well, failed, socket) = two_calls().await;
    for (span, text) in [(&well, "OK"), (&failed, "FAILED_PRECONDITION")] {
        let mut wanted = BTreeMap::from([
            ("server.address", Attribute::from(&*socket)),
            ("network.peer.address", Attribute::from(&*socket)),
            ("rpc.system.name", "grpc".into()),
            ("rpc.method", METHOD.into()),
            ("rpc.response.status_code", text.into()),
        ]);
        let is_failed = text != "OK";
        if is_failed {
            wanted.insert("error.type", text.into());
        }
        assert_eq!(conventional(span), wanted);
        assert_eq!((&*span.name, span.failed), (METHOD, is_failed));
        assert!(span.events.is_empty(), "{:?}", span.events);
    }
    assert_eq!(failed.status_message, "in use elsewhere");
}

/// Without a connection there is no peer.
#[tokio::test]
async fn a_driver_that_is_not_there_is_no_peer() {
    let told = RecordedSpans::start().await;
    let stage = ClientFixture::of(MockDriver::builder("client.test")).await;
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
