//! Provisioning for drivers with topology: what wakes a claim that waits for nodes and labels, and a driver that has topology later. What is
//! asked for is in the suite (`provision-topology`).

use std::collections::BTreeMap;
use std::time::Duration;

use csi_mock_driver::{CreationFacts, Method, Rule};
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim};
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tonic::Code;

use crate::events::event;
use crate::provision::{carries_marker, serving, soon};
use crate::rig::{Driver, World, operator_options};
use crate::support::controlplane::ControlPlane;
use crate::support::operator::{IDENTITY, account, release_provisioner_lease};
use crate::support::rbac::Grants;
use crate::support::{Error, Operator, Result};

const ZONE: &str = "topology.example.com/zone";
const SELECTED: &str = "volume.kubernetes.io/selected-node";
const ZONES: [(&str, &str); 3] = [("n1", "a"), ("n2", "b"), ("n3", "c")];
/// How many claims are tried until one asks for all zones. Each takes a whole provisioning, in which a watch that works has brought them.
const TRIES: usize = 50;

/// Nothing but an event can bring about a second try.
fn never() -> Value {
    json!({ "initial": "1h", "max": "1h" })
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
    Grants::of_documents(vec![role, binding]).apply(cluster).await
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
    patched.map(drop).map_err(Error::from)
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

impl Driver<'_> {
    /// A claim of a class, scheduled to a node if one is given.
    async fn claim_on(&self, name: &str, class: &str, node: Option<&str>) -> Result<PersistentVolumeClaim> {
        let mut wanted = self.wanted(name);
        wanted.spec.get_or_insert_default().storage_class_name = Some(class.to_owned());
        if let Some(node) = node {
            wanted.annotations_mut().insert(SELECTED.to_owned(), node.to_owned());
        }
        let made = self.claims().create(&kube::api::PostParams::default(), &wanted).await;
        made.map_err(Error::from)
    }

    /// Waits until the operator has seen the nodes of [`three_zones`]: Nodes with their labels and CSINodes come by watches of their own, and
    /// a claim that comes before some of them asks for fewer zones.
    async fn topology_is_seen(&self) -> Result<()> {
        let seen = format!("{}-seen", self.short);
        class(self, &seen, "Immediate", &[]).await?;
        for number in 0..TRIES {
            let name = format!("seen-{number}");
            let claim = self.claim_on(&name, &seen, None).await?;
            self.bound(&name).await?;
            if self.zones(&claim).await?.0 == "a b c" {
                return Ok(());
            }
        }
        Err(Error::Other(
            "the operator goes on without some of the nodes".to_owned(),
        ))
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
        let current = driver.claims().get(name).await?;
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
async fn the_next_call_after_a_refusal_asks_for_the_zone_of_now() -> Result<()> {
    let (world, _operator) = serving_topology().await?;
    let driver = driver(&world, "t-moved", &json!({ "backoff": never() })).await?;
    three_zones(&world, &[&driver.name]).await?;
    driver.topology_is_seen().await?;
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
    patched?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(driver.asked_for(&claim).len(), 1);

    label(&world, "n1", "d").await?;
    driver.bound("data").await?;
    let asked = driver.asked_for(&claim);
    let preferred: Vec<String> = asked.iter().map(|asked| words(&asked.preferred)).collect();
    assert_eq!(preferred, ["a b c", "d b c"]);
    Ok(())
}

/// kube-scheduler knows allowedTopologies; a person who writes the annotation may not.
#[tokio::test]
async fn a_node_that_the_class_excludes_is_told_and_the_next_one_is_used_at_once() -> Result<()> {
    let (world, _operator) = serving_topology().await?;
    let driver = driver(&world, "t-out", &json!({ "backoff": never() })).await?;
    three_zones(&world, &[&driver.name]).await?;
    class(&driver, "t-out-b", "WaitForFirstConsumer", &["b"]).await?;
    let claim = driver.claim_on("data", "t-out-b", Some("n1")).await?;
    let part = "is not in allowedTopologies of StorageClass t-out-b";
    event(&world, "PersistentVolumeClaim", "data", "ProvisioningFailed", part).await?;
    assert!(driver.asked_for(&claim).is_empty());
    let chosen = json!({ "metadata": { "annotations": { SELECTED: "n2" } } });
    let patched = driver
        .claims()
        .patch("data", &PatchParams::default(), &Patch::Merge(&chosen))
        .await;
    patched?;
    driver.bound("data").await?;
    assert_eq!(driver.zones(&claim).await?.0, "b");
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

    // It is back before anything is given up: only what it can do has changed.
    driver
        .mock
        .settings(|settings| settings.topology_keys = vec![ZONE.to_owned()]);
    driver.mock.drop_connections();
    let after = driver.claim_on("after", "t-update", None).await?;
    driver.bound("after").await?;
    assert_eq!(driver.zones(&after).await?.0, "a b c");
    driver.wait("Ready", "True", Some("Running")).await?;
    let log = operator.log_text();
    let drained = log.lines().filter(|line| line.contains("driver drained")).count();
    assert_eq!(drained, 1, "that of provisioning alone: {log}");
    Ok(())
}
