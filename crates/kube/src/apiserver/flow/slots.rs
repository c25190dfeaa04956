//! A bound of the requests in flight, shared by the drivers so that none has to wait for the many requests of another.
//!
//! To the API server all requests are of one user, whose requests wait in line there. So the line is made here. How many may be in flight
//! follows the API server's answers ([`AdaptiveLimit`]); whose turn it is follows from these rules:
//!
//! * A driver without a request of some kind in flight never waits to send one: its slot is beyond the limit. So a driver
//!   waits neither for others nor for a slow kind of its own, and what is beyond the limit is one for each driver and kind.
//! * Any other slot goes to the driver that has the fewest requests in flight; of several, to the one that was served longest
//!   ago. Within the driver the same holds for the kinds, and within a kind the nodes take turns, as in the work queue: while a
//!   node is drained, an attach to another one does not wait for each of its requests behind those of all detaches that run.
//! * One kind has at most three quarters of the limit, so that a slow kind of all drivers leaves something to the other kinds.
//! * Requests that can wait, such as the releases of volumes, come last in their driver, but are one of 16.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

pub(in crate::apiserver) use super::limit::SlotAnswer;
pub use super::limit::SlotLimits;

use super::limit::AdaptiveLimit;
use super::lines::{DriverLines, Line, Waiting};

/// A kind of request that other kinds do not wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::apiserver) struct SlotKind {
    pub plural: &'static str,
    pub subresource: &'static str,
    pub is_write: bool,
}

/// What a request for a slot is about.
#[derive(Clone, Copy, Debug)]
pub(in crate::apiserver) struct SlotRequest<'r> {
    pub driver: &'r Arc<str>,
    /// The node that the work is for, if it is for one.
    pub node: Option<&'r Arc<str>>,
    pub kind: SlotKind,
    /// Whether others of the driver go first.
    pub can_wait: bool,
}

/// A wait for a slot that is logged, and how long until another one of the same driver is.
const LONG_WAIT: Duration = Duration::from_secs(10);
const LOG_INTERVAL: Duration = Duration::from_mins(1);

/// Slots for requests in flight; clones share them.
#[derive(Clone, Debug)]
pub struct RequestSlots(pub(super) Arc<Mutex<RequestSlotsState>>);

#[derive(Debug)]
pub(super) struct RequestSlotsState {
    pub limit: AdaptiveLimit,
    pub running: usize,
    /// Requests in flight of each kind, of all drivers.
    kinds: HashMap<SlotKind, usize>,
    /// Kinds of drivers that have requests in flight.
    pub lines_running: usize,
    pub drivers: HashMap<Arc<str>, DriverLines>,
    /// How many slots were given, for the order between drivers that have equally many requests in flight.
    granted: u64,
}

/// The permission to have a request in flight, until it is dropped.
#[derive(Debug)]
pub(in crate::apiserver) struct RequestSlot(
    /// Taken when the slot is given back.
    Option<HeldSlot>,
);

#[derive(Debug)]
struct HeldSlot {
    slots: RequestSlots,
    driver: Arc<str>,
    line: Line,
    /// Whether there were only few in flight.
    few: bool,
    /// When the request could be sent.
    since: Instant,
}

impl RequestSlots {
    /// As many slots as these limits and the API server's answers allow.
    pub fn new(limits: SlotLimits) -> Self {
        Self(Arc::new(Mutex::new(RequestSlotsState {
            limit: AdaptiveLimit::new(limits),
            running: 0,
            kinds: HashMap::new(),
            lines_running: 0,
            drivers: HashMap::new(),
            granted: 0,
        })))
    }

    /// Waits for a slot. There is no bound to that, but there is always a request in flight meanwhile whose end brings the
    /// turn nearer; a long wait is logged.
    pub(in crate::apiserver) async fn acquire(&self, request: SlotRequest<'_>) -> RequestSlot {
        let mut receiver = match self.take_or_wait(request) {
            Ok(slot) => return slot,
            Err(receiver) => receiver,
        };
        let began = Instant::now();
        loop {
            match timeout(LONG_WAIT, &mut receiver).await {
                Ok(Ok(mut slot)) => {
                    if let Some(held) = &mut slot.0 {
                        held.since = Instant::now();
                    }
                    return slot;
                }
                // The sender waits in `self` until it sends.
                Ok(Err(_)) => std::future::pending().await,
                Err(_) => self.log_wait(request.driver, began.elapsed()),
            }
        }
    }

    /// A slot, if there is one for this request; otherwise its turn in line.
    fn take_or_wait(&self, request: SlotRequest<'_>) -> Result<RequestSlot, oneshot::Receiver<RequestSlot>> {
        let mut state = self.0.lock();
        let SlotRequest { kind, can_wait, .. } = request;
        let line = Line { kind, can_wait };
        let lines = state.drivers.entry(request.driver.clone()).or_default();
        let is_first = lines.waiting(line) == 0;
        if is_first && state.may_take(request.driver, line) {
            return Ok(self.take(&mut state, request.driver, line));
        }
        let (sender, receiver) = oneshot::channel();
        if let Some(lines) = state.drivers.get_mut(request.driver) {
            lines.push(line, request.node, sender);
        }
        Err(receiver)
    }

    fn take(&self, state: &mut RequestSlotsState, driver: &Arc<str>, line: Line) -> RequestSlot {
        let few = state.take(driver, line);
        RequestSlot(Some(HeldSlot {
            slots: self.clone(),
            driver: driver.clone(),
            line,
            few,
            since: Instant::now(),
        }))
    }

    /// Gives slots to those in line while there are some.
    fn grant_next(&self, state: &mut RequestSlotsState) {
        while let Some((driver, line, sender)) = state.next() {
            let slot = self.take(state, &driver, line);
            if let Err(mut unused) = sender.send(slot) {
                // The request was given up meanwhile. Dropping the slot would come back here while the lock is held.
                unused.0 = None;
                state.give_back(&driver, line);
            }
        }
    }

    fn log_wait(&self, driver: &Arc<str>, waited: Duration) {
        let mut state = self.0.lock();
        let (in_flight, limit) = (state.running, state.limit.now());
        let Some(lines) = state.drivers.get_mut(driver) else {
            return;
        };
        if lines.logged_at.is_some_and(|at| at.elapsed() < LOG_INTERVAL) {
            return;
        }
        lines.logged_at = Some(Instant::now());
        let waiting = lines.all_waiting();
        drop(state);
        tracing::warn!(
            driver = &**driver,
            waited_seconds = waited.as_secs(),
            waiting,
            in_flight,
            limit,
            "requests of the driver wait until earlier ones are answered: the API server, or a webhook that it calls, is slow"
        );
    }
}

impl RequestSlotsState {
    /// Whether the limit leaves a slot to this kind.
    fn has_slot(&self, limit: usize, kind: SlotKind) -> bool {
        let of_kind = self.kinds.get(&kind).copied().unwrap_or_default();
        self.running < limit && of_kind < (limit * 3).div_ceil(4)
    }

    fn may_take(&self, driver: &Arc<str>, line: Line) -> bool {
        let lines = self.drivers.get(driver);
        lines.is_some_and(|lines| lines.is_first_in_flight(line)) || self.has_slot(self.limit.now(), line.kind)
    }

    /// Counts a request that is sent; whether only few are in flight with it.
    fn take(&mut self, driver: &Arc<str>, line: Line) -> bool {
        self.running += 1;
        self.granted += 1;
        *self.kinds.entry(line.kind).or_default() += 1;
        let lines = self.drivers.entry(driver.clone()).or_default();
        if lines.take(line, self.granted) {
            self.lines_running += 1;
        }
        self.running <= self.limit.min().max(self.lines_running)
    }

    /// One request less; a driver without any is forgotten.
    fn give_back(&mut self, driver: &Arc<str>, line: Line) {
        self.running = self.running.saturating_sub(1);
        let of_kind = self.kinds.entry(line.kind).or_default();
        *of_kind = of_kind.saturating_sub(1);
        let Some(lines) = self.drivers.get_mut(driver) else {
            return;
        };
        if lines.give_back(line) {
            self.lines_running = self.lines_running.saturating_sub(1);
        }
        if lines.is_idle() {
            self.drivers.remove(driver);
        }
    }

    /// The next one in line for which there is a slot.
    fn next(&mut self) -> Option<(Arc<str>, Line, Waiting)> {
        let limit = self.limit.now();
        let next = self.drivers.iter().filter_map(|(driver, lines)| {
            let (order, line) = lines.next(|kind| self.has_slot(limit, kind))?;
            Some((order, driver, line))
        });
        let (_, driver, line) = next.min_by_key(|(order, ..)| *order)?;
        let driver = driver.clone();
        let sender = self.drivers.get_mut(&driver)?.pop(line)?;
        Some((driver, line, sender))
    }
}

impl RequestSlot {
    /// Gives the slot back after an answer, from which the limit follows.
    pub(in crate::apiserver) fn finish(mut self, answer: SlotAnswer) {
        self.give_back(answer);
    }

    fn give_back(&mut self, answer: SlotAnswer) {
        let Some(held) = self.0.take() else { return };
        let mut state = held.slots.0.lock();
        // All who are in line wait for the limit.
        let is_wanted = state.drivers.values().any(|lines| lines.all_waiting() > 0);
        state
            .limit
            .record(held.line.kind, held.since.elapsed(), answer, held.few, is_wanted);
        state.give_back(&held.driver, held.line);
        held.slots.grant_next(&mut state);
    }
}

impl Drop for RequestSlot {
    /// The request was given up: nothing is learned from it.
    fn drop(&mut self) {
        self.give_back(SlotAnswer::Other);
    }
}
