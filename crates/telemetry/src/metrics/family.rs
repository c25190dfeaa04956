//! Families whose series belong to one driver and go away with it.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::RwLock;
use prometheus_client::metrics::family::Family;

/// Labels of one series, in the order they are written. Most values are words of ours, which are not copied.
pub(super) type Labels = Vec<(&'static str, Cow<'static, str>)>;

/// Labels from borrowed values.
pub(super) fn labels<const N: usize>(pairs: [(&'static str, &str); N]) -> Labels {
    let owned = |(key, value): (&'static str, &str)| (key, Cow::Owned(value.to_owned()));
    pairs.into_iter().map(owned).collect()
}

/// Labels of a series of one driver: its name first, then words of ours.
pub(super) fn of_driver<const N: usize>(driver: &str, words: [(&'static str, &'static str); N]) -> Labels {
    let mut labels = Vec::with_capacity(N + 1);
    labels.push(("driver_name", Cow::Owned(driver.to_owned())));
    labels.extend(words.map(|(key, word)| (key, Cow::Borrowed(word))));
    labels
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
    pub(super) fn with<R>(&self, driver: &str, labels: Labels, record: impl FnOnce(&M) -> R) -> R {
        if let Some(metric) = self.family.get(&labels) {
            return record(&metric);
        }
        // Held while the series is made, so that it cannot slip past a concurrent `forget` unremembered.
        let mut series = self.series.write();
        let result = record(&self.family.get_or_create(&labels));
        series.entry(driver.to_owned()).or_default().insert(labels);
        result
    }

    /// The series itself, for whoever records often. After [`DriverFamily::forget`] it records into the void.
    pub(super) fn series(&self, driver: &str, labels: Labels) -> M {
        self.with(driver, labels, M::clone)
    }

    /// Makes a series that starts at zero: a rate over the first event is not lost.
    pub(super) fn begin(&self, driver: &str, labels: Labels) {
        self.with(driver, labels, |_| ());
    }

    /// Removes every series of `driver`.
    pub(super) fn forget(&self, driver: &str) {
        let mut series = self.series.write();
        for labels in series.remove(driver).unwrap_or_default() {
            self.family.remove(&labels);
        }
    }
}

/// A count as a gauge takes it.
pub(super) fn to_i64(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
