//! Proves what the operator writes and calls, in which order, and nothing else: from the audit log of the API server and
//! from the call log of the driver. What it does when something is out of order is in the conformance suite and in the tables of the
//! decision core.

mod secret;

use serde_json::{Value, json};

use crate::rig::{Driver, VERSION, VOLUME_UID, World, assert_steps, delete_volume, detach};
use crate::support::Result;
use crate::support::operator::grant_secret;

/// Puts the first finalizer on a volume.
fn protect(driver: &Driver<'_>) -> Value {
    json!([
        {"op": "test", "path": "/metadata/uid", "value": VOLUME_UID},
        {"op": "test", "path": "/metadata/finalizers", "value": null},
        {"op": "add", "path": "/metadata/finalizers", "value": [driver.finalizer()]},
    ])
}

/// Claims an attachment that has neither finalizers nor annotations.
fn claim(driver: &Driver<'_>, uid: &str, note: &Value) -> Value {
    json!([
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "test", "path": "/metadata/resourceVersion", "value": VERSION},
        {"op": "test", "path": "/metadata/finalizers", "value": null},
        {"op": "add", "path": "/metadata/finalizers", "value": [driver.finalizer()]},
        {"op": "test", "path": "/metadata/annotations", "value": null},
        {"op": "add", "path": "/metadata/annotations", "value": {
            "csi.alpha.kubernetes.io/node-id": driver.node_id(), "attacher.csi.dev/volume": note,
        }},
    ])
}

/// Records what an attach came to, with the publish context of the mock driver.
fn attached(uid: &str) -> Value {
    let context = json!({ "devicePath": "/dev/xvdba", "readonly": "true" });
    json!({
        "metadata": { "uid": uid, "resourceVersion": VERSION },
        "status": { "attached": true, "attachError": null, "attachmentMetadata": context },
    })
}

/// Takes the only finalizer off.
fn release(driver: &Driver<'_>, uid: &str) -> Value {
    json!([
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "test", "path": "/metadata/finalizers/0", "value": driver.finalizer()},
        {"op": "remove", "path": "/metadata/finalizers/0"},
    ])
}

/// The calls had all that the volume, its Secret and the settings say.
fn assert_called_as_asked(driver: &Driver<'_>) {
    let calls = driver.calls_for("life-pv");
    assert_eq!((calls[0].deadline_ms, calls[1].deadline_ms), (Some(7000), Some(9000)));
    assert!(
        calls
            .iter()
            .all(|call| call.secret_keys == ["password", "user"] && !call.overlap)
    );
    assert_eq!(calls[0].readonly, Some(true));
    assert_eq!(calls[0].volume_context, [("tier".to_owned(), "gold".to_owned())].into());
    let capability = calls[0].capability.as_ref().expect("the call has a capability");
    assert_eq!(
        (
            capability.access_mode,
            capability.access_type,
            capability.fs_type.as_deref()
        ),
        ("SINGLE_NODE_MULTI_WRITER", "mount", Some("xfs"))
    );
}

/// From the first attach of a volume to its end: five writes and two calls, and the Secret is read before the claim and before the
/// detach. The object goes with its finalizer.
#[tokio::test]
async fn a_life_takes_five_writes_and_two_calls() -> Result<()> {
    let world = World::shared().await?;
    let settings = json!({
        "timeouts": { "publish": "7s", "unpublish": "9s" }, "defaultFsType": "xfs",
        "publishSecrets": [{ "namespace": "life-ns", "names": ["life-secret"] }],
    });
    let driver = world.driver("life", settings).await?;
    let fixtures = &world.fixtures;
    grant_secret(&world.cluster, "life-ns", "life-secret").await?;
    let login = [("password", "swordfish"), ("user", "anna")];
    fixtures.secret("life-ns", "life-secret", &login).await?;
    let volume = driver.volume("life-pv").attribute("tier", "gold").read_only();
    let volume = volume.publish_secret("life-ns", "life-secret");
    fixtures.persistent_volume(&volume).await?;
    let made = driver.attachment("life-va", "life-pv").await?;
    let uid = made.metadata.uid.unwrap_or_default();
    let done = fixtures.wait_for_attached("life-va").await?;
    detach(fixtures, "life-va").await?;
    delete_volume(fixtures, "life-pv").await?;
    driver.attach_one_more("life-more").await?;

    let steps = driver.steps(&["life-pv", "life-va", "life-secret"], "life-pv")?;
    // The order of the fields of the note is nobody's.
    let note = steps[2].body.pointer("/5/value/attacher.csi.dev~1volume").cloned();
    let note = note.unwrap_or_default();
    let noted: Value = serde_json::from_str(note.as_str().unwrap_or_default())?;
    let secret = json!({ "namespace": "life-ns", "name": "life-secret" });
    assert_eq!(noted, json!({ "handle": "life-pv", "secret": secret }));
    let expected = [
        ("patch persistentvolumes life-pv", protect(&driver)),
        ("get secrets life-secret", Value::Null),
        ("patch volumeattachments life-va", claim(&driver, &uid, &note)),
        ("ControllerPublishVolume life-pv life-node-id", json!("Ok")),
        ("patch volumeattachments/status life-va", attached(&uid)),
        ("get secrets life-secret", Value::Null),
        ("ControllerUnpublishVolume life-pv life-node-id", json!("Ok")),
        ("patch volumeattachments life-va", release(&driver, &uid)),
        ("patch persistentvolumes life-pv", release(&driver, VOLUME_UID)),
    ];
    assert_steps(&steps, &expected);
    let metadata = done.status.and_then(|status| status.attachment_metadata);
    assert_eq!(metadata.unwrap_or_default()["devicePath"], "/dev/xvdba");
    assert_called_as_asked(&driver);
    assert_eq!(driver.mock.published().len(), 1, "only the one more is attached");
    Ok(())
}
