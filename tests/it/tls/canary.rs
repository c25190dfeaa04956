//! The private key of an endpoint's certificates comes out nowhere, at the lowest log level.

use std::net::SocketAddr;

use csi_attacher_model::api::AttacherConfig;
use csi_mock_driver::{ListenEndpoint, MockDriver, MockHandle, ServerTls};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use serde_json::json;

use super::{NAMESPACE, SERVER, grant, material, put, served};
use crate::canary::{LOG_LEVEL, events};
use crate::collectors::sends_to;
use crate::rig::LIMIT;
use crate::support::controlplane::pki::Authority;
use crate::support::operator::{IDENTITY, apply_config, release_lease};
use crate::support::otlp::OtlpReceiver;
use crate::support::stage::{Stage, stop};
use crate::support::wait::wait_for;
use crate::support::{Result, Volume};

const NAME: &str = "tls-canary";
const DRIVER: &str = "tls-canary.csi.test";

/// The parts of a private key in which it could leak: lines of the PEM text, and that text as the API server has it.
fn parts_of_key(key: &str) -> Vec<String> {
    let encoded = serde_json::to_value(ByteString(key.as_bytes().to_vec())).unwrap();
    let encoded = encoded.as_str().unwrap().to_owned();
    let lines = key.lines().filter(|line| !line.starts_with("-----") && line.len() > 16);
    let mut parts: Vec<String> = lines.map(ToOwned::to_owned).collect();
    parts.extend(
        encoded
            .as_bytes()
            .chunks(48)
            .skip(1)
            .map(|part| String::from_utf8_lossy(part).into_owned()),
    );
    parts
}

/// A driver behind TLS whose AttacherConfig, Secret and volume are called [`NAME`], with its volume attached.
async fn attached(stage: &Stage, tls: ServerTls, entries: &[(&str, String)]) -> Result<MockHandle> {
    let any = ListenEndpoint::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)));
    let builder = MockDriver::builder(DRIVER).accept_any_volume().tls(tls);
    let mock = builder.start_on(any).await?;
    let ListenEndpoint::Tcp(address) = mock.endpoint() else {
        panic!("no port")
    };
    grant(stage.cluster, NAME).await?;
    put(&secrets(stage), NAME, entries).await?;
    let spec = json!({
        "endpoint": format!("https://{address}"),
        "tls": { "secretRef": { "namespace": NAMESPACE, "name": NAME }, "serverName": SERVER },
    });
    release_lease(&stage.client, IDENTITY, DRIVER).await?;
    apply_config(&stage.client, NAME, spec).await?;
    stage.wait_working(NAME).await?;
    let fixtures = &stage.fixtures;
    fixtures.csi_node("tls-canary-node", DRIVER, "id").await?;
    fixtures.persistent_volume(&Volume::new(NAME, DRIVER, NAME)).await?;
    fixtures
        .volume_attachment(NAME, DRIVER, NAME, "tls-canary-node")
        .await?;
    fixtures.wait_for_attached(NAME).await?;
    Ok(mock)
}

fn secrets(stage: &Stage) -> Api<Secret> {
    Api::namespaced(stage.client.clone(), NAMESPACE)
}

#[tokio::test]
async fn a_private_key_comes_out_nowhere() -> Result<()> {
    let stage = Stage::enter().await?;
    let receiver = OtlpReceiver::grpc().await;
    let options = sends_to(&receiver.endpoint(), "grpc").argument(format!("--log-level={LOG_LEVEL}"));
    let mut operator = stage.operator(options).await?;
    let authority = Authority::new()?;
    let mut entries = material(&authority)?;
    let _mock = attached(&stage, served(&authority)?, &entries).await?;
    // The second half of the key is cut off, for the message about that.
    let key = entries[2].1.clone();
    entries[2].1.truncate(key.len() / 2);
    put(&secrets(&stage), NAME, &entries).await?;
    let kept = |config: &AttacherConfig| serde_json::to_string(config).is_ok_and(|text| text.contains("is cut off"));
    let configs: Api<AttacherConfig> = Api::all(stage.client.clone());
    let config = wait_for(configs, NAME, "the spoilt key", LIMIT, |config| {
        config.is_some_and(kept)
    })
    .await?;
    let metrics = operator.metrics().await?;
    stop(&mut operator).await?;

    let log = operator.log_text();
    let lowest = log.contains("\"target\":\"rustls::") && log.contains("certificates read");
    assert!(lowest, "the level was the lowest");
    let parts = parts_of_key(&key);
    let seen = parts.iter().filter(|part| key.contains(*part)).count();
    assert!(seen >= 2, "the search finds a key");
    let config = serde_json::to_string(&config)?;
    let spans = receiver.spans();
    assert!(
        spans.iter().any(|span| span.name == "VolumeAttachment.attach"),
        "{spans:#?}"
    );
    let events = events(&stage).await?;
    assert!(events.contains("tls-canary-node"), "{events}");
    // Everything that anybody sent to the API server or got from it, but for the contents of Secrets.
    let audit = std::fs::read_to_string(stage.cluster.audit_log()?).unwrap();
    assert!(audit.contains(NAME));
    let places = [
        ("log", log),
        ("spans", format!("{spans:#?}")),
        ("config", config),
        ("metrics", metrics),
        ("events", events),
        ("audit log", audit),
    ];
    for (place, text) in places {
        let found = parts.iter().filter(|part| text.contains(*part)).count();
        assert_eq!(found, 0, "parts of the key in {place}");
    }
    Ok(())
}
