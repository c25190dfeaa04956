//! Attaching: three writes for a volume that was never attached, two for one that was, one for a driver without the call.

use csi_mock_driver::{ControllerCapability, Method};
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::{attached, first_claim, first_finalizer, one_more_finalizer, release, same_version, status, uid};
use crate::rig::{VOLUME_UID, World, assert_steps, within};
use crate::support::{Error, Result, Volume};

#[tokio::test]
async fn first_attach_takes_three_writes_and_one_call() -> Result<()> {
    let world = World::shared().await?;
    let settings = json!({ "timeouts": { "publish": "7s" }, "defaultFsType": "xfs" });
    let driver = world.driver("first", settings).await?;
    let volume = driver.volume("first-pv").attribute("tier", "gold").read_only();
    world.fixtures.persistent_volume(&volume).await?;
    let made = driver.attachment("first-va", "first-pv").await?;
    let done = world.fixtures.wait_for_attached("first-va").await?;
    driver.attach_one_more("first-more").await?;

    let uid = uid(&made);
    let mut last = attached(&uid, 'a');
    last["status"]["attachmentMetadata"]["readonly"] = "true".into();
    let expected = [
        ("patch persistentvolumes first-pv", first_finalizer(&driver.finalizer())),
        (
            "patch volumeattachments first-va",
            first_claim(&driver, &uid, "first-pv"),
        ),
        ("ControllerPublishVolume first-pv first-node-id", json!("Ok")),
        ("patch volumeattachments/status first-va", last),
    ];
    assert_steps(&driver.steps(&["first-pv", "first-va"], "first-pv")?, &expected);

    let call = driver.calls_for("first-pv").remove(0);
    assert_eq!(call.readonly, Some(true));
    assert_eq!(call.volume_context, [("tier".to_owned(), "gold".to_owned())].into());
    assert_eq!(call.deadline_ms, Some(7000));
    assert!(call.secret_keys.is_empty() && !call.overlap, "{call:?}");
    let capability = call.capability.expect("the call has a capability");
    assert_eq!(
        (
            capability.access_mode,
            capability.access_type,
            capability.fs_type.as_deref()
        ),
        ("SINGLE_NODE_MULTI_WRITER", "mount", Some("xfs"))
    );
    let metadata = done
        .status
        .and_then(|status| status.attachment_metadata)
        .unwrap_or_default();
    assert_eq!(metadata["devicePath"], "/dev/xvdba");
    Ok(())
}

#[tokio::test]
async fn what_others_put_on_the_objects_survives() -> Result<()> {
    let world = World::shared().await?;
    let driver = world.driver("foreign", json!({})).await?;
    let (ours, theirs) = (driver.finalizer(), "example.com/keep");
    let (name, fixtures) = ("foreign-pv", &world.fixtures);
    // Both have from the first moment on what others put on them: otherwise the operator could be faster, or write to the volume
    // from a copy of the time before.
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": name, "finalizers": [theirs] },
        "spec": {
            "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Retain",
            "csi": { "driver": driver.name, "volumeHandle": name },
        },
    });
    world.cluster.apply_yaml(&volume.to_string()).await?;
    let volumes = fixtures.cluster::<PersistentVolume>();
    let object = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
        "metadata": { "name": "foreign-va", "finalizers": [theirs], "annotations": { "example.com/note": "mine" } },
        "spec": { "attacher": driver.name, "nodeName": driver.node(), "source": { "persistentVolumeName": name } },
    });
    let made = world.cluster.apply_yaml(&object.to_string()).await?.remove(0);
    let done = fixtures.wait_for_attached("foreign-va").await?;
    driver.attach_one_more("foreign-more").await?;

    let uid = uid(&made);
    let mut claim = one_more_finalizer(&uid, &[theirs], &ours)
        .as_array()
        .cloned()
        .unwrap_or_default();
    claim.insert(1, same_version());
    for (key, value) in [
        ("csi.alpha.kubernetes.io~1node-id", driver.node_id()),
        ("attacher.csi.dev~1volume", json!({ "handle": name }).to_string()),
    ] {
        claim.push(json!({"op": "add", "path": format!("/metadata/annotations/{key}"), "value": value}));
    }
    let expected = [
        (
            "patch persistentvolumes foreign-pv",
            one_more_finalizer(VOLUME_UID, &[theirs], &ours),
        ),
        ("patch volumeattachments foreign-va", Value::Array(claim)),
        ("ControllerPublishVolume foreign-pv foreign-node-id", json!("Ok")),
        ("patch volumeattachments/status foreign-va", attached(&uid, 'a')),
    ];
    assert_steps(&driver.steps(&["foreign-pv", "foreign-va"], name)?, &expected);
    assert_eq!(done.finalizers(), [theirs.to_owned(), ours.clone()]);
    assert_eq!(done.annotations()["example.com/note"], "mine");
    let volume = volumes.get(name).await.expect("the volume is there");
    assert_eq!(volume.finalizers(), [theirs.to_owned(), ours]);
    Ok(())
}

#[tokio::test]
async fn attach_detach_and_attach_again_under_the_same_name() -> Result<()> {
    let world = World::shared().await?;
    let driver = world.driver("again", json!({})).await?;
    let fixtures = &world.fixtures;
    fixtures.persistent_volume(&driver.volume("again-pv")).await?;
    let first = uid(&driver.attachment("again-va", "again-pv").await?);
    fixtures.wait_for_attached("again-va").await?;
    fixtures.delete::<VolumeAttachment>("again-va").await?;
    fixtures.wait_for_attachment_gone("again-va").await?;
    let second = uid(&driver.attachment("again-va", "again-pv").await?);
    fixtures.wait_for_attached("again-va").await?;
    driver.attach_one_more("again-more").await?;

    assert_ne!(first, second);
    let expected = [
        ("patch persistentvolumes again-pv", first_finalizer(&driver.finalizer())),
        (
            "patch volumeattachments again-va",
            first_claim(&driver, &first, "again-pv"),
        ),
        ("ControllerPublishVolume again-pv again-node-id", json!("Ok")),
        ("patch volumeattachments/status again-va", attached(&first, 'a')),
        ("ControllerUnpublishVolume again-pv again-node-id", json!("Ok")),
        ("patch volumeattachments again-va", release(&driver, &first, 0)),
        (
            "patch volumeattachments again-va",
            first_claim(&driver, &second, "again-pv"),
        ),
        ("ControllerPublishVolume again-pv again-node-id", json!("Ok")),
        ("patch volumeattachments/status again-va", attached(&second, 'a')),
    ];
    assert_steps(&driver.steps(&["again-pv", "again-va"], "again-pv")?, &expected);
    Ok(())
}

#[tokio::test]
async fn a_driver_without_the_calls_takes_one_write_and_no_call() -> Result<()> {
    let world = World::shared().await?;
    let driver = world
        .driver_with("trivial", json!({}), |mock| {
            mock.without_capability(ControllerCapability::PublishUnpublishVolume)
        })
        .await?;
    let fixtures = &world.fixtures;
    let made = driver.claim("trivial-pv").await?;
    let done = fixtures.wait_for_attached("trivial-pv").await?;
    assert!(
        done.finalizers().is_empty() && done.annotations().is_empty(),
        "{done:?}"
    );
    fixtures.delete::<VolumeAttachment>("trivial-pv").await?;
    fixtures.wait_for_attachment_gone("trivial-pv").await?;
    fixtures.delete::<PersistentVolume>("trivial-pv").await?;
    fixtures.wait_for_volume_gone("trivial-pv").await?;
    driver.attach_one_more("trivial-more").await?;

    let body = status(&uid(&made), &json!({ "attached": true, "attachError": null }));
    let expected = [("patch volumeattachments/status trivial-pv", body)];
    assert_steps(&driver.steps(&["trivial-pv"], "trivial-pv")?, &expected);
    let controller: Vec<_> = [Method::ControllerPublishVolume, Method::ControllerUnpublishVolume]
        .into_iter()
        .flat_map(|method| driver.mock.calls_of(method))
        .collect();
    assert!(controller.is_empty(), "{controller:?}");
    Ok(())
}

#[tokio::test]
async fn a_volume_of_another_driver_is_refused_untouched() -> Result<()> {
    let world = World::shared().await?;
    let driver = world.driver("stranger", json!({})).await?;
    let volume = Volume::new("stranger-pv", "other.csi.test", "stranger-pv");
    world.fixtures.persistent_volume(&volume).await?;
    driver.attachment("stranger-va", "stranger-pv").await?;
    let error = world.fixtures.wait_for_attach_error("stranger-va").await?;
    let text = "the volume belongs to CSI driver other.csi.test but the VolumeAttachment names stranger.csi.test";
    assert_eq!((error.message.as_deref(), error.error_code), (Some(text), None));
    within("one more", driver.attach_one_more("stranger-more")).await??;
    assert_eq!(world.requests(&["stranger-pv"])?, []);
    assert!(driver.calls_for("stranger-pv").is_empty());
    Ok(())
}

/// What an older attach has left in `attachmentMetadata` goes as a whole, with the error that it had.
#[tokio::test]
async fn an_older_publish_context_is_replaced_as_a_whole() -> Result<()> {
    let world = World::shared().await?;
    let driver = world.unconfigured_driver("older", |builder| builder).await?;
    driver.claim("older").await?;
    let status = json!({
        "attached": false, "attachmentMetadata": {"old": "1", "older/key": "2"},
        "attachError": {"message": "it failed", "time": "2026-01-01T00:00:00Z"},
    });
    let attachments: Api<VolumeAttachment> = Api::all(world.client.clone());
    attachments
        .patch_status(
            "older",
            &PatchParams::default(),
            &Patch::Merge(json!({"status": status})),
        )
        .await
        .map_err(|error| Error::Other(error.to_string()))?;
    driver.configure(&json!({})).await?;
    let done = world.fixtures.wait_for_attached("older").await?;
    let status = done.status.ok_or_else(|| Error::Other("no status".to_owned()))?;
    let keys: Vec<String> = status
        .attachment_metadata
        .into_iter()
        .flatten()
        .map(|(key, _)| key)
        .collect();
    assert!(keys.contains(&"devicePath".to_owned()), "{keys:?}");
    assert!(!keys.iter().any(|key| key.starts_with("old")), "{keys:?}");
    assert_eq!(status.attach_error, None);
    let calls = driver.calls_for("older");
    assert_eq!(calls.len(), 1, "{calls:?}");
    Ok(())
}
