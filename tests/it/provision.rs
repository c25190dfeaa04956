//! The second role: PersistentVolumeClaims become volumes and PersistentVolumes, whatever happens meanwhile.

mod deletion;
mod shown;
mod takeover;

use std::collections::BTreeSet;
use std::time::Duration;

use csi_mock_driver::{CallResult, Method, Rule, ScriptAction, ScriptedFailure};
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicyBinding;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, PersistentVolume, PersistentVolumeClaim, Secret, TypedLocalObjectReference};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tonic::Code;

use csi_attacher_model::api::names::provisioner_lease_name;
use csi_attacher_model::api::{AttacherConfig, AttacherConfigStatus};

use crate::events::event;
use crate::insight::told;
use crate::rig::{Driver, LIMIT, World, operator_options, within};
pub use crate::support::operator::grant_provisioning as grant;
use crate::support::operator::{IDENTITY, release_provisioner_lease};
use crate::support::wait::wait_for;
use crate::support::{Error, Operator, OperatorOptions, Result};

const NAMESPACE: &str = "default";
const MARKER: &str = "attacher.csi.dev/provisioning";
const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";

fn settings(driver: &Driver<'_>, backoff: &Value) -> Value {
    json!({
        "driverName": driver.name,
        "provisioning": { "backoff": backoff, "defaultFsType": "ext4", "timeouts": { "create": "10s" } },
    })
}

pub fn soon() -> Value {
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

    /// Makes a claim of that class.
    pub async fn ask_for(&self, name: &str) -> Result<PersistentVolumeClaim> {
        let made = self.claims().create(&PostParams::default(), &self.wanted(name)).await;
        made.map_err(|error| Error::Other(error.to_string()))
    }

    /// A claim of that class.
    pub fn wanted(&self, name: &str) -> PersistentVolumeClaim {
        serde_json::from_value(json!({
            "metadata": { "name": name },
            "spec": {
                "storageClassName": self.short, "accessModes": ["ReadWriteOnce"],
                "resources": { "requests": { "storage": "1Gi" } },
            },
        }))
        .unwrap()
    }

    pub async fn without_marker(&self, name: &str) -> Result<()> {
        let is_off = |claim: Option<&PersistentVolumeClaim>| !carries_marker(claim);
        wait_for(self.claims(), name, "without the marker", LIMIT, is_off)
            .await
            .map(drop)
    }

    pub fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.world.client.clone(), NAMESPACE)
    }

    pub fn volumes(&self) -> Api<PersistentVolume> {
        Api::all(self.world.client.clone())
    }

    pub async fn bound(&self, name: &str) -> Result<PersistentVolumeClaim> {
        let is_bound = |claim: Option<&PersistentVolumeClaim>| {
            let status = claim.and_then(|claim| claim.status.as_ref());
            status.and_then(|status| status.phase.as_deref()) == Some("Bound")
        };
        let bound = wait_for(self.claims(), name, "bound", LIMIT, is_bound).await?;
        bound.ok_or_else(|| Error::Other("it is there".to_owned()))
    }

    pub async fn saved(&self, claim: &PersistentVolumeClaim) -> Result<PersistentVolume> {
        let name = format!("pvc-{}", claim.uid().unwrap_or_default());
        let saved = wait_for(self.volumes(), &name, "saved", LIMIT, |volume| volume.is_some()).await?;
        saved.ok_or_else(|| Error::Other("it is there".to_owned()))
    }
}

/// A cluster of its own with kube-controller-manager, and an operator that may provision.
pub async fn serving(options: OperatorOptions) -> Result<(World, Operator)> {
    let world = World::own_managed().await?;
    grant(&world.cluster).await?;
    let operator = world.operator(options).await?;
    Ok((world, operator))
}

/// A driver that provisions, for which an operator works.
pub async fn provisioning<'w>(world: &'w World, short: &str, backoff: &Value) -> Result<Driver<'w>> {
    let driver = world.unconfigured_driver(short, |builder| builder).await?;
    release_provisioner_lease(&world.client, IDENTITY, &driver.name).await?;
    driver.configure(&settings(&driver, backoff)).await?;
    driver.wait("ProvisioningReady", "True", Some("Running")).await?;
    Ok(driver)
}

async fn events(world: &World) -> Result<Vec<Event>> {
    let events = Api::<Event>::namespaced(world.client.clone(), NAMESPACE);
    let events = events.list(&ListParams::default()).await;
    Ok(events.map_err(|error| Error::Other(error.to_string()))?.items)
}

/// What the sidecar reads when it deletes the volume.
fn assert_annotated(volume: &PersistentVolume, driver: &str) {
    let annotations = volume.annotations();
    assert_eq!(annotations["pv.kubernetes.io/provisioned-by"], driver);
    assert_eq!(annotations["volume.kubernetes.io/provisioner-deletion-secret-name"], "");
    assert_eq!(
        annotations["volume.kubernetes.io/provisioner-deletion-secret-namespace"],
        ""
    );
}

pub fn carries_marker(claim: Option<&PersistentVolumeClaim>) -> bool {
    claim.is_some_and(|claim| {
        claim.finalizers().iter().any(|finalizer| finalizer == MARKER) || claim.annotations().contains_key(MARKER)
    })
}

#[tokio::test]
async fn a_claim_becomes_a_volume_and_is_bound() -> Result<()> {
    let (world, operator) = serving(operator_options()).await?;
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
    assert_annotated(&volume, &driver.name);

    // The marker was there during the call, and is not left.
    driver.without_marker("data").await?;
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
    let (world, mut operator) = serving(operator_options()).await?;
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
    driver.without_marker("data").await?;
    Ok(())
}

#[tokio::test]
async fn a_claim_that_is_deleted_during_the_call_leaves_no_volume_that_nothing_names() -> Result<()> {
    let (world, _operator) = serving(operator_options()).await?;
    let driver = provisioning(&world, "p-gone", &soon()).await?;
    let mut held = settings(&driver, &soon());
    held["provisioning"]["deletion"] = json!("Hold");
    driver.configure(&held).await?;
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
    event(
        &world,
        "PersistentVolume",
        &name,
        "VolumeDelete",
        "deletion of the AttacherConfig is Hold",
    )
    .await?;
    assert!(driver.mock.calls_of(Method::DeleteVolume).is_empty());
    let shown = ["PersistentVolumes whose volume is kept: 1", &name];
    told(&driver, "DeletionHealthy", "True", "VolumesHeld", &shown).await?;

    driver.configure(&settings(&driver, &soon())).await?;
    wait_for(driver.volumes(), &name, "gone", LIMIT, |volume| volume.is_none()).await?;
    assert!(driver.mock.volumes().is_empty());
    Ok(())
}

#[tokio::test]
async fn a_claim_waits_for_its_secret_and_says_so() -> Result<()> {
    let (world, _operator) = serving(operator_options()).await?;
    let driver = world.unconfigured_driver("p-secret", |builder| builder).await?;
    let late = json!({ "initial": "10m", "max": "10m" });
    let mut asked = settings(&driver, &late);
    // That in the namespace of each claim.
    asked["provisioning"]["secrets"] = json!([{ "namespace": "*", "names": ["provisioner"] }]);
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

#[tokio::test]
async fn many_claims_at_a_time_get_a_volume_each() -> Result<()> {
    const CLAIMS: usize = 30;
    let (world, _operator) = serving(operator_options()).await?;
    let driver = provisioning(&world, "p-many", &soon()).await?;
    driver.class("Delete").await?;
    // Every call takes its time, and some fail on the way.
    driver.mock.script(
        Rule::on(Method::CreateVolume)
            .times(3)
            .fail(Code::ResourceExhausted, "the pool is full"),
    );
    let lost = Rule::on(Method::CreateVolume).times(2);
    driver.mock.script(lost.action(ScriptAction::DropConnectionAfterWork));
    let names: Vec<String> = (0..CLAIMS).map(|number| format!("data-{number}")).collect();
    let mut claims = Vec::new();
    for name in &names {
        claims.push(driver.ask_for(name).await?);
    }
    let mut handles = BTreeSet::new();
    for (name, claim) in names.iter().zip(&claims) {
        driver.bound(name).await?;
        let volume = driver.saved(claim).await?;
        handles.extend(volume.spec.and_then(|spec| spec.csi).map(|csi| csi.volume_handle));
    }
    let made = driver.mock.volumes();
    assert_eq!(made.len(), CLAIMS, "one volume for each claim: {made:?}");
    assert_eq!(made.into_keys().collect::<BTreeSet<_>>(), handles);
    for name in &names {
        driver.without_marker(name).await?;
    }
    let calls = driver.mock.calls_of(Method::CreateVolume).len();
    assert!(calls >= CLAIMS + 5, "{calls} calls");
    Ok(())
}

/// The only place for calls is taken by one that hangs.
#[tokio::test]
async fn what_needs_no_call_waits_for_none() -> Result<()> {
    let (world, _operator) = serving(operator_options()).await?;
    let driver = world.unconfigured_driver("p-slow", |builder| builder).await?;
    let mut asked = settings(&driver, &soon());
    asked["provisioning"]["timeouts"] = json!({ "create": "5m" });
    asked["provisioning"]["concurrency"] = json!({ "create": 1, "perClass": 1 });
    driver.configure(&asked).await?;
    driver.wait("ProvisioningReady", "True", Some("Running")).await?;
    driver.class("Delete").await?;
    let quick = Rule::on(Method::CreateVolume).times(1).delay(Duration::from_secs(1));
    driver.mock.script(quick);
    driver
        .mock
        .script(Rule::on(Method::CreateVolume).delay(Duration::from_mins(4)));
    let first = driver.ask_for("first").await?;
    driver
        .mock
        .wait_for_call(|call| call.method == Method::CreateVolume)
        .await;
    let second = driver.ask_for("second").await?;
    let name = format!("pvc-{}", second.uid().unwrap_or_default());
    driver.bound("first").await?;
    driver.saved(&first).await?;
    let hangs = name.clone();
    driver
        .mock
        .wait_for_call(move |call| call.volume.as_deref() == Some(&*hangs))
        .await;
    driver.without_marker("first").await?;
    let calls = driver.mock.calls_of(Method::CreateVolume);
    let second = calls.iter().find(|call| call.volume.as_deref() == Some(&*name));
    assert_eq!(second.map(|call| call.outcome), Some(CallResult::Running));
    Ok(())
}

#[tokio::test]
async fn a_claim_waits_for_its_consumer() -> Result<()> {
    let (world, _operator) = serving(operator_options()).await?;
    let driver = provisioning(&world, "p-delayed", &soon()).await?;
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": driver.short },
        "provisioner": driver.name, "reclaimPolicy": "Retain", "volumeBindingMode": "WaitForFirstConsumer",
        "allowVolumeExpansion": true,
    });
    world.cluster.apply_yaml(&class.to_string()).await?;
    let claim = driver.ask_for("data").await?;
    event(&world, "PersistentVolumeClaim", "data", "WaitForFirstConsumer", "").await?;
    assert!(driver.mock.calls_of(Method::CreateVolume).is_empty());
    let current = driver.claims().get("data").await;
    let current = current.map_err(|error| Error::Other(error.to_string()))?;
    assert!(!carries_marker(Some(&current)));

    // As kube-scheduler does.
    let selected = json!({ "metadata": { "annotations": { "volume.kubernetes.io/selected-node": driver.node() } } });
    let patched = driver
        .claims()
        .patch("data", &PatchParams::default(), &Patch::Merge(&selected))
        .await;
    patched.map_err(|error| Error::Other(error.to_string()))?;
    driver.bound("data").await?;
    let volume = driver.saved(&claim).await?;
    // It is deleted with nothing behind it: there is nothing to wait for.
    assert!(!volume.finalizers().iter().any(|finalizer| finalizer == FINALIZER));
    assert_eq!(driver.mock.calls_of(Method::CreateVolume).len(), 1);
    Ok(())
}

#[tokio::test]
async fn a_claim_with_a_data_source_is_refused_and_says_so() -> Result<()> {
    let (world, _operator) = serving(operator_options()).await?;
    let driver = provisioning(&world, "p-source", &soon()).await?;
    driver.class("Delete").await?;
    let mut wanted = driver.wanted("copy");
    let spec = wanted.spec.get_or_insert_default();
    spec.data_source = Some(TypedLocalObjectReference {
        kind: "PersistentVolumeClaim".to_owned(),
        name: "data".to_owned(),
        api_group: None,
    });
    let made = driver.claims().create(&PostParams::default(), &wanted).await;
    made.map_err(|error| Error::Other(error.to_string()))?;
    let part = "spec.dataSource of kind PersistentVolumeClaim is not supported by this version";
    let told = event(&world, "PersistentVolumeClaim", "copy", "ProvisioningFailed", part).await?;
    let message = told.message.unwrap_or_default();
    assert!(message.contains("next retry in "), "{message}");

    // It is retried, and the Event is written no more often than twice a minute all the same.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let events = events(&world).await?;
    let is_about = |event: &&Event| event.involved_object.name.as_deref() == Some("copy");
    let told = events.iter().filter(is_about);
    let own = told.filter(|event| event.reason.as_deref() == Some("ProvisioningFailed"));
    assert_eq!(own.count(), 1);
    assert!(driver.mock.calls_of(Method::CreateVolume).is_empty());
    let current = driver.claims().get("copy").await;
    let current = current.map_err(|error| Error::Other(error.to_string()))?;
    assert!(!carries_marker(Some(&current)));
    Ok(())
}

/// Its contents are wrong, and nothing but a change of them wakes the claim.
#[tokio::test]
async fn a_claim_that_was_refused_is_tried_again_when_its_secret_changes() -> Result<()> {
    let (world, _operator) = serving(operator_options()).await?;
    let driver = world.unconfigured_driver("p-login", |builder| builder).await?;
    let late = json!({ "initial": "10m", "max": "10m" });
    let mut asked = settings(&driver, &late);
    asked["provisioning"]["secrets"] = json!([{ "namespace": "default", "names": ["provisioner"] }]);
    driver.configure(&asked).await?;
    driver.wait("ProvisioningReady", "True", Some("Running")).await?;
    crate::support::operator::grant_secret(&world.cluster, "default", "provisioner").await?;
    world
        .fixtures
        .secret(NAMESPACE, "provisioner", &[("password", "wrong")])
        .await?;
    for code in [Code::Unauthenticated, Code::InvalidArgument] {
        driver
            .mock
            .script(Rule::on(Method::CreateVolume).times(1).fail(code, "no such login"));
    }
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": driver.short },
        "provisioner": driver.name,
        "parameters": {
            "csi.storage.k8s.io/provisioner-secret-name": "provisioner",
            "csi.storage.k8s.io/provisioner-secret-namespace": "default",
        },
    });
    world.cluster.apply_yaml(&class.to_string()).await?;
    driver.ask_for("data").await?;
    let calls = |count: usize| {
        let mock = &driver.mock;
        async move {
            while mock.calls_of(Method::CreateVolume).len() < count {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    };
    within("the first call", calls(1)).await?;
    let secrets = Api::<Secret>::namespaced(world.client.clone(), NAMESPACE);
    for (value, count) in [("better", 2), ("right", 3)] {
        let change = Patch::Merge(json!({ "stringData": { "password": value } }));
        let changed = secrets.patch("provisioner", &PatchParams::default(), &change).await;
        changed.map_err(|error| Error::Other(error.to_string()))?;
        within("a call with the changed Secret", calls(count)).await?;
    }
    driver.bound("data").await?;
    assert_eq!(driver.mock.calls_of(Method::CreateVolume).len(), 3);
    Ok(())
}

/// Its Lease goes meanwhile, and with it the engine; what the open call was made with stays known.
#[tokio::test]
async fn a_driver_that_was_away_for_long_gets_the_same_call_though_the_class_changed() -> Result<()> {
    let (world, _operator) = serving(operator_options()).await?;
    let late = json!({ "initial": "10m", "max": "10m" });
    let driver = provisioning(&world, "p-away", &late).await?;
    driver.class("Delete").await?;
    driver.mock.script(
        Rule::on(Method::CreateVolume)
            .times(1)
            .fail(Code::Unavailable, "not now"),
    );
    let claim = driver.ask_for("data").await?;
    event(&world, "PersistentVolumeClaim", "data", "ProvisioningUncertain", "").await?;
    driver.mock.stop().await;
    let leases = Api::<Lease>::namespaced(world.client.clone(), IDENTITY);
    wait_for(
        leases,
        &provisioner_lease_name(&driver.name),
        "released",
        LIMIT,
        |lease| {
            let spec = lease.and_then(|lease| lease.spec.as_ref());
            let holder = spec.and_then(|spec| spec.holder_identity.as_deref());
            holder.unwrap_or_default().is_empty()
        },
    )
    .await?;
    let options = json!({ "mountOptions": ["noatime", "ro"] });
    let classes = Api::<StorageClass>::all(world.client.clone());
    let changed = classes
        .patch(&driver.short, &PatchParams::default(), &Patch::Merge(&options))
        .await;
    changed.map_err(|error| Error::Other(error.to_string()))?;
    let again = driver.mock.start_again().await;
    again.map_err(|error| Error::Other(error.to_string()))?;
    driver.bound("data").await?;
    driver.saved(&claim).await?;
    let calls = driver.mock.calls_of(Method::CreateVolume);
    let flags = calls.iter().filter_map(|call| call.creation.as_ref());
    let flags: Vec<usize> = flags.map(|asked| asked.capabilities[0].mount_flags).collect();
    assert_eq!(flags, [1, 1], "the second call has what the first one had");
    driver.without_marker("data").await
}

/// The API server does not take the PersistentVolume, and the operator ends before it does.
#[tokio::test]
async fn a_volume_that_was_not_saved_is_saved_by_the_next_process() -> Result<()> {
    let (world, mut operator) = serving(operator_options()).await?;
    let driver = provisioning(&world, "p-unsaved", &soon()).await?;
    driver.class("Delete").await?;
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": { "name": "no-volumes" },
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": { "resourceRules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["persistentvolumes"],
            }] },
            "validations": [{ "expression": "false", "message": "no more volumes today" }],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": { "name": "no-volumes" },
        "spec": { "policyName": "no-volumes", "validationActions": ["Deny"] },
    });
    world.cluster.apply_yaml(&policy.to_string()).await?;
    world.cluster.apply_yaml(&binding.to_string()).await?;
    within("the policy is in use", is_refused(&driver, true)).await?;

    let claim = driver.ask_for("data").await?;
    let part = "the PersistentVolume cannot be saved, and its volume is kept";
    let told = event(&world, "PersistentVolumeClaim", "data", "ProvisioningFailed", part).await?;
    let message = told.message.unwrap_or_default();
    assert!(
        message.contains("no more volumes today") && message.contains("next retry in 30 s"),
        "{message}"
    );
    let before = driver.mock.volumes();
    assert_eq!(before.len(), 1);
    operator.signal("KILL")?;
    operator.wait_ended(LIMIT).await?;

    let bindings = Api::<ValidatingAdmissionPolicyBinding>::all(world.client.clone());
    let deleted = bindings.delete("no-volumes", &DeleteParams::default()).await;
    deleted.map_err(|error| Error::Other(error.to_string()))?;
    within("the policy is gone", is_refused(&driver, false)).await?;
    let _next = world.operator(operator_options()).await?;
    driver.bound("data").await?;
    let volume = driver.saved(&claim).await?;
    let handle = volume.spec.and_then(|spec| spec.csi).map(|csi| csi.volume_handle);
    assert_eq!(driver.mock.volumes(), before, "no other volume was made");
    assert_eq!(handle.as_ref(), before.keys().next());
    driver.without_marker("data").await
}

/// Resolves when the API server refuses PersistentVolumes, or does not any more: a policy takes a moment, and so does its end.
async fn is_refused(driver: &Driver<'_>, refused: bool) {
    let volume: PersistentVolume = serde_json::from_value(json!({
        "metadata": { "name": "probe" },
        "spec": {
            "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"],
            "csi": { "driver": "probe.csi.test", "volumeHandle": "probe" },
        },
    }))
    .unwrap();
    let asked = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    while driver.volumes().create(&asked, &volume).await.is_err() != refused {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Two calls fail, and the errors have the values of the Secret.
fn echoing() -> Rule {
    let echo = ScriptedFailure {
        code: Code::Internal,
        message: "cannot log in with".to_owned(),
        echo_secrets: true,
        pad_bytes: 0,
    };
    Rule::on(Method::CreateVolume).times(2).action(ScriptAction::Fail(echo))
}

#[tokio::test]
async fn the_value_of_a_secret_comes_out_nowhere() -> Result<()> {
    const VALUE: &str = "s3cr3t-word-of-this-test";
    let (world, operator) = serving(operator_options().argument("--log-level=trace")).await?;
    let driver = world.unconfigured_driver("p-quiet", |builder| builder).await?;
    let mut asked = settings(&driver, &soon());
    asked["provisioning"]["secrets"] = json!([{ "namespace": "default", "names": ["provisioner"] }]);
    driver.configure(&asked).await?;
    driver.wait("ProvisioningReady", "True", Some("Running")).await?;
    crate::support::operator::grant_secret(&world.cluster, "default", "provisioner").await?;
    world
        .fixtures
        .secret("default", "provisioner", &[("password", VALUE)])
        .await?;
    driver.mock.script(echoing());
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": driver.short },
        "provisioner": driver.name,
        "parameters": {
            "csi.storage.k8s.io/provisioner-secret-name": "provisioner",
            "csi.storage.k8s.io/provisioner-secret-namespace": "default",
        },
    });
    world.cluster.apply_yaml(&class.to_string()).await?;
    let claim = driver.ask_for("data").await?;
    let bound = driver.bound("data").await?;
    let volume = driver.saved(&claim).await?;
    let calls = driver.mock.calls_of(Method::CreateVolume);
    assert!(calls.len() >= 3 && calls.iter().all(|call| call.secret_keys == ["password"]));

    event(
        &world,
        "PersistentVolumeClaim",
        "data",
        "ProvisioningFailed",
        "***stripped***",
    )
    .await?;
    let events = events(&world).await?;
    let configs = Api::<AttacherConfig>::all(world.client.clone());
    let config = configs.get(&driver.short).await;
    let config = config.map_err(|error| Error::Other(error.to_string()))?;
    let json = |value: serde_json::Result<String>| value.map_err(|error| Error::Other(error.to_string()));
    for (what, text) in [
        ("Events", json(serde_json::to_string(&events))?),
        ("claim", json(serde_json::to_string(&bound))?),
        ("PersistentVolume", json(serde_json::to_string(&volume))?),
        ("AttacherConfig", json(serde_json::to_string(&config))?),
        ("metrics", operator.metrics().await?),
        ("log", operator.log_text()),
    ] {
        assert!(!text.contains(VALUE), "the value is in {what}");
    }
    Ok(())
}

#[tokio::test]
async fn the_role_is_switched_off_and_on() -> Result<()> {
    let (world, operator) = serving(operator_options()).await?;
    let driver = provisioning(&world, "p-off", &soon()).await?;
    driver.class("Delete").await?;
    driver
        .mock
        .script(Rule::on(Method::CreateVolume).fail(Code::FailedPrecondition, "not today"));
    let claim = driver.ask_for("data").await?;
    event(
        &world,
        "PersistentVolumeClaim",
        "data",
        "ProvisioningFailed",
        "not today",
    )
    .await?;
    wait_for(driver.claims(), "data", "marked", LIMIT, carries_marker).await?;
    let counted = format!("csi_attacher_persistentvolumeclaims{{driver_name=\"{}\"", driver.name);
    let shows = |status: u16, text: &str| status == 200 && text.contains(&counted);
    operator.wait_for_answer("/metrics", shows).await?;

    // Disabled: nobody knows of a volume, so that the marker goes, and nothing is called any more.
    let mut disabled = settings(&driver, &soon());
    disabled["provisioning"]["mode"] = json!("Disabled");
    driver.configure(&disabled).await?;
    driver.without_marker("data").await?;
    driver.mock.clear_rules();
    let calls = driver.mock.calls_of(Method::CreateVolume).len();

    // Removed: attaching goes on, and nothing is shown of the role.
    driver.configure(&json!({ "driverName": driver.name })).await?;
    let configs = Api::<AttacherConfig>::all(world.client.clone());
    wait_for(
        configs,
        &driver.short,
        "no condition of provisioning",
        LIMIT,
        |config| {
            let status = config.and_then(|config| config.status.as_ref());
            let has_condition = |status: &AttacherConfigStatus| {
                let mut conditions = status.conditions.iter();
                conditions.any(|condition| condition.type_ == "ProvisioningReady")
            };
            status.is_some_and(|status| !has_condition(status))
        },
    )
    .await?;
    driver.wait("Ready", "True", Some("Running")).await?;
    let is_gone = |status: u16, text: &str| status == 200 && !text.contains(&counted);
    operator.wait_for_answer("/metrics", is_gone).await?;
    assert_eq!(driver.mock.calls_of(Method::CreateVolume).len(), calls);

    driver.configure(&settings(&driver, &soon())).await?;
    driver.bound("data").await?;
    driver.saved(&claim).await?;
    assert_eq!(driver.mock.volumes().len(), 1);
    Ok(())
}
