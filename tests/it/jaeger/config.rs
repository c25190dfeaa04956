//! The example configurations below `config/`: the programs that they are for take them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use csi_mock_driver::MockDriver;
use serde_json::Value;

use super::{ATTEMPT, LIMIT, Names, SERVICE, Scene};
use crate::support::controlplane::ports;
use crate::support::controlplane::programs;
use crate::support::controlplane::watchdog::{Output, Watched};
use crate::support::jaeger::{CONFIG, Jaeger, Trace};
use crate::support::{Error, Result, Volume};

/// The configuration of a collector that ships.
const COLLECTOR: &str = "config/otel-collector/collector.yaml";

fn path(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(file)
}

/// Jaeger is built from the parts of the OpenTelemetry collector and checks the configuration of either.
#[tokio::test]
async fn jaeger_takes_the_configuration_of_jaeger_and_of_the_collector() -> Result<()> {
    let program = Jaeger::program().await?;
    for file in [PathBuf::from(CONFIG), path(COLLECTOR)] {
        let output = Command::new(&program)
            .arg("validate")
            .arg("--config")
            .arg(&file)
            .output();
        let output = output?;
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {told}", file.display());
    }
    Ok(())
}

/// The API server takes the objects of the kustomization.
#[tokio::test]
async fn the_api_server_takes_the_objects_of_the_examples() -> Result<()> {
    let scene = Scene::enter().await?;
    let [kubectl] = programs::locate(["kubectl"]).await?;
    let run = |arguments: &[&str]| {
        let output = Command::new(&kubectl)
            .args(arguments)
            .env("KUBECONFIG", scene.stage.cluster.admin_kubeconfig())
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output();
        let output = output?;
        let (told, errors) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        assert!(output.status.success(), "{arguments:?}: {told}{errors}");
        Ok::<_, Error>(told.into_owned())
    };
    let namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: tracing}\n";
    scene.stage.cluster.apply_yaml(namespace).await?;
    let told = run(&["apply", "--dry-run=server", "-k", "config/jaeger"])?;
    for wanted in [
        "service/jaeger created",
        "deployment.apps/jaeger created",
        "configmap/jaeger-",
    ] {
        assert!(told.contains(wanted), "{told}");
    }
    Ok(())
}

/// An attach is traced through the collector of the example into Jaeger.
#[tokio::test]
async fn spans_go_through_the_collector_of_the_example() -> Result<()> {
    let scene = Scene::enter().await?;
    let names = Names {
        short: "jaeger-collector",
    };
    let (collector, address) = start_collector(scene.jaeger).await?;
    let options = scene
        .options()
        .variable("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{address}"));
    let _operator = scene.trusted_operator(options).await?;
    let builder = MockDriver::builder(names.driver()).accept_any_volume();
    let _driver = scene.stage.driver(builder, names.short).await?;
    let (fixtures, driver, volume) = (scene.fixtures(), names.driver(), names.volume());
    fixtures.csi_node(&names.node(), &driver, &names.of("node-id")).await?;
    fixtures
        .persistent_volume(&Volume::new(&volume, &driver, &volume))
        .await?;
    fixtures
        .volume_attachment(&names.of("va"), &driver, &volume, &names.node())
        .await?;
    fixtures.wait_for_attached(&names.of("va")).await?;
    let tags = [
        ("container.csi.plugin.name", driver.as_str()),
        ("k8s.volumeattachment.name", &names.of("va")),
    ];
    let arrived = |traces: &[Trace]| traces.iter().any(|trace| !trace.named(ATTEMPT).is_empty());
    scene
        .jaeger
        .wait_for_search((SERVICE, &tags), "an attempt", LIMIT, arrived)
        .await?;
    drop(collector);
    Ok(())
}

/// Runs the example with a short wait, as it samples one trace of ten otherwise after a minute: all that is changed are
/// addresses, the wait and that share.
async fn start_collector(jaeger: &Jaeger) -> Result<(Watched, String)> {
    let text = std::fs::read_to_string(path(COLLECTOR)).unwrap();
    let mut config: Value = serde_yaml::from_str(&text)?;
    let (grpc, http) = (ports::free_port()?, ports::free_port()?);
    let address = format!("127.0.0.1:{grpc}");
    config["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"] = address.clone().into();
    config["receivers"]["otlp"]["protocols"]["http"]["endpoint"] = format!("127.0.0.1:{http}").into();
    config["exporters"]["otlp"]["endpoint"] = jaeger.otlp_grpc().into();
    let sampling = &mut config["processors"]["tail_sampling"];
    sampling["decision_wait"] = "1s".into();
    let policies = sampling["policies"].as_array_mut().unwrap();
    let rest = policies.iter_mut().find(|policy| policy["name"] == "rest").unwrap();
    rest["probabilistic"]["sampling_percentage"] = 100.into();

    let folder = tempfile::tempdir().unwrap();
    let (file, log) = (
        folder.path().join("collector.yaml"),
        folder.path().join("collector.log"),
    );
    std::fs::write(&file, config.to_string()).unwrap();
    let arguments = [format!("--config={}", file.display())];
    let mut collector = Watched::spawn("collector", &Jaeger::program().await?, &arguments, &log, Output::Log)?;
    let started = std::time::Instant::now();
    while tokio::net::TcpStream::connect(&address).await.is_err() {
        assert!(
            collector.ended()?.is_none() && started.elapsed() < LIMIT,
            "{}",
            collector.log_tail()
        );
        // It tells nobody when it listens.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok((collector, address))
}
