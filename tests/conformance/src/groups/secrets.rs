//! Publish secrets: read when they are needed, named when they are missing, shown nowhere.

use serde_json::json;

use csi_mock_driver::{ScriptAction, ScriptedFailure};

use crate::expect::text;
use crate::scenario::{Group, Outcome, Scenario, Stop, demand, offered};
use crate::test::Test;

const CANARY: &str = "canary-4f1d9c";

pub fn scenarios() -> Vec<Scenario> {
    let group = Group::new("secrets");
    hidden(missing(present(group))).done()
}

fn present(group: Group) -> Group {
    group
        .demands("the secret reaches the driver at both calls, byte for byte")
        .scenario("both-calls", |t| async move {
            let secret = [("user", "me"), ("password", "p\u{e4}ss\n\u{2713}\"\\"), ("empty", "")];
            t.wants_secrets(&secret);
            t.given_secret(&secret).await?;
            given_with_secret(&t).await?;
            t.attached().await?;
            t.detach().await
        })
        .demands("a secret without entries is no error")
        .scenario("empty", |t| async move {
            t.wants_secrets(&[]);
            t.given_secret(&[]).await?;
            given_with_secret(&t).await?;
            t.attached().await?;
            t.detach().await
        })
        .demands("a secret that was changed is read again for the detach")
        .scenario("changed", |t| async move {
            t.wants_secrets(&[("key", "old")]);
            t.given_secret(&[("key", "old")]).await?;
            given_with_secret(&t).await?;
            t.attached().await?;
            t.wants_secrets(&[("key", "new")]);
            t.change_secret(Some(&[("key", "new")])).await?;
            t.detach().await
        })
        .demands("a wrong secret is an error until it is put right")
        .scenario("wrong", |t| async move {
            t.wants_secrets(&[("key", "right")]);
            t.given_secret(&[("key", "wrong")]).await?;
            given_with_secret(&t).await?;
            t.attach_error("Unauthenticated").await?;
            t.change_secret(Some(&[("key", "right")])).await?;
            t.attached().await.map(drop)
        })
}

fn missing(group: Group) -> Group {
    group
        .demands("a missing secret is named, the attachment not claimed; it attaches when the secret comes")
        .scenario("missing", |t| async move {
            given_with_secret(&t).await?;
            t.attach_error(&t.secret).await?;
            let claimed = t.count_finalizers(&t.get_attachment().await?);
            demand(claimed == 0, || {
                "claimed though there was nothing to call with".to_owned()
            })?;
            t.no_calls()?;
            t.wants_secrets(&[("late", "yes")]);
            t.given_secret(&[("late", "yes")]).await?;
            t.attached().await.map(drop)
        })
        .demands("an attachment that waits for its secret can be deleted")
        .scenario("missing-and-deleted", |t| async move {
            given_with_secret(&t).await?;
            t.attach_error(&t.secret).await?;
            t.detach().await?;
            t.no_calls()
        })
        .demands("a secret that may not be read is named")
        .scenario("forbidden", |t| async move {
            t.given_node().await?;
            let forbidden = json!({ "namespace": "default", "name": t.secret });
            t.given_volume(|pv| pv["spec"]["csi"]["controllerPublishSecretRef"] = forbidden)
                .await?;
            t.create_attachment(|_| {}).await?;
            t.attach_error(&t.secret).await?;
            t.no_calls()
        })
        .demands("a secret missing at the detach holds it up, and only so long")
        .safety("missing-at-detach", |t| async move {
            t.given_secret(&[("key", "value")]).await?;
            given_with_secret(&t).await?;
            t.attached().await?;
            t.change_secret(None).await?;
            t.delete_attachment().await?;
            let attachment = t.detach_error(&t.secret).await?;
            t.has_finalizer(&attachment)?;
            demand(t.unpublishes().is_empty(), || "called without the secret".to_owned())?;
            t.given_secret(&[("key", "value")]).await?;
            t.detached().await
        })
}

fn hidden(group: Group) -> Group {
    group
        .demands("secrets that the driver repeats in its error are cut out")
        .unless("not supported when the error shows them")
        .extension("not-repeated", |t| async move {
            let failure = ScriptedFailure {
                code: tonic::Code::Internal,
                message: "login failed:".to_owned(),
                echo_secrets: true,
                pad_bytes: 0,
            };
            t.script(t.on_publish().action(ScriptAction::Fail(failure)));
            t.given_secret(&[("password", CANARY)]).await?;
            given_with_secret(&t).await?;
            let error = t.attach_error("login failed").await?;
            offered(!text(&error).contains(CANARY), || {
                "the attachError shows the secret".to_owned()
            })?;
            t.heal();
            t.attached().await?;
            for event in t.env.cluster.audit_events().map_err(Stop::from)? {
                let shown = event
                    .request_body
                    .as_ref()
                    .is_some_and(|body| body.to_string().contains(CANARY));
                demand(!shown, || {
                    format!("a request about {} shows the secret", event.resource)
                })?;
            }
            Ok(())
        })
}

async fn given_with_secret(t: &Test) -> Outcome {
    t.given_all(|pv| pv["spec"]["csi"]["controllerPublishSecretRef"] = t.secret_reference())
        .await
}
