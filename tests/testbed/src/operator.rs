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
use super::error::{Context, Error, Result};
use super::rbac::{Account, Grants};
use super::{ControlPlane, http, wait};

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
    let definition = crd::crd_yaml().while_trying(|| "render the CustomResourceDefinition".to_owned())?;
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
    pub binary: PathBuf,
    pub arguments: Vec<String>,
    pub environment: Vec<(String, String)>,
    /// Where it runs; in the folder of this process when nothing is said. An endpoint below `/proc/self/cwd` is another one
    /// for each.
    pub folder: Option<PathBuf>,
}

impl OperatorOptions {
    pub fn new(binary: impl Into<PathBuf>) -> Self {
        Self {
            binary: binary.into(),
            arguments: vec!["--log-format=json".to_owned()],
            environment: Vec::new(),
            folder: None,
        }
    }

    #[must_use]
    pub fn argument(mut self, argument: impl Into<String>) -> Self {
        self.arguments.push(argument.into());
        self
    }

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
        let folder = tempfile::tempdir_in(beside)?;
        let log = folder.path().join("operator.log");
        let http = SocketAddr::from(([127, 0, 0, 1], ports::free_port()?));
        // `env` keeps the variables of one operator apart from those of this process. The first are what a pod is given: one
        // that is started again after `kill -9` has its Leases back at once, because it has the same name.
        let given = [("POD_NAME", IDENTITY), ("POD_NAMESPACE", IDENTITY)];
        let given = given.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let variables = given.into_iter().chain(options.environment);
        let folder_of = options.folder.iter();
        let mut arguments: Vec<String> = folder_of.map(|it| format!("--chdir={}", it.display())).collect();
        arguments.extend(variables.map(|(name, value)| format!("{name}={value}")));
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
        let ready = self.wait_for_answer("/readyz", |status, _| status == 200).await;
        ready.map(drop)
    }

    /// Asks for `path` as the kubelet would, again and again, until status and body are as wanted; returns the body.
    pub async fn wait_for_answer(&self, path: &str, wanted: impl Fn(u16, &str) -> bool) -> Result<String> {
        let started = Instant::now();
        loop {
            let answer = self.get(path).await;
            match answer {
                Ok((status, body)) if wanted(status, &body) => return Ok(body),
                _ if started.elapsed() > LIMIT => {
                    return self.failed(&format!("does not answer GET {path} as wanted, last {answer:?}"));
                }
                // The operator tells nobody of a change here; the kubelet asks again and again too.
                _ => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }

    /// Status and body of a GET of the operator's HTTP server.
    pub async fn get(&self, path: &str) -> Result<(u16, String)> {
        http::get(&format!("http://{}{path}", self.http)).await
    }

    pub async fn metrics(&self) -> Result<String> {
        self.get("/metrics").await.map(|(_, body)| body)
    }

    pub fn http(&self) -> SocketAddr {
        self.http
    }

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
        // A file tells nobody of a change.
        while !self.log_text().contains(text) {
            if started.elapsed() > LIMIT {
                return self.failed(&format!("has not logged {text:?}"));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    fn failed<T>(&self, how: &str) -> Result<T> {
        Err(Error::Other(format!("the operator {how}; log:\n{}", self.log_text())))
    }

    /// Process ID of the operator itself, not of its watchdog.
    pub fn pid(&self) -> Result<u32> {
        self.process.child("csi-attacher-op")
    }

    /// Sends a signal such as "TERM".
    pub fn signal(&self, signal: &str) -> Result<()> {
        let pid = self.pid()?.to_string();
        Command::new("kill").args([&format!("-{signal}"), &pid]).status()?;
        Ok(())
    }

    /// Waits until the process ended.
    pub async fn wait_ended(&mut self, limit: Duration) -> Result<ExitStatus> {
        let started = Instant::now();
        loop {
            if let Some(status) = self.process.ended()? {
                return Ok(status);
            }
            if started.elapsed() > limit {
                return self.failed(&format!("still runs after {limit:?}"));
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
    }))?;
    let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
    match leases.create(&PostParams::default(), &lease).await {
        // A world without the operator has no such namespace.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        answer => Ok(answer.map(drop)?),
    }
}

/// Makes or changes an AttacherConfig.
pub async fn apply_config(client: &Client, name: &str, spec: Value) -> Result<AttacherConfig> {
    let api: Api<AttacherConfig> = Api::all(client.clone());
    let body = json!({
        "apiVersion": "attacher.csi.dev/v1alpha1", "kind": "AttacherConfig", "metadata": {"name": name}, "spec": spec,
    });
    let params = PatchParams::apply("test").force();
    Ok(api.patch(name, &params, &Patch::Apply(&body)).await?)
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
