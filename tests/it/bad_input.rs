//! Proves that the operator says what is wrong, goes on with all that is right, and recovers by itself.

mod config;
mod crd;
mod endpoint;
mod process;
