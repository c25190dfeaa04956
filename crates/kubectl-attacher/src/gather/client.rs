//! The client, as kubectl would make it.

use csi_attacher_kubeconfig::{PodError, TokenFile, find, pod_config};
use http::Request;
use http::header::AUTHORIZATION;
use kube::client::{Body, ClientBuilder};
use kube::config::AuthInfo;
use kube::{Client, Config};
use std::fmt::Display;
use std::time::Duration;
use tower::util::MapRequestLayer;

use super::reader::words;
use crate::cli::GlobalOptions;
use crate::error::{PluginError, Result};

/// Connects with kubectl's own flags, which it hands a plugin as they are; the second value is the namespace of objects that are named
/// without one.
pub async fn connect(options: &GlobalOptions) -> Result<(Client, String)> {
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    let found = find(options.kubeconfig.as_deref(), options.context.as_deref()).map_err(unusable)?;
    let mut config = match found {
        Some(found) => found.config().await.map_err(unusable)?,
        // No file names a cluster: there may be the service account of a pod.
        None => in_pod().map_err(|error| {
            let why = format!("no file names a context, and there is no service account of a pod ({error})");
            PluginError::Config(why)
        })?,
    };
    // Longer than the pause between two bookmarks: a watch of a quiet cluster is silent for a minute.
    config.read_timeout = Some(Duration::from_mins(2));
    config.connect_timeout = Some(Duration::from_secs(10));
    impersonate(&mut config.auth_info, options);
    let namespace = options.namespace.as_ref().unwrap_or(&config.default_namespace).clone();
    Ok((client(config)?, namespace))
}

/// The cluster of the pod; the public CAs are trusted where it has no CA data.
fn in_pod() -> std::result::Result<Config, PodError> {
    let mut config = pod_config()?;
    match &config.root_cert_file {
        // kube reads it itself, and looks for the CAs of the machine without this.
        Some(file) if file.exists() => config.root_cert = Some(Vec::new()),
        _ => config.root_cert_file = None,
    }
    Ok(config)
}

#[allow(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn unusable(error: impl Display) -> PluginError {
    PluginError::Config(error.to_string())
}

/// As with kubectl, what a flag names takes the place of what the kubeconfig has; kube sends it.
fn impersonate(auth: &mut AuthInfo, options: &GlobalOptions) {
    if let Some(user) = options.impersonate.as_ref().filter(|user| !user.is_empty()) {
        auth.impersonate = Some(user.clone());
    }
    if !options.groups.is_empty() {
        auth.impersonate_groups = Some(options.groups.clone());
    }
}

fn client(mut config: Config) -> Result<Client> {
    let token = config.auth_info.token_file.take();
    let token = token.map(|path| TokenFile::open(&path)).transpose().map_err(unusable)?;
    if token.is_some() {
        // The token of a file goes before that of a plugin.
        config.auth_info.exec = None;
    }
    let builder = ClientBuilder::try_from(config).map_err(|error| unusable(words(&error)))?;
    let Some(token) = token else {
        return Ok(builder.build());
    };
    // kube would send what stands around the token as well.
    let authorize = MapRequestLayer::new(move |mut request: Request<Body>| {
        if let Some(header) = token.header() {
            request.headers_mut().insert(AUTHORIZATION, header);
        }
        request
    });
    Ok(builder.with_layer(&authorize).build())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::net::TcpListener;
    use std::thread::{self, JoinHandle};

    use super::*;

    /// A server of one request, and the head of that request.
    fn server() -> (String, JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let head = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let lines = BufReader::new(stream.try_clone().unwrap()).lines().map(Result::unwrap);
            let head = lines.take_while(|line| !line.is_empty()).collect();
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
            stream.write_all(answer).unwrap();
            head
        });
        (url, head)
    }

    /// What a request says about who sends it: with this user in the kubeconfig, and these flags.
    async fn sent(user: &Value, options: GlobalOptions) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let (url, head) = server();
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{ "name": "c", "context": { "cluster": "k", "user": "u" } }],
            // CA data without a certificate: the machine may have none either, without which no client is made.
            "clusters": [{ "name": "k", "cluster": { "server": url, "certificate-authority-data": "Cg==" } }],
            "users": [{ "name": "u", "user": user }],
        });
        let file = folder.path().join("kubeconfig");
        std::fs::write(&file, kubeconfig.to_string()).unwrap();
        std::fs::write(folder.path().join("token"), " renewed\n").unwrap();
        let options = GlobalOptions {
            kubeconfig: Some(file),
            ..options
        };
        let (client, _) = connect(&options).await.unwrap();
        let request = Request::get("/version").body(Vec::new()).unwrap();
        client.request_text(request).await.unwrap();
        let mut lines = head.join().unwrap();
        lines.retain(|line| line.starts_with("impersonate-") || line.starts_with("authorization"));
        lines.sort();
        lines
    }

    fn acting_as(user: Option<&str>, groups: &[&str]) -> GlobalOptions {
        GlobalOptions {
            impersonate: user.map(str::to_owned),
            groups: groups.iter().map(|group| (*group).to_owned()).collect(),
            ..GlobalOptions::default()
        }
    }

    #[tokio::test]
    async fn a_flag_takes_the_place_of_what_the_kubeconfig_impersonates_and_each_is_sent_once() {
        let admin =
            || json!({ "as": "admin", "as-groups": ["a"], "as-uid": "7", "as-user-extra": { "scopes": ["x"] } });
        let (extra, uid) = ("impersonate-extra-scopes: x", "impersonate-uid: 7");
        for (user, options, wanted) in [
            (
                admin(),
                acting_as(None, &[]),
                vec![extra, "impersonate-group: a", uid, "impersonate-user: admin"],
            ),
            (
                admin(),
                acting_as(Some("jane"), &[]),
                vec![extra, "impersonate-group: a", uid, "impersonate-user: jane"],
            ),
            (
                admin(),
                acting_as(None, &["b", "c"]),
                vec![
                    extra,
                    "impersonate-group: b",
                    "impersonate-group: c",
                    uid,
                    "impersonate-user: admin",
                ],
            ),
            (
                json!({}),
                acting_as(Some("jane"), &["b"]),
                vec!["impersonate-group: b", "impersonate-user: jane"],
            ),
            (json!({ "as": "" }), acting_as(Some(""), &[]), vec![]),
        ] {
            assert_eq!(sent(&user, options).await, wanted, "{user}");
        }
    }

    #[tokio::test]
    async fn credentials_are_read_as_by_kubectl() {
        for (user, wanted) in [
            (json!({ "token": "t" }), "authorization: Bearer t"),
            // What stands around the token is no part of it.
            (json!({ "tokenFile": "token" }), "authorization: Bearer renewed"),
            (
                json!({ "token": "of-the-day", "tokenFile": "token" }),
                "authorization: Bearer renewed",
            ),
            (json!({ "token": "t", "tokenFile": "" }), "authorization: Bearer t"),
            (
                json!({ "token": "t", "client-certificate-data": "", "client-key-data": "" }),
                "authorization: Bearer t",
            ),
        ] {
            assert_eq!(sent(&user, GlobalOptions::default()).await, [wanted], "{user}");
        }
    }

    #[tokio::test]
    async fn a_kubeconfig_that_cannot_be_used_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let options = GlobalOptions {
            kubeconfig: Some(folder.path().join("none")),
            ..GlobalOptions::default()
        };
        let error = connect(&options).await.err().unwrap().to_string();
        assert!(error.contains("failed to read kubeconfig"), "{error}");
    }

    /// `csi_attacher_kubeconfig` has the forms of it.
    #[tokio::test]
    async fn no_error_quotes_credentials() {
        let exec = json!({ "exec": {
            "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never",
            "command": "sh", "args": ["-c", "echo 'token: @s3cret'"],
        } });
        for (user, words) in [
            (exec, "the command that gives credentials printed none that can be read"),
            (json!({ "client-key-data": "s3cret%" }), "client-key-data is not base64"),
            (json!(["s3cret"]), "failed to parse kubeconfig YAML"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let kubeconfig = json!({
                "apiVersion": "v1", "kind": "Config", "current-context": "c",
                "contexts": [{ "name": "c", "context": { "cluster": "k", "user": "u" } }],
                "clusters": [{ "name": "k", "cluster": {
                    "server": "http://api", "certificate-authority-data": "Cg==",
                } }],
                "users": [{ "name": "u", "user": user }],
            });
            let file = folder.path().join("kubeconfig");
            std::fs::write(&file, kubeconfig.to_string()).unwrap();
            let options = GlobalOptions {
                kubeconfig: Some(file),
                ..GlobalOptions::default()
            };
            let error = connect(&options).await.err().unwrap().to_string();
            assert!(error.contains(words) && !error.contains("s3cret"), "{error}");
        }
    }
}
