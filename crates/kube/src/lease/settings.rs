//! The times of an election, and the namespace of its Lease.

use std::time::Duration;

use thiserror::Error;

/// client-go asks for so much between retry period and renew deadline.
const JITTER: f64 = 1.2;
/// The shortest retry period that is used. Requests about Leases have no other limit, and a shorter one is a mistake, such as 2ms for 2s: it
/// would be a flood for as long as the Lease is held or competed for.
const MIN_RETRY_PERIOD: Duration = Duration::from_millis(100);
/// The same for the renew deadline, without which a Lease would be lost before its renewal is due. No lease duration is as short.
const MIN_RENEW_DEADLINE: Duration = Duration::from_millis(200);

/// The times of an election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTimings {
    /// How long others leave the Lease alone after its last change; whole seconds, as the Lease counts them.
    pub lease_duration: Duration,
    /// How long the holder goes without a renewal before it stops working; below the lease duration.
    pub renew_deadline: Duration,
    /// Longest time between two renewals, or two reads of the Lease of another.
    pub retry_period: Duration,
}

/// Why times do not make an election.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum LeaseTimingsError {
    /// A Lease counts whole seconds, at least one.
    #[error("the lease duration must be at least 1s")]
    LeaseDuration,
    /// Without rest between losing and being succeeded, two would work at once.
    #[error("the lease duration must be greater than the renew deadline")]
    RenewDeadline,
    /// Without room for a second try, one lost answer would cost the Lease.
    #[error("the renew deadline must be greater than 1.2 times the retry period")]
    RetryPeriod,
    /// Never to pause would flood the API server.
    #[error("the retry period must be greater than zero")]
    Zero,
}

impl Default for LeaseTimings {
    /// 15 s, 10 s and 2 s, as in client-go.
    fn default() -> Self {
        Self {
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }
}

impl LeaseTimings {
    /// Checks times by the rules of client-go. Fractions of a second of the lease duration are cut off, and pauses that would flood the API
    /// server are longer than asked for.
    pub fn new(
        lease_duration: Duration,
        renew_deadline: Duration,
        retry_period: Duration,
    ) -> Result<Self, LeaseTimingsError> {
        let lease_duration = Duration::from_secs(lease_duration.as_secs().min(i32::MAX.unsigned_abs().into()));
        if lease_duration.is_zero() {
            return Err(LeaseTimingsError::LeaseDuration);
        }
        if renew_deadline >= lease_duration {
            return Err(LeaseTimingsError::RenewDeadline);
        }
        if retry_period.is_zero() {
            return Err(LeaseTimingsError::Zero);
        }
        if renew_deadline.as_secs_f64() <= retry_period.as_secs_f64() * JITTER {
            return Err(LeaseTimingsError::RetryPeriod);
        }
        Ok(Self {
            lease_duration,
            renew_deadline: renew_deadline.max(MIN_RENEW_DEADLINE),
            retry_period: retry_period.max(MIN_RETRY_PERIOD),
        })
    }
}

/// The namespace for Leases by the sidecar's rule: what is asked for, else that of the pod, else "default".
pub(super) fn namespace(asked_for: &str, of_pod: impl FnOnce() -> Option<String>) -> String {
    match asked_for.trim() {
        "" => of_pod().unwrap_or_else(|| "default".to_owned()),
        name => name.to_owned(),
    }
}
