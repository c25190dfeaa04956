//! Sockets that the operator's user may not open: what is told, where, and that the mend is one.

use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;

use serde_json::json;

use super::{Rig, USER, mode};
use crate::events::event;
use crate::rig::{Driver, condition};
use crate::support::Result;

/// Configures a driver whose socket cannot be opened, and looks what is told of it, in the condition, the event and the log.
async fn refused(rig: &Rig, driver: &Driver<'_>, parts: &[&str]) -> Result<()> {
    driver.configure(&json!({})).await?;
    told(
        rig,
        &driver.short,
        &rig.world.socket(&driver.short),
        "PermissionDenied",
        parts,
    )
    .await
}

async fn told(rig: &Rig, name: &str, socket: &Path, reason: &str, parts: &[&str]) -> Result<()> {
    let message = condition(&rig.world, name, "DriverReachable", "False", reason).await?;
    let event = event(&rig.world, "AttacherConfig", name, "DriverUnreachable", reason).await?;
    let event = event.message.unwrap_or_default();
    let log = rig.operator.log_text();
    let path = socket.display().to_string();
    let logged: String = log.lines().filter(|line| line.contains(&path)).collect();
    for part in parts.iter().copied().chain([path.as_str()]) {
        assert!(
            message.contains(part),
            "{name}: no {part:?} in the condition: {message}"
        );
        assert!(event.contains(part), "{name}: no {part:?} in the event: {event}");
        assert!(logged.contains(part), "{name}: no {part:?} in the log: {logged}");
    }
    Ok(())
}

/// After the mend it works, without a word to the operator.
async fn works(driver: &Driver<'_>) -> Result<()> {
    driver.wait("Ready", "True", Some("Running")).await
}

pub async fn each_is_told_with_its_mend(rig: &Rig) -> Result<()> {
    ours_without_a_right(rig).await?;
    if rig.another {
        roots_alone(rig).await?;
        behind_a_directory(rig).await?;
    }
    Ok(())
}

/// Also with the user of the test: the owner of a socket is bound by its mode too.
async fn ours_without_a_right(rig: &Rig) -> Result<()> {
    let driver = rig.world.unconfigured_driver("ours", |mock| mock).await?;
    let socket = rig.world.socket("ours");
    if rig.another {
        chown(&socket, Some(USER), Some(USER))?;
    }
    mode(&socket, 0o400)?;
    let parts = [
        "mode 0400",
        "the operator is user ",
        "needs to write (w)",
        "have the driver make it with mode 0660",
    ];
    refused(rig, &driver, &parts).await?;
    mode(&socket, 0o600)?;
    works(&driver).await
}

/// As most drivers make it that run as root.
async fn roots_alone(rig: &Rig) -> Result<()> {
    let driver = rig.world.unconfigured_driver("roots", |mock| mock).await?;
    let socket = rig.world.socket("roots");
    mode(&socket, 0o755)?;
    let parts = [
        "owner 0:0, mode 0755",
        "the operator is user 65532, group 65532",
        "podSecurityContext.runAsUser: 0",
        "supplementalGroups: [0]",
    ];
    refused(rig, &driver, &parts).await?;
    // What the second mend comes to.
    chown(&socket, Some(0), Some(USER))?;
    mode(&socket, 0o660)?;
    works(&driver).await
}

/// A directory that may not be entered, and one behind a symlink: of the socket nothing can be seen then.
async fn behind_a_directory(rig: &Rig) -> Result<()> {
    let sockets = rig.world.sockets.path();
    let closed = sockets.join("closed");
    fs::create_dir(&closed)?;
    mode(&closed, 0o700)?;
    std::os::unix::fs::symlink("closed", sockets.join("link"))?;
    let directory = format!("the directory {} has owner 0:0, mode 0700", closed.display());
    let parts = [
        directory.as_str(),
        "needs to enter (x)",
        "mode 0770",
        "podSecurityContext.runAsUser: 0",
    ];
    for (short, way) in [("behind", "closed"), ("linked", "link")] {
        let socket = sockets.join(way).join(format!("{short}.sock"));
        let endpoint = format!("unix://{}", socket.display());
        crate::support::operator::apply_config(&rig.world.client, short, json!({ "endpoint": endpoint })).await?;
        told(rig, short, &socket, "PermissionDenied", &parts).await?;
    }
    mode(&closed, 0o755)?;
    // Another reason is told at once, though the same kind of event was written a moment ago.
    condition(&rig.world, "behind", "DriverReachable", "False", "SocketMissing").await?;
    event(
        &rig.world,
        "AttacherConfig",
        "behind",
        "DriverUnreachable",
        "SocketMissing",
    )
    .await
    .map(drop)
}
