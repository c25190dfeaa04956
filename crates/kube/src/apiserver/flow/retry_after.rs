//! What the API server asked us to wait for (`Retry-After`): no request of that kind before the time is over.

use http::{HeaderMap, header};
use jiff::Timestamp;
use jiff::fmt::strtime;
use jiff::tz::Offset;
use parking_lot::Mutex;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

use crate::clock;

/// No server is obeyed for longer than this at a time; one that still wants us to wait says so again.
const MAX_WAIT: Duration = Duration::from_mins(5);
/// A server that says "at once" is not asked without any pause.
const MIN_WAIT: Duration = Duration::from_millis(100);
/// What is not made again for so long after its time is not made again at all.
const FORGOTTEN: Duration = Duration::from_mins(10);
/// Those who waited go on one after the other within this time, not all at once.
const SPREAD: Duration = Duration::from_secs(1);

/// The form of a date (RFC 9110, 5.6.7).
const HTTP_DATE: &str = "%a, %d %b %Y %H:%M:%S GMT";

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

    /// Waits until a request of this kind may be sent.
    pub async fn wait_open(&self, kind: &RequestKind) {
        while let Some(until) = self.closed_until(kind) {
            // The API server may ask whoever goes first to wait again, and then the others wait too.
            sleep_until(until + SPREAD.mul_f64(fastrand::f64())).await;
        }
    }

    /// Counts a request that is sent. When it takes the place of one that was refused so, the status of that answer: whoever sends requests
    /// sends each of those again, so that as many of them count as were refused.
    pub fn retry_of(&self, kind: &RequestKind) -> Option<u16> {
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
        let until = now + retry_after.clamp(MIN_WAIT, MAX_WAIT);
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

/// The time that an answer asks to wait, [`MAX_WAIT`] at most: nobody who reads it has to think of times without end. Only 429 and
/// 503 mean that for requests of the same kind (RFC 9110, 10.2.3).
pub(in crate::apiserver) fn retry_after(status: u16, headers: &HeaderMap) -> Option<Duration> {
    header_time(headers).filter(|_| matches!(status, 429 | 503))
}

/// As [`retry_after`], for further pages of a list: client-go asks for these again after any error of the server that says when.
pub(in crate::apiserver) fn page_retry_after(status: u16, headers: &HeaderMap) -> Option<Duration> {
    header_time(headers).filter(|_| status == 429 || status >= 500)
}

fn header_time(headers: &HeaderMap) -> Option<Duration> {
    let asked = wait_time(headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim(), clock::now())?;
    Some(asked.min(MAX_WAIT))
}

/// A number of seconds, or a date. What is neither says nothing.
fn wait_time(text: &str, now: Timestamp) -> Option<Duration> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        // More than the type can hold is long in any case.
        return Some(Duration::from_secs(text.parse().unwrap_or(u64::MAX)));
    }
    // Without a time zone: the last day that can be written is no timestamp.
    let until = strtime::parse(HTTP_DATE, text)
        .and_then(|date| date.to_datetime())
        .ok()?;
    let now = Offset::UTC.to_datetime(now);
    Some(until.duration_since(now).try_into().unwrap_or(Duration::ZERO))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(value: &str) -> Option<Duration> {
        let headers = HeaderMap::from_iter([(header::RETRY_AFTER, value.parse().unwrap())]);
        retry_after(503, &headers)
    }

    #[test]
    fn no_answer_makes_us_wait_longer_than_the_longest_time() {
        for (value, wanted) in [
            ("0", Some(0)),
            ("7", Some(7)),
            (" 7 ", Some(7)),
            ("300", Some(300)),
            ("301", Some(300)),
            ("18446744073709551615", Some(300)),
            ("99999999999999999999999999", Some(300)),
            ("Fri, 31 Dec 9999 23:59:59 GMT", Some(300)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(0)),
            ("-1", None),
            ("1.5", None),
            ("+1", None),
            ("1e3", None),
            ("", None),
            ("soon", None),
        ] {
            assert_eq!(asked(value), wanted.map(Duration::from_secs), "{value:?}");
        }
    }

    #[test]
    fn a_date_is_the_time_until_then() {
        let now = "2026-11-26T05:00:00Z".parse().unwrap();
        let date = "Thu, 26 Nov 2026 05:00:30 GMT";
        assert_eq!(wait_time(date, now), Some(Duration::from_secs(30)));
    }
}
