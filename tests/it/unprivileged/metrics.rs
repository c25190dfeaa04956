//! Metrics behind TLS: tokens of real ServiceAccounts, and a certificate that is renewed.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::Api;
use kube::api::DeleteParams;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::{Rig, account, certify, other};
use crate::support::controlplane::pki::Authority;
use crate::support::prometheus::of_repository;
use crate::support::rbac::Account;
use crate::support::{Error, Result};

/// Names the libraries that are held at a higher level unless they are named.
pub const LOG_LEVEL: &str = "trace,h2=trace,hyper=trace,hyper_util=trace,tower=trace,rustls=trace,kube_client=trace";
/// Something may be seen before what is waited for: a watch of the API server is behind, a token is still remembered.
const LIMIT: Duration = Duration::from_mins(1);
const SCRAPER: &str = "scraper";
/// The roles of the chart, and how many rules they have.
const READER: (&str, usize) = ("metrics-reader", 1);
const AUTH: &str = "metrics-auth";

/// Sends a request by TLS and returns status and body; status 0 when the certificate is not of this authority.
async fn ask(rig: &Rig, authority: &Authority, token: Option<&str>) -> Result<(u16, String)> {
    let mut roots = RootCertStore::empty();
    let root = CertificateDer::from_pem_slice(authority.certificate().as_bytes()).map_err(other)?;
    roots.add(root).map_err(other)?;
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(rig.secure).await.map_err(other)?;
    let name = ServerName::try_from("localhost").map_err(other)?;
    let Ok(mut stream) = TlsConnector::from(Arc::new(config)).connect(name, stream).await else {
        return Ok((0, String::new()));
    };
    let authorization = token.map(|token| format!("Authorization: Bearer {token}\r\n"));
    let request = format!(
        "GET /metrics HTTP/1.1\r\nHost: localhost\r\n{}\r\n",
        authorization.unwrap_or_default()
    );
    stream.write_all(request.as_bytes()).await.map_err(other)?;
    let mut answer = String::new();
    let read = stream.read_to_string(&mut answer);
    tokio::time::timeout(LIMIT, read).await.map_err(other)?.map_err(other)?;
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    let (_, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    Ok((status.unwrap_or_default(), body.to_owned()))
}

/// Asks again and again until the answer has this status; returns the body.
async fn wait_for(rig: &Rig, authority: &Authority, token: &str, wanted: u16, why: &str) -> Result<String> {
    let mut last = Ok((0, String::new()));
    let answered = tokio::time::timeout(LIMIT, async {
        let mut ticks = tokio::time::interval(Duration::from_millis(200));
        loop {
            // Nobody tells of a change here.
            ticks.tick().await;
            last = ask(rig, authority, Some(token)).await;
            if let Ok((status, body)) = &last
                && *status == wanted
            {
                return body.clone();
            }
        }
    });
    let answered = answered.await;
    answered.map_err(|_| Error::Other(format!("{why}: no status {wanted}, last {last:?}")))
}

fn scraper(name: &str) -> Account {
    Account {
        namespace: "default".to_owned(),
        name: name.to_owned(),
    }
}

/// A token of a ServiceAccount, which is made if it is missing.
async fn token_of(rig: &Rig, name: &str) -> Result<String> {
    let kubeconfig = rig
        .world
        .cluster
        .kubeconfig_for_service_account("default", name)
        .await?;
    token_in(&kubeconfig)
}

fn token_in(kubeconfig: &Path) -> Result<String> {
    let text = std::fs::read_to_string(kubeconfig).map_err(other)?;
    let parsed: Value = serde_yaml::from_str(&text).map_err(other)?;
    let token = parsed.pointer("/users/0/user/token").and_then(Value::as_str);
    token
        .map(str::to_owned)
        .ok_or_else(|| other("the kubeconfig has no token"))
}

/// Binds a role that the chart makes for this to an account of the test, with the first rules of it. So a rule that is wrong in
/// the chart fails here, and each is seen to be needed.
async fn grant(rig: &Rig, (role, rules): (&str, usize), account: &Account) -> Result<()> {
    let golden = std::fs::read_to_string(of_repository("tests/chart/golden/secure-metrics.yaml")).map_err(other)?;
    let named = format!("-{role}\n");
    let rendered = golden.split("\n---\n").find(|document| {
        document.contains("\nkind: ClusterRole\n") && document.lines().any(|line| format!("{line}\n").ends_with(&named))
    });
    let rendered = rendered.ok_or_else(|| other(format!("the chart renders no ClusterRole {role}")))?;
    let mut parsed: Value = serde_yaml::from_str(rendered).map_err(other)?;
    parsed["metadata"] = serde_json::json!({"name": role});
    let all = parsed["rules"]
        .as_array_mut()
        .ok_or_else(|| other("a role without rules"))?;
    assert!(all.len() >= rules, "{all:?}");
    all.truncate(rules);
    let binding = serde_json::json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": role},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "namespace": account.namespace, "name": account.name}],
    });
    let manifest = format!("{parsed}\n---\n{binding}\n");
    rig.world.cluster.apply_yaml(&manifest).await.map(drop)
}

fn assert_shown(body: &str) {
    assert!(body.contains("csi_attacher_build_info"), "{body}");
}

fn assert_hidden(body: &str) {
    assert!(!body.contains("csi_attacher"), "{body}");
}

pub async fn only_who_may_read_the_metrics_does(rig: &Rig) -> Result<()> {
    let ours = &rig.authority;
    let token = token_of(rig, SCRAPER).await?;
    not_in_the_clear(rig, &token).await?;

    without_its_rights(rig, &token).await?;
    grant(rig, (AUTH, 2), &account()).await?;

    // A valid token of somebody who may not.
    let body = wait_for(rig, ours, &token, 403, "no right to read").await?;
    assert!(body.contains("verb get on the nonResourceURL /metrics"), "{body}");
    for wrong in [Some("sing-0b3a77.made.up"), None] {
        let (status, body) = ask(rig, ours, wrong).await?;
        assert_eq!(status, 401, "{wrong:?}");
        assert_hidden(&body);
    }
    grant(rig, READER, &scraper(SCRAPER)).await?;
    assert_shown(&wait_for(rig, ours, &token, 200, "the right to read").await?);

    let renewed = renew(rig, &token).await?;
    let bindings: Api<ClusterRoleBinding> = Api::all(rig.world.client.clone());
    let delete = DeleteParams::default();
    bindings.delete("metrics-reader", &delete).await.map_err(other)?;
    assert_hidden(&wait_for(rig, &renewed, &token, 403, "the right was taken back").await?);

    grant(rig, READER, &scraper(SCRAPER)).await?;
    wait_for(rig, &renewed, &token, 200, "the right was given again").await?;
    let accounts: Api<ServiceAccount> = Api::namespaced(rig.world.client.clone(), "default");
    accounts.delete(SCRAPER, &delete).await.map_err(other)?;
    // The API server itself remembers a token for ten seconds.
    assert_hidden(&wait_for(rig, &renewed, &token, 401, "the account is gone").await?);
    nowhere_told(rig, &renewed, &token).await
}

/// Without either of its two rights the operator lets nobody in, and its log says which is missing.
async fn without_its_rights(rig: &Rig, token: &str) -> Result<()> {
    let missing = ["tokenreviews", "subjectaccessreviews"];
    for (rules, resource) in missing.into_iter().enumerate() {
        grant(rig, (AUTH, rules), &account()).await?;
        let said = format!("cannot create {resource}: ");
        let told = async {
            loop {
                // The API server knows a right a moment after it was given.
                let body = wait_for(rig, &rig.authority, token, 503, resource).await?;
                assert_hidden(&body);
                let log = rig.operator.log_text();
                if log.contains(&said) {
                    return Ok::<_, Error>(log);
                }
            }
        };
        let log = tokio::time::timeout(LIMIT, told).await.map_err(other)??;
        for part in ["needs the verb create on it", "metrics.secure.enabled"] {
            let line = log.lines().find(|line| line.contains(&said));
            assert!(line.is_some_and(|line| line.contains(part)), "no {part:?} in {line:?}");
        }
        println!("{resource}:create: only_who_may_read_the_metrics_does fails without it");
    }
    Ok(())
}

/// The port of the probes has no metrics, and that of the metrics speaks nothing but TLS.
async fn not_in_the_clear(rig: &Rig, token: &str) -> Result<()> {
    let (status, body) = rig.operator.get("/metrics").await?;
    assert_eq!(status, 404);
    assert_hidden(&body);
    for path in ["/livez", "/readyz", "/healthz"] {
        rig.operator.wait_for_answer(path, |status, _| status == 200).await?;
    }
    let mut stream = TcpStream::connect(rig.secure).await.map_err(other)?;
    let request = format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.map_err(other)?;
    let mut answer = Vec::new();
    // The end may come as a reset.
    let read = tokio::time::timeout(LIMIT, stream.read_to_end(&mut answer)).await;
    assert!(read.is_ok(), "the connection stays open");
    let answer = String::from_utf8_lossy(&answer);
    assert!(!answer.contains("HTTP/1.1"), "{answer}");
    assert_hidden(&answer);
    Ok(())
}

/// Another authority, as when cert-manager renews it: connections are answered by the new certificate, without a restart.
async fn renew(rig: &Rig, token: &str) -> Result<Authority> {
    let renewed = Authority::new()?;
    assert_eq!(
        ask(rig, &renewed, Some(token)).await?.0,
        0,
        "it cannot have been seen yet"
    );
    certify(rig.folder.path(), &renewed)?;
    assert_shown(&wait_for(rig, &renewed, token, 200, "the certificate was renewed").await?);
    assert_eq!(
        ask(rig, &rig.authority, Some(token)).await?.0,
        0,
        "that before it is gone"
    );
    Ok(renewed)
}

/// Neither token is in the log, at its lowest level, nor in metrics or spans. Of a token its signature is the secret part.
async fn nowhere_told(rig: &Rig, authority: &Authority, token: &str) -> Result<()> {
    let signature = token.rsplit('.').next().unwrap_or_default();
    assert!(signature.len() > 40, "a token has a signature");
    let reader = token_of(rig, "another-scraper").await?;
    grant(rig, READER, &scraper("another-scraper")).await?;
    let metrics = wait_for(rig, authority, &reader, 200, "another reader").await?;
    let spans = format!("{:#?}", rig.receiver.spans());
    let log = rig.operator.log_text();
    assert!(log.contains("\"level\":\"TRACE\""), "the level is the lowest");
    for (place, text) in [("log", &log), ("metrics", &metrics), ("spans", &spans)] {
        for needle in [signature, "sing-0b3a77"] {
            assert!(!text.contains(needle), "a token is in the {place}");
        }
    }
    Ok(())
}
