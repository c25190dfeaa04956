//! The CSIDriver of each driver, read now and then.

use std::time::Duration;
use tokio::time::Instant;

use crate::apiserver::{ApiError, ApiErrorKind, CsiDriver};

/// How often a CSIDriver without a finding is read.
const HEALTHY_INTERVAL: Duration = Duration::from_mins(10);
/// How often one is read of which a finding may be, so that people see soon that it is fixed.
pub(super) const FINDING_INTERVAL: Duration = Duration::from_mins(1);
/// How often one is read while reading is forbidden.
const FORBIDDEN_INTERVAL: Duration = Duration::from_hours(1);

/// Share of an interval that is added at random, so that replicas of one start do not stay in step.
pub(super) const JITTER: f64 = 0.1;

/// The last answer of the API server.
#[derive(Debug, Default)]
pub(super) struct CsiDriverCache {
    pub state: CsiDriverLookup,
    /// Whether the driver has calls by which volumes are attached.
    pub publishes: bool,
    /// When it is read next; at once when absent.
    due: Option<Instant>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum CsiDriverLookup {
    /// It may not be read, or could not yet.
    #[default]
    Unknown,
    Missing,
    Found(CsiDriver),
}

impl CsiDriverLookup {
    pub fn attach_required(&self) -> Option<bool> {
        match self {
            Self::Found(driver) => Some(driver.attach_required),
            Self::Unknown | Self::Missing => None,
        }
    }
}

impl CsiDriverCache {
    pub fn is_due(&self, now: Instant) -> bool {
        self.due.is_none_or(|due| due <= now)
    }

    /// Applies an answer; true when something else is known now.
    pub fn update(&mut self, answer: Result<CsiDriver, ApiError>, soon: Duration, now: Instant) -> bool {
        let (state, pause) = match answer {
            Ok(driver) => {
                let is_right = driver.attach_required && self.publishes;
                let pause = if is_right { HEALTHY_INTERVAL } else { soon };
                (CsiDriverLookup::Found(driver), pause)
            }
            Err(error) => match error.kind {
                ApiErrorKind::NotFound => (CsiDriverLookup::Missing, soon),
                _ if error.is_refused() => (CsiDriverLookup::Unknown, FORBIDDEN_INTERVAL),
                // What was known stays known while the API server is out of order, or does not accept our credentials.
                _ => (self.state.clone(), error.retry_after.unwrap_or(soon).max(soon)),
            },
        };
        self.due = Some(now + pause.mul_f64(1.0 + JITTER * fastrand::f64()));
        let differs = self.state != state;
        self.state = state;
        differs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// They are replaced soon, and no permission is missing.
    #[test]
    fn credentials_that_are_not_accepted_say_nothing_of_a_csi_driver() {
        let (mut cache, now) = (CsiDriverCache::default(), Instant::now());
        let driver = CsiDriver {
            uid: "u".into(),
            attach_required: true,
        };
        cache.update(Ok(driver.clone()), FINDING_INTERVAL, now);
        for (status, state, is_read_soon) in [
            (401, CsiDriverLookup::Found(driver), true),
            (403, CsiDriverLookup::Unknown, false),
        ] {
            cache.update(Err(ApiError::of_answer(status, "no")), FINDING_INTERVAL, now);
            assert_eq!(cache.state, state, "{status}");
            assert_eq!(cache.is_due(now + 2 * FINDING_INTERVAL), is_read_soon, "{status}");
        }
    }
}
