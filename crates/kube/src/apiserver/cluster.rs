//! Which cluster to talk to: a kubeconfig, or what stands around the pod.
//!
//! kube reads the file. What it reads and does not keep, or reads otherwise than client-go, is settled here: where the CA
//! data is, so that it is read again; the proxy; which of two tokens counts; and values that are blank or have ends of lines.
//!
//! The URL of the cluster is shown in logs, metrics, spans and the answers of `/readyz`: user and password are taken out of it here.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use http::Uri;
use http::uri::Authority;
use kube::config::{AuthInfo, Cluster, Config, KubeConfigOptions, Kubeconfig};
use secrecy::{ExposeSecret as _, SecretString};

use super::connect::ConnectError;
use super::proxy;
use super::tls::{Source, TlsError, TrustError, authorities, pem_of};
use super::token_file;

const AUTHORITY: &str = "certificate-authority";

/// Finds out which cluster to talk to: the file that is given, else `KUBECONFIG` or the pod's service account.
pub async fn load_config(kubeconfig: Option<&Path>) -> Result<Config, ConnectError> {
    find_config(kubeconfig).await.map(showable)
}

async fn find_config(kubeconfig: Option<&Path>) -> Result<Config, ConnectError> {
    if let Some(path) = kubeconfig {
        let parsed = Kubeconfig::read_from(path).map_err(|source| unusable(path, source))?;
        return from_kubeconfig(parsed, path).await;
    }
    if let Ok(parsed) = Kubeconfig::read() {
        match from_kubeconfig(parsed, Path::new("KUBECONFIG")).await {
            Ok(mut config) => {
                config.apply_debug_overrides();
                return Ok(config);
            }
            // As for kube, a file that names no cluster is as good as none.
            Err(ConnectError::Kubeconfig(..)) => {}
            Err(other) => return Err(other),
        }
    }
    with_proxy(Config::infer().await.map_err(ConnectError::NoConfiguration)?, None)
}

/// The cluster of the pod that this process runs in, and nothing else.
pub fn load_pod_config() -> Result<Config, ConnectError> {
    with_proxy(Config::incluster().map_err(ConnectError::NotInPod)?, None).map(showable)
}

fn unusable(path: &Path, source: kube::config::KubeconfigError) -> ConnectError {
    ConnectError::Kubeconfig(path.display().to_string(), source)
}

async fn from_kubeconfig(mut parsed: Kubeconfig, path: &Path) -> Result<Config, ConnectError> {
    for user in parsed
        .auth_infos
        .iter_mut()
        .filter_map(|named| named.auth_info.as_mut())
    {
        settle_user(user);
    }
    let (mut authorities, mut proxy) = (None, None);
    if let Some(cluster) = selected(&mut parsed) {
        authorities = settle_authorities(cluster).map_err(|error| ConnectError::Tls(TlsError::Trust(error)))?;
        proxy = filled(cluster.proxy_url.take());
        // kube would take that of the environment, for whatever server.
        cluster.proxy_url = Some("http://chosen-below".to_owned());
        cluster.tls_server_name = filled(cluster.tls_server_name.take());
    }
    let mut config = Config::from_custom_kubeconfig(parsed, &KubeConfigOptions::default())
        .await
        .map_err(|source| unusable(path, source))?;
    if let Some(path) = config.auth_info.token_file.as_deref().map(Path::new) {
        // What cannot be read fails at the start, and not as a request without credentials.
        token_file::read(path).map_err(|source| ConnectError::TokenFile(path.to_owned(), source))?;
    }
    config.root_cert_file = authorities;
    if let Some(cluster) = config.auth_info.exec.as_mut().and_then(|exec| exec.cluster.as_mut()) {
        cluster.proxy_url.clone_from(&proxy);
    }
    with_proxy(config, proxy.as_deref())
}

fn with_proxy(mut config: Config, configured: Option<&str>) -> Result<Config, ConnectError> {
    let variable = |name: &str| std::env::var(name).ok();
    config.proxy_url = proxy::choose(&config.cluster_url, configured, variable).map_err(ConnectError::Proxy)?;
    Ok(config)
}

/// The same configuration with a URL that may be shown.
fn showable(mut config: Config) -> Config {
    config.cluster_url = without_user(config.cluster_url);
    config
}

/// A URL without user and password. kube authenticates with neither: it would name them as a part of the host.
fn without_user(url: Uri) -> Uri {
    let authority = url.authority().map(Authority::as_str);
    let Some((_, host)) = authority.and_then(|authority| authority.rsplit_once('@')) else {
        return url;
    };
    let host = host.to_owned();
    proxy::with_authority(url, &host)
}

/// The cluster of the current context.
fn selected(parsed: &mut Kubeconfig) -> Option<&mut Cluster> {
    let current = parsed.current_context.as_ref()?;
    let context = parsed.contexts.iter().find(|context| context.name == *current)?;
    let name = &context.context.as_ref()?.cluster;
    let cluster = parsed.clusters.iter_mut().find(|cluster| cluster.name == *name)?;
    cluster.cluster.as_mut()
}

/// Leaves what is a certificate in the CA data, and returns the file that it is from. What stands in the kubeconfig itself
/// goes before a file.
fn settle_authorities(cluster: &mut Cluster) -> Result<Option<PathBuf>, TrustError> {
    let data = filled(cluster.certificate_authority_data.take().map(|data| in_one_line(&data)));
    let file = file(cluster.certificate_authority.take());
    if cluster.insecure_skip_tls_verify == Some(true) {
        return Ok(None);
    }
    let Some(source) = Source::new(AUTHORITY, data.as_deref(), file.as_deref())? else {
        return Ok(None);
    };
    let found = authorities(&source.read(AUTHORITY)?);
    let (file, from) = match source {
        Source::File(path) => (Some(path), AUTHORITY),
        Source::Data(_) => (None, "certificate-authority-data"),
    };
    if found.is_empty() {
        return Err(TrustError::Empty { from });
    }
    let text = base64::engine::general_purpose::STANDARD.encode(pem_of(&found));
    cluster.certificate_authority_data = Some(text);
    Ok(file)
}

fn settle_user(user: &mut AuthInfo) {
    user.client_certificate = file(user.client_certificate.take());
    user.client_key = file(user.client_key.take());
    user.client_certificate_data = filled(user.client_certificate_data.take().map(|data| in_one_line(&data)));
    let key = user.client_key_data.take();
    let key = filled(key.map(|data| in_one_line(data.expose_secret())));
    user.client_key_data = key.map(SecretString::from);
    user.token_file = file(user.token_file.take());
    // kube would take the one that stands in the kubeconfig, for ever; the file is renewed, and read again.
    if user.token_file.is_some() {
        user.token = None;
    }
}

/// An empty value is none.
fn filled(value: Option<String>) -> Option<String> {
    value.filter(|value| !value.is_empty())
}

/// The name of a file. kube puts the folder of the kubeconfig before an empty one.
fn file(name: Option<String>) -> Option<String> {
    filled(name).filter(|name| !name.ends_with('/'))
}

/// Go passes over ends of lines in base64.
fn in_one_line(data: &str) -> String {
    data.replace(['\r', '\n'], "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_neither_user_nor_password() {
        for (url, shown) in [
            ("https://me:s3cret@api:6443", "https://api:6443/"),
            ("https://me:s3cret@api:6443/clusters/c", "https://api:6443/clusters/c"),
            ("https://me@api", "https://api/"),
            ("https://:s3cret@api", "https://api/"),
            ("https://me:s3%40cret@[fd00::1]:6443", "https://[fd00::1]:6443/"),
            ("http://me:s3@cret@10.0.0.1:80", "http://10.0.0.1:80/"),
            ("https://api:6443/@", "https://api:6443/@"),
            ("https://[fd00::1]", "https://[fd00::1]/"),
        ] {
            assert_eq!(without_user(url.parse().unwrap()).to_string(), shown, "{url}");
        }
    }
}
