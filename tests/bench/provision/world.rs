//! Claims, their driver and what kube-controller-manager does for them: so the rates are not those of its limits.
//!
//! The claims come with the annotation by which it asks for a volume. Once a PersistentVolume is seen, the claim is bound: its
//! `spec.volumeName` and its phase are written, in the turns of all provisioners and of the ceilings alike.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::Client;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};

use csi_attacher_model::objects::{PersistentVolumeWire, Volume, VolumePhase};
use csi_mock_driver::{MockDriver, MockHandle};

use crate::attacher::PHASE_LIMIT;
use crate::cluster::{Bench, NOBODYS_DRIVER, name};
use crate::recorder::{Recorder, Sight, Stage};
use crate::requests::{CLAIMS, IN_FLIGHT, Prepared, VOLUMES, claims, each, send_all};
use crate::support::operator::{IDENTITY, apply_config, grant_provisioning, release_provisioner_lease};
use crate::support::{Error, Result};
use crate::usage::all_requests;

pub const DRIVER: &str = "provisioned.csi.test";
/// The class of the driver's claims.
pub const CLASS: &str = "bench";
/// The class of claims that nobody serves.
pub const NOBODYS_CLASS: &str = "nobody";
/// Group of claims that come bound.
pub const BOUND: &str = "bound";
/// How often it is looked whether the API server is quiet.
const LOOK: Duration = Duration::from_millis(500);
/// What is written here to bind a claim.
const BIND_WRITES: [&str; 2] = ["PATCH persistentvolumeclaims", "PATCH persistentvolumeclaims/status"];

/// The API server, the driver, and the watch of PersistentVolumes under the names of their claims.
pub struct World {
    // Dropped before the API server that it watches.
    pub volumes: Recorder,
    pub bench: Bench,
    pub driver: MockHandle,
    pub socket: PathBuf,
    /// Name and UID of the PersistentVolume of each claim.
    saved: Arc<Mutex<HashMap<String, (String, String)>>>,
    _folder: tempfile::TempDir,
}

impl World {
    /// With an AttacherConfig of these provisioning settings.
    pub async fn start(provisioning: Value) -> Result<Self> {
        let bench = Bench::start_for(1, &[DRIVER, NOBODYS_DRIVER]).await?;
        grant_provisioning(&bench.cluster).await?;
        release_provisioner_lease(&bench.client, IDENTITY, DRIVER).await?;
        let folder = tempfile::tempdir()?;
        let socket = folder.path().join("csi.sock");
        let driver = MockDriver::builder(DRIVER).start(&socket).await;
        let (seen, to_bind) = mpsc::unbounded_channel();
        tokio::spawn(bind(bench.writer().await?, to_bind));
        let saved = Arc::<Mutex<HashMap<_, _>>>::default();
        let noted = saved.clone();
        let volumes = Recorder::start_of(
            bench.cluster.admin_config().await?,
            move |volume: PersistentVolumeWire| {
                let volume = Volume::from(volume);
                let claim = volume
                    .claim
                    .as_ref()
                    .map(|claim| claim.name.to_string())
                    .unwrap_or_default();
                let is_bound = volume.lifecycle.phase == VolumePhase::Bound;
                if !is_bound && !claim.starts_with(BOUND) {
                    // The end of the scene is the only reason that nobody listens.
                    drop(seen.send((volume.name.to_string(), claim.clone())));
                }
                let named = (volume.name.to_string(), volume.uid.to_string());
                noted.lock().insert(claim.clone(), named);
                Sight {
                    name: claim,
                    attached: is_bound,
                }
            },
        )?;
        let world = Self {
            volumes,
            bench,
            driver: driver?,
            socket,
            saved,
            _folder: folder,
        };
        for (class, driver) in [(CLASS, DRIVER), (NOBODYS_CLASS, NOBODYS_DRIVER)] {
            world.add_class(class, driver).await?;
        }
        world.configure(provisioning).await?;
        Ok(world)
    }

    /// Makes claims; when each was made.
    pub async fn ask(&self, group: &str, class: &str, driver: &str, count: usize) -> Result<HashMap<String, Instant>> {
        let wanted = (0..count).map(|number| {
            let name = name(group, number);
            (Prepared::create(&claims(), &claim(&name, class, driver)), name)
        });
        let client = self.bench.client.clone();
        let (made, _) = each(wanted.collect(), move |(create, name): (Prepared, String)| {
            let client = client.clone();
            async move { create.send(&client).await.map(|_| (name, Instant::now())) }
        })
        .await?;
        Ok(made.into_iter().collect())
    }

    /// The same, one after another at this pace.
    pub async fn ask_at_pace(
        &self,
        group: &str,
        class: &str,
        driver: &str,
        count: usize,
        pace: Duration,
    ) -> Result<HashMap<String, Instant>> {
        let (mut pace, mut made) = (tokio::time::interval(pace), HashMap::new());
        for number in 0..count {
            pace.tick().await;
            let name = name(group, number);
            Prepared::create(&claims(), &claim(&name, class, driver))
                .send(&self.bench.client)
                .await?;
            made.insert(name, Instant::now());
        }
        Ok(made)
    }

    pub async fn wait(&self, group: &str, stage: Stage, count: usize) -> Result<()> {
        self.volumes.wait(group, stage, count, PHASE_LIMIT).await
    }

    /// Deletes the claims of a group, and marks their PersistentVolumes as released, as kube-controller-manager does then.
    pub async fn release(&self, group: &str, count: usize) -> Result<()> {
        let delete = (0..count).map(|number| Prepared::delete_claim(&name(group, number)));
        send_all(&self.bench.client, delete.collect()).await?;
        let status = json!({"status": {"phase": "Released"}});
        let release = self.saved_of(group, count)?;
        let release = release
            .iter()
            .map(|(volume, _)| Prepared::merge(&format!("{VOLUMES}/{volume}/status"), &status));
        send_all(&self.bench.client, release.collect()).await.map(drop)
    }

    /// Names and UIDs of the PersistentVolumes of a group of claims, all of which were seen.
    pub fn saved_of(&self, group: &str, count: usize) -> Result<Vec<(String, String)>> {
        let saved = self.saved.lock();
        let all: Vec<_> = (0..count)
            .filter_map(|number| saved.get(&name(group, number)).cloned())
            .collect();
        if all.len() == count {
            return Ok(all);
        }
        Err(Error::Other(format!(
            "{group}: {} of {count} PersistentVolumes are known",
            all.len()
        )))
    }

    /// Changes the settings of provisioning.
    pub async fn configure(&self, provisioning: Value) -> Result<()> {
        let endpoint = format!("unix://{}", self.socket.display());
        let spec = json!({"endpoint": endpoint, "driverName": DRIVER, "provisioning": provisioning});
        apply_config(&self.bench.client, "bench", spec).await.map(drop)
    }

    /// Makes a StorageClass.
    pub async fn add_class(&self, name: &str, driver: &str) -> Result<()> {
        let class = storage_class(name, driver).to_string();
        self.bench.cluster.apply_yaml(&class).await.map(drop)
    }

    /// What was requested until now, as soon as nothing more is written of claims and PersistentVolumes.
    pub async fn quiet(&self) -> Result<Requests> {
        let started = Instant::now();
        let mut before = Requests::read(&self.bench.client).await?;
        loop {
            tokio::time::sleep(LOOK).await;
            let now = Requests::read(&self.bench.client).await?;
            if now.writes() == before.writes() {
                return Ok(now);
            }
            if started.elapsed() > PHASE_LIMIT {
                return Err(Error::Other(
                    "claims and PersistentVolumes are written without end".to_owned(),
                ));
            }
            before = now;
        }
    }
}

/// What the API server was asked for, by verb and resource.
#[derive(Clone, Debug)]
pub struct Requests(BTreeMap<String, i64>);

impl Requests {
    pub async fn read(client: &Client) -> Result<Self> {
        all_requests(client).await.map(Self)
    }

    /// Of all clients since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        let difference = |(what, count): (&String, &i64)| {
            let before = earlier.0.get(what).copied().unwrap_or_default();
            (what.clone(), count - before)
        };
        Self(self.0.iter().map(difference).collect())
    }

    /// Writes of claims and PersistentVolumes.
    pub fn writes(&self) -> i64 {
        let is_write = |what: &str| {
            let (verb, resource) = what.split_once(' ').unwrap_or_default();
            !matches!(verb, "GET" | "LIST" | "WATCH") && resource.starts_with("persistentvolume")
        };
        self.0
            .iter()
            .filter(|(what, _)| is_write(what))
            .map(|(_, count)| count)
            .sum()
    }

    /// Without those of `count` claims that were bound here.
    pub fn without_bindings(mut self, count: usize) -> Self {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        for what in BIND_WRITES {
            *self.0.entry(what.to_owned()).or_default() -= count;
        }
        self
    }

    /// What was asked for of claims and PersistentVolumes.
    pub fn text(&self) -> String {
        let ours = |what: &str| what.contains("persistentvolume") && !what.starts_with("WATCH");
        let seen = self.0.iter().filter(|(what, count)| **count != 0 && ours(what));
        let parts: Vec<String> = seen.map(|(what, count)| format!("{what} {count}")).collect();
        parts.join(", ")
    }
}

fn storage_class(name: &str, driver: &str) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name}, "provisioner": driver,
        "reclaimPolicy": "Delete", "volumeBindingMode": "Immediate", "parameters": {"tier": "gold"},
    })
}

/// A claim as kube-controller-manager leaves it to a provisioner.
pub fn claim(name: &str, class: &str, driver: &str) -> Value {
    let annotations = json!({
        "volume.kubernetes.io/storage-provisioner": driver, "volume.beta.kubernetes.io/storage-provisioner": driver,
    });
    let spec = json!({
        "storageClassName": class, "accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem",
        "resources": {"requests": {"storage": "1Gi"}},
    });
    let metadata = json!({"name": name, "namespace": CLAIMS, "annotations": annotations, "labels": {"app": "bench"}});
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec})
}

/// Binds each claim to its PersistentVolume, once.
async fn bind(client: Client, mut saved: mpsc::UnboundedReceiver<(String, String)>) {
    let (mut seen, places) = (HashSet::new(), Arc::new(Semaphore::new(IN_FLIGHT)));
    while let Some((volume, claim)) = saved.recv().await {
        if !seen.insert(volume.clone()) {
            continue;
        }
        let Ok(place) = places.clone().acquire_owned().await else {
            return;
        };
        let client = client.clone();
        tokio::spawn(async move {
            let path = format!("{}/{claim}", claims());
            let named = Prepared::merge(&path, &json!({"spec": {"volumeName": volume}}));
            let bound = Prepared::merge(&format!("{path}/status"), &json!({"status": {"phase": "Bound"}}));
            for write in [named, bound] {
                if let Err(error) = write.send(&client).await {
                    eprintln!("bench: bind: {error}");
                }
            }
            drop(place);
        });
    }
}
