//! `accessModes` of a volume.

/// The access modes of a volume as a set; order and repetition carry no meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[allow(clippy::struct_excessive_bools, reason = "a set of four modes and a rest")]
#[allow(missing_docs, reason = "the fields are the names of the API")]
pub struct AccessModes {
    pub read_write_once: bool,
    pub read_only_many: bool,
    pub read_write_many: bool,
    pub read_write_once_pod: bool,
    /// A mode that this version does not know.
    pub unknown: bool,
}

impl AccessModes {
    /// Reads the API's names.
    pub fn parse<S: AsRef<str>>(names: &[S]) -> Self {
        let mut modes = Self::default();
        for name in names {
            match name.as_ref() {
                "ReadWriteOnce" => modes.read_write_once = true,
                "ReadOnlyMany" => modes.read_only_many = true,
                "ReadWriteMany" => modes.read_write_many = true,
                "ReadWriteOncePod" => modes.read_write_once_pod = true,
                _ => modes.unknown = true,
            }
        }
        modes
    }
}
