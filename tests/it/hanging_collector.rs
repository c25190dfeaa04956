//! T5: a collector that accepts connections and never answers: no attach waits for it, and what cannot be exported is counted.

use csi_attacher_model::api::AttacherConfig;
use futures::future::try_join_all;
use serde_json::json;

use crate::collectors::{sends_to, spans, until_spans};
use crate::rig::{Driver, LIMIT, World};
use crate::support::otlp::OtlpReceiver;
use crate::support::stage::stop;
use crate::support::{OperatorOptions, Result};

/// Attaches of one round. Each has several spans, so that all together they are many more than the queue holds.
const VOLUMES: usize = 100;
/// How long one export may take, in milliseconds: longer than any wait of a test. Whatever waits for the end of one never ends.
const EXPORT_TIMEOUT: &str = "3600000";

/// An operator that gives up no export while the test runs.
fn patient(receiver: &OtlpReceiver, protocol: &str) -> OperatorOptions {
    sends_to(&receiver.endpoint(), protocol)
        .variable("OTEL_EXPORTER_OTLP_TIMEOUT", EXPORT_TIMEOUT)
        .variable("OTEL_BSP_EXPORT_TIMEOUT", EXPORT_TIMEOUT)
        .variable("OTEL_BSP_MAX_QUEUE_SIZE", "64")
}

/// Attaches while the first export hangs, and ends while it hangs still: that it lasted from the first to the last is what
/// shows that nothing waited for it. What it costs all the same, `make bench ONLY=traces` measures.
async fn round(driver: &Driver<'_>, name: &str, receiver: &OtlpReceiver, protocol: &str) -> Result<()> {
    let mut operator = driver.world.operator(patient(receiver, protocol)).await?;
    driver.wait("Ready", "True", Some("Running")).await?;
    driver.attach(&format!("{name}-first")).await?;
    receiver.wait_for_request(LIMIT).await;
    let names: Vec<String> = (0..VOLUMES).map(|index| format!("{name}-{index}")).collect();
    try_join_all(names.iter().map(|name| driver.attach(name))).await?;
    let full = until_spans(&operator, "queue_full", |count| count > 0).await?;
    println!("{name}: {full} spans did not fit into the queue");
    for ended in ["exported", "export_failed"] {
        assert_eq!(spans(&operator, ended).await?, 0, "the first export is over: {ended}");
    }
    // The end does not wait for the collector either.
    stop(&mut operator).await
}

pub async fn t5_no_attach_waits_for_a_hanging_collector(world: &World) -> Result<()> {
    let driver = world.unconfigured_driver("hanging", |builder| builder).await?;
    driver.configure(&json!({})).await?;
    for (name, protocol) in [("hanging-http", "http/protobuf"), ("hanging-grpc", "grpc")] {
        let receiver = OtlpReceiver::silent().await;
        round(&driver, name, &receiver, protocol).await?;
    }
    world.fixtures.delete::<AttacherConfig>("hanging").await
}
