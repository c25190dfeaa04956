//! The cluster that the demonstration runs on: one of its own, or that of a kubeconfig.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde_json::json;
use tokio::process::Command;

use crate::plan::PRODUCT;
use crate::processes::write_private;
use crate::say::Say;
use crate::support::controlplane::{Tracing, programs, watchdog::StateFolder};
use crate::support::{ControlPlane, Error, Options, Result};

/// How long a foreign API server may take to answer at all.
const ANSWERS_WITHIN: Duration = Duration::from_secs(20);
/// How long kubectl may take, with the wait that it was asked for.
const KUBECTL_WITHIN: Duration = Duration::from_secs(90);

/// A cluster, and how to reach it as administrator.
pub struct Cluster {
    /// Makes requests as administrator.
    pub client: Client,
    /// The kubeconfig of the administrator.
    pub kubeconfig: PathBuf,
    /// The kubectl that is used.
    pub kubectl: PathBuf,
    // The control plane goes before the folder.
    own: Option<ControlPlane>,
    is_traced: bool,
    folder: StateFolder,
    say: Say,
}

impl Cluster {
    /// Starts a control plane of its own; with a collector (`host:port`), one that traces what the operator asks for.
    pub async fn start(collector: Option<String>, say: Say) -> Result<Self> {
        say.step("Control plane");
        say.line("Real etcd, kube-apiserver and kube-controller-manager on free loopback ports.");
        say.line("Their programs are built once for each version; the first time takes several minutes.");
        let [_, _, _, kubectl] =
            programs::locate(["etcd", "kube-apiserver", "kube-controller-manager", "kubectl"]).await?;
        say.line("Starting ...");
        let is_traced = collector.is_some();
        let tracing = collector.map(|collector| Tracing {
            collector,
            sampling_rate_per_million: 0,
        });
        let options = Options {
            controller_manager: true,
            tracing,
            ..Options::default()
        };
        let own = ControlPlane::start(options).await?;
        let cluster = Self {
            client: own.admin_client().await?,
            kubeconfig: own.admin_kubeconfig(),
            kubectl,
            own: Some(own),
            is_traced,
            folder: StateFolder::create()?,
            say,
        };
        cluster.introduce().await?;
        Ok(cluster)
    }

    /// Uses the cluster of a kubeconfig.
    pub async fn existing(kubeconfig: &Path, say: Say) -> Result<Self> {
        say.step(format!("Existing cluster of {}", kubeconfig.display()));
        let kubeconfig = std::path::absolute(kubeconfig)
            .map_err(|error| Error::Other(format!("KUBECONFIG_TARGET={}: {error}", kubeconfig.display())))?;
        let client = Client::try_from(read_config(&kubeconfig).await?)
            .map_err(|error| Error::Other(format!("KUBECONFIG_TARGET={}: {error}", kubeconfig.display())))?;
        let cluster = Self {
            client,
            kubectl: find_kubectl().await?,
            kubeconfig,
            own: None,
            is_traced: false,
            folder: StateFolder::create()?,
            say,
        };
        cluster.introduce().await?;
        Ok(cluster)
    }

    /// Whether it was there before and stays when the demonstration ends.
    pub fn is_foreign(&self) -> bool {
        self.own.is_none()
    }

    /// Whether its API server traces what the operator asks for.
    pub fn is_traced(&self) -> bool {
        self.is_traced
    }

    /// A folder for files of this run, removed at its end.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    async fn introduce(&self) -> Result<()> {
        let answer = tokio::time::timeout(ANSWERS_WITHIN, self.client.apiserver_version()).await;
        match answer {
            Ok(Ok(version)) => {
                self.say
                    .line(format!("kube-apiserver {} answers.", version.git_version));
                Ok(())
            }
            Ok(Err(error)) => Err(Error::Other(format!("the API server cannot be used: {error}"))),
            Err(_) => Err(Error::Other(format!(
                "the API server does not answer within {ANSWERS_WITHIN:?}"
            ))),
        }
    }

    /// A kubeconfig of the operator's ServiceAccount, with which it has the rights of `config/rbac.yaml` and no more.
    pub async fn operator_kubeconfig(&self) -> Result<PathBuf> {
        if let Some(own) = &self.own {
            if self.is_traced {
                // The API server continues the traces of this group only.
                let user = format!("system:serviceaccount:{PRODUCT}:{PRODUCT}");
                return own.kubeconfig_for_member(&user, "system:monitoring");
            }
            return own.kubeconfig_for_service_account(PRODUCT, PRODUCT).await;
        }
        let token = self.service_account_token().await?;
        let path = self.folder.path().join("operator.kubeconfig");
        let cluster = current_cluster(&self.kubeconfig)?;
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": "target", "cluster": cluster }],
            "users": [{ "name": PRODUCT, "user": { "token": token } }],
            "contexts": [{ "name": "target", "context": { "cluster": "target", "user": PRODUCT } }],
            "current-context": "target",
        });
        write_private(&path, &kubeconfig.to_string()).await?;
        Ok(path)
    }

    async fn service_account_token(&self) -> Result<String> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), PRODUCT);
        let spec = TokenRequestSpec {
            expiration_seconds: Some(24 * 60 * 60),
            ..TokenRequestSpec::default()
        };
        let request = TokenRequest {
            spec,
            ..TokenRequest::default()
        };
        let answer = accounts
            .create_token_request(PRODUCT, &PostParams::default(), &request)
            .await;
        let answer = answer.map_err(|error| Error::Other(format!("no token for ServiceAccount {PRODUCT}: {error}")))?;
        answer
            .status
            .map(|status| status.token)
            .ok_or_else(|| Error::Other(format!("the token of ServiceAccount {PRODUCT} is empty")))
    }

    /// Shows a kubectl command, runs it and shows what it prints.
    pub async fn kubectl(&self, arguments: &[&str]) -> Result<()> {
        self.say.command(format!("kubectl {}", arguments.join(" ")));
        let output = self.quiet_kubectl(arguments).await?;
        self.say.line(output);
        Ok(())
    }

    /// Runs kubectl in the folder of the project and returns what it prints.
    pub async fn quiet_kubectl(&self, arguments: &[&str]) -> Result<String> {
        let command = Command::new(&self.kubectl)
            .args(arguments)
            .arg("--cache-dir")
            .arg(self.folder.path().join("kubectl-cache"))
            .env("KUBECONFIG", &self.kubeconfig)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .stdin(Stdio::null())
            // Ctrl-C is for the demonstration, which may still need kubectl to clean up.
            .process_group(0)
            .kill_on_drop(true)
            .output();
        let what = format!("kubectl {}", arguments.join(" "));
        let output = tokio::time::timeout(KUBECTL_WITHIN, command)
            .await
            .map_err(|_| Error::Other(format!("`{what}` did not end within {KUBECTL_WITHIN:?}")))?
            .map_err(|error| Error::Other(format!("cannot run {}: {error}", self.kubectl.display())))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let reason = String::from_utf8_lossy(&output.stderr);
        Err(Error::Other(format!("`{what}` failed: {}", reason.trim())))
    }
}

async fn read_config(path: &Path) -> Result<Config> {
    let named = |error| Error::Other(format!("KUBECONFIG_TARGET={}: {error}", path.display()));
    let kubeconfig = Kubeconfig::read_from(path).map_err(named)?;
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .map_err(named)
}

/// The entry of the cluster which the current context names: its address and authority, without any credentials.
fn current_cluster(path: &Path) -> Result<serde_json::Value> {
    let kubeconfig = Kubeconfig::read_from(path)?;
    let current = kubeconfig.current_context.unwrap_or_default();
    let context = kubeconfig.contexts.into_iter().find(|context| context.name == current);
    let name = context
        .and_then(|context| context.context)
        .map(|context| context.cluster);
    let cluster = kubeconfig
        .clusters
        .into_iter()
        .find(|cluster| Some(&cluster.name) == name.as_ref())
        .and_then(|cluster| cluster.cluster);
    let cluster = cluster.ok_or_else(|| {
        let path = path.display();
        Error::Other(format!("{path}: the current context {current:?} names no cluster"))
    })?;
    Ok(serde_json::to_value(cluster)?)
}

/// The user's kubectl suits the user's cluster; where there is none, the one of the test tools.
async fn find_kubectl() -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let installed = std::env::split_paths(&path).map(|folder| folder.join("kubectl"));
    match installed.into_iter().find(|candidate| candidate.is_file()) {
        Some(kubectl) => Ok(kubectl),
        None => programs::locate(["kubectl"]).await.map(|[kubectl]| kubectl),
    }
}
