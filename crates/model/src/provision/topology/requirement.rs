//! The topologies that a volume must and should be reachable from.

use std::sync::Arc;

use super::terms::{Terms, is_allowed, within};
use super::{KnownNode, Segment, TopologyFacts};
use crate::decide::cut;
use crate::objects::StorageClass;
use crate::provision::policy::ProvisionPolicy;
use crate::provision::refusal::ProvisionRefusal;
use crate::provision::seen::Seen;

/// `TopologyRequirement` of the CSI spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologyRequirement {
    /// One of these, at least.
    pub requisite: Terms,
    /// The same ones, the best first.
    pub preferred: Terms,
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
            let requirement = beginning_at(vec![first.clone()].into(), 0);
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
    let is_restricted = query.is_restricted();
    let not_allowed = || ProvisionRefusal::NodeNotAllowed {
        node: query.selected.map_or_else(|| Arc::from(""), |(name, _)| name.clone()),
        segment: segment.clone(),
        class: query.class.name.clone(),
    };
    if query.policy.strict_topology {
        if is_restricted && !is_allowed(query.class, &segment) {
            return Err(not_allowed());
        }
        return Ok((Some(beginning_at(vec![segment.clone()].into(), 0)), segment));
    }
    if is_restricted {
        let allowed = query.facts.allowed.of(query.class)?;
        if allowed.is_empty() {
            return Ok((None, segment));
        }
        let first = allowed.iter().position(|term| term.is_subset_of(&segment));
        let first = first.ok_or_else(not_allowed)?;
        return Ok((Some(beginning_at(allowed, first)), segment));
    }
    let keys: Vec<Box<str>> = segment.iter().map(|(key, _)| key.into()).collect();
    let mut terms = query.facts.terms(&keys);
    // The selected node counts also where the list of nodes is late.
    if let Err(at) = terms.binary_search(&segment) {
        let mut more = terms.to_vec();
        more.insert(at, segment.clone());
        terms = more.into();
    }
    within("the cluster", terms.len())?;
    let first = terms.iter().position(|term| *term == segment).unwrap_or(0);
    Ok((Some(beginning_at(terms, first)), segment))
}

fn selected_segment(query: &TopologyQuery<'_>) -> Result<Segment, ProvisionRefusal> {
    let driver = query.driver.clone();
    let Some((name, node)) = query.selected else {
        return Err(ProvisionRefusal::NoTopology(driver));
    };
    let name = name.clone();
    match (&node.keys, &node.labels) {
        (Seen::Here(keys), Seen::Here(labels)) if !keys.is_empty() => {
            Segment::of_labels(keys, labels).map_err(|key| ProvisionRefusal::NodeLabelMissing {
                node: name,
                key: key.into(),
                driver,
            })
        }
        _ => Err(ProvisionRefusal::NoTopologyKeys { node: name, driver }),
    }
}

fn immediate(query: &TopologyQuery<'_>) -> Result<Option<TopologyRequirement>, ProvisionRefusal> {
    let mut terms = query.facts.allowed.of(query.class)?;
    if terms.is_empty() {
        if query.is_restricted() || !query.policy.aggregate_topology {
            return Ok(None);
        }
        let Some(any) = query.facts.nodes().first() else {
            return Err(ProvisionRefusal::NoTopology(query.driver.clone()));
        };
        terms = query.facts.all_terms();
        within("the cluster", terms.len())?;
        if terms.is_empty() {
            return Err(ProvisionRefusal::TopologyLabelsMissing {
                // A driver may have registered hundreds.
                keys: cut(&any.keys.join(", "), 512).into(),
                driver: query.driver.clone(),
            });
        }
    }
    let first = spread_position(query.claim).of(terms.len());
    Ok(Some(beginning_at(terms, first)))
}

fn beginning_at(terms: Terms, first: usize) -> TopologyRequirement {
    TopologyRequirement {
        preferred: terms.beginning_at(first),
        requisite: terms,
    }
}

/// The same terms, with the recorded one first; it is added where it is none of them any more.
fn beginning_with(mut requirement: TopologyRequirement, recorded: &Segment) -> TopologyRequirement {
    let at = requirement.preferred.iter().position(|term| term == recorded);
    if let Some(at) = at {
        requirement.preferred = requirement.preferred.beginning_at(at);
        return requirement;
    }
    let preferred = [std::slice::from_ref(recorded), &*requirement.preferred].concat();
    let mut requisite = preferred.clone();
    requisite.sort_unstable();
    TopologyRequirement {
        requisite: requisite.into(),
        preferred: preferred.into(),
    }
}

/// Where a claim begins in a list of terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpreadPosition {
    /// Hash of the name of the set.
    pub hash: u32,
    /// Number of the pod in the set.
    pub index: u32,
}

impl SpreadPosition {
    /// The position in a list of this many terms; 0 in an empty one.
    pub fn of(self, terms: usize) -> usize {
        let Some(terms) = u32::try_from(terms).ok().filter(|terms| *terms > 0) else {
            return 0;
        };
        usize::try_from(self.hash.wrapping_add(self.index) % terms).unwrap_or(0)
    }
}

/// Where the claim of this name begins, as external-provisioner computes it.
///
/// The claims of a StatefulSet are named `<template>-<set>-<number>`. The number is added to the hash of the set, so that the pods go
/// through the terms one after the other, and the claims of one pod begin at the same term. `<name>-<number>` hashes the name; any other
/// name is hashed as a whole.
pub fn spread_position(claim: &str) -> SpreadPosition {
    let numbered = claim.rsplit_once('-').and_then(|(name, number)| {
        // `+1` is no number of a pod.
        let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
        let number = number.parse::<u32>().ok().filter(|_| is_number)?;
        Some((name, number))
    });
    match numbered {
        Some((name, index)) => SpreadPosition {
            hash: fnv1(name.rsplit_once('-').map_or(name, |(_, set)| set)),
            index,
        },
        None => SpreadPosition {
            hash: fnv1(claim),
            index: 0,
        },
    }
}

/// FNV-1 of 32 bits.
fn fnv1(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash: u32, byte| {
        hash.wrapping_mul(0x0100_0193) ^ u32::from(byte)
    })
}
