//! Provisioning for drivers with topology: what is asked for, what is waited for, and when the selected node is taken off.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use csi_mock_driver::{CallResult, CreationFacts, Method, Rule};
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::CSINode;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tonic::Code;

use crate::events::event;
use crate::provision::{carries_marker, serving, soon};
use crate::rig::{Driver, LIMIT, World, operator_options};
use crate::support::controlplane::ControlPlane;
use crate::support::operator::{IDENTITY, account, release_provisioner_lease};
use crate::support::wait::wait_for;
use crate::support::{Error, Operator, Result};

const ZONE: &str = "topology.example.com/zone";
const SELECTED: &str = "volume.kubernetes.io/selected-node";
const ZONES: [(&str, &str); 3] = [("n1", "a"), ("n2", "b"), ("n3", "c")];

/// Nothing but an event can bring about a second try.
fn never() -> Value {
    json!({ "initial": "1h", "max": "1h" })
}

#[allow(clippy::needless_pass_by_value, reason = "it is handed to `map_err`")]
fn failed(error: kube::Error) -> Error {
    Error::Other(error.to_string())
}

/// What provisioning for a driver with topology needs beside [`grant`](crate::provision::grant).
pub async fn grant_nodes(cluster: &ControlPlane) -> Result<()> {
    let account = account();
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": "sees-nodes" },
        "rules": [{ "apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"] }],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": "sees-nodes" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "sees-nodes" },
        "subjects": [{ "kind": "ServiceAccount", "namespace": account.namespace, "name": account.name }],
    });
    cluster.apply_yaml(&role.to_string()).await?;
    cluster.apply_yaml(&binding.to_string()).await.map(drop)
}

/// An operator that may provision, and may watch Nodes.
async fn serving_topology() -> Result<(World, Operator)> {
    let (world, operator) = serving(operator_options()).await?;
    grant_nodes(&world.cluster).await?;
    Ok((world, operator))
}

/// A driver with one topology key that provisions, and its delayed class `<short>`.
async fn driver<'w>(world: &'w World, short: &str, provisioning: &Value) -> Result<Driver<'w>> {
    let driver = world
        .unconfigured_driver(short, |builder| builder.topology([ZONE]))
        .await?;
    release_provisioner_lease(&world.client, IDENTITY, &driver.name).await?;
    let settings = json!({ "driverName": driver.name, "provisioning": provisioning });
    driver.configure(&settings).await?;
    driver.wait("ProvisioningReady", "True", Some("Running")).await?;
    class(&driver, short, "WaitForFirstConsumer", &[]).await?;
    Ok(driver)
}

/// A class of the driver, for volumes in these zones, or in any.
async fn class(driver: &Driver<'_>, name: &str, binding: &str, zones: &[&str]) -> Result<()> {
    let mut class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": name },
        "provisioner": driver.name, "reclaimPolicy": "Delete", "volumeBindingMode": binding,
    });
    if !zones.is_empty() {
        class["allowedTopologies"] = json!([{ "matchLabelExpressions": [{ "key": ZONE, "values": zones }] }]);
    }
    driver.world.cluster.apply_yaml(&class.to_string()).await.map(drop)
}

/// A Node in a zone, if it has one.
async fn node(world: &World, name: &str, zone: Option<&str>) -> Result<()> {
    world.fixtures.node(name).await?;
    match zone {
        Some(zone) => label(world, name, zone).await,
        None => Ok(()),
    }
}

async fn label(world: &World, name: &str, zone: &str) -> Result<()> {
    let labels = json!({ "metadata": { "labels": { ZONE: zone } } });
    let nodes = world.fixtures.cluster::<Node>();
    let patched = nodes.patch(name, &PatchParams::default(), &Patch::Merge(&labels)).await;
    patched.map(drop).map_err(failed)
}

/// The CSINode of a node on which these drivers are registered with their key.
async fn csi_node(world: &World, name: &str, drivers: &[&str]) -> Result<()> {
    let drivers: Vec<Value> = drivers
        .iter()
        .map(|driver| json!({ "name": driver, "nodeID": format!("{name}-id"), "topologyKeys": [ZONE] }))
        .collect();
    let csi_node = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": { "name": name },
        "spec": { "drivers": drivers },
    });
    world.cluster.apply_yaml(&csi_node.to_string()).await.map(drop)
}

/// Three nodes in three zones.
async fn three_zones(world: &World, drivers: &[&str]) -> Result<()> {
    for (name, zone) in ZONES {
        node(world, name, Some(zone)).await?;
        csi_node(world, name, drivers).await?;
    }
    Ok(())
}

async fn remove_node(world: &World, name: &str) -> Result<()> {
    world.fixtures.delete::<CSINode>(name).await?;
    world.fixtures.delete::<Node>(name).await.map(drop)
}

impl Driver<'_> {
    /// A claim of a class, scheduled to a node if one is given.
    async fn claim_on(&self, name: &str, class: &str, node: Option<&str>) -> Result<PersistentVolumeClaim> {
        let mut wanted = self.wanted(name);
        wanted.spec.get_or_insert_default().storage_class_name = Some(class.to_owned());
        if let Some(node) = node {
            wanted.annotations_mut().insert(SELECTED.to_owned(), node.to_owned());
        }
        let made = self.claims().create(&kube::api::PostParams::default(), &wanted).await;
        made.map_err(failed)
    }

    /// As kube-scheduler does.
    async fn select(&self, claim: &str, node: &str) -> Result<()> {
        let selected = json!({ "metadata": { "annotations": { SELECTED: node } } });
        let patched = self
            .claims()
            .patch(claim, &PatchParams::default(), &Patch::Merge(&selected))
            .await;
        patched.map(drop).map_err(failed)
    }

    /// Waits until no node is selected for a claim.
    async fn without_node(&self, claim: &str) -> Result<()> {
        let is_off = |claim: Option<&PersistentVolumeClaim>| {
            claim.is_some_and(|claim| !claim.annotations().contains_key(SELECTED))
        };
        wait_for(self.claims(), claim, "without a selected node", LIMIT, is_off)
            .await
            .map(drop)
    }

    /// What the calls for a claim asked for.
    fn asked_for(&self, claim: &PersistentVolumeClaim) -> Vec<CreationFacts> {
        let name = format!("pvc-{}", claim.uid().unwrap_or_default());
        let calls = self.mock.calls_of(Method::CreateVolume).into_iter();
        let own = calls.filter(|call| call.volume.as_ref() == Some(&name));
        own.filter_map(|call| call.creation).collect()
    }

    /// The zones of the only call for a claim that is provisioned: requisite, preferred, and that of the PersistentVolume.
    async fn zones(&self, claim: &PersistentVolumeClaim) -> Result<(String, String, String)> {
        let volume = self.saved(claim).await?;
        let affinity = volume.spec.and_then(|spec| spec.node_affinity);
        let terms = affinity
            .and_then(|affinity| affinity.required)
            .map(|required| required.node_selector_terms);
        let of_term = |term: &k8s_openapi::api::core::v1::NodeSelectorTerm| {
            let expressions = term.match_expressions.iter().flatten();
            let words = expressions.map(|one| {
                assert_eq!((&*one.key, &*one.operator), (ZONE, "In"));
                one.values.clone().unwrap_or_default().join(",")
            });
            words.collect::<Vec<_>>().join("+")
        };
        let affinity: Vec<String> = terms.iter().flatten().map(of_term).collect();
        let asked = self.asked_for(claim);
        assert_eq!(asked.len(), 1, "{asked:?}");
        Ok((
            words(&asked[0].requisite),
            words(&asked[0].preferred),
            affinity.join(" "),
        ))
    }
}

fn words(terms: &[BTreeMap<String, String>]) -> String {
    let zone = |term: &BTreeMap<String, String>| {
        assert_eq!(term.len(), 1, "{term:?}");
        term[ZONE].clone()
    };
    terms.iter().map(zone).collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn the_topology_that_is_asked_for_follows_from_binding_class_and_settings() -> Result<()> {
    let (world, _operator) = serving_topology().await?;
    let topology = |delayed: &str, immediate: &str| json!({ "backoff": soon(), "topology": { "delayedBinding": delayed, "immediateBinding": immediate } });
    let usual = driver(&world, "t-usual", &json!({ "backoff": soon() })).await?;
    let strict = driver(&world, "t-strict", &topology("Strict", "None")).await?;
    three_zones(&world, &[&usual.name, &strict.name]).await?;
    class(&usual, "t-some", "WaitForFirstConsumer", &["b", "c"]).await?;
    class(&usual, "t-now", "Immediate", &[]).await?;
    class(&usual, "t-now-some", "Immediate", &["c"]).await?;
    class(&strict, "t-strict-some", "WaitForFirstConsumer", &["a", "b"]).await?;
    class(&strict, "t-none", "Immediate", &[]).await?;

    // Which of the zones comes first follows from the name, where no node is selected.
    for (driver, name, class, node, requisite, preferred) in [
        (&usual, "one", "t-usual", Some("n2"), "a b c", "b c a"),
        (&usual, "two", "t-some", Some("n3"), "b c", "c b"),
        (&usual, "three", "t-now-some", None, "c", "c"),
        (&strict, "four", "t-strict", Some("n3"), "c", "c"),
        (&strict, "five", "t-strict-some", Some("n2"), "b", "b"),
        (&strict, "six", "t-none", None, "", ""),
    ] {
        let claim = driver.claim_on(name, class, node).await?;
        driver.bound(name).await?;
        let first = preferred.split(' ').next().unwrap_or_default();
        assert_eq!(
            driver.zones(&claim).await?,
            (requisite.to_owned(), preferred.to_owned(), first.to_owned()),
            "{name}"
        );
    }

    // Those of a StatefulSet go through the zones, and the two of one pod begin in the same one.
    let mut firsts = BTreeMap::new();
    for name in ["www-web-0", "www-web-1", "www-web-2", "logs-web-1"] {
        let claim = usual.claim_on(name, "t-now", None).await?;
        usual.bound(name).await?;
        let (requisite, preferred, affinity) = usual.zones(&claim).await?;
        assert_eq!(requisite, "a b c");
        assert!(["a b c", "b c a", "c a b"].contains(&&*preferred), "{preferred}");
        assert!(preferred.starts_with(&affinity));
        firsts.insert(name, affinity);
    }
    assert_eq!(firsts["www-web-1"], firsts["logs-web-1"]);
    let after = |zone: &str| match zone {
        "a" => "b",
        "b" => "c",
        _ => "a",
    };
    assert_eq!(firsts["www-web-1"], after(&firsts["www-web-0"]));
    assert_eq!(firsts["www-web-2"], after(&firsts["www-web-1"]));
    Ok(())
}

#[tokio::test]
async fn what_is_missing_is_told_and_used_as_soon_as_it_comes() -> Result<()> {
    let (world, _operator) = serving_topology().await?;
    let driver = driver(&world, "t-late", &json!({ "backoff": never() })).await?;
    class(&driver, "t-late-now", "Immediate", &[]).await?;
    let told = async |claim: &str, part: &str| {
        event(&world, "PersistentVolumeClaim", claim, "ProvisioningFailed", part)
            .await
            .map(drop)
    };

    // No node at all: a claim for which none is selected waits for any.
    let anywhere = driver.claim_on("anywhere", "t-late-now", None).await?;
    told("anywhere", "no available topology found").await?;
    // A node without its label, and one on which the driver is not registered.
    node(&world, "n1", None).await?;
    csi_node(&world, "n1", &[&driver.name]).await?;
    let unlabelled = driver.claim_on("unlabelled", "t-late", Some("n1")).await?;
    told("unlabelled", &format!("Node n1 has no label \"{ZONE}\"")).await?;
    node(&world, "n2", Some("b")).await?;
    csi_node(&world, "n2", &[]).await?;
    let unregistered = driver.claim_on("unregistered", "t-late", Some("n2")).await?;
    let part = format!("no topology key found on CSINode n2 for driver {}", driver.name);
    told("unregistered", &part).await?;
    assert!(driver.mock.calls_of(Method::CreateVolume).is_empty());
    for name in ["anywhere", "unlabelled", "unregistered"] {
        let current = driver.claims().get(name).await.map_err(failed)?;
        assert!(!carries_marker(Some(&current)), "{name}");
    }

    label(&world, "n1", "a").await?;
    for (name, claim) in [("unlabelled", &unlabelled), ("anywhere", &anywhere)] {
        driver.bound(name).await?;
        assert_eq!(driver.zones(claim).await?.1, "a", "{name}");
    }
    csi_node(&world, "n2", &[&driver.name]).await?;
    driver.bound("unregistered").await?;
    assert_eq!(driver.zones(&unregistered).await?.1, "b a");
    Ok(())
}

#[tokio::test]
async fn a_node_that_is_gone_before_the_first_call_is_taken_off() -> Result<()> {
    let (world, _operator) = serving_topology().await?;
    let driver = driver(&world, "t-gone", &json!({ "backoff": never() })).await?;
    three_zones(&world, &[&driver.name]).await?;
    driver.claim_on("ready", "t-gone", Some("n1")).await?;
    driver.bound("ready").await?;

    let began = Instant::now();
    let claim = driver.claim_on("data", "t-gone", Some("nowhere")).await?;
    driver.without_node("data").await?;
    // It takes milliseconds. More is the machine's.
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    event(
        &world,
        "PersistentVolumeClaim",
        "data",
        "ProvisioningRescheduled",
        "node nowhere",
    )
    .await?;

    // One that goes while the claim waits for its label.
    node(&world, "n4", None).await?;
    csi_node(&world, "n4", &[&driver.name]).await?;
    driver.select("data", "n4").await?;
    event(
        &world,
        "PersistentVolumeClaim",
        "data",
        "ProvisioningFailed",
        "Node n4 has no label",
    )
    .await?;
    remove_node(&world, "n4").await?;
    driver.without_node("data").await?;

    driver.select("data", "n2").await?;
    driver.bound("data").await?;
    assert_eq!(driver.zones(&claim).await?.1, "b c a");
    Ok(())
}

/// What a call that is open was made with, stays: whatever became of its node, and of the process.
#[tokio::test]
async fn a_call_whose_outcome_is_unknown_is_repeated_for_its_own_zone() -> Result<()> {
    let (world, mut operator) = serving_topology().await?;
    let settings = json!({ "backoff": never(), "timeouts": { "create": "1s" } });
    let driver = driver(&world, "t-open", &settings).await?;
    three_zones(&world, &[&driver.name]).await?;
    driver
        .mock
        .script(Rule::on(Method::CreateVolume).times(1).late_success());
    let claim = driver.claim_on("data", "t-open", Some("n2")).await?;
    event(&world, "PersistentVolumeClaim", "data", "ProvisioningUncertain", "").await?;
    driver.mock.wait_for_call(|call| call.outcome == CallResult::Late).await;
    remove_node(&world, "n2").await?;
    operator.signal("KILL")?;
    operator.wait_ended(LIMIT).await?;
    // Nor do other labels change what was asked for first.
    label(&world, "n1", "z").await?;

    let _next = world.operator(operator_options()).await?;
    let volume = driver.saved(&claim).await?;
    let asked = driver.asked_for(&claim);
    assert!(asked.len() >= 2, "{asked:?}");
    for asked in &asked {
        assert_eq!(asked.preferred[0][ZONE], "b", "{asked:?}");
        assert!(asked.requisite.iter().any(|term| term[ZONE] == "b"), "{asked:?}");
    }
    assert_eq!(driver.mock.volumes().len(), 1);
    let affinity = serde_json::to_string(&volume.spec.and_then(|spec| spec.node_affinity)).unwrap();
    assert!(affinity.contains("\"b\""), "{affinity}");
    let current = driver.claims().get("data").await.map_err(failed)?;
    assert_eq!(current.annotations().get(SELECTED).map(String::as_str), Some("n2"));
    driver.bound("data").await.map(drop)
}

#[tokio::test]
async fn the_next_call_after_a_refusal_asks_for_the_zone_of_now() -> Result<()> {
    let (world, _operator) = serving_topology().await?;
    let driver = driver(&world, "t-moved", &json!({ "backoff": never() })).await?;
    three_zones(&world, &[&driver.name]).await?;
    let refused = Rule::on(Method::CreateVolume).times(1);
    driver
        .mock
        .script(refused.fail(Code::FailedPrecondition, "not in this zone"));
    let claim = driver.claim_on("data", "t-moved", Some("n1")).await?;
    event(
        &world,
        "PersistentVolumeClaim",
        "data",
        "ProvisioningFailed",
        "not in this zone",
    )
    .await?;
    // Labels that are no topology key wake nobody.
    let other = json!({ "metadata": { "labels": { "example.com/other": "label" } } });
    let nodes = world.fixtures.cluster::<Node>();
    let patched = nodes.patch("n1", &PatchParams::default(), &Patch::Merge(&other)).await;
    patched.map_err(failed)?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(driver.asked_for(&claim).len(), 1);

    label(&world, "n1", "d").await?;
    driver.bound("data").await?;
    let asked = driver.asked_for(&claim);
    let preferred: Vec<String> = asked.iter().map(|asked| words(&asked.preferred)).collect();
    assert_eq!(preferred, ["a b c", "d b c"]);
    Ok(())
}

#[tokio::test]
async fn a_node_without_room_goes_together_with_the_marker() -> Result<()> {
    let (world, _operator) = serving_topology().await?;
    let driver = driver(&world, "t-full", &json!({ "backoff": never() })).await?;
    three_zones(&world, &[&driver.name]).await?;
    let full = Rule::on(Method::CreateVolume).times(1);
    driver.mock.script(full.fail(Code::ResourceExhausted, "zone a is full"));
    let claim = driver.claim_on("data", "t-full", Some("n1")).await?;
    let states = Mutex::new(Vec::new());
    wait_for(driver.claims(), "data", "without node and marker", LIMIT, |claim| {
        let Some(claim) = claim else { return false };
        let state = (claim.annotations().contains_key(SELECTED), carries_marker(Some(claim)));
        let mut states = states.lock();
        if states.last() != Some(&state) {
            states.push(state);
        }
        state == (false, false)
    })
    .await?;
    // Never the one without the other.
    let after = states.into_inner();
    assert!(after.iter().all(|(selected, marked)| *selected || !marked), "{after:?}");
    event(
        &world,
        "PersistentVolumeClaim",
        "data",
        "ProvisioningRescheduled",
        "node n1",
    )
    .await?;

    driver.select("data", "n3").await?;
    driver.bound("data").await?;
    let asked = driver.asked_for(&claim);
    let preferred: Vec<String> = asked.iter().map(|asked| words(&asked.preferred)).collect();
    assert_eq!(preferred, ["a b c", "c a b"]);
    Ok(())
}

#[tokio::test]
async fn a_topology_that_no_label_can_have_is_told_in_the_words_of_the_api_server() -> Result<()> {
    let (world, _operator) = serving_topology().await?;
    let driver = driver(&world, "t-bad", &json!({ "backoff": soon() })).await?;
    three_zones(&world, &[&driver.name]).await?;
    let bad: BTreeMap<String, String> = [("no label!".to_owned(), "a".to_owned())].into();
    driver
        .mock
        .settings(|settings| settings.answered_topology = Some(vec![bad]));
    let claim = driver.claim_on("data", "t-bad", Some("n1")).await?;
    let part = "the PersistentVolume cannot be saved, and its volume is kept";
    let told = event(&world, "PersistentVolumeClaim", "data", "ProvisioningFailed", part).await?;
    let message = told.message.unwrap_or_default();
    assert!(
        message.contains("no label!") && message.contains("nodeAffinity"),
        "{message}"
    );
    let current = driver.claims().get("data").await.map_err(failed)?;
    assert!(carries_marker(Some(&current)));
    assert_eq!((driver.mock.volumes().len(), driver.asked_for(&claim).len()), (1, 1));
    Ok(())
}

/// Attaching does not read the capability: its engine goes on, and only that of provisioning is another one.
#[tokio::test]
async fn a_driver_that_comes_back_with_topology_is_provisioned_for_with_it() -> Result<()> {
    let (world, operator) = serving_topology().await?;
    let driver = world.unconfigured_driver("t-update", |builder| builder).await?;
    release_provisioner_lease(&world.client, IDENTITY, &driver.name).await?;
    let settings = json!({ "driverName": driver.name, "provisioning": { "backoff": soon() } });
    driver.configure(&settings).await?;
    driver.wait("ProvisioningReady", "True", Some("Running")).await?;
    driver.wait("Ready", "True", Some("Running")).await?;
    three_zones(&world, &[&driver.name]).await?;
    class(&driver, "t-update", "Immediate", &[]).await?;
    let before = driver.claim_on("before", "t-update", None).await?;
    driver.bound("before").await?;
    assert_eq!(words(&driver.asked_for(&before)[0].requisite), "");
    driver.without_marker("before").await?;

    driver.stop().await;
    driver
        .mock
        .settings(|settings| settings.topology_keys = vec![ZONE.to_owned()]);
    driver.start_again().await?;
    let after = driver.claim_on("after", "t-update", None).await?;
    driver.bound("after").await?;
    assert_eq!(driver.zones(&after).await?.0, "a b c");
    driver.wait("Ready", "True", Some("Running")).await?;
    let log = operator.log_text();
    let drained = log.lines().filter(|line| line.contains("driver drained")).count();
    assert_eq!(drained, 1, "that of provisioning alone: {log}");
    Ok(())
}
