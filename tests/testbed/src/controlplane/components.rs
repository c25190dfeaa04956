//! The flags of each component, and how it is known to be ready.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::ServiceAccount;
use kube::{Api, Client};

use super::super::error::{Context, Error, Result};
use super::audit::{self, AuditLog};
use super::pki::{self, Authority, IdentityFiles};
use super::watchdog::{Output, Watched};
use super::{Options, Tracing, ports, programs};

/// Where the programs are.
#[derive(Clone, Debug)]
pub struct Programs {
    etcd: PathBuf,
    apiserver: PathBuf,
    controller_manager: Option<PathBuf>,
}

impl Programs {
    /// Finds or builds the programs.
    pub async fn locate(with_controller_manager: bool) -> Result<Self> {
        let [etcd, apiserver] = programs::locate(["etcd", "kube-apiserver"]).await?;
        let mut programs = Self {
            etcd,
            apiserver,
            controller_manager: None,
        };
        if with_controller_manager {
            programs.controller_manager = Some(controller_manager().await?);
        }
        Ok(programs)
    }
}

async fn controller_manager() -> Result<PathBuf> {
    let [path] = programs::locate(["kube-controller-manager"]).await?;
    Ok(path)
}

/// All that stays the same when a component is started again.
pub struct Installation {
    /// What the test asked for.
    pub options: Options,
    programs: Programs,
    folder: PathBuf,
    files: Files,
    ports: Ports,
}

struct Files {
    authority: PathBuf,
    server: IdentityFiles,
    etcd_client: IdentityFiles,
    signing_key: PathBuf,
    verification_key: PathBuf,
    audit_policy: PathBuf,
    tracing: PathBuf,
}

struct Ports {
    etcd: u16,
    etcd_peer: u16,
    apiserver: u16,
}

impl Installation {
    /// Chooses ports and writes keys, certificates and the audit policy into `folder`.
    pub fn prepare(options: Options, programs: Programs, folder: &Path, authority: &Authority) -> Result<Self> {
        let server = authority.server(&[
            "127.0.0.1",
            "localhost",
            "10.96.0.1",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
        ])?;
        let files = Files {
            authority: folder.join("ca.crt"),
            server: server.write(folder, "server")?,
            etcd_client: authority.client("kube-apiserver", None)?.write(folder, "etcd-client")?,
            signing_key: folder.join("service-account.key"),
            verification_key: folder.join("service-account.pub"),
            audit_policy: folder.join("audit-policy.yaml"),
            tracing: folder.join("tracing.yaml"),
        };
        pki::write_private(&files.authority, authority.certificate())?;
        let (private, public) = pki::signing_key_pair()?;
        pki::write_private(&files.signing_key, &private)?;
        pki::write_private(&files.verification_key, &public)?;
        pki::write_private(&files.audit_policy, audit::POLICY)?;
        if let Some(tracing) = &options.tracing {
            pki::write_private(&files.tracing, &tracing_configuration(tracing))?;
        }
        let ports = Ports {
            etcd: ports::free_port()?,
            etcd_peer: ports::free_port()?,
            apiserver: ports::free_port()?,
        };
        Ok(Self {
            options,
            programs,
            folder: folder.to_owned(),
            files,
            ports,
        })
    }

    /// The address of the API server.
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.ports.apiserver)
    }

    /// Starts etcd and waits until it takes connections.
    pub async fn start_etcd(&self) -> Result<Watched> {
        let mut etcd = self.spawn("etcd", &self.programs.etcd, &self.etcd_args(), Output::Log)?;
        etcd.wait_ready(|| ports::takes_connections(self.ports.etcd)).await?;
        Ok(etcd)
    }

    /// Makes the data of etcd from a copy of it.
    pub async fn restore_etcd(&self, etcdutl: &Path, backup: &Path, bump: u64) -> Result<()> {
        let snapshot = backup.join("member/snap/db");
        let peer_url = format!("http://127.0.0.1:{}", self.ports.etcd_peer);
        let output = tokio::process::Command::new(etcdutl)
            .args(["snapshot", "restore"])
            .arg(snapshot)
            .args([
                flag("data-dir", path(&self.folder.join("etcd"))),
                flag("name", "test"),
                flag("initial-cluster", format!("test={peer_url}")),
                flag("initial-advertise-peer-urls", &peer_url),
                flag("bump-revision", bump),
                flag("mark-compacted", true),
                // The copy is that of the folder, not what etcdctl makes with a hash at its end.
                flag("skip-hash-check", true),
            ])
            .output()
            .await
            .while_trying(|| format!("run {}", etcdutl.display()))?;
        if output.status.success() {
            return Ok(());
        }
        Err(Error::Other(String::from_utf8_lossy(&output.stderr).into_owned()))
    }

    /// Starts kube-apiserver and waits until it calls itself ready, which includes the default RBAC objects.
    pub async fn start_apiserver(&self, audit: Option<&AuditLog>, client: &Client) -> Result<Watched> {
        let output = if audit.is_some() { Output::Pipe } else { Output::Log };
        let args = self.apiserver_args();
        let mut apiserver = self.spawn("kube-apiserver", &self.programs.apiserver, &args, output)?;
        if let (Some(audit), Some(stdout)) = (audit, apiserver.take_stdout()) {
            audit.follow(stdout)?;
        }
        apiserver.wait_ready(|| calls_itself_ready(client)).await?;
        Ok(apiserver)
    }

    /// Starts kube-controller-manager and waits for the first thing that tests need of it: the default service
    /// account, without which no pod is admitted. It serves no port that could be asked.
    pub async fn start_controller_manager(&self, kubeconfig: &Path, client: &Client) -> Result<Watched> {
        let program = match &self.programs.controller_manager {
            Some(program) => program.clone(),
            None => controller_manager().await?,
        };
        let args = self.controller_manager_args(kubeconfig);
        let mut manager = self.spawn("kube-controller-manager", &program, &args, Output::Log)?;
        let accounts = Api::<ServiceAccount>::namespaced(client.clone(), "default");
        manager.wait_ready(|| has_made_an_account(&accounts)).await?;
        Ok(manager)
    }

    fn spawn(&self, name: &'static str, program: &Path, args: &[String], output: Output) -> Result<Watched> {
        let log = self.folder.join(format!("{name}.log"));
        // Collecting garbage is a fifth of what a young API server does: with a larger heap it does so less often.
        let mut command = vec!["GOGC=400".to_owned()];
        if self.options.tracing.is_some() {
            // Who waits for spans need not wait the five seconds for which components collect them.
            command.push("OTEL_BSP_SCHEDULE_DELAY=200".to_owned());
        }
        command.push(path(program).to_string());
        command.extend_from_slice(args);
        Watched::spawn(name, Path::new("/usr/bin/env"), &command, &log, output)
    }

    fn etcd_args(&self) -> Vec<String> {
        let client_url = format!("https://127.0.0.1:{}", self.ports.etcd);
        let peer_url = format!("http://127.0.0.1:{}", self.ports.etcd_peer);
        let mut args = vec![
            flag("name", "test"),
            flag("data-dir", path(&self.folder.join("etcd"))),
            flag("listen-client-urls", &client_url),
            flag("advertise-client-urls", &client_url),
            flag("listen-peer-urls", &peer_url),
            flag("initial-advertise-peer-urls", &peer_url),
            flag("initial-cluster", format!("test={peer_url}")),
            flag("client-cert-auth", true),
            flag("trusted-ca-file", path(&self.files.authority)),
            flag("cert-file", path(&self.files.server.certificate)),
            flag("key-file", path(&self.files.server.key)),
            // The data need not survive a crash of the machine, and waiting for the disk is most of a write.
            flag("unsafe-no-fsync", true),
            // Benchmarks write more than the 2 GiB which etcd allows by default.
            flag("quota-backend-bytes", 8_u64 << 30),
            flag("log-level", "warn"),
        ];
        if let Some(tracing) = &self.options.tracing {
            args.push(flag("enable-distributed-tracing", true));
            args.push(flag("distributed-tracing-address", &tracing.collector));
        }
        args
    }

    fn apiserver_args(&self) -> Vec<String> {
        let files = &self.files;
        let mut args = vec![
            flag("etcd-servers", format!("https://127.0.0.1:{}", self.ports.etcd)),
            flag("etcd-cafile", path(&files.authority)),
            flag("etcd-certfile", path(&files.etcd_client.certificate)),
            flag("etcd-keyfile", path(&files.etcd_client.key)),
            flag("bind-address", "127.0.0.1"),
            flag("advertise-address", "127.0.0.1"),
            // A loopback address may not be published as endpoint of the service "kubernetes".
            flag("endpoint-reconciler-type", "none"),
            flag("secure-port", self.ports.apiserver),
            flag("tls-cert-file", path(&files.server.certificate)),
            flag("tls-private-key-file", path(&files.server.key)),
            flag("client-ca-file", path(&files.authority)),
            flag("authorization-mode", "Node,RBAC"),
            flag("service-account-issuer", "https://kubernetes.default.svc"),
            flag("service-account-key-file", path(&files.verification_key)),
            flag("service-account-signing-key-file", path(&files.signing_key)),
            flag("service-cluster-ip-range", "10.96.0.0/16"),
            flag("allow-privileged", true),
            // What a test measures must not be a limit of the server.
            flag("max-requests-inflight", 3000),
            flag("max-mutating-requests-inflight", 1500),
        ];
        if !self.options.controller_manager {
            // Both rely on kube-controller-manager: one adds a finalizer to each PersistentVolume which nobody else
            // would remove, the other refuses pods until the default service account exists.
            args.push(flag(
                "disable-admission-plugins",
                "StorageObjectInUseProtection,ServiceAccount",
            ));
        }
        if self.options.audit {
            args.push(flag("audit-policy-file", path(&files.audit_policy)));
            args.push(flag("audit-log-path", "-"));
        }
        if self.options.tracing.is_some() {
            args.push(flag("tracing-config-file", path(&files.tracing)));
        }
        args.extend(self.options.apiserver_args.iter().cloned());
        args
    }

    fn controller_manager_args(&self, kubeconfig: &Path) -> Vec<String> {
        let mut args = vec![
            flag("kubeconfig", path(kubeconfig)),
            // Node lifecycle would mark nodes as lost that have no kubelet which renews their lease.
            flag("controllers", "*,-node-lifecycle-controller"),
            // As installers set it up: each controller has its own service account, so its own user in the audit log.
            flag("use-service-account-credentials", true),
            flag("service-account-private-key-file", path(&self.files.signing_key)),
            flag("root-ca-file", path(&self.files.authority)),
            flag("leader-elect", false),
            flag("secure-port", 0),
        ];
        args.extend(self.options.controller_manager_args.iter().cloned());
        args
    }
}

async fn calls_itself_ready(client: &Client) -> Result<()> {
    let request = http::Request::get("/readyz").body(Vec::new());
    let request = request.while_trying(|| "ask for /readyz".to_owned())?;
    Ok(client.request_text(request).await.map(drop)?)
}

async fn has_made_an_account(accounts: &Api<ServiceAccount>) -> Result<()> {
    Ok(accounts.get("default").await.map(drop)?)
}

fn tracing_configuration(tracing: &Tracing) -> String {
    format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\nendpoint: {}\nsamplingRatePerMillion: {}\n",
        tracing.collector, tracing.sampling_rate_per_million
    )
}

fn flag(name: &str, value: impl std::fmt::Display) -> String {
    format!("--{name}={value}")
}

fn path(path: &Path) -> std::path::Display<'_> {
    path.display()
}
