//! What the operator does while it is scraped: enough that every family has something to show.

use std::time::Duration;

use csi_mock_driver::{Method, MockDriver, MockHandle, Rule};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use tonic::Code;

use crate::support::operator::{IDENTITY, apply_config, release_lease, release_provisioner_lease};
use crate::support::stage::Stage;
use crate::support::wait::wait_for;
use crate::support::{Error, Result, Volume};

/// The name of the driver.
pub const DRIVER: &str = "metrics.csi.test";
const NODE: &str = "metrics-node";
/// Class and claim.
const CLASS: &str = "metrics";
const LIMIT: Duration = Duration::from_mins(1);

/// A driver with an AttacherConfig of which every part is used that has a metric.
pub struct Scene<'s> {
    stage: &'s Stage,
    mock: MockHandle,
    _folder: tempfile::TempDir,
}

impl<'s> Scene<'s> {
    /// Makes the driver known, and waits until it is worked for. Nothing is attached yet.
    pub async fn begin(stage: &'s Stage) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let socket = folder.path().join("csi.sock");
        let builder = MockDriver::builder(DRIVER).accept_any_volume();
        let mock = builder.start(&socket).await?;
        let spec = json!({
            "endpoint": format!("unix://{}", socket.display()),
            "backoff": { "initial": "50ms", "max": "200ms", "jitterPercent": 0 },
            "reconcileSync": { "interval": "200ms" },
            "kubernetesAPI": { "qps": 500, "burst": 500 },
            "driverName": DRIVER,
            "provisioning": {},
        });
        crate::provision::grant(stage.cluster).await?;
        release_lease(&stage.client, IDENTITY, DRIVER).await?;
        release_provisioner_lease(&stage.client, IDENTITY, DRIVER).await?;
        apply_config(&stage.client, "metrics", spec).await?;
        stage.wait_working("metrics").await?;
        stage.fixtures.csi_node(NODE, DRIVER, "metrics-node-id").await?;
        Ok(Self {
            stage,
            mock,
            _folder: folder,
        })
    }

    /// One volume is provisioned and deleted, each at the second try. One is attached at the second try and detached at the second try, another one stays, and the driver
    /// loses it, which is put right.
    pub async fn play(&self) -> Result<()> {
        let fixtures = &self.stage.fixtures;
        for method in [Method::ControllerPublishVolume, Method::ControllerUnpublishVolume] {
            let failure = Rule::on(method).times(1).fail(Code::Internal, "the array restarts");
            self.mock.script(failure);
        }
        for name in ["metrics-1", "metrics-2"] {
            fixtures.persistent_volume(&Volume::new(name, DRIVER, name)).await?;
            fixtures.volume_attachment(name, DRIVER, name, NODE).await?;
            fixtures.wait_for_attached(name).await?;
        }
        fixtures.delete::<VolumeAttachment>("metrics-1").await?;
        fixtures.wait_for_attachment_gone("metrics-1").await?;
        self.provision().await?;
        self.lose("metrics-2").await
    }

    /// A volume is provisioned at the second try, and deleted at the second try. There is no kube-controller-manager: what that does is
    /// done here.
    async fn provision(&self) -> Result<()> {
        for method in [Method::CreateVolume, Method::DeleteVolume] {
            let failure = Rule::on(method)
                .times(1)
                .fail(Code::ResourceExhausted, "the array is full");
            self.mock.script(failure);
        }
        let class = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": CLASS },
            "provisioner": DRIVER, "reclaimPolicy": "Delete", "volumeBindingMode": "Immediate",
        });
        self.stage.cluster.apply_yaml(&class.to_string()).await?;
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.stage.client.clone(), "default");
        let wanted = serde_json::from_value(json!({
            "metadata": {
                "name": CLASS, "annotations": { "volume.kubernetes.io/storage-provisioner": DRIVER },
            },
            "spec": {
                "storageClassName": CLASS, "accessModes": ["ReadWriteOnce"],
                "resources": { "requests": { "storage": "1Gi" } },
            },
        }))?;
        let made = claims.create(&PostParams::default(), &wanted).await?;
        let name = format!("pvc-{}", made.uid().unwrap_or_default());
        let volumes: Api<PersistentVolume> = Api::all(self.stage.client.clone());
        wait_for(volumes.clone(), &name, "saved", LIMIT, |volume| volume.is_some()).await?;
        claims.delete(CLASS, &DeleteParams::default()).await?;
        let params = PatchParams::default();
        let unused = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
        // With the last finalizer it goes, before or after this.
        let _gone = claims.patch(CLASS, &params, &unused).await;
        wait_for(claims, CLASS, "gone", LIMIT, |claim| claim.is_none()).await?;
        let released = Patch::Merge(json!({ "status": { "phase": "Released" } }));
        volumes.patch_status(&name, &params, &released).await?;
        wait_for(volumes, &name, "gone", LIMIT, |volume| volume.is_none())
            .await
            .map(drop)
    }

    async fn lose(&self, volume: &str) -> Result<()> {
        let place = (volume.to_owned(), "metrics-node-id".to_owned());
        assert!(self.mock.drift_detach(&place.0, &place.1), "it was there");
        let back = self
            .mock
            .wait_for_published(move |published| published.contains(&place));
        tokio::time::timeout(Duration::from_secs(30), back)
            .await
            .map(drop)
            .map_err(|_| Error::Other(format!("{volume} is not put right")))
    }
}
