//! Keeps credentials out of `Debug` output.
//!
//! The build writes a `Debug` for every message that holds a field with the option `csi_secret` (and for mount flags, which the
//! specification forbids to show as well). It prints such a field as a [`Redacted`]. Messages that contain those messages, and the
//! transport's request wrapper, print through them and are therefore safe too.

use std::fmt;

/// Stands for a sensitive map, list or text in `Debug` output: prints its length and nothing of its content, not even the keys.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Redacted(
    /// Number of entries (map, list) or bytes (text) that are hidden.
    pub usize,
);

impl fmt::Debug for Redacted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{} redacted>", self.0)
    }
}
