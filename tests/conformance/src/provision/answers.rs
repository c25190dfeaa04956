//! What a driver answers to CreateVolume, and what it should not: sizes and volume IDs.

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt as _;
use serde_json::json;

use csi_mock_driver::{Rule, ScriptAction, ScriptedAnswer};

use super::claims::{Claim, unknown};
use super::volumes::handle_of;
use crate::scenario::{Group, Outcome, Scenario, demand, same};
use crate::test::{Test, delete};

const MIB: i64 = 1 << 20;
/// So many characters of the UID are in shortened names.
pub const SHORT: usize = 16;

pub fn scenarios() -> Vec<Scenario> {
    let group = Group::new("provision-create");
    conflicts(answers(group)).done()
}

/// With names of which two may be equal.
pub fn short() -> Vec<Scenario> {
    Group::new("provision-create")
        .demands("a claim whose shortened name another one's volume has gets no call, and an Event")
        .safety("short-names", |t| async move {
            t.given_delayed_class().await?;
            let claim = t.given_claim("").await?;
            let uid = claim.get().await?.uid().unwrap_or_default().replace('-', "");
            let name = format!("pvc-{}", &uid[..SHORT.min(uid.len())]);
            its_name_is_taken(&t, &claim, name).await
        })
        .peer_fails("it takes any PersistentVolume of that name for its own")
        .done()
}

fn answered(rule: Rule, id: Option<String>, bytes: Option<i64>) -> Rule {
    rule.action(ScriptAction::Answer(ScriptedAnswer {
        volume_id: id,
        capacity_bytes: bytes,
    }))
}

fn answers(group: Group) -> Group {
    group
        .demands("the PersistentVolume has the answered size, or the requested one for an answer of 0")
        .scenario("sizes", |t| async move {
            t.given_class(|_| {}).await?;
            for (suffix, bytes, wanted) in [("zero", 0, "1Gi"), ("more", 3 << 30, "3Gi")] {
                let claim = t.claim(suffix);
                t.script(answered(claim.on_create(), None, Some(bytes)));
                claim.create(|_| {}).await?;
                let volume = serde_json::to_value(claim.bound().await?).unwrap_or_default();
                same(suffix, &volume["spec"]["capacity"]["storage"], &json!(wanted))?;
            }
            Ok(())
        })
        .demands("a volume smaller than asked for is undone and made again, and there are never two")
        .safety("undersized", |t| async move {
            t.given_class(|_| {}).await?;
            let claim = t.claim("");
            t.script(answered(claim.on_create().times(1), None, Some(MIB)));
            claim.create(|_| {}).await?;
            let volume = claim.bound().await?;
            same("volumes", &claim.handles(), &[handle_of(&volume)].into())?;
            demand(claim.creates().len() >= 2, || {
                "the undersized volume was taken".to_owned()
            })
        })
        .demands("an undersized answer with the ID of another PersistentVolume deletes nothing")
        .safety("shared-id", |t| async move {
            let (_, theirs) = t.given_bound().await?;
            let handle = handle_of(&theirs);
            let claim = t.claim("other");
            t.script(answered(claim.on_create().times(1), Some(handle.clone()), Some(MIB)));
            claim.create(|_| {}).await?;
            claim.call_ended().await?;
            t.served_after("b").await?;
            t.not_deleted(&handle)?;
            claim.told("", &handle).await?;
            let own = handle_of(&claim.bound().await?);
            demand(own != handle, || format!("{handle} is the volume of both"))?;
            same("volumes", &claim.handles(), &[own].into())
        })
        .peer_fails("it deletes an undersized volume though a PersistentVolume has its ID")
        .demands("an answer without a volume ID is told, and asked for again")
        .scenario("no-id", |t| async move {
            t.given_class(|_| {}).await?;
            let claim = t.claim("");
            t.script(answered(claim.on_create().times(2), Some(String::new()), None));
            claim.create(|_| {}).await?;
            claim.told("", "volume ID").await?;
            let volume = claim.bound().await?;
            same("volumes", &claim.handles(), &[handle_of(&volume)].into())
        })
        .peer_fails("it repeats the request permanently and says nothing")
}

fn conflicts(group: Group) -> Group {
    group
        .demands("a claim that is being deleted is not provisioned")
        .safety("deleting-claim", |t| async move {
            t.given_delayed_class().await?;
            let claim = t.claim("");
            claim
                .create(|it| it["metadata"]["finalizers"] = json!(["conformance.test/keep"]))
                .await?;
            claim.delete().await?;
            t.given_zone(&t.node, None).await?;
            claim.select(&t.node).await?;
            t.served_after("b").await?;
            claim.no_call()
        })
        .peer_fails("it does not look at the deletion timestamp")
        .demands("a claim that is bound to another volume while its call is uncertain leaves none")
        .scenario("static-pv", static_pv)
        .peer_fails("it forgets a call when the claim is bound")
        .demands("a claim that a populator fills gets no call, and an Event")
        .scenario("populator", populator)
        .demands("it is one Event, however often the claim changes")
        .recommended("populator-event", |t| async move {
            populator(t.clone()).await?;
            let events = t.events_on(&t.claim("").name).await?;
            let count: i32 = events.iter().map(|event| event.count.unwrap_or(1)).sum();
            same("number of Events", &count, &1)
        })
        .peer_fails("it writes an Event at each look")
        .demands("a claim for whose volume another has taken the name gets no call, and an Event")
        .safety("name-taken", name_taken)
        .peer_fails("it takes any PersistentVolume of that name for its own")
}

async fn static_pv(t: Test) -> Outcome {
    t.given_class(|_| {}).await?;
    let claim = t.claim("");
    t.script(unknown(claim.on_create()));
    let made = claim.create(|_| {}).await?;
    claim.call_ended().await?;
    let theirs = t
        .given_released("static", |volume| {
            volume["metadata"] = json!({ "name": volume["metadata"]["name"] });
            volume["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain");
            volume["spec"]["storageClassName"] = json!(t.id);
            volume["spec"]["claimRef"]["name"] = json!(claim.name);
            volume["spec"]["claimRef"]["uid"] = json!(made.uid());
        })
        .await?;
    same("volumeName", &claim.bound().await?.name_any(), &theirs)?;
    claim.heal();
    t.until("the volume that nobody needs is undone", || claim.handles().is_empty())
        .await?;
    let own = t.api::<PersistentVolume>().get_opt(&claim.volume_name().await?).await?;
    same("a PersistentVolume of the undone volume", &own.is_some(), &false)?;
    same("volumeName", &claim.bound().await?.name_any(), &theirs)
}

async fn populator(t: Test) -> Outcome {
    t.given_class(|_| {}).await?;
    let claim = t.claim("");
    let source = json!({ "apiGroup": "conformance.test", "kind": "Foo", "name": "foo" });
    claim.create(|it| it["spec"]["dataSourceRef"] = source).await?;
    claim.told("Provisioning", "populator").await?;
    for number in 0..10 {
        let labels = json!({ "metadata": { "labels": { "conformance.test/number": number.to_string() } } });
        claim.change(labels).await?;
    }
    t.served_after("b").await?;
    claim.no_call()
}

async fn name_taken(t: Test) -> Outcome {
    t.given_delayed_class().await?;
    let claim = t.given_claim("").await?;
    let name = claim.volume_name().await?;
    its_name_is_taken(&t, &claim, name).await
}

/// The name of its volume is that of another claim's volume.
async fn its_name_is_taken(t: &Test, claim: &Claim, name: String) -> Outcome {
    t.given_released("somebody", |volume| {
        volume["metadata"] = json!({ "name": name });
        volume["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain");
    })
    .await?;
    t.phase(&name, "Released").await?;
    t.given_zone(&t.node, None).await?;
    claim.select(&t.node).await?;
    claim.told("", &name).await?;
    claim.no_call()?;
    // Its place is taken as soon as it is gone.
    delete::<PersistentVolume>(&t.api(), &name).await?;
    same("name", &claim.bound().await?.name_any(), &name)
}
