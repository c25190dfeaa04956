//! Endpoints at which there is no driver, or not the right one.

use std::path::Path;
use std::time::Duration;

use csi_mock_driver::{Method, Rule};
use futures::future::try_join_all;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;

use crate::error_texts::configs::{REFUSED, SOCKET_MISSING};
use crate::error_texts::index::assert_indexed;
use crate::rig::{World, condition, within};
use crate::support::Result;
use crate::support::operator::apply_config;

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
