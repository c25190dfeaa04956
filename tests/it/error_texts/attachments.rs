//! Messages that the operator writes into the status of a VolumeAttachment, and into Events. Those of the first group are the sidecar's.

use csi_mock_driver::{Method, Rule};
use k8s_openapi::api::core::v1::PersistentVolume;
use serde_json::{Value, json};
use tonic::Code;

use super::index::assert_indexed;
use crate::events::event;
use crate::rig::{Driver, World, merge, strip};
use crate::support::operator::grant_secret;
use crate::support::{Result, Volume};

const VOLUME_NOT_FOUND: &str = "persistentvolume \"<volume>\" not found";
const VOLUME_DELETING: &str = "PersistentVolume \"<volume>\" is marked for deletion";
const NODE_NOT_FOUND: &str = "csinode.storage.k8s.io \"<node>\" not found";
const DRIVER_NOT_ON_NODE: &str = "CSINode <node> does not contain driver <driver>";
const SECRET_NOT_FOUND: &str = "failed to load secret \"<namespace>/<secret>\": secrets \"<secret>\" not found";
pub const SECRET_FORBIDDEN: &str =
    "failed to load secret \"<namespace>/<secret>\": secrets \"<secret>\" is forbidden: <explanation>";

pub const SECRET_NOT_ALLOWED: &str = "the volume names Secret <namespace>/<secret>, which spec.publishSecrets of AttacherConfig <name> does not \
                                  list; if driver <driver> may receive this Secret, add {namespace: <namespace>, names: [<secret>]}";
const OTHER_DRIVER: &str = "the volume belongs to CSI driver <driver> but the VolumeAttachment names <driver>";
pub const LEAVING: &str = "the AttacherConfig of driver <driver> is being deleted (spec.deletionPolicy: WaitForDetach) and attaches no further \
                       volumes; create another AttacherConfig for the driver, which takes over";
const DRIVER_ERROR: &str = "rpc error: code = <code> desc = <message of the driver>";
const DEADLINE: &str =
    "rpc error: code = DeadlineExceeded desc = context deadline exceeded: no answer from the driver within <seconds> s";

const ATTEMPT_TO_ATTACH: &str =
    "volume <volume ID>: attempt <n> to attach it to node <node> failed; retrying in <time>: <error>";
pub const ATTEMPT_TO_DETACH: &str =
    "volume <volume ID>: attempt <n> to detach it from node <node> failed; retrying in <time>: <error>";
pub const NODE_GONE: &str = "volume <volume ID>: node <node> has no CSINode any more; detaching from <node ID>";

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
}

#[tokio::test]
async fn what_is_wrong_with_volume_node_and_secret_is_on_the_attachment() -> Result<()> {
    let world = World::shared().await?;
    let mut settings = settings();
    settings["publishSecrets"] = json!([{ "namespace": "default", "names": ["text-missing"] }]);
    let driver = world.driver("text-objects", settings).await?;
    let fixtures = &world.fixtures;
    driver.attachment("text-no-volume", "text-no-volume").await?;
    driver.shows("text-no-volume", VOLUME_NOT_FOUND).await?;

    fixtures.persistent_volume(&driver.volume("text-dying")).await?;
    let volumes = fixtures.cluster::<PersistentVolume>();
    let keep = json!({ "metadata": { "finalizers": ["csi.test/keep"] } });
    merge(&volumes, "text-dying", &keep).await?;
    fixtures.delete::<PersistentVolume>("text-dying").await?;
    driver.attachment("text-dying", "text-dying").await?;
    driver.shows("text-dying", VOLUME_DELETING).await?;
    strip(&volumes, "text-dying").await?;

    driver.claim_at("text-no-node", "text-no-such-node").await?;
    driver.shows("text-no-node", NODE_NOT_FOUND).await?;

    let node = "text-other-node";
    fixtures.csi_node(node, "text-other.csi.test", "id").await?;
    driver.claim_at("text-no-plugin", node).await?;
    driver.shows("text-no-plugin", DRIVER_NOT_ON_NODE).await?;

    let volume = Volume::new("text-foreign", "text-other.csi.test", "text-foreign");
    fixtures.persistent_volume(&volume).await?;
    driver.attachment("text-foreign", "text-foreign").await?;
    driver.shows("text-foreign", OTHER_DRIVER).await?;

    grant_secret(&world.cluster, "default", "text-missing").await?;
    let name = "text-no-secret";
    let volume = driver.volume(name).publish_secret("default", "text-missing");
    fixtures.persistent_volume(&volume).await?;
    driver.attachment(name, name).await?;
    driver.shows(name, SECRET_NOT_FOUND).await
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
