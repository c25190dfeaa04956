//! The rules by which copies of objects are taken in, as values: a test of the tests hands in wrong ones.

use super::index::CacheChange;

/// By default all hold, but for the last one, which none of the product does.
#[derive(Clone, Copy, Debug)]
pub struct CacheRules {
    /// Whether somebody is told of a change.
    pub tells: fn(&CacheChange) -> bool,
    /// Everything is listed anew when that is asked for.
    pub lists_anew: bool,
    /// What a list shows replaces what is known, though its version be smaller.
    pub lists_replace: bool,
    /// An answer to a request counts as what the watch has told up to its version.
    pub answers_are_news: bool,
}

impl Default for CacheRules {
    fn default() -> Self {
        Self {
            tells: |_| true,
            lists_anew: true,
            lists_replace: true,
            answers_are_news: false,
        }
    }
}
