//! What several objects say, with how many say it.

use std::collections::BTreeMap;

/// Keys, each with how often it was put in: mostly one, which costs no more than itself.
#[derive(Clone, Debug)]
pub(super) enum Counted<K> {
    One(K, u32),
    Several(BTreeMap<K, u32>),
}

impl<K: Ord + Clone> Counted<K> {
    pub fn add(&mut self, key: K) {
        match self {
            Self::One(known, count) if *known == key => *count += 1,
            Self::One(known, count) => *self = Self::Several([(known.clone(), *count), (key, 1)].into()),
            Self::Several(all) => *all.entry(key).or_default() += 1,
        }
    }

    /// Undoes one [`Counted::add`]; true when nothing is left.
    pub fn remove(&mut self, key: &K) -> bool {
        match self {
            Self::One(known, count) => {
                if known == key {
                    *count = count.saturating_sub(1);
                }
                *count == 0
            }
            Self::Several(all) => {
                if let Some(count) = all.get_mut(key) {
                    *count = count.saturating_sub(1);
                    if *count == 0 {
                        all.remove(key);
                    }
                }
                if let (1, Some((last, count))) = (all.len(), all.first_key_value()) {
                    *self = Self::One(last.clone(), *count);
                    return false;
                }
                all.is_empty()
            }
        }
    }

    /// In their order, each once.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        let (one, several) = match self {
            Self::One(key, _) => (Some(key), None),
            Self::Several(all) => (None, Some(all.keys())),
        };
        one.into_iter().chain(several.into_iter().flatten())
    }
}
