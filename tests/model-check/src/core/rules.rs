//! The rules that an operator decides by: those of production, or wrong ones.

use csi_attacher_model::decide::{self, Action, DriverFacts, Observed, Outcome, VolumeAction, Write};
use csi_attacher_model::objects::Volume;
use jiff::Timestamp;

/// The rules, and what an operator leaves out.
#[derive(Clone, Copy)]
pub struct Rules {
    /// The next step for a VolumeAttachment.
    pub attachment: for<'a> fn(&Observed<'a>) -> Action<'a>,
    /// The writes that record an outcome.
    pub settle: fn(&Observed<'_>, &Outcome, Timestamp) -> Vec<Write>,
    /// The next step for a PersistentVolume.
    pub volume: fn(&Volume, usize, &DriverFacts) -> VolumeAction,
    /// Calls are made without a look at the Lease.
    pub unfenced: bool,
    /// It takes over with the cache that it has.
    pub stale: bool,
    /// Whatever says 404 is believed.
    pub believing: bool,
    /// A driver that has lost the calls never needed any.
    pub unattached: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            attachment: decide::attachment,
            settle: decide::settle,
            volume: decide::volume,
            unfenced: false,
            stale: false,
            believing: false,
            unattached: false,
        }
    }
}

impl Rules {
    /// Whether it is more than the decisions that are wrong.
    pub fn leaves_out(&self) -> bool {
        self.unfenced || self.stale || self.believing || self.unattached
    }
}
