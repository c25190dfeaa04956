//! Errors that are hard to store, and room that comes and goes.

use std::time::Duration;

use csi_mock_driver::{ScriptAction, ScriptedFailure};
use serde_json::json;
use tonic::Code;

use crate::expect::{attach_error_of, detach_error_of, text};
use crate::scenario::{Group, Outcome, Scenario, demand, offered, optional, same};
use crate::test::Test;

/// An attacher that cannot store an error has tried and failed some times by then.
const SHORTLY: Duration = Duration::from_secs(20);
/// The API server's limit.
const MAX_MESSAGE: usize = 1024;

pub fn scenarios() -> Vec<Scenario> {
    let group = Group::new("errors");
    room(odd(long(group))).done()
}

fn long(group: Group) -> Group {
    group
        .demands("an attach error of 5000 bytes is cut to 1024")
        .unless("not supported when no error can be seen")
        .extension("long-attach-error", |t| async move {
            t.script(t.on_publish().fail(Code::Internal, "\u{e4}\u{20ac}".repeat(1000)));
            t.given_all(|_| {}).await?;
            let seen = t
                .attachment_is("attachError", SHORTLY, |it| attach_error_of(it).is_some())
                .await;
            let attachment = optional(seen, "no attachError: the API server takes 1024 bytes at most")?;
            fits(&attach_error_of(&attachment).map(text).unwrap_or_default())?;
            t.heal();
            t.attached().await.map(drop)
        })
        .demands("a detach error of 5000 bytes is cut to 1024")
        .unless("not supported when no error can be seen")
        .extension("long-detach-error", |t| async move {
            t.given_attached().await?;
            t.script(t.on_unpublish().fail(Code::Internal, "\u{e4}\u{20ac}".repeat(1000)));
            t.delete_attachment().await?;
            let seen = t
                .attachment_is("detachError", SHORTLY, |it| detach_error_of(it).is_some())
                .await;
            let attachment = optional(seen, "no detachError: the API server takes 1024 bytes at most")?;
            fits(&detach_error_of(&attachment).map(text).unwrap_or_default())
        })
        .demands("an error of 5000 bytes does not keep the volume from being attached later")
        .scenario("long-error-then-attached", |t| async move {
            t.script(t.on_publish().times(3).fail(Code::Internal, "x".repeat(5000)));
            t.given_all(|_| {}).await?;
            t.attached().await.map(drop)
        })
        .demands("a publish context of 300 KiB is said to be too large")
        .unless("not supported when no error can be seen")
        .extension("large-context-named", |t| async move {
            let long = "x".repeat(300 * 1024);
            t.publish_context(&[("long", long.as_str())]);
            t.given_all(|_| {}).await?;
            let seen = t
                .attachment_is("attachError", SHORTLY, |it| attach_error_of(it).is_some())
                .await;
            optional(seen, "no attachError: the API server takes 256 KiB at most")?;
            t.publish_context(&[("short", "1")]);
            t.attached().await.map(drop)
        })
        .demands("a volume whose publish context cannot be stored is taken back when its attachment goes")
        .safety("large-context-undone", |t| async move {
            let long = "x".repeat(300 * 1024);
            t.publish_context(&[("long", long.as_str())]);
            t.given_publishing().await?;
            t.detach().await
        })
}

fn odd(group: Group) -> Group {
    group
        .demands("control characters in an error do no harm")
        .scenario("control-characters", |t| async move {
            t.script(t.on_publish().fail(Code::Internal, "a\tb\nc\u{1}d\u{7f}e\u{feff}f"));
            t.given_all(|_| {}).await?;
            t.attach_error("rpc error: code = Internal").await?;
            t.heal();
            t.attached().await.map(drop)
        })
        .demands("an error without a text is shown by its code")
        .scenario("no-text", |t| async move {
            t.script(t.on_publish().fail(Code::Aborted, ""));
            t.given_all(|_| {}).await?;
            t.attach_error("code = Aborted").await?;
            t.heal();
            t.attached().await.map(drop)
        })
        .demands("success clears the attachError")
        .unless("not supported when one is left on any of 8 attached volumes")
        .extension("cleared", |t| async move {
            t.given_node().await?;
            let all: Vec<Test> = (0..8).map(|number| t.other_volume(&format!("v{number}"))).collect();
            let left = futures::future::try_join_all(all.iter().map(error_left)).await?;
            offered(!left.contains(&true), || {
                "attached, with the error of an earlier try".to_owned()
            })
        })
        .demands("another error takes the place of the first")
        .scenario("replaced", |t| async move {
            t.given_failing("first").await?;
            t.heal();
            t.script(t.on_publish().fail(Code::Aborted, "second"));
            t.attach_error("second").await?;
            Ok(())
        })
        .demands("an error after the work was done does not lose the volume")
        .safety("after-the-work", |t| async move {
            let failure = ScriptedFailure {
                code: Code::Internal,
                message: "the answer was eaten".to_owned(),
                echo_secrets: false,
                pad_bytes: 0,
            };
            t.script(t.on_publish().action(ScriptAction::FailAfterWork(failure)));
            t.given_all(|_| {}).await?;
            t.attach_error("eaten").await?;
            t.published()?;
            t.detach().await
        })
}

/// Whether an error is left after two failures and a success.
async fn error_left(t: &Test) -> Outcome<bool> {
    t.script(t.on_publish().times(2).fail(Code::Internal, "not yet"));
    t.given_volume_and_attachment().await?;
    let attachment = t.attached().await?;
    Ok(attach_error_of(&attachment).is_some())
}

fn room(group: Group) -> Group {
    group
        .demands("a full node attaches another volume once there is room")
        .scenario("full-node", |t| async move {
            let node = t.node_id.clone();
            t.env
                .driver
                .settings(|settings| settings.node_attach_limits.extend([(node, 1)]));
            t.given_attached().await?;
            let other = t.other_volume("b");
            other
                .given_volume(|pv| pv["metadata"]["labels"] = json!({ "conformance.test/second": "yes" }))
                .await?;
            other.create_attachment(|_| {}).await?;
            let error = other.attach_error("ResourceExhausted").await?;
            same("errorCode", &error.error_code, &Some(8))?;
            t.detach().await?;
            room_is_used(&other).await
        })
}

async fn room_is_used(other: &Test) -> Outcome {
    other.attached().await?;
    other.published()
}

fn fits(message: &str) -> Outcome {
    demand(message.len() <= MAX_MESSAGE && message.len() > MAX_MESSAGE / 2, || {
        format!("the message has {} bytes", message.len())
    })?;
    demand(message.starts_with("rpc error: code = Internal"), || {
        "the code is not at its beginning".to_owned()
    })
}
