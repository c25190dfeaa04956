//! The second role: PersistentVolumeClaims become volumes and PersistentVolumes, whatever happens meanwhile.

use std::time::Duration;

use csi_mock_driver::{CallResult, Method, Rule};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::events::event;
use crate::rig::{Driver, LIMIT, World, operator_options};
use crate::support::operator::account;
use crate::support::wait::wait_for;
use crate::support::{Error, Result};

const NAMESPACE: &str = "default";
const MARKER: &str = "attacher.csi.dev/provisioning";
const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";

/// What provisioning needs beside what the chart grants without any values.
async fn grant(world: &World) -> Result<()> {
    let account = account();
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": { "name": "provisions" },
        "rules": [
            { "apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["get", "list", "watch", "patch"] },
            { "apiGroups": [""], "resources": ["persistentvolumes"], "verbs": ["create"] },
            { "apiGroups": ["storage.k8s.io"], "resources": ["storageclasses"], "verbs": ["list", "watch"] },
        ],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": { "name": "provisions" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "provisions" },
        "subjects": [{ "kind": "ServiceAccount", "namespace": account.namespace, "name": account.name }],
    });
    world.cluster.apply_yaml(&role.to_string()).await?;
    world.cluster.apply_yaml(&binding.to_string()).await.map(drop)
}

fn settings(driver: &Driver<'_>, backoff: &Value) -> Value {
    json!({
        "driverName": driver.name,
        "provisioning": { "backoff": backoff, "defaultFsType": "ext4", "timeouts": { "create": "10s" } },
    })
}

fn soon() -> Value {
    json!({ "initial": "100ms", "max": "500ms", "jitterPercent": 0 })
}

impl Driver<'_> {
    /// A class of the driver that is called after it.
    async fn class(&self, reclaim: &str) -> Result<()> {
        let class = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": self.short },
            "provisioner": self.name, "reclaimPolicy": reclaim, "volumeBindingMode": "Immediate",
            "mountOptions": ["noatime"], "parameters": { "tier": "gold", "csi.storage.k8s.io/fstype": "xfs" },
        });
        self.world.cluster.apply_yaml(&class.to_string()).await.map(drop)
    }

    /// A claim of that class.
    async fn ask_for(&self, name: &str) -> Result<PersistentVolumeClaim> {
        let claim: PersistentVolumeClaim = serde_json::from_value(json!({
            "metadata": { "name": name },
            "spec": {
                "storageClassName": self.short, "accessModes": ["ReadWriteOnce"],
                "resources": { "requests": { "storage": "1Gi" } },
            },
        }))
        .unwrap();
        let made = self.claims().create(&PostParams::default(), &claim).await;
        made.map_err(|error| Error::Other(error.to_string()))
    }

    fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.world.client.clone(), NAMESPACE)
    }

    fn volumes(&self) -> Api<PersistentVolume> {
        Api::all(self.world.client.clone())
    }

    async fn bound(&self, name: &str) -> Result<PersistentVolumeClaim> {
        let is_bound = |claim: Option<&PersistentVolumeClaim>| {
            let status = claim.and_then(|claim| claim.status.as_ref());
            status.and_then(|status| status.phase.as_deref()) == Some("Bound")
        };
        let bound = wait_for(self.claims(), name, "bound", LIMIT, is_bound).await?;
        bound.ok_or_else(|| Error::Other("it is there".to_owned()))
    }

    async fn saved(&self, claim: &PersistentVolumeClaim) -> Result<PersistentVolume> {
        let name = format!("pvc-{}", claim.uid().unwrap_or_default());
        let saved = wait_for(self.volumes(), &name, "saved", LIMIT, |volume| volume.is_some()).await?;
        saved.ok_or_else(|| Error::Other("it is there".to_owned()))
    }
}

/// A driver that provisions, and an operator that works for it.
async fn provisioning<'w>(world: &'w World, short: &str, backoff: &Value) -> Result<Driver<'w>> {
    let driver = world.unconfigured_driver(short, |builder| builder).await?;
    driver.configure(&settings(&driver, backoff)).await?;
    driver.wait("ProvisioningReady", "True", Some("Running")).await?;
    Ok(driver)
}

fn carries_marker(claim: Option<&PersistentVolumeClaim>) -> bool {
    claim.is_some_and(|claim| {
        claim.finalizers().iter().any(|finalizer| finalizer == MARKER) || claim.annotations().contains_key(MARKER)
    })
}

#[tokio::test]
async fn a_claim_becomes_a_volume_and_is_bound() -> Result<()> {
    let world = World::own_managed().await?;
    grant(&world).await?;
    let operator = world.operator(operator_options()).await?;
    let driver = provisioning(&world, "p-bound", &soon()).await?;
    driver.class("Delete").await?;
    let claim = driver.ask_for("data").await?;
    let uid = claim.uid().unwrap_or_default();
    let bound = driver.bound("data").await?;
    let volume = driver.saved(&claim).await?;
    assert_eq!(bound.spec.and_then(|spec| spec.volume_name), volume.metadata.name);

    let made = driver.mock.volumes();
    let (handle, name) = made.first_key_value().unwrap();
    assert_eq!((made.len(), name.as_str()), (1, format!("pvc-{uid}").as_str()));
    let spec = serde_json::to_value(volume.spec.clone().unwrap()).unwrap();
    assert_eq!(spec["capacity"]["storage"], "1Gi");
    assert_eq!(spec["accessModes"], json!(["ReadWriteOnce"]));
    assert_eq!(spec["mountOptions"], json!(["noatime"]));
    assert_eq!(spec["persistentVolumeReclaimPolicy"], "Delete");
    assert_eq!(spec["storageClassName"], driver.short);
    assert_eq!(spec["volumeMode"], "Filesystem");
    assert_eq!(spec["claimRef"]["uid"], uid);
    assert_eq!(spec["claimRef"]["name"], "data");
    assert_eq!(spec["csi"]["driver"], driver.name);
    assert_eq!(spec["csi"]["volumeHandle"], **handle);
    assert_eq!(spec["csi"]["fsType"], "xfs");
    assert_eq!(spec["csi"]["volumeAttributes"]["mock/name"], format!("pvc-{uid}"));
    let identity = spec["csi"]["volumeAttributes"]["storage.kubernetes.io/csiProvisionerIdentity"].as_str();
    assert!(identity.is_some_and(|identity| identity.ends_with(&format!("-{}", driver.name))));
    assert!(spec.get("nodeAffinity").is_none());
    assert!(volume.finalizers().iter().any(|finalizer| finalizer == FINALIZER));
    let annotations = volume.annotations();
    assert_eq!(annotations["pv.kubernetes.io/provisioned-by"], driver.name);
    assert_eq!(annotations["volume.kubernetes.io/provisioner-deletion-secret-name"], "");
    assert_eq!(
        annotations["volume.kubernetes.io/provisioner-deletion-secret-namespace"],
        ""
    );

    // The marker was there during the call, and is not left.
    wait_for(driver.claims(), "data", "without the marker", LIMIT, |claim| {
        !carries_marker(claim)
    })
    .await?;
    let calls = driver.mock.calls_of(Method::CreateVolume);
    assert_eq!(calls.len(), 1);
    let asked = calls[0].creation.clone().unwrap();
    assert_eq!((asked.required_bytes, asked.limit_bytes), (1 << 30, 0));
    assert_eq!(asked.parameters, [("tier".to_owned(), "gold".to_owned())].into());
    assert_eq!(asked.capabilities.len(), 1);
    assert_eq!(asked.capabilities[0].access_mode, "SINGLE_NODE_MULTI_WRITER");
    assert_eq!(asked.capabilities[0].fs_type.as_deref(), Some("xfs"));
    event(
        &world,
        "PersistentVolumeClaim",
        "data",
        "ProvisioningSucceeded",
        &format!("pvc-{uid}"),
    )
    .await?;

    let metrics = operator.metrics().await?;
    let succeeded = format!(
        "csi_attacher_operation_e2e_seconds_count{{driver_name=\"{}\",operation=\"provision\",outcome=\"succeeded\"}} 1",
        driver.name
    );
    assert!(metrics.contains(&succeeded), "{succeeded} is not in {metrics}");
    Ok(())
}

#[tokio::test]
async fn after_a_crash_between_the_call_and_the_save_there_is_one_volume() -> Result<()> {
    let world = World::own_managed().await?;
    grant(&world).await?;
    let mut operator = world.operator(operator_options()).await?;
    let late = json!({ "initial": "10m", "max": "10m" });
    let driver = provisioning(&world, "p-crash", &late).await?;
    driver.class("Delete").await?;
    // The work is done when nobody waits for its answer any more.
    driver
        .mock
        .script(Rule::on(Method::CreateVolume).times(1).late_success());
    let claim = driver.ask_for("data").await?;
    event(&world, "PersistentVolumeClaim", "data", "ProvisioningUncertain", "").await?;
    let marked = wait_for(driver.claims(), "data", "marked", LIMIT, carries_marker).await?;
    assert!(carries_marker(marked.as_ref()));
    driver.mock.wait_for_call(|call| call.outcome == CallResult::Late).await;
    operator.signal("KILL")?;
    operator.wait_ended(LIMIT).await?;
    let before = driver.mock.volumes();
    assert_eq!(before.len(), 1);

    let _next = world.operator(operator_options()).await?;
    driver.bound("data").await?;
    let volume = driver.saved(&claim).await?;
    let handle = volume.spec.and_then(|spec| spec.csi).map(|csi| csi.volume_handle);
    assert_eq!(driver.mock.volumes(), before, "no other volume was made");
    assert_eq!(handle.as_ref(), before.keys().next());
    let calls = driver.mock.calls_of(Method::CreateVolume);
    assert!(calls.len() >= 2 && calls.iter().all(|call| call.volume == calls[0].volume));
    wait_for(driver.claims(), "data", "without the marker", LIMIT, |claim| {
        !carries_marker(claim)
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn a_claim_that_is_deleted_during_the_call_leaves_no_volume_that_nothing_names() -> Result<()> {
    let world = World::own_managed().await?;
    grant(&world).await?;
    let _operator = world.operator(operator_options()).await?;
    let driver = provisioning(&world, "p-gone", &soon()).await?;
    driver.class("Delete").await?;
    let slow = Rule::on(Method::CreateVolume).times(1).delay(Duration::from_secs(3));
    driver.mock.script(slow);
    let claim = driver.ask_for("data").await?;
    driver
        .mock
        .wait_for_call(|call| call.method == Method::CreateVolume)
        .await;
    let deleted = driver.claims().delete("data", &DeleteParams::default()).await;
    deleted.map_err(|error| Error::Other(error.to_string()))?;

    // Deletions are held: the PersistentVolume is the record of the volume.
    let volume = driver.saved(&claim).await?;
    wait_for(driver.claims(), "data", "gone", LIMIT, |claim| claim.is_none()).await?;
    let handle = volume.spec.and_then(|spec| spec.csi).map(|csi| csi.volume_handle);
    let made = driver.mock.volumes();
    assert_eq!((made.len(), handle.as_ref()), (1, made.keys().next()));
    let name = volume.metadata.name.unwrap_or_default();
    wait_for(driver.volumes(), &name, "released", LIMIT, |volume| {
        let status = volume.and_then(|volume| volume.status.as_ref());
        status.and_then(|status| status.phase.as_deref()) == Some("Released")
    })
    .await?;
    assert!(driver.mock.calls_of(Method::DeleteVolume).is_empty());
    Ok(())
}

#[tokio::test]
async fn a_claim_waits_for_its_secret_and_says_so() -> Result<()> {
    let world = World::own_managed().await?;
    grant(&world).await?;
    let _operator = world.operator(operator_options()).await?;
    let driver = world.unconfigured_driver("p-secret", |builder| builder).await?;
    let late = json!({ "initial": "10m", "max": "10m" });
    let mut asked = settings(&driver, &late);
    asked["provisioning"]["secrets"] = json!([{ "namespace": "default", "names": ["provisioner"] }]);
    driver.configure(&asked).await?;
    driver.wait("ProvisioningReady", "True", Some("Running")).await?;
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": driver.short },
        "provisioner": driver.name,
        "parameters": {
            "csi.storage.k8s.io/provisioner-secret-name": "provisioner",
            "csi.storage.k8s.io/provisioner-secret-namespace": "${pvc.namespace}",
        },
    });
    world.cluster.apply_yaml(&class.to_string()).await?;
    crate::support::operator::grant_secret(&world.cluster, "default", "provisioner").await?;
    driver.ask_for("data").await?;
    event(
        &world,
        "PersistentVolumeClaim",
        "data",
        "ProvisioningFailed",
        "not found in namespace",
    )
    .await?;
    assert!(driver.mock.calls_of(Method::CreateVolume).is_empty());
    world
        .fixtures
        .secret("default", "provisioner", &[("password", "s3cr3t-word")])
        .await?;
    driver.bound("data").await?;
    let calls = driver.mock.calls_of(Method::CreateVolume);
    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0].secret_keys, ["password"]);
    Ok(())
}
