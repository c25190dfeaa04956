//! What should run, what runs, and what is shown of it.

mod plan;
mod running;
mod status;
mod voice;
mod writer;
