//! A Kubernetes control plane of real components (etcd, kube-apiserver and, when asked for, kube-controller-manager)
//! on loopback ports, with TLS and RBAC. There is no kubelet and no scheduler: a test plays them.

pub mod audit;
mod components;
pub mod kubeconfig;
pub mod pki;
pub mod ports;
pub mod programs;
pub mod watchdog;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::api::{DynamicObject, PostParams};
use kube::{Api, Client};
use parking_lot::Mutex;

use super::error::{Context, Error, Result};
use super::wait::Object;
use audit::{AuditEvent, AuditLog};
use components::Installation;
use kubeconfig::Credentials;
use pki::{Authority, Identity};
use watchdog::{StateFolder, Watched};

/// How the API server and etcd trace.
#[derive(Clone, Debug)]
pub struct Tracing {
    /// `host:port` that takes OTLP over gRPC.
    pub collector: String,
    /// How many of a million requests that come without a sampled trace of a caller whom the API server trusts are
    /// traced. Those that come with one always are.
    pub sampling_rate_per_million: u32,
}

/// How a control plane is to be run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Run kube-controller-manager with all controllers but the one which would evict pods from nodes without kubelet.
    pub controller_manager: bool,
    /// Record requests, see [`audit::POLICY`].
    pub audit: bool,
    /// Trace the requests of the API server and those to etcd.
    pub tracing: Option<Tracing>,
    /// More flags for kube-apiserver; they win over those given by the harness.
    pub apiserver_args: Vec<String>,
    /// More flags for kube-controller-manager; they win over those given by the harness.
    pub controller_manager_args: Vec<String>,
}

/// A running control plane. Dropping it ends all components and removes their state.
///
/// It is bound to no async runtime. Clients made by it are: each test makes its own.
pub struct ControlPlane {
    // Fields are dropped in this order: clients of a server before the server, the folder last.
    controller_manager: Mutex<Option<Watched>>,
    apiserver: Mutex<Option<Watched>>,
    etcd: Mutex<Option<Watched>>,
    audit: Option<AuditLog>,
    administrator: Identity,
    authority: Authority,
    installation: Installation,
    folder: StateFolder,
}

impl ControlPlane {
    /// Starts a control plane and waits until it is ready. Programs that are missing are built first, which takes
    /// minutes; see `tests/controlplane/build`.
    pub async fn start(options: Options) -> Result<Self> {
        let programs = components::Programs::locate(options.controller_manager).await?;
        ports::retry(|| Self::start_once(options.clone(), programs.clone())).await
    }

    async fn start_once(options: Options, programs: components::Programs) -> Result<Self> {
        let folder = StateFolder::create()?;
        let authority = Authority::new()?;
        let installation = Installation::prepare(options, programs, folder.path(), &authority)?;
        let administrator = authority.client("kubernetes-admin", Some("system:masters"))?;
        let keeps_log = installation.options.audit;
        let audit = keeps_log.then(|| AuditLog::new(folder.path().join("audit.log")));

        let etcd = installation.start_etcd().await?;
        let control_plane = Self {
            controller_manager: Mutex::default(),
            apiserver: Mutex::default(),
            etcd: Mutex::new(Some(etcd)),
            audit,
            administrator,
            authority,
            installation,
            folder,
        };
        let credentials = Credentials::Certificate(&control_plane.administrator);
        control_plane.write_kubeconfig(&control_plane.admin_kubeconfig(), &credentials)?;
        control_plane.start_apiserver().await?;
        if control_plane.installation.options.controller_manager {
            control_plane.start_controller_manager().await?;
        }
        Ok(control_plane)
    }

    /// After [`ControlPlane::stop_apiserver`] again on the same port and data. Waits until it is ready; does nothing when it runs.
    pub async fn start_apiserver(&self) -> Result<()> {
        if self.apiserver.lock().is_some() {
            return Ok(());
        }
        let client = self.admin_client().await?;
        let started = self.installation.start_apiserver(self.audit.as_ref(), &client).await?;
        *self.apiserver.lock() = Some(started);
        Ok(())
    }

    /// Kills kube-apiserver, as a crash or a lost node would. Returns when it is gone.
    pub fn stop_apiserver(&self) {
        drop(self.apiserver.lock().take());
    }

    /// Kills etcd, as a crash would. Returns when it is gone.
    pub fn stop_etcd(&self) {
        drop(self.etcd.lock().take());
    }

    /// As [`ControlPlane::start_apiserver`].
    pub async fn start_etcd(&self) -> Result<()> {
        if self.etcd.lock().is_some() {
            return Ok(());
        }
        let started = self.installation.start_etcd().await?;
        *self.etcd.lock() = Some(started);
        Ok(())
    }

    /// Copies the data of etcd, which runs and stands still meanwhile: the copy is what a crash at that moment would leave.
    pub fn back_up_running(&self) -> Result<()> {
        let pid = match &*self.etcd.lock() {
            Some(etcd) => etcd.child("etcd")?.to_string(),
            None => return Err(Error::Other("etcd does not run".to_owned())),
        };
        if self.backup().exists() {
            std::fs::remove_dir_all(self.backup())?;
        }
        signal(&pid, "-STOP")?;
        let copied = self.back_up();
        signal(&pid, "-CONT")?;
        copied
    }

    /// Kills kube-apiserver and etcd. Returns when they are gone.
    pub fn stop_storage(&self) {
        self.stop_apiserver();
        self.stop_etcd();
    }

    /// Starts both again.
    pub async fn start_storage(&self) -> Result<()> {
        self.start_etcd().await?;
        self.start_apiserver().await
    }

    /// Copies the data of etcd, which stands still or does not run.
    fn back_up(&self) -> Result<()> {
        copy_folder(&self.etcd_data(), &self.backup())
    }

    /// Puts the copy in place of the data of etcd, which must not run.
    pub fn restore(&self) -> Result<()> {
        std::fs::remove_dir_all(self.etcd_data())?;
        copy_folder(&self.backup(), &self.etcd_data())
    }

    /// As [`ControlPlane::restore`] by the documented way: with revisions greater by so much, and all older ones compacted.
    pub async fn restore_bumped(&self, by: u64) -> Result<()> {
        std::fs::remove_dir_all(self.etcd_data())?;
        let [etcdutl] = programs::locate(["etcdutl"]).await?;
        self.installation.restore_etcd(&etcdutl, &self.backup(), by).await
    }

    fn etcd_data(&self) -> PathBuf {
        self.folder.path().join("etcd")
    }

    fn backup(&self) -> PathBuf {
        self.folder.path().join("etcd-backup")
    }

    /// Waits until it has made the service account which pods need. Does nothing when it runs.
    pub async fn start_controller_manager(&self) -> Result<()> {
        if self.controller_manager.lock().is_some() {
            return Ok(());
        }
        let identity = self.authority.client("system:kube-controller-manager", None)?;
        let path = self.folder.path().join("kube-controller-manager.kubeconfig");
        self.write_kubeconfig(&path, &Credentials::Certificate(&identity))?;
        let client = self.admin_client().await?;
        let started = self.installation.start_controller_manager(&path, &client).await?;
        *self.controller_manager.lock() = Some(started);
        Ok(())
    }

    pub fn stop_controller_manager(&self) {
        drop(self.controller_manager.lock().take());
    }

    pub fn url(&self) -> String {
        self.installation.url()
    }

    /// The folder with all state: keys, kubeconfigs, logs (`<component>.log`) and the data of etcd.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A kubeconfig for a member of `system:masters`.
    pub fn admin_kubeconfig(&self) -> PathBuf {
        self.folder.path().join("admin.kubeconfig")
    }

    pub async fn admin_client(&self) -> Result<Client> {
        kubeconfig::client(&self.admin_kubeconfig()).await
    }

    /// For tests which build a client of their own.
    pub async fn admin_config(&self) -> Result<kube::Config> {
        kubeconfig::config(&self.admin_kubeconfig()).await
    }

    /// A kubeconfig for any user in any groups (by impersonation).
    pub fn kubeconfig_for(&self, user: &str, groups: &[&str]) -> Result<PathBuf> {
        self.new_kubeconfig(&Credentials::Impersonate(&self.administrator, user, groups))
    }

    /// A kubeconfig with a client certificate for this user in this group. What the API server grants before it looks
    /// at impersonation, such as the trust in a caller's trace, depends on the certificate.
    pub fn kubeconfig_for_member(&self, user: &str, group: &str) -> Result<PathBuf> {
        let identity = self.authority.client(user, Some(group))?;
        self.new_kubeconfig(&Credentials::Certificate(&identity))
    }

    pub async fn client_for(&self, user: &str, groups: &[&str]) -> Result<Client> {
        kubeconfig::client(&self.kubeconfig_for(user, groups)?).await
    }

    /// A kubeconfig with a token of this service account, good for a day. Makes the namespace and the service account
    /// if they are missing.
    pub async fn kubeconfig_for_service_account(&self, namespace: &str, name: &str) -> Result<PathBuf> {
        let client = self.admin_client().await?;
        create_if_missing(&Api::<Namespace>::all(client.clone()), namespace).await?;
        let accounts = Api::<ServiceAccount>::namespaced(client, namespace);
        create_if_missing(&accounts, name).await?;
        let mut request = TokenRequest::default();
        request.spec.expiration_seconds = Some(24 * 60 * 60);
        let params = PostParams::default();
        let answer = accounts.create_token_request(name, &params, &request).await;
        let answer = answer.while_trying(|| format!("request a token for {namespace}/{name}"))?;
        let token = answer.status.map(|status| status.token).unwrap_or_default();
        self.new_kubeconfig(&Credentials::Token(&token))
    }

    /// Applies every document of a manifest as administrator, see [`super::apply_yaml`].
    pub async fn apply_yaml(&self, manifest: &str) -> Result<Vec<DynamicObject>> {
        super::apply_yaml(&self.admin_client().await?, manifest).await
    }

    /// Every request answered so far that the audit policy records.
    pub fn audit_events(&self) -> Result<Vec<Arc<AuditEvent>>> {
        self.audit().map(AuditLog::events)
    }

    /// Waits for a request which matches; those answered before count too. `what` goes into the error message.
    pub async fn wait_for_audit_event(
        &self,
        what: &str,
        limit: Duration,
        matches: impl Fn(&AuditEvent) -> bool,
    ) -> Result<Arc<AuditEvent>> {
        self.audit()?.wait_for(what, limit, matches).await
    }

    /// The log itself, which outlives this.
    pub fn audit(&self) -> Result<&AuditLog> {
        let audit = self.audit.as_ref();
        audit.ok_or_else(|| Error::Other("no audit log without Options.audit".to_owned()))
    }

    /// The file with the raw audit events of all stages, one JSON document on each line.
    pub fn audit_log(&self) -> Result<&Path> {
        self.audit().map(AuditLog::path)
    }

    /// The kubectl of the same release, built on first use.
    pub async fn kubectl_path(&self) -> Result<PathBuf> {
        let [path] = programs::locate(["kubectl"]).await?;
        Ok(path)
    }

    /// The process groups of the components that run now, for tests which look whether they are gone.
    pub fn process_groups(&self) -> Vec<u32> {
        let all = [self.controller_manager.lock(), self.apiserver.lock(), self.etcd.lock()];
        all.iter()
            .filter_map(|component| component.as_ref().map(Watched::process_group))
            .collect()
    }

    fn write_kubeconfig(&self, path: &Path, credentials: &Credentials<'_>) -> Result<()> {
        kubeconfig::write(path, &self.url(), self.authority.certificate(), credentials)
    }

    fn new_kubeconfig(&self, credentials: &Credentials<'_>) -> Result<PathBuf> {
        let path = self.folder().join(format!("{:016x}.kubeconfig", fastrand::u64(..)));
        self.write_kubeconfig(&path, credentials)?;
        Ok(path)
    }
}

fn signal(pid: &str, signal: &str) -> Result<()> {
    std::process::Command::new("kill").args([signal, pid]).status()?;
    Ok(())
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}

/// Creates an object which has nothing but a name, unless it is there.
async fn create_if_missing<K: Object + Default>(api: &Api<K>, name: &str) -> Result<()> {
    let mut object = K::default();
    object.meta_mut().name = Some(name.to_owned());
    match api.create(&PostParams::default(), &object).await {
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        outcome => Ok(outcome.map(drop)?),
    }
}
