//! A metric family that knows its series, so that those of one owner can be removed.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use parking_lot::{Mutex, RwLock};
use prometheus_client::metrics::family::Family;

/// Labels of one series, in the order they are written. Most values are constants, which are not copied.
pub(super) type Labels = Vec<(&'static str, Cow<'static, str>)>;

/// The StorageClasses that have series of their own, by driver.
pub(super) type KnownClasses = Mutex<HashMap<Box<str>, HashSet<Box<str>>>>;

pub(super) fn labels<const N: usize>(pairs: [(&'static str, &str); N]) -> Labels {
    let owned = |(key, value): (&'static str, &str)| (key, Cow::Owned(value.to_owned()));
    pairs.into_iter().map(owned).collect()
}

/// What the series of a family come and go with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// The process: they stay.
    Process,
    Driver,
    /// The connection to a driver: they begin before the driver first answers, and stay while it is away.
    Connection,
    /// Provisioning for a driver: they go with it, also while the driver is attached for.
    Provisioning,
    /// Comparisons of a driver: they begin with the first one, and go with the driver.
    ReconcileSync,
    /// The last comparison of a driver: they go when no comparisons are made any more.
    Comparison,
    Lease,
}

impl Owner {
    /// Label that has the name of the owner.
    const fn label(self) -> Option<&'static str> {
        match self {
            Self::Process => None,
            Self::Driver | Self::Connection | Self::Provisioning | Self::ReconcileSync | Self::Comparison => {
                Some("driver_name")
            }
            Self::Lease => Some("name"),
        }
    }

    /// Labels of a series: the name of its owner first.
    pub(super) fn labels<const N: usize>(self, owner: &str, words: [(&'static str, &'static str); N]) -> Labels {
        let mut labels = Vec::with_capacity(N + 1);
        labels.extend(self.label().map(|label| (label, Cow::Owned(owner.to_owned()))));
        labels.extend(words.map(|(key, word)| (key, Cow::Borrowed(word))));
        labels
    }
}

/// A family and the labels of its series, which prometheus-client does not list.
pub(super) struct MetricFamily<M> {
    family: Family<Labels, M, fn() -> M>,
    series: RwLock<HashSet<Labels>>,
}

impl<M: Clone> MetricFamily<M> {
    pub(super) fn new(constructor: fn() -> M) -> Self {
        Self {
            family: Family::new_with_constructor(constructor),
            series: RwLock::default(),
        }
    }

    pub(super) fn family(&self) -> Family<Labels, M, fn() -> M> {
        self.family.clone()
    }

    /// Runs `record` on the series with these labels.
    pub(super) fn with<R>(&self, labels: Labels, record: impl FnOnce(&M) -> R) -> R {
        if let Some(metric) = self.family.get(&labels) {
            return record(&metric);
        }
        // Held while the series is made, so that it cannot slip past a concurrent `forget` unremembered.
        let mut series = self.series.write();
        let result = record(&self.family.get_or_create(&labels));
        series.insert(labels);
        result
    }

    /// The same, if there is such a series: what is recorded late does not bring back one that was removed.
    pub(super) fn with_known(&self, labels: &Labels, record: impl FnOnce(&M)) {
        if let Some(metric) = self.family.get(labels) {
            record(&metric);
        }
    }

    /// The series itself, for whoever records often. What it records after [`MetricFamily::forget`] is not shown.
    pub(super) fn series(&self, labels: Labels) -> M {
        self.with(labels, M::clone)
    }

    /// Makes a series for each combination of these values of the further labels.
    pub(super) fn start_at_zero(&self, labels: Labels, values: &[(&'static str, Vec<&'static str>)]) {
        let Some(((label, words), rest)) = values.split_first() else {
            return self.with(labels, |_| ());
        };
        for word in words {
            let mut labels = labels.clone();
            labels.push((label, Cow::Borrowed(word)));
            self.start_at_zero(labels, rest);
        }
    }

    /// Removes every series of an owner.
    pub(super) fn forget(&self, owner: Owner, name: &str) {
        self.forget_if(owner, name, |_| true);
    }

    /// Removes the series of an owner that are of this kind.
    pub(super) fn forget_if(&self, owner: Owner, name: &str, is_meant: impl Fn(&Labels) -> bool) {
        let is_owned = |labels: &Labels| {
            labels
                .iter()
                .any(|(key, value)| Some(*key) == owner.label() && value == name)
                && is_meant(labels)
        };
        for labels in self.series.write().extract_if(is_owned) {
            self.family.remove(&labels);
        }
    }
}

/// A count as a gauge takes it.
pub(super) fn to_i64(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
