//! Wrong operators, each of which must be caught. (stub)
use super::Rules;
use super::world::Setting;

/// A wrong operator.
pub struct Wrong {
    /// What is wrong with it.
    pub what: &'static str,
    /// Its rules.
    pub rules: Rules,
    /// The worlds in which it is looked for.
    pub world: Setting,
    /// The properties that it violates, each of which is as good.
    pub violates: &'static [&'static str],
}

/// All of them.
pub fn all() -> Vec<Wrong> {
    Vec::new()
}
