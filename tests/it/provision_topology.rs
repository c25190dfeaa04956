//! Provisioning for drivers with topology: what wakes a claim that waits for nodes and labels, and a driver that has topology later. What is
//! asked for is in the suite (`provision-topology`).

use std::collections::BTreeMap;
use std::time::Duration;

use csi_mock_driver::{CreationFacts, Method, Rule};
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim};
use kube::ResourceExt;
use serde_json::{Value, json};
use tonic::Code;

use crate::events::event;
use crate::provision::{carries_marker, soon};
use crate::rig::{Driver, World, merge};
use crate::support::controlplane::ControlPlane;
use crate::support::operator::{IDENTITY, account, release_provisioner_lease};
use crate::support::rbac::Grants;
use crate::support::{Error, Result};

const ZONE: &str = "topology.example.com/zone";
const SELECTED: &str = "volume.kubernetes.io/selected-node";
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

/// Gives a Node a label.
async fn label(world: &World, name: &str, key: &str, value: &str) -> Result<()> {
    let labels = json!({ "metadata": { "labels": { key: value } } });
    merge(&world.fixtures.cluster::<Node>(), name, &labels).await.map(drop)
}

impl Driver<'_> {
    /// The CSINode of a node on which this driver, if it is registered there, has its key.
    async fn on_csi_node(&self, name: &str, registered: bool) -> Result<()> {
        let own = json!({ "name": self.name, "nodeID": format!("{name}-id"), "topologyKeys": [ZONE] });
        let csi_node = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": { "name": name },
            "spec": { "drivers": if registered { vec![own] } else { Vec::new() } },
        });
        self.world.cluster.apply_yaml(&csi_node.to_string()).await.map(drop)
    }

    /// Three nodes `<short>-1` to `<short>-3` in zones a to c.
    async fn three_zones(&self) -> Result<()> {
        for (number, zone) in [(1, "a"), (2, "b"), (3, "c")] {
            let name = format!("{}-{number}", self.short);
            self.world.fixtures.node(&name).await?;
            label(self.world, &name, ZONE, zone).await?;
            self.on_csi_node(&name, true).await?;
        }
        Ok(())
    }

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

    /// Waits until the operator has seen the nodes of [`Driver::three_zones`]: Nodes with their labels and CSINodes come by watches of their own, and
    /// a claim that comes before some of them asks for fewer zones.
    async fn topology_is_seen(&self) -> Result<()> {
        let seen = format!("{}-seen", self.short);
        class(self, &seen, "Immediate", &[]).await?;
        for number in 0..TRIES {
            let name = format!("{seen}-{number}");
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
    let world = World::provisioning().await?;
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
    world.fixtures.node("t-late-1").await?;
    driver.on_csi_node("t-late-1", true).await?;
    let unlabelled = driver.claim_on("unlabelled", "t-late", Some("t-late-1")).await?;
    told("unlabelled", &format!("Node t-late-1 has no label \"{ZONE}\"")).await?;
    world.fixtures.node("t-late-2").await?;
    label(&world, "t-late-2", ZONE, "b").await?;
    driver.on_csi_node("t-late-2", false).await?;
    let unregistered = driver.claim_on("unregistered", "t-late", Some("t-late-2")).await?;
    let part = format!("no topology key found on CSINode t-late-2 for driver {}", driver.name);
    told("unregistered", &part).await?;
    assert!(driver.mock.calls_of(Method::CreateVolume).is_empty());
    for name in ["anywhere", "unlabelled", "unregistered"] {
        let current = driver.claims().get(name).await?;
        assert!(!carries_marker(Some(&current)), "{name}");
    }

    label(&world, "t-late-1", ZONE, "a").await?;
    for (name, claim) in [("unlabelled", &unlabelled), ("anywhere", &anywhere)] {
        driver.bound(name).await?;
        assert_eq!(driver.zones(claim).await?.1, "a", "{name}");
    }
    driver.on_csi_node("t-late-2", true).await?;
    driver.bound("unregistered").await?;
    assert_eq!(driver.zones(&unregistered).await?.1, "b a");
    Ok(())
}

#[tokio::test]
async fn the_next_call_after_a_refusal_asks_for_the_zone_of_now() -> Result<()> {
    let world = World::provisioning().await?;
    let driver = driver(&world, "t-moved", &json!({ "backoff": never() })).await?;
    driver.three_zones().await?;
    driver.topology_is_seen().await?;
    let refused = Rule::on(Method::CreateVolume).times(1);
    driver
        .mock
        .script(refused.fail(Code::FailedPrecondition, "not in this zone"));
    let claim = driver.claim_on("moved", "t-moved", Some("t-moved-1")).await?;
    let part = "not in this zone";
    event(&world, "PersistentVolumeClaim", "moved", "ProvisioningFailed", part).await?;
    // Labels that are no topology key wake nobody.
    label(&world, "t-moved-1", "example.com/other", "label").await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(driver.asked_for(&claim).len(), 1);

    label(&world, "t-moved-1", ZONE, "d").await?;
    driver.bound("moved").await?;
    let asked = driver.asked_for(&claim);
    let preferred: Vec<String> = asked.iter().map(|asked| words(&asked.preferred)).collect();
    assert_eq!(preferred, ["a b c", "d b c"]);
    Ok(())
}

/// kube-scheduler knows allowedTopologies; a person who writes the annotation may not.
#[tokio::test]
async fn a_node_that_the_class_excludes_is_told_and_the_next_one_is_used_at_once() -> Result<()> {
    let world = World::provisioning().await?;
    let driver = driver(&world, "t-out", &json!({ "backoff": never() })).await?;
    driver.three_zones().await?;
    class(&driver, "t-out-b", "WaitForFirstConsumer", &["b"]).await?;
    let claim = driver.claim_on("excluded", "t-out-b", Some("t-out-1")).await?;
    let part = "is not in allowedTopologies of StorageClass t-out-b";
    event(&world, "PersistentVolumeClaim", "excluded", "ProvisioningFailed", part).await?;
    assert!(driver.asked_for(&claim).is_empty());
    let chosen = json!({ "metadata": { "annotations": { SELECTED: "t-out-2" } } });
    merge(&driver.claims(), "excluded", &chosen).await?;
    driver.bound("excluded").await?;
    assert_eq!(driver.zones(&claim).await?.0, "b");
    Ok(())
}

/// Attaching does not read the capability: its engine goes on, and only that of provisioning is another one.
#[tokio::test]
async fn a_driver_that_comes_back_with_topology_is_provisioned_for_with_it() -> Result<()> {
    let world = World::provisioning().await?;
    let driver = world.unconfigured_driver("t-update", |builder| builder).await?;
    release_provisioner_lease(&world.client, IDENTITY, &driver.name).await?;
    let settings = json!({ "driverName": driver.name, "provisioning": { "backoff": soon() } });
    driver.configure(&settings).await?;
    driver.wait("ProvisioningReady", "True", Some("Running")).await?;
    driver.wait("Ready", "True", Some("Running")).await?;
    driver.three_zones().await?;
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
    let log = world.shared_operator().log_text();
    let of_driver = |line: &&str| line.contains("driver drained") && line.contains(&driver.name);
    let drained: Vec<&str> = log.lines().filter(of_driver).collect();
    assert_eq!(drained.len(), 1, "that of provisioning alone: {drained:?}");
    Ok(())
}
