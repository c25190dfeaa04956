//! Messages about volumes and nodes of which nobody knows which they are: the driver is not called.

use csi_mock_driver::Method;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use serde_json::{Value, json};
use std::time::Duration;

use super::index::assert_indexed;
use crate::rig::{Driver, LIMIT, World, merge, strip};
use crate::support::wait::wait_for;
use crate::support::{Result, Volume};

const BLANK_NODE_ID: &str =
    "CSINode <node> has a blank node ID for driver <driver>; restart the driver's pod on that node";
const BLANK_HANDLE: &str = "the volumeHandle of the volume is blank";
const BLANK_ANNOTATION: &str = "annotation csi.alpha.kubernetes.io/node-id of the VolumeAttachment is blank, and <reason>: the node ID at which \
                                the volume is attached is unknown; set the annotation to that node ID";
const VOLUME_UNKNOWN: &str = "PersistentVolume <volume> was created after VolumeAttachment <attachment> was attached, and nothing says which \
                              volume was: it may be another one than <handle>; find out which one is attached to node <node>, and run kubectl \
                              annotate volumeattachment <attachment> 'attacher.csi.dev/volume={\"handle\":\"ID\"}' --overwrite";
const NOTE_UNREADABLE: &str = "annotation attacher.csi.dev/volume of VolumeAttachment <attachment> cannot be read, so that nothing says for \
                               certain where the volume may be; if another version of the operator wrote it, run that version; else find \
                               out where the volume is attached, and run kubectl annotate --overwrite volumeattachment <attachment> \
                               'attacher.csi.dev/volume={\"handle\":\"ID\"}'";

pub fn staged() -> Vec<&'static str> {
    vec![
        BLANK_NODE_ID,
        BLANK_HANDLE,
        BLANK_ANNOTATION,
        VOLUME_UNKNOWN,
        NOTE_UNREADABLE,
    ]
}

fn settings() -> Value {
    json!({ "backoff": { "initial": "50ms", "max": "100ms" } })
}

impl Driver<'_> {
    async fn change_attachment(&self, name: &str, metadata: &Value) -> Result<()> {
        let attachments = self.world.fixtures.cluster::<VolumeAttachment>();
        merge(&attachments, name, &json!({ "metadata": metadata }))
            .await
            .map(drop)
    }

    async fn refuses_to_detach(&self, name: &str, message: &str) -> Result<()> {
        self.world.fixtures.delete::<VolumeAttachment>(name).await?;
        let error = self.world.fixtures.wait_for_detach_error(name).await?;
        assert_indexed(message, &error.message.unwrap_or_default());
        let mut calls = self.calls_for(name).into_iter();
        let detach = calls.find(|call| call.method == Method::ControllerUnpublishVolume);
        assert!(detach.is_none(), "{detach:?}");
        Ok(())
    }
}

#[tokio::test]
async fn what_is_blank_is_not_sent() -> Result<()> {
    let world = World::shared().await?;
    let driver = world.driver("text-blank", settings()).await?;
    let fixtures = &world.fixtures;
    let node = "text-blank-id";
    fixtures.csi_node(node, &driver.name, " ").await?;
    driver.claim_at("text-blank-node", node).await?;
    let error = fixtures.wait_for_attach_error("text-blank-node").await?;
    assert_indexed(BLANK_NODE_ID, &error.message.unwrap_or_default());

    let volume = Volume::new("text-blank-handle", &driver.name, " ");
    fixtures.persistent_volume(&volume).await?;
    driver.attachment("text-blank-handle", "text-blank-handle").await?;
    let error = fixtures.wait_for_attach_error("text-blank-handle").await?;
    assert_indexed(BLANK_HANDLE, &error.message.unwrap_or_default());
    let calls = driver.mock.calls_of(Method::ControllerPublishVolume);
    assert!(calls.is_empty(), "{calls:?}");
    Ok(())
}

/// By the CSI specification a detach without a node ID is one from every node.
#[tokio::test]
async fn a_detach_without_a_node_id_is_not_sent() -> Result<()> {
    let world = World::shared().await?;
    let driver = world.driver("text-nowhere", settings()).await?;
    driver.attach("text-nowhere-pv").await?;
    world.fixtures.delete::<CSINode>(&driver.node()).await?;
    driver.nodes_are_seen().await?;
    let blank = json!({ "annotations": { "csi.alpha.kubernetes.io/node-id": "" } });
    driver.change_attachment("text-nowhere-pv", &blank).await?;
    driver.refuses_to_detach("text-nowhere-pv", BLANK_ANNOTATION).await?;
    // Once a person says where it is, it goes on.
    let known = json!({ "annotations": { "csi.alpha.kubernetes.io/node-id": driver.node_id() } });
    driver.change_attachment("text-nowhere-pv", &known).await?;
    world.fixtures.wait_for_attachment_gone("text-nowhere-pv").await
}

/// As another version may have left it, before a rollback.
#[tokio::test]
async fn a_note_that_cannot_be_read_is_not_gone_by() -> Result<()> {
    let world = World::shared().await?;
    let driver = world.driver("text-note", settings()).await?;
    let name = "text-note-pv";
    driver.attach(name).await?;
    let noted = |note: Value| json!({ "annotations": { "attacher.csi.dev/volume": note.to_string() } });
    let newer = noted(json!({ "handle": name, "former": [{ "handle": name, "machine": "other" }] }));
    driver.change_attachment(name, &newer).await?;
    driver.refuses_to_detach(name, NOTE_UNREADABLE).await?;
    let known = noted(json!({ "handle": name }));
    driver.change_attachment(name, &known).await?;
    world.fixtures.wait_for_attachment_gone(name).await
}

/// As the sidecar leaves what it attached: without a note. Its PersistentVolume is created again by force, as another volume.
#[tokio::test]
async fn a_volume_that_was_made_again_is_not_detached_in_the_place_of_the_former() -> Result<()> {
    let world = World::shared().await?;
    let driver = world.driver("text-remade", settings()).await?;
    let name = "text-remade-pv";
    let attachment = driver.attach(name).await?;
    let volumes = world.fixtures.cluster::<PersistentVolume>();
    world.fixtures.delete::<PersistentVolume>(name).await?;
    strip(&volumes, name).await?;
    wait_for(volumes.clone(), name, "is gone", LIMIT, |volume| volume.is_none()).await?;
    // While the operator knows the former one, it notes that again, which would be right.
    driver.volumes_are_seen().await?;
    let forgotten = json!({ "annotations": { "attacher.csi.dev/volume": null } });
    driver.change_attachment(name, &forgotten).await?;
    // Times of creation are in whole seconds.
    let created = attachment.metadata.creation_timestamp.expect("it has one").0;
    while jiff::Timestamp::now().as_second() <= created.as_second() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let remade = Volume::new(name, &driver.name, "another-volume");
    world.fixtures.persistent_volume(&remade).await?;
    driver.refuses_to_detach(name, VOLUME_UNKNOWN).await?;
    let known = json!({ "annotations": { "attacher.csi.dev/volume": json!({ "handle": name }).to_string() } });
    driver.change_attachment(name, &known).await?;
    world.fixtures.wait_for_attachment_gone(name).await?;
    let calls = driver.mock.calls_of(Method::ControllerUnpublishVolume);
    assert!(
        calls.iter().all(|call| call.volume.as_deref() == Some(name)),
        "{calls:?}"
    );
    Ok(())
}
