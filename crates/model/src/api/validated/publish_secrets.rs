//! Which publish secrets a driver may be given.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::checker::{Checker, is_label, is_subdomain};
use super::problem::SpecProblem;
use crate::api::attacher_config::PublishSecretsSpec;
use crate::api::rules;

/// The Secrets that a driver may be given. Clones share them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PublishSecrets {
    /// All that the operator may read, as for the sidecar, which serves one driver with the rights of that driver.
    Any,
    /// Those of these namespaces.
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
    /// None.
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

impl Checker {
    pub(super) fn publish_secrets(&mut self, spec: &[PublishSecretsSpec]) -> PublishSecrets {
        if spec.len() > rules::MAX_PUBLISH_SECRETS {
            self.report("publishSecrets", SpecProblem::PublishSecrets);
            return PublishSecrets::default();
        }
        let mut namespaces: BTreeMap<Box<str>, SecretNames> = BTreeMap::new();
        for (index, entry) in spec.iter().enumerate() {
            let path = format!("publishSecrets[{index}]");
            if !is_label(&entry.namespace) {
                self.report(&format!("{path}.namespace"), SpecProblem::Namespace);
            }
            let known = namespaces
                .entry(entry.namespace.as_str().into())
                .or_insert_with(|| SecretNames::Only(BTreeSet::new()));
            let Some(names) = &entry.names else {
                *known = SecretNames::All;
                continue;
            };
            if !(1..=rules::MAX_PUBLISH_SECRETS).contains(&names.len()) {
                self.report(&format!("{path}.names"), SpecProblem::SecretNames);
                continue;
            }
            for (index, name) in names.iter().enumerate() {
                if !is_subdomain(name) {
                    self.report(&format!("{path}.names[{index}]"), SpecProblem::SecretName);
                }
            }
            if let SecretNames::Only(known) = known {
                known.extend(names.iter().map(|name| Box::from(name.as_str())));
            }
        }
        PublishSecrets::Listed(Arc::new(namespaces))
    }
}
