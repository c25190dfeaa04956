//! The client, as kubectl would make it.

use http::{HeaderName, HeaderValue};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use std::path::PathBuf;
use std::time::Duration;

use crate::error::{PluginError, Result};

/// What kubectl's own flags say. kubectl hands a plugin its flags as they are.
#[derive(Clone, Debug, Default)]
pub struct ClientOptions {
    /// `--kubeconfig`.
    pub kubeconfig: Option<PathBuf>,
    /// `--context`.
    pub context: Option<String>,
    /// `--namespace`.
    pub namespace: Option<String>,
    /// `--as`.
    pub impersonate: Option<String>,
    /// `--as-group`.
    pub groups: Vec<String>,
}

/// Connects; the second value is the namespace of objects that are named without one.
pub async fn connect(options: &ClientOptions) -> Result<(Client, String)> {
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    let bad = |error: &dyn std::fmt::Display| PluginError::Config(error.to_string());
    let choice = KubeConfigOptions {
        context: options.context.clone(),
        ..KubeConfigOptions::default()
    };
    let mut config = match &options.kubeconfig {
        Some(path) => {
            let file = Kubeconfig::read_from(path).map_err(|error| bad(&error))?;
            Config::from_custom_kubeconfig(file, &choice)
                .await
                .map_err(|error| bad(&error))?
        }
        // Without a file there is the service account of a pod.
        None => match Config::from_kubeconfig(&choice).await {
            Ok(config) => config,
            Err(error) if choice.context.is_none() => Config::incluster().map_err(|_| bad(&error))?,
            Err(error) => return Err(bad(&error)),
        },
    };
    // Longer than the pause between two bookmarks: a watch of a quiet cluster is silent for a minute.
    config.read_timeout = Some(Duration::from_mins(2));
    config.connect_timeout = Some(Duration::from_secs(10));
    let auth = &config.auth_info;
    let (user, groups) = if options.impersonate.is_none() && options.groups.is_empty() {
        // The kubeconfig may impersonate too.
        let groups = auth.impersonate_groups.as_deref();
        (&auth.impersonate, groups.unwrap_or_default())
    } else {
        (&options.impersonate, options.groups.as_slice())
    };
    let user = user.iter().map(|user| ("impersonate-user", user));
    let groups = groups.iter().map(|group| ("impersonate-group", group));
    let mut headers = Vec::new();
    for (name, value) in user.chain(groups) {
        let value = HeaderValue::from_str(value).map_err(|error| bad(&error))?;
        headers.push((HeaderName::from_static(name), value));
    }
    config.headers.extend(headers);
    let namespace = options
        .namespace
        .clone()
        .unwrap_or_else(|| config.default_namespace.clone());
    let client = Client::try_from(config).map_err(|error| bad(&error))?;
    Ok((client, namespace))
}
