//! Why there is nobody to work with: one row for each reason.

use std::time::Duration;
use tonic::Code;

use super::handshake::{HandshakeError, run_handshake};
use crate::api::condition::ConditionReason;
use crate::api::{AttacherConfigSpec, DriverConfig};
use crate::csi::{CapabilityReport, CsiClient, DriverConnection};
use crate::telemetry::Metrics;
use csi_mock_driver::{ControllerCapability, Method, MockDriver, MockDriverBuilder, MockHandle, Rule};

const LIMIT: Duration = Duration::from_secs(20);

fn config(socket: &std::path::Path) -> DriverConfig {
    let spec = AttacherConfigSpec::new(format!("unix://{}", socket.display()));
    with_timeouts(DriverConfig::try_from(&spec).unwrap(), LIMIT)
}

fn with_timeouts(mut config: DriverConfig, timeout: Duration) -> DriverConfig {
    config.timeouts.probe = timeout;
    config.timeouts.identity = timeout;
    config
}

/// A driver, and settings by which it is reached as long as the folder is there.
async fn started(builder: MockDriverBuilder) -> (MockHandle, DriverConfig, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("csi.sock");
    let driver = builder.start(&socket).await.unwrap();
    (driver, config(&socket), folder)
}

async fn shaken(config: &DriverConfig) -> Result<crate::connect::handshake::Handshake, HandshakeError> {
    let client = CsiClient::new(DriverConnection::new(&config.endpoint), Metrics::default());
    tokio::time::timeout(LIMIT, run_handshake(&client, config))
        .await
        .expect("in time")
}

/// Reason and message of what stands in the way, which passes by itself.
fn unreachable(obstacle: HandshakeError) -> (ConditionReason, String) {
    let HandshakeError {
        is_stalled,
        reason,
        message,
    } = obstacle;
    assert!(!is_stalled, "{reason:?} {message}");
    assert!(message.ends_with("; retrying every 1 s"), "{message}");
    (reason, message)
}

#[tokio::test]
async fn a_driver_that_answers_everything_is_known() {
    let only = [ControllerCapability::PublishUnpublishVolume];
    let (_driver, mut config, _folder) = started(MockDriver::builder("a.test").capabilities(only)).await;
    for name in [None, Some("a.test".to_owned())] {
        config.driver_name = name;
        let handshake = shaken(&config).await.unwrap();
        assert_eq!(handshake.plugin.name, "a.test");
        assert_eq!(handshake.capabilities.names, ["PUBLISH_UNPUBLISH_VOLUME"]);
        assert!(handshake.capabilities.bits.publish_unpublish);
    }
}

#[tokio::test]
async fn a_driver_without_a_controller_service_is_not_asked_for_its_capabilities() {
    let (driver, config, _folder) = started(MockDriver::builder("a.test").without_controller_service()).await;
    let handshake = shaken(&config).await.unwrap();
    assert_eq!(handshake.capabilities, CapabilityReport::default());
    assert!(driver.calls_of(Method::ControllerGetCapabilities).is_empty());
}

#[tokio::test]
async fn each_answer_that_is_none_has_its_reason() {
    let mock = || MockDriver::builder("a.test");
    let fails = |method| mock().rule(Rule::on(method).fail(Code::Internal, "broken"));
    let hangs = |method| mock().rule(Rule::on(method).hang());
    let rows: [(MockDriverBuilder, ConditionReason, &str); 10] = [
        (
            mock().settings(|settings| settings.ready = false),
            ConditionReason::DriverNotReady,
            "not ready",
        ),
        (
            mock().settings(|settings| settings.driver_name.clear()),
            ConditionReason::DriverInvalid,
            "empty name",
        ),
        (
            fails(Method::Probe),
            ConditionReason::CallFailed,
            "Probe failed: rpc error: code = Internal desc = broken",
        ),
        (
            fails(Method::GetPluginInfo),
            ConditionReason::CallFailed,
            "GetPluginInfo failed",
        ),
        (
            fails(Method::GetPluginCapabilities),
            ConditionReason::CallFailed,
            "GetPluginCapabilities failed",
        ),
        (
            fails(Method::ControllerGetCapabilities),
            ConditionReason::CallFailed,
            "ControllerGetCapabilities failed: rpc error: code = Internal desc = broken;",
        ),
        (hangs(Method::Probe), ConditionReason::Timeout, "DeadlineExceeded"),
        (
            hangs(Method::GetPluginCapabilities),
            ConditionReason::Timeout,
            "DeadlineExceeded",
        ),
        (
            hangs(Method::ControllerGetCapabilities),
            ConditionReason::Timeout,
            "DeadlineExceeded",
        ),
        (
            mock().rule(Rule::on(Method::GetPluginInfo).drop_connection()),
            ConditionReason::NoGrpc,
            "does not speak gRPC, or closed the connection",
        ),
    ];
    for (builder, wanted, words) in rows {
        let (_driver, mut config, _folder) = started(builder).await;
        if wanted == ConditionReason::Timeout {
            // Whichever call it ends on a machine that is slow: that is the reason to be told.
            config = with_timeouts(config, Duration::from_millis(500));
        }
        let (reason, message) = unreachable(shaken(&config).await.unwrap_err());
        assert_eq!(reason, wanted, "{message}");
        assert!(message.contains(words), "{message}");
    }
}

/// Its Identity service announces what the controller plugin has.
#[tokio::test]
async fn a_node_plugin_is_told_as_what_it_may_be() {
    let unknown = Rule::on(Method::ControllerGetCapabilities);
    let unknown = unknown.fail(Code::Unimplemented, "unknown service csi.v1.Controller");
    let (_driver, config, _folder) = started(MockDriver::builder("a.test").rule(unknown)).await;
    let (reason, message) = unreachable(shaken(&config).await.unwrap_err());
    assert_eq!(reason, ConditionReason::CallFailed, "{message}");
    let call =
        "ControllerGetCapabilities failed: rpc error: code = Unimplemented desc = unknown service csi.v1.Controller: ";
    for part in [call, "CONTROLLER_SERVICE", "spec.endpoint is its node plugin"] {
        assert!(message.contains(part), "{message}");
    }
}

#[tokio::test]
async fn each_endpoint_that_cannot_be_dialled_has_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("file"), "").unwrap();
    drop(std::os::unix::net::UnixListener::bind(path("left")).unwrap());
    let rows = [
        ("missing", ConditionReason::SocketMissing, "no such socket"),
        (
            "file",
            ConditionReason::NotASocket,
            "name the driver's socket in spec.endpoint",
        ),
        ("left", ConditionReason::ConnectionRefused, "not listening"),
    ];
    for (name, wanted, words) in rows {
        let (reason, message) = unreachable(shaken(&config(&path(name))).await.unwrap_err());
        assert_eq!(reason, wanted, "{message}");
        assert!(message.contains(words) && message.contains(name), "{message}");
    }
}

/// Something else listens there: it talks first, and not HTTP/2.
#[tokio::test]
async fn what_speaks_no_grpc_is_told_so() {
    use tokio::io::AsyncWriteExt as _;
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("ssh.sock");
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    let server = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            drop(
                stream
                    .write_all(b"SSH-2.0-OpenSSH_9.9\r\n and so on, for longer than a frame")
                    .await,
            );
        }
    });
    let (reason, message) = unreachable(shaken(&config(&socket)).await.unwrap_err());
    assert_eq!(reason, ConditionReason::NoGrpc, "{message}");
    server.abort();
}

#[tokio::test]
async fn another_name_is_for_a_person_to_mend() {
    let (_driver, mut config, _folder) = started(MockDriver::builder("b.test")).await;
    config.driver_name = Some("a.test".to_owned());
    let error = shaken(&config).await.unwrap_err();
    let kind = (error.is_stalled, error.reason);
    assert_eq!(kind, (true, ConditionReason::DriverNameMismatch));
    for name in ["\"b.test\"", "\"a.test\""] {
        assert!(error.message.contains(name), "{}", error.message);
    }
}

/// A name is a label of metrics and the name of a Lease: whatever else a driver says is refused, and shown in part only.
#[tokio::test]
async fn what_is_no_name_is_refused_and_not_repeated() {
    let rows = [
        ("x".repeat(64), "64 bytes"),
        ("x".repeat(60_000), "60000 bytes"),
        ("-a.test".to_owned(), "7 bytes"),
        ("a test\n".to_owned(), "7 bytes"),
        ("\u{e4}.test".to_owned(), "7 bytes"),
    ];
    for (name, words) in rows {
        let (_driver, config, _folder) = started(MockDriver::builder(&name)).await;
        let error = shaken(&config).await.unwrap_err();
        let (kind, message) = ((error.is_stalled, error.reason), error.message);
        assert_eq!(kind, (true, ConditionReason::DriverInvalid), "{message}");
        assert!(message.contains(words) && message.contains("csi.sock"), "{message}");
        assert!(message.len() < 600, "{message}");
    }
}

/// Nor is it read to its end: 3 MB of it were kept by each label of each series.
#[tokio::test]
async fn an_identity_without_measure_is_not_read() {
    let (_driver, config, _folder) = started(MockDriver::builder("x".repeat(3_000_000))).await;
    let (reason, message) = unreachable(shaken(&config).await.unwrap_err());
    assert_eq!(reason, ConditionReason::CallFailed, "{message}");
    assert!(
        message.len() < 600 && message.contains("GetPluginInfo failed"),
        "{message}"
    );
}

#[tokio::test]
async fn a_version_is_cut() {
    let version = format!("1.0\n{}", "9".repeat(10_000));
    let builder = MockDriver::builder("a.test").settings(|settings| settings.vendor_version = version);
    let (_driver, config, _folder) = started(builder).await;
    let kept = shaken(&config).await.unwrap().plugin.vendor_version;
    assert!(kept.len() == 128 && kept.starts_with("1.0 9"), "{kept}");
}
