//! Which kubeconfig counts.

use std::collections::HashSet;
use std::env;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use kube::config::{AuthInfo, Cluster, Config, KubeConfigOptions, Kubeconfig, KubeconfigError};
use secrecy::ExposeSecret as _;
use tracing::warn;

use crate::load_error::LoadError;
use crate::proxy::choose_proxy;
use crate::server;
use crate::settle::{PROVIDER_TOKENS, settle};
use crate::token::{TokenFile, check_token};

/// A kubeconfig whose values are those that client-go reads.
pub struct Found {
    kubeconfig: Kubeconfig,
    /// The context that is asked for in place of the current one.
    context: Option<String>,
    /// The files, for errors.
    files: String,
}

/// The kubeconfig of this file; without one, what the files of `KUBECONFIG`, or else the one of the home directory, have
/// together. None if these say nothing: no context is asked for, and none is the current one. An empty name is none.
pub fn find(file: Option<&Path>, context: Option<&str>) -> Result<Option<Found>, LoadError> {
    let context = context.filter(|name| !name.is_empty());
    let Some(file) = file.filter(|file| !file.as_os_str().is_empty()) else {
        let variable = env::var_os("KUBECONFIG");
        return among(&listed(variable.as_deref(), env::home_dir().as_deref()), context);
    };
    Ok(Some(Found {
        kubeconfig: read(file)?,
        context: context.map(str::to_owned),
        files: file.display().to_string(),
    }))
}

/// The files of the variable; the one of the home directory if it is not set or empty.
fn listed(variable: Option<&OsStr>, home: Option<&Path>) -> Vec<PathBuf> {
    match variable.filter(|list| !list.is_empty()) {
        Some(list) => env::split_paths(list)
            .filter(|file| !file.as_os_str().is_empty())
            .collect(),
        None => home.map(|home| home.join(".kube/config")).into_iter().collect(),
    }
}

/// What these files have together. The first one that has a value counts.
fn among(files: &[PathBuf], context: Option<&str>) -> Result<Option<Found>, LoadError> {
    let mut merged = Kubeconfig::default();
    for file in files {
        let next = match read(file) {
            // The list may name files of clusters that are not there now.
            Err(LoadError::Kubeconfig(_, KubeconfigError::ReadConfig(error, _)))
                if error.kind() == ErrorKind::NotFound =>
            {
                continue;
            }
            next => next?,
        };
        merged = merged.merge(next).map_err(|source| unusable(file, source))?;
    }
    if context.is_none() && merged.current_context.is_none() {
        return Ok(None);
    }
    let names: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    Ok(Some(Found {
        kubeconfig: merged,
        context: context.map(str::to_owned),
        files: names.join(":"),
    }))
}

fn read(file: &Path) -> Result<Kubeconfig, LoadError> {
    let mut kubeconfig = Kubeconfig::read_from(file).map_err(|source| unusable(file, source))?;
    if let Some((field, name)) = twice(&kubeconfig) {
        return Err(LoadError::Twice(file.display().to_string(), field, name.to_owned()));
    }
    // Before it is merged with others: an empty value is none, so that theirs counts.
    settle(&mut kubeconfig);
    Ok(kubeconfig)
}

/// The list and the name of what a file has twice. Which of the two counts would be a guess at a cluster, or at a user.
fn twice(kubeconfig: &Kubeconfig) -> Option<(&'static str, &str)> {
    fn first<'a>(names: impl Iterator<Item = &'a String>) -> Option<&'a str> {
        let mut seen = HashSet::new();
        names.map(String::as_str).find(|name| !seen.insert(*name))
    }
    let Kubeconfig {
        clusters,
        auth_infos,
        contexts,
        ..
    } = kubeconfig;
    let lists = [
        ("clusters", first(clusters.iter().map(|named| &named.name))),
        ("users", first(auth_infos.iter().map(|named| &named.name))),
        ("contexts", first(contexts.iter().map(|named| &named.name))),
    ];
    lists.into_iter().find_map(|(field, name)| Some((field, name?)))
}

fn unusable(file: &Path, source: KubeconfigError) -> LoadError {
    LoadError::new(file.display().to_string(), source)
}

impl Found {
    /// The cluster of the context.
    pub fn cluster(&mut self) -> Option<&mut Cluster> {
        let Kubeconfig {
            current_context,
            contexts,
            clusters,
            ..
        } = &mut self.kubeconfig;
        let wanted = self.context.as_ref().or(current_context.as_ref())?;
        let context = contexts.iter().find(|context| context.name == *wanted)?;
        let name = &context.context.as_ref()?.cluster;
        let cluster = clusters.iter_mut().find(|cluster| cluster.name == *name)?;
        cluster.cluster.as_mut()
    }

    /// The configuration of the context, with the proxy on the way to its server.
    pub async fn config(self) -> Result<Config, LoadError> {
        self.config_in(|name| env::var(name).ok()).await
    }

    /// The same with the variables of an environment.
    async fn config_in(mut self, variable: impl Fn(&str) -> Option<String>) -> Result<Config, LoadError> {
        let url = self.cluster().and_then(|cluster| cluster.server.as_mut());
        let is_guessed = match url.map(server::complete).transpose() {
            Ok(is_added) => is_added.unwrap_or_default(),
            Err(source) => return Err(LoadError::Server(self.files, source)),
        };
        // kube would take that of the environment, for whatever server.
        let chosen_below = "http://chosen-below".to_owned();
        let proxy = self
            .cluster()
            .and_then(|cluster| cluster.proxy_url.replace(chosen_below));
        let options = KubeConfigOptions {
            context: self.context,
            ..KubeConfigOptions::default()
        };
        let config = Config::from_custom_kubeconfig(self.kubeconfig, &options).await;
        let mut config = config.map_err(|source| LoadError::new(self.files, source))?;
        if let Some(cluster) = config.auth_info.exec.as_mut().and_then(|exec| exec.cluster.as_mut()) {
            cluster.proxy_url.clone_from(&proxy);
        }
        config.proxy_url = choose_proxy(&config.cluster_url, proxy.as_deref(), variable)?;
        if is_guessed {
            warn!("server of the kubeconfig has no scheme: taking http without credentials; put https:// before it");
            config.auth_info = without_credentials(config.auth_info);
        }
        // What cannot be used fails at the start, and not as a request without credentials, or as a panic of kube.
        if let Some(path) = config.auth_info.token_file.as_deref() {
            TokenFile::open(path)?;
        }
        for (name, token) in tokens(&config.auth_info) {
            check_token(token).map_err(|source| LoadError::Token(name, source))?;
        }
        Ok(config)
    }
}

/// The tokens that stand in the kubeconfig, by where they stand.
fn tokens(user: &AuthInfo) -> impl Iterator<Item = (&'static str, &str)> {
    let token = user.token.as_ref().map(|token| ("token", token.expose_secret()));
    let of_provider = user.auth_provider.iter().flat_map(|provider| {
        let named = PROVIDER_TOKENS.into_iter();
        named.filter_map(|name| Some((name, provider.config.get(name)?.as_str())))
    });
    token.into_iter().chain(of_provider)
}

/// As whom the requests are to count. client-go sends no credentials to whom TLS was not asked for.
fn without_credentials(user: AuthInfo) -> AuthInfo {
    AuthInfo {
        impersonate: user.impersonate,
        impersonate_uid: user.impersonate_uid,
        impersonate_groups: user.impersonate_groups,
        impersonate_user_extra: user.impersonate_user_extra,
        ..AuthInfo::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A kubeconfig that has one context, with the cluster http://`name`.
    fn text(current_context: &str, name: &str) -> String {
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": current_context,
            "contexts": [{ "name": name, "context": { "cluster": name, "user": name } }],
            "clusters": [{ "name": name, "cluster": { "server": format!("http://{name}") } }],
            "users": [{ "name": name, "user": {} }],
        })
        .to_string()
    }

    /// The cluster of these files, of which some are missing, or the error.
    async fn chosen(files: &[Option<String>], context: Option<&str>) -> Result<Option<String>, String> {
        let folder = tempfile::tempdir().unwrap();
        let paths: Vec<PathBuf> = (0..files.len())
            .map(|index| folder.path().join(index.to_string()))
            .collect();
        for (path, text) in paths.iter().zip(files) {
            if let Some(text) = text {
                std::fs::write(path, text).unwrap();
            }
        }
        let found = among(&paths, context).map_err(|error| error.to_string())?;
        let Some(mut found) = found else { return Ok(None) };
        let server = found.cluster().and_then(|cluster| cluster.server.clone());
        let config = found.config().await.map_err(|error| error.to_string())?;
        assert_eq!(
            server.map(|server| format!("{server}/")),
            Some(config.cluster_url.to_string())
        );
        Ok(Some(config.cluster_url.to_string()))
    }

    #[tokio::test]
    async fn files_that_are_missing_and_values_that_are_empty_are_passed_over() {
        let a = || Some("http://a/".to_owned());
        let b = || Some("http://b/".to_owned());
        for (files, context, wanted) in [
            (vec![Some(text("a", "a")), Some(text("b", "b"))], None, a()),
            (vec![None, Some(text("b", "b"))], None, b()),
            (vec![Some(text("a", "a")), None], None, a()),
            (vec![Some(text("", "a")), Some(text("b", "b"))], None, b()),
            (vec![Some(String::new()), Some(text("b", "b"))], None, b()),
            (vec![Some(text("a", "a")), Some(text("b", "b"))], Some("b"), b()),
            (vec![Some(text("", "a"))], Some("a"), a()),
            // Nothing says which cluster.
            (vec![Some(text("", "a"))], None, None),
            (vec![None], None, None),
            (vec![Some(String::new())], None, None),
            (vec![], None, None),
        ] {
            assert_eq!(chosen(&files, context).await, Ok(wanted), "{files:?} {context:?}");
        }
    }

    /// None of them means the cluster of the pod.
    #[tokio::test]
    async fn what_is_wrong_is_an_error() {
        let broken = || Some("clusters: 1".to_owned());
        for (files, context, words) in [
            (
                vec![broken(), Some(text("b", "b"))],
                None,
                "failed to parse kubeconfig YAML",
            ),
            (
                vec![Some(text("b", "b")), broken()],
                None,
                "failed to parse kubeconfig YAML",
            ),
            (
                vec![Some(text("gone", "a"))],
                None,
                "failed to load current context: gone",
            ),
            (
                vec![Some(text("a", "a"))],
                Some("gone"),
                "failed to load current context: gone",
            ),
            (vec![None], Some("gone"), "failed to load current context: gone"),
        ] {
            let error = chosen(&files, context).await.unwrap_err();
            assert!(error.contains(words), "{files:?} {context:?}: {error}");
        }
    }

    /// The configuration for this server, beside one that is not asked for.
    async fn of_server(server: &str) -> Result<Config, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("kubeconfig");
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{ "name": "c", "context": { "cluster": "k", "user": "u" } }],
            "clusters": [
                { "name": "other", "cluster": { "server": "ftp://other" } },
                { "name": "k", "cluster": { "server": server, "certificate-authority-data": "Cg==" } },
            ],
            "users": [{ "name": "u", "user": { "token": "t", "tokenFile": "token", "as": "jane" } }],
        });
        std::fs::write(&file, text.to_string()).unwrap();
        std::fs::write(folder.path().join("token"), "t").unwrap();
        let found = find(Some(&file), None).unwrap().unwrap();
        found.config().await.map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn credentials_are_for_a_server_with_a_scheme() {
        for (server, url, has_token) in [
            ("https://10.0.0.1:6443", "https://10.0.0.1:6443/", true),
            ("10.0.0.1:6443", "http://10.0.0.1:6443/", false),
        ] {
            let config = of_server(server).await.unwrap();
            assert_eq!(config.cluster_url.to_string(), url);
            assert_eq!(config.auth_info.token_file.is_some(), has_token, "{server}");
            assert!(config.auth_info.token.is_none(), "{server}");
            assert_eq!(config.auth_info.impersonate.as_deref(), Some("jane"), "{server}");
        }
    }

    #[tokio::test]
    async fn a_server_that_is_no_url_is_refused_without_its_password() {
        for (server, words) in [
            ("ftp://me:s3cret@api", "has an unsupported scheme"),
            ("https://me:s3cret@", "is not the URL of an API server"),
            ("", "cluster url is missing"),
        ] {
            let error = of_server(server).await.err().unwrap();
            assert!(
                error.contains(words) && error.contains("kubeconfig"),
                "{server}: {error}"
            );
            assert!(!error.contains("s3cret"), "{error}");
        }
    }

    #[tokio::test]
    async fn the_environment_names_a_proxy_for_servers_that_it_does_not_except() {
        for (server, own, excepted, wanted) in [
            ("https://api:6443", "", "", Some("http://proxy:3128/")),
            ("https://api:6443", "", "api", None),
            ("https://10.0.0.7:6443", "", "10.0.0.0/8", None),
            // As kind has it.
            ("https://127.0.0.1:6443", "", "", None),
            ("https://127.0.0.1:6443", "http://own:1", "*", Some("http://own:1/")),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("kubeconfig");
            let mut text: serde_json::Value = serde_json::from_str(&text("c", "c")).unwrap();
            let cluster = json!({ "server": server, "proxy-url": own, "certificate-authority-data": "Cg==" });
            text["clusters"][0]["cluster"] = cluster;
            std::fs::write(&file, text.to_string()).unwrap();
            let variable = |name: &str| match name {
                "HTTPS_PROXY" => Some("http://proxy:3128".to_owned()),
                "NO_PROXY" => Some(excepted.to_owned()),
                _ => None,
            };
            let found = find(Some(&file), None).unwrap().unwrap();
            let config = found.config_in(variable).await.unwrap();
            let chosen = config.proxy_url.map(|url| url.to_string());
            assert_eq!(chosen.as_deref(), wanted, "{server} {own:?} {excepted:?}");
        }
    }

    #[test]
    fn the_file_that_is_given_has_to_be_there() {
        let folder = tempfile::tempdir().unwrap();
        let error = find(Some(&folder.path().join("none")), None).err().unwrap();
        assert!(error.to_string().contains("failed to read kubeconfig"), "{error}");
    }

    #[test]
    fn a_name_that_is_there_twice_is_refused() {
        for field in ["clusters", "users", "contexts"] {
            let mut twice: serde_json::Value = serde_json::from_str(&text("a", "a")).unwrap();
            let entries = twice[field].as_array_mut().unwrap();
            entries.push(entries[0].clone());
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("kubeconfig");
            std::fs::write(&file, twice.to_string()).unwrap();
            let error = find(Some(&file), None).err().unwrap().to_string();
            assert!(
                error.contains(&format!("kubeconfig: {field} has the name a twice")),
                "{error}"
            );
        }
    }

    /// Of a variable of the shell that is not set.
    #[test]
    fn an_empty_name_of_a_file_is_none() {
        let files = |file: Option<&Path>| find(file, Some("any")).map(|found| found.map(|found| found.files));
        assert_eq!(files(Some(Path::new(""))).ok(), files(None).ok());
    }

    #[test]
    fn the_variable_goes_before_the_home_directory() {
        let files = |variable: Option<&str>| {
            let files = listed(variable.map(OsStr::new), Some(Path::new("/home/me")));
            let files: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
            files.join(" ")
        };
        for (variable, wanted) in [
            (None, "/home/me/.kube/config"),
            (Some(""), "/home/me/.kube/config"),
            (Some("/a"), "/a"),
            (Some(":/a::/b:"), "/a /b"),
            (Some(":"), ""),
        ] {
            assert_eq!(files(variable), wanted, "{variable:?}");
        }
    }
}
