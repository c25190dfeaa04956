//! The pure core of the operator: the AttacherConfig resource and its settings, slim records of the Kubernetes objects, what to do
//! next about each of them and why, and what is wrong with them.
//!
//! Must not talk to anybody, read a clock or wait: no client, no runtime, no transport. The list of dependencies sees to it.

#[macro_use]
mod named;

pub mod answer;
pub mod api;
pub mod attempt;
pub mod decide;
pub mod findings;
mod list_rests;
pub mod objects;
pub mod provision;
mod stable_hash;

pub use list_rests::ListRests;
