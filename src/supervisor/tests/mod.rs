//! What should run, what runs, and what is shown of it.

mod attach_volumes;
mod deletion;
mod drivers;
mod fields;
mod findings;
mod last_reconcile_sync;
mod leaving;
mod observed;
mod plan;
mod planned;
mod provisioning;
mod saturation;
mod status;
mod status_author;
mod status_events;
mod watched;
mod writer;
mod writes;
