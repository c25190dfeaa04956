//! `bundle`: an archive with what helps, and without what a driver or a user hides.

use std::process::Command;

use k8s_openapi::api::core::v1::Secret;
use serde_json::json;

use super::plugin::Plugin;
use crate::rig::World;
use crate::support::{Error, Result};

const CANARY: &str = "c4n4ry-9f2e-of-the-bundle";

#[tokio::test]
async fn no_canary_is_in_the_archive() -> Result<()> {
    let world = World::managed().await?;
    let plugin = Plugin::of(&world).await?;
    let driver = world.unconfigured_driver("bundled", |builder| builder).await?;
    world.fixtures.secret("default", "bundled", &[("key", CANARY)]).await?;
    let volume = driver
        .volume("bundled")
        .attribute("share", CANARY)
        .publish_secret("default", "bundled");
    world.fixtures.persistent_volume(&volume).await?;
    driver.attachment("bundled", "bundled").await?;
    let error = json!({"message": format!("login failed: password={CANARY}"), "time": "2026-01-01T00:00:00Z"});
    let status = json!({"status": {"attached": false, "attachmentMetadata": {"token": CANARY}, "attachError": error}});
    let attachments = world
        .fixtures
        .cluster::<k8s_openapi::api::storage::v1::VolumeAttachment>();
    let parameters = kube::api::PatchParams::default();
    let patched = attachments
        .patch_status("bundled", &parameters, &kube::api::Patch::Merge(&status))
        .await;
    patched.expect("an administrator may do this");
    let folder = tempfile::tempdir().map_err(|error| Error::Other(error.to_string()))?;
    let path = folder.path().join("bundle.tar.gz");
    let ran = plugin
        .run(&["bundle", "--output-file", &path.display().to_string()])
        .await?;
    assert_eq!(ran.code, 0, "{ran:?}");
    let unpacked = Command::new("tar")
        .arg("-xzf")
        .arg(&path)
        .arg("-C")
        .arg(folder.path())
        .status();
    assert!(unpacked.is_ok_and(|status| status.success()));
    let folder = folder.path().join("kubectl-attacher-bundle");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_default();
    let names = [
        "README.txt",
        "volumeattachments.json",
        "persistentvolumes.json",
        "why/bundled.txt",
    ];
    for (name, part) in names
        .into_iter()
        .zip(["read at", "login failed", "bundled", "NoAttacher"])
    {
        let text = read(name);
        assert!(text.contains(part), "{part} is not in {name}: {text}");
    }
    let search = Command::new("grep").arg("-r").arg(CANARY).arg(&folder).output();
    let found = search.map_err(|error| Error::Other(error.to_string()))?;
    assert_eq!(String::from_utf8_lossy(&found.stdout), "");
    world.fixtures.delete_namespaced::<Secret>("default", "bundled").await
}
