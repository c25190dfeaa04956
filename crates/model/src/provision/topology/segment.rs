//! One topology: keys with their values.

use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::objects::{StringMap, kept_size};

/// So many topologies a list may have: those of the nodes of a cluster, those that a class allows, and those that a driver answers. A
/// driver of local volumes has one for each node.
pub const MAX_TERMS: usize = 10_000;

/// So much memory the topologies may need that a class allows, multiplied out. With [`MAX_TERMS`] of them that is about 50 keys for each.
pub const MAX_TERMS_SIZE: usize = 64 << 20;

/// One topology (CSI spec, "Topology"): its entries, sorted by key, no key twice. Clones share them: each of thousands of open calls may
/// name the topology of each of thousands of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "BTreeMap<Box<str>, Box<str>>", into = "BTreeMap<Box<str>, Box<str>>")]
pub struct Segment(Arc<[(Box<str>, Box<str>)]>);

impl Segment {
    /// The entries, sorted by key.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (&**key, &**value))
    }

    /// How many keys it has.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// How much memory it needs, as [`kept_size`] counts it.
    pub fn kept_size(&self) -> usize {
        kept_size(self.iter().map(|(key, value)| key.len() + value.len()))
    }

    /// Whether it has no keys.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        let at = self.0.binary_search_by(|(own, _)| (**own).cmp(key)).ok()?;
        self.0.get(at).map(|(_, value)| &**value)
    }

    /// Whether each of its entries is one of `other`.
    pub fn is_subset_of(&self, other: &Self) -> bool {
        self.iter().all(|(key, value)| other.get(key) == Some(value))
    }

    /// The values that the labels of a node have for these keys; the key that is missing.
    pub fn of_labels<'k>(keys: &'k [Box<str>], labels: &StringMap) -> Result<Self, &'k str> {
        let entry = |key: &'k str| match labels.get(key) {
            Some(value) => Ok((Box::from(key), Box::from(value))),
            None => Err(key),
        };
        let entries: Result<BTreeMap<Box<str>, Box<str>>, _> = keys.iter().map(|key| entry(key)).collect();
        entries.map(Self::from)
    }
}

impl From<BTreeMap<Box<str>, Box<str>>> for Segment {
    fn from(entries: BTreeMap<Box<str>, Box<str>>) -> Self {
        Self(entries.into_iter().collect())
    }
}

impl From<Segment> for BTreeMap<Box<str>, Box<str>> {
    fn from(segment: Segment) -> Self {
        segment.0.iter().cloned().collect()
    }
}

impl<const N: usize> From<[(&str, &str); N]> for Segment {
    fn from(entries: [(&str, &str); N]) -> Self {
        let entries = entries.into_iter().map(|(key, value)| (key.into(), value.into()));
        Self::from(entries.collect::<BTreeMap<Box<str>, Box<str>>>())
    }
}

/// The order of the sidecar: fewer keys first, then entry by entry, key before value.
impl Ord for Segment {
    fn cmp(&self, other: &Self) -> Ordering {
        self.len().cmp(&other.len()).then_with(|| self.0.cmp(&other.0))
    }
}

impl PartialOrd for Segment {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Segment {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (key, value)) in self.iter().enumerate() {
            let separator = if at > 0 { ", " } else { "" };
            write!(formatter, "{separator}{key}={value}")?;
        }
        Ok(())
    }
}
