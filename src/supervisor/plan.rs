//! Which drivers should run. Pure: objects in, settings out.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::deletion::is_served;
use crate::api::condition::ConditionReason;
use crate::api::{AttacherConfigObject, DriverConfig};

/// What an AttacherConfig asks for.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum DesiredDriver {
    /// A driver with these settings.
    Run(Arc<DriverConfig>),
    /// Nothing that can be done; whatever runs for it goes on with its last good settings.
    Refused(ConfigProblem),
}

/// Why the settings of an object are not taken over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ConfigProblem {
    pub reason: ConditionReason,
    pub message: String,
}

/// Reads the objects, the oldest first: of two that claim one driver or one endpoint the older wins. One that is suspended claims nothing,
/// and one that is being deleted nothing new: which of two works then is seen by the reservation of the driver's name.
pub(super) fn desired_drivers<'a>(
    objects: impl IntoIterator<Item = &'a AttacherConfigObject>,
) -> BTreeMap<String, DesiredDriver> {
    let mut sorted: Vec<&AttacherConfigObject> = objects.into_iter().filter(|object| is_served(object)).collect();
    sorted.sort_by_key(|object| {
        let meta = &object.metadata;
        (meta.creation_timestamp.as_ref().map(|time| time.0), meta.name.clone())
    });
    let mut taken: Vec<(String, Arc<DriverConfig>)> = Vec::new();
    let mut wishes = BTreeMap::new();
    for object in sorted {
        let name = object.metadata.name.clone().unwrap_or_default();
        let wish = desired_driver(object, &taken);
        if let DesiredDriver::Run(config) = &wish
            && !config.suspend
            && !config.leaving
        {
            taken.push((name.clone(), config.clone()));
        }
        wishes.insert(name, wish);
    }
    wishes
}

fn desired_driver(object: &AttacherConfigObject, taken: &[(String, Arc<DriverConfig>)]) -> DesiredDriver {
    let config = match object.config() {
        Ok(config) => config,
        Err(errors) => {
            return DesiredDriver::Refused(ConfigProblem {
                reason: ConditionReason::InvalidSpec,
                message: errors.to_string(),
            });
        }
    };
    let claimed = if config.suspend { &[] } else { taken };
    for (other, known) in claimed {
        let what = if known.endpoint == config.endpoint {
            format!("endpoint {}", config.endpoint)
        } else if let (Some(own), Some(theirs)) = (&config.driver_name, &known.driver_name)
            && own == theirs
        {
            format!("driver {own}")
        } else {
            continue;
        };
        let message =
            format!("{what} already belongs to the older AttacherConfig {other}; delete or suspend one of the two");
        return DesiredDriver::Refused(ConfigProblem {
            reason: ConditionReason::EndpointConflict,
            message,
        });
    }
    DesiredDriver::Run(Arc::new(config))
}

/// Whether a change needs another connection, or another election.
pub(super) fn requires_restart(known: &DriverConfig, wanted: &DriverConfig) -> bool {
    known.endpoint != wanted.endpoint
        || known.tls != wanted.tls
        || known.driver_name != wanted.driver_name
        || known.leader_election != wanted.leader_election
        || differs_in_former_lease(known, wanted)
}

/// Whether a Lease of a former release is to be held that is not. Without it a running election goes on with the one that it holds as well.
fn differs_in_former_lease(known: &DriverConfig, wanted: &DriverConfig) -> bool {
    wanted.former_lease.is_some() && known.former_lease != wanted.former_lease
}
