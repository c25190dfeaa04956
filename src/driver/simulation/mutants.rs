//! Wrong operators: what the simulation must find.

use crate::driver::rules::Rules;
use crate::store::Change;

/// What is wrong with an operator; nothing, by default.
#[derive(Clone, Copy, Default)]
pub struct Mutant {
    pub rules: Rules,
    /// Changes that the store takes in without telling anybody.
    pub deaf: Option<fn(&Change) -> bool>,
    /// It retries without a pause.
    pub restless: bool,
    /// It takes answers of the driver for others.
    pub deceives: Option<super::calls::Deceit>,
}
