//! A claim becomes a volume and a PersistentVolume.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt as _;
use serde_json::{Value, json};

use super::claims::{Claim, PROVISIONER};
use super::volumes::{handle_of, is_protected};
use crate::scenario::{Group, Outcome, Scenario, demand, same};
use crate::test::Test;

/// The access modes of a claim, and those of the capabilities: the driver has SINGLE_NODE_MULTI_WRITER.
const ACCESS_MODES: [(&[&str], &[&str]); 5] = [
    (&["ReadWriteOnce"], &["SINGLE_NODE_MULTI_WRITER"]),
    (&["ReadWriteOncePod"], &["SINGLE_NODE_SINGLE_WRITER"]),
    (&["ReadOnlyMany"], &["MULTI_NODE_READER_ONLY"]),
    (&["ReadWriteMany"], &["MULTI_NODE_MULTI_WRITER"]),
    (
        &["ReadOnlyMany", "ReadWriteOnce"],
        &["MULTI_NODE_READER_ONLY", "SINGLE_NODE_MULTI_WRITER"],
    ),
];

pub fn scenarios() -> Vec<Scenario> {
    let group = Group::new("provision-create");
    requests(whose(simple(group))).done()
}

fn simple(group: Group) -> Group {
    group
        .demands("a claim gets one CreateVolume, and its PersistentVolume has every field")
        .scenario("immediate", immediate)
        .demands("a claim that is provisioned at once gets one Event")
        .recommended("immediate-events", |t| async move {
            let (claim, volume) = t.given_bound().await?;
            let text = format!("Successfully provisioned volume {}", volume.name_any());
            claim.told("ProvisioningSucceeded", &text).await?;
            let reasons: Vec<_> = t
                .events_on(&claim.name)
                .await?
                .into_iter()
                .map(|it| it.reason)
                .collect();
            let wanted = vec![Some("ProvisioningSucceeded".to_owned())];
            same("reasons of Events", &reasons, &wanted)
        })
        .peer_fails("it writes an Event at each attempt")
}

fn whose(group: Group) -> Group {
    group
        .demands("a claim that waits for its consumer gets no call until a node is selected")
        .scenario("delayed", |t| async move {
            t.given_delayed_class().await?;
            let claim = t.given_claim("").await?;
            t.served_after("b").await?;
            claim.no_call()?;
            t.given_zone(&t.node, None).await?;
            claim.select(&t.node).await?;
            claim.bound().await?;
            same("number of CreateVolume", &claim.creates().len(), &1)
        })
        .demands("only claims of the driver by annotation and class are served")
        .safety("whose", |t| async move {
            let (driver, other) = (t.env.driver_name.as_str(), "other.conformance.test");
            let (new, old) = (PROVISIONER[0], PROVISIONER[1]);
            let annotated = async |suffix: &str, provisioner: &str, annotations: Value| -> Outcome<Claim> {
                let claim = t.claim(suffix);
                t.given_class(|class| {
                    class["metadata"]["name"] = json!(claim.name);
                    class["provisioner"] = json!(provisioner);
                })
                .await?;
                let edit = |it: &mut Value| {
                    it["metadata"]["annotations"] = annotations;
                    it["spec"]["storageClassName"] = json!(claim.name);
                };
                claim.create(edit).await?;
                Ok(claim)
            };
            let theirs = annotated("theirs", other, json!({ new: other, old: other })).await?;
            let class = annotated("class", other, json!({ new: driver, old: driver })).await?;
            for (suffix, annotations) in [
                ("old", json!({ old: driver })),
                ("both", json!({ new: driver, old: other })),
                ("none", json!({})),
            ] {
                annotated(suffix, driver, annotations).await?.bound().await?;
            }
            theirs.no_call()?;
            class.no_call()
        })
        .demands("the annotation with the class counts more than the field")
        .scenario("class-annotation", |t| async move {
            t.given_class(|class| class["parameters"] = json!({ "tier": "gold" }))
                .await?;
            let other = format!("{}-other", t.id);
            t.given_class(|class| class["metadata"]["name"] = json!(other)).await?;
            let claim = t.claim("");
            claim
                .create(|it| {
                    it["metadata"]["annotations"]["volume.beta.kubernetes.io/storage-class"] = json!(t.id);
                    it["spec"]["storageClassName"] = json!(other);
                })
                .await?;
            claim.bound().await?;
            let parameters = claim.asked().await?.parameters;
            let tier = parameters.get("tier").map(String::as_str);
            same("parameter tier", &tier, &Some("gold"))
        })
}

fn requests(group: Group) -> Group {
    group
        .demands("each access mode of a claim becomes a capability")
        .scenario("access-modes", |t| async move {
            t.given_class(|_| {}).await?;
            for (number, (modes, wanted)) in ACCESS_MODES.iter().enumerate() {
                let claim = t.claim(&number.to_string());
                claim.create(|it| it["spec"]["accessModes"] = json!(modes)).await?;
                let asked = claim.asked().await?;
                let asked: Vec<_> = asked.capabilities.iter().map(|it| it.access_mode).collect();
                same(&format!("access modes for {modes:?}"), &asked, wanted)?;
                claim.bound().await?;
            }
            Ok(())
        })
        .demands("a block volume has no file system, any other has one")
        .scenario("block", |t| async move {
            t.given_class(|_| {}).await?;
            for (mode, access, fs_type) in [
                (json!("Block"), "block", None),
                (json!("Filesystem"), "mount", Some("ext4")),
                (Value::Null, "mount", Some("ext4")),
            ] {
                let claim = t.claim(&format!("{}-{}", access, mode.is_null()));
                claim.create(|it| it["spec"]["volumeMode"] = mode).await?;
                let volume = claim.bound().await?;
                let asked = claim.asked().await?;
                let is: Vec<_> = asked
                    .capabilities
                    .iter()
                    .map(|it| (it.access_type, it.fs_type.as_deref()))
                    .collect();
                same("access type and file system", &is, &vec![(access, fs_type)])?;
                same("fsType", &fs_type_of(&volume).as_deref(), &fs_type)?;
            }
            Ok(())
        })
        .demands("the file system is that of the class by its new or old key, or the default")
        .scenario("fs-type", |t| async move {
            let (new, old) = ("csi.storage.k8s.io/fstype", "FSType");
            let both = t
                .given_claim_with("both", |it| it["parameters"] = json!({ new: "xfs", "fstype": "xfs" }))
                .await?;
            for (suffix, parameters, fs_type, sent) in [
                ("new", json!({ new: "xfs" }), "xfs", None),
                ("old", json!({ old: "xfs" }), "xfs", Some("xfs")),
                ("default", json!({}), "ext4", None),
            ] {
                let claim = t.given_claim_with(suffix, |it| it["parameters"] = parameters).await?;
                let volume = claim.bound().await?;
                same("fsType", &fs_type_of(&volume).as_deref(), &Some(fs_type))?;
                let asked = claim.asked().await?;
                same("parameter", &asked.parameters.get(old).map(String::as_str), &sent)?;
                same("reserved key", &asked.parameters.contains_key(new), &false)?;
            }
            both.told("ProvisioningFailed", "fstype").await?;
            both.no_call()
        })
        .demands("with --extra-create-metadata the driver learns the names")
        .scenario("metadata", |t| async move {
            let (claim, volume) = t.given_bound().await?;
            let parameters = claim.asked().await?.parameters;
            let wanted = [
                ("csi.storage.k8s.io/pv/name", volume.name_any()),
                ("csi.storage.k8s.io/pvc/name", claim.name.clone()),
                ("csi.storage.k8s.io/pvc/namespace", super::NAMESPACE.to_owned()),
            ];
            let wanted: BTreeMap<String, String> = wanted.map(|(key, value)| (key.to_owned(), value)).into();
            same("parameters", &parameters, &wanted)
        })
}

fn fs_type_of(volume: &PersistentVolume) -> Option<String> {
    volume.spec.as_ref()?.csi.as_ref()?.fs_type.clone()
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
    let by = annotation("pv.kubernetes.io/provisioned-by");
    same("provisioned-by", &by, &Some(driver.as_str()))?;
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
