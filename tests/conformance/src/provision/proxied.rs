//! The API server answers late, wrongly or not at all.

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use std::time::Duration;

use super::claims::{Claim, is_marked};
use super::volumes::handle_of;
use crate::expect::SOON;
use crate::scenario::{Group, Outcome, Scenario, Stop, demand, offered, same};
use crate::support::proxy::{Fault, Proxy, Seen};
use crate::test::Test;

/// What answers who has lost the way to the API server.
const LOST: Fault = Fault::Page(404, "404 page not found");
const VOLUMES: &str = "/api/v1/persistentvolumes";

pub fn scenarios() -> Vec<Scenario> {
    let mut all = save(Group::new("provision-save")).done();
    all.extend(not_found(Group::new("provision-delete")).done());
    all
}

fn save(group: Group) -> Group {
    group
        .demands("an answer of the API server that gets lost on the way leads to no second volume")
        .safety("answer-lost", |t| async move {
            let proxy = t.proxy()?;
            t.given_class(|_| {}).await?;
            let claim = t.claim("");
            let path = claim.path();
            proxy.fault(Fault::Unanswered, 1, move |seen| {
                seen.method == "PATCH" && seen.path == path
            });
            proxy.fault(Fault::Unanswered, 1, |seen| {
                seen.method == "POST" && seen.path == VOLUMES
            });
            claim.create(|_| {}).await?;
            let volume = claim.bound().await?;
            same("name", &volume.name_any(), &claim.volume_name().await?)?;
            same("volumes", &claim.handles(), &[handle_of(&volume)].into())
        })
        .demands("a PersistentVolume that an API server in trouble does not take is saved later")
        .scenario("api-500", |t| async move {
            let proxy = t.proxy()?;
            t.given_class(|_| {}).await?;
            let saves = |seen: &Seen| seen.method == "POST" && seen.path == VOLUMES;
            let before = proxy.log().iter().filter(|seen| saves(seen)).count();
            proxy.fault(Fault::Status(500, None), usize::MAX, saves);
            let claim = t.given_claim("").await?;
            proxy.wait_for("a PersistentVolume is saved", before + 4, saves).await?;
            same("volumes", &claim.handles().len(), &1)?;
            proxy.heal();
            let volume = claim.bound().await?;
            same("volumes", &claim.handles(), &[handle_of(&volume)].into())
        })
        // Which of the late events the Go sidecar looks at is chance: it is EP#1469, and not seen each time.
        .demands("what is told late of a claim that is bound and deleted meanwhile leads to no second volume")
        .unless("not supported when CreateVolume is called a second time")
        .extension("late-watch", |t| async move {
            let proxy = t.proxy()?;
            let outcome = late_watch(&t, proxy, false).await;
            proxy.heal();
            outcome
        })
        .demands("and a restart meanwhile leads to none")
        .safety("late-watch-restart", |t| async move {
            let proxy = t.proxy()?;
            let outcome = late_watch(&t, proxy, true).await;
            proxy.heal();
            outcome
        })
}

fn not_found(group: Group) -> Group {
    group
        .demands("a 404 that does not come from the API server is no word about a PersistentVolume or Secret")
        .safety("false-404", false_404)
        .peer_fails("it takes each 404 for a word of the API server")
        .demands("and none about the claim of a PersistentVolume that is marked as released by mistake")
        .safety("false-404-claim", |t| async move {
            let proxy = t.proxy()?;
            let (claim, volume) = t.given_bound().await?;
            t.env.cluster.stop_controller_manager();
            let outcome = claim_seems_gone(&t, proxy, &claim, &volume).await;
            proxy.heal();
            t.env.cluster.start_controller_manager().await?;
            outcome
        })
        .peer_fails("EP#507")
}

impl Test {
    fn proxy(&self) -> Outcome<&Proxy> {
        let none = || Stop::Failed("the setup has no proxy".to_owned());
        self.env.proxy.as_ref().ok_or_else(none)
    }
}

impl Claim {
    fn path(&self) -> String {
        format!(
            "/api/v1/namespaces/{}/persistentvolumeclaims/{}",
            self.namespace, self.name
        )
    }
}

async fn late_watch(t: &Test, proxy: &Proxy, restarts: bool) -> Outcome {
    t.given_class(|_| {}).await?;
    let claim = t.claim("");
    t.script(claim.on_create().times(1).delay(Duration::from_millis(500)));
    claim.create(|_| {}).await?;
    claim.call_begins().await?;
    proxy.silence("persistentvolumeclaims");
    // What is told of this claim at first shows it as it was before.
    let labels = json!({ "metadata": { "labels": { "conformance.test/number": "1" } } });
    claim.change(labels).await?;
    let volume = claim.bound().await?.name_any();
    claim.delete().await?;
    if restarts {
        t.env.attacher.kill();
        // A process that is new reads everything anew.
        proxy.heal();
        t.env.attacher.again()?;
    }
    // A marker may keep the claim until its end is told.
    let kept = claim.api().get_opt(&claim.name).await?;
    if !kept.is_some_and(|claim| is_marked(&claim)) {
        t.persistent_volume_gone(&volume).await?;
    }
    proxy.heal();
    claim.gone().await?;
    t.persistent_volume_gone(&volume).await?;
    t.served_after("b").await?;
    let made = claim
        .creates()
        .iter()
        .filter(|call| call.code == Some(tonic::Code::Ok))
        .count();
    offered(made == 1, || format!("{made} calls of CreateVolume"))?;
    same("volumes", &claim.handles().len(), &0)
}

async fn false_404(t: Test) -> Outcome {
    let proxy = t.proxy()?;
    let (claim, volume) = t.bound_with_secret().await?;
    let (name, handle) = (volume.name_any(), handle_of(&volume));
    let (of_volume, of_secret) = (format!("{VOLUMES}/{name}"), format!("/secrets/{}", t.secret));
    let reads_volume = move |seen: &Seen| seen.method == "GET" && seen.path == of_volume;
    let reads_secret = move |seen: &Seen| seen.method == "GET" && seen.path.ends_with(&of_secret);
    let so_far = |reads: &dyn Fn(&Seen) -> bool| proxy.log().iter().filter(|seen| reads(seen)).count();
    let before = so_far(&reads_volume);
    proxy.fault(LOST, usize::MAX, reads_volume.clone());
    claim.delete().await?;
    read_again(proxy, "the PersistentVolume", before + 2, reads_volume).await?;
    t.not_deleted(&handle)?;
    proxy.heal();
    let before = so_far(&reads_secret);
    proxy.fault(LOST, usize::MAX, reads_secret.clone());
    read_again(proxy, "the Secret", before + 2, reads_secret).await?;
    t.not_deleted(&handle)?;
    proxy.heal();
    t.persistent_volume_gone(&name).await?;
    let calls = t.deletions(&handle);
    demand(calls.iter().all(|call| call.secret_keys == ["password"]), || {
        "DeleteVolume was called without the Secret".to_owned()
    })
}

async fn claim_seems_gone(t: &Test, proxy: &Proxy, claim: &Claim, volume: &PersistentVolume) -> Outcome {
    let path = claim.path();
    let reads = move |seen: &Seen| seen.method == "GET" && seen.path == path;
    let before = proxy.log().iter().filter(|seen| reads(seen)).count();
    proxy.fault(LOST, usize::MAX, reads.clone());
    let released = Patch::Merge(json!({ "status": { "phase": "Released" } }));
    let volumes = t.api::<PersistentVolume>();
    volumes
        .patch_status(&volume.name_any(), &PatchParams::default(), &released)
        .await?;
    let handle = handle_of(volume);
    tokio::select! {
        read = proxy.wait_for("the claim is read again", before + 2, reads) => drop(read?),
        _deleted = t.deletion(&handle, "began", |_| true) => {}
    }
    t.not_deleted(&handle)
}

async fn read_again(proxy: &Proxy, what: &str, count: usize, reads: impl Fn(&Seen) -> bool) -> Outcome {
    let read = tokio::time::timeout(SOON, proxy.wait_for(what, count, reads)).await;
    demand(read.is_ok_and(|read| read.is_ok()), || {
        format!("{what} is not read again after a 404 that says nothing about it")
    })
}
