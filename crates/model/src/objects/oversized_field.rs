//! Fields that are too large to be kept.

use super::meta::{MAX_VOLUME_FIELD, kept_size};

/// A field that is too large to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OversizedField {
    /// Its path.
    pub field: &'static str,
    /// How much memory it needs: the bytes of its keys and values, and [`ENTRY_SIZE`](super::ENTRY_SIZE) for each entry.
    pub bytes: usize,
}

impl OversizedField {
    /// That a list or map with texts of these lengths is larger than [`MAX_VOLUME_FIELD`], if it is.
    pub(super) fn of(field: &'static str, lengths: impl IntoIterator<Item = usize>) -> Option<Self> {
        let bytes = kept_size(lengths);
        (bytes > MAX_VOLUME_FIELD).then_some(Self { field, bytes })
    }
}
