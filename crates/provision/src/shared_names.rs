//! One copy of each name that very many claims have in common: their namespace, class, provisioner and node.

use std::collections::HashSet;
use std::sync::Arc;

use crate::objects::Claim;

/// From so many names on it is looked which of them are used.
const FIRST_CLEANING: usize = 64;

/// The names. They take no more than twice the memory of those in use, as unused ones go when their number has doubled.
pub(crate) struct SharedNames {
    names: HashSet<Arc<str>>,
    clean_at: usize,
}

impl Default for SharedNames {
    fn default() -> Self {
        Self {
            names: HashSet::new(),
            clean_at: FIRST_CLEANING,
        }
    }
}

impl SharedNames {
    /// Takes names that are kept already in the place of equal ones of a claim.
    pub fn share(&mut self, claim: &mut Claim) {
        let optional = [claim.provisioner.as_mut(), claim.selected_node.as_mut()];
        let names = [&mut claim.namespace, &mut claim.class];
        for name in names.into_iter().chain(optional.into_iter().flatten()) {
            *name = self.kept(name);
        }
    }

    fn kept(&mut self, name: &Arc<str>) -> Arc<str> {
        if let Some(kept) = self.names.get(name) {
            return kept.clone();
        }
        if self.names.len() >= self.clean_at {
            self.names.retain(|name| Arc::strong_count(name) > 1);
            self.clean_at = FIRST_CLEANING.max(2 * self.names.len());
        }
        self.names.insert(name.clone());
        name.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_names_are_one_and_unused_ones_go() {
        let mut shared = SharedNames::default();
        let first = shared.kept(&"web".into());
        assert!(Arc::ptr_eq(&first, &shared.kept(&"web".into())));
        for number in 0..1000 {
            shared.kept(&format!("gone-{number}").into());
        }
        assert!(shared.names.len() <= FIRST_CLEANING, "{}", shared.names.len());
        assert!(Arc::ptr_eq(&first, &shared.kept(&"web".into())), "it is in use");
    }

    #[test]
    fn what_is_in_use_stays_however_many_they_are() {
        let mut shared = SharedNames::default();
        let used: Vec<Arc<str>> = (0..1000)
            .map(|number| shared.kept(&format!("{number}").into()))
            .collect();
        for name in &used {
            assert!(Arc::ptr_eq(name, &shared.kept(&Arc::from(&**name))));
        }
    }
}
