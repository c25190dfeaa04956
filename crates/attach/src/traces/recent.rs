//! A small memory of what was last, by name; the oldest is forgotten first.

use std::collections::{HashMap, VecDeque};

use crate::telemetry::SpanContext;

const MAX_NAMES: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct RecentContexts {
    contexts: HashMap<Box<str>, SpanContext>,
    order: VecDeque<Box<str>>,
}

impl RecentContexts {
    /// Remembers what is last by this name now.
    pub fn put(&mut self, name: &str, context: SpanContext) {
        if let Some(known) = self.contexts.get_mut(name) {
            *known = context;
            return;
        }
        if self.order.len() == MAX_NAMES
            && let Some(oldest) = self.order.pop_front()
        {
            self.contexts.remove(&oldest);
        }
        self.order.push_back(name.into());
        self.contexts.insert(name.into(), context);
    }

    pub fn get(&self, name: &str) -> Option<SpanContext> {
        self.contexts.get(name).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::TraceIdentity;

    #[test]
    fn the_last_of_each_name_is_kept_and_old_names_are_not() {
        let context = |number: u32| TraceIdentity::derive("detach", "uid", number).context(true);
        let mut recent = RecentContexts::default();
        for number in 0..u32::try_from(MAX_NAMES).unwrap() {
            recent.put(&format!("volume-{number}"), context(number));
        }
        recent.put("volume-1", context(9_999));
        recent.put("one-more", context(10_000));
        assert_eq!(recent.get("volume-0"), None);
        assert_eq!(recent.get("volume-1"), Some(context(9_999)));
        assert_eq!(recent.get("one-more"), Some(context(10_000)));
        assert_eq!((recent.contexts.len(), recent.order.len()), (MAX_NAMES, MAX_NAMES));
    }
}
