//! The Secrets that a driver may be given.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The Secrets that a driver may be given. Clones share them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PublishSecrets {
    /// All that the operator may read, as for the sidecar, which serves one driver with the permissions of that driver.
    Any,
    /// Those of these namespaces, by name.
    Listed(Arc<BTreeMap<Box<str>, SecretNames>>),
}

/// Secrets of one namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretNames {
    /// All of them.
    All,
    /// Those of these names.
    Only(BTreeSet<Box<str>>),
}

impl Default for PublishSecrets {
    fn default() -> Self {
        Self::Listed(Arc::default())
    }
}

impl PublishSecrets {
    /// Whether the driver may be given the Secret of this namespace and name.
    pub fn allows(&self, namespace: &str, name: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Listed(namespaces) => match namespaces.get(namespace) {
                Some(SecretNames::All) => true,
                Some(SecretNames::Only(names)) => names.contains(name),
                None => false,
            },
        }
    }
}
