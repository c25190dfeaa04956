//! The rules that an engine works by, as values: a test of the tests hands in wrong ones.

use jiff::Timestamp;

use crate::cache::AttacherKey;
use crate::decide::{self, Action, DriverFacts, Observed, Outcome, VolumeAction, Write};
use crate::objects::Volume;

/// By default [`decide::attachment`], [`decide::settle`] and [`decide::volume`], and no notification.
#[derive(Clone, Copy)]
pub struct Rules {
    /// The next step for a VolumeAttachment.
    pub attachment: for<'a> fn(&Observed<'a>) -> Action<'a>,
    /// The writes that record an outcome.
    pub settle: fn(&Observed<'_>, &Outcome, Timestamp) -> Vec<Write>,
    /// The next step for a PersistentVolume.
    pub volume: fn(&Volume, usize, &DriverFacts) -> VolumeAction,
    /// Called in the task of a run of this key when it begins.
    pub begins: fn(&AttacherKey),
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            attachment: decide::attachment,
            settle: decide::settle,
            volume: decide::volume,
            begins: |_| {},
        }
    }
}
