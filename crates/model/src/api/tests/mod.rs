//! Tests of the API module, one file for each of its parts.

mod attacher_config;
mod condition;
mod crd;
mod crd_cases;
mod duration;
mod groups;
mod names;
mod object;
mod status;
mod validated;
mod values_schema;
