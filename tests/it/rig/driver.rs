//! A mock driver with its AttacherConfig, its node and its volumes, all named after it.

use csi_attacher_model::api::names::finalizer_name;
use csi_mock_driver::{CallRecord, Method, MockDriver, MockDriverBuilder, MockHandle};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use serde_json::{Value, json};

use super::{World, within};
use crate::support::operator::{IDENTITY, apply_config, release_lease, wait_condition};
use crate::support::{Error, Result, Volume};

/// A mock driver that the operator of a world serves.
pub struct Driver<'w> {
    pub world: &'w World,
    /// What all objects of the driver are called after; also the name of its AttacherConfig.
    pub short: String,
    /// The name that it answers.
    pub name: String,
    pub mock: MockHandle,
}

impl World {
    /// The path of the socket of a driver, started or not.
    pub fn socket(&self, short: &str) -> std::path::PathBuf {
        self.sockets.path().join(format!("{short}.sock"))
    }

    /// A spec with the endpoint of a driver and these settings.
    pub fn spec(&self, short: &str, settings: &Value) -> Value {
        let mut spec = json!({ "endpoint": format!("unix://{}", self.socket(short).display()) });
        if let (Some(spec), Some(settings)) = (spec.as_object_mut(), settings.as_object()) {
            spec.extend(settings.clone());
        }
        spec
    }

    /// Starts a driver named `<short>.csi.test` which takes any volume, and waits until the operator works with it.
    pub async fn driver(&self, short: &str, settings: Value) -> Result<Driver<'_>> {
        self.driver_with(short, settings, |builder| builder).await
    }

    /// As [`World::driver`], with changes to the mock driver.
    pub async fn driver_with(
        &self,
        short: &str,
        settings: Value,
        build: impl FnOnce(MockDriverBuilder) -> MockDriverBuilder,
    ) -> Result<Driver<'_>> {
        let driver = self.unconfigured_driver(short, build).await?;
        driver.configure(&settings).await?;
        driver.wait("Ready", "True", Some("Running")).await?;
        Ok(driver)
    }

    /// A driver that listens, with its node, but without an AttacherConfig.
    pub async fn unconfigured_driver(
        &self,
        short: &str,
        build: impl FnOnce(MockDriverBuilder) -> MockDriverBuilder,
    ) -> Result<Driver<'_>> {
        self.named_driver(short, &format!("{short}.csi.test"), build).await
    }

    /// As [`World::unconfigured_driver`], with a name of its own.
    pub async fn named_driver(
        &self,
        short: &str,
        name: &str,
        build: impl FnOnce(MockDriverBuilder) -> MockDriverBuilder,
    ) -> Result<Driver<'_>> {
        let name = name.to_owned();
        let mock = build(MockDriver::builder(&name).accept_any_volume())
            .start(self.socket(short))
            .await?;
        let driver = Driver {
            world: self,
            short: short.to_owned(),
            name,
            mock,
        };
        let fixtures = &self.fixtures;
        fixtures
            .csi_node(&driver.node(), &driver.name, &driver.node_id())
            .await?;
        release_lease(&self.client, IDENTITY, &driver.name).await?;
        Ok(driver)
    }
}

/// Waits for a condition of an AttacherConfig, and answers its message.
pub async fn condition(world: &World, config: &str, kind: &str, status: &str, reason: &str) -> Result<String> {
    let config = wait_condition(&world.client, config, kind, status, Some(reason)).await?;
    let conditions = config.status.map(|status| status.conditions).unwrap_or_default();
    let found = conditions.into_iter().find(|condition| condition.type_ == kind);
    Ok(found.map(|condition| condition.message).unwrap_or_default())
}

impl Driver<'_> {
    /// The finalizer of the driver, as the protocol of the external-attacher derives it.
    pub fn finalizer(&self) -> String {
        finalizer_name(&self.name)
    }

    pub fn node(&self) -> String {
        format!("{}-node", self.short)
    }

    pub fn node_id(&self) -> String {
        format!("{}-node-id", self.short)
    }

    /// A volume of this driver whose handle is its name.
    pub fn volume(&self, name: &str) -> Volume {
        Volume::new(name, &self.name, name)
    }

    /// Makes or changes the AttacherConfig.
    pub async fn configure(&self, settings: &Value) -> Result<()> {
        let mut spec = self.world.spec(&self.short, settings);
        if self.world.names_drivers && spec.get("driverName").is_none() {
            spec["driverName"] = self.name.as_str().into();
        }
        apply_config(&self.world.client, &self.short, spec).await.map(drop)
    }

    /// Waits for a condition of the AttacherConfig.
    pub async fn wait(&self, condition: &str, status: &str, reason: Option<&str>) -> Result<()> {
        wait_condition(&self.world.client, &self.short, condition, status, reason)
            .await
            .map(drop)
    }

    /// Ends the driver: its connections are cut and its socket goes.
    pub async fn stop(&self) {
        self.mock.stop().await;
    }

    /// Waits until no process is connected to the driver: what one that is gone sent last may still be on its way.
    pub async fn is_left(&self) -> Result<()> {
        within("the end of all connections", self.mock.wait_for_connections(0)).await
    }

    /// Starts the driver again after [`Driver::stop`], with all that it knew.
    pub async fn start_again(&self) -> Result<()> {
        let started = self.mock.start_again().await;
        started.map_err(|error| Error::Other(error.to_string()))
    }

    /// Makes a VolumeAttachment of that name for this driver, on its node.
    pub async fn attachment(&self, name: &str, volume: &str) -> Result<VolumeAttachment> {
        self.world
            .fixtures
            .volume_attachment(name, &self.name, volume, &self.node())
            .await
    }

    /// Makes a volume and a VolumeAttachment, both of that name; does not wait until it is attached.
    pub async fn claim(&self, name: &str) -> Result<VolumeAttachment> {
        self.claim_at(name, &self.node()).await
    }

    /// The same on another node.
    pub async fn claim_at(&self, name: &str, node: &str) -> Result<VolumeAttachment> {
        let fixtures = &self.world.fixtures;
        fixtures.persistent_volume(&self.volume(name)).await?;
        fixtures.volume_attachment(name, &self.name, name, node).await
    }

    /// Makes a volume and a VolumeAttachment, both of that name, and waits until it is attached.
    pub async fn attach(&self, name: &str) -> Result<VolumeAttachment> {
        self.claim(name).await?;
        self.world.fixtures.wait_for_attached(name).await
    }

    /// Attaches one more volume. Work on the same node which was due before has begun when this returns, as work is
    /// taken up in the order in which it arrives, and has ended unless it takes longer than a whole attach.
    pub async fn attach_one_more(&self, name: &str) -> Result<()> {
        self.attach(name).await?;
        let name = name.to_owned();
        let cluster = &self.world.cluster;
        cluster
            .wait_for_audit_event("the status of one more attachment", super::LIMIT, move |event| {
                event.is("patch", "volumeattachments/status") && event.name == name
            })
            .await
            .map(drop)
    }

    /// Waits for a call of a method for a volume which satisfies `wanted`.
    pub async fn call(
        &self,
        method: Method,
        volume: &str,
        wanted: impl Fn(&CallRecord) -> bool + Send + Sync + 'static,
    ) -> Result<CallRecord> {
        let (what, handle) = (format!("{method:?} of {volume}"), volume.to_owned());
        let about =
            move |call: &CallRecord| call.method == method && call.volume.as_deref() == Some(&handle) && wanted(call);
        Ok(self.calls(&what, 1, about).await?.remove(0))
    }

    /// Waits for so many calls which satisfy `wanted`, those of the past included.
    pub async fn calls(
        &self,
        what: &str,
        count: usize,
        wanted: impl Fn(&CallRecord) -> bool + Send + Sync + 'static,
    ) -> Result<Vec<CallRecord>> {
        within(what, self.mock.wait_for_calls(count, wanted)).await
    }

    /// How often a method was called for a volume.
    pub fn count(&self, method: Method, volume: &str) -> usize {
        let calls = self.calls_for(volume);
        calls.iter().filter(|call| call.method == method).count()
    }

    /// The calls that publish or unpublish a volume, in the order of arrival.
    pub fn calls_for(&self, volume: &str) -> Vec<CallRecord> {
        let about = |call: &CallRecord| call.volume.as_deref() == Some(volume);
        self.mock.calls().into_iter().filter(about).collect()
    }
}
