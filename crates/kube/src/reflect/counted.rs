//! The ways between the records of tables: a map from keys to several values, each of which may be added several times.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher, Hash};

/// Keys with values. A value is there until it was removed as often as it was added.
#[derive(Clone)]
pub struct CountedMap<K, V>(BTreeMap<(K, V), u32>);

impl<K, V> Default for CountedMap<K, V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

/// The default of a value must not be greater than any other.
impl<K: Ord + Clone, V: Ord + Default> CountedMap<K, V> {
    /// Removes what an object said before, and adds what it says now.
    pub fn replace(&mut self, previous: impl IntoIterator<Item = (K, V)>, current: impl IntoIterator<Item = (K, V)>) {
        for entry in current {
            *self.0.entry(entry).or_default() += 1;
        }
        for entry in previous {
            if let Some(count) = self.0.get_mut(&entry) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    self.0.remove(&entry);
                }
            }
        }
    }

    /// The keys, in their order; each as often as it has values.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.0.keys().map(|(key, _)| key)
    }

    /// A key as it is kept: the one that came first of those that are equal.
    pub fn kept(&self, key: &K) -> Option<K> {
        self.entries(key.clone()).next().map(|(kept, _)| kept.clone())
    }

    /// The key as it is kept, and its values in their order, each once.
    pub fn entries(&self, key: K) -> impl Iterator<Item = (&K, &V)> {
        let entries = self.0.range((key.clone(), V::default())..).map(|(entry, _)| entry);
        entries
            .take_while(move |entry| entry.0 == key)
            .map(|(key, value)| (key, value))
    }
}

/// A key of a few bytes. Two may have the same.
pub fn hash(of: impl Hash) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(of)
}
