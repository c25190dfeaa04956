//! A claim becomes a volume and a PersistentVolume.

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt as _;
use serde_json::{Value, json};

use super::claims::{Claim, handle_of, is_protected};
use crate::scenario::{Group, Outcome, Scenario, demand, same};
use crate::test::Test;

pub fn scenarios() -> Vec<Scenario> {
    let group = Group::new("provision-create");
    simple(group).done()
}

fn simple(group: Group) -> Group {
    group
        .scenario(
            "immediate",
            "a claim gets one CreateVolume, and its PersistentVolume has every field",
            immediate,
        )
        .recommended(
            "immediate-events",
            "a claim that is provisioned at once gets one Event",
            |t| async move {
                let (claim, volume) = t.given_bound().await?;
                let text = format!("Successfully provisioned volume {}", volume.name_any());
                claim.told("ProvisioningSucceeded", &text).await?;
                let reasons: Vec<_> = t
                    .events_on(&claim.name)
                    .await?
                    .into_iter()
                    .map(|it| it.reason)
                    .collect();
                same(
                    "reasons of Events",
                    &reasons,
                    &vec![Some("ProvisioningSucceeded".to_owned())],
                )
            },
        )
        .peer_fails("an Event Provisioning at each attempt, 1.4 no. 18")
}

async fn immediate(t: Test) -> Outcome {
    t.given_class(|class| {
        class["mountOptions"] = json!(["noatime"]);
        class["parameters"] = json!({ "tier": "gold", "csi.storage.k8s.io/fstype": "xfs" });
    })
    .await?;
    let claim = t.given_claim("").await?;
    let volume = claim.bound().await?;
    let uid = claim.get().await?.uid().unwrap_or_default();
    let name = format!("pvc-{uid}");
    same("name", &volume.name_any(), &name)?;
    same("finalizer", &is_protected(&volume), &true)?;
    let driver = &t.env.driver_name;
    let annotations = volume.annotations();
    let annotation = |key: &str| annotations.get(key).map(String::as_str);
    same(
        "provisioned-by",
        &annotation("pv.kubernetes.io/provisioned-by"),
        &Some(driver.as_str()),
    )?;
    for part in ["name", "namespace"] {
        let key = format!("volume.kubernetes.io/provisioner-deletion-secret-{part}");
        same(&key, &annotation(&key), &Some(""))?;
    }
    let handle = handle_of(&volume);
    is_as_asked(&t, &claim, &volume, &uid)?;
    same("volumes", &claim.handles(), &[handle].into())?;

    let calls = claim.creates();
    same("number of CreateVolume", &calls.len(), &1)?;
    let asked = calls.into_iter().next().and_then(|call| call.creation);
    let asked = serde_json::to_value(asked).unwrap_or_default();
    same("size", &asked["requiredBytes"], &json!(1 << 30))?;
    same("tier", &asked["parameters"]["tier"], &json!("gold"))?;
    let wanted = json!([{
        "accessMode": "SINGLE_NODE_MULTI_WRITER", "accessType": "mount", "fsType": "xfs", "mountFlags": 1,
    }]);
    same("capabilities", &asked["capabilities"], &wanted)
}

fn is_as_asked(t: &Test, claim: &Claim, volume: &PersistentVolume, uid: &str) -> Outcome {
    let spec = serde_json::to_value(&volume.spec).unwrap_or_default();
    for (path, wanted) in [
        ("/capacity/storage", json!("1Gi")),
        ("/accessModes", json!(["ReadWriteOnce"])),
        ("/mountOptions", json!(["noatime"])),
        ("/persistentVolumeReclaimPolicy", json!("Delete")),
        ("/storageClassName", json!(t.id)),
        ("/volumeMode", json!("Filesystem")),
        ("/claimRef/apiVersion", json!("v1")),
        ("/claimRef/kind", json!("PersistentVolumeClaim")),
        ("/claimRef/namespace", json!(super::NAMESPACE)),
        ("/claimRef/name", json!(claim.name)),
        ("/claimRef/uid", json!(uid)),
        ("/csi/driver", json!(t.env.driver_name)),
        ("/csi/fsType", json!("xfs")),
        ("/csi/volumeAttributes/mock~1name", json!(format!("pvc-{uid}"))),
        ("/csi/readOnly", Value::Null),
        ("/nodeAffinity", Value::Null),
    ] {
        same(path, &spec.pointer(path).cloned().unwrap_or_default(), &wanted)?;
    }
    let identity = spec.pointer("/csi/volumeAttributes/storage.kubernetes.io~1csiProvisionerIdentity");
    let identity = identity.and_then(Value::as_str).unwrap_or_default();
    demand(identity.ends_with(&format!("-{}", t.env.driver_name)), || {
        format!("the provisioner's identity is {identity:?}")
    })
}
