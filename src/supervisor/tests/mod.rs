//! What should run, what runs, and what is shown of it.

mod plan;
mod running;
mod saturation;
mod status;
