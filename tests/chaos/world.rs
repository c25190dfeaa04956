//! The cluster of a run: a control plane, drivers, volumes, nodes, and replicas of the operator, each behind a link of its own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use csi_attacher_model::api::names::{lease_name, provisioner_lease_name};
use csi_mock_driver::{CallRecord, Method, MockDriver, MockHandle};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio_util::task::AbortOnDropHandle;

use super::history::{Process, provisioner};
use super::link::Link;
use super::other;
use super::recorder::Recorder;
use super::secrets;
use super::watched::Watched;
use crate::support::operator::{self, IDENTITY, apply_config, wait_condition};
use crate::support::{ControlPlane, Fixtures, Operator, OperatorOptions, Options, Result, Volume};

/// Where all claims are.
pub const NAMESPACE: &str = "default";
/// What binds and releases, and nothing that would take VolumeAttachments away for which there is no pod. It looks again soon at what it
/// could not write.
const CONTROLLER_MANAGER: [&str; 4] = [
    "--controllers=serviceaccount-controller,persistentvolume-binder-controller,persistentvolumeclaim-protection-controller,\
     persistentvolume-protection-controller",
    "--pvclaimbinder-sync-period=2s",
    "--kube-api-qps=500",
    "--kube-api-burst=1000",
];
/// Where the Leases of a driver are moved to by some faults.
pub const OTHER_NAMESPACE: &str = "chaos-leases";
/// `spec.leaderElection.renewDeadline` of all drivers.
pub const RENEW_DEADLINE: SignedDuration = SignedDuration::from_secs(2);
/// Longer than a process needs to start or to end.
const PROCESS_LIMIT: Duration = Duration::from_mins(1);
/// The default of `--shutdown-grace-period`, and a moment: a volume whose VolumeAttachment was removed by force is tried to be detached
/// for as long, as no other replica knows of it.
const GRACE_LIMIT: Duration = Duration::from_secs(75 + 2);

/// A program of the operator.
#[derive(Clone, Debug)]
pub struct Program {
    pub version: &'static str,
    pub path: PathBuf,
}

/// The program that was built with this test.
pub fn this_version() -> Program {
    let path = env!("CARGO_BIN_EXE_csi-attacher-operator").into();
    Program { version: "new", path }
}

/// How large a world is.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    pub drivers: usize,
    /// Of each driver. Each fourth may be at many nodes.
    pub volumes: usize,
    pub nodes: usize,
    pub replicas: usize,
    /// Claims of each driver that provisions, which every other one does; without any, none does.
    pub claims: usize,
}

/// A driver with its AttacherConfig.
pub struct Driver {
    pub name: String,
    /// Name of the AttacherConfig.
    pub config: String,
    pub spec: Value,
    pub mock: MockHandle,
    /// Who changes how it behaves; one at a time.
    pub behaviour: Mutex<()>,
    /// Who changes its AttacherConfig.
    pub settings: Mutex<()>,
    /// Who changes its publish Secret.
    pub secret: Mutex<()>,
}

/// A replica: its process may be another one from time to time.
pub struct Replica {
    pub number: usize,
    pub link: Link,
    /// Who does something to the process holds this.
    pub running: Mutex<Option<Running>>,
    /// Name of the last process.
    pub identity: parking_lot::Mutex<String>,
}

/// A process of a replica.
pub struct Running {
    pub identity: String,
    pub pid: u32,
    pub program: Program,
    operator: Operator,
}

/// Everything of a run.
pub struct World {
    pub scale: Scale,
    pub recorder: Recorder,
    pub client: Client,
    pub watched: Watched,
    // In this order: replicas before drivers and the API server.
    pub replicas: Vec<Replica>,
    pub drivers: Vec<Driver>,
    pub fixtures: Fixtures,
    pub cluster: Arc<ControlPlane>,
    /// Who stops parts of the control plane.
    pub control_plane: Mutex<()>,
    logs: Option<PathBuf>,
    /// What the drivers call the volumes of PersistentVolumes that were made for claims.
    handles: parking_lot::Mutex<BTreeMap<String, String>>,
    /// Held by the fault whose admission policy is in effect.
    pub policy: Mutex<()>,
    _sockets: tempfile::TempDir,
    _stalls: AbortOnDropHandle<()>,
}

/// Name of a node; the drivers know it by the same.
pub fn node(number: usize) -> String {
    format!("node-{number}")
}

/// Name of a volume: of the PersistentVolume and at the driver.
pub fn volume(driver: usize, number: usize) -> String {
    format!("d{driver}-v{number:02}")
}

/// Name of a claim.
pub fn claim_name(driver: usize, number: usize) -> String {
    format!("d{driver}-c{number:02}")
}

impl Driver {
    /// Whether its volumes are made for claims too.
    pub fn provisions(&self) -> bool {
        self.spec.get("provisioning").is_some()
    }
}

/// Whether a volume may be at many nodes.
pub fn is_shared(number: usize) -> bool {
    number % 4 == 3
}

impl World {
    /// The Lease of those who attach for a driver.
    pub async fn lease(&self, driver: &Driver) -> Result<LeaseSpec> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), IDENTITY);
        let lease = leases.get_opt(&lease_name(&driver.name)).await?;
        Ok(lease.and_then(|lease| lease.spec).unwrap_or_default())
    }

    /// Starts everything but the replicas.
    pub async fn set(scale: Scale, recorder: Recorder) -> Result<Self> {
        let options = Options {
            controller_manager: scale.claims > 0,
            controller_manager_args: CONTROLLER_MANAGER.map(str::to_owned).to_vec(),
            ..Options::default()
        };
        let cluster = Arc::new(Box::pin(ControlPlane::start(options)).await?);
        let client = cluster.admin_client().await?;
        let fixtures = Fixtures::new(client.clone()).with_limit(PROCESS_LIMIT);
        operator::install(&cluster).await?;
        operator::grant_provisioning(&cluster).await?;
        cluster.apply_yaml(&lease_rights()).await?;
        let sockets = tempfile::tempdir()?;
        let mut drivers = Vec::new();
        for number in 0..scale.drivers {
            let provisions = scale.claims > 0 && number.is_multiple_of(2);
            let driver = driver(number, &sockets, &fixtures, scale.volumes, provisions).await?;
            cluster.apply_yaml(&classes(&driver)).await?;
            operator::grant_secret(&cluster, secrets::NAMESPACE, &driver.config).await?;
            drivers.push(driver);
        }
        let names: Vec<String> = drivers.iter().map(|driver| driver.name.clone()).collect();
        for number in 0..scale.nodes {
            let (node, of_node) = (node(number), node(number));
            let registered: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), of_node.as_str())).collect();
            fixtures.csi_node_with(&node, &registered).await?;
        }
        let replicas = replicas(&cluster, &recorder, &names, scale.replicas).await?;
        let logs = std::env::var_os("CHAOS_LOGS").map(PathBuf::from);
        if let Some(folder) = &logs {
            std::fs::create_dir_all(folder)?;
        }
        let watched = Watched::start(cluster.admin_client().await?, recorder.clone());
        let world = Self {
            scale,
            _stalls: recorder.watch_stalls(),
            recorder,
            client,
            watched,
            replicas,
            drivers,
            fixtures,
            cluster,
            control_plane: Mutex::default(),
            logs,
            handles: parking_lot::Mutex::default(),
            policy: Mutex::new(()),
            _sockets: sockets,
        };
        for driver in &world.drivers {
            secrets::put(&world, driver, true).await?;
        }
        Ok(world)
    }

    /// Starts all replicas, and waits until one of them works for each driver.
    pub async fn start_replicas(&self, program: &Program) -> Result<()> {
        for replica in &self.replicas {
            let mut running = replica.running.lock().await;
            self.start(replica, &mut running, &format!("replica-{}", replica.number), program)
                .await?;
        }
        for driver in &self.drivers {
            apply_config(&self.client, &driver.config, driver.spec.clone()).await?;
        }
        // The former release works under this CRD, and can write no status.
        if program.version == this_version().version {
            for driver in &self.drivers {
                wait_condition(&self.client, &driver.config, "Ready", "True", Some("Running")).await?;
                if driver.provisions() {
                    wait_condition(&self.client, &driver.config, "ProvisioningReady", "True", None).await?;
                }
            }
        }
        Ok(())
    }

    /// Starts a process of a replica.
    pub async fn start(
        &self,
        replica: &Replica,
        running: &mut Option<Running>,
        identity: &str,
        program: &Program,
    ) -> Result<()> {
        let options = OperatorOptions::new(&program.path).argument(format!("--identity={identity}"));
        let started = Timestamp::now();
        let operator = Operator::start_with(replica.link.kubeconfig(), options)?;
        let find = async {
            loop {
                // `env` becomes the operator.
                match operator.pid() {
                    Ok(pid) => return pid,
                    Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                }
            }
        };
        let pid = tokio::time::timeout(PROCESS_LIMIT, find).await.map_err(other)?;
        self.recorder.started(Process {
            identity: identity.to_owned(),
            pid,
            version: program.version,
            started,
            ended: None,
            stops: Vec::new(),
        });
        identity.clone_into(&mut replica.identity.lock());
        let text = format!("{identity} begins as process {pid} ({})", program.version);
        self.recorder.note("", text);
        *running = Some(Running {
            identity: identity.to_owned(),
            pid,
            program: program.clone(),
            operator,
        });
        Ok(())
    }

    /// Ends a process by a signal, and waits until it is gone.
    pub async fn end(&self, mut running: Running, signal: &str) -> Result<()> {
        running.operator.signal(signal)?;
        if running.operator.wait_ended(GRACE_LIMIT).await.is_err() {
            let text = format!("does not end within {GRACE_LIMIT:?} after SIG{signal}");
            self.recorder
                .finding(super::checker::Kind::Overdue, &running.identity, text);
            running.operator.signal("KILL")?;
            running.operator.wait_ended(PROCESS_LIMIT).await?;
        }
        self.recorder.ended(running.pid);
        self.take_log(&running);
        Ok(())
    }

    /// Looks whether processes ended that nobody ended, and starts them again.
    pub async fn look_after_replicas(&self) -> Result<()> {
        for replica in &self.replicas {
            let mut running = replica.running.lock().await;
            let Some(process) = running.as_mut() else { continue };
            let Err(_) = process.operator.pid() else { continue };
            let (identity, program) = (process.identity.clone(), process.program.clone());
            let log = process.operator.log_text();
            let tail: Vec<&str> = log.lines().rev().take(5).collect();
            self.recorder.ended(process.pid);
            let text = format!(
                "{identity} ended by itself; the end of its log, last line first: {}",
                tail.join("\n")
            );
            self.recorder
                .finding(super::checker::Kind::ProcessEnded, &identity, text);
            self.take_log(process);
            self.start(replica, &mut running, &identity, &program).await?;
        }
        Ok(())
    }

    /// Keeps the logs of those that run, if `CHAOS_LOGS` names a folder.
    pub async fn keep_logs(&self) {
        for replica in &self.replicas {
            if let Some(running) = &*replica.running.lock().await {
                self.keep_log(running);
            }
        }
    }

    /// The logs of those that run, with their names.
    pub async fn logs(&self) -> Vec<(String, String)> {
        let mut logs = Vec::new();
        for replica in &self.replicas {
            if let Some(running) = &*replica.running.lock().await {
                logs.push((running.identity.clone(), running.operator.log_text()));
            }
        }
        logs
    }

    /// The log of a process that is over.
    fn take_log(&self, running: &Running) {
        let what = format!("the log of {}", running.identity);
        secrets::look_in(self, &what, &running.operator.log_text());
        self.keep_log(running);
    }

    fn keep_log(&self, running: &Running) {
        if let Some(folder) = &self.logs {
            let path = folder.join(format!("{}-{}.log", running.identity, running.pid));
            if let Err(error) = std::fs::write(&path, running.operator.log_text()) {
                self.recorder
                    .note("", format!("cannot write {}: {error}", path.display()));
            }
        }
    }

    /// The claims: numbers of their drivers, and their own.
    pub fn claims(&self) -> Vec<(usize, usize)> {
        let drivers = self
            .drivers
            .iter()
            .enumerate()
            .filter(|(_, driver)| driver.provisions());
        let of_driver = |(driver, _)| (0..self.scale.claims).map(move |number| (driver, number));
        drivers.flat_map(of_driver).collect()
    }

    /// A PersistentVolume was bound to a claim.
    pub fn bound(&self, name: &str, handle: &str) {
        self.handles.lock().insert(name.to_owned(), handle.to_owned());
    }

    /// What the driver calls the volume of a PersistentVolume that was attached.
    pub fn handle_of(&self, name: &str) -> String {
        self.handles
            .lock()
            .get(name)
            .cloned()
            .unwrap_or_else(|| name.to_owned())
    }

    /// What the drivers recorded.
    pub fn calls(&self) -> Vec<(String, Vec<CallRecord>)> {
        self.drivers
            .iter()
            .map(|driver| (driver.name.clone(), driver.mock.calls()))
            .collect()
    }

    /// Takes all faults of links and drivers back.
    pub fn heal(&self) {
        self.replicas.iter().for_each(|replica| replica.link.heal());
        self.drivers.iter().for_each(|driver| driver.mock.clear_rules());
    }
}

/// Replicas that do not run yet, each with its way to the API server.
async fn replicas(
    cluster: &ControlPlane,
    recorder: &Recorder,
    drivers: &[String],
    count: usize,
) -> Result<Vec<Replica>> {
    let leases: BTreeMap<String, String> = drivers.iter().flat_map(|name| leases_of(name)).collect();
    let original = cluster.kubeconfig_for_service_account(IDENTITY, IDENTITY).await?;
    let mut replicas = Vec::new();
    for number in 0..count {
        let (name, http2) = (format!("link-{number}"), number % 2 == 0);
        let link = Link::start(&original, &name, http2, recorder.clone(), leases.clone()).await?;
        replicas.push(Replica {
            number,
            link,
            running: Mutex::default(),
            identity: parking_lot::Mutex::default(),
        });
    }
    Ok(replicas)
}

/// The Leases of a driver by name, each with whose it is.
pub fn leases_of(driver: &str) -> [(String, String); 2] {
    let provisions = (provisioner_lease_name(driver), provisioner(driver));
    [(lease_name(driver), driver.to_owned()), provisions]
}

/// The right to Leases in the other namespace, as the chart grants it for `leaderElection.namespace`.
fn lease_rights() -> String {
    let verbs = ["get", "list", "watch", "create", "update", "patch"];
    let rules = json!([{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": verbs}]);
    let metadata = json!({"name": "chaos-leases", "namespace": OTHER_NAMESPACE});
    let documents = [
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OTHER_NAMESPACE}}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata, "rules": rules}),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": metadata,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "chaos-leases"},
            "subjects": [{"kind": "ServiceAccount", "name": IDENTITY, "namespace": IDENTITY}],
        }),
    ];
    documents.map(|document| document.to_string()).join("\n---\n")
}

/// The classes of a driver, one for each policy.
fn classes(driver: &Driver) -> String {
    let class = |name: &str, policy: &str| {
        json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name}, "provisioner": driver.name,
            "reclaimPolicy": policy, "volumeBindingMode": "Immediate",
        })
        .to_string()
    };
    let retain = class(&format!("{}-retain", driver.config), "Retain");
    format!("{}\n---\n{retain}", class(&driver.config, "Delete"))
}

/// The settings of a driver.
fn spec(name: &str, config: &str, socket: &Path, provisions: bool) -> Value {
    let mut spec = json!({
        "publishSecrets": secrets::listed(config),
        "endpoint": format!("unix://{}", socket.display()),
        "driverName": name,
        "leaderElection": {"leaseDuration": "3s", "renewDeadline": "2s", "retryPeriod": "500ms"},
        "backoff": {"initial": "100ms", "max": "2s"},
        "timeouts": {"publish": "6s", "unpublish": "6s", "probe": "3s", "identity": "3s", "listVolumes": "5s"},
        "reconcileSync": {"interval": "3s"},
    });
    if provisions {
        spec["provisioning"] = json!({
            "backoff": {"initial": "100ms", "max": "2s"}, "timeouts": {"create": "6s", "delete": "6s"},
        });
    }
    spec
}

async fn driver(
    number: usize,
    sockets: &tempfile::TempDir,
    fixtures: &Fixtures,
    volumes: usize,
    provisions: bool,
) -> Result<Driver> {
    let (name, config) = (format!("d{number}.chaos.test"), format!("d{number}"));
    let socket = sockets.path().join(format!("d{number}.sock"));
    // Calls of the first driver last long, so that most faults find some of them under way.
    let delays = if number.is_multiple_of(3) {
        [900, 600]
    } else {
        [120, 80]
    };
    let builder = MockDriver::builder(&name)
        .keep_calls(2_000_000)
        .delay(Method::ControllerPublishVolume, Duration::from_millis(delays[0]))
        .delay(Method::ControllerUnpublishVolume, Duration::from_millis(delays[1]))
        .delay(Method::CreateVolume, Duration::from_millis(delays[0]))
        .delay(Method::DeleteVolume, Duration::from_millis(delays[1]))
        // The second driver does not look where else a volume is, as those of many storage systems; the third refuses to do
        // two things at a time, as others do.
        .settings(|settings| {
            settings.refuse_second_node = number % 3 != 1;
            settings.abort_overlapping = number % 3 == 2;
            settings.refuse_truly = true;
            let with_secret = (0..volumes).filter(|of| secrets::has_secret(*of));
            settings.volume_secrets = with_secret.map(|of| (volume(number, of), secrets::wanted())).collect();
        });
    let builder = (0..volumes).fold(builder, |builder, of| builder.volume(volume(number, of)));
    let mock = builder.start(&socket).await?;
    fixtures.csi_driver(&name, true).await?;
    for of in 0..volumes {
        let handle = volume(number, of);
        let persistent = Volume::new(&handle, &name, &handle);
        let persistent = if secrets::has_secret(of) {
            persistent.publish_secret(secrets::NAMESPACE, &config)
        } else {
            persistent
        };
        let persistent = if is_shared(of) {
            persistent.access_modes(&["ReadWriteMany"])
        } else {
            persistent
        };
        fixtures.persistent_volume(&persistent).await?;
    }
    let spec = spec(&name, &config, &socket, provisions);
    Ok(Driver {
        name,
        config,
        spec,
        mock,
        behaviour: Mutex::default(),
        settings: Mutex::default(),
        secret: Mutex::default(),
    })
}
