//! The decisions that an engine works by, as values: a test of the tests puts wrong ones in their place.

use jiff::Timestamp;

use crate::decide::{self, Action, DriverFacts, Observed, Outcome, VolumeAction, Write};
use crate::objects::Volume;

/// [`decide::attachment`], [`decide::settle`] and [`decide::volume`], unless a test says otherwise.
#[derive(Clone, Copy)]
pub(in crate::driver) struct DecisionFns {
    /// The next step for a VolumeAttachment.
    pub attachment: for<'a> fn(&Observed<'a>) -> Action<'a>,
    /// The writes that record an outcome.
    pub settle: fn(&Observed<'_>, &Outcome, Timestamp) -> Vec<Write>,
    /// The next step for a PersistentVolume.
    pub volume: fn(&Volume, usize, &DriverFacts) -> VolumeAction,
}

impl Default for DecisionFns {
    fn default() -> Self {
        #[cfg(test)]
        if let Some(rules) = crate::driver::simulation::mutant_rules() {
            return rules;
        }
        Self {
            attachment: decide::attachment,
            settle: decide::settle,
            volume: decide::volume,
        }
    }
}
