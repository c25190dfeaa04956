//! How long a Lease counts as held, and what may be done meanwhile.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::select_all;
use parking_lot::Mutex;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::clock::{Clock, Moment};
use super::election::LeaseRules;
use super::settings::LeaseTimings;

/// One uninterrupted time of holding a Lease, or several at once, from the write that took it. It is over for good as soon as it was not
/// renewed in time by either clock, when another took the Lease, and when the Lease is released; whoever takes the Lease again has a new
/// term. Clones share it.
///
/// What it answers follows from the clocks at that instant, and not from what a task was able to notice: a process that stood
/// still finds its term over before anybody had the time to end it.
#[derive(Clone)]
pub struct Term(Arc<[Arc<TermInner>]>);

/// The term of one Lease.
struct TermInner {
    clock: Clock,
    timing: LeaseTimings,
    /// Whether calls are fenced by it ([`LeaseRules::calls_need_the_lease`]).
    is_fence: bool,
    /// When the request was begun that renewed the Lease last. Others count from when they see its answer, which is later.
    renewed: Mutex<Moment>,
    /// Ended before its time.
    ended: CancellationToken,
}

impl Term {
    /// The term of a Lease that was taken by a request begun at `taken`.
    pub fn new(rules: LeaseRules, clock: Clock, timing: LeaseTimings, taken: Moment) -> Self {
        Self(Arc::new([Arc::new(TermInner {
            clock,
            timing,
            is_fence: rules.calls_need_the_lease,
            renewed: Mutex::new(taken),
            ended: CancellationToken::new(),
        })]))
    }

    /// The time in which all of these last.
    pub(super) fn of_all<'a>(terms: impl IntoIterator<Item = &'a Self>) -> Self {
        let parts = terms.into_iter().flat_map(|term| term.0.iter().cloned());
        Self(parts.collect())
    }

    /// Whether a call needs it.
    pub fn is_fence(&self) -> bool {
        self.0.iter().any(|part| part.is_fence)
    }

    /// Whether something may be begun that needs the Lease: before the renew deadline.
    pub fn may_start(&self) -> bool {
        !self.until_deadline().is_zero()
    }

    /// Whether what was begun may go on: before the end of the lease duration, when another may take the Lease.
    pub fn may_run(&self) -> bool {
        !self.until_end().is_zero()
    }

    /// Resolves when [`Term::may_run`] is no longer so, as far as timers tell: they stop while the machine is suspended, so
    /// that this may come late then.
    pub async fn over(&self) {
        loop {
            let rest = self.until_end();
            if rest.is_zero() {
                return;
            }
            let ended = self.0.iter().map(|part| Box::pin(part.ended.cancelled()));
            tokio::select! {
                biased;
                () = sleep(rest) => {}
                _ = select_all(ended) => {}
            }
        }
    }

    /// How long [`Term::may_start`] stays so without a renewal.
    pub(super) fn until_deadline(&self) -> Duration {
        self.least(|part| part.timing.renew_deadline)
    }

    /// How long [`Term::may_run`] stays so without a renewal.
    fn until_end(&self) -> Duration {
        self.least(|part| part.timing.lease_duration)
    }

    /// How long until the Lease is to be renewed again: when the retry period is over, or up to as much sooner that all Leases of
    /// the process are renewed together, which wakes the process and its connection once for all of them.
    pub(super) fn until_renewal(&self) -> Duration {
        let due = self.0.iter().map(|part| {
            let (period, left) = (part.timing.retry_period, part.rest_of(part.timing.retry_period));
            left.saturating_sub(after_multiple(part.clock.now().boot + left, period))
        });
        due.min().unwrap_or_default()
    }

    /// The Lease was renewed by a request begun at `begun`. False when the term was over by then: what was renewed is the
    /// Lease, and whoever worked may have stood still since.
    pub fn extend(&self, begun: Moment) -> bool {
        let in_time = self.may_start();
        for part in self.0.iter().filter(|_| in_time) {
            *part.renewed.lock() = begun;
        }
        in_time
    }

    /// Ends the term before its time.
    pub fn end(&self) {
        for part in &*self.0 {
            part.ended.cancel();
        }
    }

    /// What is left of a time that each Lease gives.
    fn least(&self, time: impl Fn(&TermInner) -> Duration) -> Duration {
        let left = self.0.iter().map(|part| part.rest_of(time(part)));
        left.min().unwrap_or_default()
    }
}

impl TermInner {
    fn rest_of(&self, time: Duration) -> Duration {
        if self.ended.is_cancelled() {
            return Duration::ZERO;
        }
        rest(time, *self.renewed.lock(), self.clock.now())
    }
}

/// How much `time` is more than a multiple of `period`.
fn after_multiple(time: Duration, period: Duration) -> Duration {
    let rest = time.as_nanos().checked_rem(period.as_nanos()).unwrap_or_default();
    Duration::from_nanos(u64::try_from(rest).unwrap_or_default())
}

/// What is left at `now` of a time that a renewal begun at `renewed` gave.
pub fn rest(time: Duration, renewed: Moment, now: Moment) -> Duration {
    time.saturating_sub(now.since(renewed))
}

/// Terms are equal when they are of the same Leases and began with the same writes.
impl PartialEq for Term {
    fn eq(&self, other: &Self) -> bool {
        self.0.iter().map(Arc::as_ptr).eq(other.0.iter().map(Arc::as_ptr))
    }
}

impl Eq for Term {}

impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Term").field(&self.until_end()).finish()
    }
}
