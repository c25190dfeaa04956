//! Admission policies that undo what the operator writes: nothing is done on the strength of an OK, and the object says
//! what is wrong. A MutatingAdmissionPolicy does what a mutating webhook does.

use csi_mock_driver::Method;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use std::time::Duration;

use crate::events::event;
use crate::rig::{LIMIT, World, detach};
use crate::support::apply::apply_object;
use crate::support::{Error, Result};

const NOTE: &str = "attacher.csi.dev/volume";

/// Tries that follow each other soon.
fn settings() -> Value {
    json!({ "backoff": { "initial": "200ms", "max": "400ms" } })
}

/// A policy that removes or replaces a part of an object in updates of these objects that are named so, in which one of these conditions holds.
fn mutating(name: &str, group: &str, resource: &str, object: &str, condition: &str, patch: &str) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicy", "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail", "reinvocationPolicy": "Never",
            "mutations": [{
                "patchType": "JSONPatch", "jsonPatch": {"expression": format!("[JSONPatch{{{patch}}}]")},
            }],
            "matchConstraints": {"resourceRules": [{
                "apiGroups": [group], "apiVersions": ["*"], "operations": ["UPDATE"], "resources": [resource],
            }]},
            "matchConditions": [
                {"name": "named", "expression": format!("object.metadata.name in ['{object}', '{object}-probe']")},
                {"name": "meant", "expression": condition},
            ],
        },
    })
}

/// A policy in effect.
struct InEffect {
    client: Client,
    binding: Value,
}

impl InEffect {
    async fn of(world: &World, policy: Value) -> Result<Self> {
        let binding = json!({
            "apiVersion": policy["apiVersion"], "metadata": policy["metadata"],
            "kind": format!("{}Binding", policy["kind"].as_str().unwrap_or_default()),
            "spec": {"policyName": policy["metadata"]["name"]},
        });
        for object in [policy, binding.clone()] {
            let object = serde_json::from_value(object)?;
            apply_object(&world.client, object).await?;
        }
        let client = world.client.clone();
        Ok(Self { client, binding })
    }

    /// Takes the policy away.
    async fn end(self) -> Result<()> {
        let plural = format!("{}s", self.binding["kind"].as_str().unwrap_or_default().to_lowercase());
        let name = self.binding["metadata"]["name"].as_str().unwrap_or_default();
        let url = format!("/apis/admissionregistration.k8s.io/v1/{plural}/{name}");
        let request = http::Request::delete(url)
            .body(serde_json::to_vec(&DeleteParams::default()).unwrap_or_default())
            .map_err(|error| Error::Other(error.to_string()))?;
        let answer = self.client.request::<Value>(request).await;
        answer.map(drop).map_err(Error::from)
    }
}

/// Patches an object again and again, without any effect, until the answer shows that a policy or a webhook is in effect: the API
/// server learns of them by watches of its own.
pub async fn wait_effective<K>(
    api: Api<K>,
    name: &str,
    patch: &Value,
    shows: impl Fn(kube::Result<K>) -> bool,
) -> Result<()>
where
    K: kube::Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let tries = async {
        let params = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        while !shows(api.patch(name, &params, &Patch::Merge(patch)).await) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let waited = tokio::time::timeout(LIMIT, tries).await;
    waited.map_err(|_| Error::Other(format!("no policy or webhook for {name} is in effect")))
}

#[tokio::test]
async fn a_claim_that_is_not_kept_is_told_on_the_attachment() -> Result<()> {
    let world = World::shared().await?;
    let driver = world.driver("stripped", settings()).await?;
    let condition = format!("has(object.metadata.annotations) && '{NOTE}' in object.metadata.annotations");
    let patch = "op: 'remove', path: '/metadata/annotations/attacher.csi.dev~1volume'";
    let policy = mutating(
        "stripped",
        "storage.k8s.io",
        "volumeattachments",
        "stripped-va",
        &condition,
        patch,
    );
    let policy = InEffect::of(&world, policy).await?;
    let attachments: Api<VolumeAttachment> = Api::all(world.client.clone());
    let fixtures = &world.fixtures;
    fixtures
        .volume_attachment("stripped-va-probe", "nobody.test", "none", "none")
        .await?;
    let noted = json!({"metadata": {"annotations": {NOTE: "{}"}}});
    let is_stripped =
        |answer: kube::Result<VolumeAttachment>| answer.is_ok_and(|answer| answer.annotations().is_empty());
    wait_effective(attachments, "stripped-va-probe", &noted, is_stripped).await?;
    fixtures.delete::<VolumeAttachment>("stripped-va-probe").await?;

    driver.claim("stripped-va").await?;
    let told = "could not save VolumeAttachment: the API server accepted the write but did not keep annotation \
                attacher.csi.dev/volume; an admission webhook may remove it";
    let error = fixtures.wait_for_attach_error("stripped-va").await?;
    assert_eq!(error.message.as_deref(), Some(told));
    for (kind, name) in [("VolumeAttachment", "stripped-va"), ("PersistentVolume", "stripped-va")] {
        event(&world, kind, name, "AttachFailed", told).await?;
    }
    assert!(driver.calls_for("stripped-va").is_empty());
    policy.end().await?;
    fixtures.wait_for_attached("stripped-va").await?;
    assert_eq!(driver.calls_for("stripped-va").len(), 1);
    Ok(())
}

#[tokio::test]
async fn a_volume_whose_finalizer_is_put_back_says_so() -> Result<()> {
    let world = World::shared().await?;
    let driver = world.driver("putback", settings()).await?;
    let fixtures = &world.fixtures;
    driver.attach("putback-va").await?;
    let condition = "has(oldObject.metadata.finalizers) && !has(object.metadata.finalizers)";
    let patch = format!(
        "op: 'add', path: '/metadata/finalizers', value: ['{}']",
        driver.finalizer()
    );
    let policy = mutating("putback", "", "persistentvolumes", "putback-va", condition, &patch);
    let policy = InEffect::of(&world, policy).await?;
    let volumes: Api<PersistentVolume> = Api::all(world.client.clone());
    let none = json!({"metadata": {"finalizers": null}});
    let is_put_back =
        |answer: kube::Result<PersistentVolume>| answer.is_ok_and(|answer| !answer.finalizers().is_empty());
    wait_effective(volumes, "putback-va", &none, is_put_back).await?;

    detach(fixtures, "putback-va").await?;
    fixtures.delete::<PersistentVolume>("putback-va").await?;
    let told = "did not keep the removal of finalizer external-attacher/putback-csi-test; an admission webhook may put it back";
    event(&world, "PersistentVolume", "putback-va", "FinalizerNotRemoved", told).await?;
    policy.end().await?;
    fixtures.wait_for_volume_gone("putback-va").await?;
    assert_eq!(driver.mock.calls_of(Method::ControllerUnpublishVolume).len(), 1);
    Ok(())
}
