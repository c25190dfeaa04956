//! The rules by which the cache works, as values: a test of the tests hands in wrong ones.

use crate::reflect::TableRules;

use super::index::CacheChange;

/// By default all hold.
#[derive(Clone, Copy, Debug)]
pub struct CacheRules {
    /// Whether somebody is told of a change.
    pub tells: fn(&CacheChange) -> bool,
    /// Everything is listed anew when that is asked for.
    pub lists_anew: bool,
    /// How copies are taken in.
    pub tables: TableRules,
}

impl Default for CacheRules {
    fn default() -> Self {
        Self {
            tells: |_| true,
            lists_anew: true,
            tables: TableRules::default(),
        }
    }
}
