//! The contents of a Secret on their way to the one call that they are for.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::objects::ResourceVersion;

/// The contents of a publish secret: key to value. It prints as a count, and lives as long as one attempt, or until what it was
/// published with is taken back. Copies share the contents.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SecretData {
    data: Arc<BTreeMap<String, String>>,
    version: ResourceVersion,
}

impl SecretData {
    /// Wraps contents.
    pub fn new(data: BTreeMap<String, String>) -> Self {
        Self::of_version(data, ResourceVersion::default())
    }

    /// Wraps contents that were read in this version.
    pub(super) fn of_version(data: BTreeMap<String, String>, version: ResourceVersion) -> Self {
        Self {
            data: Arc::new(data),
            version,
        }
    }

    /// The version that was read.
    pub fn version(&self) -> ResourceVersion {
        self.version
    }

    /// The contents, for the one call that they are for.
    pub fn expose(&self) -> &BTreeMap<String, String> {
        &self.data
    }
}

impl fmt::Debug for SecretData {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "<{} redacted>", self.data.len())
    }
}
