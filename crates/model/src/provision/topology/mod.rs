//! Where a volume must or should be reachable from (CSI spec, "TopologyRequirement").
//!
//! A node *counts for a key set* when the driver registered it with all of these keys and its labels have them.

mod requirement;
mod segment;
mod terms;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, OnceLock};

pub use requirement::{SpreadPosition, TopologyQuery, TopologyRequirement, requirement, spread_position};
pub use segment::{MAX_TERMS, MAX_TERMS_SIZE, Segment};
pub use terms::{Terms, allowed_terms, is_allowed, is_unrestricted};

use super::seen::Seen;
use crate::objects::StringMap;
use terms::{AllowedTerms, terms_of};

/// A node on which the driver is registered, and of which there is a Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologyNode {
    /// Its name.
    pub name: Arc<str>,
    /// The topology keys of the driver in its CSINode, sorted.
    pub keys: Arc<[Box<str>]>,
    /// The labels of the Node; those that are no topology key may be missing.
    pub labels: StringMap,
}

/// What is known of a node, such as the one that kube-scheduler selected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownNode {
    /// Labels of the Node; those that are no topology key of the driver may be missing.
    pub labels: Seen<StringMap>,
    /// Topology keys of the driver in the CSINode, sorted; empty where the CSINode does not name the driver.
    pub keys: Seen<Arc<[Box<str>]>>,
}

impl KnownNode {
    /// One that nobody selected, or that is gone.
    pub const GONE: Self = Self {
        labels: Seen::Gone,
        keys: Seen::Gone,
    };

    /// Whether the node is gone: no Node or no CSINode of its name.
    pub fn is_gone(&self) -> bool {
        matches!(self.labels, Seen::Gone) || matches!(self.keys, Seen::Gone)
    }

    /// Whether it is not known if the node is there.
    pub fn is_unknown(&self) -> bool {
        matches!(self.labels, Seen::Unknown) || matches!(self.keys, Seen::Unknown)
    }
}

/// The nodes of a driver.
#[derive(Clone, Debug, Default)]
pub struct TopologyFacts {
    /// Whether the lists of CSINodes and Nodes are complete.
    pub complete: bool,
    /// Those on which the driver is registered with at least one topology key.
    nodes: Vec<TopologyNode>,
    /// Hash of the nodes: thousands of them are not gone through for each look at a claim.
    digest: u64,
    /// The distinct key sets, sorted, and what the nodes have for each, once that was asked for: all claims share it.
    terms: BTreeMap<Arc<[Box<str>]>, OnceLock<Terms>>,
    /// The same for all key sets together.
    aggregated: OnceLock<Terms>,
    /// What the classes allow, of those that were asked for.
    allowed: AllowedTerms,
}

impl TopologyFacts {
    /// These nodes, in any order; `complete` says whether there may be more.
    pub fn new(complete: bool, mut nodes: Vec<TopologyNode>) -> Self {
        nodes.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        let mut hasher = DefaultHasher::new();
        for node in &nodes {
            node.keys.hash(&mut hasher);
            node.labels.hash(&mut hasher);
        }
        let key_sets = nodes.iter().map(|node| node.keys.clone());
        Self {
            complete,
            digest: hasher.finish(),
            terms: key_sets.map(|keys| (keys, OnceLock::new())).collect(),
            aggregated: OnceLock::new(),
            allowed: AllowedTerms::default(),
            nodes,
        }
    }

    /// The topologies of the nodes that count for a key set; sorted, none twice.
    fn terms(&self, keys: &[Box<str>]) -> Terms {
        match self.terms.get(keys) {
            Some(known) => known.get_or_init(|| terms_of(&self.nodes, keys)).clone(),
            None => terms_of(&self.nodes, keys),
        }
    }

    /// The topologies of all nodes: for each distinct key set those of the nodes that count for it; sorted, none twice.
    fn all_terms(&self) -> Terms {
        let aggregate = || {
            let terms: Vec<Terms> = self.terms.keys().map(|keys| self.terms(keys)).collect();
            if let [only] = &terms[..] {
                return only.clone();
            }
            let terms: BTreeSet<&Segment> = terms.iter().flat_map(|terms| terms.iter()).collect();
            terms.into_iter().cloned().collect::<Vec<_>>().into()
        };
        self.aggregated.get_or_init(aggregate).clone()
    }

    /// Those on which the driver is registered with at least one topology key, by name.
    pub fn nodes(&self) -> &[TopologyNode] {
        &self.nodes
    }

    /// Hash of their keys and labels.
    pub const fn digest(&self) -> u64 {
        self.digest
    }

    /// Whether the driver registered this key on some node; any key, where nothing is registered at all and nothing can be checked.
    pub fn has_key(&self, key: &str) -> bool {
        let registers = |node: &TopologyNode| node.keys.binary_search_by(|known| (**known).cmp(key)).is_ok();
        self.nodes.is_empty() || self.nodes.iter().any(registers)
    }
}
