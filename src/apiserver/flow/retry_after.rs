//! What the API server asked us to wait for (`Retry-After`): no request of that kind before the time is over.

use http::{HeaderMap, header};
use parking_lot::Mutex;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// No server is obeyed for longer than this at a time; one that still wants us to wait says so again.
const LONGEST: Duration = Duration::from_mins(5);
/// A server that says "at once" is not asked without any pause.
const SHORTEST: Duration = Duration::from_millis(100);
/// What is not made again for so long after its time is not made again at all.
const FORGOTTEN: Duration = Duration::from_mins(10);
/// Those who waited go on one after the other within this time, not all at once.
const SPREAD: Duration = Duration::from_secs(1);

/// A kind of request.
pub(in crate::apiserver) type RequestKind = Cow<'static, str>;

/// The kinds that have to wait. Clones share them.
#[derive(Clone, Debug, Default)]
pub(in crate::apiserver) struct RetryAfterGate(Arc<Mutex<HashMap<RequestKind, RetryAfterEntry>>>);

/// Why a kind has to wait, and for how long.
#[derive(Clone, Copy, Debug)]
struct RetryAfterEntry {
    until: Instant,
    /// The status of the last answer that asked for it.
    status: u16,
    /// Requests that were answered so and that nobody made again yet.
    refused: u32,
}

impl RetryAfterGate {
    /// Until when requests of this kind have to wait; none when they need not.
    pub fn closed_until(&self, kind: &RequestKind) -> Option<Instant> {
        let closed = self.0.lock();
        let until = closed.get(kind).map(|closed| closed.until);
        until.filter(|until| *until > Instant::now())
    }

    /// Waits for the turn of one request. When it is in place of one that was told to wait, the status of that answer:
    /// whoever sends requests sends each of those again, so that as many of them count as were refused.
    pub async fn wait(&self, kind: &RequestKind) -> Option<u16> {
        while let Some(until) = self.closed_until(kind) {
            // Whoever goes first may be told to wait again, and then the others wait too.
            sleep_until(until + SPREAD.mul_f64(fastrand::f64())).await;
        }
        let mut closed = self.0.lock();
        let known = closed.get_mut(kind)?;
        known.refused = known.refused.checked_sub(1)?;
        let status = known.status;
        if known.refused == 0 && known.until <= Instant::now() {
            closed.remove(kind);
        }
        Some(status)
    }

    /// Takes in an answer. A shorter time does not take back a longer one.
    pub fn record_response(&self, kind: &RequestKind, status: Option<u16>, retry_after: Option<Duration>) {
        let (Some(retry_after), Some(status)) = (retry_after, status) else {
            return;
        };
        let now = Instant::now();
        let until = now + retry_after.clamp(SHORTEST, LONGEST);
        let mut closed = self.0.lock();
        closed.retain(|_, closed| closed.until > now || closed.until.elapsed() < FORGOTTEN);
        let known = closed.entry(kind.clone()).or_insert(RetryAfterEntry {
            until,
            status,
            refused: 0,
        });
        known.until = until.max(known.until);
        known.status = status;
        known.refused = known.refused.saturating_add(1);
    }
}

/// The time that an answer asks to wait. Only 429 and 503 mean that for requests of the same kind (RFC 9110, 10.2.3).
pub(in crate::apiserver) fn retry_after(status: u16, headers: &HeaderMap) -> Option<Duration> {
    if status != 429 && status != 503 {
        return None;
    }
    let seconds = headers.get(header::RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}
