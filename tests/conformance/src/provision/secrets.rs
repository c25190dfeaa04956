//! The Secrets that a class names: which are sent, and that none comes out anywhere.

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt as _;
use serde_json::{Value, json};

use csi_mock_driver::{ScriptAction, ScriptedFailure};
use tonic::Code;

use super::NAMESPACE;
use super::claims::Claim;
use super::settings::WITHOUT_CONFIG;
use super::volumes::handle_of;
use crate::scenario::{Group, Outcome, Scenario, demand, same};
use crate::test::Test;

/// Who asks for the program under test.
const READER: &str = "system:serviceaccount:conformance:attacher";
const DELETION: &str = "volume.kubernetes.io/provisioner-deletion-secret-namespace";

pub fn scenarios() -> Vec<Scenario> {
    Group::new("provision-secrets")
        .demands("each family of Secrets is where it belongs, and that of the provisioner is sent")
        .scenario("families", families)
        .demands("a claim waits for its Secret and says so")
        .scenario("late", |t| async move {
            let claim = t.claim_with_secret().await?;
            claim.told("", &t.secret).await?;
            claim.no_call()?;
            t.given_secret(&[("password", "x")]).await?;
            claim.bound().await?;
            let wanted = vec!["password".to_owned()];
            same("keys", &claim.call_begins().await?.secret_keys, &wanted)
        })
        .demands("without its Secret a volume is deleted all the same, and an Event says so")
        .scenario("deletion", |t| async move {
            let (claim, volume) = t.bound_with_secret().await?;
            t.change_secret(None).await?;
            claim.delete().await?;
            t.deletion(&handle_of(&volume), "without secrets", |call| {
                call.secret_keys.is_empty()
            })
            .await?;
            t.told(&volume.name_any(), "", &t.secret).await.map(drop)
        })
        .peer_fails("it says nothing")
        .demands("a volume whose Secret may not be read is not deleted without it")
        .safety("deletion-forbidden", |t| async move {
            let (claim, volume) = t.bound_with_secret().await?;
            let (name, handle) = (volume.name_any(), handle_of(&volume));
            let reads_in = |namespace: &str| json!({ "metadata": { "annotations": { DELETION: namespace } } });
            t.change_volume(&name, reads_in("default")).await?;
            claim.delete().await?;
            t.phase(&name, "Released").await?;
            t.served_after("b").await?;
            t.not_deleted(&handle)?;
            t.told(&name, "VolumeFailedDelete", &t.secret).await?;
            t.change_volume(&name, reads_in(NAMESPACE)).await?;
            t.persistent_volume_gone(&name).await
        })
        .peer_fails("it calls without secrets whatever the reason")
        .demands("a Secret that the driver puts into its error is in no Event")
        .safety("echo", echo)
        .peer_fails("it writes the error as it is")
        .demands("a Secret that the settings do not list is not read, and the claim says so")
        .unless(WITHOUT_CONFIG)
        .extension("not-listed", not_listed)
        .done()
}

impl Test {
    async fn claim_with_secret(&self) -> Outcome<Claim> {
        self.given_class(|class| {
            class["parameters"] = json!({
                "csi.storage.k8s.io/provisioner-secret-name": "${pvc.name}",
                "csi.storage.k8s.io/provisioner-secret-namespace": "${pvc.namespace}",
            });
        })
        .await?;
        self.given_claim("").await
    }

    /// A claim whose class names a Secret, and its volume.
    pub async fn bound_with_secret(&self) -> Outcome<(Claim, PersistentVolume)> {
        self.given_secret(&[("password", "x")]).await?;
        let claim = self.claim_with_secret().await?;
        let volume = claim.bound().await?;
        Ok((claim, volume))
    }
}

async fn families(t: Test) -> Outcome {
    t.given_secret(&[("password", "x")]).await?;
    t.given_class(|class| {
        for (family, name, namespace) in [
            ("", "default-${pvc.name}", NAMESPACE),
            ("provisioner-", "${pvc.name}", "${pvc.namespace}"),
            (
                "controller-publish-",
                "publish-${pvc.annotations['conformance.test/team']}",
                "${pvc.namespace}",
            ),
            ("node-stage-", "stage-${pv.name}", NAMESPACE),
            ("node-publish-", "publish-${pvc.namespace}", NAMESPACE),
        ] {
            class["parameters"][format!("csi.storage.k8s.io/{family}secret-name")] = json!(name);
            class["parameters"][format!("csi.storage.k8s.io/{family}secret-namespace")] = json!(namespace);
        }
    })
    .await?;
    let claim = t.claim("");
    claim
        .create(|it| it["metadata"]["annotations"]["conformance.test/team"] = json!("red"))
        .await?;
    let volume = claim.bound().await?;
    let (name, default) = (volume.name_any(), format!("default-{}", claim.name));
    let spec = serde_json::to_value(&volume.spec).unwrap_or_default();
    for (field, wanted) in [
        ("controllerPublishSecretRef", "publish-red"),
        ("nodeStageSecretRef", &format!("stage-{name}")),
        ("nodePublishSecretRef", &format!("publish-{NAMESPACE}")),
        ("controllerExpandSecretRef", &default),
        ("nodeExpandSecretRef", &default),
    ] {
        let expected = json!({ "namespace": NAMESPACE, "name": wanted });
        same(field, &spec["csi"][field], &expected)?;
    }
    for (annotation, wanted) in [
        ("provisioner-deletion-secret-name", claim.name.as_str()),
        ("provisioner-deletion-secret-namespace", NAMESPACE),
        ("controller-modify-secret-name", &default),
        ("controller-modify-secret-namespace", NAMESPACE),
    ] {
        let is = volume.annotations().get(&format!("volume.kubernetes.io/{annotation}"));
        same(annotation, &is.map(String::as_str), &Some(wanted))?;
    }
    let expected = vec!["password".to_owned()];
    same("keys", &claim.call_begins().await?.secret_keys, &expected)?;
    let parameters = claim.asked().await?.parameters;
    demand(!parameters.keys().any(|key| key.contains("secret")), || {
        format!("the driver is told the names of Secrets: {parameters:?}")
    })
}

async fn echo(t: Test) -> Outcome {
    const VALUE: &str = "s3cr3t-word-of-this-test";
    t.given_secret(&[("password", VALUE)]).await?;
    let claim = t.claim("");
    t.script(claim.on_create().times(1).action(ScriptAction::Fail(ScriptedFailure {
        code: Code::Internal,
        message: "cannot log in with".to_owned(),
        echo_secrets: true,
        pad_bytes: 0,
    })));
    let claim = t.claim_with_secret().await?;
    claim.told("ProvisioningFailed", "cannot log in").await?;
    claim.bound().await?;
    for event in t.events_on(&claim.name).await? {
        let text = serde_json::to_value(&event).unwrap_or(Value::Null).to_string();
        demand(!text.contains(VALUE), || {
            "the value of the Secret is in an Event".to_owned()
        })?;
    }
    Ok(())
}

async fn not_listed(t: Test) -> Outcome {
    t.config().await?;
    t.given_class(|class| {
        class["parameters"] = json!({
            "csi.storage.k8s.io/provisioner-secret-name": t.secret,
            "csi.storage.k8s.io/provisioner-secret-namespace": "kube-system",
        });
    })
    .await?;
    let claim = t.given_claim("").await?;
    claim.told("ProvisioningFailed", "spec.provisioning.secrets").await?;
    claim.no_call()?;
    // What the API server writes down of it comes before what it writes down of the claim that is served now.
    t.served_after("b").await?;
    let all = t.env.cluster.audit_events()?;
    let reads = all
        .iter()
        .filter(|event| event.username == READER && event.resource == "secrets" && event.name == t.secret);
    same("requests for the Secret", &reads.count(), &0)
}
