//! The traces of attach and detach, as a collector gets them from the real operator.

mod all;
mod check;
mod tree;

use csi_attacher_model::api::names::finalizer_name;
use csi_mock_driver::{CallRecord, Method, MockDriver, Rule};
use k8s_openapi::api::core::v1::PersistentVolume;
use tonic::Code;

use crate::collectors::sends_to;
use crate::rig::operator_options;
use crate::support::otlp::OtlpReceiver;
use crate::support::stage::{Driver, PUBLISH_SECRET, Stage, stop};
use crate::support::{OperatorOptions, Result, Volume};

const PUBLISH: Method = Method::ControllerPublishVolume;
const UNPUBLISH: Method = Method::ControllerUnpublishVolume;

/// An operator that traces to this receiver.
fn traced(receiver: &OtlpReceiver) -> OperatorOptions {
    sends_to(&receiver.endpoint(), "grpc")
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
    let driver = names.start_driver(stage).await?;
    let (volume, attachment) = (names.of("pv"), names.of("va"));
    let (namespace, secret) = PUBLISH_SECRET;
    let shape = Volume::new(&volume, &names.driver(), &names.of("handle"))
        .publish_secret(namespace, secret)
        .fs_type("ext4")
        .storage_class("gold");
    let fixtures = &stage.fixtures;
    fixtures.bound_claim(&shape, "default", &names.of("claim")).await?;
    // Volume and node are in its first lists. What a watch is late with it asks the API server for, and traces that.
    let mut operator = stage.operator(options).await?;
    // Otherwise the first attempt may be one of those that a driver starts with.
    stage.wait_working(names.prefix).await?;
    let failure = Rule::on(PUBLISH).times(1).fail(Code::Internal, "the array restarts");
    driver.handle.script(failure);
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
    let life = live(&stage, Names { prefix: "trace-grpc" }, traced(&receiver)).await?;
    check::check(&life, &receiver);
    Ok(())
}

#[tokio::test]
async fn without_an_endpoint_nothing_is_traced() -> Result<()> {
    let stage = Stage::enter().await?;
    let names = Names { prefix: "trace-off" };
    let mut running = stage.operator(operator_options()).await?;
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
