//! The rules that an engine works by, as values: a test of the tests hands in wrong ones.

use csi_attacher_model::attempt;

use crate::decide::{self, DriverFacts, VolumeAction};
use crate::objects::Volume;

/// By default [`decide::attachment`], [`decide::settle`] and [`decide::volume`].
#[derive(Clone, Copy)]
pub struct Rules {
    /// About VolumeAttachments.
    pub attempt: attempt::Rules,
    /// The next step for a PersistentVolume.
    pub volume: fn(&Volume, usize, &DriverFacts) -> VolumeAction,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            attempt: attempt::Rules::default(),
            volume: decide::volume,
        }
    }
}
