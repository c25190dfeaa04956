//! What is registered on nodes, and what is asked for because of that.

use serde_json::json;

use crate::provision::tests::builders::{answered_volume, claim_of, driver, node, node_with_keys, plan_of, world};
use crate::provision::tests::tally;
use crate::provision::tests::topology::{Query, of_nodes, rows, segments};
use crate::provision::topology::Segment;
use crate::provision::{AnsweredVolume, ClaimAction, NewVolume, ProvisionRefusal, persistent_volume};

/// The rows of TestTopologyAggregation that came with v6.4.0: labels and keys of the nodes, of which the first may be
/// selected, what is requisite, and what is when it is strict.
#[test]
fn the_registered_topology_of_nodes_is_aggregated() {
    let rows = rows::<5>(
        "
        different keys: zone=1, zone=1 rack=A, zone=1 rack=A: zone, zone rack, zone rack: \
            zone=1|rack=A zone=1: zone=1|rack=A zone=1
        fewer keys on one: region=e, region=w zone=1, region=w zone=2: region, region zone, region zone: \
            region=e|region=w|region=w zone=1|region=w zone=2: region=e|region=w|region=w zone=1|region=w zone=2
        keys that have nothing in common: region=e, zone=1: region, zone: region=e|zone=1: region=e|zone=1
        and both labels on each: region=e zone=1, region=w zone=2: region, zone: region=e|zone=2: region=e|zone=2
        a node without keys that has the labels: region=e, zone=1, region=w zone=2: region, zone, -: \
            region=e|zone=1: region=e|zone=1
        more keys count for fewer: region=e zone=1, region=e zone=2: region, region zone: \
            region=e|region=e zone=2: region=e|region=e zone=2
        selected, one without keys: zone=1, zone=2, zone=3: zone, -, zone: zone=1|zone=3: zone=1
        selected, one without the driver: zone=1, zone=2: zone, -: zone=1: zone=1
        selected, one with other keys: region=e, region=w zone=1, region=c zone=2: region, zone, region zone: \
            region=c|region=e: region=e
        one without the driver: zone=1, zone=2: zone, -: zone=1: zone=1
        ",
    );
    for &[name, labels, keys, wanted, when_strict] in &rows {
        for strict in [false, true] {
            let query = Query {
                selected: name.contains("selected"),
                strict,
                ..Query::new(&of_nodes(labels), &of_nodes(keys))
            };
            let found = query.ask().unwrap().unwrap().requisite;
            let wanted = segments(if strict { when_strict } else { wanted });
            assert_eq!(found.len(), wanted.len(), "{name} {strict}: {found:?}");
            let has_all = wanted.iter().all(|term| found.contains(term));
            assert!(has_all, "{name} {strict}: {found:?}");
        }
    }
    tally("TestTopologyAggregation", rows.len());
}

/// TestDistinctTopologyKeySets: the keys of each node, and the sets that are aggregated.
#[test]
fn each_set_of_keys_is_aggregated_on_its_own() {
    let rows: [(&[&str], &[&str]); 7] = [
        (&[], &[]),
        (&["", ""], &[]),
        (&["region zone", "region zone"], &["region zone"]),
        (&["region zone", "zone region"], &["region zone"]),
        (&["region zone", "region", "region zone"], &["region", "region zone"]),
        (&["", "zone"], &["zone"]),
        (&["zone", "region"], &["region", "zone"]),
    ];
    for (keys, wanted) in rows {
        let labels = vec!["region=r zone=z"; keys.len()];
        let found = Query::new(&labels, keys).ask();
        let words = |term: &Segment| term.iter().map(|(key, _)| key.to_owned()).collect::<Vec<_>>().join(" ");
        let mut sets: Vec<String> = match &found {
            Ok(found) => found.iter().flat_map(|it| it.requisite.iter()).map(words).collect(),
            Err(refusal) => {
                let is_missing = matches!(refusal, ProvisionRefusal::NoTopology(_));
                assert!(is_missing, "{keys:?}: {refusal}");
                Vec::new()
            }
        };
        sets.sort();
        assert_eq!(sets, wanted, "{keys:?}");
    }
    tally("TestDistinctTopologyKeySets", rows.len());
}

/// TestRegisteredTopologyKeys: what counts of the keys of each node. One without any is as one without the driver.
#[test]
fn what_is_registered_on_a_node() {
    let rows: [(&[&str], &[&str]); 5] = [
        (&[], &[]),
        (&["zone", "zone"], &["zone", "zone"]),
        (&["", "zone"], &["", "zone"]),
        (&["region", "region zone"], &["region", "region zone"]),
        (&["region zone", "zone region"], &["region zone", "region zone"]),
    ];
    for (keys, wanted) in rows {
        let registered = |keys: &&str| {
            let keys: Vec<&str> = keys.split_whitespace().collect();
            node_with_keys("n", &keys, &[]).keys.join(" ")
        };
        assert_eq!(keys.iter().map(registered).collect::<Vec<_>>(), wanted);
    }
    tally("TestRegisteredTopologyKeys", rows.len());
}

/// TestNodeTopologyLabelFallback: a label that is missing, and comes.
#[test]
fn a_label_that_comes_later_is_used() {
    let keys = ["zone rack region type"];
    let ask = |labels: &'static str| {
        let query = Query {
            selected: true,
            ..Query::new(&[labels], &keys)
        };
        query.ask()
    };
    let refusal = ask("zone=1 rack=A region=w").unwrap_err();
    let is_told = matches!(&refusal, ProvisionRefusal::NodeLabelMissing { key, .. } if &**key == "type");
    assert!(is_told, "{refusal}");
    let found = ask("zone=1 rack=A region=w type=s").unwrap().unwrap();
    assert_eq!(found.requisite.to_vec(), segments("rack=A region=w type=s zone=1"));
    assert_eq!(found.preferred, found.requisite);
    tally("TestNodeTopologyLabelFallback", 2);
}

/// TestProvisionWithTopologyEnabled: whether the driver has topology, whether nodes have labels, and whether the answer is asked for and used.
#[test]
fn an_answered_topology_is_that_of_the_persistent_volume() {
    let rows = [(true, true, true), (true, false, false), (false, false, true)];
    for (has_topology, has_labels, is_made) in rows {
        let labels: &[(&str, &str)] = if has_labels {
            &[("rack", "1"), ("zone", "1")]
        } else {
            &[]
        };
        let mut world = world();
        world.driver.capabilities.accessibility_constraints = has_topology;
        world.nodes = vec![if has_labels {
            node("n1", labels)
        } else {
            node_with_keys("n1", &["zone", "rack"], labels)
        }];
        let action = world.decide().action;
        let found = matches!(action, ClaimAction::Mark(_));
        assert_eq!(found, is_made, "{has_topology} {has_labels}: {action:?}");
        if !is_made {
            continue;
        }
        let answer = AnsweredVolume {
            topology: segments("zone=1 rack=2"),
            ..answered_volume()
        };
        let volume = NewVolume::of_answer(&plan_of(&world), Some(answer)).unwrap();
        let mut facts = driver();
        facts.capabilities.accessibility_constraints = has_topology;
        let saved = persistent_volume(&claim_of(&world.claim), &volume, &facts, "i");
        let affinity = saved.pointer("/spec/nodeAffinity/required/nodeSelectorTerms/0/matchExpressions");
        let wanted = json!([
            {"key": "rack", "operator": "In", "values": ["2"]}, {"key": "zone", "operator": "In", "values": ["1"]},
        ]);
        assert_eq!(affinity, has_topology.then_some(&wanted), "{has_topology}");
    }
    tally("TestProvisionWithTopologyEnabled", rows.len());
}
