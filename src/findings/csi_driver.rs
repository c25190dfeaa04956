//! What is known of the CSIDriver of each driver.

use std::time::Duration;
use tokio::time::Instant;
use tracing::{debug, info};

use super::FindingsScanner;
use crate::apiserver::{ApiError, ApiErrorKind, CsiDriver, CsiDriverWire};
use crate::telemetry::Span;

/// When one that is as it should be is read again.
const RARELY: Duration = Duration::from_mins(10);
/// When one that is missing or says that attaching is not required is read again, so that people see that it is mended.
const SOON: Duration = Duration::from_mins(1);
/// When it is asked for again after that was forbidden.
const HARDLY: Duration = Duration::from_hours(1);

/// What the API server said last.
#[derive(Debug, Default)]
pub(super) struct CsiDriverCache {
    pub state: CsiDriverLookup,
    /// When it is to be read; at once without.
    due: Option<Instant>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum CsiDriverLookup {
    /// It may not be read, or could not yet.
    #[default]
    Unknown,
    /// There is none.
    Missing,
    /// There is one.
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
    fn is_due(&self, now: Instant) -> bool {
        self.due.is_none_or(|due| due <= now)
    }

    /// Takes in an answer; true when something else is known now.
    fn update(&mut self, answer: Result<CsiDriver, ApiError>, soon: Duration, now: Instant) -> bool {
        let (state, pause) = match answer {
            Ok(driver) => {
                let pause = if driver.attach_required { RARELY } else { soon };
                (CsiDriverLookup::Found(driver), pause)
            }
            Err(error) => match error.kind {
                ApiErrorKind::NotFound => (CsiDriverLookup::Missing, soon),
                ApiErrorKind::Forbidden | ApiErrorKind::Refused => (CsiDriverLookup::Unknown, HARDLY),
                // What was known stays known while the API server is out of order.
                _ => (self.state.clone(), error.retry_after.unwrap_or(soon).max(soon)),
            },
        };
        self.due = Some(now + pause.mul_f64(1.0 + crate::findings::JITTER * fastrand::f64()));
        let differs = self.state != state;
        self.state = state;
        differs
    }
}

impl FindingsScanner {
    /// Reads those CSIDrivers whose time has come, one after the other; true when one is not as it was.
    pub(super) async fn read_csi_drivers(&mut self) -> bool {
        let mut learned = false;
        let soon = SOON.max(self.settings.interval).min(self.settings.stuck_after);
        for (name, driver) in &mut self.drivers {
            if !driver.known.is_due(Instant::now()) {
                continue;
            }
            let answer = self
                .requests
                .get::<CsiDriverWire>(&**name, None, &Span::disabled())
                .await;
            let answer = answer.map(CsiDriver::from);
            if let Err(error) = &answer {
                match error.kind {
                    ApiErrorKind::NotFound => {}
                    ApiErrorKind::Forbidden => info!(
                        driver = &**name, %error,
                        "cannot read CSIDrivers: permission get csidrivers is missing; findings about CSIDrivers are off"
                    ),
                    _ => debug!(driver = &**name, %error, "cannot read the CSIDriver"),
                }
            }
            learned |= driver.known.update(answer, soon, Instant::now());
        }
        learned
    }
}
