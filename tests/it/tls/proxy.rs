//! A driver that listens on a unix socket only, behind the proxy of config/examples/tls-proxy/tls-proxy.yaml: a real HAProxy with that configuration.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::*;
use crate::rig::{detach, wait_until};
use crate::support::controlplane::ports::free_port;
use crate::support::controlplane::watchdog::{Output, Watched};
use crate::support::of_repository;

const EXAMPLE: &str = "config/examples/tls-proxy/tls-proxy.yaml";

fn documents() -> Vec<Value> {
    let text = std::fs::read_to_string(of_repository(EXAMPLE)).expect("it can be read");
    let documents = serde_yaml::Deserializer::from_str(&text);
    documents
        .map(|document| serde::Deserialize::deserialize(document).expect("it is YAML"))
        .collect()
}

fn of_kind<'d>(documents: &'d [Value], kind: &str) -> &'d Value {
    let found = documents.iter().find(|document| document["kind"] == kind);
    found.unwrap_or_else(|| panic!("{EXAMPLE} has no {kind}"))
}

/// HAProxy of this machine or of Debian's package.
async fn program() -> Result<std::path::PathBuf> {
    let script = of_repository("tests/haproxy/fetch");
    let run = move || Command::new(script).stderr(Stdio::inherit()).output();
    let ended = tokio::task::spawn_blocking(run).await??;
    if !ended.status.success() {
        return Err(Error::Other(format!("tests/haproxy/fetch: {}", ended.status)));
    }
    Ok(String::from_utf8_lossy(&ended.stdout).trim().into())
}

/// The configuration of the example, with the paths and the port of this test.
fn configuration(documents: &[Value], folder: &Path, socket: &Path, address: SocketAddr) -> String {
    let mut text = of_kind(documents, "ConfigMap")["data"]["haproxy.cfg"]
        .as_str()
        .expect("text")
        .to_owned();
    for (theirs, ours) in [
        ("/tls/", format!("{}/", folder.display())),
        ("/csi/csi.sock", socket.display().to_string()),
        ("bind :9443 ", format!("bind {address} ")),
    ] {
        assert!(text.contains(theirs), "{theirs}: {text}");
        text = text.replace(theirs, &ours);
    }
    text
}

/// Starts the command of the example's container.
async fn start(documents: &[Value], folder: &Path, text: &str) -> Result<Watched> {
    let file = folder.join("haproxy.cfg");
    std::fs::write(&file, text)?;
    let containers = &of_kind(documents, "Deployment")["spec"]["template"]["spec"]["containers"];
    let command = containers[1]["command"].as_array().expect("a list").iter();
    let words: Vec<&str> = command.filter_map(Value::as_str).collect();
    let [name, arguments @ .., path] = words.as_slice() else {
        panic!("{words:?}");
    };
    assert_eq!((*name, *path), ("haproxy", "/config/haproxy.cfg"));
    let mut arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
    arguments.push(file.display().to_string());
    let program = program().await?;
    Watched::spawn(
        "haproxy",
        &program,
        &arguments,
        &folder.join("haproxy.log"),
        Output::Log,
    )
}

/// The client's part of the Secret, with a certificate of this name, and the authority of the proxy.
fn client(trusted: &Authority, signer: &Authority, name: &str) -> Result<[(&'static str, String); 3]> {
    let Identity { certificate, key } = signer.client(name, None)?;
    Ok([
        ("ca.crt", trusted.certificate().to_owned()),
        ("tls.crt", certificate),
        ("tls.key", key),
    ])
}

/// A driver behind the proxy is not reached with a certificate of `signer` for `name`, and is served with the operator's.
async fn only_the_operator_gets_through(
    short: &str,
    authority: &Authority,
    signer: &Authority,
    name: &str,
) -> Result<()> {
    let world = World::shared().await?;
    let documents = documents();
    let driver = world.unconfigured_driver(short, |builder| builder).await?;
    let service = of_kind(&documents, "Service")["metadata"]["name"].as_str();
    let server = format!("{}.storage-drivers.svc", service.expect("a name"));
    let folder = tempfile::tempdir()?;
    let Identity { certificate, key } = authority.server(&[&server])?;
    for (file, text) in [
        ("tls.crt", &*certificate),
        ("tls.key", &*key),
        ("ca.crt", authority.certificate()),
    ] {
        std::fs::write(folder.path().join(file), text)?;
    }
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
    let text = configuration(&documents, folder.path(), &world.socket(short), address);
    let _proxy = start(&documents, folder.path(), &text).await?;
    wait_until("HAProxy listens", || std::net::TcpStream::connect(address).is_ok()).await?;

    put_secret(&world, short, &client(authority, signer, name)?).await?;
    grant(&world.cluster, short).await?;
    let spec = json!({
        "endpoint": format!("https://{address}"),
        "tls": { "secretRef": { "namespace": NAMESPACE, "name": short }, "serverName": server },
    });
    apply_config(&world.client, short, spec).await?;
    told(&driver, "DriverReachable", "False", "TlsFailed", &[]).await?;
    assert!(driver.mock.calls().is_empty(), "{:?}", driver.mock.calls());

    put_secret(&world, short, &client(authority, authority, "csi-attacher-operator")?).await?;
    driver.wait("Ready", "True", None).await?;
    driver.attach(short).await?;
    detach(&world.fixtures, short).await
}

#[tokio::test]
async fn the_proxy_of_the_example_rejects_certificates_of_others() -> Result<()> {
    let (authority, stranger) = (Authority::new()?, Authority::new()?);
    only_the_operator_gets_through("proxied-stranger", &authority, &stranger, "csi-attacher-operator").await
}

#[tokio::test]
async fn the_proxy_of_the_example_rejects_other_names_of_its_authority() -> Result<()> {
    let authority = Authority::new()?;
    only_the_operator_gets_through("proxied-other", &authority, &authority, "somebody-else").await
}

/// The rest of the example, but for the certificates, whose kinds are of cert-manager, is accepted by the API server.
#[tokio::test]
async fn the_objects_of_the_example_can_be_applied() -> Result<()> {
    let world = World::shared().await?;
    let documents = documents();
    let (of_cert_manager, own): (Vec<_>, Vec<_>) = documents.iter().partition(|document| {
        document["apiVersion"]
            .as_str()
            .is_some_and(|version| version.starts_with("cert-manager.io/"))
    });
    assert_eq!((of_cert_manager.len(), own.len()), (5, 5));
    for document in own {
        world.cluster.apply_yaml(&document.to_string()).await?;
    }
    Ok(())
}
