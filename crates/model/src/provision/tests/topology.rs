//! Topology: the tables of external-provisioner, and what is ours.

use serde_json::{Value, json};
use std::collections::BTreeMap;

use super::builders::{DRIVER, class_json, class_of, node, node_with_keys, policy};
use super::tally;
use crate::provision::topology::{
    KnownNode, MAX_TERMS, Segment, TopologyFacts, TopologyNode, TopologyQuery, TopologyRequirement, allowed_terms,
    is_allowed, is_unrestricted, requirement, spread_position,
};
use crate::provision::{ProvisionRefusal, Seen, node_affinity};

/// `zone=1 rack=A` as a segment.
fn segment(text: &str) -> Segment {
    let entries = text.split_whitespace().filter_map(|entry| entry.split_once('='));
    let entries: BTreeMap<Box<str>, Box<str>> = entries.map(|(key, value)| (key.into(), value.into())).collect();
    Segment::from(entries)
}

/// Segments separated by bars.
pub fn segments(text: &str) -> Vec<Segment> {
    text.split('|')
        .filter(|part| !part.trim().is_empty())
        .map(segment)
        .collect()
}

/// `zone=1,2 rack=A | zone=3` as allowedTopologies.
fn allowed(text: &str) -> Value {
    let expression = |entry: &str| {
        let (key, values) = entry.split_once('=').unwrap();
        json!({"key": key, "values": values.split(',').collect::<Vec<_>>()})
    };
    let term = |part: &str| json!({"matchLabelExpressions": part.split_whitespace().filter(|entry| *entry != "{}").map(expression).collect::<Vec<_>>()});
    text.split('|')
        .filter(|part| !part.trim().is_empty())
        .map(term)
        .collect()
}

/// Nodes from labels, each with its keys.
fn nodes(labels: &[&str], keys: &[&str]) -> Vec<TopologyNode> {
    let all = labels.iter().zip(keys).enumerate();
    all.map(|(at, (labels, keys))| {
        let labels: Vec<(&str, &str)> = labels
            .split_whitespace()
            .filter_map(|label| label.split_once('='))
            .collect();
        let keys: Vec<&str> = keys.split_whitespace().collect();
        node_with_keys(&format!("node-{at}"), &keys, &labels)
    })
    .collect()
}

pub struct Query {
    pub nodes: Vec<TopologyNode>,
    pub allowed: &'static str,
    pub selected: bool,
    pub strict: bool,
    pub aggregate: bool,
    pub claim: &'static str,
    pub recorded: (Option<Segment>, Option<Segment>),
}

impl Query {
    pub fn new(labels: &[&str], keys: &[&str]) -> Self {
        Self {
            nodes: nodes(labels, keys),
            allowed: "",
            selected: false,
            strict: false,
            aggregate: true,
            claim: "testpvc",
            recorded: (None, None),
        }
    }

    fn facts(&self) -> TopologyFacts {
        let with_keys = self.nodes.iter().filter(|node| !node.keys.is_empty());
        TopologyFacts::new(true, with_keys.cloned().collect())
    }

    pub fn ask(&self) -> Result<Option<TopologyRequirement>, ProvisionRefusal> {
        self.ask_of(&self.facts())
    }

    fn ask_of(&self, facts: &TopologyFacts) -> Result<Option<TopologyRequirement>, ProvisionRefusal> {
        let mut class = class_json();
        class["allowedTopologies"] = allowed(self.allowed);
        if self.selected {
            class["volumeBindingMode"] = json!("WaitForFirstConsumer");
        }
        let mut policy = policy();
        policy.strict_topology = self.strict;
        policy.aggregate_topology = self.aggregate;
        let first = self.nodes.first();
        let name = "node-0".into();
        let selected = KnownNode {
            labels: first.map_or(Seen::Gone, |node| Seen::Here(node.labels.clone())),
            keys: first.map_or(Seen::Gone, |node| Seen::Here(node.keys.clone())),
        };
        let query = TopologyQuery {
            driver: &DRIVER.into(),
            class: &class_of(&class),
            claim: self.claim,
            selected: self.selected.then_some((&name, &selected)),
            recorded_segment: self.recorded.0.as_ref(),
            recorded_first: self.recorded.1.as_ref(),
            facts,
            policy: &policy,
        };
        requirement(&query).map(|(requirement, _)| requirement)
    }
}

/// external-provisioner asks for no topology then, and lets no selected node pass where topology is strict.
#[test]
fn allowed_topologies_that_come_to_nothing_are_not_none() {
    let with = |labels: &[&str], selected, strict| {
        let keys: Vec<&str> = labels.iter().map(|_| "zone").collect();
        let query = Query {
            allowed: "{}",
            selected,
            strict,
            ..Query::new(labels, &keys)
        };
        query.ask()
    };
    for labels in [&[][..], &["zone=1", "zone=2"]] {
        assert_eq!(with(labels, false, false), Ok(None), "{labels:?}");
    }
    assert_eq!(with(&["zone=1"], true, false), Ok(None));
    let found = with(&["zone=1"], true, true);
    assert!(matches!(found, Err(ProvisionRefusal::NodeNotAllowed { .. })));
}

/// What the class says is looked at, and not all that it comes to.
#[test]
fn what_a_class_allows_is_seen_without_multiplying_it_out() {
    let places = segments("zone=1|zone=2|rack=A|zone=1 rack=A|zone=1 rack=B|zone=3 rack=B");
    for text in [
        "",
        "{}",
        "zone=1",
        "zone=1,2 rack=A",
        "zone=1 rack=A,B|zone=3",
        "zone=1|{}",
    ] {
        let mut class = class_json();
        class["allowedTopologies"] = allowed(text);
        let class = class_of(&class);
        let terms = allowed_terms(&class).unwrap();
        assert_eq!(is_unrestricted(&class), terms.is_empty(), "{text}");
        for place in &places {
            let wanted = terms.iter().any(|term| term.is_subset_of(place));
            assert_eq!(is_allowed(&class, place), wanted, "{text}: {place}");
        }
    }
}

/// TestAllowedTopologies.
#[test]
fn allowed_topologies_are_multiplied_out() {
    let rows = [
        ("zone=1", "zone=1"),
        ("zone=1,2", "zone=1|zone=2"),
        ("zone=1 rack=A", "rack=A zone=1"),
        ("zone=1 rack=A,B", "rack=A zone=1|rack=B zone=1"),
        (
            "zone=1,2 rack=A,B",
            "rack=A zone=1|rack=A zone=2|rack=B zone=1|rack=B zone=2",
        ),
        ("zone=1|rack=A", "rack=A|zone=1"),
        ("zone=1|zone=2", "zone=1|zone=2"),
        ("zone=1,2|zone=2,3", "zone=1|zone=2|zone=3"),
        (
            "zone=1|zone=1,2 rack=A,B",
            "zone=1|rack=A zone=1|rack=A zone=2|rack=B zone=1|rack=B zone=2",
        ),
        (
            "zone=1 rack=B|zone=1,2 rack=A,B",
            "rack=A zone=1|rack=A zone=2|rack=B zone=1|rack=B zone=2",
        ),
    ];
    for (text, wanted) in rows {
        let query = Query {
            allowed: text,
            ..Query::new(&[], &[])
        };
        let found = query.ask().unwrap().unwrap().requisite;
        assert_eq!(found.to_vec(), segments(wanted), "{text}");
    }
    tally("TestAllowedTopologies", rows.len());
}

/// The lines of a table in their columns. A line that begins with `//` is a remark.
pub fn rows<const COLUMNS: usize>(table: &'static str) -> Vec<[&'static str; COLUMNS]> {
    let lines = table.lines().map(str::trim);
    let rows = lines.filter(|line| !line.is_empty() && !line.starts_with("//"));
    rows.map(|line| line.split(": ").collect::<Vec<_>>().try_into().unwrap())
        .collect()
}

/// What a column says; `-` is nothing.
fn cell(text: &'static str) -> &'static str {
    if text == "-" { "" } else { text }
}

/// What a column says of each node, separated by commas.
pub fn of_nodes(column: &'static str) -> Vec<&'static str> {
    match column {
        "none" => Vec::new(),
        column => column.split(", ").map(cell).collect(),
    }
}

/// TestTopologyAggregation, as far as it was there before v6.4.0: labels and keys of the nodes, of which the first may be
/// selected, what is requisite (`!` for an error), and what is when it is strict.
#[test]
fn the_topology_of_nodes_is_aggregated() {
    let rows = rows::<5>(
        "
        same: zone=1, zone=1, zone=1: zone, zone, zone: zone=1: zone=1
        same, selected: zone=1, zone=1, zone=1: zone, zone, zone: zone=1: zone=1
        different: zone=1, zone=2, zone=2: zone, zone, zone: zone=1|zone=2: zone=1|zone=2
        different, selected: zone=1, zone=2, zone=2: zone, zone, zone: zone=1|zone=2: zone=1
        different keys, selected: zone=1, zone=1 rack=A, zone=1 rack=A: zone, zone rack, zone rack: zone=1: zone=1
        no nodes: none: zone, zone, zone: !: !
        other labels: foo=bar: zone, zone, zone: !: !
        no CSINodes: zone=1, zone=2, zone=2: none: !: !
        no keys: zone=1, zone=2, zone=2: -, -, -: !: !
        one is upgraded: other=1, other=2, zone=3: -, -, zone: zone=3: zone=3
        // Since v6.4.0 a node that has the labels and is not registered does not count.
        labels without a registration: zone=1, zone=2, zone=3: -, -, zone: zone=3: zone=3
        other labels, selected: foo=bar: zone, zone, zone: !: !
        no CSINode, selected: zone=1, zone=2, zone=2: none: !: !
        no keys, selected: zone=1, zone=2, zone=2: -, -, -: !: !
        ",
    );
    for &[name, labels, keys, wanted, when_strict] in &rows {
        let selected = name.contains("selected");
        for (strict, aggregate) in [(false, false), (false, true), (true, false), (true, true)] {
            let query = Query {
                selected,
                strict,
                aggregate,
                ..Query::new(&of_nodes(labels), &of_nodes(keys))
            };
            let found = query.ask().map(|found| found.map(|found| found.requisite.to_vec()));
            match if strict { when_strict } else { wanted } {
                _ if !selected && !aggregate => assert_eq!(found, Ok(None), "{name}"),
                "!" => assert!(found.unwrap_err().is_missing_topology(), "{name}"),
                wanted => assert_eq!(found, Ok(Some(segments(wanted))), "{name} {strict}"),
            }
        }
    }
    tally("TestTopologyAggregation", rows.len());
}

/// What v6.4.0 changed: each distinct key set counts, with the nodes whose registration covers it.
#[test]
fn each_key_set_counts() {
    let mixed = || {
        Query::new(
            &["zone=1", "zone=2 rack=A", "zone=3 rack=B"],
            &["zone", "rack zone", "zone"],
        )
    };
    let wanted = segments("zone=1|zone=2|zone=3|rack=A zone=2");
    assert_eq!(mixed().ask().unwrap().unwrap().requisite.to_vec(), wanted);
    let selected = Query {
        selected: true,
        ..mixed()
    };
    let expected = segments("zone=1|zone=2|zone=3");
    assert_eq!(selected.ask().unwrap().unwrap().requisite.to_vec(), expected);
    let incomplete = Query::new(&["zone=1", "zone=2"], &["rack zone", "zone"]);
    let found = incomplete.ask().unwrap().unwrap().requisite.to_vec();
    let expected = segments("zone=1|zone=2");
    assert_eq!(found, expected, "a node counts for the key set that it has");
}

/// TestPreferredTopologies: what is allowed, labels and keys of the nodes, what is preferred (`!` for an error), and what is
/// when it is strict.
#[test]
fn the_selected_node_comes_first() {
    let rows = rows::<6>(
        "
        allowed: zone=1,2 rack=A,B: zone=2 rack=A, zone=1 rack=A, zone=1 rack=B: zone rack, zone rack, zone rack: \
            rack=A zone=2|rack=B zone=1|rack=B zone=2|rack=A zone=1: rack=A zone=2
        allowed, no CSINode: zone=1,2 rack=A,B: zone=2 rack=A, zone=1 rack=A, zone=1 rack=B: none: !: !
        allowed, another key: zone=1,2 rack=A,B: zone=2 rack=A, zone=1 rack=A, zone=1 rack=B: \
            foo rack, foo rack, foo rack: !: !
        aggregated: -: zone=2 rack=A, zone=1 rack=A, zone=1 rack=B: zone rack, zone rack, zone rack: \
            rack=A zone=2|rack=B zone=1|rack=A zone=1: rack=A zone=2
        nothing: -: -, -, -: -, -, -: !: !
        not allowed: zone=1: zone=2, zone=1, zone=1: zone, zone, zone: !: !
        allowed by a part: disk=ssd zone=1: \
            zone=1 rack=1 disk=ssd, zone=2 rack=2 disk=ssd, zone=2 rack=1 disk=nvme: \
            zone rack disk, zone rack disk, zone rack disk: disk=ssd zone=1: disk=ssd rack=1 zone=1
        not allowed by a part: zone=1: zone=10 rack=1, zone=11 rack=2, zone=12 rack=1: \
            zone rack, zone rack, zone rack: !: !
        ",
    );
    for &[name, allowed, labels, keys, wanted, when_strict] in &rows {
        for strict in [false, true] {
            let query = Query {
                selected: true,
                strict,
                allowed: cell(allowed),
                ..Query::new(&of_nodes(labels), &of_nodes(keys))
            };
            let found = query.ask().map(|found| found.unwrap().preferred.to_vec());
            match if strict { when_strict } else { wanted } {
                "!" => assert!(found.unwrap_err().is_missing_topology(), "{name}"),
                wanted => assert_eq!(found, Ok(segments(wanted)), "{name} {strict}"),
            }
        }
    }
    tally("TestPreferredTopologies", rows.len());
}

/// TestStatefulSetSpreading.
#[test]
fn the_volumes_of_a_set_are_spread() {
    const LABELS: &[&str] = &["zone=1 rack=A", "zone=2 rack=B", "zone=3 rack=C", "zone=4 rack=D"];
    let all = ["rack=A zone=1", "rack=B zone=2", "rack=C zone=3", "rack=D zone=4"];
    let rows: [(&str, &str, usize); 7] = [
        ("testpvcA-testset-1", "", 0),
        ("testpvcB-testset-1", "", 0),
        ("testpvcC-testset-1", "zone=1 rack=A", 0),
        ("testset-2", "", 1),
        ("testpvcB-testset-2", "zone=2 rack=B|zone=1 rack=A", 1),
        ("testpvc-testset-3", "", 2),
        ("testpvc-testset-4", "", 3),
    ];
    for (claim, allowed, first) in rows {
        let query = Query {
            allowed,
            claim,
            ..Query::new(LABELS, &["zone rack"; 4])
        };
        let preferred = query.ask().unwrap().unwrap().preferred.to_vec();
        assert_eq!(preferred[0], segment(all[first]), "{claim}");
        let mut sorted = preferred.clone();
        sorted.sort_unstable();
        sorted.rotate_left(first);
        assert_eq!(preferred, sorted, "{claim}");
    }
    tally("TestStatefulSetSpreading", rows.len());
    let wanted = spread_position("c-b-5");
    assert_eq!(spread_position("a-b-5"), wanted, "the claims of one pod");
    assert_eq!(spread_position("web").index, 0);
    assert_eq!(spread_position("web-+1").index, 0, "no number of a pod");
    assert_eq!(spread_position("web-99999999999").index, 0);
    assert_eq!(spread_position("").of(0), 0);
}

/// TestGenerateVolumeNodeAffinity.
#[test]
fn node_affinity_from_the_answer() {
    let expression = |key: &str, value: &str| json!({"key": key, "operator": "In", "values": [value]});
    let affinity = |terms: Value| Some(json!({"required": {"nodeSelectorTerms": terms}}));
    let rows = [
        ("", None),
        (" ", None),
        (
            "zone=1",
            affinity(json!([{"matchExpressions": [expression("zone", "1")]}])),
        ),
        (
            "zone=1 rack=2",
            affinity(json!([{"matchExpressions": [expression("rack", "2"), expression("zone", "1")]}])),
        ),
        (
            "zone=1|zone=2",
            affinity(
                json!([{"matchExpressions": [expression("zone", "1")]}, {"matchExpressions": [expression("zone", "2")]}]),
            ),
        ),
    ];
    for (text, wanted) in &rows {
        assert_eq!(node_affinity(&segments(text)), *wanted, "{text}");
    }
    tally("TestGenerateVolumeNodeAffinity", rows.len());
    assert_eq!(node_affinity(&[Segment::default()]), None);
}

/// TestTopologyTermSort, TestTopologyTermCompare and TestTopologyTermSubset.
#[test]
fn terms_are_sorted_and_compared() {
    // Two values of one key, as in the fourth row there, cannot be expressed here.
    let sorted = [
        ("", ""),
        ("zone=a", "zone=a"),
        ("zone=a instance=i", "instance=i zone=a"),
    ];
    for (text, wanted) in sorted {
        let found: Vec<String> = segment(text)
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        assert_eq!(found.join(" "), wanted);
    }
    tally("TestTopologyTermSort", sorted.len());
    let compared = [
        ("", "zone=a"),
        ("instance=i", "zone=a"),
        ("instance=i zone=a", "instance=i zone=b"),
    ];
    for (less, more) in compared {
        assert!(segment(less) < segment(more) && segment(more) > segment(less));
    }
    tally("TestTopologyTermCompare", compared.len());
    let subsets = [
        ("", "", true),
        ("", "zone=a", true),
        ("zone=a", "", false),
        ("zone=a", "zone=a", true),
        ("instance=i", "instance=i zone=a", true),
        ("instance=i zone=a", "instance=i", false),
        ("zone=a", "instance=i zone=a", true),
        ("instance=i zone=a", "zone=a", false),
        ("instance=i", "zone=a", false),
    ];
    for (part, whole, is_subset) in subsets {
        let shown = segment(part).is_subset_of(&segment(whole));
        assert_eq!(shown, is_subset, "{part} in {whole}");
    }
    tally("TestTopologyTermSubset", subsets.len());
}

/// TestProvisionWithDeletedNodeFromCache: the arguments are the same after the node is gone. There they are kept in memory; here the
/// marker has them, and they hold after a restart.
#[test]
fn what_was_recorded_comes_first_after_the_node_is_gone() {
    const LABELS: &[&str] = &["zone=1 rack=A", "zone=2 rack=B", "zone=3 rack=C"];
    const ALLOWED: &str = "zone=1 rack=A|zone=2 rack=B";
    let rows = [
        (false, true, ""),
        (false, true, ALLOWED),
        (true, true, ""),
        (true, true, ALLOWED),
        (false, false, ""),
        (false, false, ALLOWED),
        (true, false, ""),
        (true, false, ALLOWED),
    ];
    for (strict, selected, allowed) in rows {
        let before = Query {
            allowed,
            selected,
            strict,
            ..Query::new(LABELS, &["zone rack"; 3])
        };
        let first = before.ask().unwrap().unwrap();
        let recorded = selected.then(|| segment("rack=A zone=1"));
        let after = Query {
            nodes: before.nodes[1..].to_vec(),
            recorded: (recorded, first.first().cloned()),
            ..before
        };
        let again = after.ask().unwrap().unwrap();
        let wanted = first.preferred.first();
        assert_eq!(again.preferred.first(), wanted, "{strict} {selected} {allowed}");
        assert!(again.requisite.contains(&again.preferred[0]));
        assert!(!strict || !selected || again == first);
        // With no nodes at all it is still the same first term.
        let none = Query {
            nodes: Vec::new(),
            ..after
        };
        assert_eq!(none.ask().unwrap().unwrap().preferred.first(), first.preferred.first());
    }
    tally("TestProvisionWithDeletedNodeFromCache", rows.len());
}

#[test]
fn what_is_multiplied_out_is_bounded() {
    let many: Vec<String> = (0..1000).map(|at| at.to_string()).collect();
    let class = |topologies: Value| {
        let mut class = class_json();
        class["allowedTopologies"] = topologies;
        class_of(&class)
    };
    let values = |key: &str, count: usize| json!({"key": key, "values": &many[..count]});
    let hosts = many[..600].iter();
    let hosts = hosts.map(|host| json!({"matchLabelExpressions": [{"key": "host", "values": [host]}]}));
    for (topologies, count) in [
        (json!([{"matchLabelExpressions": [values("host", 1000)]}]), 1000),
        (hosts.collect(), 600),
        (
            json!([{"matchLabelExpressions": [values("a", 500)]}, {"matchLabelExpressions": [values("b", 500)]}]),
            1000,
        ),
        (
            json!([{"matchLabelExpressions": [values("a", 100), values("b", 100)]}]),
            MAX_TERMS,
        ),
    ] {
        assert_eq!(allowed_terms(&class(topologies)).unwrap().len(), count);
    }
    for topologies in [
        json!([{"matchLabelExpressions": [values("a", 100), values("b", 101)]}]),
        json!([{"matchLabelExpressions": [values("a", 100), values("b", 100), values("c", 100), values("d", 100)]}]),
        json!([
            {"matchLabelExpressions": [values("a", 100), values("b", 100)]}, {"matchLabelExpressions": [values("c", 1)]},
        ]),
    ] {
        let refusal = allowed_terms(&class(topologies)).unwrap_err();
        assert!(matches!(refusal, ProvisionRefusal::TooManySegments { .. }), "{refusal}");
    }
    let wide = || many[..200].iter().map(|key| json!({"key": key, "values": ["x"]}));
    let term = |expressions: Vec<Value>| class(json!([{"matchLabelExpressions": expressions}]));
    assert_eq!(allowed_terms(&term(wide().collect())).unwrap().len(), 1);
    let most = wide().chain([values("a", 100), values("b", 100)]);
    let refusal = allowed_terms(&term(most.collect())).unwrap_err();
    assert!(matches!(refusal, ProvisionRefusal::SegmentsTooLarge(_)), "{refusal}");
    // The API server accepts no key without a value; such a term says nothing, as with the sidecar.
    let empty = class(json!([{"matchLabelExpressions": [{"key": "zone", "values": []}]}]));
    assert!(allowed_terms(&empty).unwrap().is_empty() && is_unrestricted(&empty));
    assert!(allowed_terms(&class(json!(null))).unwrap().is_empty());
}

/// With a topology for each node, thousands of claims that wait for their answers or their binding would else need more memory than there is.
#[test]
fn all_claims_share_the_topologies_of_the_nodes() {
    let query = |selected: bool| Query {
        selected,
        ..Query::new(
            &["zone=1 rack=A", "zone=2 rack=B", "zone=3"],
            &["rack zone", "rack zone", "zone"],
        )
    };
    for selected in [false, true] {
        let query = query(selected);
        let facts = query.facts();
        let places = |recorded: Option<&str>| {
            let query = Query {
                recorded: (None, recorded.map(segment)),
                nodes: query.nodes.clone(),
                ..query
            };
            let found = query.ask_of(&facts).unwrap().unwrap();
            // All of them and all of them once more: the order that is preferred is a part of that.
            let from = found.preferred.as_ptr().addr() - found.requisite.as_ptr().addr();
            assert_eq!(from % size_of::<Segment>(), 0);
            let first = from / size_of::<Segment>();
            assert!(first < found.requisite.len(), "{first}");
            assert_eq!(found.first(), found.requisite.get(first));
            // What markers have of them is worked out once as well.
            let hash = found.requisite.stable_hash().as_ptr().addr();
            (found.requisite.as_ptr().addr(), hash)
        };
        let one = places(None);
        assert_eq!(places(None), one);
        assert_eq!(places(Some("zone=2 rack=B")), one, "an open call goes on");
    }
}

/// The same of what a class allows. One that is changed in place is read again.
#[test]
fn all_claims_share_what_their_class_allows() {
    let query = |allowed: &'static str, selected: bool| Query {
        allowed,
        selected,
        ..Query::new(&["zone=1 rack=A"], &["rack zone"])
    };
    let facts = query("", false).facts();
    let ask = |allowed: &'static str, selected: bool| {
        let found = query(allowed, selected).ask_of(&facts);
        found.unwrap().unwrap().requisite
    };
    let one = ask("zone=1,2", false);
    for again in [ask("zone=1,2", false), ask("zone=1,2", true)] {
        assert_eq!(again.as_ptr(), one.as_ptr());
    }
    assert_eq!(ask("zone=1,3", false).to_vec(), segments("zone=1|zone=3"));
}

/// Where only the topology of the selected node is sent, it does not matter how many others the class allows.
#[test]
fn strict_topology_has_no_bound_of_allowed_topologies() {
    let values: Vec<String> = (0..101).map(|at| at.to_string()).collect();
    let values = values.join(",");
    let allowed: &'static str = format!("zone={values} rack={values}").leak();
    let ask = |strict: bool, node: &str| {
        let query = Query {
            allowed,
            strict,
            selected: true,
            ..Query::new(&[node], &["rack zone"])
        };
        query.ask().map(|found| found.unwrap().requisite.to_vec())
    };
    assert_eq!(ask(true, "zone=7 rack=100"), Ok(segments("zone=7 rack=100")));
    let refused = |strict: bool, node: &str| ask(strict, node).unwrap_err();
    let refusal = refused(true, "zone=7 rack=101");
    assert!(matches!(refusal, ProvisionRefusal::NodeNotAllowed { .. }));
    let refusal = refused(false, "zone=7 rack=100");
    let is_too_much = matches!(refusal, ProvisionRefusal::TooManySegments { count: 10_201, .. });
    assert!(is_too_much, "{refusal}");
}

/// A driver of local volumes has a topology for each node.
#[test]
fn large_clusters_are_served_up_to_a_bound() {
    let local = |count: usize| {
        let names: Vec<String> = (0..count).map(|at| format!("n{at}")).collect();
        let nodes = names.iter().map(|name| node(name, &[("host", name)])).collect();
        let query = Query {
            nodes,
            ..Query::new(&[], &[])
        };
        query.ask().map(|found| found.unwrap().requisite.len())
    };
    assert_eq!(local(2000), Ok(2000));
    let refusal = local(10_001).unwrap_err();
    let is_too_much = matches!(refusal, ProvisionRefusal::TooManySegments { count: 10_001, .. });
    assert!(is_too_much, "{refusal}");
}
