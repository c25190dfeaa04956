//! Drivers behind a network endpoint: mutual TLS by a Secret that is missing, forbidden, spoilt, renewed, deleted.

mod canary;
mod proxy;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use csi_attacher_model::api::AttacherConfig;
use csi_mock_driver::{CallRecord, CallResult, ListenEndpoint, Method, MockDriver, Rule, ServerTls};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::events::event;
use crate::insight::told;
use crate::rig::{Driver, LIMIT, World, other, within};
use crate::support::controlplane::pki::{Authority, Identity};
use crate::support::operator::{IDENTITY, apply_config, grant_secret, release_lease};
use crate::support::wait::wait_for;
use crate::support::{ControlPlane, Error, Result};

/// Where the Secrets of these tests are.
const NAMESPACE: &str = "default";
/// The name in the certificates; nothing has it as its host name.
const SERVER: &str = "csi.storage.example";

/// What the driver serves with, demanding certificates of this authority.
fn served(authority: &Authority) -> Result<ServerTls> {
    let Identity { certificate, key } = authority.server(&[SERVER])?;
    Ok(ServerTls {
        certificate,
        key,
        client_authority: Some(authority.certificate().to_owned()),
    })
}

/// What the Secret has for a driver of this authority.
fn material(authority: &Authority) -> Result<[(&'static str, String); 3]> {
    let Identity { certificate, key } = authority.client("csi-attacher-operator", None)?;
    Ok([
        ("ca.crt", authority.certificate().to_owned()),
        ("tls.crt", certificate),
        ("tls.key", key),
    ])
}

/// A mock driver on a port of the loopback interface, with its node.
async fn driver<'w>(world: &'w World, short: &str, tls: Option<ServerTls>) -> Result<Driver<'w>> {
    let name = format!("{short}.csi.test");
    let mut builder = MockDriver::builder(&name).accept_any_volume();
    if let Some(tls) = tls {
        builder = builder.tls(tls);
    }
    let any = ListenEndpoint::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)));
    let mock = builder.start_on(any).await?;
    let short = short.to_owned();
    let driver = Driver {
        world,
        short,
        name,
        mock,
    };
    let (node, id) = (driver.node(), driver.node_id());
    world.fixtures.csi_node(&node, &driver.name, &id).await?;
    release_lease(&world.client, IDENTITY, &driver.name).await?;
    Ok(driver)
}

fn port(driver: &Driver<'_>) -> u16 {
    match driver.mock.endpoint() {
        ListenEndpoint::Tcp(address) => address.port(),
        ListenEndpoint::Unix(path) => panic!("{}", path.display()),
    }
}

/// Applies the AttacherConfig of a driver, whose Secret is called as the driver.
async fn configure(driver: &Driver<'_>, server_name: &str) -> Result<()> {
    let short = &driver.short;
    let spec = json!({
        "endpoint": format!("https://127.0.0.1:{}", port(driver)),
        "tls": { "secretRef": { "namespace": NAMESPACE, "name": short }, "serverName": server_name },
    });
    apply_config(&driver.world.client, short, spec).await.map(drop)
}

async fn put_secret(world: &World, name: &str, entries: &[(&str, String)]) -> Result<()> {
    put(&Api::namespaced(world.client.clone(), NAMESPACE), name, entries).await
}

async fn put(secrets: &Api<Secret>, name: &str, entries: &[(&str, String)]) -> Result<()> {
    let data: BTreeMap<_, _> = entries
        .iter()
        .map(|(key, value)| (*key, ByteString(value.clone().into_bytes())))
        .collect();
    let body = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name }, "data": data });
    let params = PatchParams::apply("test").force();
    secrets
        .patch(name, &params, &Patch::Apply(&body))
        .await
        .map(drop)
        .map_err(Error::from)
}

/// Lets the operator read one Secret.
async fn grant(cluster: &ControlPlane, name: &str) -> Result<()> {
    grant_secret(cluster, NAMESPACE, name).await
}

/// Waits until the driver was asked who it is so many times.
async fn asked(driver: &Driver<'_>, times: usize) -> Result<()> {
    let answered = |call: &CallRecord| call.method == Method::GetPluginInfo && call.outcome == CallResult::Answered;
    driver.calls("GetPluginInfo", times, answered).await.map(drop)
}

#[tokio::test]
async fn each_fault_of_the_secret_is_told_and_mends_itself() -> Result<()> {
    let world = World::shared().await?;
    let authority = Authority::new()?;
    let driver = driver(&world, "tls-mend", Some(served(&authority)?)).await?;
    driver.claim("tls-mend-va").await?;
    configure(&driver, SERVER).await?;
    let place = format!("{NAMESPACE}/tls-mend");
    let forbidden = [
        "has no permission to get",
        &place,
        "Role in namespace default, apiGroups [\"\"], resources [secrets], resourceNames [tls-mend], verbs [get]",
        "the chart creates it for the tls of an AttacherConfig",
    ];
    told(&driver, "Stalled", "True", "SecretForbidden", &forbidden).await?;
    told(&driver, "DriverReachable", "False", "SecretForbidden", &forbidden).await?;
    told(&driver, "Ready", "False", "SecretForbidden", &[]).await?;
    event(&world, "AttacherConfig", "tls-mend", "Stalled", forbidden[3]).await?;
    grant(&world.cluster, "tls-mend").await?;
    told(&driver, "Stalled", "True", "SecretMissing", &[&place, "ca.crt"]).await?;

    let mut entries = material(&authority)?;
    let good = std::mem::replace(&mut entries[2].1, "-----BEGIN PRIVATE KEY-----\nAAAA\n".to_owned());
    put_secret(&world, "tls-mend", &entries).await?;
    told(
        &driver,
        "Stalled",
        "True",
        "TlsInvalid",
        &[&place, "tls.key is cut off"],
    )
    .await?;
    assert!(driver.mock.calls().is_empty(), "nothing was called so far");

    entries[2].1 = good;
    put_secret(&world, "tls-mend", &entries).await?;
    driver.wait("Ready", "True", Some("Running")).await?;
    driver.wait("Stalled", "False", None).await?;
    world.fixtures.wait_for_attached("tls-mend-va").await.map(drop)
}

#[tokio::test]
async fn renewed_certificates_are_taken_over_without_losing_a_call() -> Result<()> {
    let world = World::shared().await?;
    let (old, new) = (Authority::new()?, Authority::new()?);
    let driver = driver(&world, "tls-renew", Some(served(&old)?)).await?;
    grant(&world.cluster, "tls-renew").await?;
    put_secret(&world, "tls-renew", &material(&old)?).await?;
    configure(&driver, SERVER).await?;
    driver.wait("Ready", "True", Some("Running")).await?;

    // It runs over the first connection while the certificates change, which is seen after 5 s and more.
    let slow = Rule::on(Method::ControllerPublishVolume).times(1);
    driver.mock.script(slow.until_released());
    driver.claim("tls-renew-slow").await?;
    let held = driver
        .call(Method::ControllerPublishVolume, "tls-renew-slow", |_| true)
        .await?;
    driver.mock.set_tls(&served(&new)?).map_err(other)?;
    put_secret(&world, "tls-renew", &material(&new)?).await?;
    asked(&driver, 2).await?;
    driver.attach("tls-renew-next").await?;
    let slow_call = &driver.calls_for("tls-renew-slow")[0];
    assert_eq!(slow_call.outcome, CallResult::Running, "the old connection still works");
    within("both connections", driver.mock.wait_for_connections(2)).await?;
    driver.mock.release(held.id);
    world.fixtures.wait_for_attached("tls-renew-slow").await?;
    let calls = driver.calls_for("tls-renew-slow");
    assert_eq!(
        calls.iter().map(|call| call.outcome).collect::<Vec<_>>(),
        [CallResult::Answered]
    );
    driver.wait("Ready", "True", Some("Running")).await?;
    within("the end of the old connection", driver.mock.wait_for_connections(1)).await?;

    // Only the new ones are good for another connection.
    driver.mock.drop_connections();
    asked(&driver, 3).await?;
    driver.attach("tls-renew-last").await.map(drop)
}

#[tokio::test]
async fn the_last_good_certificates_stay_in_use() -> Result<()> {
    let world = World::shared().await?;
    let (authority, stranger) = (Authority::new()?, Authority::new()?);
    let driver = driver(&world, "tls-keep", Some(served(&authority)?)).await?;
    grant(&world.cluster, "tls-keep").await?;
    let good = material(&authority)?;
    put_secret(&world, "tls-keep", &good).await?;
    configure(&driver, SERVER).await?;
    driver.wait("Ready", "True", Some("Running")).await?;

    world
        .fixtures
        .delete_namespaced::<Secret>(NAMESPACE, "tls-keep")
        .await?;
    let kept = ["the driver answers", "last valid certificates", "does not exist"];
    told(&driver, "DriverReachable", "True", "Connected", &kept).await?;
    driver.mock.drop_connections();
    asked(&driver, 2).await?;
    driver.attach("tls-keep-deleted").await?;

    put_secret(&world, "tls-keep", &material(&stranger)?).await?;
    let refused = ["new certificates do not work", "is not signed by ca.crt"];
    told(&driver, "DriverReachable", "True", "Connected", &refused).await?;
    driver.attach("tls-keep-refused").await?;
    driver.wait("Ready", "True", Some("Running")).await?;

    put_secret(&world, "tls-keep", &good).await?;
    asked(&driver, 3).await?;
    wait_for(
        Api::<AttacherConfig>::all(world.client.clone()),
        "tls-keep",
        "no concern",
        LIMIT,
        |config| {
            let conditions = config.and_then(|config| Some(&config.status.as_ref()?.conditions));
            let mut conditions = conditions.into_iter().flatten();
            conditions
                .any(|condition| condition.type_ == "DriverReachable" && condition.message == "the driver answers")
        },
    )
    .await?;
    driver.attach("tls-keep-last").await.map(drop)
}

#[tokio::test]
async fn what_tls_fails_over_is_told_and_another_server_name_mends_it() -> Result<()> {
    let world = World::shared().await?;
    let (authority, stranger) = (Authority::new()?, Authority::new()?);
    let driver = driver(&world, "tls-fail", Some(served(&authority)?)).await?;
    grant(&world.cluster, "tls-fail").await?;
    let [ca, _, _] = material(&authority)?;
    put_secret(&world, "tls-fail", &[ca]).await?;
    configure(&driver, "csi.other.example").await?;
    let place = format!("127.0.0.1:{}", port(&driver));
    let reach = async |parts: &[&str]| told(&driver, "DriverReachable", "False", "TlsFailed", parts).await;
    reach(&[&place, "csi.other.example", SERVER, "spec.tls.serverName"]).await?;
    configure(&driver, SERVER).await?;
    reach(&[&place, "demands a client certificate"]).await?;
    let mut mixed = material(&stranger)?;
    mixed[0].1 = authority.certificate().to_owned();
    put_secret(&world, "tls-fail", &mixed).await?;
    reach(&[&place, "rejected the client certificate of the operator"]).await?;
    told(&driver, "Ready", "False", "DriverUnreachable", &[]).await?;
    put_secret(&world, "tls-fail", &material(&authority)?).await?;
    driver.wait("Ready", "True", Some("Running")).await?;
    driver.attach("tls-fail-va").await.map(drop)
}

#[tokio::test]
async fn plain_http_on_the_loopback_interface_works() -> Result<()> {
    let world = World::shared().await?;
    let driver = driver(&world, "plain-http", None).await?;
    let spec: Value = json!({ "endpoint": format!("http://localhost:{}", port(&driver)) });
    apply_config(&world.client, &driver.short, spec).await?;
    driver.wait("Ready", "True", Some("Running")).await?;
    driver.attach("plain-http-va").await.map(drop)
}
