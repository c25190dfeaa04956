//! The support archive: what the other commands read, without secrets.

mod archive;
mod redact;

pub use archive::archive;
pub use redact::{redact, redact_text};

#[cfg(test)]
mod tests;
