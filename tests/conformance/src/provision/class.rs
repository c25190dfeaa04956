//! The StorageClass of a claim: missing, wrong, and changed meanwhile.

use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::StorageClass;
use serde_json::json;

use super::claims::{Claim, unknown};
use crate::scenario::{Group, Outcome, Scenario, same};
use crate::test::{Test, merge};

pub fn scenarios() -> Vec<Scenario> {
    Group::new("provision-class")
        .demands("a claim without its class says so, and is provisioned when the class comes")
        .scenario("missing", |t| async move {
            let claim = t.given_claim("").await?;
            claim.told("", &t.id).await?;
            claim.no_call()?;
            t.given_class(|_| {}).await?;
            claim.bound().await.map(drop)
        })
        .peer_fails("it says nothing")
        .demands("what is wrong with a class or a claim is told, and retried with another class")
        .scenario("bad-keys", bad_keys)
        .demands("a class made anew for another driver while a call is uncertain leaves no volume")
        .scenario("other-driver", other_driver)
        .peer_fails("it forgets a call for a claim that it ignores")
        .demands("mount options that change while a call is uncertain are not in the call that is repeated")
        .safety("mount-options", mount_options)
        .peer_fails("it sends the options of now")
        .done()
}

/// These kill the process.
pub fn alone() -> Vec<Scenario> {
    Group::new("provision-class")
        .demands("the same when the process was killed: the call waits until they are put back")
        .safety("mount-options-restart", mount_options_restart)
        .peer_fails("it sends the options of now")
        .done()
}

async fn bad_keys(t: Test) -> Outcome {
    let key = "csi.storage.k8s.io/provisioner-secret-name";
    let namespace = "csi.storage.k8s.io/provisioner-secret-namespace";
    let typo = t
        .given_claim_with("typo", |it| {
            it["parameters"] = json!({ "csi.storage.k8s.io/typo": "x" });
        })
        .await?;
    let template = json!({ key: "${pvc.typo}", namespace: "default" });
    let template = t.given_claim_with("template", |it| it["parameters"] = template).await?;
    t.given_class(|_| {}).await?;
    let selector = t.claim("selector");
    selector
        .create(|it| it["spec"]["selector"] = json!({ "matchLabels": { "a": "b" } }))
        .await?;
    typo.told("ProvisioningFailed", "csi.storage.k8s.io/typo").await?;
    template.told("ProvisioningFailed", "pvc.typo").await?;
    selector.told("ProvisioningFailed", "elector").await?;
    for claim in [&typo, &template, &selector] {
        claim.no_call()?;
    }
    t.claim("typo").class_anew(|_| {}).await?;
    typo.bound().await.map(drop)
}

async fn other_driver(t: Test) -> Outcome {
    let claim = t.claim("");
    t.script(unknown(claim.on_create()));
    t.given_class(|_| {}).await?;
    claim.create(|_| {}).await?;
    claim.call_ended().await?;
    claim
        .class_anew(|class| class["provisioner"] = json!("other.conformance.test"))
        .await?;
    // kube-controller-manager gives the claim to the other driver.
    let theirs = |it: &k8s_openapi::api::core::v1::PersistentVolumeClaim| {
        let provisioner = it
            .metadata
            .annotations
            .as_ref()
            .and_then(|all| all.get(super::claims::PROVISIONER[0]));
        provisioner.is_some_and(|name| name == "other.conformance.test")
    };
    claim.is("given to another driver", theirs).await?;
    claim.heal();
    t.until("the volume that nobody needs is undone", || claim.handles().is_empty())
        .await?;
    let own = t.api::<PersistentVolume>().get_opt(&claim.volume_name().await?).await?;
    same("a PersistentVolume of the undone volume", &own.is_some(), &false)
}

/// A claim whose call is uncertain, of a class with mount options.
async fn mounted(t: &Test) -> Outcome<Claim> {
    t.given_class(|class| class["mountOptions"] = json!(["noatime"]))
        .await?;
    let claim = t.claim("");
    t.script(unknown(claim.on_create()));
    claim.create(|_| {}).await?;
    claim.call_ended().await?;
    Ok(claim)
}

async fn mount_with(t: &Test, options: &[&str]) -> Outcome {
    merge::<StorageClass>(&t.api(), &t.id, json!({ "mountOptions": options })).await
}

async fn mount_options_restart(t: Test) -> Outcome {
    let claim = mounted(&t).await?;
    t.env.attacher.kill();
    mount_with(&t, &["noatime", "discard"]).await?;
    let seen = claim.creates().iter().map(|call| call.id).max();
    t.env.attacher.again()?;
    let told = || claim.told("ProvisioningFailed", "mountOptions");
    tokio::select! {
        event = told() => event.map(drop)?,
        again = claim.call("again", move |call| Some(call.id) > seen) => {
            again?;
            claim.same_calls(2)?;
            told().await?;
        }
    }
    mount_with(&t, &["noatime"]).await?;
    claim.heal();
    claim.bound().await?;
    claim.same_calls(2)
}

async fn mount_options(t: Test) -> Outcome {
    let claim = mounted(&t).await?;
    mount_with(&t, &["noatime", "discard"]).await?;
    // A class that comes later is known by then.
    t.served_after("b").await?;
    let seen = claim.creates().iter().map(|call| call.id).max();
    claim.call("again", move |call| Some(call.id) > seen).await?;
    claim.heal();
    claim.bound().await?;
    claim.same_calls(2)
}
