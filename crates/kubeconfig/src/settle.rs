//! Values that kube reads otherwise than client-go: those that are empty, those that have ends of lines, an IP address in brackets, and
//! which of two tokens counts.

use std::net::IpAddr;

use kube::config::{AuthInfo, Cluster, Kubeconfig};
use secrecy::{ExposeSecret as _, SecretString};

/// Where an `auth-provider` has its tokens.
pub(crate) const PROVIDER_TOKENS: [&str; 2] = ["id-token", "access-token"];

/// Leaves the values that client-go reads.
pub(crate) fn settle(kubeconfig: &mut Kubeconfig) {
    let Kubeconfig {
        current_context,
        kind,
        api_version,
        ..
    } = kubeconfig;
    for value in [current_context, kind, api_version] {
        *value = filled(value.take());
    }
    let contexts = kubeconfig.contexts.iter_mut();
    for context in contexts.filter_map(|named| named.context.as_mut()) {
        context.namespace = filled(context.namespace.take());
    }
    let clusters = kubeconfig.clusters.iter_mut();
    clusters
        .filter_map(|named| named.cluster.as_mut())
        .for_each(settle_cluster);
    let users = kubeconfig.auth_infos.iter_mut();
    users.filter_map(|named| named.auth_info.as_mut()).for_each(settle_user);
}

fn settle_cluster(cluster: &mut Cluster) {
    cluster.certificate_authority = file(cluster.certificate_authority.take());
    cluster.certificate_authority_data = base64(cluster.certificate_authority_data.take());
    for value in [
        &mut cluster.server,
        &mut cluster.proxy_url,
        &mut cluster.tls_server_name,
    ] {
        *value = filled(value.take());
    }
    cluster.tls_server_name = cluster.tls_server_name.take().map(without_brackets);
}

fn settle_user(user: &mut AuthInfo) {
    for value in [&mut user.client_certificate, &mut user.client_key, &mut user.token_file] {
        *value = file(value.take());
    }
    user.client_certificate_data = base64(user.client_certificate_data.take());
    let key = user.client_key_data.take();
    let key = base64(key.map(|data| data.expose_secret().to_owned()));
    user.client_key_data = key.map(SecretString::from);
    for value in [&mut user.impersonate, &mut user.impersonate_uid] {
        *value = filled(value.take());
    }
    // The user name alone says whether there is one; kube takes both or none.
    user.username = filled(user.username.take());
    let has_name = user.username.is_some();
    user.password = has_name.then(|| user.password.take().unwrap_or_default());
    let token = user.token.take();
    user.token = token
        .and_then(|token| trimmed(token.expose_secret()))
        .map(SecretString::from);
    if let Some(provider) = &mut user.auth_provider {
        for name in PROVIDER_TOKENS {
            let token = provider.config.remove(name);
            let token = token.and_then(|token| trimmed(&token));
            provider.config.extend(token.map(|token| (name.to_owned(), token)));
        }
    }
    // kube would take the one that stands in the kubeconfig, for ever; the file is renewed, and read again.
    if user.token_file.is_some() {
        user.token = None;
    }
}

/// A token without what stands around it, as the end of a line in a block of YAML: no header takes that.
fn trimmed(token: &str) -> Option<String> {
    filled(Some(token.trim().to_owned()))
}

/// An empty value is none.
fn filled(value: Option<String>) -> Option<String> {
    value.filter(|value| !value.is_empty())
}

/// Go takes an IP address in brackets for the name of a server (`x509.Certificate.VerifyHostname`), and kube does not. No other name has any.
fn without_brackets(name: String) -> String {
    let inner = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    match inner.filter(|inner| inner.parse::<IpAddr>().is_ok()) {
        Some(address) => address.to_owned(),
        None => name,
    }
}

/// The name of a file. kube puts the folder of the kubeconfig before an empty one.
fn file(name: Option<String>) -> Option<String> {
    filled(name).filter(|name| !name.ends_with('/'))
}

/// Go passes over ends of lines in base64.
fn base64(data: Option<String>) -> Option<String> {
    filled(data.map(|data| data.replace(['\r', '\n'], "")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exposed(value: Option<&SecretString>) -> Option<&str> {
        value.map(SecretString::expose_secret)
    }

    fn settled(user: &serde_json::Value) -> AuthInfo {
        let mut user: AuthInfo = serde_json::from_value(user.clone()).unwrap();
        settle_user(&mut user);
        user
    }

    #[test]
    fn empty_credentials_are_none_and_the_file_of_a_token_goes_first() {
        let user = settled(&serde_json::json!({
            "client-certificate-data": "", "client-certificate": "/tls.crt",
            "client-key-data": "\n", "client-key": "/tls.key",
            "token": "of-the-day", "tokenFile": "/token", "as": "", "as-uid": "",
        }));
        assert_eq!(user.client_certificate_data, None);
        assert_eq!(user.client_certificate.as_deref(), Some("/tls.crt"));
        assert_eq!(exposed(user.client_key_data.as_ref()), None);
        assert_eq!(user.client_key.as_deref(), Some("/tls.key"));
        assert_eq!(exposed(user.token.as_ref()), None);
        assert_eq!(user.token_file.as_deref(), Some("/token"));
        assert_eq!((user.impersonate, user.impersonate_uid), (None, None));

        // As kube leaves empty names of files behind.
        let user = settled(&serde_json::json!({
            "client-certificate": "/folder/", "client-key": "", "client-key-data": "YQ\n==\r\n",
            "token": "of-the-day", "tokenFile": "/folder/",
        }));
        assert_eq!((user.client_certificate, user.client_key), (None, None));
        assert_eq!(exposed(user.client_key_data.as_ref()), Some("YQ=="));
        assert_eq!(exposed(user.token.as_ref()), Some("of-the-day"));
        assert_eq!(user.token_file, None);
        for (token, wanted) in [("", None), (" \n", None), ("a.b-c\r\n", Some("a.b-c"))] {
            let user = settled(&serde_json::json!({
                "token": token, "auth-provider": { "name": "oidc", "config": { "id-token": token } },
            }));
            assert_eq!(exposed(user.token.as_ref()), wanted, "{token:?}");
            let provider = user.auth_provider.unwrap();
            assert_eq!(provider.config.get("id-token").map(String::as_str), wanted, "{token:?}");
        }
    }

    #[test]
    fn there_is_a_password_where_there_is_a_user_name() {
        use serde_json::json;

        for (user, wanted) in [
            (json!({ "username": "", "password": "" }), None),
            (json!({ "username": "", "password": "p" }), None),
            (json!({ "password": "p" }), None),
            (json!({ "username": "me", "password": "p" }), Some(("me", "p"))),
            (json!({ "username": "me", "password": "" }), Some(("me", ""))),
            (json!({ "username": "me" }), Some(("me", ""))),
        ] {
            let found = settled(&user);
            let pair = (found.username.as_deref(), exposed(found.password.as_ref()));
            assert_eq!(pair, wanted.unzip(), "{user}");
        }
    }

    #[test]
    fn the_name_of_a_server_may_be_an_ip_address_in_brackets() {
        for (name, wanted) in [
            ("[fd00::1]", "fd00::1"),
            ("[10.0.0.1]", "10.0.0.1"),
            ("fd00::1", "fd00::1"),
            ("api.example.com", "api.example.com"),
            ("[api]", "[api]"),
            ("[fd00::1", "[fd00::1"),
            ("[[fd00::1]]", "[[fd00::1]]"),
            ("[]", "[]"),
        ] {
            let mut cluster: Cluster = serde_json::from_value(serde_json::json!({ "tls-server-name": name })).unwrap();
            settle_cluster(&mut cluster);
            assert_eq!(cluster.tls_server_name.as_deref(), Some(wanted));
        }
    }

    #[test]
    fn empty_values_of_clusters_and_contexts_are_none() {
        let empty = serde_json::json!({
            "apiVersion": "", "kind": "", "current-context": "",
            "contexts": [{ "name": "c", "context": { "cluster": "k", "user": "u", "namespace": "" } }],
            "clusters": [{ "name": "k", "cluster": {
                "server": "", "proxy-url": "", "tls-server-name": "", "certificate-authority": "",
                "certificate-authority-data": "YQ\n==",
            } }],
        });
        let mut kubeconfig: Kubeconfig = serde_json::from_value(empty).unwrap();
        settle(&mut kubeconfig);
        assert_eq!(kubeconfig.current_context, None);
        assert_eq!((kubeconfig.kind, kubeconfig.api_version), (None, None));
        assert_eq!(kubeconfig.contexts[0].context.as_ref().unwrap().namespace, None);
        let cluster = kubeconfig.clusters[0].cluster.as_ref().unwrap();
        let names = [
            &cluster.server,
            &cluster.proxy_url,
            &cluster.tls_server_name,
            &cluster.certificate_authority,
        ];
        assert!(names.iter().all(|value| value.is_none()), "{names:?}");
        assert_eq!(cluster.certificate_authority_data.as_deref(), Some("YQ=="));
    }
}
