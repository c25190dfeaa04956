//! Endpoints at which there is no driver, or not the right one.

use std::path::Path;
use std::time::Duration;

use csi_mock_driver::{Method, Rule};
use futures::future::try_join_all;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;

use crate::error_texts::configs::{NAME_MISMATCH, REFUSED, SOCKET_MISSING};
use crate::error_texts::index::assert_indexed;
use crate::rig::{World, condition, within};
use crate::support::operator::apply_config;
use crate::support::{Result, Volume};

/// What something that is no driver does with a connection.
#[derive(Clone, Copy)]
enum Answer {
    Close,
    Garbage,
    Nothing,
}

/// Listens as something that is no driver, until the task is aborted.
fn listen(socket: &Path, answer: Answer) -> Result<JoinHandle<()>> {
    let listener = UnixListener::bind(socket)?;
    Ok(tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            match answer {
                Answer::Close => {}
                Answer::Garbage => drop(stream.write_all(b"220 mail.example.com ESMTP\r\n").await),
                Answer::Nothing => kept.push(stream),
            }
        }
    }))
}

#[tokio::test]
async fn each_kind_of_wrong_endpoint_is_told_and_the_others_work_meanwhile() -> Result<()> {
    let world = World::shared().await?;
    let good = world.driver("ep-good", json!({})).await?;
    std::fs::write(world.socket("ep-file"), "no socket")?;
    // The file stays when the listener is gone.
    drop(UnixListener::bind(world.socket("ep-refused"))?);
    let listeners = [
        listen(&world.socket("ep-close"), Answer::Close)?,
        listen(&world.socket("ep-garbage"), Answer::Garbage)?,
        listen(&world.socket("ep-hang"), Answer::Nothing)?,
    ];
    let cases = [
        ("ep-missing", "SocketMissing"),
        ("ep-file", "NotASocket"),
        ("ep-refused", "ConnectionRefused"),
        ("ep-close", "NoGrpc"),
        ("ep-garbage", "NoGrpc"),
        ("ep-hang", "Timeout"),
    ];
    let told = cases.map(async |(short, reason)| {
        let spec = world.spec(short, &json!({ "timeouts": { "probe": "400ms" } }));
        apply_config(&world.client, short, spec).await?;
        let text = condition(&world, short, "DriverReachable", "False", reason).await?;
        assert!(text.ends_with("; retrying every 1 s"), "{short}: {text}");
        if reason != "Timeout" {
            let path = world.socket(short).display().to_string();
            assert!(text.contains(&path), "{short}: {text}");
        }
        match reason {
            "SocketMissing" => assert_indexed(SOCKET_MISSING, &text),
            "ConnectionRefused" => assert_indexed(REFUSED, &text),
            _ => {}
        }
        condition(&world, short, "Ready", "False", "DriverUnreachable").await
    });
    try_join_all(told).await?;
    good.attach("ep-good-va").await?;
    for listener in listeners {
        listener.abort();
    }
    Ok(())
}

#[tokio::test]
async fn a_socket_that_appears_later_is_taken_up_with_what_waits() -> Result<()> {
    let world = World::shared().await?;
    apply_config(&world.client, "late", world.spec("late", &json!({}))).await?;
    condition(&world, "late", "DriverReachable", "False", "SocketMissing").await?;
    let fixtures = &world.fixtures;
    let volume = Volume::new("late-pv", "late.csi.test", "late-pv");
    fixtures.persistent_volume(&volume).await?;
    fixtures
        .volume_attachment("late-va", "late.csi.test", "late-pv", "late-node")
        .await?;
    let driver = world.unconfigured_driver("late", |mock| mock).await?;
    driver.wait("Ready", "True", Some("Running")).await?;
    driver.wait("DriverReachable", "True", Some("Connected")).await?;
    fixtures.wait_for_attached("late-va").await.map(drop)
}

#[tokio::test]
async fn a_driver_that_is_not_ready_yet_is_waited_for() -> Result<()> {
    let world = World::shared().await?;
    let driver = world
        .unconfigured_driver("unready", |mock| mock.settings(|settings| settings.ready = false))
        .await?;
    driver.configure(&json!({})).await?;
    driver.wait("DriverReachable", "False", Some("DriverNotReady")).await?;
    assert!(
        driver.mock.calls_of(Method::GetPluginInfo).is_empty(),
        "asked before it was ready"
    );
    driver.mock.set_ready(true);
    driver.wait("Ready", "True", Some("Running")).await?;
    driver.attach("unready-va").await.map(drop)
}

#[tokio::test]
async fn a_driver_of_another_name_is_not_worked_with_until_it_is_mended() -> Result<()> {
    let world = World::shared().await?;
    let driver = world
        .unconfigured_driver("named", |mock| {
            mock.settings(|settings| settings.driver_name = "wrong.csi.test".to_owned())
        })
        .await?;
    driver.claim("named-va").await?;
    driver.configure(&json!({ "driverName": driver.name })).await?;
    let text = condition(&world, "named", "Stalled", "True", "DriverNameMismatch").await?;
    for part in ["\"wrong.csi.test\"", "\"named.csi.test\"", "spec.driverName"] {
        assert!(text.contains(part), "{text}");
    }
    assert_indexed(NAME_MISMATCH, &text);
    driver.wait("Ready", "False", Some("DriverNameMismatch")).await?;
    assert!(driver.calls_for("named-va").is_empty());
    assert_eq!(world.requests(&["named-va"])?, []);

    driver.stop().await;
    driver.mock.set_driver_name(&driver.name);
    driver.start_again().await?;
    driver.wait("Stalled", "False", None).await?;
    driver.wait("Ready", "True", Some("Running")).await?;
    world.fixtures.wait_for_attached("named-va").await.map(drop)
}

#[tokio::test]
async fn work_goes_on_after_a_driver_died_in_the_middle_of_it() -> Result<()> {
    let world = World::shared().await?;
    // The backoff is long: that the driver is back is what counts, not the next try.
    let settings = json!({ "backoff": { "initial": "1h", "max": "1h" } });
    let driver = world.driver("dies", settings).await?;
    let slow = Rule::on(Method::ControllerPublishVolume).times(5);
    driver.mock.script(slow.delay(Duration::from_mins(1)));
    let names: Vec<String> = (0..5).map(|index| format!("dies-{index}")).collect();
    try_join_all(names.iter().map(|name| driver.claim(name))).await?;
    for name in &names {
        driver.call(Method::ControllerPublishVolume, name, |_| true).await?;
    }
    driver.stop().await;
    driver.wait("DriverReachable", "False", Some("SocketMissing")).await?;
    driver.start_again().await?;
    for name in &names {
        let stored = within("attach", world.fixtures.wait_for_attached(name)).await??;
        assert_eq!(stored.status.and_then(|status| status.attach_error), None);
        assert_eq!(driver.calls_for(name).len(), 2, "{name}");
    }
    driver.wait("Ready", "True", Some("Running")).await
}
