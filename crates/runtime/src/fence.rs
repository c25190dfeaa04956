//! Every call that works on volumes passes here, and is sent only while the driver's Lease is held (invariant 11 of ARCHITECTURE). The
//! handshake does not: any replica may ask who answers. A process can stand still between any two of its steps, for longer than its Lease.
//! So the clocks, those of [`Term`], are read at the very moment when a call is begun and each time before it goes on; and once more when
//! its bytes leave the process (`DriverConnection::writes_only_while`). What the kernel was given before that cannot be taken back.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use thiserror::Error;
use tokio::sync::watch;

use crate::csi::{Call, CallError, CsiClient};
use crate::decide::Failure;
use crate::lease::Term;
use crate::telemetry::Span;
use csi_attacher_model::attempt::CallEnd;

/// Why a call brought no answer that counts.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CallFailure {
    /// The error of the driver or of the connection.
    #[error(transparent)]
    Driver(#[from] CallError),
    /// The call was not the driver's failure, and nothing may be written about it: others may work for the driver.
    #[error(transparent)]
    Lease(#[from] LeaseLost),
}

impl From<CallFailure> for CallEnd {
    fn from(failure: CallFailure) -> Self {
        match failure {
            // The driver failed at nothing, and nobody has to find out what it did.
            CallFailure::Driver(error) if error.unsent => Self::LeaseLost(LeaseLost::NotStarted),
            CallFailure::Driver(error) => Self::Failed(Failure::from(&error)),
            CallFailure::Lease(lost) => Self::LeaseLost(lost),
        }
    }
}

pub use csi_attacher_model::attempt::LeaseLost;

/// From so many calls in a row on that were not sent it is told: the connection stands, and takes none.
const LASTING_UNSENT: u32 = 3;

/// How many calls for one key in a row were not sent, as the connection took no more.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnsentCalls(u32);

impl UnsentCalls {
    /// Counts a call that has ended. Whatever the driver may have seen ends the row; so does the end of the Lease, as others work for it.
    pub fn count<T>(&mut self, answer: &Result<T, CallFailure>) {
        self.0 = match answer {
            Err(CallFailure::Driver(error)) if error.unsent => self.0.saturating_add(1),
            _ => 0,
        };
    }

    /// How many they are, once that is to be told.
    pub fn lasting(self) -> Option<u32> {
        (self.0 >= LASTING_UNSENT).then_some(self.0)
    }
}

/// Calls a driver for as long as its Lease is held. Clones share the connection.
#[derive(Clone)]
pub struct FencedClient {
    client: CsiClient,
    term: Option<Term>,
    calls: CallCounter,
}

/// Numbers calls in the order in which they begin. Clones count together.
#[derive(Clone, Debug, Default)]
struct CallCounter(Arc<watch::Sender<CallNumbers>>);

#[derive(Debug, Default)]
struct CallNumbers {
    next: u64,
    open: BTreeSet<u64>,
}

/// A call that has begun. It ends when this is dropped.
struct OpenCall {
    counter: CallCounter,
    number: u64,
}

/// The calls that were open at some moment.
#[derive(Debug)]
pub struct OpenCalls {
    counter: CallCounter,
    /// The number of the first call after that moment.
    until: u64,
}

impl CallCounter {
    fn begin(&self) -> OpenCall {
        let mut number = 0;
        self.0.send_modify(|calls| {
            number = calls.next;
            calls.next += 1;
            calls.open.insert(number);
        });
        OpenCall {
            counter: self.clone(),
            number,
        }
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        self.counter.0.send_modify(|calls| {
            calls.open.remove(&self.number);
        });
    }
}

impl OpenCalls {
    /// Resolves when all of them have ended, whatever began later.
    pub async fn ended(&self) {
        let mut calls = self.counter.0.subscribe();
        let have_ended = |calls: &CallNumbers| calls.open.first().is_none_or(|first| *first >= self.until);
        // The sender lives as long as `self`.
        let _ended = calls.wait_for(have_ended).await;
    }
}

impl FencedClient {
    /// Makes calls by `client` in this term of the driver's Lease; at any time when there is no election. Its connection writes nothing
    /// after the term either.
    pub fn new(client: CsiClient, term: Option<Term>) -> Self {
        if let Some(term) = term.clone() {
            client.connection().writes_only_while(move || term.may_run());
        }
        Self {
            client,
            term,
            calls: CallCounter::default(),
        }
    }

    /// The same, in the place of `former`: what that one called over its connection, and those before it, may be open yet.
    #[must_use]
    pub fn following(self, former: &Self) -> Self {
        Self {
            calls: former.calls.clone(),
            ..self
        }
    }

    /// The same, for calls that nobody waits for: they change nothing, and whoever makes them may be stopped at any time.
    #[must_use]
    pub fn uncounted(self) -> Self {
        Self {
            calls: CallCounter::default(),
            ..self
        }
    }

    /// The calls that are open now, over whatever connection they were made.
    pub fn open_calls(&self) -> OpenCalls {
        OpenCalls {
            counter: self.calls.clone(),
            until: self.calls.0.borrow().next,
        }
    }

    /// As [`CsiClient::migrated`], behind the same fence.
    #[must_use]
    pub fn migrated(&self) -> Self {
        Self {
            client: self.client.migrated(),
            ..self.clone()
        }
    }

    /// The term in which calls are made; none when there is no election.
    pub fn term(&self) -> Option<&Term> {
        self.term.as_ref()
    }

    fn fence(&self) -> Option<&Term> {
        self.term.as_ref().filter(|term| term.is_fence())
    }

    /// Whether a call would be sent now.
    pub fn may_start(&self) -> bool {
        self.fence().is_none_or(Term::may_start)
    }

    /// As [`CsiClient::call`]. Between a reading of the clocks and the poll of the call there is nothing that waits.
    pub async fn call<C: Call>(&self, call: &C, deadline: Duration, parent: &Span) -> Result<C::Answer, CallFailure> {
        let _open = self.calls.begin();
        let call = self.client.call(call, deadline, parent);
        let Some(term) = self.fence() else {
            return Ok(call.await?);
        };
        let mut over = pin!(term.over());
        let mut call = pin!(call);
        let mut started = false;
        poll_fn(|context| {
            // Only for the sake of its timer: the clocks decide.
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
