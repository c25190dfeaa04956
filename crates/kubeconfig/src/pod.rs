//! The cluster of the pod that this process runs in, as client-go finds it (`InClusterConfig`). kube asks for more: for files
//! that a mount of one's own may lack.

use std::env;
use std::path::{Path, PathBuf};

use http::Uri;
use kube::config::Config;
use thiserror::Error;

use crate::server::{self, ServerError};
use crate::token;

/// Where the kubelet mounts what belongs to the service account.
const FOLDER: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const HOST: &str = "KUBERNETES_SERVICE_HOST";
const PORT: &str = "KUBERNETES_SERVICE_PORT";
/// Goes before the file of the service account, as for kubectl (`inClusterClientConfig.Namespace` of client-go).
const NAMESPACE: &str = "POD_NAMESPACE";

/// Why the cluster of a pod is not known.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages say what the variants are")]
pub enum PodError {
    #[error("{0} is not set")]
    Unset(&'static str),
    #[error("the address of KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT {0}")]
    Address(#[source] ServerError),
    #[error("{path}: {1}", path = .0.display())]
    Token(PathBuf, #[source] std::io::Error),
}

/// The cluster of the pod. `root_cert_file` is where its CA data belongs, which is not read here: the file may be missing, and
/// what is trusted then is up to the caller.
pub fn pod_config() -> Result<Config, PodError> {
    config_of(|name| env::var(name).ok(), Path::new(FOLDER))
}

fn config_of(variable: impl Fn(&str) -> Option<String>, folder: &Path) -> Result<Config, PodError> {
    let set = |name: &'static str| {
        let value = variable(name).filter(|value| !value.is_empty());
        value.ok_or(PodError::Unset(name))
    };
    let url = url(&set(HOST)?, &set(PORT)?).map_err(PodError::Address)?;
    let token = folder.join("token");
    // What cannot be read fails at the start, and not as a request without credentials.
    token::read(&token).map_err(|source| PodError::Token(token.clone(), source))?;
    let mut config = Config::new(url);
    config.auth_info.token_file = Some(token.display().to_string());
    config.root_cert_file = Some(folder.join("ca.crt"));
    if let Some(namespace) = namespace_of(variable, folder) {
        config.default_namespace = namespace;
    }
    Ok(config)
}

/// The namespace of the pod that this process runs in; none if it is in none.
pub fn pod_namespace() -> Option<String> {
    namespace_of(|name| env::var(name).ok(), Path::new(FOLDER))
}

fn namespace_of(variable: impl Fn(&str) -> Option<String>, folder: &Path) -> Option<String> {
    let filled = |text: String| Some(text.trim().to_owned()).filter(|name| !name.is_empty());
    let file = || std::fs::read_to_string(folder.join("namespace")).ok();
    variable(NAMESPACE).and_then(filled).or_else(|| file().and_then(filled))
}

fn url(host: &str, port: &str) -> Result<Uri, ServerError> {
    let is_ipv6 = host.contains(':');
    let host = if is_ipv6 { format!("[{host}]") } else { host.to_owned() };
    server::parse(&format!("https://{host}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variable(name: &str, host: &str, port: &str) -> Option<String> {
        match name {
            HOST => Some(host.to_owned()),
            PORT => Some(port.to_owned()),
            _ => None,
        }
    }

    #[test]
    fn the_variable_of_the_namespace_goes_before_the_file() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("token"), "t").unwrap();
        std::fs::write(folder.path().join("namespace"), "storage").unwrap();
        for (value, wanted) in [("shop", "shop"), ("", "storage"), (" ", "storage")] {
            let variable = |name: &str| match name {
                NAMESPACE => Some(value.to_owned()),
                _ => variable(name, "10.96.0.1", "443"),
            };
            let config = config_of(variable, folder.path()).unwrap();
            assert_eq!(config.default_namespace, wanted, "{value:?}");
        }
    }

    /// What is found with these variables and these files.
    fn found(host: &str, port: &str, files: &[(&str, &str)]) -> Result<Config, String> {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let config = config_of(|name| variable(name, host, port), folder.path()).map_err(|error| error.to_string())?;
        let token = folder.path().join("token").display().to_string();
        assert_eq!(config.auth_info.token_file, Some(token));
        assert_eq!(config.root_cert_file, Some(folder.path().join("ca.crt")));
        Ok(config)
    }

    #[test]
    fn variables_and_a_token_are_enough() {
        let token = ("token", "t");
        for (host, port, files, url, namespace) in [
            ("10.96.0.1", "443", vec![token], "https://10.96.0.1:443/", "default"),
            ("fd00::1", "6443", vec![token], "https://[fd00::1]:6443/", "default"),
            (
                "api.example.com",
                "6443",
                vec![token, ("namespace", "storage\n")],
                "https://api.example.com:6443/",
                "storage",
            ),
            (
                "10.96.0.1",
                "443",
                vec![token, ("namespace", " \n")],
                "https://10.96.0.1:443/",
                "default",
            ),
        ] {
            let config = found(host, port, &files).unwrap();
            assert_eq!(config.cluster_url.to_string(), url, "{files:?}");
            assert_eq!(config.default_namespace, namespace, "{files:?}");
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let token = ("token", "t");
        for (host, port, files, words) in [
            ("", "443", vec![token], "KUBERNETES_SERVICE_HOST is not set"),
            ("10.96.0.1", "", vec![token], "KUBERNETES_SERVICE_PORT is not set"),
            ("10.96.0.1", "https", vec![token], "is not the URL of an API server"),
            ("a b", "443", vec![token], "is not the URL of an API server"),
            ("10.96.0.1", "443", vec![("namespace", "s")], "/token: No such file"),
            ("10.96.0.1", "443", vec![("token", "\n")], "/token: the file is empty"),
        ] {
            let error = found(host, port, &files).err().unwrap();
            assert!(error.contains(words), "{files:?}: {error}");
        }
    }
}
