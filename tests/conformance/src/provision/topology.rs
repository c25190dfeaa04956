//! Where volumes must be reachable from.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::CSINode;
use kube::ResourceExt as _;
use serde_json::{Value, json};
use tonic::Code;

use super::SELECTED;
use super::claims::{Claim, is_marked};
use crate::scenario::{Group, Outcome, Scenario, Stop, demand, same};
use crate::test::{Test, create, delete, merge};

/// The driver's one topology key.
pub const ZONE: &str = "topology.conformance.test/zone";

const RACK: &str = "topology.conformance.test/rack";
/// How many claims are tried until one asks for all zones. Each takes a whole provisioning, in which a watch that works
/// has brought them.
const TRIES: usize = 20;
/// A node that is gone is taken off within a second; on a busy machine by then.
const RESCHEDULED: Duration = Duration::from_secs(10);
/// Of a class, whose claims wait for a node.
const DELAYED: &str = "WaitForFirstConsumer";

/// Each has the nodes of the driver for itself.
pub fn scenarios() -> Vec<Scenario> {
    let group = Group::new("provision-topology");
    let mut all = nodes(tables(group)).done();
    let codes = Group::new("provision-codes")
        .demands("RESOURCE_EXHAUSTED takes the selected node off, so that the scheduler chooses another")
        .scenario("exhausted", |t| async move {
            t.three_zones().await?;
            let claim = t.claim("");
            t.script(
                claim
                    .on_create()
                    .times(1)
                    .fail(Code::ResourceExhausted, "zone a is full"),
            );
            t.given_delayed_class().await?;
            let claim = t.claim_on("", &t.id, Some("a")).await?;
            claim.is("without a selected node", is_rescheduled).await?;
            claim.select(&t.claim("c").name).await?;
            claim.bound().await?;
            let preferred: Vec<_> = claim
                .asked_for()
                .iter()
                .map(|(_, preferred)| preferred.clone())
                .collect();
            same("preferred", &preferred, &vec!["a b c".to_owned(), "c a b".to_owned()])
        });
    all.extend(codes.done());
    all
}

/// With --strict-topology.
pub fn strict() -> Vec<Scenario> {
    Group::new("provision-topology")
        .demands("with --strict-topology the selected node's zone alone is asked for")
        .scenario("strict", |t| async move {
            t.three_zones().await?;
            for (suffix, node, zones) in [("any", "c", &[][..]), ("some", "b", &["a", "b"])] {
                let class = t.topology_class(suffix, DELAYED, zones).await?;
                let claim = t.claim_on(suffix, &class, Some(node)).await?;
                claim.bound().await?;
                same(suffix, &claim.asked_for(), &vec![(node.to_owned(), node.to_owned())])?;
            }
            Ok(())
        })
        .done()
}

fn tables(group: Group) -> Group {
    group
        .demands("what is asked for follows from binding, class and selected node")
        .scenario("table", |t| async move {
            t.three_zones().await?;
            for (suffix, binding, zones, node, requisite, preferred) in [
                ("one", DELAYED, &[][..], Some("b"), "a b c", "b c a"),
                ("two", DELAYED, &["b", "c"], Some("c"), "b c", "c b"),
                ("three", "Immediate", &["c"], None, "c", "c"),
            ] {
                let class = t.topology_class(suffix, binding, zones).await?;
                let claim = t.claim_on(suffix, &class, node).await?;
                let volume = claim.bound().await?;
                let expected = vec![(requisite.to_owned(), preferred.to_owned())];
                same(suffix, &claim.asked_for(), &expected)?;
                let first = preferred.split(' ').next().unwrap_or_default();
                same("zone of the PersistentVolume", &zone_of(&volume), &json!([first]))?;
            }
            Ok(())
        })
        .demands("the claims of a StatefulSet go through the zones, those of one pod together")
        .scenario("spread", |t| async move {
            t.three_zones().await?;
            t.given_class(|_| {}).await?;
            let mut firsts = Vec::new();
            for name in ["www-web-0", "www-web-1", "www-web-2", "logs-web-1"] {
                // The hash is that of the name without the part before the first dash that a template adds.
                let claim = t.claim_on(name, &t.id, None).await?;
                claim.bound().await?;
                let (requisite, preferred) = claim.asked_for().pop().unwrap_or_default();
                same("requisite", &requisite.as_str(), &"a b c")?;
                firsts.push(preferred.chars().next().map_or(0, u32::from));
            }
            let after = |zone: u32| {
                if zone == u32::from('c') {
                    u32::from('a')
                } else {
                    zone + 1
                }
            };
            same("zone of web-1", &firsts[1], &after(firsts[0]))?;
            same("zone of web-2", &firsts[2], &after(firsts[1]))
        })
        .demands("nodes with other keys are asked for with theirs, and none that is not registered")
        .scenario("key-sets", |t| async move {
            t.given_zone(&t.claim("a").name, Some("a")).await?;
            let racked = t.with_node(&t.claim("b").name);
            let labels = json!({ ZONE: "b", RACK: "r" });
            t.given_node_with(&racked.node, &labels).await?;
            let entry = json!({ "name": t.env.driver_name, "nodeID": racked.node_id, "topologyKeys": [ZONE, RACK] });
            racked.given_node_of(json!([entry])).await?;
            t.given_node_with(&t.claim("c").name, &json!({ ZONE: "c" })).await?;
            t.served_after("nodes").await?;
            let claim = t.given_class_and_claim().await?;
            claim.bound().await?;
            let mut terms = claim.asked().await?.requisite;
            terms.sort();
            let term = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
                pairs
                    .iter()
                    .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                    .collect()
            };
            // Both nodes have the zone's label, and only one registered the rack as well.
            let wanted = vec![
                term(&[(RACK, "r"), (ZONE, "b")]),
                term(&[(ZONE, "a")]),
                term(&[(ZONE, "b")]),
            ];
            same("requisite", &terms, &wanted)
        })
}

fn nodes(group: Group) -> Group {
    group
        .demands("a node without its label is told, and used when the label comes")
        .scenario("late", |t| async move {
            t.given_zone(&t.claim("a").name, None).await?;
            t.given_delayed_class().await?;
            let claim = t.claim_on("", &t.id, Some("a")).await?;
            claim.told("", ZONE).await?;
            claim.no_call()?;
            t.label(&t.claim("a").name, "a").await?;
            claim.bound().await.map(drop)
        })
        .demands("a selected node that is gone before the first call is taken off")
        .scenario("node-gone", |t| async move {
            t.three_zones().await?;
            t.given_delayed_class().await?;
            let claim = t.claim_on("", &t.id, Some("nowhere")).await?;
            claim
                .is_within(RESCHEDULED, "without a selected node", is_rescheduled)
                .await?;
            claim.no_call()?;
            claim.select(&t.claim("b").name).await?;
            claim.bound().await?;
            let wanted = vec![("a b c".to_owned(), "b c a".to_owned())];
            same("asked for", &claim.asked_for(), &wanted)
        })
        .demands("killed while a call is uncertain, and its node is gone: it is repeated for its zone")
        .safety("uncertain-node-gone", |t| async move {
            t.three_zones().await?;
            let claim = t.claim("");
            t.script(super::claims::unknown(claim.on_create()));
            t.given_delayed_class().await?;
            t.claim_on("", &t.id, Some("b")).await?;
            claim.call_ended().await?;
            let node = t.claim("b").name;
            delete::<CSINode>(&t.api(), &node).await?;
            delete::<Node>(&t.api(), &node).await?;
            t.env.attacher.kill();
            let seen = claim.creates().iter().map(|call| call.id).max();
            t.env.attacher.again()?;
            tokio::select! {
                again = claim.call("again", move |call| Some(call.id) > seen) => again.map(drop)?,
                taken = claim.is("without a selected node", is_rescheduled) => {
                    let why = || "the node is taken off, though a volume may be in its zone".to_owned();
                    demand(taken.is_err(), why)?;
                }
            }
            claim.heal();
            let volume = claim.bound().await?;
            same("zone of the PersistentVolume", &zone_of(&volume), &json!(["b"]))?;
            let others = claim
                .asked_for()
                .into_iter()
                .filter(|(_, preferred)| !preferred.starts_with('b'))
                .count();
            same("calls for another zone", &others, &0)?;
            same("volumes", &claim.handles().len(), &1)
        })
        .peer_fails("it knows of the call in memory only")
        .demands("the next call after a refusal asks for the zone of now")
        .scenario("labels-change", |t| async move {
            t.three_zones().await?;
            let claim = t.claim("");
            t.script(claim.on_create().fail(Code::FailedPrecondition, "not in this zone"));
            t.given_delayed_class().await?;
            t.claim_on("", &t.id, Some("a")).await?;
            claim.told("ProvisioningFailed", "not in this zone").await?;
            t.label(&t.claim("a").name, "d").await?;
            let of_now = || claim.asked_for().iter().any(|(_, preferred)| preferred == "d b c");
            t.until("a call for zone d", of_now).await?;
            claim.heal();
            claim.bound().await.map(drop)
        })
        .demands("a topology that no label can have is told in the words of the API server")
        .scenario("bad-segment", |t| async move {
            t.three_zones().await?;
            let bad: BTreeMap<String, String> = [("no label!".to_owned(), "a".to_owned())].into();
            t.env
                .driver
                .settings(|settings| settings.answered_topology = Some(vec![bad]));
            let outcome = bad_segment(&t).await;
            t.env.driver.settings(|settings| settings.answered_topology = None);
            outcome
        })
        .peer_fails("it repeats the request permanently and says nothing")
}

async fn bad_segment(t: &Test) -> Outcome {
    let claim = t.given_class_and_claim().await?;
    claim.call_ended().await?;
    // Who tells it does so at once.
    claim.told_soon("ProvisioningFailed", "no label!").await?;
    same("volumes", &claim.handles().len(), &1)?;
    claim.delete().await?;
    claim.gone().await?;
    t.until("the volume that nobody needs is undone", || claim.handles().is_empty())
        .await
}

fn is_rescheduled(claim: &PersistentVolumeClaim) -> bool {
    !claim.annotations().contains_key(SELECTED) && !is_marked(claim)
}

fn zone_of(volume: &PersistentVolume) -> Value {
    let spec = serde_json::to_value(&volume.spec).unwrap_or_default();
    let path = "/nodeAffinity/required/nodeSelectorTerms/0/matchExpressions/0/values";
    spec.pointer(path).cloned().unwrap_or_default()
}

impl Claim {
    /// The zones that each call asked for: requisite and preferred.
    pub fn asked_for(&self) -> Vec<(String, String)> {
        let words = |terms: &[BTreeMap<String, String>]| {
            let zone = |term: &BTreeMap<String, String>| term.get(ZONE).cloned().unwrap_or_default();
            terms.iter().map(zone).collect::<Vec<_>>().join(" ")
        };
        let asked = self.creates().into_iter().filter_map(|call| call.creation);
        asked
            .map(|asked| (words(&asked.requisite), words(&asked.preferred)))
            .collect()
    }
}

impl Test {
    /// A node in each of three zones, which is known to the process.
    pub async fn three_zones(&self) -> Outcome {
        for zone in ["a", "b", "c"] {
            self.given_zone(&self.claim(zone).name, Some(zone)).await?;
        }
        // Nodes with their labels and CSINodes come by watches of their own.
        for number in 0..TRIES {
            let suffix = format!("zones-{number}");
            self.served_after(&suffix).await?;
            let asked = self.claim(&suffix).asked_for();
            if asked.last().is_some_and(|(requisite, _)| requisite == "a b c") {
                return Ok(());
            }
        }
        let why = "the process goes on without some of the nodes";
        Err(Stop::Failed(why.to_owned()))
    }

    /// A claim of a class, with a node of the scenario selected if one is given.
    pub async fn claim_on(&self, suffix: &str, class: &str, node: Option<&str>) -> Outcome<Claim> {
        let claim = self.claim(suffix);
        claim
            .create(|it| {
                it["spec"]["storageClassName"] = json!(class);
                if let Some(node) = node {
                    it["metadata"]["annotations"][SELECTED] = json!(self.claim(node).name);
                }
            })
            .await?;
        Ok(claim)
    }

    /// A class for volumes in these zones, or in any.
    pub async fn topology_class(&self, suffix: &str, binding: &str, zones: &[&str]) -> Outcome<String> {
        let name = self.claim(suffix).name;
        self.given_class(|class| {
            class["metadata"]["name"] = json!(name);
            class["volumeBindingMode"] = json!(binding);
            if !zones.is_empty() {
                class["allowedTopologies"] = json!([{ "matchLabelExpressions": [{ "key": ZONE, "values": zones }] }]);
            }
        })
        .await?;
        Ok(name)
    }

    async fn label(&self, node: &str, zone: &str) -> Outcome {
        merge::<Node>(&self.api(), node, json!({ "metadata": { "labels": { ZONE: zone } } })).await
    }

    async fn given_node_with(&self, name: &str, labels: &Value) -> Outcome {
        let node = json!({ "metadata": { "name": name, "labels": labels } });
        create::<Node>(&self.api(), node).await.map(drop)
    }

    /// A Node, in a zone if one is given, on which the driver is registered.
    pub async fn given_zone(&self, name: &str, zone: Option<&str>) -> Outcome {
        let labels = zone.map_or(json!({}), |zone| json!({ ZONE: zone }));
        self.given_node_with(name, &labels).await?;
        let registered = self.with_node(name);
        let driver = json!({ "name": self.env.driver_name, "nodeID": registered.node_id, "topologyKeys": [ZONE] });
        registered.given_node_of(json!([driver])).await
    }

    fn with_node(&self, name: &str) -> Self {
        Self {
            node: name.to_owned(),
            node_id: format!("{name}-node"),
            ..self.clone()
        }
    }
}
