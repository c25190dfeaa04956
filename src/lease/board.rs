//! Who leads what, as far as the candidates of one process see, and what follows from that for a fair share: a replica that
//! could lead a driver asks one that leads at least two more to hand it over.
//!
//! Each hand-over makes the shares more equal, so that there is an end. Nothing is asked before the picture has been at rest
//! for a while, and by one replica for one Lease at a time. Without effects: the candidates write.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// How much more the one that is asked must lead.
const UNFAIR: usize = 2;
/// How long the picture must be at rest before something is asked for, in retry periods: at least, and at most. Those that
/// wait for the same do not all ask at the same moment.
const REST: (f64, f64) = (3.0, 6.0);
/// After so long a request counts as not heard.
const PATIENCE: Duration = Duration::from_mins(2);
/// So long one that refuses or does not answer is not asked again, unless the picture changes.
const RESIGNED: Duration = Duration::from_mins(10);

/// The picture. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Board(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// Who holds which Lease, of replicas that take part in this.
    holders: BTreeMap<String, String>,
    /// When something may be asked for, drawn anew with each change of the picture.
    rested: Option<Instant>,
    request: Option<Request>,
    /// Who refused or did not answer, and when they may be asked again.
    silent: BTreeMap<String, Instant>,
}

#[derive(Debug)]
struct Request {
    lease: String,
    holder: String,
    ends: Instant,
}

impl State {
    fn count(&self, identity: &str) -> usize {
        self.holders.values().filter(|holder| *holder == identity).count()
    }
}

impl Board {
    /// Takes in who holds a Lease.
    pub(super) fn shows(&self, lease: &str, holder: Option<&str>) {
        let state = &mut *self.0.lock();
        let known = state.holders.get(lease).map(String::as_str);
        if known == holder {
            return;
        }
        match holder {
            Some(holder) => state.holders.insert(lease.to_owned(), holder.to_owned()),
            None => state.holders.remove(lease),
        };
        state.rested = None;
        state.silent.clear();
        if state.request.as_ref().is_some_and(|request| request.lease == lease) {
            state.request = None;
        }
    }

    /// Whether `me`, which could lead at once, should ask the holder of a Lease for it. Said once: the request counts as
    /// made then, until it is answered or too old.
    pub(super) fn should_ask(&self, lease: &str, me: &str, retry_period: Duration, now: Instant) -> bool {
        let state = &mut *self.0.lock();
        if let Some(request) = state.request.take_if(|request| request.ends <= now) {
            state.silent.insert(request.holder, now + RESIGNED);
        }
        let (shortest, longest) = REST;
        let draw = || now + retry_period.mul_f64(shortest + (longest - shortest) * fastrand::f64());
        let rested = *state.rested.get_or_insert_with(draw);
        let Some(holder) = state.holders.get(lease).cloned() else {
            return false;
        };
        if now < rested || state.request.is_some() || state.silent.get(&holder).is_some_and(|until| now < *until) {
            return false;
        }
        if !is_unfair(state.count(&holder), state.count(me)) {
            return false;
        }
        state.request = Some(Request {
            lease: lease.to_owned(),
            holder,
            ends: now + PATIENCE,
        });
        true
    }

    /// The request for a Lease could not be made: the picture was another one than we thought.
    pub(super) fn failed(&self, lease: &str) {
        let state = &mut *self.0.lock();
        if state.request.take_if(|request| request.lease == lease).is_some() {
            state.rested = None;
        }
    }

    /// The request for a Lease was refused: the holder has another picture. Unless ours changes, it is not asked again for
    /// long.
    pub(super) fn refused(&self, lease: &str, now: Instant) {
        let state = &mut *self.0.lock();
        if let Some(request) = state.request.take_if(|request| request.lease == lease) {
            state.silent.insert(request.holder, now + RESIGNED);
        }
    }

    /// Whether a request of ours for this Lease waits for its answer.
    pub(super) fn has_asked(&self, lease: &str) -> bool {
        let state = self.0.lock();
        state.request.as_ref().is_some_and(|request| request.lease == lease)
    }

    /// Whether `me`, which leads, should hand over one of its Leases to this replica. Counted as handed over then, so that
    /// several requests at the same time are not granted by the same count.
    pub(super) fn should_give(&self, lease: &str, me: &str, to: &str) -> bool {
        let state = &mut *self.0.lock();
        let fair =
            state.holders.get(lease).is_some_and(|holder| holder == me) && is_unfair(state.count(me), state.count(to));
        if fair {
            state.holders.insert(lease.to_owned(), to.to_owned());
            state.rested = None;
        }
        fair
    }
}

/// Whether the shares of two, of which one asks the other, become more equal by a hand-over.
fn is_unfair(holder: usize, asking: usize) -> bool {
    holder >= asking + UNFAIR
}
