//! [`AttachmentMap`]: something about attachments, without those that are gone.

use std::collections::HashMap;
use std::sync::Arc;

/// Values by the name of a VolumeAttachment.
///
/// An attachment may end without a notification to those that keep something about it. Entries of attachments that are gone are
/// removed when the map has doubled since the last time: so each entry costs two look-ups in the cache, however many there are.
pub(in crate::driver) struct AttachmentMap<V> {
    entries: HashMap<Arc<str>, V>,
    least: usize,
    /// The size at which entries of attachments that are gone are removed.
    look_at: usize,
}

impl<V> AttachmentMap<V> {
    /// An empty map, which removes nothing below `least` entries.
    pub fn new(least: usize) -> Self {
        Self {
            entries: HashMap::new(),
            least,
            look_at: least,
        }
    }

    pub fn get(&self, name: &str) -> Option<&V> {
        self.entries.get(name)
    }

    /// The value under a name, which is made when there is none. `exists` says whether an attachment is known.
    pub fn get_or_insert(
        &mut self,
        name: &Arc<str>,
        value: impl FnOnce() -> V,
        exists: impl Fn(&str) -> bool,
    ) -> &mut V {
        if self.entries.len() >= self.look_at && !self.entries.contains_key(name) {
            self.entries.retain(|name, _| exists(name));
            self.look_at = self.least.max(self.entries.len() * 2);
        }
        self.entries.entry(name.clone()).or_insert_with(value)
    }

    pub fn remove(&mut self, name: &str) {
        self.entries.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const LEAST: usize = 64;

    /// All start to wait, and again at each retry, while all exist.
    #[test]
    fn an_entry_costs_two_looks_however_many_there_are() {
        for many in [500_u32, 2000, 8192] {
            let look_ups = Cell::new(0);
            let mut map = AttachmentMap::new(LEAST);
            for _retry in 0..3 {
                for number in 0..many {
                    let name: Arc<str> = number.to_string().into();
                    map.get_or_insert(
                        &name,
                        || (),
                        |_| {
                            look_ups.set(look_ups.get() + 1);
                            true
                        },
                    );
                }
            }
            assert!(look_ups.get() <= 2 * many, "{many}: {} look-ups", look_ups.get());
        }
    }

    #[test]
    fn what_is_gone_is_not_kept() {
        let mut map = AttachmentMap::new(LEAST);
        for number in 0..1000 {
            let name: Arc<str> = number.to_string().into();
            map.get_or_insert(&name, || number, |known| known == "0");
        }
        assert!(map.entries.len() <= LEAST + 1, "{}", map.entries.len());
        assert_eq!(map.get("0"), Some(&0));
        // Once there were many; when they are gone, there are few again.
        let mut map = AttachmentMap::new(LEAST);
        for number in 0..10_000 {
            let name: Arc<str> = number.to_string().into();
            map.get_or_insert(&name, || number, |known| known.len() == 5 || number < 5_000);
        }
        assert!(map.entries.len() <= 8_192, "{}", map.entries.len());
    }
}
