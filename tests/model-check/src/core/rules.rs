//! The rules that an operator decides by: those of production, or wrong ones.

use csi_attacher_model::attempt;
use csi_attacher_model::decide::{self, DriverFacts, KeepReason, Write};
use csi_attacher_model::objects::Volume;

/// The rules, and what an operator leaves out.
#[derive(Clone, Copy)]
pub struct Rules {
    /// Those about VolumeAttachments.
    pub attempt: attempt::Rules,
    /// The next step for a PersistentVolume.
    pub volume: fn(&Volume, usize, &DriverFacts) -> Result<Write, KeepReason>,
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
            attempt: attempt::Rules::default(),
            volume: decide::volume,
            unfenced: false,
            stale: false,
            believing: false,
            unattached: false,
        }
    }
}
