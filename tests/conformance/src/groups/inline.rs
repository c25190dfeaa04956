//! VolumeAttachments that carry their volume themselves, as the attach/detach controller makes them for migrated
//! in-line volumes of pods.

use serde_json::{Value, json};

use crate::scenario::{Group, Outcome, Scenario, demand, same};
use crate::test::Test;

pub fn scenarios() -> Vec<Scenario> {
    Group::new("inline")
        .demands("an inline volume is attached and detached")
        .scenario("attach-and-detach", |t| async move {
            given_inline(&t, |_| {}).await?;
            t.attached_and_claimed().await?;
            same("readonly", &t.published_as().await?.readonly, &Some(false))?;
            t.detach().await
        })
        .demands("a read-only inline volume")
        .safety("readonly", |t| async move {
            given_inline(&t, |csi| csi["readOnly"] = json!(true)).await?;
            t.attached().await?;
            same("readonly", &t.published_as().await?.readonly, &Some(true))
        })
        .demands("attributes of an inline volume are its volume context")
        .scenario("volume-context", |t| async move {
            given_inline(&t, |csi| csi["volumeAttributes"] = json!({ "foo": "bar" })).await?;
            t.attached().await?;
            let context = t.published_as().await?.volume_context;
            demand(
                context.get("foo").is_some_and(|value| value == "bar") && context.len() == 1,
                || format!("volume context is {context:?}"),
            )
        })
        .demands("an inline volume gets its secret at both calls")
        .scenario("secret", |t| async move {
            t.wants_secrets(&[("user", "me")]);
            t.given_secret(&[("user", "me")]).await?;
            let reference = t.secret_reference();
            given_inline(&t, move |csi| csi["controllerPublishSecretRef"] = reference).await?;
            t.attached().await?;
            t.detach().await
        })
        .demands("an inline volume is detached without its CSINode")
        .scenario("without-csinode", |t| async move {
            given_inline(&t, |_| {}).await?;
            t.attached().await?;
            t.delete_node().await?;
            t.detach().await
        })
        .done()
}

async fn given_inline(t: &Test, edit: impl FnOnce(&mut Value)) -> Outcome {
    t.given_node().await?;
    let mut csi = json!({ "driver": t.env.driver_name, "volumeHandle": t.handle });
    edit(&mut csi);
    let spec = json!({ "accessModes": ["ReadWriteOnce"], "csi": csi });
    t.create_attachment(|va| va["spec"]["source"] = json!({ "inlineVolumeSpec": spec }))
        .await
}
