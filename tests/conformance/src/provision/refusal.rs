//! An API server that refuses the PersistentVolumes of a claim, as a quota or a policy does.

use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::api::PostParams;
use serde_json::json;

use super::NAMESPACE;
use super::claims::Claim;
use crate::expect::LIMIT;
use crate::scenario::{Outcome, Stop};
use crate::test::{Test, create, delete};

impl Test {
    /// From now on PersistentVolumes for a claim are refused.
    pub async fn refuse_volumes_of(&self, claim: &Claim) -> Outcome {
        let policy = json!({
            "metadata": { "name": self.id },
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": { "resourceRules": [{
                    "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["persistentvolumes"],
                }] },
                "validations": [{
                    "expression": format!("!has(object.spec.claimRef) || object.spec.claimRef.name != '{}'", claim.name),
                    "message": "no more volumes today",
                }],
            },
        });
        let binding = json!({
            "metadata": { "name": self.id },
            "spec": { "policyName": self.id, "validationActions": ["Deny"] },
        });
        create::<ValidatingAdmissionPolicy>(&self.api(), policy).await?;
        create::<ValidatingAdmissionPolicyBinding>(&self.api(), binding).await?;
        self.is_refused(claim, true).await
    }

    /// From now on they are taken again.
    pub async fn allow_volumes(&self) -> Outcome {
        self.forget_refusal().await?;
        self.is_refused(&self.claim(""), false).await
    }

    /// Removes what refuses PersistentVolumes, if anything does.
    pub async fn forget_refusal(&self) -> Outcome {
        delete::<ValidatingAdmissionPolicyBinding>(&self.api(), &self.id).await?;
        delete::<ValidatingAdmissionPolicy>(&self.api(), &self.id).await
    }

    /// A policy takes a moment, and so does its end.
    async fn is_refused(&self, claim: &Claim, refused: bool) -> Outcome {
        let volume = json!({
            "metadata": { "name": format!("{}-probe", self.id) },
            "spec": {
                "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"],
                "claimRef": { "namespace": NAMESPACE, "name": claim.name },
                "csi": { "driver": "probe.conformance.test", "volumeHandle": "probe" },
            },
        });
        let volume: PersistentVolume = serde_json::from_value(volume).map_err(crate::support::Error::from)?;
        let asked = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let asking = async {
            while self.api::<PersistentVolume>().create(&asked, &volume).await.is_err() != refused {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let so = tokio::time::timeout(LIMIT, asking).await;
        so.map_err(|_| Stop::Failed(format!("the policy is not in use within {LIMIT:?}")))
    }
}
