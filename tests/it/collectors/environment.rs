//! What the environment says, at the real operator.

use std::fs;

use csi_attacher_model::api::AttacherConfig;
use csi_attacher_telemetry::otel_env::VARIABLES;
use csi_mock_driver::Method;
use serde_json::json;

use super::{arrives, has, records, sends_to, until_spans};
use crate::rig::{Driver, World, operator_options};
use crate::support::Result;
use crate::support::otlp::OtlpReceiver;
use crate::support::stage::stop;

/// Variables that take any text, and two that decide whether others are looked at.
const FREE: [&str; 7] = [
    "_CERTIFICATE",
    "_CLIENT_KEY",
    "_NAME",
    "_NAMESPACE",
    "_UID",
    "_ARG",
    "OTEL_TRACES_EXPORTER",
];

/// One operator after another in one cluster.
pub async fn what_cannot_be_used_is_said_once_and_no_attach_is_affected(world: &World) -> Result<()> {
    let named = OtlpReceiver::grpc().await;
    let driver = world.unconfigured_driver("env", |builder| builder).await?;
    driver.configure(&json!({})).await?;

    nothing_can_be_used(&driver).await?;

    let endpoint = format!("http://localhost:{}", named.port());
    let mut operator = world.operator(sends_to(&endpoint, "grpc")).await?;
    driver.wait("Ready", "True", Some("Running")).await?;
    driver.attach("env-2").await?;
    arrives(&named, "env-2").await;
    let collector = format!("{endpoint} over grpc");
    let told = records(&operator, &["INFO", "tracing is on", &collector]);
    assert_eq!(told, 1, "{}", operator.log_text());
    stop(&mut operator).await?;

    // OTEL_SDK_DISABLED comes before all.
    let options = sends_to(&endpoint, "grpc").variable("OTEL_SDK_DISABLED", "true");
    let mut operator = world.operator(options).await?;
    driver.wait("Ready", "True", Some("Running")).await?;
    driver.attach("env-3").await?;
    let publish = driver.call(Method::ControllerPublishVolume, "env-3", |_| true).await?;
    assert_eq!(publish.traceparent, None);
    let told = records(&operator, &["INFO", "tracing is off"]);
    assert_eq!(told, 1, "{}", operator.log_text());
    stop(&mut operator).await?;
    assert!(!has(&named, "env-3"));
    a_certificate_that_is_not_there_yet_costs_one_warning_and_works_when_it_is(world).await
}

/// Every variable that has a form has another one: nothing is traced, and all is attached.
async fn nothing_can_be_used(driver: &Driver<'_>) -> Result<()> {
    let mut options = operator_options();
    let formed = || {
        VARIABLES
            .iter()
            .filter(|name| !FREE.iter().any(|end| name.ends_with(end)))
    };
    for name in formed() {
        options = options.variable(name, "no=%such value");
    }
    let mut operator = driver.world.operator(options).await?;
    driver.wait("Ready", "True", Some("Running")).await?;
    driver.attach("env-1").await?;
    for name in formed() {
        // Asked for only with a gRPC endpoint of the environment.
        if !name.ends_with("_INSECURE") {
            assert_eq!(
                records(&operator, &[&format!("{name} is ignored")]),
                1,
                "{name}\n{}",
                operator.log_text()
            );
        }
    }
    stop(&mut operator).await?;
    Ok(())
}

async fn a_certificate_that_is_not_there_yet_costs_one_warning_and_works_when_it_is(world: &World) -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    let identity = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (certificate, key) = (identity.cert.pem(), identity.signing_key.serialize_pem());
    let receiver = OtlpReceiver::grpc_over_tls(&certificate, &key).await;
    let endpoint = format!("https://localhost:{}", receiver.port());
    let certificates = file.display().to_string();
    let options = sends_to(&endpoint, "grpc").variable("OTEL_EXPORTER_OTLP_CERTIFICATE", certificates);
    let operator = world.operator(options).await?;
    let driver = world.driver("uncertain", json!({})).await?;
    for index in 0..3 {
        let name = format!("uncertain-{index}");
        driver.attach(&name).await?;
    }
    let failed = until_spans(&operator, "export_failed", |count| count > 0).await?;
    driver.attach("uncertain-more").await?;
    until_spans(&operator, "export_failed", |count| count > failed).await?;
    assert_eq!(records(&operator, &["WARN", "ca.pem"]), 1, "{}", operator.log_text());
    assert_eq!(records(&operator, &["WARN", "spans could not be exported"]), 0);

    fs::write(&file, certificate).unwrap();
    driver.attach("uncertain-after").await?;
    arrives(&receiver, "uncertain-after").await;
    for config in ["env", "uncertain"] {
        world.fixtures.delete::<AttacherConfig>(config).await?;
    }
    Ok(())
}
