//! Families whose series belong to one driver and go away with it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::RwLock;
use prometheus_client::metrics::family::Family;

/// Labels of one series, in the order they are written.
pub(super) type Labels = Vec<(&'static str, String)>;

/// Labels from borrowed values.
pub(super) fn labels<const N: usize>(pairs: [(&'static str, &str); N]) -> Labels {
    pairs.into_iter().map(|(key, value)| (key, value.to_owned())).collect()
}

/// A family that remembers which series belong to which driver, because a family cannot be searched.
pub(super) struct DriverFamily<M> {
    family: Family<Labels, M, fn() -> M>,
    series: Arc<RwLock<HashMap<String, HashSet<Labels>>>>,
}

impl<M: Clone> DriverFamily<M> {
    pub(super) fn new(constructor: fn() -> M) -> Self {
        Self {
            family: Family::new_with_constructor(constructor),
            series: Arc::default(),
        }
    }

    /// The family to register.
    pub(super) fn family(&self) -> Family<Labels, M, fn() -> M> {
        self.family.clone()
    }

    /// Runs `record` on the series with these labels, which belongs to `driver`.
    pub(super) fn with(&self, driver: &str, labels: Labels, record: impl FnOnce(&M)) {
        if let Some(metric) = self.family.get(&labels) {
            record(&metric);
            return;
        }
        // Held while the series is made, so that it cannot slip past a concurrent `forget` unremembered.
        let mut series = self.series.write();
        record(&self.family.get_or_create(&labels));
        series.entry(driver.to_owned()).or_default().insert(labels);
    }

    /// Removes every series of `driver`.
    pub(super) fn forget(&self, driver: &str) {
        let mut series = self.series.write();
        for labels in series.remove(driver).unwrap_or_default() {
            self.family.remove(&labels);
        }
    }
}
