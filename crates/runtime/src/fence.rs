//! What every call to a driver passes: nothing is sent without the driver's Lease.
//!
//! A process can stand still between any two of its steps, for longer than its Lease: a node that swaps, a container that is
//! frozen or throttled, a machine that is suspended. What it knew before is not true any more when it goes on, and what is
//! about to be sent may undo the work of the replica that took over. So the clocks are read at the very moment when a call is
//! begun, and each time before it goes on; and once more when its bytes leave the process, as a call passes queues of the
//! connection on its way. What the kernel was given before the process stood still cannot be taken back.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use thiserror::Error;

use crate::csi::{CallError, CsiClient};
use crate::lease::Term;

/// Why a call brought no answer that counts.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CallFailure {
    /// What the driver or the connection said.
    #[error(transparent)]
    Driver(#[from] CallError),
    /// The call was not the driver's failure, and nothing may be written about it: others may work for the driver.
    #[error(transparent)]
    Lease(#[from] LeaseLost),
}

/// What the loss of the Lease did to a call.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum LeaseLost {
    /// The driver was not asked.
    #[error("this replica lost the Lease of the driver; the call was not sent")]
    NotStarted,
    /// The driver may still do what it was asked to, as after a broken connection.
    #[error("the Lease of the driver is over, so that the call was cancelled")]
    Cancelled,
}

/// Lets calls to a driver pass for as long as its Lease is held.
#[derive(Clone)]
pub struct Fence {
    term: Option<Term>,
}

impl Fence {
    /// Lets calls pass in this term of the driver's Lease; at any time when there is no election.
    pub fn new(term: Option<Term>) -> Self {
        Self { term }
    }

    /// As [`Fence::new`], for calls over the connection of `client`, which writes nothing after the term either.
    pub fn around(client: &CsiClient, term: Option<Term>) -> Self {
        if let Some(term) = term.clone() {
            client.connection().writes_only_while(move || term.may_run());
        }
        Self::new(term)
    }

    /// The term in which calls are made; none when there is no election.
    pub fn term(&self) -> Option<&Term> {
        self.term.as_ref()
    }

    fn is_closed_by(&self) -> Option<&Term> {
        self.term.as_ref().filter(|term| term.is_fence())
    }

    /// Whether a call would be sent now.
    pub fn may_start(&self) -> bool {
        self.is_closed_by().is_none_or(Term::may_start)
    }

    /// Makes a call, which begins with its first poll. Between the look at the clocks and a poll there is nothing that waits.
    pub async fn call<T>(&self, call: impl Future<Output = Result<T, CallError>>) -> Result<T, CallFailure> {
        let Some(term) = self.is_closed_by() else {
            return Ok(call.await?);
        };
        let mut over = pin!(term.over());
        let mut call = pin!(call);
        let mut started = false;
        poll_fn(|context| {
            // Only for the sake of its timer: what counts is what the clocks say.
            let _timer = over.as_mut().poll(context);
            let (held, lost) = if started {
                (term.may_run(), LeaseLost::Cancelled)
            } else {
                (term.may_start(), LeaseLost::NotStarted)
            };
            if !held {
                return Poll::Ready(Err(lost.into()));
            }
            started = true;
            call.as_mut().poll(context).map_err(CallFailure::from)
        })
        .await
    }
}
