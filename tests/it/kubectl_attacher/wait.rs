//! `wait` in a drain whose detaches are slow.

use std::time::{Duration, Instant};

use csi_mock_driver::{Method, Rule};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use serde_json::json;

use super::plugin::Plugin;
use crate::rig::World;
use crate::support::Result;

/// How long the driver takes for the last detach, longer than for the others.
const SLOW: Duration = Duration::from_secs(3);

#[tokio::test]
async fn a_drain_ends_with_the_last_detach() -> Result<()> {
    let world = World::managed().await?;
    let plugin = Plugin::of(&world).await?;
    let driver = world.driver("drain", json!({})).await?;
    let names = ["drain-1", "drain-2", "drain-3"];
    for name in names {
        driver.attach(name).await?;
    }
    let unpublish = |name: &str, delay| Rule::on(Method::ControllerUnpublishVolume).volume(name).delay(delay);
    driver.mock.script(unpublish("drain-2", SLOW / 2));
    driver.mock.script(unpublish("drain-3", SLOW));
    let node = driver.node();
    let waiting = plugin
        .command(&["wait", "--node", &node, "--for=detached", "--timeout", "1m"])
        .spawn();
    let waiting = waiting?;
    let began = Instant::now();
    for name in names {
        world.fixtures.delete::<VolumeAttachment>(name).await?;
    }
    let output = waiting.wait_with_output().await?;
    let (took, text) = (began.elapsed(), String::from_utf8_lossy(&output.stderr).into_owned());
    assert!(output.status.success(), "{output:?}");
    assert!(took >= SLOW, "not before the last one: {took:?}");
    assert!(took < SLOW + Duration::from_secs(10), "and soon after it: {took:?}");
    assert!(
        driver.mock.published().is_empty(),
        "nothing is attached when it returns"
    );
    let left = world.fixtures.cluster::<VolumeAttachment>().get_opt("drain-3").await;
    assert!(left.expect("answered").is_none());
    assert!(text.contains("1 volume left: drain-3"), "{text}");
    Ok(())
}

#[tokio::test]
async fn a_timeout_says_what_is_left() -> Result<()> {
    let world = World::managed().await?;
    let plugin = Plugin::of(&world).await?;
    let driver = world.driver("linger", json!({})).await?;
    driver.attach("linger").await?;
    let ran = plugin
        .run(&["wait", "--node", &driver.node(), "--for=detached", "--timeout", "2s"])
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

/// What a shell makes of a variable that is not set.
#[tokio::test]
async fn an_empty_name_is_refused() -> Result<()> {
    let world = World::managed().await?;
    let plugin = Plugin::of(&world).await?;
    for arguments in [
        &["wait", "--node", "", "--for=detached"][..],
        &["wait", "--node=", "--for=detached"],
        &["wait", "--node", " ", "--for=detached"],
        &["wait", "--node", "--for=detached"],
        &["wait", "node", "", "--for=detached"],
        &["wait", "pv", "", "--for=detached"],
        &["wait", "va", "", "--for=detached", "--allow-missing"],
        &["wait", "pvc", "", "--for=detached"],
        &["wait", "pv", "--for=detached"],
        &["wait", "--node", "some", "--driver", "", "--for=detached"],
        &["wait", "--for=detached"],
        &["list", "--node", ""],
        &["list", "--driver", ""],
        &["why", "pv", ""],
        &["retry", ""],
        &["release", "va", ""],
    ] {
        let ran = plugin.run(arguments).await?;
        assert_eq!(ran.code, 2, "{arguments:?}: {ran:?}");
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
    let began = Instant::now();
    let ran = plugin
        .run(&["wait", "--node", &node, "--for=detached", "--timeout", "0"])
        .await?;
    assert_eq!(ran.code, 5, "{ran:?}");
    assert!(ran.error.contains("1 left: once"), "{ran:?}");
    assert!(
        began.elapsed() < Duration::from_secs(2),
        "it does not wait: {:?}",
        began.elapsed()
    );
    let ran = plugin
        .run(&["wait", "pv", "once", "--for=attached", "--timeout", "0"])
        .await?;
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.out.contains("1 VolumeAttachment seen"), "{ran:?}");
    Ok(())
}
