//! The client against the mock driver, over real sockets. Every wait has a limit and ends with an event.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::Path;
use std::time::{Duration, Instant};
use tonic::Code;

use super::call::Call;
use super::{
    CallError, ControllerGetCapabilities, ControllerPublishVolume, ControllerUnpublishVolume, CsiClient,
    DriverConnection, ElementField, GetPluginCapabilities, GetPluginInfo, Probe,
};
use crate::api::validated::Endpoint;
use crate::apiserver::SecretData;
use crate::decide::{self, AccessMode, Capability, PublishRequest, VolumeAccessType, VolumeOnNode};
use crate::objects::StringMap;
use crate::trace_pipeline::pipeline;
use csi_mock_driver::{
    CallResult, ControllerCapability, Method, MockDriver, MockDriverBuilder, MockHandle, Rule, ScriptAction,
    ScriptedFailure,
};

use crate::telemetry::{Metrics, Span, SpanKind, SpanOptions};

const PUBLISH: Method = Method::ControllerPublishVolume;
/// Far more than anything here takes.
const LIMIT: Duration = Duration::from_secs(20);
/// A deadline that is not to pass.
pub(super) const LONG: Duration = Duration::from_secs(30);

pub(super) async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.expect("in time")
}

/// Calls with a deadline that is not to pass.
pub(super) async fn ask<C: Call>(client: &CsiClient, call: &C) -> Result<C::Answer, CallError> {
    within(client.call(call, LONG, &Span::disabled())).await
}

pub(super) fn client_of(socket: &Path) -> CsiClient {
    let connection = DriverConnection::new(&Endpoint::Unix(socket.to_owned()));
    CsiClient::new(connection, Metrics::default())
}

pub(super) struct ClientFixture {
    pub driver: MockHandle,
    pub client: CsiClient,
    pub folder: tempfile::TempDir,
}

impl ClientFixture {
    pub async fn of(builder: MockDriverBuilder) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("csi.sock");
        let driver = builder.accept_any_volume().start(&socket).await.unwrap();
        Self {
            driver,
            client: client_of(&socket),
            folder,
        }
    }

    async fn new() -> Self {
        Self::of(MockDriver::builder("client.test")).await
    }

    pub async fn publish(&self, secrets: Option<&SecretData>, deadline: Duration) -> Result<StringMap, CallError> {
        self.publish_under(secrets, deadline, &Span::disabled()).await
    }

    pub async fn publish_under(
        &self,
        secrets: Option<&SecretData>,
        deadline: Duration,
        parent: &Span,
    ) -> Result<StringMap, CallError> {
        let context = StringMap::from(BTreeMap::from([("size".to_owned(), "1".to_owned())]));
        let flags = ["noatime".into()];
        let plan = PublishRequest {
            place: VolumeOnNode::new("v", "n").unwrap(),
            capability: Capability {
                access: VolumeAccessType::Mount {
                    fs_type: "xfs",
                    flags: &flags,
                },
                mode: AccessMode::SingleNodeWriter,
            },
            read_only: true,
            volume_context: &context,
            former: Vec::new(),
        };
        let call = ControllerPublishVolume {
            request: &plan,
            secrets,
        };
        within(self.client.call(&call, deadline, parent)).await
    }

    pub async fn unpublish(&self, secrets: Option<&SecretData>) -> Result<(), CallError> {
        let place = VolumeOnNode::new("v", "n").unwrap();
        let call = ControllerUnpublishVolume { place, secrets };
        ask(&self.client, &call).await
    }
}

fn secrets(values: &[(&str, &str)]) -> SecretData {
    let pairs = values
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    SecretData::new(pairs.collect())
}

fn failing(code: Code, message: &str, echo_secrets: bool, pad_bytes: usize) -> ScriptAction {
    ScriptAction::Fail(ScriptedFailure {
        code,
        message: message.to_owned(),
        echo_secrets,
        pad_bytes,
    })
}

#[tokio::test]
async fn everything_of_a_call_arrives() {
    let stage = ClientFixture::new().await;
    let secrets = secrets(&[("user", "bob"), ("password", "hunter2")]);
    // The driver refuses other flags; its record has their number only.
    let flags = vec!["noatime".to_owned()];
    stage
        .driver
        .settings(|settings| drop(settings.volume_mount_flags.insert("v".to_owned(), flags)));
    let context = stage.publish(Some(&secrets), LONG).await.unwrap();
    let call = &stage.driver.calls_of(PUBLISH)[0];
    assert_eq!(
        (call.volume.as_deref(), call.node.as_deref(), call.readonly),
        (Some("v"), Some("n"), Some(true))
    );
    let capability = call.capability.as_ref().unwrap();
    assert_eq!(
        (capability.access_mode, capability.access_type),
        ("SINGLE_NODE_WRITER", "mount")
    );
    assert_eq!(
        (capability.fs_type.as_deref(), capability.mount_flags),
        (Some("xfs"), 1)
    );
    assert_eq!(
        call.volume_context,
        BTreeMap::from([("size".to_owned(), "1".to_owned())])
    );
    assert_eq!(call.secret_keys, ["password", "user"]);
    assert_eq!(call.traceparent, None, "nothing is traced");
    assert!(!context.is_empty(), "the mock driver answers a context");
    stage.unpublish(None).await.unwrap();
    assert!(stage.driver.published().is_empty());
}

#[tokio::test]
async fn a_deadline_is_ours_and_the_driver_is_told() {
    let stage = ClientFixture::new().await;
    stage.driver.script(Rule::on(PUBLISH).hang());
    // Long enough for the call to be under way in time on a busy machine.
    let deadline = Duration::from_secs(5);
    let started = Instant::now();
    let error = stage.publish(None, deadline).await.unwrap_err();
    assert!(started.elapsed() >= deadline);
    assert_eq!((error.code, error.transport), (Code::DeadlineExceeded, false));
    let text = "rpc error: code = DeadlineExceeded desc = context deadline exceeded";
    assert!(error.to_string().starts_with(text), "{error}");
    let failure = decide::Failure::from(&error);
    assert_eq!(failure.code, Some(4));
    // The driver saw the limit, and the end of the call.
    let ended = stage.driver.wait_for_call(|call| call.outcome == CallResult::Cancelled);
    let told = within(ended).await.deadline_ms.unwrap();
    assert!((1..=5000).contains(&told), "{told} ms");
}

#[tokio::test]
async fn waiting_for_the_connection_counts_against_the_deadline() {
    // A socket that is listened on, and whose connections nobody serves.
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("silent.sock");
    let _listener = tokio::net::UnixListener::bind(&socket).unwrap();
    let client = client_of(&socket);
    let error = within(client.call(&Probe, Duration::from_millis(200), &Span::disabled()))
        .await
        .unwrap_err();
    assert_eq!(error.code, Code::DeadlineExceeded);
}

#[tokio::test]
async fn the_drivers_own_error_keeps_its_code_and_words() {
    let stage = ClientFixture::new().await;
    for (number, code) in (1..17).zip(Code::Cancelled as i32..) {
        let code = Code::from(code);
        stage
            .driver
            .script(Rule::on(PUBLISH).times(1).fail(code, "mock\nerror"));
        let error = stage.publish(None, LONG).await.unwrap_err();
        assert_eq!(
            (error.code, error.message.as_str(), error.transport),
            (code, "mock error", false)
        );
        assert_eq!(decide::Failure::from(&error).code, Some(number));
    }
    stage
        .driver
        .script(Rule::on(Method::ControllerUnpublishVolume).fail(Code::NotFound, "no such volume"));
    let error = stage.unpublish(None).await.unwrap_err();
    assert_eq!(error.to_string(), "rpc error: code = NotFound desc = no such volume");
}

#[tokio::test]
async fn secrets_that_a_driver_repeats_are_taken_out() {
    let stage = ClientFixture::new().await;
    let rule = failing(Code::Unauthenticated, "login failed:", true, 0);
    stage.driver.script(Rule::any().action(rule));
    let secrets = secrets(&[
        ("user", "bob"),
        ("password", "hunter2\n"),
        ("token", "hunter2-and-more"),
    ]);
    for error in [
        stage.publish(Some(&secrets), LONG).await.unwrap_err(),
        stage.unpublish(Some(&secrets)).await.unwrap_err(),
    ] {
        assert!(!error.to_string().contains("hunter2"), "{error}");
        // Three letters are too few to be looked for.
        assert!(
            error.message.contains("***stripped***") && error.message.contains("bob"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_long_message_keeps_its_code_and_is_cut() {
    let stage = ClientFixture::new().await;
    for bytes in [20 << 10, 200 << 10] {
        let rule = failing(Code::ResourceExhausted, "node is full ", false, bytes);
        stage.driver.script(Rule::on(PUBLISH).times(1).action(rule));
        let error = stage.publish(None, LONG).await.unwrap_err();
        assert_eq!(error.code, Code::ResourceExhausted, "{bytes} bytes");
        assert!(error.message.starts_with("node is full xxx") && error.message.len() == 4096);
    }
}

#[tokio::test]
async fn an_answer_without_measure_is_an_error() {
    let stage = ClientFixture::of(MockDriver::builder("client.test").settings(|settings| {
        settings.vendor_version = "x".repeat(5 << 20);
    }))
    .await;
    let error = ask(&stage.client, &GetPluginInfo).await.unwrap_err();
    assert_eq!((error.code, error.transport), (Code::Unavailable, false), "{error}");
    assert!(
        error
            .message
            .contains("cannot be read: Error, decoded message length too large"),
        "{error}"
    );
    // The connection is as good as before.
    stage
        .driver
        .settings(|settings| settings.vendor_version = "1".to_owned());
    let info = ask(&stage.client, &GetPluginInfo).await.unwrap();
    assert_eq!((info.name.as_str(), info.vendor_version.as_str()), ("client.test", "1"));
}

/// A message that its library cannot read.
#[derive(Debug, Default)]
struct Unforeseen;

impl prost::Message for Unforeseen {
    fn encode_raw(&self, _: &mut impl prost::bytes::BufMut) {}

    fn merge_field(
        &mut self,
        tag: u32,
        _: prost::encoding::WireType,
        _: &mut impl prost::bytes::Buf,
        _: prost::encoding::DecodeContext,
    ) -> Result<(), prost::DecodeError> {
        panic!("field {tag} is unforeseen")
    }

    fn encoded_len(&self) -> usize {
        0
    }

    fn clear(&mut self) {}
}

struct AskForTheUnforeseen;

impl Call for AskForTheUnforeseen {
    const PATH: &'static str = GetPluginInfo::PATH;
    const ELEMENTS: &'static [ElementField] = &[];
    type Request = <GetPluginInfo as Call>::Request;
    type Response = Unforeseen;
    type Answer = ();

    fn answer(&self, _: Unforeseen, _: &mut Span) {}
}

#[tokio::test]
async fn a_panic_about_an_answer_is_the_error_of_that_call() {
    let stage = ClientFixture::new().await;
    let error = ask(&stage.client, &AskForTheUnforeseen).await.unwrap_err();
    assert_eq!((error.code, error.transport), (Code::Unavailable, false), "{error}");
    assert!(error.message.contains("the gRPC library panicked"), "{error}");
    ask(&stage.client, &GetPluginInfo)
        .await
        .expect("the connection is as good as before");
}

#[tokio::test]
async fn a_driver_that_dies_during_a_call_leaves_an_unknown_outcome() {
    let stage = ClientFixture::new().await;
    stage.driver.script(Rule::on(PUBLISH).hang());
    let running = stage.driver.wait_for_call(|call| call.method == PUBLISH);
    let (answer, ()) = tokio::join!(stage.publish(None, LONG), async {
        within(running).await;
        within(stage.driver.stop()).await;
    });
    let error = answer.unwrap_err();
    assert!(error.transport, "{error}");
    assert!(
        [Code::Unknown, Code::Unavailable, Code::Internal, Code::Cancelled].contains(&error.code),
        "{error}"
    );
    within(stage.client.connection().lost()).await;
}

#[tokio::test]
async fn a_connection_that_is_dropped_for_an_answer_is_a_transport_error() {
    let stage = ClientFixture::new().await;
    stage.driver.script(Rule::on(PUBLISH).drop_connection());
    let error = stage.publish(None, LONG).await.unwrap_err();
    assert!(error.transport && error.code != Code::DeadlineExceeded, "{error}");
    assert!(!error.unsent, "the driver had it: {error}");
    within(stage.client.connection().lost()).await;
}

#[tokio::test]
async fn calls_are_part_of_the_callers_trace() {
    let stage = ClientFixture::new().await;
    // Nobody listens there; the spans are only made.
    let environment = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1"),
        ("OTEL_TRACES_EXPORTER", "otlp"),
    ];
    let (tracer, _guard) = pipeline(&environment);
    let span = tracer.open(SpanOptions::new("attempt", SpanKind::Internal));
    stage.publish_under(None, LONG, &span).await.unwrap();
    let call = &stage.driver.calls_of(PUBLISH)[0];
    let parent = call.traceparent.clone().unwrap();
    assert!(
        parent.starts_with(&format!("00-{}-", span.trace_id().unwrap())),
        "{parent}"
    );
    assert!(
        !parent.contains(&span.context().unwrap().span_id().to_string()),
        "the call has a span of its own"
    );
}

#[tokio::test]
async fn capabilities_are_reported_by_name() {
    use ControllerCapability::{ListVolumes, PublishReadonly, PublishUnpublishVolume};
    let some = MockDriver::builder("client.test").capabilities([PublishUnpublishVolume, ListVolumes, PublishReadonly]);
    let stage = ClientFixture::of(some).await;
    let plugin = ask(&stage.client, &GetPluginCapabilities).await.unwrap();
    assert!(plugin.controller_service);
    let report = ask(&stage.client, &ControllerGetCapabilities).await.unwrap();
    assert_eq!(
        report.names,
        ["LIST_VOLUMES", "PUBLISH_READONLY", "PUBLISH_UNPUBLISH_VOLUME"]
    );
    assert!(report.bits.publish_unpublish && report.bits.publish_readonly && report.bits.list_volumes);
    assert!(!report.bits.single_node_multi_writer && !report.bits.list_volumes_published_nodes);
    let none = ClientFixture::of(MockDriver::builder("client.test").without_controller_service()).await;
    let plugin = ask(&none.client, &GetPluginCapabilities).await.unwrap();
    assert!(!plugin.controller_service);
}

#[tokio::test]
async fn a_connection_is_used_once() {
    let stage = ClientFixture::new().await;
    assert!(ask(&stage.client, &Probe).await.unwrap());
    within(stage.driver.stop()).await;
    within(stage.client.connection().lost()).await;
    stage.driver.start_again().await.unwrap();
    let asked = stage.driver.calls().len();
    let error = ask(&stage.client, &Probe).await.unwrap_err();
    assert!(error.transport && error.unsent, "{error}");
    assert_eq!(
        stage.driver.calls().len(),
        asked,
        "who answers now was not asked who it is"
    );
    let fresh = client_of(&stage.folder.path().join("csi.sock"));
    assert!(ask(&fresh, &Probe).await.unwrap());
}
