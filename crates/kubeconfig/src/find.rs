//! Which kubeconfig counts.

use std::env;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use kube::config::{Cluster, Config, KubeConfigOptions, Kubeconfig, KubeconfigError};
use thiserror::Error;

use crate::settle::settle;
use crate::token::TokenFile;

/// Why a kubeconfig cannot be used.
#[derive(Debug, Error)]
pub enum LoadError {
    /// These files cannot be used.
    #[error("kubeconfig {0}: {1}")]
    Kubeconfig(String, #[source] KubeconfigError),
    /// The file with the token cannot be used.
    #[error("tokenFile {path} of the kubeconfig: {1}", path = .0.display())]
    TokenFile(PathBuf, #[source] std::io::Error),
}

impl LoadError {
    fn is_of_missing_file(&self) -> bool {
        let Self::Kubeconfig(_, KubeconfigError::ReadConfig(error, _)) = self else {
            return false;
        };
        error.kind() == ErrorKind::NotFound
    }
}

/// A kubeconfig whose values are those that client-go reads.
pub struct Found {
    kubeconfig: Kubeconfig,
    /// The context that is asked for in place of the current one.
    context: Option<String>,
    /// The files, for errors.
    files: String,
}

/// The kubeconfig of this file; without one, what the files of `KUBECONFIG`, or else the one of the home directory, have
/// together. None if these say nothing: no context is asked for, and none is the current one.
pub fn find(file: Option<&Path>, context: Option<&str>) -> Result<Option<Found>, LoadError> {
    let context = context.filter(|name| !name.is_empty());
    let Some(file) = file else {
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
            Err(error) if error.is_of_missing_file() => continue,
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
    // Before it is merged with others: an empty value is none, so that theirs counts.
    settle(&mut kubeconfig);
    Ok(kubeconfig)
}

fn unusable(file: &Path, source: KubeconfigError) -> LoadError {
    LoadError::Kubeconfig(file.display().to_string(), source)
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

    /// The configuration of the context.
    pub async fn config(self) -> Result<Config, LoadError> {
        let Self {
            kubeconfig,
            context,
            files,
        } = self;
        let options = KubeConfigOptions {
            context,
            ..KubeConfigOptions::default()
        };
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
        let config = config.map_err(|source| LoadError::Kubeconfig(files, source))?;
        if let Some(path) = config.auth_info.token_file.as_deref() {
            // What cannot be read fails at the start, and not as a request without credentials.
            TokenFile::open(path)?;
        }
        Ok(config)
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

    #[test]
    fn the_file_that_is_given_has_to_be_there() {
        let folder = tempfile::tempdir().unwrap();
        let error = find(Some(&folder.path().join("none")), None).err().unwrap();
        assert!(error.to_string().contains("failed to read kubeconfig"), "{error}");
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
