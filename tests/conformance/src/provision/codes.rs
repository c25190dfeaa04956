//! What the answers of CreateVolume and DeleteVolume mean: whether a volume may be there.

use kube::ResourceExt as _;
use serde_json::json;
use tonic::Code;

use csi_mock_driver::{CallRecord, Method, Rule, ScriptAction};

use super::volumes::handle_of;
use crate::scenario::{Group, Outcome, Scenario, demand, same};
use crate::test::Test;

/// After these no volume is there.
const FINAL: [Code; 5] = [
    Code::Internal,
    Code::OutOfRange,
    Code::PermissionDenied,
    Code::ResourceExhausted,
    Code::Unknown,
];
/// After these one may be there, or may come.
const UNCERTAIN: [Code; 4] = [
    Code::Aborted,
    Code::Cancelled,
    Code::DeadlineExceeded,
    Code::Unavailable,
];

pub fn scenarios() -> Vec<Scenario> {
    Group::new("provision-codes")
        .demands("a deleted claim is called for again after codes that leave it open, and only after those")
        .safety("create", create)
        .demands("INVALID_ARGUMENT is not repeated soon, but with another class at once")
        .scenario("invalid-argument", |t| async move {
            let claim = t.claim("");
            t.script(claim.on_create().fail(Code::InvalidArgument, "no such tier"));
            t.given_class(|_| {}).await?;
            claim.create(|_| {}).await?;
            claim.told("ProvisioningFailed", "no such tier").await?;
            let other = t.claim("other");
            t.script(other.on_create().times(4).fail(Code::Internal, "not yet"));
            t.given_claim_with("other", |_| {}).await?.bound().await?;
            same("number of CreateVolume", &claim.creates().len(), &1)?;
            claim.heal();
            claim
                .class_anew(|class| class["parameters"] = json!({ "tier": "gold" }))
                .await?;
            claim.bound().await.map(drop)
        })
        .demands("a volume that cannot be deleted is told, and deleted when it can be")
        .scenario("delete", |t| async move {
            let (claim, volume) = t.given_bound().await?;
            let (name, handle) = (volume.name_any(), handle_of(&volume));
            let on_delete = || Rule::on(Method::DeleteVolume).volume(&handle).times(1);
            for code in [Code::FailedPrecondition, Code::Unavailable, Code::Internal] {
                t.script(on_delete().fail(code, "it has snapshots"));
            }
            claim.delete().await?;
            t.told(
                &name,
                "VolumeFailedDelete",
                "code = FailedPrecondition desc = it has snapshots",
            )
            .await?;
            t.persistent_volume_gone(&name).await?;
            demand(t.deletions(&handle).len() >= 4, || {
                "an error was taken for OK".to_owned()
            })
        })
        .done()
}

async fn create(t: Test) -> Outcome {
    t.given_class(|_| {}).await?;
    let claims_of = |codes: &[Code]| -> Vec<_> {
        let claim = |code: &Code| (t.claim(&i32::from(*code).to_string()), *code);
        codes.iter().map(claim).collect()
    };
    let (finals, uncertain) = (claims_of(&FINAL), claims_of(&UNCERTAIN));
    let all = || finals.iter().chain(&uncertain);
    for (claim, code) in all() {
        t.script(claim.on_create().fail(*code, "no luck"));
        claim.create(|_| {}).await?;
    }
    for (claim, _) in all() {
        claim.told("", "no luck").await?;
        claim.delete().await?;
    }
    for (claim, code) in &uncertain {
        let seen = claim.creates().len();
        t.until(&format!("CreateVolume again after {code:?}"), || {
            claim.creates().len() >= seen + 2
        })
        .await?;
    }
    for (claim, _) in &finals {
        claim.gone().await?;
    }
    all().for_each(|(claim, _)| claim.heal());
    for (claim, code) in &uncertain {
        let is_ok = |call: &CallRecord| call.code == Some(Code::Ok);
        claim.call(&format!("ended well after {code:?}"), is_ok).await?;
        claim.gone().await?;
        t.until("the volume that nobody needs is undone", || claim.handles().is_empty())
            .await?;
    }
    for (claim, code) in &finals {
        let made = claim.creates().iter().any(|call| call.code == Some(Code::Ok));
        demand(!made, || {
            format!("a volume was made after {code:?} for a claim that is gone")
        })?;
    }
    Ok(())
}

/// These stop the process, or take its connection away.
pub fn alone() -> Vec<Scenario> {
    Group::new("provision-codes")
        .demands("a connection that breaks before or after the work leads to the same call again")
        .safety("transport", |t| async move {
            t.given_class(|_| {}).await?;
            for (suffix, action) in [
                ("before", ScriptAction::DropConnection),
                ("after", ScriptAction::DropConnectionAfterWork),
            ] {
                let claim = t.claim(suffix);
                t.script(claim.on_create().times(1).action(action));
                claim.create(|_| {}).await?;
                let volume = claim.bound().await?;
                same("volumes", &claim.handles(), &[handle_of(&volume)].into())?;
                claim.same_calls(2)?;
            }
            Ok(())
        })
        .done()
}
