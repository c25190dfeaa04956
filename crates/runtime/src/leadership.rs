//! What a driver's task keeps from one connection to the next: the engine at work, the candidate for the driver's Lease,
//! and the reservation of the driver.
//!
//! The Lease is given up with the driver that cannot be reached, so that a replica that reaches it can take over. An engine
//! never outlives the term of the Lease in which it was started.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::FutureExt as _;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::engine::{Engine, Work};
use crate::fence::OpenCalls;
use crate::lease::{CandidateStatus, LeaderElectionHandle, Term};
use crate::pending::or_never;
use crate::reservation::{Reservation, ReservationState};

/// How long a driver may be away before its Lease is given up. One that restarts is mostly back by then; another replica
/// that took over meanwhile would gain nothing. See [`Absence::is_too_long`].
const AWAY_TIMEOUT: Duration = Duration::from_secs(5);

/// How long cancelled runs may take to be gone; they are as soon as their tasks are scheduled.
const GONE_WITHIN: Duration = Duration::from_secs(1);

/// Where the candidate for a driver's Lease can be followed while there is one. Clones share it.
pub type LeaseStatus = Arc<Mutex<Option<watch::Receiver<CandidateStatus>>>>;

/// What is held for a driver from one connection to the next.
pub struct Leadership<W: Work> {
    // In the order in which they must end if the task is cut off.
    /// What works for the driver.
    pub engine: Option<Engine<W>>,
    /// The candidate for its Lease.
    pub candidate: Option<LeaderElectionHandle>,
    /// The driver's reservation among the AttacherConfigs of this process.
    pub reservation: Option<Reservation>,
    /// The term of the Lease in which the driver is worked for; none before it is held, and without an election.
    pub term: Option<Term>,
    lease_status: LeaseStatus,
    absence: Option<Absence>,
}

struct Absence {
    /// What was called before it.
    calls: Option<OpenCalls>,
    /// Since when nothing of that is open.
    since: OnceLock<Instant>,
}

impl Absence {
    /// Resolves when the Lease is to be given up. It cannot be while a call from before is open: another replica would call beside it.
    /// As long as that takes the driver is looked for here, as nobody else may work for it. The end of a call may be its answer: a driver
    /// that does one thing at a time answers the handshake only after that.
    async fn is_too_long(&self) {
        if let Some(calls) = &self.calls {
            calls.ended().await;
        }
        // Kept, as each try to connect waits for this anew.
        let since = *self.since.get_or_init(Instant::now);
        sleep_until(since + AWAY_TIMEOUT).await;
    }
}

impl<W: Work> Leadership<W> {
    /// With nothing yet; its candidate is to be followed there.
    pub fn new(lease_status: LeaseStatus) -> Self {
        Self {
            engine: None,
            candidate: None,
            reservation: None,
            term: None,
            lease_status,
            absence: None,
        }
    }

    /// Has this candidate from now on.
    pub fn set_candidate(&mut self, candidate: LeaderElectionHandle) {
        *self.lease_status.lock() = Some(candidate.subscribe());
        self.candidate = Some(candidate);
    }

    /// The candidate is gone without an orderly end, and with it what it showed last, which may be that it leads.
    pub fn drop_candidate(&mut self) {
        self.candidate = None;
        *self.lease_status.lock() = None;
    }

    /// The connection is lost. What runs is let go on; a candidate that does not lead must not begin to.
    pub async fn connection_lost(&mut self) {
        self.absence = Some(Absence {
            calls: self.engine.as_ref().map(Engine::pause),
            since: OnceLock::new(),
        });
        if self.engine.is_none() {
            self.release_lease().await;
        }
    }

    /// No new connection reaches the driver. While an old one stands this is as when it is lost: who cannot work for the driver gives up what it
    /// holds.
    pub async fn unreached(&mut self) {
        if self.absence.is_none() && self.reservation.is_some() {
            self.connection_lost().await;
        }
    }

    /// The driver answers; true when it does so again.
    pub fn connection_restored(&mut self) -> bool {
        self.absence.take().is_some()
    }

    /// Whether the driver was connected, and does not answer now.
    pub fn is_away(&self) -> bool {
        self.absence.is_some()
    }

    /// Resolves when the engine must be given up: the Lease is lost, another AttacherConfig goes before this one for the driver, or the
    /// driver is away for too long since the last call from before has ended. Never without an engine.
    pub async fn engine_must_stop(&self) {
        if self.engine.is_none() {
            return std::future::pending().await;
        }
        // Without an election nobody else could work for the driver.
        let absence = self.absence.as_ref().filter(|_| self.candidate.is_some());
        let away = or_never(absence.map(Absence::is_too_long));
        tokio::select! {
            biased;
            () = self.loses_term() => {}
            () = self.reservation_lost() => {}
            () = away => {}
        }
    }

    /// Resolves when the Lease is not held in the noted term any more; never without an election.
    pub async fn loses_term(&self) {
        match (&self.candidate, &self.term) {
            (Some(candidate), Some(term)) => candidate.loses(term).await,
            (None, Some(_)) => {}
            (_, None) => std::future::pending().await,
        }
    }

    /// Whether there is an engine that was started in another term of the Lease than the noted one.
    pub fn has_engine_of_another_term(&self) -> bool {
        self.engine.as_ref().is_some_and(|engine| engine.term() != self.term)
    }

    /// Resolves when another AttacherConfig goes before this one for the driver.
    pub async fn reservation_lost(&self) {
        or_never(self.reservation.as_ref().map(Reservation::refused)).await;
    }

    /// Resolves when the engine met something for which the driver has to be admitted again.
    pub async fn admission_doubted(&self) {
        or_never(self.engine.as_ref().map(|engine| engine.work().doubts_admission())).await;
    }

    /// Whether another AttacherConfig goes before this one for the driver.
    pub fn has_lost_reservation(&self) -> bool {
        let reservation = self.reservation.as_ref();
        reservation.is_some_and(|reservation| matches!(reservation.state(), ReservationState::Refused(_)))
    }

    /// Lets the runs in flight end, and drops the engine; tells whose it was. What still runs when another may take the
    /// Lease is cut off: two replicas calling at once would be worse than a call whose answer is not known. So is what runs when
    /// the process has no more time: it would end with the process, and the Lease could not be released.
    pub async fn drain(&mut self, cut_off: &CancellationToken) -> Option<Arc<str>> {
        let engine = self.engine.take()?;
        let driver = engine.facts().name.clone();
        let (term, drained) = (engine.term(), engine.drained().shared());
        let over = or_never(term.as_ref().map(Term::over));
        let cause = tokio::select! {
            biased;
            () = engine.drain() => return Some(driver),
            () = over => "the Lease expired",
            () = cut_off.cancelled() => "the time to finish is over",
        };
        if drained.clone().now_or_never().is_none() {
            tracing::warn!(
                driver = &*driver,
                "{cause} while calls were running; the calls were cancelled"
            );
            // Only when their tasks are gone, which takes no time, may another replica call.
            let _gone = tokio::time::timeout(GONE_WITHIN, drained).await;
        }
        Some(driver)
    }

    /// Releases the Lease and goes on watching who holds it. The reservation stays, and another one may be granted meanwhile.
    pub async fn release_lease(&mut self) {
        if let Some(candidate) = &self.candidate
            && !candidate.release().await
        {
            // One that could not release the Lease in time ends here: it must not release it later, when another candidate
            // of this process may hold it.
            self.drop_candidate();
        }
        if let Some(reservation) = &self.reservation {
            reservation.deactivate();
        }
    }

    /// Releases the Lease, watches it no more, and gives up the claim. What the candidate showed last stays: who led writes the last status.
    pub async fn release_all(&mut self) {
        if let Some(candidate) = self.candidate.take() {
            candidate.release_and_stop().await;
        }
        self.reservation = None;
    }
}
