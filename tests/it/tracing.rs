//! The traces of attach and detach, as a collector gets them from the real operator.

mod tree;

use std::time::Duration;

use csi_attacher_operator::api::AttacherConfig;
use csi_attacher_operator::api::names::finalizer_name;
use csi_attacher_operator::mock::{CallRecord, Method, MockDriver, Rule};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::Api;
use tonic::Code;

use crate::support::otlp::{Attribute, OtlpReceiver, ReceivedSpan};
use crate::support::stage::{Driver, PUBLISH_SECRET, Stage, stop};
use crate::support::wait::wait_for;
use crate::support::{Operator, OperatorOptions, Result, Volume};

const LIMIT: Duration = Duration::from_secs(30);
const PUBLISH: Method = Method::ControllerPublishVolume;
const UNPUBLISH: Method = Method::ControllerUnpublishVolume;
const PATCH_VOLUME: &str = "/api/v1/persistentvolumes/{:name}";
const PATCH_ATTACHMENT: &str = "/apis/storage.k8s.io/v1/volumeattachments/{:name}";
const PATCH_STATUS: &str = "/apis/storage.k8s.io/v1/volumeattachments/{:name}/status";
const GET_SECRET: &str = "/api/v1/namespaces/{:namespace}/secrets/{:name}";

/// What the spans of the whole life of one volume look like, when the first call to attach it fails.
const LIFE: [&str; 4] = [
    "CONSUMER VolumeAttachment.attach.attempt INTERNAL\
     \n  CLIENT PATCH /api/v1/persistentvolumes/{:name}\
     \n  CLIENT GET /api/v1/namespaces/{:namespace}/secrets/{:name}\
     \n  CLIENT PATCH /apis/storage.k8s.io/v1/volumeattachments/{:name}\
     \n  CLIENT csi.v1.Controller/ControllerPublishVolume INTERNAL\
     \n  CLIENT PATCH /apis/storage.k8s.io/v1/volumeattachments/{:name}/status",
    "CONSUMER VolumeAttachment.attach.attempt\
     \n  CLIENT GET /api/v1/namespaces/{:namespace}/secrets/{:name}\
     \n  CLIENT csi.v1.Controller/ControllerPublishVolume\
     \n  CLIENT PATCH /apis/storage.k8s.io/v1/volumeattachments/{:name}/status",
    "CONSUMER VolumeAttachment.detach.attempt\
     \n  CLIENT GET /api/v1/namespaces/{:namespace}/secrets/{:name}\
     \n  CLIENT csi.v1.Controller/ControllerUnpublishVolume\
     \n  CLIENT PATCH /apis/storage.k8s.io/v1/volumeattachments/{:name}",
    "CONSUMER PersistentVolume.release\
     \n  CLIENT PATCH /api/v1/persistentvolumes/{:name}",
];

fn operator() -> OperatorOptions {
    OperatorOptions::new(env!("CARGO_BIN_EXE_csi-attacher-operator"))
}

/// An operator that traces to this receiver, which speaks the given `OTEL_EXPORTER_OTLP_PROTOCOL`.
fn traced(receiver: &OtlpReceiver, protocol: &str) -> OperatorOptions {
    operator()
        .variable("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint())
        .variable("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
        .variable("OTEL_BSP_SCHEDULE_DELAY", "20")
}

/// The names of one test: each has a driver, an AttacherConfig, a node, volumes and attachments of its own.
struct Names {
    prefix: &'static str,
}

impl Names {
    fn driver(&self) -> String {
        format!("{}.csi.test", self.prefix)
    }

    fn of(&self, what: &str) -> String {
        format!("{}-{what}", self.prefix)
    }

    async fn start_driver(&self, stage: &Stage) -> Result<Driver> {
        let builder = MockDriver::builder(self.driver()).accept_any_volume();
        let driver = stage.driver(builder, self.prefix).await?;
        let fixtures = &stage.fixtures;
        fixtures
            .csi_node(&self.of("node"), &self.driver(), &self.of("node-id"))
            .await?;
        Ok(driver)
    }

    /// Attaches a volume without a claim or a secret.
    async fn attach(&self, stage: &Stage, what: &str) -> Result<()> {
        let (name, fixtures) = (self.of(what), &stage.fixtures);
        let volume = Volume::new(&name, &self.driver(), &name);
        fixtures.persistent_volume(&volume).await?;
        fixtures
            .volume_attachment(&name, &self.driver(), &name, &self.of("node"))
            .await?;
        fixtures.wait_for_attached(&name).await.map(drop)
    }
}

/// What [`live`] leaves behind to be looked at.
struct Life {
    names: Names,
    attachment_uid: String,
    socket: String,
    calls: Vec<CallRecord>,
    /// Host and port of the API server.
    api_server: (String, i64),
}

impl Life {
    fn calls_of(&self, method: Method) -> Vec<&CallRecord> {
        self.calls.iter().filter(|call| call.method == method).collect()
    }
}

/// The whole life of a volume: attached at the second try, detached, deleted. The operator has ended after it.
async fn live(stage: &Stage, names: Names, options: OperatorOptions) -> Result<Life> {
    stage
        .publish_secret(&[("user", "admin"), ("password", "open-sesame")])
        .await?;
    let mut operator = stage.operator(options).await?;
    let driver = names.start_driver(stage).await?;
    let failure = Rule::on(PUBLISH).times(1).fail(Code::Internal, "the array restarts");
    driver.handle.script(failure);

    let (volume, attachment) = (names.of("pv"), names.of("va"));
    let (namespace, secret) = PUBLISH_SECRET;
    let shape = Volume::new(&volume, &names.driver(), &names.of("handle"))
        .publish_secret(namespace, secret)
        .fs_type("ext4")
        .storage_class("gold");
    let fixtures = &stage.fixtures;
    fixtures.bound_claim(&shape, "default", &names.of("claim")).await?;
    let made = fixtures
        .volume_attachment(&attachment, &names.driver(), &volume, &names.of("node"))
        .await?;
    fixtures.wait_for_attached(&attachment).await?;
    fixtures
        .delete::<k8s_openapi::api::storage::v1::VolumeAttachment>(&attachment)
        .await?;
    fixtures.wait_for_attachment_gone(&attachment).await?;
    fixtures.delete::<PersistentVolume>(&volume).await?;
    let finalizer = finalizer_name(&names.driver());
    fixtures.wait_for_volume_finalizer(&volume, &finalizer, false).await?;
    stop(&mut operator).await?;

    let url = stage.cluster.url();
    let (host, port) = url.trim_start_matches("https://").split_once(':').unwrap();
    Ok(Life {
        names,
        attachment_uid: made.metadata.uid.unwrap(),
        socket: driver.socket.clone(),
        calls: driver.handle.calls(),
        api_server: (host.to_owned(), port.parse().unwrap()),
    })
}

#[tokio::test]
async fn a_life_is_traced_over_grpc() -> Result<()> {
    let stage = Stage::enter().await?;
    let receiver = OtlpReceiver::grpc().await;
    let life = live(&stage, Names { prefix: "trace-grpc" }, traced(&receiver, "grpc")).await?;
    check(&life, &receiver, "application/grpc");
    Ok(())
}

#[tokio::test]
async fn a_life_is_traced_over_http() -> Result<()> {
    let stage = Stage::enter().await?;
    let receiver = OtlpReceiver::http().await;
    let life = live(
        &stage,
        Names { prefix: "trace-http" },
        traced(&receiver, "http/protobuf"),
    )
    .await?;
    check(&life, &receiver, "application/x-protobuf");
    Ok(())
}

fn check(life: &Life, receiver: &OtlpReceiver, content_type: &str) {
    for headers in receiver.requests() {
        assert_eq!(headers["content-type"], content_type);
    }
    let spans = receiver.spans();
    // All spans that there are: none of Probe, GetPluginInfo and the capabilities.
    assert_eq!(tree::render(&spans), LIFE);
    for span in &spans {
        check_resource(span);
        check_times(span, &spans);
    }
    check_attempts(life, &spans);
    check_csi_calls(life, &spans);
    check_api_requests(life, &spans);
    check_trace_context(life, &spans);
}

fn check_resource(span: &ReceivedSpan) {
    assert_eq!(span.scope, "csi-attacher-operator");
    assert_eq!(span.resource["service.name"], "csi-attacher-operator".into());
    assert_eq!(span.resource["service.version"], env!("CARGO_PKG_VERSION").into());
    assert_eq!(span.resource["telemetry.sdk.language"], "rust".into());
}

/// A child lies within its parent, and everything in this year or later.
fn check_times(span: &ReceivedSpan, spans: &[ReceivedSpan]) {
    const START_OF_2026: u64 = 1_767_225_600_000_000_000;
    assert!(
        START_OF_2026 < span.start_unix_nano && span.start_unix_nano <= span.end_unix_nano,
        "{span:?}"
    );
    if let Some(parent) = tree::parent(span, spans) {
        assert!(parent.start_unix_nano <= span.start_unix_nano, "{span:?}");
        assert!(span.end_unix_nano <= parent.end_unix_nano, "{span:?}");
    }
}

fn check_attempts(life: &Life, spans: &[ReceivedSpan]) {
    let names = &life.names;
    let attempts = tree::roots(spans);
    let [first, second, detach, release] = attempts.as_slice() else {
        panic!("{attempts:#?}")
    };
    for span in [first, second, detach] {
        assert_eq!(span.text("container.csi.plugin.name"), names.driver());
        assert_eq!(span.text("container.csi.volume.id"), names.of("handle"));
        assert_eq!(span.text("k8s.volumeattachment.name"), names.of("va"));
        assert_eq!(span.text("k8s.volumeattachment.uid"), life.attachment_uid);
        assert_eq!(span.text("k8s.node.name"), names.of("node"));
        assert_eq!(span.text("k8s.persistentvolume.name"), names.of("pv"));
        assert_eq!(span.text("k8s.persistentvolumeclaim.name"), names.of("claim"));
        assert_eq!(span.text("k8s.namespace.name"), "default");
        assert_eq!(span.text("k8s.storageclass.name"), "gold");
        assert_eq!(span.text("attacher.queue.name"), "csi-attacher-va");
        assert!((0.0..30.0).contains(&seconds(span, "attacher.queue.wait")));
    }
    let facts = |span: &ReceivedSpan| {
        let number = |key: &str| span.attributes[key].clone();
        let [attempt, retries] = ["attacher.attempt", "attacher.queue.retries"].map(number);
        (
            span.text("attacher.operation").to_owned(),
            span.text("attacher.trigger").to_owned(),
            attempt,
            retries,
        )
    };
    let expected = |operation: &str, trigger: &str, attempt, retries| {
        (
            operation.to_owned(),
            trigger.to_owned(),
            Attribute::I64(attempt),
            Attribute::I64(retries),
        )
    };
    assert_eq!(facts(first), expected("attach", "event", 1, 0));
    assert_eq!(facts(second), expected("attach", "retry", 2, 1));
    assert_eq!(facts(detach), expected("detach", "event", 1, 0));

    assert_eq!(first.text("error.type"), "INTERNAL");
    assert!(
        first.status_message.contains("the array restarts"),
        "{}",
        first.status_message
    );
    // The backoff of the AttacherConfig, which has no jitter.
    assert!((seconds(first, "attacher.retry.delay") - 0.1).abs() < 1e-9);
    for span in [second, detach, release] {
        // The status is unset, and nothing is left of the failure before.
        assert!(!span.failed && span.status_message.is_empty(), "{span:?}");
        assert!(!span.attributes.contains_key("error.type"), "{span:?}");
        assert!(!span.attributes.contains_key("attacher.retry.delay"), "{span:?}");
    }
    assert_eq!(release.text("container.csi.plugin.name"), names.driver());
    assert_eq!(release.text("k8s.persistentvolume.name"), names.of("pv"));
    assert_eq!(release.text("attacher.finalizer.action"), "removed");
    assert_eq!(release.text("attacher.queue.name"), "csi-attacher-pv");
}

fn check_csi_calls(life: &Life, spans: &[ReceivedSpan]) {
    let calls: Vec<_> = tree::in_order(spans)
        .into_iter()
        .filter(|span| span.name.starts_with("csi."))
        .collect();
    let codes: Vec<_> = calls.iter().map(|span| span.text("rpc.response.status_code")).collect();
    assert_eq!(codes, ["INTERNAL", "OK", "OK"]);
    for span in &calls {
        assert_eq!(span.text("rpc.system.name"), "grpc");
        assert_eq!(span.text("rpc.method"), span.name);
        assert_eq!(span.text("server.address"), life.socket);
        assert_eq!(span.text("network.peer.address"), life.socket);
        assert!(
            !span.attributes.contains_key("server.port"),
            "a unix socket has no port"
        );
        assert_eq!(span.text("container.csi.plugin.name"), life.names.driver());
        assert_eq!(span.text("container.csi.volume.id"), life.names.of("handle"));
        assert_eq!(span.text("attacher.csi.node_id"), life.names.of("node-id"));
        assert_eq!(span.attributes["attacher.secrets.count"], Attribute::I64(2));
    }
    let [failed, published, unpublished] = calls.as_slice() else {
        panic!("{calls:#?}")
    };
    assert_eq!(failed.text("error.type"), "INTERNAL");
    // The code is not repeated.
    assert_eq!(failed.status_message, "the array restarts");
    for span in [published, unpublished] {
        assert!(!span.failed && !span.attributes.contains_key("error.type"), "{span:?}");
    }
    let keys = ["devicePath".to_owned(), "readonly".to_owned()];
    assert_eq!(
        published.attributes["attacher.publish_context.keys"],
        Attribute::StrArray(keys.to_vec())
    );
    let sent = life.calls_of(PUBLISH)[0].capability.as_ref();
    let mode = sent.map(|capability| capability.access_mode).unwrap();
    for span in [failed, published] {
        assert_eq!(span.attributes["attacher.read_only"], Attribute::Bool(false));
        assert_eq!(span.text("attacher.access_mode"), mode);
        assert_eq!(span.text("attacher.volume.fs_type"), "ext4");
    }
}

fn check_api_requests(life: &Life, spans: &[ReceivedSpan]) {
    let (namespace, secret) = PUBLISH_SECRET;
    let attachment = format!("/apis/storage.k8s.io/v1/volumeattachments/{}", life.names.of("va"));
    let (host, port) = &life.api_server;
    for span in spans.iter().filter(|span| span.name.contains(" /")) {
        let template = span.text("url.template");
        let method = span.text("http.request.method");
        assert_eq!(span.name, format!("{method} {template}"));
        let (path, verb, resource) = match template {
            PATCH_VOLUME => (
                format!("/api/v1/persistentvolumes/{}", life.names.of("pv")),
                "patch",
                "persistentvolumes",
            ),
            PATCH_ATTACHMENT => (attachment.clone(), "patch", "volumeattachments"),
            PATCH_STATUS => (format!("{attachment}/status"), "patch", "volumeattachments/status"),
            GET_SECRET => (
                format!("/api/v1/namespaces/{namespace}/secrets/{secret}"),
                "get",
                "secrets",
            ),
            other => panic!("unexpected template {other}"),
        };
        assert_eq!(span.text("url.full"), format!("https://{host}:{port}{path}"));
        assert_eq!(span.text("attacher.k8s.verb"), verb);
        assert_eq!(span.text("attacher.k8s.resource"), resource);
        assert_eq!(span.text("server.address"), host);
        assert_eq!(span.attributes["server.port"], Attribute::I64(*port));
        assert_eq!(span.attributes["http.response.status_code"], Attribute::I64(200));
        assert!(!span.failed && !span.attributes.contains_key("error.type"), "{span:?}");
    }
}

/// The driver got, with each call, the context of the CLIENT span of that very call, and none with the handshake.
fn check_trace_context(life: &Life, spans: &[ReceivedSpan]) {
    for method in [PUBLISH, UNPUBLISH] {
        let wanted: Vec<_> = tree::in_order(spans)
            .into_iter()
            .filter(|span| span.name == format!("csi.v1.Controller/{method:?}"))
            .map(|span| Some(format!("00-{}-{}-01", span.trace_id, span.span_id)))
            .collect();
        let received: Vec<_> = life
            .calls_of(method)
            .iter()
            .map(|call| call.traceparent.clone())
            .collect();
        assert!(!wanted.is_empty());
        assert_eq!(received, wanted);
    }
    let handshake = [Method::Probe, Method::GetPluginInfo, Method::ControllerGetCapabilities];
    for method in handshake {
        let calls = life.calls_of(method);
        assert!(!calls.is_empty());
        assert!(calls.iter().all(|call| call.traceparent.is_none()), "{calls:?}");
    }
}

fn seconds(span: &ReceivedSpan, key: &str) -> f64 {
    match span.attributes.get(key) {
        Some(Attribute::F64(seconds)) => *seconds,
        other => panic!("attribute {key} of {} is {other:?}", span.name),
    }
}

#[tokio::test]
async fn a_restart_traces_no_settled_volume() -> Result<()> {
    let stage = Stage::enter().await?;
    let names = Names {
        prefix: "trace-restart",
    };
    let driver = names.start_driver(&stage).await?;
    let mut first = stage.operator(operator()).await?;
    let settled = ["settled-0", "settled-1", "settled-2"];
    for name in settled {
        names.attach(&stage, name).await?;
    }
    stop(&mut first).await?;

    let receiver = OtlpReceiver::grpc().await;
    let mut second = stage.operator(traced(&receiver, "grpc")).await?;
    names.attach(&stage, "late").await?;
    // Only an operator that knows the settled ones can count to four.
    let configs = Api::<AttacherConfig>::all(stage.client.clone());
    let all = i64::try_from(settled.len() + 1).unwrap();
    wait_for(configs, names.prefix, "all counted", LIMIT, |config| {
        let counts = config.and_then(|config| config.status.as_ref()?.attachments.as_ref());
        counts.is_some_and(|counts| counts.attached == all)
    })
    .await?;
    stop(&mut second).await?;

    let spans = receiver.spans();
    let attempts = tree::roots(&spans);
    assert_eq!(attempts.len(), 1, "{attempts:#?}");
    assert_eq!(attempts[0].text("k8s.volumeattachment.name"), names.of("late"));
    assert_eq!(driver.handle.calls_of(PUBLISH).len(), settled.len() + 1);
    Ok(())
}

#[tokio::test]
async fn without_an_endpoint_nothing_is_traced() -> Result<()> {
    let stage = Stage::enter().await?;
    let names = Names { prefix: "trace-off" };
    let mut running = stage.operator(operator()).await?;
    let driver = names.start_driver(&stage).await?;
    names.attach(&stage, "pv").await?;
    let metrics = running.metrics().await?;
    stop(&mut running).await?;

    let calls = driver.handle.calls_of(PUBLISH);
    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0].traceparent, None);
    for result in ["exported", "export_failed", "queue_full", "shutdown"] {
        let line = format!("csi_attacher_trace_spans_total{{result=\"{result}\"}} 0");
        assert!(
            metrics.lines().any(|other| other == line),
            "{line} is not in\n{metrics}"
        );
    }
    let log = running.log_text();
    assert!(!log.contains("OTEL_") && !log.contains("trace_id\":\""), "{log}");
    Ok(())
}

#[tokio::test]
async fn an_unusable_setting_costs_a_warning_and_nothing_else() -> Result<()> {
    let stage = Stage::enter().await?;
    let receiver = OtlpReceiver::http().await;
    let cases = [
        ("trace-delay", "OTEL_BSP_SCHEDULE_DELAY", "soon", true),
        ("trace-sampler", "OTEL_TRACES_SAMPLER", "sometimes", true),
        ("trace-endpoint", "OTEL_EXPORTER_OTLP_ENDPOINT", "not a url", false),
    ];
    for (prefix, variable, value, is_traced) in cases {
        let names = Names { prefix };
        let options = traced(&receiver, "http/protobuf").variable(variable, value);
        let mut running = stage.operator(options).await?;
        let driver = names.start_driver(&stage).await?;
        names.attach(&stage, "pv").await?;
        stop(&mut running).await?;

        assert_eq!(warnings(&running, variable), 1, "{}", running.log_text());
        assert_eq!(warnings(&running, "OTEL_"), 1, "{}", running.log_text());
        let calls = driver.handle.calls_of(PUBLISH);
        assert_eq!(calls.len(), 1);
        assert_eq!(calls[0].traceparent.is_some(), is_traced);
        let of_this_driver = |span: &ReceivedSpan| {
            span.attributes.get("container.csi.plugin.name") == Some(&Attribute::Str(names.driver()))
        };
        assert_eq!(receiver.spans().iter().any(of_this_driver), is_traced);
    }
    Ok(())
}

/// How many records of level WARN contain this text.
fn warnings(operator: &Operator, text: &str) -> usize {
    let log = operator.log_text();
    log.lines()
        .filter(|line| line.contains("\"level\":\"WARN\"") && line.contains(text))
        .count()
}
