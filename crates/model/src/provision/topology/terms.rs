//! Lists of topologies: those of nodes, and those that a class allows.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::{MAX_TERMS, MAX_TERMS_SIZE, Segment, TopologyNode};
use crate::objects::{StorageClass, TopologyExpression, kept_size};
use crate::provision::refusal::ProvisionRefusal;
use crate::stable_hash::stable_hash;

/// Topologies in an order that begins with any of them. Clones share them, wherever they begin: each of thousands of open calls names each of
/// thousands of nodes.
#[derive(Clone)]
pub struct Terms {
    all: Arc<AllTerms>,
    first: usize,
}

struct AllTerms {
    /// All of them, and all of them once more: a part of that is the same ones from another one on.
    twice: Box<[Segment]>,
    /// Hash of them from the first one on, once that was asked for: the markers of thousands of calls have it.
    hash: OnceLock<Arc<str>>,
}

impl Terms {
    /// The same ones, from this one on; those before it come last.
    pub(super) fn beginning_at(&self, first: usize) -> Self {
        let from = self.first + first;
        Self {
            all: self.all.clone(),
            first: from.checked_rem(self.len()).unwrap_or(0),
        }
    }

    /// Hash of them in this order, which is the same in every version: markers have it.
    pub(in crate::provision) fn stable_hash(&self) -> Arc<str> {
        let made = || -> Arc<str> {
            let terms = self.iter().flat_map(|term| {
                let entries = term.iter().flat_map(|(key, value)| [key, value]);
                std::iter::once("term").chain(entries)
            });
            Arc::from(stable_hash(terms))
        };
        // Those that are requisite begin with the first one.
        if self.first == 0 {
            self.all.hash.get_or_init(made).clone()
        } else {
            made()
        }
    }
}

impl Deref for Terms {
    type Target = [Segment];

    fn deref(&self) -> &[Segment] {
        let twice = &self.all.twice;
        let end = self.first + twice.len() / 2;
        twice.get(self.first..end).unwrap_or_default()
    }
}

impl From<Vec<Segment>> for Terms {
    fn from(terms: Vec<Segment>) -> Self {
        let all = AllTerms {
            twice: [&*terms, &*terms].concat().into(),
            hash: OnceLock::new(),
        };
        Self {
            all: Arc::new(all),
            first: 0,
        }
    }
}

impl PartialEq for Terms {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Terms {}

impl fmt::Debug for Terms {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, formatter)
    }
}

/// The allowedTopologies of a class, multiplied out: of each term every combination of one value for each key. Sorted, none twice;
/// empty when nothing is said.
///
/// # Errors
///
/// More than [`MAX_TERMS`], or than [`MAX_TERMS_SIZE`].
pub fn allowed_terms(class: &StorageClass) -> Result<Vec<Segment>, ProvisionRefusal> {
    let mut terms = BTreeSet::new();
    let mut bytes = 0_usize;
    for term in &class.allowed_topologies {
        // Before they are made, so that nothing large is built for a class that is refused.
        let counts = term.iter().map(|expression| expression.values.len());
        let count = counts.fold(1, usize::saturating_mul);
        within(MULTIPLIED_OUT, count)?;
        bytes = bytes.saturating_add(largest(term).saturating_mul(count));
        if bytes > MAX_TERMS_SIZE {
            return Err(ProvisionRefusal::SegmentsTooLarge(bytes));
        }
        terms.extend(product(term, count));
        within(MULTIPLIED_OUT, terms.len())?;
    }
    Ok(terms.into_iter().filter(|term| !term.is_empty()).collect())
}

/// What a class allows, in words.
const MULTIPLIED_OUT: &str = "allowedTopologies of the StorageClass, multiplied out,";

/// That a list has no more than [`MAX_TERMS`].
pub(super) fn within(what: &'static str, count: usize) -> Result<(), ProvisionRefusal> {
    if count <= MAX_TERMS {
        return Ok(());
    }
    Err(ProvisionRefusal::TooManySegments { what, count })
}

/// The size of the largest combination of a term.
fn largest(term: &[TopologyExpression]) -> usize {
    let entries = term.iter().map(|expression| {
        let values = expression.values.iter().map(|value| value.len());
        expression.key.len() + values.max().unwrap_or(0)
    });
    kept_size(entries)
}

/// So many combinations of the values of a term; of a key that stands there twice the last value counts.
fn product(term: &[TopologyExpression], count: usize) -> impl Iterator<Item = Segment> {
    (0..count).map(move |mut number| {
        let entries = term.iter().filter_map(|expression| {
            let at = number % expression.values.len();
            number /= expression.values.len();
            Some((expression.key.clone(), expression.values.get(at)?.clone()))
        });
        Segment::from(entries.collect::<BTreeMap<_, _>>())
    })
}

/// Whether a class allows a topology: all expressions of one of its terms hold there. The topology may have more keys than the term.
/// Nothing is multiplied out for that.
pub fn is_allowed(class: &StorageClass, segment: &Segment) -> bool {
    let holds = |expression: &TopologyExpression| {
        let value = segment.get(&expression.key);
        value.is_some_and(|value| expression.values.iter().any(|allowed| **allowed == *value))
    };
    let mut terms = class.allowed_topologies.iter();
    terms.any(|term| !term.is_empty() && term.iter().all(holds))
}

/// Whether no topology follows from what a class allows.
pub fn is_unrestricted(class: &StorageClass) -> bool {
    let mut terms = class.allowed_topologies.iter();
    terms.all(|term| term.is_empty() || term.iter().any(|expression| expression.values.is_empty()))
}

/// What classes allow, multiplied out, by the name of the class. All claims of a class share it: each of thousands of open calls may name
/// thousands of topologies.
#[derive(Clone, Debug, Default)]
pub(super) struct AllowedTerms(Arc<Mutex<BTreeMap<Arc<str>, MultipliedOut>>>);

#[derive(Clone, Debug)]
struct MultipliedOut {
    /// What the class said then.
    allowed: Box<[Box<[TopologyExpression]>]>,
    terms: Result<Terms, ProvisionRefusal>,
}

impl AllowedTerms {
    /// [`allowed_terms`] of a class.
    pub fn of(&self, class: &StorageClass) -> Result<Terms, ProvisionRefusal> {
        if class.allowed_topologies.is_empty() {
            return Ok(Vec::<Segment>::new().into());
        }
        let mut classes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = classes.get(&class.name)
            && known.allowed == class.allowed_topologies
        {
            return known.terms.clone();
        }
        let terms = allowed_terms(class).map(Terms::from);
        let known = MultipliedOut {
            allowed: class.allowed_topologies.clone(),
            terms: terms.clone(),
        };
        classes.insert(class.name.clone(), known);
        terms
    }
}

/// The topologies of the nodes that count for a key set; sorted, none twice.
pub(super) fn terms_of(nodes: &[TopologyNode], keys: &[Box<str>]) -> Terms {
    let covers = |registered: &[Box<str>]| keys.iter().all(|key| registered.binary_search(key).is_ok());
    let counting = nodes.iter().filter(|node| covers(&node.keys));
    let terms: BTreeSet<Segment> = counting
        .filter_map(|node| Segment::of_labels(keys, &node.labels).ok())
        .collect();
    terms.into_iter().collect::<Vec<_>>().into()
}
