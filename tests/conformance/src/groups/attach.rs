//! What ControllerPublishVolume gets from the objects, and what they get from its answer.

use std::collections::BTreeMap;

use serde_json::json;

use crate::env::TIMEOUT;
use crate::scenario::{Group, Outcome, Scenario, demand, offered, same};
use crate::test::Test;

pub fn scenarios() -> Vec<Scenario> {
    let group = Group::new("attach");
    contexts(requests(group)).done()
}

fn requests(group: Group) -> Group {
    group
        .demands("volume handle and node id reach the driver")
        .scenario("handle-and-node", |t| async move {
            t.given_attached().await?;
            let call = t.published_as().await?;
            same("readonly", &call.readonly, &Some(false))?;
            demand(call.volume_context.is_empty() && call.secret_keys.is_empty(), || {
                "a context or secrets out of nowhere".to_owned()
            })?;
            t.published()
        })
        .demands("one attach is one ControllerPublishVolume")
        .unless("not supported when the call is repeated")
        .extension("one-call", |t| async move {
            t.given_attached().await?;
            t.barrier("b").await?;
            let count = t.publishes().len();
            offered(count == 1, || {
                format!("{count} calls; allowed, as the call is idempotent")
            })
        })
        .demands("spec.csi.readOnly reaches a driver with PUBLISH_READONLY")
        .safety("readonly-with-capability", |t| async move {
            t.given_all(|pv| pv["spec"]["csi"]["readOnly"] = json!(true)).await?;
            t.attached().await?;
            same("readonly", &t.published_as().await?.readonly, &Some(true))
        })
        .demands("volumeAttributes are the volume context")
        .scenario("volume-context", |t| async move {
            t.given_all(|pv| pv["spec"]["csi"]["volumeAttributes"] = json!({ "a": "1", "b/c": "" }))
                .await?;
            t.attached().await?;
            let wanted = BTreeMap::from([("a".to_owned(), "1".to_owned()), ("b/c".to_owned(), String::new())]);
            same("volume context", &t.published_as().await?.volume_context, &wanted)
        })
        .demands("volumeMode Block is a block capability")
        .scenario("block", |t| async move {
            t.given_all(|pv| pv["spec"]["volumeMode"] = json!("Block")).await?;
            t.attached().await?;
            capability(&t, "block", None, 0).await
        })
        .demands("volumeMode Filesystem is a mount capability; no file system is invented")
        .scenario("filesystem", |t| async move {
            t.given_all(|pv| pv["spec"]["volumeMode"] = json!("Filesystem")).await?;
            t.attached().await?;
            capability(&t, "mount", Some(""), 0).await
        })
        .demands("spec.csi.fsType is the file system")
        .scenario("fs-type", |t| async move {
            t.given_all(|pv| pv["spec"]["csi"]["fsType"] = json!("btrfs")).await?;
            t.attached().await?;
            capability(&t, "mount", Some("btrfs"), 0).await
        })
        .demands("mountOptions are the mount flags")
        .scenario("mount-flags", |t| async move {
            t.wants_mount_flags(&["noatime", "nodev"]);
            t.given_all(|pv| pv["spec"]["mountOptions"] = json!(["noatime", "nodev"]))
                .await?;
            t.attached().await?;
            capability(&t, "mount", Some(""), 2).await
        })
        .demands("the call has the deadline that --timeout says")
        .scenario("deadline", |t| async move {
            t.given_attached().await?;
            let deadline = t.published_as().await?.deadline_ms;
            let longest = u64::try_from(TIMEOUT.as_millis()).unwrap_or(u64::MAX);
            demand(deadline.is_some_and(|it| (longest / 2..=longest).contains(&it)), || {
                format!("deadline {deadline:?} ms, want {longest} at most and little less")
            })
        })
}

fn contexts(group: Group) -> Group {
    group
        .demands("the publish context is stored verbatim")
        .scenario("publish-context", |t| async move {
            let context = [
                ("devicePath", "/dev/vdb"),
                ("empty", ""),
                ("ünï/cödé", "line\nbreak \"quoted\" \\ ✓"),
            ];
            t.publish_context(&context);
            t.given_all(|_| {}).await?;
            stored(&t, &context).await
        })
        .demands("an empty publish context leaves no attachmentMetadata")
        .scenario("publish-context-empty", |t| async move {
            t.publish_context(&[]);
            t.given_all(|_| {}).await?;
            stored(&t, &[]).await
        })
        .demands("a publish context of 200 KiB is stored")
        .scenario("publish-context-200k", |t| async move {
            let long = "x".repeat(200 * 1024);
            let context = [("long", long.as_str())];
            t.publish_context(&context);
            t.given_all(|_| {}).await?;
            stored(&t, &context).await
        })
        .demands("after a detach and another attach the new publish context is stored")
        .scenario("publish-context-again", |t| async move {
            t.publish_context(&[("first", "1")]);
            t.given_attached().await?;
            t.detach().await?;
            t.publish_context(&[("second", "2")]);
            t.create_attachment(|_| {}).await?;
            stored(&t, &[("second", "2")]).await
        })
        .demands("an attached volume is left alone when its objects change")
        .safety("stays-attached", |t| async move {
            t.given_attached().await?;
            t.barrier("b").await?;
            let before = t.publishes().len();
            t.patch_attachment(json!({ "metadata": { "labels": { "conformance.test/touched": "yes" } } }))
                .await?;
            t.patch_volume(json!({ "metadata": { "labels": { "conformance.test/touched": "yes" } } }))
                .await?;
            t.barrier("c").await?;
            same("number of ControllerPublishVolume", &t.publishes().len(), &before)?;
            demand(t.unpublishes().is_empty(), || {
                "an attached volume was detached".to_owned()
            })
        })
}

async fn stored(t: &Test, context: &[(&str, &str)]) -> Outcome {
    let attachment = t.attached().await?;
    let metadata = attachment
        .status
        .and_then(|status| status.attachment_metadata)
        .unwrap_or_default();
    let wanted: BTreeMap<_, _> = context
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    demand(metadata == wanted, || {
        let keys: Vec<_> = metadata.keys().collect();
        format!("attachmentMetadata is not the publish context; it has the keys {keys:?}")
    })
}

async fn capability(t: &Test, access: &str, fs_type: Option<&str>, flags: usize) -> Outcome {
    let call = t.published_as().await?;
    let Some(capability) = call.capability else {
        return demand(false, || "no volume capability in the call".to_owned());
    };
    same("access type", &capability.access_type, &access)?;
    same("file system", &capability.fs_type.as_deref(), &fs_type)?;
    same("number of mount flags", &capability.mount_flags, &flags)
}
