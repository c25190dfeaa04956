//! The control plane of the benchmark, and what its API server counted.

use std::collections::BTreeMap;
use std::ops::Sub;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use http::Request;
use kube::{Client, Config};
use serde_json::{Value, json};

use csi_attacher_kube::apiserver::connect;

use super::attacher::PHASE_LIMIT;
use super::process::group_cpu;
use super::recorder::Recorder;
use super::requests::{self, Prepared};
use super::support::{ControlPlane, Error, Options, Result, operator};
use super::usage::Usage;

/// The driver that the operator serves.
pub const DRIVER: &str = "bench.csi.test";
/// The driver of the ceilings' objects, which nobody serves.
pub const NOBODYS_DRIVER: &str = "ceiling.csi.test";
/// A well-filled node; the number of nodes follows from it.
pub const VOLUMES_ON_A_NODE: usize = 50;
/// Size of the small burst, for which each control plane has nodes enough.
pub const SMALL_BURST: usize = 200;

/// A control plane with nodes, and the instruments.
pub struct Bench {
    // Dropped before the API server that it watches.
    pub recorder: Recorder,
    pub client: Client,
    pub cluster: ControlPlane,
}

impl Bench {
    /// Starts a control plane without audit log, which would cost the API server time that it has in no cluster by default.
    /// Its nodes have these drivers, and are enough for `volumes` of each.
    pub async fn start_for(volumes: usize, drivers: &[&str]) -> Result<Self> {
        super::progress("starting etcd and kube-apiserver");
        let cluster = ControlPlane::start(Options::default()).await?;
        operator::install(&cluster).await?;
        let config: Config = cluster.admin_config().await?;
        let client = connect(&config).map_err(|error| Error::Other(error.to_string()))?;
        let bench = Self {
            recorder: Recorder::start(config)?,
            client,
            cluster,
        };
        // That of the claims, where the events about them are written.
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": requests::CLAIMS}});
        bench.cluster.apply_yaml(&namespace.to_string()).await?;
        // Each driver comes with one; a missing one is a finding, which the operator reports.
        for driver in drivers {
            let csi_driver = json!({
                "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": driver},
                "spec": {"attachRequired": true},
            });
            bench.cluster.apply_yaml(&csi_driver.to_string()).await?;
            operator::release_lease(&bench.client, operator::IDENTITY, driver).await?;
        }
        let nodes = volumes.max(SMALL_BURST) / VOLUMES_ON_A_NODE + 1;
        bench.create_nodes("node", nodes, drivers).await?;
        bench.wait_watched().await?;
        Ok(bench)
    }

    /// The recorder's own watch has to be open before somebody counts those of an attacher.
    async fn wait_watched(&self) -> Result<()> {
        let started = Instant::now();
        while !Usage::read(&self.client)
            .await?
            .watches
            .contains_key("volumeattachments")
        {
            if started.elapsed() > PHASE_LIMIT {
                return Err(Error::Other("the watch of the benchmark does not begin".to_owned()));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Makes nodes that have these drivers.
    pub async fn create_nodes(&self, group: &str, count: usize, drivers: &[&str]) -> Result<()> {
        let create = (0..count).map(|number| Prepared::create_csi_node(&name(group, number), drivers));
        requests::send_all(&self.client, create.collect()).await.map(drop)
    }

    /// A kubeconfig of a service account that may do everything, whose requests the API server ranks like those of the
    /// operator, but queues apart.
    pub async fn service_account(&self) -> Result<PathBuf> {
        const ACCOUNT: &str = "bench-writer";
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": ACCOUNT},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": ACCOUNT}],
        });
        self.cluster.apply_yaml(&binding.to_string()).await?;
        self.cluster.kubeconfig_for_service_account(ACCOUNT, ACCOUNT).await
    }

    /// A client of that service account.
    pub async fn writer(&self) -> Result<Client> {
        let kubeconfig = self.service_account().await?;
        let config = csi_attacher_kube::apiserver::load_config(Some(&kubeconfig)).await;
        let config = config.map_err(|error| Error::Other(error.to_string()))?;
        connect(&config).map_err(|error| Error::Other(error.to_string()))
    }

    /// Makes the PersistentVolumes of a group.
    pub async fn create_volumes(&self, group: &str, driver: &str, count: usize) -> Result<()> {
        let create = (0..count).map(|number| Prepared::create_volume(&name(group, number), driver));
        requests::send_all(&self.client, create.collect()).await.map(drop)
    }

    /// The VolumeAttachments of a group, ready to be made.
    pub fn attachments(group: &str, driver: &str, count: usize) -> Vec<Prepared> {
        (0..count)
            .map(|number| Self::attachment(group, driver, number))
            .collect()
    }

    /// One of them.
    pub fn attachment(group: &str, driver: &str, number: usize) -> Prepared {
        let name = name(group, number);
        let node = format!("node-{}", number / VOLUMES_ON_A_NODE);
        Prepared::create_attachment(&name, driver, &name, &node)
    }

    /// Deletes the VolumeAttachments of a group; their finalizers hold them.
    pub async fn delete_attachments(&self, group: &str, count: usize) -> Result<()> {
        let delete = (0..count).map(|number| Prepared::delete_attachment(&name(group, number)));
        requests::send_all(&self.client, delete.collect()).await.map(drop)
    }

    /// Deletes the PersistentVolumes of a group.
    pub async fn delete_volumes(&self, group: &str, count: usize) -> Result<()> {
        let delete = (0..count).map(|number| Prepared::delete_volume(&name(group, number)));
        requests::send_all(&self.client, delete.collect()).await.map(drop)
    }

    /// The process groups of etcd and kube-apiserver.
    pub fn component_groups(&self) -> Result<[u32; 2]> {
        match self.cluster.process_groups()[..] {
            [apiserver, etcd] => Ok([etcd, apiserver]),
            ref other => Err(Error::Other(format!("{} components instead of two", other.len()))),
        }
    }

    /// CPU time of etcd and kube-apiserver so far.
    pub fn control_plane_cpu(&self) -> Result<Duration> {
        self.component_groups()?.into_iter().map(group_cpu).sum()
    }

    /// What the API server counted so far.
    pub async fn counts(&self) -> Result<Counts> {
        let request = Request::get("/metrics")
            .body(Vec::new())
            .map_err(|error| Error::Other(error.to_string()))?;
        let text = self.client.request_text(request).await;
        Ok(Counts::read(&text.map_err(|error| {
            Error::Other(format!("metrics of the API server: {error}"))
        })?))
    }
}

/// Waits until all PersistentVolumes are gone. A list of one object costs nothing; a watch of all would cost the API
/// server during all phases.
pub async fn no_volumes(bench: &Bench) -> Result<()> {
    let list = Prepared::list_volumes(1);
    let started = Instant::now();
    loop {
        let answer: Value = list.send_for(&bench.client).await?;
        if answer["items"].as_array().is_some_and(Vec::is_empty) {
            return Ok(());
        }
        if started.elapsed() > PHASE_LIMIT {
            return Err(Error::Other("PersistentVolumes are not released".to_owned()));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Name of object number `number` of a group, for PersistentVolume and VolumeAttachment alike.
pub fn name(group: &str, number: usize) -> String {
    format!("{group}-{number}")
}

/// The patches and updates that the API server answered, by resource and whether they succeeded. While an operator runs,
/// the benchmark itself only creates and deletes, so that all of these are the operator's.
#[derive(Clone, Debug, Default)]
pub struct Counts(BTreeMap<String, i64>);

impl Counts {
    /// Reads `apiserver_request_total`, which costs nothing while the clock runs.
    fn read(text: &str) -> Self {
        let mut counts = BTreeMap::new();
        for line in text.lines().filter(|line| line.starts_with("apiserver_request_total{")) {
            let label = |name: &str| {
                let (_, rest) = line.split_once(&format!("{name}=\""))?;
                rest.split_once('"').map(|(value, _)| value)
            };
            let (Some(verb), Some(code), Some(resource)) = (label("verb"), label("code"), label(",resource")) else {
                continue;
            };
            if !matches!(verb, "PATCH" | "APPLY" | "PUT") {
                continue;
            }
            let subresource = label("subresource").filter(|text| !text.is_empty());
            let subresource = subresource.map(|text| format!("/{text}")).unwrap_or_default();
            let refused = if code.starts_with('2') { "" } else { " refused" };
            let count = line.rsplit(' ').next().and_then(|count| count.parse::<f64>().ok());
            #[allow(clippy::cast_possible_truncation, reason = "counters of this run are small")]
            let count = count.unwrap_or_default() as i64;
            *counts.entry(format!("{resource}{subresource}{refused}")).or_default() += count;
        }
        Self(counts)
    }

    /// All writes of PersistentVolumes and VolumeAttachments, whether they succeeded or not.
    pub fn writes(&self) -> i64 {
        let ours =
            |resource: &str| resource.starts_with("persistentvolumes") || resource.starts_with("volumeattachments");
        self.0.iter().filter(|(key, _)| ours(key)).map(|(_, count)| count).sum()
    }

    /// Those of them that were refused (404, 409, 422 and the like).
    pub fn refused(&self) -> i64 {
        let refused = self.0.iter().filter(|(key, _)| key.ends_with(" refused"));
        refused.map(|(_, count)| count).sum()
    }
}

impl Sub for &Counts {
    type Output = Counts;

    fn sub(self, earlier: &Counts) -> Counts {
        let difference = |(key, count): (&String, &i64)| {
            let before = earlier.0.get(key).copied().unwrap_or_default();
            (key.clone(), count - before)
        };
        Counts(self.0.iter().map(difference).collect())
    }
}
