//! Which drivers should run, and with which settings. Pure: objects in, settings out.

use jiff::Timestamp;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::deletion::{is_served, is_waiting};
use crate::api::condition::ConditionReason;
use crate::api::{AttacherConfigObject, Brakes, DriverConfig};

/// What an AttacherConfig asks for: a driver with these settings, or nothing that can be done. Whatever runs for it then goes on with its
/// last valid settings, as [`SettingsInUse`] has them.
pub(super) type DesiredDriver = Result<Arc<DriverConfig>, ConfigProblem>;

/// Why the settings of an object are not taken over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ConfigProblem {
    pub reason: ConditionReason,
    pub message: String,
}

/// All that the plan reads of an AttacherConfig. It is given nothing else, so that no change can be missed where two are compared.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PlanInput {
    pub created: Option<Timestamp>,
    pub is_served: bool,
    /// Whether it waits to be deleted until its volumes are detached.
    pub is_waiting: bool,
    /// What its spec holds back, whether its settings can be used or not; none where it cannot be read.
    brakes: Option<Brakes>,
    /// Its settings, or why they cannot be used.
    settings: DesiredDriver,
}

impl PlanInput {
    pub fn of(object: &AttacherConfigObject) -> Self {
        let settings = object.config().map(Arc::new).map_err(|errors| ConfigProblem {
            reason: ConditionReason::InvalidSpec,
            message: errors.to_string(),
        });
        Self {
            created: object.metadata.creation_timestamp.as_ref().map(|time| time.0),
            is_served: is_served(object),
            is_waiting: is_waiting(object),
            brakes: object.spec.as_ref().ok().map(Brakes::from),
            settings,
        }
    }
}

/// The settings that one AttacherConfig is served with. They are kept with the object: another one of its name begins without any.
#[derive(Clone, Debug, Default)]
pub(super) struct SettingsInUse {
    last_valid: Option<Arc<DriverConfig>>,
    /// Those of the specs since, which cannot be used: what cannot be read does not say otherwise than before.
    brakes: Brakes,
}

impl SettingsInUse {
    /// The settings after this was planned; none where there are none that were valid. Those of before go on while the latest spec cannot be
    /// used, but for what it holds back; and nothing new is claimed once the object is being deleted.
    pub fn after(&mut self, input: &PlanInput, wish: Option<DesiredDriver>) -> Option<Arc<DriverConfig>> {
        let Some(wish) = wish else {
            *self = Self::default();
            return None;
        };
        if let Ok(config) = wish {
            self.brakes = Brakes::default();
            self.last_valid = Some(config.clone());
            return Some(config);
        }
        self.brakes = input.brakes.map_or(self.brakes, |brakes| brakes.after(self.brakes));
        let mut config = self.last_valid.as_ref()?.braked(self.brakes);
        config.leaving |= input.is_waiting;
        Some(Arc::new(config))
    }
}

/// Reads the objects, by their names, from the oldest on: of two that claim one driver or one endpoint the older one wins, also where only
/// the other one names its driver, as that may be the wrong one. One that is suspended claims nothing, and one that is being deleted nothing
/// new: which of two works then is seen by the reservation of the driver's name.
pub(super) fn desired_drivers(objects: &BTreeMap<String, PlanInput>) -> BTreeMap<String, DesiredDriver> {
    let mut sorted: Vec<(&String, &PlanInput)> = objects.iter().filter(|(_, object)| object.is_served).collect();
    sorted.sort_by_key(|(name, object)| (object.created, *name));
    let mut taken: Vec<(&String, Arc<DriverConfig>)> = Vec::new();
    let mut wishes = BTreeMap::new();
    for (name, object) in sorted {
        let wish = desired_driver(&object.settings, &taken);
        if let Ok(config) = &wish
            && !config.suspend
            && !config.leaving
        {
            taken.push((name, config.clone()));
        }
        wishes.insert(name.clone(), wish);
    }
    wishes
}

fn desired_driver(settings: &DesiredDriver, taken: &[(&String, Arc<DriverConfig>)]) -> DesiredDriver {
    let config = settings.clone()?;
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
        let message = format!("{what} already belongs to AttacherConfig {other}; delete or suspend one of the two");
        return Err(ConfigProblem {
            reason: ConditionReason::EndpointConflict,
            message,
        });
    }
    Ok(config)
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
