//! A map of strings that is small in memory.

use std::collections::BTreeMap;

/// A small sorted map of strings: an eighth of the memory of a `BTreeMap` when it is empty, which is the usual case.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct StringMap(Box<[(Box<str>, Box<str>)]>);

impl StringMap {
    /// The value under `key`.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0
            .binary_search_by(|(own, _)| (**own).cmp(key))
            .ok()
            .map(|at| &*self.0[at].1)
    }

    /// Entries sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (&**key, &**value))
    }

    /// The entries whose keys are to be kept.
    #[must_use]
    pub fn filtered(&self, is_kept: impl Fn(&str) -> bool) -> Self {
        Self(self.0.iter().filter(|(key, _)| is_kept(key)).cloned().collect())
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<BTreeMap<String, String>> for StringMap {
    fn from(map: BTreeMap<String, String>) -> Self {
        Self(map.into_iter().map(|(key, value)| (key.into(), value.into())).collect())
    }
}
