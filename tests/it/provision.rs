//! The second role, as far as the suite (`provision-*`) does not ask for it: what wakes a claim before its pause is over, what outlives a
//! Lease, and what is shown.

mod deletion;
mod distributed;
mod odd;
mod shown;
mod takeover;

use std::time::Duration;

use csi_mock_driver::{CallRecord, CallResult, Method, Rule, ScriptAction, ScriptedFailure};
use k8s_openapi::api::core::v1::{Event, PersistentVolume, PersistentVolumeClaim, Secret, TypedLocalObjectReference};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{ListParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tonic::Code;

use csi_attacher_model::api::AttacherConfig;
use csi_attacher_model::api::names::provisioner_lease_name;

use crate::events::event;
use crate::rig::{Driver, LIMIT, World, held, merge, operator_options, part};
pub use crate::support::operator::grant_provisioning as grant;
use crate::support::operator::{IDENTITY, grant_secret, release_provisioner_lease};
use crate::support::wait::wait_for;
use crate::support::{Error, Result};

const NAMESPACE: &str = "default";
const MARKER: &str = "attacher.csi.dev/provisioning";

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

    /// Works with these settings and Secret "login" of this namespace, which it may read and need not exist yet. The class, called after the
    /// driver, finds that Secret in `found_in`.
    async fn logs_in_with(&self, mut settings: Value, namespace: &str, found_in: &str) -> Result<()> {
        settings["provisioning"]["secrets"] = json!([{ "namespace": namespace, "names": ["login"] }]);
        self.configure(&settings).await?;
        self.wait("ProvisioningReady", "True", Some("Running")).await?;
        grant_secret(&self.world.cluster, namespace, "login").await?;
        let class = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": self.short },
            "provisioner": self.name,
            "parameters": {
                "csi.storage.k8s.io/provisioner-secret-name": "login",
                "csi.storage.k8s.io/provisioner-secret-namespace": found_in,
            },
        });
        self.world.cluster.apply_yaml(&class.to_string()).await.map(drop)
    }

    /// Makes a claim of that class.
    pub async fn ask_for(&self, name: &str) -> Result<PersistentVolumeClaim> {
        let made = self.claims().create(&PostParams::default(), &self.wanted(name)).await;
        made.map_err(Error::from)
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

    /// Waits for so many CreateVolume calls.
    async fn creations(&self, count: usize) -> Result<()> {
        let created = |call: &CallRecord| call.method == Method::CreateVolume;
        self.calls("CreateVolume", count, created).await.map(drop)
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

/// In a cluster with kube-controller-manager. Each part has a driver of its own, which is served until its end.
#[tokio::test]
async fn with_operators_of_their_own() -> Result<()> {
    let world = &World::own_managed().await?;
    grant(&world.cluster).await?;
    part("csi-provisioner", takeover::follow_each_other(world)).await?;
    part("the value of a Secret", the_value_of_a_secret(world)).await?;
    part("why claims wait", shown::why_claims_wait(world)).await
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
    Ok(events?.items)
}

pub fn carries_marker(claim: Option<&PersistentVolumeClaim>) -> bool {
    claim.is_some_and(|claim| {
        claim.finalizers().iter().any(|finalizer| finalizer == MARKER) || claim.annotations().contains_key(MARKER)
    })
}

/// The only place for calls is taken by one that hangs.
#[tokio::test]
async fn what_needs_no_call_waits_for_none() -> Result<()> {
    let world = World::provisioning().await?;
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
    driver.creations(1).await?;
    let second = driver.ask_for("second").await?;
    let name = format!("pvc-{}", second.uid().unwrap_or_default());
    driver.bound("first").await?;
    driver.saved(&first).await?;
    driver.call(Method::CreateVolume, &name, |_| true).await?;
    driver.without_marker("first").await?;
    let calls = driver.mock.calls_of(Method::CreateVolume);
    let second = calls.iter().find(|call| call.volume.as_deref() == Some(&*name));
    assert_eq!(second.map(|call| call.outcome), Some(CallResult::Running));
    Ok(())
}

#[tokio::test]
async fn a_claim_with_a_data_source_is_refused_and_says_so() -> Result<()> {
    let world = World::provisioning().await?;
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
    made?;
    let part = "spec.dataSource of kind PersistentVolumeClaim is not supported by this version";
    let told = event(&world, "PersistentVolumeClaim", "copy", "ProvisioningFailed", part).await?;
    let message = told.message.unwrap_or_default();
    assert!(message.contains("next retry in "), "{message}");

    // It is retried, and the Event is written no more often than twice a minute all the same.
    let retries = format!(
        "workqueue_retries_total{{driver_name=\"{}\",name=\"claims\"}} ",
        driver.name
    );
    let are_several = |status: u16, text: &str| {
        let mut lines = text.lines();
        let retries = lines.find_map(|line| line.strip_prefix(&retries)?.parse::<f64>().ok());
        status == 200 && retries.is_some_and(|retries| retries >= 3.0)
    };
    let operator = world.shared_operator();
    operator.wait_for_answer("/metrics", are_several).await?;
    let events = events(&world).await?;
    let is_about = |event: &&Event| event.involved_object.name.as_deref() == Some("copy");
    let told = events.iter().filter(is_about);
    // kube-controller-manager has words of its own for a class that it has not heard of yet.
    let own = told.filter(|event| {
        event.reason.as_deref() == Some("ProvisioningFailed")
            && event.message.as_deref().is_some_and(|message| message.contains(part))
    });
    assert_eq!(own.count(), 1);
    assert!(driver.mock.calls_of(Method::CreateVolume).is_empty());
    let current = driver.claims().get("copy").await;
    let current = current?;
    assert!(!carries_marker(Some(&current)));
    Ok(())
}

/// It is missing first, then its contents are wrong, and nothing but a change of it wakes the claim.
#[tokio::test]
async fn a_claim_is_tried_again_when_its_secret_comes_and_when_it_changes() -> Result<()> {
    let world = World::provisioning().await?;
    let driver = world.unconfigured_driver("p-login", |builder| builder).await?;
    let late = json!({ "initial": "10m", "max": "10m" });
    driver
        .logs_in_with(settings(&driver, &late), NAMESPACE, NAMESPACE)
        .await?;
    for code in [Code::Unauthenticated, Code::InvalidArgument] {
        driver
            .mock
            .script(Rule::on(Method::CreateVolume).times(1).fail(code, "no such login"));
    }
    driver.ask_for("login-data").await?;
    let part = "not found in namespace";
    event(
        &world,
        "PersistentVolumeClaim",
        "login-data",
        "ProvisioningFailed",
        part,
    )
    .await?;
    assert!(driver.mock.calls_of(Method::CreateVolume).is_empty());
    let wrong = [("password", "wrong")];
    world.fixtures.secret(NAMESPACE, "login", &wrong).await?;
    driver.creations(1).await?;
    let secrets = Api::<Secret>::namespaced(world.client.clone(), NAMESPACE);
    for (value, count) in [("better", 2), ("right", 3)] {
        let change = json!({ "stringData": { "password": value } });
        merge(&secrets, "login", &change).await?;
        driver.creations(count).await?;
    }
    driver.bound("login-data").await?;
    assert_eq!(driver.mock.calls_of(Method::CreateVolume).len(), 3);
    Ok(())
}

/// Its Lease goes meanwhile, and with it the engine; what the open call was made with stays known.
#[tokio::test]
async fn a_driver_that_was_away_for_long_gets_the_same_call_though_the_class_changed() -> Result<()> {
    let world = World::provisioning().await?;
    let late = json!({ "initial": "10m", "max": "10m" });
    let driver = provisioning(&world, "p-away", &late).await?;
    driver.class("Delete").await?;
    driver.mock.script(
        Rule::on(Method::CreateVolume)
            .times(1)
            .fail(Code::Unavailable, "not now"),
    );
    let claim = driver.ask_for("away-data").await?;
    event(
        &world,
        "PersistentVolumeClaim",
        "away-data",
        "ProvisioningUncertain",
        "",
    )
    .await?;
    driver.mock.stop().await;
    held(world.leases(), &provisioner_lease_name(&driver.name), None).await?;
    let options = json!({ "mountOptions": ["noatime", "ro"] });
    let classes = Api::<StorageClass>::all(world.client.clone());
    merge(&classes, &driver.short, &options).await?;
    driver.start_again().await?;
    driver.bound("away-data").await?;
    driver.saved(&claim).await?;
    let calls = driver.mock.calls_of(Method::CreateVolume);
    let flags = calls.iter().filter_map(|call| call.creation.as_ref());
    let flags: Vec<usize> = flags.map(|asked| asked.capabilities[0].mount_flags).collect();
    assert_eq!(flags, [1, 1], "the second call has what the first one had");
    driver.without_marker("away-data").await
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

async fn the_value_of_a_secret(world: &World) -> Result<()> {
    const VALUE: &str = "s3cr3t-word-of-this-test";
    let operator = world.operator(operator_options().argument("--log-level=trace")).await?;
    let driver = world.unconfigured_driver("p-quiet", |builder| builder).await?;
    driver
        .logs_in_with(settings(&driver, &soon()), NAMESPACE, NAMESPACE)
        .await?;
    world
        .fixtures
        .secret(NAMESPACE, "login", &[("password", VALUE)])
        .await?;
    driver.mock.script(echoing());
    let claim = driver.ask_for("quiet-data").await?;
    let bound = driver.bound("quiet-data").await?;
    let volume = driver.saved(&claim).await?;
    let calls = driver.mock.calls_of(Method::CreateVolume);
    assert!(calls.len() >= 3 && calls.iter().all(|call| call.secret_keys == ["password"]));

    event(
        world,
        "PersistentVolumeClaim",
        "quiet-data",
        "ProvisioningFailed",
        "***stripped***",
    )
    .await?;
    let events = events(world).await?;
    let configs = Api::<AttacherConfig>::all(world.client.clone());
    let config = configs.get(&driver.short).await;
    let config = config?;
    let json = |value: serde_json::Result<String>| value.map_err(Error::from);
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
    world.fixtures.delete::<AttacherConfig>(&driver.short).await
}
