//! Claims, classes and PersistentVolumes of a scenario, and what becomes of them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use tonic::Code;

use csi_mock_driver::{CallRecord, CreationFacts, Method, Rule, ScriptAction, ScriptedFailure};

use super::{MARKER, NAMESPACE, SELECTED};
use crate::expect::{LIMIT, SOON};
use crate::scenario::{Outcome, Stop, demand};
use crate::support::wait::{wait_for, wait_for_any};
use crate::test::{Test, create, delete, merge};

/// Who says on a claim what kube-controller-manager did.
const CONTROLLER_MANAGER: &str = "persistentvolume-controller";
/// Who is to provision for a claim, by its new and its old name.
pub const PROVISIONER: [&str; 2] = [
    "volume.kubernetes.io/storage-provisioner",
    "volume.beta.kubernetes.io/storage-provisioner",
];

#[derive(Clone)]
pub struct Claim {
    pub t: Test,
    pub name: String,
    pub namespace: String,
}

impl Test {
    /// The claim of this name; the first one is called as the scenario.
    pub fn claim(&self, suffix: &str) -> Claim {
        let name = match suffix {
            "" => self.id.clone(),
            suffix => format!("{}-{suffix}", self.id),
        };
        Claim {
            t: self.clone(),
            name,
            namespace: NAMESPACE.to_owned(),
        }
    }

    /// The scenario's StorageClass: volumes are made at once and deleted with their claims, unless `edit` says otherwise.
    pub async fn given_class(&self, edit: impl FnOnce(&mut Value)) -> Outcome {
        let mut class = json!({
            "metadata": { "name": self.id }, "provisioner": self.env.driver_name,
            "reclaimPolicy": "Delete", "volumeBindingMode": "Immediate",
        });
        edit(&mut class);
        create::<StorageClass>(&self.api(), class).await.map(drop)
    }

    pub async fn given_delayed_class(&self) -> Outcome {
        self.given_class(|class| class["volumeBindingMode"] = json!("WaitForFirstConsumer"))
            .await
    }

    pub async fn given_claim(&self, suffix: &str) -> Outcome<Claim> {
        let claim = self.claim(suffix);
        claim.create(|_| {}).await?;
        Ok(claim)
    }

    pub async fn given_class_and_claim(&self) -> Outcome<Claim> {
        self.given_class(|_| {}).await?;
        self.given_claim("").await
    }

    pub async fn given_bound(&self) -> Outcome<(Claim, PersistentVolume)> {
        let claim = self.given_class_and_claim().await?;
        let volume = claim.bound().await?;
        Ok((claim, volume))
    }

    /// A claim of a StorageClass of its own.
    pub async fn given_claim_with(&self, suffix: &str, edit: impl FnOnce(&mut Value)) -> Outcome<Claim> {
        let claim = self.claim(suffix);
        self.given_class(|class| {
            class["metadata"]["name"] = json!(claim.name);
            edit(class);
        })
        .await?;
        claim
            .create(|it| it["spec"]["storageClassName"] = json!(claim.name))
            .await?;
        Ok(claim)
    }

    /// Waits until the provisioner has seen all that was there before: it has served a claim made now.
    pub async fn served_after(&self, suffix: &str) -> Outcome {
        let claim = self.given_claim_with(suffix, |_| {}).await?;
        claim.bound().await?;
        claim.delete().await?;
        claim.gone().await
    }

    pub async fn some_call(
        &self,
        what: &str,
        wanted: impl Fn(&CallRecord) -> bool + Send + 'static,
    ) -> Outcome<CallRecord> {
        let found = tokio::time::timeout(LIMIT, self.env.driver.wait_for_call(wanted)).await;
        found.map_err(|_| Stop::Failed(format!("no call: {what}, within {LIMIT:?}")))
    }

    /// Waits for an Event on an object of the scenario that is not kube-controller-manager's.
    pub async fn told(&self, name: &str, reason: &str, part: &str) -> Outcome<Event> {
        // Those on PersistentVolumes are in the namespace "default".
        let events: Api<Event> = Api::all(self.env.client.clone());
        let what = format!("{reason} on {name} with {part:?}");
        let found = wait_for_any(events, &what, LIMIT, |event| {
            is_about(event, name)
                && (reason.is_empty() || event.reason.as_deref() == Some(reason))
                && event.message.as_deref().is_some_and(|message| message.contains(part))
        });
        found
            .await
            .map_err(|_| Stop::Failed(format!("no Event {what} within {LIMIT:?}")))
    }

    /// The Events on an object that are not kube-controller-manager's, by reason.
    pub async fn events_on(&self, name: &str) -> Outcome<Vec<Event>> {
        let events: Api<Event> = Api::all(self.env.client.clone());
        let all = events.list(&kube::api::ListParams::default()).await?;
        Ok(all.items.into_iter().filter(|event| is_about(event, name)).collect())
    }

    /// Waits for something of the driver, such as a volume.
    pub async fn until(&self, what: &str, is_so: impl Fn() -> bool) -> Outcome {
        self.until_within(LIMIT, what, is_so).await
    }

    pub async fn until_within(&self, limit: Duration, what: &str, is_so: impl Fn() -> bool) -> Outcome {
        let so = tokio::time::timeout(limit, self.env.driver.wait_until(|_| is_so())).await;
        so.map_err(|_| Stop::Failed(format!("{what}: not within {limit:?}")))
    }
}

fn is_about(event: &Event, name: &str) -> bool {
    let source = event.source.as_ref().and_then(|source| source.component.as_deref());
    event.involved_object.name.as_deref() == Some(name)
        && source != Some(CONTROLLER_MANAGER)
        && event.reporting_component.as_deref() != Some(CONTROLLER_MANAGER)
}

impl Claim {
    pub fn api(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.t.env.client.clone(), &self.namespace)
    }

    /// Makes it, for 1 GiB of the scenario's class. What kube-controller-manager writes for the provisioner is there already,
    /// so that a claim whose class is missing is one of the driver as well.
    pub async fn create(&self, edit: impl FnOnce(&mut Value)) -> Outcome<PersistentVolumeClaim> {
        let driver = &self.t.env.driver_name;
        let mut claim = json!({
            "metadata": {
                "name": self.name, "annotations": { PROVISIONER[0]: driver, PROVISIONER[1]: driver },
            },
            "spec": {
                "storageClassName": self.t.id, "accessModes": ["ReadWriteOnce"],
                "resources": { "requests": { "storage": "1Gi" } },
            },
        });
        edit(&mut claim);
        create(&self.api(), claim).await
    }

    pub async fn get(&self) -> Outcome<PersistentVolumeClaim> {
        Ok(self.api().get(&self.name).await?)
    }

    pub async fn is(
        &self,
        what: &str,
        wanted: impl Fn(&PersistentVolumeClaim) -> bool,
    ) -> Outcome<PersistentVolumeClaim> {
        self.is_within(LIMIT, what, wanted).await
    }

    pub async fn is_within(
        &self,
        limit: Duration,
        what: &str,
        wanted: impl Fn(&PersistentVolumeClaim) -> bool,
    ) -> Outcome<PersistentVolumeClaim> {
        let found = wait_for(self.api(), &self.name, what, limit, |it| it.is_some_and(&wanted));
        found
            .await?
            .ok_or_else(|| Stop::Failed(format!("{} is gone", self.name)))
    }

    /// Waits until it is bound, and returns its PersistentVolume.
    pub async fn bound(&self) -> Outcome<PersistentVolume> {
        self.bound_within(LIMIT).await
    }

    pub async fn bound_within(&self, limit: Duration) -> Outcome<PersistentVolume> {
        let is_bound =
            |it: &PersistentVolumeClaim| it.status.as_ref().and_then(|it| it.phase.as_deref()) == Some("Bound");
        let found = wait_for(self.api(), &self.name, "bound", limit, |it| it.is_some_and(is_bound));
        let claim = found.await?.unwrap_or_default();
        let name = claim.spec.and_then(|spec| spec.volume_name).unwrap_or_default();
        Ok(self.t.api::<PersistentVolume>().get(&name).await?)
    }

    /// Waits until the operator's marker is off. Other provisioners have none.
    pub async fn without_marker(&self) -> Outcome {
        self.is("without the marker", |it| !is_marked(it)).await.map(drop)
    }

    pub async fn change(&self, patch: Value) -> Outcome {
        merge(&self.api(), &self.name, patch).await
    }

    /// Chooses a node for it, as the scheduler does.
    pub async fn select(&self, node: &str) -> Outcome {
        self.change(json!({ "metadata": { "annotations": { SELECTED: node } } }))
            .await
    }

    pub async fn delete(&self) -> Outcome {
        delete(&self.api(), &self.name).await
    }

    pub async fn gone(&self) -> Outcome {
        wait_for(self.api(), &self.name, "gone", LIMIT, |it| it.is_none()).await?;
        Ok(())
    }

    pub fn on_create(&self) -> Rule {
        Rule::on(Method::CreateVolume).claim(&self.name)
    }

    /// From now on the driver behaves well for it.
    pub fn heal(&self) {
        self.t.env.driver.clear_rules_of_claim(&self.name);
    }

    pub fn creates(&self) -> Vec<CallRecord> {
        let calls = self.t.env.driver.calls_of(Method::CreateVolume);
        calls
            .into_iter()
            .filter(|call| claim_of(call) == Some(&self.name))
            .collect()
    }

    pub fn no_call(&self) -> Outcome {
        let count = self.creates().len();
        demand(count == 0, || {
            format!(
                "{count} calls of CreateVolume for {}, for which none may be made",
                self.name
            )
        })
    }

    pub async fn call(&self, what: &str, wanted: impl Fn(&CallRecord) -> bool + Send + 'static) -> Outcome<CallRecord> {
        let name = self.name.clone();
        let what = format!("CreateVolume for {name} {what}");
        let ours = move |call: &CallRecord| claim_of(call) == Some(&name) && wanted(call);
        self.t.some_call(&what, ours).await
    }

    pub async fn call_begins(&self) -> Outcome<CallRecord> {
        self.call("began", |_| true).await
    }

    pub async fn call_ended(&self) -> Outcome<CallRecord> {
        self.call("ended", |call| call.finished.is_some()).await
    }

    /// What its first call of CreateVolume asked for.
    pub async fn asked(&self) -> Outcome<CreationFacts> {
        let call = self.call_begins().await?;
        call.creation
            .ok_or_else(|| Stop::Failed("CreateVolume without content".to_owned()))
    }

    pub async fn volume_name(&self) -> Outcome<String> {
        Ok(format!("pvc-{}", self.get().await?.uid().unwrap_or_default()))
    }

    /// Makes its class anew, which then has another UID. It is called as the claim.
    pub async fn class_anew(&self, edit: impl FnOnce(&mut Value)) -> Outcome {
        delete::<StorageClass>(&self.t.api(), &self.name).await?;
        let name = self.name.clone();
        self.t
            .given_class(|class| {
                class["metadata"]["name"] = json!(name);
                edit(class);
            })
            .await
    }

    pub fn handles(&self) -> BTreeSet<String> {
        let names: BTreeSet<String> = self.creates().into_iter().filter_map(|call| call.volume).collect();
        self.t.handles_named(&names)
    }

    /// Waits for an Event on it that is not kube-controller-manager's.
    pub async fn told(&self, reason: &str, part: &str) -> Outcome<Event> {
        self.t.told(&self.name, reason, part).await
    }

    /// As [`Claim::told`], for what waits for nothing.
    pub async fn told_soon(&self, reason: &str, part: &str) -> Outcome {
        let told = tokio::time::timeout(SOON, self.told(reason, part)).await;
        demand(told.is_ok_and(|told| told.is_ok()), || {
            format!("no Event {reason} on {} with {part:?} within {SOON:?}", self.name)
        })
    }
}

impl Test {
    pub fn handles_named(&self, names: &BTreeSet<String>) -> BTreeSet<String> {
        let made: BTreeMap<String, String> = self.env.driver.volumes();
        let ours = made.into_iter().filter(|(_, name)| names.contains(name));
        ours.map(|(handle, _)| handle).collect()
    }
}

/// The driver does the work, and answers that its time is over.
pub fn unknown(rule: Rule) -> Rule {
    rule.action(ScriptAction::FailAfterWork(ScriptedFailure {
        code: Code::DeadlineExceeded,
        message: "it takes long".to_owned(),
        echo_secrets: false,
        pad_bytes: 0,
    }))
}

pub fn claim_of(call: &CallRecord) -> Option<&str> {
    call.creation.as_ref()?.claim()
}

pub fn is_marked(claim: &PersistentVolumeClaim) -> bool {
    claim.annotations().contains_key(MARKER) || claim.finalizers().iter().any(|entry| entry == MARKER)
}

/// Takes all finalizers from a claim; that it is gone already is fine.
pub async fn strip_claim(claim: &Claim) -> Outcome {
    let patch = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    match claim.api().patch(&claim.name, &PatchParams::default(), &patch).await {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        outcome => Ok(outcome.map(drop)?),
    }
}
