//! Whether a driver may be provisioned for from one place: it may not where each of its nodes has a csi-provisioner for itself
//! (`--node-deployment`), as the CSIStorageCapacities show that those write.
//!
//! Two provisioners would make two volumes for one claim. And a DeleteVolume that the plug-in of another node answers with OK, as it knows
//! no such volume, would leave the volume; so nothing is finished either where nothing new is begun.

use thiserror::Error;

use crate::answer::{ApiError, ApiErrorKind};
use crate::api::condition::ConditionReason;
use crate::api::is_label_value;
use crate::api::names::{CAPACITY_DRIVER_LABEL, CAPACITY_MANAGER_LABEL, CENTRAL_PROVISIONER};

/// What external-provisioner puts in place of the end of [`CENTRAL_PROVISIONER`], the FNV-1a hash of which it has, where the name of the
/// node leaves no room for all of it in a label.
const SHORTENED: &str = "-53f40b57-";

/// Which provisioner wrote a CSIStorageCapacity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapacityManager {
    /// `metadata.namespace`.
    pub namespace: Box<str>,
    /// `metadata.name`.
    pub name: Box<str>,
    /// The label [`CAPACITY_DRIVER_LABEL`].
    pub driver: Box<str>,
    /// The label [`CAPACITY_MANAGER_LABEL`].
    pub managed_by: Box<str>,
}

/// Why a driver is not provisioned for, until it is known that its nodes do not.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the messages say what the variants and their fields are")]
pub enum NotCentral {
    #[error(
        "each node provisions for driver {driver} (csi-provisioner with --node-deployment): CSIStorageCapacity {namespace}/{name} has the \
         label {CAPACITY_MANAGER_LABEL}={managed_by}. No volume is created or deleted here. Remove spec.provisioning; or remove \
         --node-deployment, and delete the CSIStorageCapacities of the driver that the csi-provisioners of its nodes left",
        driver = .0.driver, namespace = .0.namespace, name = .0.name, managed_by = .0.managed_by
    )]
    Distributed(CapacityManager),
    #[error(
        "it is not known whether each node provisions for driver {driver}: {error}; the operator's ServiceAccount needs, by a ClusterRole, \
         apiGroups [\"storage.k8s.io\"], resources [csistoragecapacities], verbs [list]; until then no volume is created or deleted"
    )]
    Forbidden { driver: Box<str>, error: Box<str> },
    #[error("it is not known yet whether each node provisions for driver {driver}: {error}")]
    Unknown { driver: Box<str>, error: Box<str> },
}

impl NotCentral {
    /// For the condition.
    #[must_use]
    pub fn reason(&self) -> ConditionReason {
        match self {
            Self::Distributed(_) => ConditionReason::DistributedProvisioner,
            Self::Forbidden { .. } => ConditionReason::Forbidden,
            Self::Unknown { .. } => ConditionReason::Syncing,
        }
    }
}

/// Selects the CSIStorageCapacities of a driver that are not those of a central external-provisioner. None where the name cannot be the
/// value of a label: external-provisioner has it there as it is, so that there are none of such a driver.
#[must_use]
pub fn capacity_selector(driver: &str) -> Option<String> {
    is_label_value(driver).then(|| {
        format!(
            "{CAPACITY_DRIVER_LABEL}={driver},{CAPACITY_MANAGER_LABEL},{CAPACITY_MANAGER_LABEL}!={CENTRAL_PROVISIONER}"
        )
    })
}

/// Whether a driver may be provisioned for, from the answer to the list of what [`capacity_selector`] selects. While an engine works for
/// it, only what is known ends that: it was asked for when the engine started.
pub fn check_central(
    driver: &str,
    listed: Result<Vec<CapacityManager>, ApiError>,
    is_working: bool,
) -> Result<(), NotCentral> {
    let error = match listed {
        Ok(capacities) => {
            let is_of_node = |capacity: &CapacityManager| *capacity.driver == *driver && is_node(&capacity.managed_by);
            let of_node = capacities.into_iter().find(is_of_node);
            return of_node.map_or(Ok(()), |capacity| Err(NotCentral::Distributed(capacity)));
        }
        // The API server does not serve them, so that nobody writes any.
        Err(error) if error.kind == ApiErrorKind::NotFound => return Ok(()),
        Err(_) if is_working => return Ok(()),
        Err(error) => error,
    };
    let is_forbidden = error.is_forbidden();
    let (driver, error) = (driver.into(), error.message.into());
    Err(if is_forbidden {
        NotCentral::Forbidden { driver, error }
    } else {
        NotCentral::Unknown { driver, error }
    })
}

/// Whether a value of [`CAPACITY_MANAGER_LABEL`] is that of the external-provisioner of one node (there: `getNameWithMaxLength`).
fn is_node(managed_by: &str) -> bool {
    let is_whole = || {
        let rest = managed_by.strip_prefix(CENTRAL_PROVISIONER);
        rest.is_some_and(|rest| rest.starts_with('-'))
    };
    let is_shortened = || {
        let parts = managed_by.split_once(SHORTENED);
        parts.is_some_and(|(head, _)| !head.is_empty() && CENTRAL_PROVISIONER.starts_with(head))
    };
    is_whole() || is_shortened()
}
