//! Nobody knows whether a call made a volume: it is found out, whatever becomes of claim and process.

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt as _;
use serde_json::json;

use csi_mock_driver::{CallRecord, CallResult, Method};

use super::claims::Claim;
use super::teardown::stays;
use super::volumes::handle_of;
use crate::scenario::{Group, Outcome, Scenario, demand, same};
use crate::test::Test;

pub fn scenarios() -> Vec<Scenario> {
    Group::new("provision-uncertain")
        .demands("a call that comes to its deadline is repeated with the same content, for one volume")
        .safety("same-arguments", |t| async move {
            t.given_class(|class| class["parameters"] = json!({ "tier": "gold" }))
                .await?;
            let claim = t.claim("");
            t.script(claim.on_create().times(1).late_success());
            claim.create(|_| {}).await?;
            let volume = claim.bound().await?;
            same("volumes", &claim.handles(), &[handle_of(&volume)].into())?;
            claim.same_calls(2)
        })
        .demands("a claim that is deleted during a call leaves no volume")
        .safety("deleted", |t| async move {
            t.given_class(|_| {}).await?;
            let claim = t.claim("");
            t.script(claim.on_create().times(1).late_success());
            claim.create(|_| {}).await?;
            claim.call_begins().await?;
            claim.delete().await?;
            claim.call("came late", |call| call.outcome == CallResult::Late).await?;
            // It may be undone by the time of this look; its ID begins with its name.
            let name = claim.creates().pop().and_then(|call| call.volume).unwrap_or_default();
            let is_undone = move |call: &CallRecord| {
                let is_of_it = call.volume.as_ref().is_some_and(|volume| volume.starts_with(&name));
                call.method == Method::DeleteVolume && is_of_it && call.finished.is_some()
            };
            t.some_call("DeleteVolume", is_undone).await?;
            claim.gone().await?;
            t.until("the volume is gone", || claim.handles().is_empty()).await
        })
        .done()
}

/// Its volume is there, and its PersistentVolume is not.
pub fn save() -> Vec<Scenario> {
    Group::new("provision-save")
        .demands("a PersistentVolume that the API server refuses is told, and its volume kept")
        .scenario("refused", |t| async move {
            t.refuse_volumes_of(&t.claim("")).await?;
            let claim = t.given_class_and_claim().await?;
            claim.told("ProvisioningFailed", "no more volumes today").await?;
            same("volumes", &claim.handles().len(), &1)?;
            t.allow_volumes().await?;
            claim.delete().await?;
            claim.gone().await?;
            t.until("the volume that nobody needs is undone", || claim.handles().is_empty())
                .await
        })
        .peer_fails("it repeats the request permanently and says nothing")
        .done()
}

/// These kill the process.
pub fn alone() -> Vec<Scenario> {
    Group::new("provision-uncertain")
        .demands("killed during a call, and the claim is deleted: its volume is undone")
        .safety("deleted-restart", |t| async move {
            t.given_class(|_| {}).await?;
            let claim = t.killed_in_call(true).await?;
            claim.gone().await?;
            // Nothing names the volume any more: who comes later cannot know of it.
            same("volumes when the claim is gone", &claim.handles().len(), &0)
        })
        .peer_fails("EP#486")
        .demands("the same with Retain: its PersistentVolume is saved and stays")
        .safety("retain-restart", |t| async move {
            t.given_class(|class| class["reclaimPolicy"] = json!("Retain")).await?;
            let claim = t.killed_in_call(true).await?;
            let name = claim.creates().pop().and_then(|call| call.volume).unwrap_or_default();
            claim.gone().await?;
            let saved = t.api::<PersistentVolume>().get_opt(&name).await?;
            demand(saved.is_some(), || {
                "the claim is gone, and no PersistentVolume names its volume".to_owned()
            })?;
            t.phase(&name, "Released").await?;
            stays(&t, &name).await
        })
        .peer_fails("EP#486")
        .demands("killed during a call that does its work: the volume is that of the claim")
        .safety("restart", |t| async move {
            t.given_class(|_| {}).await?;
            let claim = t.killed_in_call(false).await?;
            let volume = claim.bound().await?;
            same("volumes", &claim.handles(), &[handle_of(&volume)].into())?;
            claim.same_calls(2)
        })
        .demands("killed after OK and before the PersistentVolume: it gets the same volume")
        .safety("after-ok", |t| async move {
            let claim = t.killed_before_saved().await?;
            t.env.attacher.again()?;
            let volume = claim.bound().await?;
            same("volumes", &claim.handles(), &[handle_of(&volume)].into())
        })
        .demands("the same, and the claim is deleted meanwhile: the volume is undone")
        .safety("after-ok-deleted", |t| async move {
            let claim = t.killed_before_saved().await?;
            claim.delete().await?;
            t.env.attacher.again()?;
            claim.gone().await?;
            same("volumes when the claim is gone", &claim.handles().len(), &0)
        })
        .peer_fails("EP#486")
        .done()
}

impl Test {
    /// A claim of the scenario's class during whose first call the process was killed. The work is done then.
    async fn killed_in_call(&self, deleted: bool) -> Outcome<Claim> {
        let claim = self.claim("");
        self.script(claim.on_create().times(1).late_success());
        claim.create(|_| {}).await?;
        claim.call_begins().await?;
        if deleted {
            claim.delete().await?;
        }
        self.env.attacher.kill();
        claim.call("came late", |call| call.outcome == CallResult::Late).await?;
        same("volumes", &claim.handles().len(), &1)?;
        self.env.attacher.again()?;
        Ok(claim)
    }

    /// A claim whose volume is there and is not saved, and no process.
    async fn killed_before_saved(&self) -> Outcome<Claim> {
        self.refuse_volumes_of(&self.claim("")).await?;
        self.given_class(|_| {}).await?;
        let claim = self.given_claim("").await?;
        claim.call_ended().await?;
        self.env.attacher.kill();
        same("volumes", &claim.handles().len(), &1)?;
        self.allow_volumes().await?;
        let saved = self
            .api::<PersistentVolume>()
            .get_opt(&claim.volume_name().await?)
            .await?;
        same("saved", &saved.map(|it| it.name_any()), &None)?;
        Ok(claim)
    }
}

impl Claim {
    /// There were at least so many calls of CreateVolume, all with the same content.
    pub fn same_calls(&self, at_least: usize) -> Outcome {
        let calls = self.creates();
        demand(calls.len() >= at_least, || {
            format!("{} calls of CreateVolume, want {at_least}", calls.len())
        })?;
        let content = |call: &CallRecord| (call.volume.clone(), call.creation.clone(), call.secret_keys.clone());
        let first = calls.first().map(content);
        demand(calls.iter().all(|call| Some(content(call)) == first), || {
            "a repeated CreateVolume has other content".to_owned()
        })
    }
}
