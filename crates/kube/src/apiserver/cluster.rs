//! Which cluster to talk to: a kubeconfig, or what stands around the pod.
//!
//! Which files and values count, of a kubeconfig or around a pod, is the matter of `csi_attacher_kubeconfig`. What kube reads
//! and does not keep is settled here: where the CA data is, so that it is read again.
//!
//! The URL of the cluster is shown in logs, metrics, spans and the answers of `/readyz`: user and password are taken out of it here.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use csi_attacher_kubeconfig::{Found, check_server, choose_proxy, find, pod_config};
use http::Uri;
use http::uri::Authority;
use kube::config::{Cluster, Config};
use tracing::warn;

use super::connect_error::ConnectError;
use super::proxy;
use super::tls::{Source, pem_of, read_authorities};
use crate::pem;

const AUTHORITY: &str = "certificate-authority";

/// Finds out which cluster to talk to: the file that is given, else what `KUBECONFIG` lists or the home directory has, else the pod's
/// service account.
pub async fn load_config(kubeconfig: Option<&Path>) -> Result<Config, ConnectError> {
    let mut config = match find(kubeconfig, None)? {
        Some(found) => from_kubeconfig(found).await?,
        None => from_pod(pod_config().map_err(ConnectError::NoConfiguration)?)?,
    };
    if kubeconfig.is_none() {
        config.apply_debug_overrides();
        // They may replace the URL, by whatever stands there.
        check_server(&config.cluster_url).map_err(ConnectError::Url)?;
    }
    Ok(showable(config))
}

/// The cluster of the pod that this process runs in, and nothing else.
pub fn load_pod_config() -> Result<Config, ConnectError> {
    from_pod(pod_config().map_err(ConnectError::NotInPod)?).map(showable)
}

fn from_pod(mut config: Config) -> Result<Config, ConnectError> {
    settle_pod_authorities(&mut config);
    config.proxy_url = choose_proxy(&config.cluster_url, None, |name| std::env::var(name).ok())?;
    Ok(config)
}

/// Reads the CA data of the service account. As client-go does, a pod goes on with the public CAs where there is none.
fn settle_pod_authorities(config: &mut Config) {
    let Some(file) = &config.root_cert_file else { return };
    match read_authorities(file) {
        Ok(found) => config.root_cert = Some(found.iter().map(|certificate| certificate.to_vec()).collect()),
        Err(problem) => {
            warn!(path = %file.display(), %problem, "no CA data of the service account: trusting the public CAs until there is");
        }
    }
}

async fn from_kubeconfig(mut found: Found) -> Result<Config, ConnectError> {
    let authorities = found.cluster().map(settle_authorities).transpose()?.flatten();
    let mut config = found.config().await?;
    config.root_cert_file = authorities;
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

/// Leaves what is a certificate in the CA data, and returns the file that it is from. What stands in the kubeconfig itself
/// goes before a file.
fn settle_authorities(cluster: &mut Cluster) -> Result<Option<PathBuf>, ConnectError> {
    let data = cluster.certificate_authority_data.take();
    let file = cluster.certificate_authority.take();
    if cluster.insecure_skip_tls_verify == Some(true) {
        return Ok(None);
    }
    let Some(source) = Source::new(AUTHORITY, data.as_deref(), file.as_deref())? else {
        return Ok(None);
    };
    let text = source.read(AUTHORITY)?;
    let (file, from) = match source {
        Source::File(path) => (Some(path), AUTHORITY),
        Source::Data(_) => (None, "certificate-authority-data"),
    };
    let found = pem::authorities(&text).map_err(|problem| ConnectError::Pem(from, problem))?;
    let text = base64::engine::general_purpose::STANDARD.encode(pem_of(&found));
    cluster.certificate_authority_data = Some(text);
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_without_ca_data_trusts_the_public_authorities() {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let params = rcgen::CertificateParams::new(vec!["api".to_owned()]).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.crt");
        for (text, wanted) in [
            (None, None),
            (Some("nothing".to_owned()), None),
            (Some(certificate.pem()), Some(vec![certificate.der().to_vec()])),
        ] {
            if let Some(text) = &text {
                std::fs::write(&file, text).unwrap();
            }
            let mut config = Config::new(Uri::from_static("https://api"));
            config.root_cert_file = Some(file.clone());
            settle_pod_authorities(&mut config);
            assert!(config.root_cert_file.is_some(), "what comes later is read: {text:?}");
            assert_eq!(config.root_cert, wanted, "{text:?}");
        }
    }

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
