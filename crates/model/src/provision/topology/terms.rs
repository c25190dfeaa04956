//! Lists of topologies: those of nodes, and those that a class allows.

use std::collections::{BTreeMap, BTreeSet};

use super::{MAX_SEGMENT_KEYS, Segment, TopologyFacts, TopologyNode};
use crate::objects::{StorageClass, TopologyExpression};
use crate::provision::refusal::ProvisionRefusal;

/// So many topologies the allowedTopologies of a class may come to when they are multiplied out.
pub const MAX_ALLOWED_TERMS: usize = 512;
/// So many topologies the nodes of a cluster may have. A driver of local volumes has one for each node.
pub const MAX_NODE_TERMS: usize = 10_000;

/// The allowedTopologies of a class, multiplied out: of each term every combination of one value for each key. Sorted, none twice;
/// empty when nothing is said.
///
/// # Errors
///
/// More than [`MAX_ALLOWED_TERMS`], or a term with more than [`MAX_SEGMENT_KEYS`] keys.
pub fn allowed_terms(class: &StorageClass) -> Result<Vec<Segment>, ProvisionRefusal> {
    let mut terms = BTreeSet::new();
    for term in &class.allowed_topologies {
        if term.len() > MAX_SEGMENT_KEYS {
            return Err(ProvisionRefusal::SegmentTooLarge {
                what: "allowedTopologies of the StorageClass",
                count: term.len(),
            });
        }
        terms.extend(product(term)?);
        within(terms.len())?;
    }
    Ok(terms.into_iter().filter(|term| !term.is_empty()).collect())
}

fn within(count: usize) -> Result<(), ProvisionRefusal> {
    if count <= MAX_ALLOWED_TERMS {
        return Ok(());
    }
    Err(ProvisionRefusal::TooManySegments {
        what: "allowedTopologies of the StorageClass, multiplied out,",
        count,
        limit: MAX_ALLOWED_TERMS,
    })
}

fn product(term: &[TopologyExpression]) -> Result<Vec<Segment>, ProvisionRefusal> {
    let mut combinations: Vec<BTreeMap<Box<str>, Box<str>>> = vec![BTreeMap::new()];
    for expression in term {
        // Before they are made, so that nothing large is built for a class that is refused.
        within(combinations.len().saturating_mul(expression.values.len()))?;
        let with = |combination: &BTreeMap<Box<str>, Box<str>>| {
            let combination = combination.clone();
            expression.values.iter().map(move |value| {
                let mut longer = combination.clone();
                longer.insert(expression.key.clone(), value.clone());
                longer
            })
        };
        combinations = combinations.iter().flat_map(with).collect();
    }
    Ok(combinations.into_iter().map(Segment::from).collect())
}

/// The topologies of the nodes that count for a key set; sorted, none twice.
pub(super) fn terms_of(nodes: &[TopologyNode], keys: &[Box<str>]) -> Box<[Segment]> {
    let covers = |registered: &[Box<str>]| keys.iter().all(|key| registered.contains(key));
    let counting = nodes.iter().filter(|node| covers(&node.keys));
    let terms: BTreeSet<Segment> = counting
        .filter_map(|node| Segment::of_labels(keys, &node.labels).ok())
        .collect();
    terms.into_iter().collect()
}

/// The topologies of all nodes: for each distinct key set those of the nodes that count for it.
pub(super) fn aggregated(facts: &TopologyFacts) -> BTreeSet<Segment> {
    facts
        .key_sets()
        .flat_map(|keys| facts.terms(keys).into_owned())
        .collect()
}
