//! The real sidecar and the operator by turns, each killed at the worst moment.

use csi_attacher_model::api::AttacherConfig;
use csi_attacher_model::api::names::lease_name;
use csi_mock_driver::{ControllerCapability, Method, Rule};
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::ResourceExt;
use kube::api::DeleteParams;
use serde_json::json;
use tonic::Code;

use super::states::wait_for_note;
use crate::rig::{Driver, World, delete_volume, detach, operator_options};
use crate::support::{Result, Sidecar};

const PUBLISH: Method = Method::ControllerPublishVolume;
const UNPUBLISH: Method = Method::ControllerUnpublishVolume;

impl Driver<'_> {
    async fn sidecar(&self) -> Result<Sidecar> {
        Sidecar::start(&self.world.cluster, &self.world.socket(&self.short), &[]).await
    }

    /// How often a volume was published and unpublished so far.
    fn counts(&self, volume: &str) -> (usize, usize) {
        (self.count(PUBLISH, volume), self.count(UNPUBLISH, volume))
    }

    /// Makes the driver fail the method for this volume until the rules are cleared.
    fn fails(&self, method: Method, volume: &str) {
        let rule = Rule::on(method).volume(volume);
        self.mock.script(rule.fail(Code::ResourceExhausted, "no slot"));
    }

    /// Deletes an attachment and waits until it is gone, with one call for the volume on this node.
    async fn detach(&self, name: &str) -> Result<()> {
        let before = self.counts(name).1;
        detach(&self.world.fixtures, name).await?;
        assert_eq!(self.counts(name).1, before + 1, "{name}: {:#?}", self.calls_for(name));
        assert!(
            !self.mock.published().iter().any(|(volume, _)| volume == name),
            "{name}"
        );
        Ok(())
    }

    /// Brings volumes named after `turn` into every state that an attacher can be killed in. `-mid` hangs in Publish and is
    /// attached all the same once its caller is gone.
    async fn leave_in_the_midst(&self, turn: &str) -> Result<()> {
        let fixtures = &self.world.fixtures;
        let name = |suffix: &str| format!("{turn}-{suffix}");
        for suffix in ["rests", "goes", "stuck", "last"] {
            self.attach(&name(suffix)).await?;
        }
        self.fails(PUBLISH, &name("full"));
        self.claim(&name("full")).await?;
        let text = "rpc error: code = ResourceExhausted desc = no slot";
        // The sidecar reports a volume that its watch has not shown yet as not found, and tries again.
        let error = fixtures.wait_for_attach_error_saying(&name("full"), text).await?;
        assert_eq!(error.error_code, Some(8));
        self.fails(UNPUBLISH, &name("stuck"));
        fixtures.delete::<VolumeAttachment>(&name("stuck")).await?;
        let error = fixtures.wait_for_detach_error(&name("stuck")).await?;
        assert_eq!((error.message.as_deref(), error.error_code), (Some(text), None));
        // The volume that goes with its attachment later.
        fixtures.delete::<PersistentVolume>(&name("last")).await?;
        self.mock.script(Rule::on(PUBLISH).volume(name("mid")).late_success());
        self.claim(&name("mid")).await?;
        self.call(PUBLISH, &name("mid"), |_| true).await.map(drop)
    }

    /// The follower has carried on what [`Driver::leave_in_the_midst`] left, and did nothing to what was settled.
    async fn is_carried_on(&self, turn: &str, left: &[(usize, usize)]) -> Result<()> {
        let fixtures = &self.world.fixtures;
        let name = |suffix: &str| format!("{turn}-{suffix}");
        for suffix in ["mid", "full"] {
            let stored = fixtures.wait_for_attached(&name(suffix)).await?;
            let status = stored.status.unwrap_or_default();
            assert_eq!(status.attach_error, None, "{suffix}");
            assert!(
                status
                    .attachment_metadata
                    .is_some_and(|context| context.contains_key("devicePath")),
                "{suffix}"
            );
        }
        fixtures.wait_for_attachment_gone(&name("stuck")).await?;
        for (suffix, left) in ["rests", "goes", "last"].into_iter().zip(left) {
            assert_eq!(self.counts(&name(suffix)), *left, "{suffix}: nobody asked for a call");
        }
        self.detach(&name("goes")).await?;
        self.detach(&name("last")).await?;
        fixtures.wait_for_volume_gone(&name("last")).await
    }

    fn settled(&self, turn: &str) -> [(usize, usize); 3] {
        ["rests", "goes", "last"].map(|suffix| self.counts(&format!("{turn}-{suffix}")))
    }

    /// Nobody called the driver twice at the same time for one volume and node.
    fn never_overlapped(&self) {
        let calls = self.mock.calls();
        let overlapping: Vec<_> = calls.iter().filter(|call| call.overlap).collect();
        assert!(overlapping.is_empty(), "{overlapping:#?}");
    }
}

pub async fn by_turns(world: &World) -> Result<()> {
    let driver = world.unconfigured_driver("shared", |builder| builder).await?;
    // As in a cluster that never had the operator: the first one makes the Lease.
    let leases = world.leases();
    leases
        .delete(&lease_name(&driver.name), &DeleteParams::default())
        .await?;

    let mut sidecar = driver.sidecar().await?;
    let left = driver.leave_in_the_midst("first").await;
    sidecar.check()?;
    left.map_err(|error| crate::support::Error::Other(format!("{error}\n{}", sidecar.log_text())))?;
    let settled = driver.settled("first");
    drop(sidecar);
    driver.is_left().await?;
    driver.mock.clear_rules();

    let operator = world.operator(operator_options()).await?;
    driver.configure(&json!({})).await?;
    driver.is_carried_on("first", &settled).await?;
    driver.looked_at_everything("first-more").await?;
    noted_by_us(&driver, "first-rests").await?;
    // Mid-attach: one call of the sidecar that it never heard of again, and one of ours.
    assert_eq!(driver.counts("first-mid"), (2, 0));

    driver.leave_in_the_midst("second").await?;
    let settled = driver.settled("second");
    drop(operator);
    driver.is_left().await?;
    driver.mock.clear_rules();

    let mut sidecar = driver.sidecar().await?;
    let carried_on = driver.is_carried_on("second", &settled).await;
    sidecar.check()?;
    carried_on.map_err(|error| crate::support::Error::Other(format!("{error}\n{}", sidecar.log_text())))?;
    // Attached by the sidecar, held by the operator, detached by the sidecar.
    driver.detach("first-rests").await?;
    delete_volume(&driver.world.fixtures, "first-rests").await?;
    drop(sidecar);
    driver.is_left().await?;

    // And back once more: everything that is left goes.
    let operator = world.operator(operator_options()).await?;
    for name in [
        "second-rests",
        "second-mid",
        "second-full",
        "first-mid",
        "first-full",
        "first-more",
    ] {
        driver.detach(name).await?;
        delete_volume(&world.fixtures, name).await?;
    }
    drop(operator);
    assert!(driver.mock.published().is_empty(), "{:?}", driver.mock.published());
    driver.never_overlapped();
    world.fixtures.delete::<AttacherConfig>(&driver.short).await
}

/// The operator wrote a note of the volume on this attachment, and nothing else.
async fn noted_by_us(driver: &Driver<'_>, name: &str) -> Result<()> {
    wait_for_note(driver, name).await?;
    let requests = driver.world.requests(&[name])?;
    let what: Vec<&str> = requests.iter().map(|step| &*step.what).collect();
    assert_eq!(what, [format!("patch volumeattachments {name}")], "{requests:#?}");
    Ok(())
}

/// The operator read and wrote nothing that names this attachment or volume.
fn untouched_by_us(driver: &Driver<'_>, name: &str) -> Result<()> {
    let requests = driver.world.requests(&[name])?;
    assert!(requests.is_empty(), "{requests:#?}");
    Ok(())
}

/// A driver that needs no attachment any more leaves finalizers of the time before. Nobody would take them off: a sidecar
/// that finds such a driver looks at no finalizer. We do once the CSIDriver says that it needs none.
pub async fn a_driver_that_attaches_no_more(world: &World) -> Result<()> {
    let driver = world.unconfigured_driver("former", |builder| builder).await?;
    let fixtures = &world.fixtures;
    let sidecar = driver.sidecar().await?;
    for name in ["former-stays", "former-goes", "former-gone"] {
        driver.attach(name).await?;
    }
    driver.fails(UNPUBLISH, "former-gone");
    fixtures.delete::<PersistentVolume>("former-gone").await?;
    fixtures.delete::<VolumeAttachment>("former-gone").await?;
    fixtures.wait_for_detach_error("former-gone").await?;
    drop(sidecar);
    driver.is_left().await?;
    let capability = ControllerCapability::PublishUnpublishVolume;
    driver.mock.set_capability(capability, false);
    let before = driver.mock.calls_of(UNPUBLISH).len();

    let operator = world.operator(operator_options()).await?;
    driver.configure(&json!({})).await?;
    // That the driver says so alone does not count: it may have been asked at the wrong socket.
    driver.wait("Stalled", "True", Some("CapabilityLost")).await?;
    let kept = fixtures.get_attachment("former-gone").await?;
    assert_eq!(kept.finalizers(), [driver.finalizer()]);
    fixtures.csi_driver(&driver.name, false).await?;
    fixtures.wait_for_attachment_gone("former-gone").await?;
    fixtures.wait_for_volume_gone("former-gone").await?;
    driver.claim("former-new").await?;
    let new = fixtures.wait_for_attached("former-new").await?;
    assert!(
        new.finalizers().is_empty() && new.annotations().is_empty(),
        "{:?}",
        new.metadata
    );
    detach(fixtures, "former-goes").await?;
    delete_volume(fixtures, "former-goes").await?;
    let stays = fixtures.get_attachment("former-stays").await?;
    assert!(stays.status.is_some_and(|status| status.attached));
    untouched_by_us(&driver, "former-stays")?;
    assert_eq!(
        driver.mock.calls_of(UNPUBLISH).len(),
        before,
        "there is no such call any more"
    );
    drop(operator);
    Ok(())
}
