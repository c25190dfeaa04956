//! Which drivers should run, and what has to change for that. Pure: objects in, steps out.

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

/// What to do about one AttacherConfig.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    Start(Arc<DriverConfig>),
    /// Give the running driver other settings; it goes on without a reconnect.
    Reload(Arc<DriverConfig>),
    /// Let the driver finish, then start it with other settings.
    Restart(Arc<DriverConfig>),
    Stop,
}

/// Reads the objects, the oldest first: of two that claim one driver or one endpoint the older wins.
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
        if let DesiredDriver::Run(config) = &wish {
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
    for (other, known) in taken {
        let what = if known.endpoint == config.endpoint {
            format!("endpoint {}", config.endpoint)
        } else if let (Some(own), Some(theirs)) = (&config.driver_name, &known.driver_name)
            && own == theirs
        {
            format!("driver {own}")
        } else {
            continue;
        };
        let message = format!("{what} already belongs to the older AttacherConfig {other}; delete one of the two");
        return DesiredDriver::Refused(ConfigProblem {
            reason: ConditionReason::EndpointConflict,
            message,
        });
    }
    DesiredDriver::Run(Arc::new(config))
}

/// What leads from the running drivers to the wished ones. Only what differs is touched.
pub(super) fn steps(
    running: &BTreeMap<String, Arc<DriverConfig>>,
    wishes: &BTreeMap<String, DesiredDriver>,
) -> Vec<(String, Step)> {
    let gone = running
        .keys()
        .filter(|name| !wishes.contains_key(*name))
        .map(|name| (name.clone(), Step::Stop));
    let wanted = wishes.iter().filter_map(|(name, wish)| {
        let DesiredDriver::Run(config) = wish else { return None };
        let step = match running.get(name) {
            None => Step::Start(config.clone()),
            Some(known) if known == config => return None,
            Some(known) if requires_restart(known, config) || differs_in_former_lease(known, config) => {
                Step::Restart(config.clone())
            }
            Some(_) => Step::Reload(config.clone()),
        };
        Some((name.clone(), step))
    });
    gone.chain(wanted).collect()
}

/// Whether a change needs another connection, or another election.
pub(super) fn requires_restart(known: &DriverConfig, wanted: &DriverConfig) -> bool {
    known.endpoint != wanted.endpoint
        || known.tls != wanted.tls
        || known.driver_name != wanted.driver_name
        || known.leader_election != wanted.leader_election
}

/// Whether a Lease of a former release is to be held that is not. Without it a running election goes on with the one that it holds as well.
fn differs_in_former_lease(known: &DriverConfig, wanted: &DriverConfig) -> bool {
    wanted.former_lease.is_some() && known.former_lease != wanted.former_lease
}
