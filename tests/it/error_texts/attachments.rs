//! Messages that the operator writes into the status of a VolumeAttachment, and into Events. Those of the first group are the sidecar's.

use csi_attacher_model::api::AttacherConfig;
use csi_mock_driver::{Method, Rule};
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tonic::Code;

use super::index::assert_indexed;
use crate::events::event;
use crate::rig::{Driver, World};
use crate::support::operator::grant_secret;
use crate::support::{Result, Volume};

const VOLUME_NOT_FOUND: &str = "persistentvolume \"<volume>\" not found";
const VOLUME_DELETING: &str = "PersistentVolume \"<volume>\" is marked for deletion";
const NODE_NOT_FOUND: &str = "csinode.storage.k8s.io \"<node>\" not found";
const DRIVER_NOT_ON_NODE: &str = "CSINode <node> does not contain driver <driver>";
const SECRET_NOT_FOUND: &str = "failed to load secret \"<namespace>/<secret>\": secrets \"<secret>\" not found";
const SECRET_FORBIDDEN: &str =
    "failed to load secret \"<namespace>/<secret>\": secrets \"<secret>\" is forbidden: <explanation>";

const SECRET_NOT_ALLOWED: &str = "the volume names Secret <namespace>/<secret>, which spec.publishSecrets of AttacherConfig <name> does not \
                                  list; if driver <driver> may receive this Secret, add {namespace: <namespace>, names: [<secret>]}";
const OTHER_DRIVER: &str = "the volume belongs to CSI driver <driver> but the VolumeAttachment names <driver>";
const LEAVING: &str = "the AttacherConfig of driver <driver> is being deleted (spec.deletionPolicy: WaitForDetach) and attaches no further \
                       volumes; create another AttacherConfig for the driver, which takes over";
const DRIVER_ERROR: &str = "rpc error: code = <code> desc = <message of the driver>";
const DEADLINE: &str =
    "rpc error: code = DeadlineExceeded desc = context deadline exceeded: no answer from the driver within <seconds> s";

const ATTEMPT_TO_ATTACH: &str =
    "volume <volume ID>: attempt <n> to attach it to node <node> failed; retrying in <time>: <error>";
const ATTEMPT_TO_DETACH: &str =
    "volume <volume ID>: attempt <n> to detach it from node <node> failed; retrying in <time>: <error>";
const NODE_GONE: &str = "volume <volume ID>: node <node> has no CSINode any more; detaching from <node ID>";

pub fn staged() -> Vec<&'static str> {
    vec![
        VOLUME_NOT_FOUND,
        VOLUME_DELETING,
        NODE_NOT_FOUND,
        DRIVER_NOT_ON_NODE,
        SECRET_NOT_FOUND,
        SECRET_FORBIDDEN,
        SECRET_NOT_ALLOWED,
        OTHER_DRIVER,
        LEAVING,
        DRIVER_ERROR,
        DEADLINE,
        ATTEMPT_TO_ATTACH,
        ATTEMPT_TO_DETACH,
        NODE_GONE,
    ]
}

fn settings() -> Value {
    json!({ "backoff": { "initial": "50ms", "max": "100ms" } })
}

impl Driver<'_> {
    /// Waits for the error of this attachment, which must be this message.
    async fn shows(&self, attachment: &str, message: &str) -> Result<()> {
        let error = self.world.fixtures.wait_for_attach_error(attachment).await?;
        assert_indexed(message, &error.message.unwrap_or_default());
        Ok(())
    }

    /// A volume with a publish secret, and its attachment.
    async fn claim_with_secret(&self, name: &str, secret: &str) -> Result<()> {
        let volume = self.volume(name).publish_secret("default", secret);
        self.world.fixtures.persistent_volume(&volume).await?;
        self.attachment(name, name).await.map(drop)
    }
}

#[tokio::test]
async fn what_is_wrong_with_volume_and_node_is_on_the_attachment() -> Result<()> {
    let world = World::shared().await?;
    let driver = world.driver("text-objects", settings()).await?;
    let fixtures = &world.fixtures;
    driver.attachment("text-no-volume", "text-no-volume").await?;
    driver.shows("text-no-volume", VOLUME_NOT_FOUND).await?;

    fixtures.persistent_volume(&driver.volume("text-dying")).await?;
    let volumes = fixtures.cluster::<PersistentVolume>();
    let finalizers = |value: Value| Patch::Merge(json!({ "metadata": { "finalizers": value } }));
    let params = PatchParams::default();
    let keep = finalizers(json!(["csi.test/keep"]));
    let kept = volumes.patch("text-dying", &params, &keep).await;
    kept.expect("an administrator may do this");
    fixtures.delete::<PersistentVolume>("text-dying").await?;
    driver.attachment("text-dying", "text-dying").await?;
    driver.shows("text-dying", VOLUME_DELETING).await?;
    let release = finalizers(json!(null));
    let released = volumes.patch("text-dying", &params, &release).await;
    released.expect("an administrator may do this");

    fixtures.persistent_volume(&driver.volume("text-no-node")).await?;
    let name = "text-no-node";
    fixtures
        .volume_attachment(name, &driver.name, name, "text-no-such-node")
        .await?;
    driver.shows(name, NODE_NOT_FOUND).await?;

    let node = "text-other-node";
    fixtures.csi_node(node, "text-other.csi.test", "id").await?;
    fixtures.persistent_volume(&driver.volume("text-no-plugin")).await?;
    let name = "text-no-plugin";
    fixtures.volume_attachment(name, &driver.name, name, node).await?;
    driver.shows(name, DRIVER_NOT_ON_NODE).await?;

    let volume = Volume::new("text-foreign", "text-other.csi.test", "text-foreign");
    fixtures.persistent_volume(&volume).await?;
    driver.attachment("text-foreign", "text-foreign").await?;
    driver.shows("text-foreign", OTHER_DRIVER).await
}

#[tokio::test]
async fn what_is_wrong_with_a_secret_is_on_the_attachment() -> Result<()> {
    let world = World::shared().await?;
    let mut settings = settings();
    settings["publishSecrets"] = json!([{ "namespace": "default", "names": ["text-missing", "text-denied"] }]);
    let driver = world.driver("text-secrets", settings).await?;
    grant_secret(&world.cluster, "default", "text-missing").await?;
    driver.claim_with_secret("text-secret-missing", "text-missing").await?;
    driver.shows("text-secret-missing", SECRET_NOT_FOUND).await?;

    driver.claim_with_secret("text-secret-denied", "text-denied").await?;
    driver.shows("text-secret-denied", SECRET_FORBIDDEN).await?;

    driver
        .claim_with_secret("text-secret-unlisted", "text-unlisted")
        .await?;
    driver.shows("text-secret-unlisted", SECRET_NOT_ALLOWED).await
}

#[tokio::test]
async fn what_the_driver_answers_is_on_the_attachment_and_in_events() -> Result<()> {
    let world = World::shared().await?;
    let mut settings = settings();
    settings["timeouts"] = json!({ "publish": "1s" });
    let driver = world.driver("text-answers", settings).await?;
    let publish = |volume: &str| Rule::on(Method::ControllerPublishVolume).volume(volume);
    driver
        .mock
        .script(publish("text-refused").fail(Code::Internal, "no such pool"));
    driver.claim("text-refused").await?;
    driver.shows("text-refused", DRIVER_ERROR).await?;
    let told = event(
        &world,
        "PersistentVolume",
        "text-refused",
        "AttachFailed",
        "no such pool",
    )
    .await?;
    assert_indexed(ATTEMPT_TO_ATTACH, &told.message.unwrap_or_default());

    driver.mock.script(publish("text-silent").hang());
    driver.claim("text-silent").await?;
    driver.shows("text-silent", DEADLINE).await
}

#[tokio::test]
async fn what_is_wrong_with_a_detach_is_in_events() -> Result<()> {
    let world = World::shared().await?;
    let driver = world.driver("text-detach", settings()).await?;
    driver.attach("text-detach-pv").await?;
    world.fixtures.delete::<CSINode>(&driver.node()).await?;
    driver.nodes_are_seen("once").await?;
    let unpublish = Rule::on(Method::ControllerUnpublishVolume)
        .volume("text-detach-pv")
        .times(1);
    driver.mock.script(unpublish.fail(Code::Internal, "still mounted"));
    world.fixtures.delete::<VolumeAttachment>("text-detach-pv").await?;
    world.fixtures.wait_for_attachment_gone("text-detach-pv").await?;
    for (reason, part, message) in [
        ("NodeGone", "has no CSINode any more", NODE_GONE),
        ("DetachFailed", "still mounted", ATTEMPT_TO_DETACH),
    ] {
        let told = event(&world, "PersistentVolume", "text-detach-pv", reason, part).await?;
        assert_indexed(message, &told.message.unwrap_or_default());
    }
    Ok(())
}

#[tokio::test]
async fn a_driver_whose_config_goes_attaches_nothing_new() -> Result<()> {
    let world = World::shared().await?;
    let mut settings = settings();
    settings["deletionPolicy"] = json!("WaitForDetach");
    let driver = world.driver("text-leaving", settings).await?;
    driver.attach("text-leaving-old").await?;
    world.fixtures.delete::<AttacherConfig>("text-leaving").await?;
    driver.wait("Reconciling", "True", Some("WaitingForDetach")).await?;
    driver.claim("text-leaving-new").await?;
    driver.shows("text-leaving-new", LEAVING).await?;
    world.fixtures.delete::<VolumeAttachment>("text-leaving-old").await?;
    world.fixtures.wait_for_attachment_gone("text-leaving-old").await
}
