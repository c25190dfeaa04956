//! What an error of a kubeconfig prints, and what not.

use std::error::Error as StdError;

use kube::Client;
use kube::config::Config;
use serde_json::{Value, json};

use crate::find::find;
use crate::load_error::{LoadError, ValueError};

const CANARY: &str = "qZxVkJwYbH";
/// The canary between the words BEGIN and END of a certificate.
const CANARY_AS_PEM: &str = "LS0tLS1CRUdJTiBxWnhWa0p3WWJILS0tLS0KQUFBQQotLS0tLUVORCBDRVJUSUZJQ0FURS0tLS0tCg==";

/// All that can be printed of an error and its causes, without any part of the canary in it.
fn printed(error: &(dyn StdError + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| (*error).source());
    let texts: Vec<String> = causes.map(|error| format!("{error} {error:?} {error:#?}")).collect();
    let text = texts.join("\n");
    for at in 0..CANARY.len() - 3 {
        let part = &CANARY[at..at + 4];
        assert!(!text.contains(part), "{part}: {text}");
    }
    text
}

/// The configuration that this text is, as YAML.
async fn config(text: &str) -> Result<Config, LoadError> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kubeconfig");
    std::fs::write(&file, text).unwrap();
    find(Some(&file), None)?.unwrap().config().await
}

/// A kubeconfig with these fields of the user, which begin in line 13.
fn with_lines(user: &str) -> String {
    let lines = [
        "apiVersion: v1",
        "kind: Config",
        "current-context: c",
        "contexts:",
        "- name: c",
        "  context: {cluster: k, user: u}",
        "clusters:",
        "- name: k",
        "  cluster: {server: 'https://api'}",
        "users:",
        "- name: u",
        "  user:",
        user,
        "",
    ];
    lines.join("\n")
}

fn with_fields(cluster: &Value, user: &Value) -> String {
    let mut cluster = cluster.clone();
    cluster["server"] = json!("https://api");
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "contexts": [{ "name": "c", "context": { "cluster": "k", "user": "u" } }],
        "clusters": [{ "name": "k", "cluster": cluster }],
        "users": [{ "name": "u", "user": user }],
    })
    .to_string()
}

#[tokio::test]
async fn a_kubeconfig_that_cannot_be_parsed_is_not_quoted() {
    for user in [
        format!("    password: {CANARY}: x"),
        format!("    password:\n      {CANARY}: x"),
        format!("    token: @{CANARY}"),
        format!("    password: *{CANARY}"),
        format!("    token: {CANARY}\n   username: me"),
        format!("    token: {CANARY}\n    token: {CANARY}"),
        format!("    - {CANARY}"),
        format!("    token: [{CANARY}]"),
        format!("    token: \"{CANARY}"),
        format!("    exec: {CANARY}"),
    ] {
        let error = config(&with_lines(&user)).await.err().unwrap();
        let text = printed(&error);
        assert!(
            text.contains("/kubeconfig: failed to parse kubeconfig YAML"),
            "{user}: {text}"
        );
        assert!(error.source().is_none(), "{user}");
    }
    let error = config(&with_lines("    token: @abc")).await.err().unwrap();
    assert!(error.to_string().contains(" YAML at line 13, column "), "{error}");
}

#[tokio::test]
async fn data_that_cannot_be_used_is_not_quoted() {
    for (data, words) in [
        (format!("{CANARY}%"), "certificate-authority-data is not base64"),
        (CANARY_AS_PEM.to_owned(), "certificate-authority has no certificates"),
    ] {
        let text = with_fields(&json!({ "certificate-authority-data": data }), &json!({}));
        let error = config(&text).await.err().unwrap();
        assert!(printed(&error).contains(words), "{error}");
    }
}

/// kube panics where it makes a header of such a token.
#[tokio::test]
async fn a_token_that_no_header_takes_is_not_quoted() {
    let token = format!("{CANARY}\n{CANARY}");
    for (user, name) in [
        (json!({ "token": token }), "token of the kubeconfig"),
        (
            json!({ "auth-provider": { "name": "oidc", "config": { "id-token": token } } }),
            "id-token of the kubeconfig",
        ),
    ] {
        let error = config(&with_fields(&json!({}), &user)).await.err().unwrap();
        let said = format!("{name}: it has characters that no token has");
        assert!(printed(&error).contains(&said), "{error}");
    }
}

/// What kube says only when it makes a client.
#[tokio::test]
async fn credentials_that_cannot_be_used_are_not_quoted() {
    let exec = |script: String| {
        json!({ "exec": {
            "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never",
            "command": "sh", "args": ["-c", script], "env": [{ "name": "SECRET", "value": CANARY }],
        } })
    };
    let (none, key) = (json!({}), format!("{CANARY}%"));
    for (cluster, user, words) in [
        (
            none.clone(),
            json!({ "client-key-data": key }),
            "client-key-data is not base64",
        ),
        (
            none.clone(),
            json!({ "client-certificate-data": key }),
            "client-certificate-data is not base64",
        ),
        (
            none.clone(),
            exec(format!("echo {CANARY}; echo {CANARY} >&2; exit 3")),
            "ended with exit status: 3",
        ),
        (
            none,
            exec(format!("echo 'token: @{CANARY}'")),
            "printed none that can be read",
        ),
        (
            json!({ "proxy-url": format!("http://me:{CANARY}@proxy") }),
            json!({}),
            "list the host of the API server in NO_PROXY",
        ),
    ] {
        let mut cluster = cluster;
        // CA data without a certificate: the machine may have none either.
        cluster["certificate-authority-data"] = json!("Cg==");
        let config = config(&with_fields(&cluster, &user)).await.unwrap();
        let error = Client::try_from(config).err().unwrap();
        let value = ValueError::of(&error).unwrap();
        assert!(printed(&value).contains(words), "{value}");
    }
}
