//! Which drivers should run. Pure: objects in, settings out.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::deletion::is_served;
use crate::api::condition::ConditionReason;
use crate::api::{AttacherConfigObject, DriverConfig};

/// What an AttacherConfig asks for: a driver with these settings, or nothing that can be done. Whatever runs for it then goes on with its
/// last good settings.
pub(super) type DesiredDriver = Result<Arc<DriverConfig>, ConfigProblem>;

/// Why the settings of an object are not taken over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ConfigProblem {
    pub reason: ConditionReason,
    pub message: String,
}

/// Reads the objects from the oldest on: of two that claim one driver or one endpoint the older one wins, also where only the other one names
/// its driver, as that may be the wrong one. One that is suspended claims nothing, and one that is being deleted nothing new: which of two
/// works then is seen by the reservation of the driver's name.
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
        if let Ok(config) = &wish
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
    let config = object.config().map_err(|errors| ConfigProblem {
        reason: ConditionReason::InvalidSpec,
        message: errors.to_string(),
    })?;
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
        return Err(ConfigProblem {
            reason: ConditionReason::EndpointConflict,
            message,
        });
    }
    Ok(Arc::new(config))
}

/// Whether a change needs another connection, or another election.
pub(super) fn requires_restart(known: &DriverConfig, wanted: &DriverConfig) -> bool {
    // Where none is to be held any more, a running election goes on with the one that it holds as well.
    let lacks_former_lease = wanted.former_lease.is_some() && known.former_lease != wanted.former_lease;
    known.endpoint != wanted.endpoint
        || known.tls != wanted.tls
        || known.driver_name != wanted.driver_name
        || known.leader_election != wanted.leader_election
        || lacks_former_lease
}
