//! Who may work for which driver, without effects.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use crate::api::condition::ConditionReason;
use crate::api::names::lease_name;

/// The state of a claim to a driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReservationState {
    /// The AttacherConfig works for the driver.
    Granted,
    /// It will, when an AttacherConfig that goes after it has finished.
    Waiting {
        /// Name of that AttacherConfig.
        after: Arc<str>,
    },
    /// An AttacherConfig that goes before it claims the driver, or one whose Lease has the same name.
    Refused(ReservationConflict),
}

/// The first one of two that claim the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservationConflict {
    /// The driver that was claimed in vain.
    pub driver: Arc<str>,
    /// The driver that the first one claims.
    pub other: Arc<str>,
    /// Name of the first AttacherConfig.
    pub config: Arc<str>,
    /// Whether it goes first because its spec names the driver, and that of the other one names none.
    pub is_pinned: bool,
}

impl ReservationConflict {
    /// Reason for the condition Stalled.
    pub fn reason(&self) -> ConditionReason {
        if self.driver == self.other {
            ConditionReason::EndpointConflict
        } else {
            ConditionReason::FinalizerCollision
        }
    }

    /// What is wrong and how to fix it, by the names of the Lease of a driver and of its finalizer, where the role has one for each driver.
    pub fn message(&self, lease: impl Fn(&str) -> String, finalizer: impl Fn(&str) -> Option<String>) -> String {
        let (driver, other) = (&self.driver, &self.other);
        let (named, first) = if self.is_pinned {
            let first = "set spec.driverName of this one, too, if its driver is the right one, or ";
            (", whose spec.driverName names it", first)
        } else {
            ("", "")
        };
        let owner = format!("AttacherConfig {}{named}", self.config);
        if driver == other {
            return format!("driver {driver} already belongs to {owner}; {first}delete or suspend one of the two");
        }
        let same = match finalizer(driver).filter(|name| finalizer(other).as_ref() == Some(name)) {
            Some(finalizer) => format!("the same finalizer {finalizer} and the same Lease"),
            None => format!("the same Lease {}", lease(driver)),
        };
        format!("driver {driver} has {same} as driver {other} of {owner}; run one of them in an operator of its own")
    }
}

/// All claims. Of two for one place (the name of the driver's Lease; where finalizers have the same name, Leases have, too) that of the
/// AttacherConfig wins whose spec names the driver: what else answers may answer any name. Of two such, or of two others, the older one
/// wins, whichever came first; one that is being deleted counts as younger than all, and as one that names no driver. One that works is to
/// finish first.
///
/// A name that a spec has is kept for it also while its driver does not answer.
#[derive(Debug, Default)]
pub struct ReservationTable {
    ages: BTreeMap<Arc<str>, Option<Timestamp>>,
    /// The driver that the spec of each AttacherConfig names.
    pins: BTreeMap<Arc<str>, Arc<str>>,
    places: BTreeMap<String, ReservedName>,
}

#[derive(Debug, Default)]
struct ReservedName {
    /// The driver that each AttacherConfig claims.
    claims: BTreeMap<Arc<str>, Arc<str>>,
    holder: Option<Arc<str>>,
}

impl ReservationTable {
    /// When each AttacherConfig was made. Of the same time the first by name counts as older, as in the comparison of the
    /// specs; one that is missing here is gone, finishes, and counts as younger than all. True when anything differs.
    pub fn set_ages(&mut self, ages: BTreeMap<Arc<str>, Option<Timestamp>>) -> bool {
        std::mem::replace(&mut self.ages, ages) != self.ages
    }

    /// The driver that the spec of each AttacherConfig names, whether that answers or not; none of one that is suspended or being deleted, as
    /// it keeps the driver from nobody. True when anything differs.
    pub fn set_pins(&mut self, pins: BTreeMap<Arc<str>, Arc<str>>) -> bool {
        std::mem::replace(&mut self.pins, pins) != self.pins
    }

    /// An AttacherConfig claims a driver.
    pub fn claim(&mut self, config: Arc<str>, driver: Arc<str>) {
        let place = self.places.entry(lease_name(&driver)).or_default();
        place.claims.insert(config, driver);
    }

    /// An AttacherConfig claims a driver no more, and does not work for it any more.
    pub fn remove(&mut self, config: &str, driver: &str) {
        self.deactivate(config, driver);
        if let Some(place) = self.places.get_mut(&lease_name(driver)) {
            place.claims.remove(config);
        }
        self.places.retain(|_, place| !place.claims.is_empty());
    }

    /// An AttacherConfig does not work for the driver any more, but goes on claiming it.
    pub fn deactivate(&mut self, config: &str, driver: &str) {
        if let Some(place) = self.places.get_mut(&lease_name(driver)) {
            place.holder.take_if(|holder| **holder == *config);
        }
    }

    /// The AttacherConfig that works for this driver itself.
    pub fn holder(&self, driver: &str) -> Option<&Arc<str>> {
        let place = self.places.get(&lease_name(driver))?;
        let holder = place.holder.as_ref()?;
        (**place.claims.get(holder)? == *driver).then_some(holder)
    }

    /// The state of a claim.
    pub fn state(&self, config: &Arc<str>, driver: &Arc<str>) -> ReservationState {
        let lease = lease_name(driver);
        let Some(place) = self.places.get(&lease) else {
            return ReservationState::Granted;
        };
        let names = |config: &Arc<str>, driver: &Arc<str>| self.pins.get(config) == Some(driver);
        let is_pinned = names(config, driver);
        let rank = |config: &Arc<str>, driver: &Arc<str>| {
            let made = self.ages.get(config).copied().flatten();
            (!names(config, driver), made.is_none(), made, config.clone())
        };
        // Who names the driver as well does not wait for one whose driver is away.
        let pins = self.pins.iter().filter(|_| !is_pinned);
        let away = pins.filter(|(_, driver)| lease_name(driver) == lease);
        let rivals = place.claims.iter().chain(away);
        let first = rivals.min_by_key(|(config, driver)| rank(config, driver));
        match (first, &place.holder) {
            (Some((first, other)), _) if first != config => ReservationState::Refused(ReservationConflict {
                driver: driver.clone(),
                other: other.clone(),
                config: first.clone(),
                is_pinned: !is_pinned && names(first, other),
            }),
            (_, Some(holder)) if holder != config => ReservationState::Waiting { after: holder.clone() },
            _ => ReservationState::Granted,
        }
    }

    /// As [`ReservationTable::state`]; one whose claim is granted counts as at work from then on, until it is deactivated or removed.
    pub fn activate(&mut self, config: &Arc<str>, driver: &Arc<str>) -> ReservationState {
        let state = self.state(config, driver);
        if state == ReservationState::Granted
            && let Some(place) = self.places.get_mut(&lease_name(driver))
        {
            place.holder = Some(config.clone());
        }
        state
    }
}
