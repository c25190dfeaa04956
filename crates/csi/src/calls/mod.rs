//! The calls of the CSI specification that the operator makes, each in one place.

pub mod controller;
pub mod identity;
pub mod list;
pub mod volume;
