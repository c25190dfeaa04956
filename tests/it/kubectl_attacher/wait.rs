//! `wait` in a drain whose detaches are slow.

use csi_mock_driver::{CallRecord, Method, Rule};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::ChildStderr;
use tonic::Code;

use super::plugin::Plugin;
use crate::rig::{LIMIT, World, within};
use crate::support::{AuditEvent, Error, Result};

/// Reads what a command tells until a line has this part.
async fn wait_for_line(lines: &mut Lines<BufReader<ChildStderr>>, part: &str) -> Result<()> {
    let mut others = Vec::new();
    let reading = async {
        while let Some(line) = lines.next_line().await? {
            if line.contains(part) {
                return Ok::<_, Error>(true);
            }
            others.push(line);
        }
        Ok(false)
    };
    if within(part, reading).await?? {
        return Ok(());
    }
    Err(Error::Other(format!("{part:?} is not in {others:?}")))
}

#[tokio::test]
async fn a_drain_ends_with_the_last_detach() -> Result<()> {
    let world = World::managed().await?;
    let plugin = Plugin::of(&world).await?;
    let backoff = json!({ "initial": "100ms", "max": "500ms" });
    let driver = world.driver("drain", json!({ "backoff": backoff })).await?;
    let names = ["drain-1", "drain-2", "drain-3"];
    for name in names {
        driver.attach(name).await?;
    }
    // The last detach fails until the plugin has told that it is the last one.
    let busy = Rule::on(Method::ControllerUnpublishVolume).volume("drain-3");
    driver.mock.script(busy.fail(Code::Internal, "the volume is busy"));
    let node = driver.node();
    let waiting = plugin
        .command(&["wait", "--node", &node, "--for=detached", "--timeout", "2m"])
        .spawn();
    let mut waiting = waiting?;
    let told = waiting.stderr.take().expect("standard error is a pipe");
    let mut told = BufReader::new(told).lines();
    // What is deleted before the plugin has its list, the plugin never hears of.
    wait_for_line(&mut told, "3 volumes left").await?;
    for name in names {
        world.fixtures.delete::<VolumeAttachment>(name).await?;
    }
    wait_for_line(&mut told, "1 volume left: drain-3").await?;
    // A plugin that ends too early has the time of one more try for it.
    let tries = driver.calls_for("drain-3").len();
    let is_one = |call: &CallRecord| call.volume.as_deref() == Some("drain-3");
    driver.calls("one more try", tries + 1, is_one).await?;
    assert!(waiting.try_wait()?.is_none(), "not before the last one");
    driver.mock.clear_rules_of("drain-3");
    let output = within("the end of the plugin", waiting.wait_with_output()).await??;
    assert!(output.status.success(), "{output:?}");
    assert!(
        driver.mock.published().is_empty(),
        "nothing is attached when it returns"
    );
    let left = world.fixtures.cluster::<VolumeAttachment>().get_opt("drain-3").await;
    assert!(left.expect("answered").is_none());
    Ok(())
}

#[tokio::test]
async fn a_timeout_says_what_is_left() -> Result<()> {
    let world = World::managed().await?;
    let plugin = Plugin::of(&world).await?;
    let driver = world.driver("linger", json!({})).await?;
    driver.attach("linger").await?;
    // Longer than the plugin ever needs for its list.
    let ran = plugin
        .run(&["wait", "--node", &driver.node(), "--for=detached", "--timeout", "15s"])
        .await?;
    assert_eq!(ran.code, 5, "{ran:?}");
    assert!(ran.error.contains("1 left: linger"), "{ran:?}");
    let ran = plugin
        .run(&["wait", "pv", "linger", "--for=attached", "--timeout", "30s"])
        .await?;
    assert_eq!(ran.code, 0, "{ran:?}");
    let ran = plugin.run(&["wait", "pod", "linger", "--for=attached"]).await?;
    assert_eq!(ran.code, 2, "{ran:?}");
    Ok(())
}

/// A drain goes on when `wait` succeeds, so what is named must have been there.
#[tokio::test]
async fn a_name_that_nothing_has_is_not_taken_for_detached() -> Result<()> {
    let world = World::managed().await?;
    let plugin = Plugin::of(&world).await?;
    let driver = world.driver("wait-absent", json!({})).await?;
    let node = driver.node();
    for (selector, missing) in [
        (vec!["--node", "no-such-node"], "Node no-such-node"),
        (vec!["node", "no-such-node"], "Node no-such-node"),
        (vec!["pv", "no-such-volume"], "PersistentVolume no-such-volume"),
        (vec!["va", "no-such-attachment"], "VolumeAttachment no-such-attachment"),
        (
            vec!["--node", &node, "--driver", "no-such-driver"],
            "CSIDriver no-such-driver",
        ),
    ] {
        for timeout in ["0", "20s"] {
            let arguments = [&["wait"], &*selector, &["--for=detached", "--timeout", timeout]].concat();
            let ran = plugin.run(&arguments).await?;
            assert_eq!(ran.code, 4, "{arguments:?}: {ran:?}");
            assert!(ran.error.contains(missing), "{arguments:?}: {ran:?}");
            assert!(ran.error.contains("--allow-missing"), "{arguments:?}: {ran:?}");
            let allowed = plugin.run(&[&*arguments, &["--allow-missing"]].concat()).await?;
            assert_eq!(allowed.code, 0, "{arguments:?}: {allowed:?}");
            assert!(
                allowed.out.contains("0 VolumeAttachments seen"),
                "{arguments:?}: {allowed:?}"
            );
        }
    }
    // A node and a volume that exist need no attachment.
    for selector in [["--node", &*node], ["pv", "absent-kept"]] {
        if selector[0] == "pv" {
            world.fixtures.persistent_volume(&driver.volume("absent-kept")).await?;
        }
        let ran = plugin
            .run(&[&["wait"], &selector[..], &["--for=detached", "--timeout", "0"]].concat())
            .await?;
        assert_eq!(ran.code, 0, "{selector:?}: {ran:?}");
    }
    Ok(())
}

/// A timeout of zero is one list, however long that takes.
#[tokio::test]
async fn a_timeout_of_zero_looks_once() -> Result<()> {
    let world = World::managed().await?;
    let plugin = Plugin::of(&world).await?;
    let driver = world.driver("once", json!({})).await?;
    driver.attach("once").await?;
    let node = driver.node();
    // The audit log tells what each user asked for.
    let look = async |user: &str, arguments: &[&str]| {
        let user = ["--as", user, "--as-group", "system:masters"];
        plugin.run(&[arguments, &user].concat()).await
    };
    let arguments = ["wait", "--node", node.as_str(), "--for=detached", "--timeout", "0"];
    let ran = look("once-detached", &arguments).await?;
    assert_eq!(ran.code, 5, "{ran:?}");
    assert!(ran.error.contains("1 left: once"), "{ran:?}");
    let arguments = ["wait", "pv", "once", "--for=attached", "--timeout", "0"];
    let ran = look("once-attached", &arguments).await?;
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.out.contains("1 VolumeAttachment seen"), "{ran:?}");
    for user in ["once-detached", "once-attached"] {
        let lists = |event: &AuditEvent| event.username == user && event.is("list", "volumeattachments");
        world.cluster.wait_for_audit_event("the list", LIMIT, lists).await?;
        let events = world.cluster.audit_events()?;
        let own = events
            .iter()
            .filter(|event| event.username == user && event.resource == "volumeattachments");
        let verbs: Vec<&str> = own.map(|event| event.verb.as_str()).collect();
        assert_eq!(verbs, ["list"], "{user} looks once");
    }
    Ok(())
}
