//! What provisioning shows of a driver: the families of sig-storage-lib-external-provisioner.

use std::borrow::Cow;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;

use super::Metrics;
use super::family::{Labels, Owner};
use super::series_roles::{DELETE, PROVISION, event_reasons, is_of_provisioning};
use super::table::{EVENT_OUTCOMES, error_codes};
use crate::names::{FailsFor, causes_of};

/// So many classes of a driver have series of their own: the names are those of users.
const MAX_CLASSES: usize = 100;
/// The value of a label in place of one that is not bounded.
const OTHER: &str = "other";
/// The kinds of `spec.dataSource` that a driver may be asked for.
const SOURCES: [&str; 2] = ["VolumeSnapshot", "PersistentVolumeClaim"];

impl Metrics {
    /// Provisioning begins for a driver: what is counted by known labels begins at zero.
    pub fn init_provisioning(&self, driver: &str) {
        let families = &self.0.families;
        families.init(&[Owner::Provisioning], driver);
        let operations = || vec![PROVISION, DELETE];
        let labels = || Owner::Driver.labels(driver, []);
        let ended = [("operation", operations()), ("outcome", vec!["succeeded"])];
        families.operation_time.start_at_zero(labels(), &ended);
        families.operation_attempts.start_at_zero(labels(), &ended);
        let causes = error_codes().chain(causes_of(FailsFor::Provisioning));
        let failed = [("operation", operations()), ("reason", causes.collect())];
        families.attempt_failed.start_at_zero(labels(), &failed);
        let reasons = event_reasons();
        let events = [("reason", reasons.collect()), ("outcome", EVENT_OUTCOMES.to_vec())];
        families.event.start_at_zero(labels(), &events);
    }

    /// A PersistentVolume was saved for a claim of this class; the last attempt took this long. `source` is the kind of the claim's data
    /// source, if it has one.
    pub fn provisioned(&self, driver: &str, class: &str, source: Option<&str>, took: Duration) {
        let labels = || self.of_claim(driver, class, source);
        let families = &self.0.families;
        families.provisions.with(labels(), Counter::inc);
        let seconds = took.as_secs_f64();
        families.provision_time.with(labels(), |time| time.observe(seconds));
    }

    /// An attempt for a claim of this class failed.
    pub fn provision_failed(&self, driver: &str, class: &str, source: Option<&str>) {
        let labels = self.of_claim(driver, class, source);
        self.0.families.provision_failures.with(labels, Counter::inc);
    }

    /// The volume of a PersistentVolume of this class is deleted, and the PersistentVolume gone; the last attempt took this long.
    pub fn deleted(&self, driver: &str, class: &str, took: Duration) {
        let labels = || self.of_class(driver, class);
        let families = &self.0.families;
        families.deletes.with(labels(), Counter::inc);
        let seconds = took.as_secs_f64();
        families.delete_time.with(labels(), |time| time.observe(seconds));
    }

    /// An attempt to delete the volume of a PersistentVolume of this class failed.
    pub fn delete_failed(&self, driver: &str, class: &str) {
        let labels = self.of_class(driver, class);
        self.0.families.delete_failures.with(labels, Counter::inc);
    }

    fn of_claim(&self, driver: &str, class: &str, source: Option<&str>) -> Labels {
        let kind = source.unwrap_or_default();
        let known = SOURCES.into_iter().chain([""]).find(|known| *known == kind);
        let mut labels = self.of_class(driver, class);
        labels.push(("source", Cow::Borrowed(known.unwrap_or(OTHER))));
        labels
    }

    fn of_class(&self, driver: &str, class: &str) -> Labels {
        let mut labels = Owner::Provisioning.labels(driver, []);
        let class = if self.is_named(driver, class) { class } else { OTHER };
        labels.push(("class", Cow::Owned(class.to_owned())));
        labels
    }

    /// Whether a class has series of its own: the first ones have, until the driver is not provisioned for any more.
    fn is_named(&self, driver: &str, class: &str) -> bool {
        let mut drivers = self.0.classes.lock();
        let known = drivers.entry(driver.into()).or_default();
        known.contains(class) || (known.len() < MAX_CLASSES && known.insert(class.into()))
    }

    /// Removes what is shown of the provisioning of a driver: it is not provisioned for any more. What attaching shows of it stays.
    pub fn forget_provisioning(&self, driver: &str) {
        self.0.families.forget(&[Owner::Provisioning], driver);
        self.0.families.forget_if(&[Owner::Driver], driver, is_of_provisioning);
        self.0.classes.lock().remove(driver);
    }

    /// Removes what is shown of a driver that is not attached for any more, and stays where it is provisioned for.
    pub fn forget_attaching(&self, driver: &str) {
        self.forget_work(driver);
        self.0.families.forget(&[Owner::Connection], driver);
    }

    /// The same while the driver is away and looked for: that it is away is shown, and that it comes back is counted on.
    pub fn forget_work(&self, driver: &str) {
        let owners = [Owner::Driver, Owner::ReconcileSync, Owner::Comparison];
        let is_meant = |labels: &Labels| !is_of_provisioning(labels);
        self.0.families.forget_if(&owners, driver, is_meant);
    }
}
