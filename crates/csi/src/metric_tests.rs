//! What is counted of the calls.

use std::path::Path;
use tonic::Code;

use super::client_tests::{ClientFixture, LONG, ask};
use super::{CsiClient, DriverConnection, GetPluginInfo, Probe, UnnamedCalls};
use crate::api::validated::Endpoint;
use crate::telemetry::Metrics;
use csi_mock_driver::{Method, MockDriver, Rule};

/// Whether so many calls of a method of the service Identity are counted under the name of the driver.
fn is_counted(text: &str, method: &str, code: &str, count: usize) -> bool {
    text.lines().any(|line| {
        line.starts_with("csi_sidecar_operations_seconds_count{")
            && line.contains("driver_name=\"client.test\"")
            && line.contains(&format!("method_name=\"/csi.v1.Identity/{method}\""))
            && line.contains(&format!("grpc_status_code=\"{code}\""))
            && line.ends_with(&format!(" {count}"))
    })
}

#[tokio::test]
async fn calls_before_the_name_is_known_are_counted_under_it() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("csi.sock");
    let driver = MockDriver::builder("client.test").start(&socket).await.unwrap();
    let metrics = Metrics::default();
    let client = CsiClient::new(DriverConnection::new(&Endpoint::Unix(socket)), metrics.clone());
    assert!(ask(&client, &Probe).await.unwrap());
    assert!(!metrics.encode_prometheus().contains("/csi.v1.Identity/Probe"));
    let client = client.with_driver_name("client.test".into());
    driver.script(Rule::on(Method::GetPluginInfo).fail(Code::Internal, "no"));
    ask(&client, &GetPluginInfo).await.unwrap_err();
    let text = metrics.encode_prometheus();
    assert!(is_counted(&text, "Probe", "OK", 1), "{text}");
    assert!(is_counted(&text, "GetPluginInfo", "Internal", 1), "{text}");
}

/// A driver may be away for long when the operator starts.
#[tokio::test]
async fn of_calls_before_the_name_is_known_the_last_ones_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, nobody) = (folder.path().join("csi.sock"), folder.path().join("nobody.sock"));
    let _driver = MockDriver::builder("client.test").start(&socket).await.unwrap();
    let (metrics, unnamed) = (Metrics::default(), UnnamedCalls::default());
    let client_at = |socket: &Path| {
        let connection = DriverConnection::new(&Endpoint::Unix(socket.to_owned()));
        CsiClient::new(connection, metrics.clone()).keeping(unnamed.clone())
    };
    for _ in 0..20 {
        ask(&client_at(&nobody), &Probe).await.unwrap_err();
    }
    let client = client_at(&socket);
    ask(&client, &GetPluginInfo).await.unwrap();
    let _named = client.with_driver_name("client.test".into());
    let text = metrics.encode_prometheus();
    assert!(is_counted(&text, "GetPluginInfo", "OK", 1), "{text}");
    assert!(is_counted(&text, "Probe", "Unavailable", 15), "{text}");
}

/// TestMarkAsMigrated of the sidecar, for each call and down to the series.
#[tokio::test]
async fn calls_for_in_tree_volumes_are_marked_as_migrated() {
    const DRIVER: &str = "ebs.csi.aws.com";
    let mut stage = ClientFixture::of(MockDriver::builder(DRIVER)).await;
    let metrics = Metrics::default();
    let endpoint = Endpoint::Unix(stage.folder.path().join("csi.sock"));
    stage.client = CsiClient::new(DriverConnection::new(&endpoint), metrics.clone()).with_driver_name(DRIVER.into());
    ask(&stage.client, &Probe).await.unwrap();
    stage.publish(None, LONG).await.unwrap();
    stage.client = stage.client.migrated();
    for _ in 0..2 {
        stage.publish(None, LONG).await.unwrap();
    }
    stage
        .driver
        .script(Rule::on(Method::ControllerUnpublishVolume).fail(Code::Internal, "no"));
    stage.unpublish(None).await.unwrap_err();
    let text = metrics.encode_prometheus();
    let count = |method: &str, migrated: &str| {
        let counts = text.lines().filter(|line| {
            line.starts_with("csi_sidecar_operations_seconds_count{")
                && line.contains(&format!("/{method}\""))
                && line.contains(&format!("migrated=\"{migrated}\""))
        });
        counts
            .filter_map(|line| line.rsplit(' ').next())
            .collect::<Vec<_>>()
            .join(",")
    };
    assert_eq!(count("Probe", "false"), "1", "{text}");
    assert_eq!(count("ControllerPublishVolume", "false"), "1", "{text}");
    assert_eq!(count("ControllerPublishVolume", "true"), "2", "{text}");
    assert_eq!(count("ControllerUnpublishVolume", "true"), "1", "{text}");
    assert_eq!(count("ControllerUnpublishVolume", "false"), "", "{text}");
}
