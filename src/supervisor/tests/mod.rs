//! What should run, what runs, and what is shown of it.

mod deletion;
mod fields;
mod findings;
mod leaving;
mod news;
mod plan;
mod running;
mod saturation;
mod status;
mod voice;
mod watched;
mod writer;
