//! A role that counts the PersistentVolumeClaims of a storage class and calls Probe of the driver when one appears.
//!
//! It is watched, queued, led, fenced, drained and shown in the state of its driver by the same layers as attaching, which know
//! neither. A role of the product is made like this.

mod kind;
mod role;
#[cfg(test)]
mod tests;

pub use kind::{Claim, ClaimWire};
pub use role::{ClaimEngine, ClaimRole};
