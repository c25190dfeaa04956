//! The marker that the operator has on claims: people may forge it, remove it, and ask to let a claim go. No other provisioner has one.

use std::time::Instant;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt as _;
use serde_json::{Value, json};
use tonic::Code;

use super::claims::{Claim, strip_claim, unknown};
use super::settings::WITHOUT_CONFIG;
use super::{MARKER, SELECTED};
use crate::launcher::STUCK_AFTER;
use crate::scenario::{Group, Outcome, Scenario, demand, same};
use crate::test::Test;

const RELEASE: &str = "attacher.csi.dev/release";
const REFUSED: &str = "attacher.csi.dev/release-refused";

pub fn scenarios() -> Vec<Scenario> {
    Group::new("provision-uncertain")
        .demands("a marker removed by force while a call is uncertain is told, and the process undoes the volume")
        .unless(WITHOUT_CONFIG)
        .extension("marker-removed", |t| async move {
            t.config().await?;
            t.given_class(|_| {}).await?;
            let claim = t.claim("");
            t.script(unknown(claim.on_create()));
            claim.create(|_| {}).await?;
            claim.call_ended().await?;
            let name = claim.volume_name().await?;
            claim.delete().await?;
            strip_claim(&claim).await?;
            claim.gone().await?;
            claim.told("VolumePossiblyLeaked", &name).await?;
            claim.heal();
            t.until("the volume that nobody needs is undone", || claim.handles().is_empty())
                .await
        })
        .demands("a claim whose call is open for long goes when a person says so, and an Event names the volume")
        .unless(WITHOUT_CONFIG)
        .extension("let-go", let_go)
        .done()
}

/// With nodes in three zones.
pub fn in_zones() -> Vec<Scenario> {
    Group::new("provision-uncertain")
        .demands("a marker that somebody else wrote leads to no other volume and no other zone, and is told")
        .unless(WITHOUT_CONFIG)
        .extension("forged-marker", forged)
        .demands("a marker of another driver keeps a claim from being called for, and is told")
        .unless(WITHOUT_CONFIG)
        .extension("forged-driver", |t| async move {
            t.config().await?;
            t.three_zones().await?;
            t.given_delayed_class().await?;
            let claim = t.given_claim("").await?;
            let marker = json!({ "driver": "other.conformance.test" });
            claim.forge(&marker, &t.claim("b").name).await?;
            claim.told("", "other.conformance.test").await?;
            claim.no_call()?;
            strip_claim(&claim).await?;
            claim
                .change(json!({ "metadata": { "annotations": { MARKER: null } } }))
                .await?;
            claim.bound().await.map(drop)
        })
        .done()
}

impl Claim {
    /// Puts finalizer and annotation of a marker on, as everybody in the namespace may, and selects a node at the same moment: for what seems
    /// to be an open call no node is waited for.
    async fn forge(&self, marker: &Value, node: &str) -> Outcome {
        let finalizers: Vec<String> = self.get().await?.finalizers().to_vec();
        let finalizers: Vec<&str> = finalizers.iter().map(String::as_str).chain([MARKER]).collect();
        let annotations = json!({ MARKER: marker.to_string(), SELECTED: node });
        self.change(json!({ "metadata": { "finalizers": finalizers, "annotations": annotations } }))
            .await
    }

    /// Asks to let it go, as `kubectl attacher release` does.
    async fn ask_to_let_go(&self, claim: &PersistentVolumeClaim) -> Outcome<String> {
        let at = jiff::Timestamp::now().to_string();
        let deleted = claim.metadata.deletion_timestamp.as_ref().map(|time| time.0);
        let request = json!({
            "uid": claim.uid(), "deleted": deleted, "at": at, "by": "somebody", "reason": "the storage system is gone",
        });
        self.change(json!({ "metadata": { "annotations": { RELEASE: request.to_string() } } }))
            .await?;
        Ok(at)
    }
}

async fn let_go(t: Test) -> Outcome {
    t.config().await?;
    t.given_class(|_| {}).await?;
    let claim = t.claim("");
    // There is no volume, and the driver does not say so.
    t.script(claim.on_create().fail(Code::DeadlineExceeded, "it takes long"));
    let begun = Instant::now();
    claim.create(|_| {}).await?;
    claim.call_ended().await?;
    let name = claim.volume_name().await?;
    claim.delete().await?;
    let object = claim.get().await?;
    let (mut refused, mut first) = (0, None);
    // What is asked for too early is refused; then it is asked for again.
    while claim.api().get_opt(&claim.name).await?.is_some() {
        let Ok(at) = claim.ask_to_let_go(&object).await else {
            break;
        };
        let answered = |it: Option<&PersistentVolumeClaim>| {
            let answer = it.map(|it| it.annotations().get(REFUSED).cloned().unwrap_or_default());
            answer.is_none_or(|answer| answer.contains(&at))
        };
        let limit = crate::expect::LIMIT;
        let seen = crate::support::wait::wait_for(claim.api(), &claim.name, "gone or refused", limit, answered).await?;
        refused += usize::from(seen.is_some());
        first.get_or_insert_with(|| begun.elapsed());
    }
    // On a slow machine nothing was asked for too early.
    let is_late = first.is_some_and(|first| first >= STUCK_AFTER);
    demand(refused > 0 || is_late, || "it was let go at once".to_owned())?;
    claim.told("ProvisioningReleased", &name).await?;
    same("volumes", &claim.handles().len(), &0)
}

async fn forged(t: Test) -> Outcome {
    t.config().await?;
    t.three_zones().await?;
    t.topology_class("", "WaitForFirstConsumer", &["a", "b", "c"]).await?;
    let theirs = t.claim_on("theirs", &t.id, Some("a")).await?;
    let their_volume = theirs.bound().await?.name_any();
    let driver = t.env.driver_name.clone();
    let zone = json!({ super::topology::ZONE: "nowhere" });
    let class = t.api::<StorageClass>().get(&t.id).await?.uid();
    for suffix in ["zone", "prefix", "uid", "large"] {
        let claim = t.given_claim(suffix).await?;
        let object = claim.get().await?;
        // What is older than the claim comes with a copy of a manifest.
        let since = object.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let mut forged = json!({
            "driver": driver, "uid": object.uid(), "prefix": "pvc", "classUID": class, "since": since,
        });
        match suffix {
            "zone" => {
                forged["segment"] = zone.clone();
                forged["first"] = zone.clone();
            }
            "prefix" => forged["prefix"] = json!("../evil"),
            "uid" => forged["uid"] = json!(theirs.get().await?.uid()),
            _ => forged["prefix"] = json!("pvc".repeat(50_000)),
        }
        claim.forge(&forged, &t.claim("b").name).await?;
        let volume = claim.bound().await?;
        let wanted = claim.volume_name().await?;
        same(&format!("name ({suffix})"), &volume.name_any(), &wanted)?;
        same(&format!("volumes ({suffix})"), &claim.handles().len(), &1)?;
        let called_for_theirs = claim
            .creates()
            .iter()
            .any(|call| call.volume.as_ref() == Some(&their_volume));
        demand(!called_for_theirs, || {
            format!("CreateVolume for the volume of another claim ({suffix})")
        })?;
        let zones = claim.asked_for();
        demand(zones.iter().all(|(_, preferred)| preferred.starts_with('b')), || {
            format!("a zone that was not asked for ({suffix}): {zones:?}")
        })?;
        claim.told("ProvisioningUncertain", MARKER).await?;
    }
    Ok(())
}
