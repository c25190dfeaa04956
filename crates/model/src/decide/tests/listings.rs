//! What a listing costs, and which entry of it counts.

use crate::decide::ListedEvidence;
use crate::decide::reconcile::{DesiredState, Expectation, Listing};

fn shared(number: usize, node_id: &str) -> Expectation {
    Expectation {
        name: format!("va{number}").into(),
        uid: "u".into(),
        handle: "shared".into(),
        node_id: node_id.into(),
        former_node_id: None,
        wanted: DesiredState::Published,
    }
}

/// A listing of one volume at 100,000 nodes would be read for minutes if each node were compared with each attachment, and for as
/// long if each entry were: a driver may list a volume once for each node.
#[test]
fn a_volume_on_many_nodes_costs_as_much_as_its_listing_is_long() {
    const MANY: usize = 100_000;
    let id = |number: usize| format!("projects/p/zones/z/instances/node-{number:06}");
    let expectations = (0..MANY).map(|number| Expectation {
        former_node_id: (number % 2 == 0).then(|| format!("former-{number}").into()),
        ..shared(number, &id(number))
    });
    let nodes: Vec<String> = (0..MANY).map(id).collect();
    let known = nodes.iter().map(|node| node.as_str().into()).collect();
    let listing = Listing::about(expectations.collect()).with_nodes(known);
    let mut listing = listing.looking_for_unclaimed(Vec::new());
    for node in nodes.chunks(1) {
        listing.add("shared", Some(node));
    }
    listing.add("shared", Some(&nodes[1..]));
    let compared = listing.compare();
    assert_eq!((compared.agreed.len(), compared.contradicted.len()), (MANY - 1, 1));
    assert_eq!(&*compared.contradicted[0].name, "va0");
    assert!(compared.unclaimed.is_empty());
}

#[test]
fn the_last_entry_of_a_volume_counts_for_each_of_its_attachments() {
    let former = Expectation {
        former_node_id: Some("old".into()),
        ..shared(3, "new")
    };
    let expectations = vec![former, shared(2, "n2"), shared(1, "n1"), shared(4, "n1")];
    let outcome = |entries: &[Option<&[&str]>]| {
        let mut listing = Listing::about(expectations.clone());
        for nodes in entries {
            let nodes: Option<Vec<String>> = nodes.map(|nodes| nodes.iter().map(ToString::to_string).collect());
            listing.add("shared", nodes.as_deref());
            listing.add("another", nodes.as_deref());
        }
        let compared = listing.compare();
        [compared.agreed, compared.contradicted].map(|found| {
            let mut names: Vec<_> = found.iter().map(|expected| expected.name.to_string()).collect();
            names.sort_unstable();
            names.join(" ")
        })
    };
    assert_eq!(outcome(&[]), ["", "va1 va2 va3 va4"]);
    assert_eq!(outcome(&[Some(&["n1", "n2", "old"])]), ["va1 va2 va3 va4", ""]);
    assert_eq!(outcome(&[Some(&["new"])]), ["va3", "va1 va2 va4"]);
    assert_eq!(outcome(&[Some(&["n1"]), Some(&["n2"])]), ["va2", "va1 va3 va4"]);
    assert_eq!(outcome(&[Some(&["n1"]), None]), ["", ""], "it does not say where");
    assert_eq!(outcome(&[None, Some(&[])]), ["", "va1 va2 va3 va4"]);
}

/// What is in doubt proves nothing: that the last entry counts is a rule of the comparison alone.
#[test]
fn a_release_rests_on_every_entry_of_a_volume() {
    let evidence = |entries: &[Option<&[&str]>]| {
        let listing = Listing::about(vec![shared(1, "n1"), shared(1, "n2")]);
        let mut listing = listing.with_nodes(["n1", "n2", "n3"].map(Into::into).into());
        for nodes in entries {
            let nodes: Option<Vec<String>> = nodes.map(|nodes| nodes.iter().map(ToString::to_string).collect());
            listing.add("shared", nodes.as_deref());
        }
        listing.evidence()
    };
    let at = |id: &str| ListedEvidence::At(id.to_owned());
    assert_eq!(evidence(&[]), ListedEvidence::Silent);
    assert_eq!(evidence(&[Some(&["n3"])]), ListedEvidence::NotThere);
    assert_eq!(evidence(&[Some(&[])]), ListedEvidence::NotThere);
    let found = evidence(&[Some(&["n1"]), Some(&["n3"])]);
    assert_eq!(found, at("n1"), "one entry for each node");
    assert_eq!(evidence(&[Some(&["n3"]), Some(&["n2"])]), at("n2"));
    assert_eq!(evidence(&[Some(&["n2"]), None]), at("n2"));
    let wanted = ListedEvidence::Silent;
    assert_eq!(evidence(&[None, Some(&[])]), wanted, "the first does not say where");
    // A driver may list the place under another form of its ID.
    let wanted = ListedEvidence::AtUnknown("zone/n1".to_owned());
    assert_eq!(evidence(&[Some(&["n3", "zone/n1"])]), wanted);
    assert_eq!(evidence(&[Some(&["zone/n1", "n2"])]), at("n2"));
}
