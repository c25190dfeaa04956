//! The operator under test: the real binary, as a process of its own, under a ServiceAccount with the rights that helm renders
//! for the chart, and no others.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use csi_attacher_model::api::names::{lease_name, provisioner_lease_name};
use csi_attacher_model::api::{AttacherConfig, crd};

use super::controlplane::ports;
use super::controlplane::watchdog::{Output, Watched};
use super::error::{Error, Result};
use super::rbac::{Account, Grants};
use super::{ControlPlane, wait};

/// Namespace and name of the operator's ServiceAccount, as in `config/rbac.yaml`.
pub const IDENTITY: &str = "csi-attacher-operator";
/// Twice as long as it takes until a watch that was broken counts as mended without a word from it.
const LIMIT: Duration = Duration::from_mins(2);

/// The operator's ServiceAccount.
pub fn account() -> Account {
    Account::new(IDENTITY)
}

/// Installs the CustomResourceDefinition and the roles that helm renders for the chart without any values. Doing it again
/// changes nothing.
pub async fn install(cluster: &ControlPlane) -> Result<()> {
    let definition = crd::crd_yaml().map_err(|error| Error::Other(error.to_string()))?;
    cluster.apply_yaml(&definition).await?;
    // The account is made with its namespace, where some of the roles are.
    cluster.kubeconfig_for_service_account(IDENTITY, IDENTITY).await?;
    let grants = Grants::defaults(&account())?.without_what_is_asked();
    grants.apply(cluster).await
}

/// Lets the operator read one Secret, by the role that helm renders for `publishSecrets`. The namespace is made.
pub async fn grant_secret(cluster: &ControlPlane, namespace: &str, name: &str) -> Result<()> {
    let home = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } });
    cluster.apply_yaml(&home.to_string()).await?;
    let grants = Grants::to_secret(&account(), namespace, name)?.without_what_is_asked();
    grants.apply(cluster).await
}

/// How to start an operator.
#[derive(Clone, Debug)]
pub struct OperatorOptions {
    /// The binary.
    pub binary: PathBuf,
    /// Further arguments.
    pub arguments: Vec<String>,
    /// Environment variables.
    pub environment: Vec<(String, String)>,
    /// Where it runs; in the folder of this process when nothing is said. An endpoint below `/proc/self/cwd` is another one
    /// for each.
    pub folder: Option<PathBuf>,
}

impl OperatorOptions {
    /// No further arguments or variables.
    pub fn new(binary: impl Into<PathBuf>) -> Self {
        Self {
            binary: binary.into(),
            arguments: vec!["--log-format=json".to_owned()],
            environment: Vec::new(),
            folder: None,
        }
    }

    /// Adds an argument.
    #[must_use]
    pub fn argument(mut self, argument: impl Into<String>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Adds an environment variable.
    #[must_use]
    pub fn variable(mut self, name: &str, value: impl Into<String>) -> Self {
        self.environment.push((name.to_owned(), value.into()));
        self
    }
}

/// A running operator. Dropping it kills it.
#[derive(Debug)]
pub struct Operator {
    process: Watched,
    http: SocketAddr,
    log: PathBuf,
    _folder: tempfile::TempDir,
}

impl Operator {
    /// Installs what the operator needs and starts it; does not wait until it is ready.
    pub async fn start(cluster: &ControlPlane, options: OperatorOptions) -> Result<Self> {
        install(cluster).await?;
        let kubeconfig = cluster.kubeconfig_for_service_account(IDENTITY, IDENTITY).await?;
        Self::start_with(&kubeconfig, options)
    }

    /// Starts the operator with this kubeconfig.
    pub fn start_with(kubeconfig: &Path, options: OperatorOptions) -> Result<Self> {
        // Next to the kubeconfig, which is in the folder of the control plane: so the log goes with that, also when this
        // process ends without dropping anything.
        let beside = kubeconfig.parent().unwrap_or_else(|| Path::new("."));
        let folder = tempfile::tempdir_in(beside).map_err(|error| Error::Other(error.to_string()))?;
        let log = folder.path().join("operator.log");
        let http = SocketAddr::from(([127, 0, 0, 1], ports::free_port()?));
        // `env` keeps the variables of one operator apart from those of this process. The first are what a pod is given: one
        // that is started again after `kill -9` has its Leases back at once, because it has the same name.
        let given = [("POD_NAME", IDENTITY), ("POD_NAMESPACE", IDENTITY)];
        let given = given.map(|(name, value)| format!("{name}={value}"));
        let own = options
            .environment
            .iter()
            .map(|(name, value)| format!("{name}={value}"));
        let folder_of = options
            .folder
            .iter()
            .map(|folder| format!("--chdir={}", folder.display()));
        let mut arguments: Vec<String> = folder_of.chain(given).chain(own).collect();
        arguments.push(options.binary.display().to_string());
        arguments.push(format!("--kubeconfig={}", kubeconfig.display()));
        arguments.push(format!("--http-endpoint={http}"));
        arguments.extend(options.arguments);
        let process = Watched::spawn("operator", Path::new("/usr/bin/env"), &arguments, &log, Output::Log)?;
        Ok(Self {
            process,
            http,
            log,
            _folder: folder,
        })
    }

    /// Waits until `/readyz` answers 200.
    pub async fn wait_ready(&self) -> Result<()> {
        self.wait_for_answer("/readyz", |status, _| status == 200)
            .await
            .map(drop)
    }

    /// Asks for `path` as the kubelet would, again and again, until status and body are as wanted; returns the body.
    pub async fn wait_for_answer(&self, path: &str, wanted: impl Fn(u16, &str) -> bool) -> Result<String> {
        let started = Instant::now();
        loop {
            let answer = self.get(path).await;
            match answer {
                Ok((status, body)) if wanted(status, &body) => return Ok(body),
                _ if started.elapsed() > LIMIT => {
                    return Err(Error::Other(format!(
                        "GET {path} of the operator: last {answer:?}; log:\n{}",
                        self.log_text()
                    )));
                }
                // The operator tells nobody of a change here; the kubelet asks again and again too.
                _ => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }

    /// Status and body of a GET of the operator's HTTP server.
    pub async fn get(&self, path: &str) -> Result<(u16, String)> {
        let other = |error: String| Error::Other(format!("GET {path}: {error}"));
        let client: hyper_util::client::legacy::Client<_, http_body_util::Empty<&[u8]>> =
            hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new()).build_http();
        let uri = format!("http://{}{path}", self.http)
            .parse()
            .map_err(|error| other(format!("{error}")))?;
        let answer = client.get(uri).await.map_err(|error| other(error.to_string()))?;
        let status = answer.status().as_u16();
        let body = http_body_util::BodyExt::collect(answer.into_body())
            .await
            .map_err(|error| other(error.to_string()))?;
        Ok((status, String::from_utf8_lossy(&body.to_bytes()).into_owned()))
    }

    /// The metrics in text form.
    pub async fn metrics(&self) -> Result<String> {
        self.get("/metrics").await.map(|(_, body)| body)
    }

    /// The address of the operator's HTTP server.
    pub fn http(&self) -> SocketAddr {
        self.http
    }

    /// The file of its log.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Everything logged so far.
    pub fn log_text(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until it has logged this.
    pub async fn wait_for_log(&self, text: &str) -> Result<()> {
        let started = Instant::now();
        loop {
            let log = self.log_text();
            if log.contains(text) {
                return Ok(());
            }
            if started.elapsed() > LIMIT {
                return Err(Error::Other(format!(
                    "{text:?} is not in the log of the operator:\n{log}"
                )));
            }
            // A file tells nobody of a change.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Process ID of the operator itself, not of its watchdog.
    pub fn pid(&self) -> Result<u32> {
        self.process.child("csi-attacher-op")
    }

    /// Sends a signal such as "TERM".
    pub fn signal(&self, signal: &str) -> Result<()> {
        let pid = self.pid()?.to_string();
        let status = Command::new("kill").args([&format!("-{signal}"), &pid]).status();
        status.map(|_| ()).map_err(|error| Error::Other(error.to_string()))
    }

    /// Waits until the process ended.
    pub async fn wait_ended(&mut self, limit: Duration) -> Result<ExitStatus> {
        let started = Instant::now();
        loop {
            if let Some(status) = self.process.ended()? {
                return Ok(status);
            }
            if started.elapsed() > limit {
                return Err(Error::Other(format!(
                    "operator still runs after {limit:?}; log:\n{}",
                    self.log_text()
                )));
            }
            // There is no portable way to be told of the end of a process without polling it.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Creates the Lease of a driver as one that nobody holds, if there is none: who creates it would wait until it has run out.
pub async fn release_lease(client: &Client, namespace: &str, driver: &str) -> Result<()> {
    release_named(client, namespace, &lease_name(driver)).await
}

/// The same of the Lease under which volumes are provisioned for a driver.
pub async fn release_provisioner_lease(client: &Client, namespace: &str, driver: &str) -> Result<()> {
    release_named(client, namespace, &provisioner_lease_name(driver)).await
}

/// What provisioning needs beside what the chart grants without any values.
pub async fn grant_provisioning(cluster: &ControlPlane) -> Result<()> {
    let account = account();
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": { "name": "provisions" },
        "rules": [
            { "apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["get", "list", "watch", "patch"] },
            { "apiGroups": [""], "resources": ["persistentvolumes"], "verbs": ["create", "delete"] },
            { "apiGroups": ["storage.k8s.io"], "resources": ["storageclasses"], "verbs": ["list", "watch"] },
            { "apiGroups": ["storage.k8s.io"], "resources": ["csistoragecapacities"], "verbs": ["list"] },
        ],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": { "name": "provisions" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "provisions" },
        "subjects": [{ "kind": "ServiceAccount", "namespace": account.namespace, "name": account.name }],
    });
    Grants::of_documents(vec![role, binding]).apply(cluster).await
}

async fn release_named(client: &Client, namespace: &str, lease: &str) -> Result<()> {
    let lease: Lease = serde_json::from_value(json!({
        "metadata": {"name": lease}, "spec": {"leaseDurationSeconds": 1, "leaseTransitions": 0},
    }))
    .map_err(|error| Error::Other(error.to_string()))?;
    let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
    match leases.create(&PostParams::default(), &lease).await {
        // A world without the operator has no such namespace.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        answer => answer.map(drop).map_err(|error| Error::Other(error.to_string())),
    }
}

/// Makes or changes an AttacherConfig.
pub async fn apply_config(client: &Client, name: &str, spec: Value) -> Result<AttacherConfig> {
    let api: Api<AttacherConfig> = Api::all(client.clone());
    let body = json!({
        "apiVersion": "attacher.csi.dev/v1alpha1", "kind": "AttacherConfig", "metadata": {"name": name}, "spec": spec,
    });
    let params = PatchParams::apply("test").force();
    api.patch(name, &params, &Patch::Apply(&body))
        .await
        .map_err(|error| Error::Other(error.to_string()))
}

/// Waits until a condition of an AttacherConfig has this status and, if given, this reason.
pub async fn wait_condition(
    client: &Client,
    name: &str,
    kind: &str,
    status: &str,
    reason: Option<&str>,
) -> Result<AttacherConfig> {
    let api: Api<AttacherConfig> = Api::all(client.clone());
    let what = format!("condition {kind}={status} {}", reason.unwrap_or_default());
    let found = wait::wait_for(api, name, &what, LIMIT, |config| {
        let Some(config) = config else { return false };
        let Some(seen) = &config.status else { return false };
        seen.observed_generation == config.metadata.generation
            && seen.conditions.iter().any(|condition| {
                condition.type_ == kind
                    && condition.status == status
                    && reason.is_none_or(|reason| condition.reason == reason)
            })
    })
    .await?;
    found.ok_or_else(|| Error::Other(format!("AttacherConfig {name} is gone")))
}
