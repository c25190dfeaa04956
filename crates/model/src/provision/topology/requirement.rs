//! The topologies that a volume must and should be reachable from.

use std::sync::Arc;

use super::spread::spread_position;
use super::terms::{MAX_NODE_TERMS, aggregated, allowed_terms};
use super::{KnownNode, Segment, TopologyFacts};
use crate::objects::StorageClass;
use crate::provision::policy::ProvisionPolicy;
use crate::provision::refusal::ProvisionRefusal;
use crate::provision::seen::Seen;

/// `TopologyRequirement` of the CSI spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologyRequirement {
    /// One of these, at least.
    pub requisite: Vec<Segment>,
    /// The same ones, the best first.
    pub preferred: Vec<Segment>,
}

impl TopologyRequirement {
    /// The first preferred term.
    pub fn first(&self) -> Option<&Segment> {
        self.preferred.first()
    }
}

/// What a requirement is made from.
#[derive(Clone, Copy, Debug)]
pub struct TopologyQuery<'a> {
    /// Name of the driver.
    pub driver: &'a Arc<str>,
    /// The class: delayed binding or immediate, and what it allows.
    pub class: &'a StorageClass,
    /// Name of the claim, by which volumes are spread.
    pub claim: &'a str,
    /// Name of the selected node, and what is known of it.
    pub selected: Option<(&'a Arc<str>, &'a KnownNode)>,
    /// Of an uncertain call: the topology of the node that was selected then. It stands for the selected node, whatever is there now.
    pub recorded_segment: Option<&'a Segment>,
    /// Of an uncertain call: its first preferred term.
    pub recorded_first: Option<&'a Segment>,
    /// The nodes.
    pub facts: &'a TopologyFacts,
    /// Settings.
    pub policy: &'a ProvisionPolicy,
}

impl TopologyQuery<'_> {
    /// Whether the class has allowedTopologies, be it that no topology follows from them: external-provisioner asks for none then.
    fn is_restricted(&self) -> bool {
        !self.class.allowed_topologies.is_empty()
    }
}

/// The requirement of a CreateVolume, and the topology of the selected node; no requirement where nothing is to be sent.
///
/// # Errors
///
/// Nodes, labels or keys are missing; what a class allows excludes the selected node, or is too large.
pub fn requirement(
    query: &TopologyQuery<'_>,
) -> Result<(Option<TopologyRequirement>, Option<Segment>), ProvisionRefusal> {
    let built = if query.class.delayed && (query.selected.is_some() || query.recorded_segment.is_some()) {
        delayed(query).map(|(requirement, segment)| (requirement, Some(segment)))
    } else {
        immediate(query).map(|requirement| (requirement, None))
    };
    match (built, query.recorded_first) {
        (Ok((Some(requirement), segment)), Some(first)) => Ok((Some(beginning_with(requirement, first)), segment)),
        // The call was made with this term, and it is made again whatever is missing now.
        (Err(_) | Ok((None, _)), Some(first)) => {
            let requirement = rotated(vec![first.clone()], 0);
            Ok((Some(requirement), query.recorded_segment.cloned()))
        }
        (built, None) => built,
    }
}

fn delayed(query: &TopologyQuery<'_>) -> Result<(Option<TopologyRequirement>, Segment), ProvisionRefusal> {
    let segment = match query.recorded_segment {
        Some(recorded) => recorded.clone(),
        None => selected_segment(query)?,
    };
    let (is_restricted, allowed) = (query.is_restricted(), allowed_terms(query.class)?);
    let not_allowed = || ProvisionRefusal::NodeNotAllowed {
        node: query.selected.map_or_else(|| Arc::from(""), |(name, _)| name.clone()),
        segment: segment.clone(),
        class: query.class.name.clone(),
    };
    let first_allowed = allowed.iter().position(|term| term.is_subset_of(&segment));
    if query.policy.strict_topology {
        if is_restricted && first_allowed.is_none() {
            return Err(not_allowed());
        }
        return Ok((Some(rotated(vec![segment.clone()], 0)), segment));
    }
    if is_restricted && allowed.is_empty() {
        return Ok((None, segment));
    }
    if is_restricted {
        let first = first_allowed.ok_or_else(not_allowed)?;
        return Ok((Some(rotated(allowed, first)), segment));
    }
    let keys: Vec<Box<str>> = segment.iter().map(|(key, _)| key.into()).collect();
    let mut terms = query.facts.terms(&keys).into_owned();
    // The selected node counts also where the list of nodes is late.
    if let Err(at) = terms.binary_search(&segment) {
        terms.insert(at, segment.clone());
    }
    let terms = bounded(terms)?;
    let first = terms.iter().position(|term| *term == segment).unwrap_or(0);
    Ok((Some(rotated(terms, first)), segment))
}

fn selected_segment(query: &TopologyQuery<'_>) -> Result<Segment, ProvisionRefusal> {
    let no_keys = |node: &Arc<str>| ProvisionRefusal::NoTopologyKeys {
        node: node.clone(),
        driver: query.driver.clone(),
    };
    let Some((name, node)) = query.selected else {
        return Err(ProvisionRefusal::NoTopology(query.driver.clone()));
    };
    let (Seen::Here(keys), Seen::Here(labels)) = (&node.keys, &node.labels) else {
        return Err(no_keys(name));
    };
    if keys.is_empty() {
        return Err(no_keys(name));
    }
    Segment::of_labels(keys, labels).map_err(|key| ProvisionRefusal::NodeLabelMissing {
        node: name.clone(),
        key: key.into(),
        driver: query.driver.clone(),
    })
}

fn immediate(query: &TopologyQuery<'_>) -> Result<Option<TopologyRequirement>, ProvisionRefusal> {
    let mut terms = allowed_terms(query.class)?;
    if terms.is_empty() {
        if query.is_restricted() || !query.policy.aggregate_topology {
            return Ok(None);
        }
        let Some(any) = query.facts.nodes().first() else {
            return Err(ProvisionRefusal::NoTopology(query.driver.clone()));
        };
        terms = bounded(aggregated(query.facts).into_iter().collect())?;
        if terms.is_empty() {
            return Err(ProvisionRefusal::TopologyLabelsMissing {
                keys: any.keys.join(", ").into(),
                driver: query.driver.clone(),
            });
        }
    }
    let first = spread_position(query.claim).of(terms.len());
    Ok(Some(rotated(terms, first)))
}

fn bounded(terms: Vec<Segment>) -> Result<Vec<Segment>, ProvisionRefusal> {
    if terms.len() <= MAX_NODE_TERMS {
        return Ok(terms);
    }
    Err(ProvisionRefusal::TooManySegments {
        what: "the cluster",
        count: terms.len(),
        limit: MAX_NODE_TERMS,
    })
}

fn rotated(terms: Vec<Segment>, first: usize) -> TopologyRequirement {
    let mut preferred = terms.clone();
    let first = first.min(preferred.len());
    preferred.rotate_left(first);
    TopologyRequirement {
        requisite: terms,
        preferred,
    }
}

/// The same terms, with the recorded one first; it is added where it is none of them any more.
fn beginning_with(mut requirement: TopologyRequirement, recorded: &Segment) -> TopologyRequirement {
    if !requirement.requisite.contains(recorded) {
        requirement.requisite.push(recorded.clone());
        requirement.requisite.sort_unstable();
    }
    let at = requirement.preferred.iter().position(|term| term == recorded);
    match at {
        Some(at) => requirement.preferred.rotate_left(at),
        None => requirement.preferred.insert(0, recorded.clone()),
    }
    requirement
}
