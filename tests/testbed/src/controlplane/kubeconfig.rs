//! Kubeconfig files, and clients made from them.

use std::path::{Path, PathBuf};

use k8s_openapi::ByteString;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};

use super::super::error::{Context, Result};
use super::pki::{Identity, write_private};

/// How a kubeconfig proves who its user is.
pub enum Credentials<'a> {
    Certificate(&'a Identity),
    Token(&'a str),
    /// By the certificate of an administrator, as another user in these groups.
    Impersonate(&'a Identity, &'a str, &'a [&'a str]),
}

impl Credentials<'_> {
    fn to_json(&self) -> Value {
        match self {
            Self::Certificate(identity) => certificate(identity),
            Self::Token(token) => json!({ "token": token }),
            Self::Impersonate(administrator, user, groups) => {
                let mut entry = certificate(administrator);
                entry["as"] = json!(user);
                entry["as-groups"] = json!(groups);
                entry
            }
        }
    }
}

fn certificate(identity: &Identity) -> Value {
    json!({
        "client-certificate-data": base64(&identity.certificate),
        "client-key-data": base64(&identity.key),
    })
}

/// `ByteString` is how Kubernetes writes bytes into JSON: base64.
fn base64(text: &str) -> ByteString {
    ByteString(text.as_bytes().to_vec())
}

/// Writes a kubeconfig which stands alone and which only its owner can read.
pub fn write(path: &Path, server: &str, authority: &str, credentials: &Credentials<'_>) -> Result<()> {
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{
            "name": "test",
            "cluster": { "server": server, "certificate-authority-data": base64(authority) },
        }],
        "users": [{ "name": "test", "user": credentials.to_json() }],
        "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "test" } }],
        "current-context": "test",
    });
    write_private(path, &serde_json::to_string_pretty(&kubeconfig)?)
}

/// A kubeconfig beside another one, with this ending, for the same user of another cluster.
pub fn elsewhere(original: &Path, ending: &str, cluster: Value) -> Result<PathBuf> {
    let mut kubeconfig: Value = serde_json::from_str(&std::fs::read_to_string(original)?)?;
    kubeconfig["clusters"][0]["cluster"] = cluster;
    let path = original.with_extension(ending);
    write_private(&path, &kubeconfig.to_string())?;
    Ok(path)
}

/// The client configuration that a kubeconfig describes.
pub async fn config(path: &Path) -> Result<kube::Config> {
    let kubeconfig = Kubeconfig::read_from(path)?;
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    // A proxy of the machine cannot reach this loopback address.
    config.proxy_url = None;
    Ok(config)
}

/// A client made from a kubeconfig. It works only while the runtime that made it runs.
pub async fn client(path: &Path) -> Result<kube::Client> {
    kube::Client::try_from(config(path).await?).while_trying(|| format!("make a client from {}", path.display()))
}
