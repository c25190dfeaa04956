//! Who may read the metrics, as the API server says, remembered for a short time.
//!
//! A token is only kept as its SHA-256. What is remembered is bounded, and so is how often the API server is asked: there is
//! one budget for tokens that were good lately and another for all others, so that a flood of made-up tokens neither
//! costs the API server more than a few requests a second, nor keeps out a scraper that is known.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::time::Duration;

use http::{HeaderMap, header};
use parking_lot::Mutex;
use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use thiserror::Error;
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use crate::budget::Budget;
use crate::kubernetes::{ApiError, ApiErrorKind, Requests};

/// How long a token that was refused is refused without asking, unless what is good counts for less.
const REFUSED_FOR: Duration = Duration::from_secs(10);
/// How long a token that was good is asked for before strangers.
const KNOWN_FOR: Duration = Duration::from_mins(10);
/// How long the API server may take for both questions.
const PATIENCE: Duration = Duration::from_secs(10);
/// Tokens that are remembered; a cluster has a handful of scrapers.
const GOOD_TOKENS: usize = 64;
const REFUSED_TOKENS: usize = 512;
/// Tokens that the API server is asked for in a second, and at once.
const ASKED_PER_SECOND: f64 = 5.0;
const ASKED_AT_ONCE: f64 = 20.0;
/// Longer ones are no tokens of Kubernetes, whose headers end at 8 KiB in many places.
const LONGEST_TOKEN: usize = 16 << 10;
/// A fault that lasts is logged this often.
const SAID_EVERY: Duration = Duration::from_mins(1);

/// What the API server says of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Its owner may read the metrics.
    Allowed,
    /// It is no valid token.
    Unauthenticated,
    /// Its owner may not.
    Forbidden,
}

/// Why there is no verdict, in words without the token.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct Fault(pub String);

/// Who is asked about a token.
pub trait Judge: Send + Sync + 'static {
    /// Asks about a token, each time.
    fn judge(&self, token: &str) -> impl Future<Output = Result<Verdict, Fault>> + Send;
}

/// The API server as judge.
pub struct ApiServer {
    requests: Requests,
    path: String,
}

impl ApiServer {
    /// Asks by these requests who may GET `path`.
    pub fn new(requests: Requests, path: impl Into<String>) -> Self {
        let path = path.into();
        Self { requests, path }
    }
}

impl Judge for ApiServer {
    async fn judge(&self, token: &str) -> Result<Verdict, Fault> {
        let failed = |resource, error: &ApiError| fault(resource, error, token);
        let identity = self.requests.review_token(token).await;
        let Some(who) = identity.map_err(|error| failed("tokenreviews", &error))? else {
            return Ok(Verdict::Unauthenticated);
        };
        let allowed = self.requests.may_get(&who, &self.path).await;
        if allowed.map_err(|error| failed("subjectaccessreviews", &error))? {
            return Ok(Verdict::Allowed);
        }
        info!(
            user = who.username,
            path = self.path,
            "rejected a request for the metrics: its user has no permission to get that nonResourceURL"
        );
        Ok(Verdict::Forbidden)
    }
}

/// The API server's words, in which nothing of the token is to be expected, and nothing of it is left.
fn fault(resource: &str, error: &ApiError, token: &str) -> Fault {
    let fix = if error.kind == ApiErrorKind::Forbidden {
        "; the ClusterRole of the operator needs the verb create on it (metrics.secure.enabled in the chart)"
    } else {
        ""
    };
    let said = error.message.replace(token, "...");
    Fault(format!("cannot create {resource}: {said}{fix}"))
}

/// How a request is to be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Allowed,
    Unauthenticated,
    Forbidden,
    /// Too many tokens were asked for.
    Busy,
    /// There is nobody to ask.
    Unavailable,
}

impl From<Verdict> for Access {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Allowed => Self::Allowed,
            Verdict::Unauthenticated => Self::Unauthenticated,
            Verdict::Forbidden => Self::Forbidden,
        }
    }
}

type Key = [u8; SHA256_OUTPUT_LEN];

#[derive(Clone, Copy)]
struct Remembered {
    verdict: Verdict,
    /// Until when it counts.
    until: Instant,
    /// Until when it is worth anything.
    forgotten: Instant,
}

struct Memory {
    good: HashMap<Key, Remembered>,
    refused: HashMap<Key, Remembered>,
    known: Budget,
    strangers: Budget,
    /// What was logged last, and when.
    said: Option<(Fault, Instant)>,
}

/// Decides about requests by their token. Until somebody can be asked, nobody is let in.
pub struct Gatekeeper<J> {
    judge: OnceLock<J>,
    counts_for: Duration,
    memory: Mutex<Memory>,
}

impl<J: Judge> Gatekeeper<J> {
    /// Nobody can be asked yet. That a token is good counts for `counts_for`.
    pub fn new(counts_for: Duration) -> Self {
        let now = Instant::now().into_std();
        let budget = || Budget::new(ASKED_PER_SECOND, ASKED_AT_ONCE, now);
        let memory = Memory {
            good: HashMap::new(),
            refused: HashMap::new(),
            known: budget(),
            strangers: budget(),
            said: None,
        };
        Self {
            judge: OnceLock::new(),
            counts_for,
            memory: Mutex::new(memory),
        }
    }

    /// From now on this one is asked. A second one is not heard.
    pub fn ask(&self, judge: J) {
        let _first = self.judge.set(judge);
    }

    /// Decides by the header `Authorization`.
    pub(super) async fn admit(&self, headers: &HeaderMap) -> Access {
        let Some(token) = bearer_token(headers) else {
            return Access::Unauthenticated;
        };
        let key = key_of(token);
        let asked = Instant::now();
        if let Some(access) = self.memory.lock().without_asking(&key, asked) {
            return access;
        }
        let Some(judge) = self.judge.get() else {
            return Access::Unavailable;
        };
        let answer = timeout(PATIENCE, judge.judge(token)).await;
        let late = |_| {
            Err(Fault(format!(
                "no answer from the API server within {} s",
                PATIENCE.as_secs()
            )))
        };
        match answer.unwrap_or_else(late) {
            Ok(verdict) => {
                // It counts from the question on: what was revoked since is not good for longer than was promised.
                self.memory.lock().keep(key, verdict, asked, self.counts_for);
                verdict.into()
            }
            Err(fault) => {
                self.memory.lock().say(fault);
                Access::Unavailable
            }
        }
    }
}

impl Memory {
    /// The answer as far as it is known, or the request is one too many.
    fn without_asking(&mut self, key: &Key, now: Instant) -> Option<Access> {
        let good = self.good.get(key);
        let found = good.or_else(|| self.refused.get(key));
        if let Some(found) = found.filter(|found| found.until > now) {
            return Some(found.verdict.into());
        }
        let is_known = good.is_some_and(|good| good.forgotten > now);
        let budget = if is_known { &mut self.known } else { &mut self.strangers };
        (!budget.take(now.into_std())).then_some(Access::Busy)
    }

    fn keep(&mut self, key: Key, verdict: Verdict, asked: Instant, counts_for: Duration) {
        self.good.remove(&key);
        self.refused.remove(&key);
        let (table, room, until, forgotten) = if verdict == Verdict::Allowed {
            (
                &mut self.good,
                GOOD_TOKENS,
                asked + counts_for,
                asked + counts_for + KNOWN_FOR,
            )
        } else {
            let until = asked + counts_for.min(REFUSED_FOR);
            (&mut self.refused, REFUSED_TOKENS, until, until)
        };
        let now = Instant::now();
        if table.len() >= room {
            table.retain(|_, kept| kept.forgotten > now);
        }
        if table.len() >= room {
            let oldest = table.iter().min_by_key(|(_, kept)| kept.until).map(|(key, _)| *key);
            oldest.map(|key| table.remove(&key));
        }
        let kept = Remembered {
            verdict,
            until,
            forgotten,
        };
        table.insert(key, kept);
    }

    fn say(&mut self, fault: Fault) {
        let now = Instant::now();
        let repeated = |(said, at): &(Fault, Instant)| *said == fault && now < *at + SAID_EVERY;
        if !self.said.as_ref().is_some_and(repeated) {
            warn!(error = %fault, "cannot review tokens; rejecting metrics requests with unknown tokens");
            self.said = Some((fault, now));
        }
    }
}

fn key_of(token: &str) -> Key {
    let hash = digest(&SHA256, token.as_bytes());
    let mut key = [0; SHA256_OUTPUT_LEN];
    key.copy_from_slice(hash.as_ref());
    key
}

/// The token of exactly one header `Authorization: Bearer TOKEN`.
fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (value, second) = (values.next()?.to_str().ok()?, values.next());
    let (scheme, token) = value.trim().split_once(' ')?;
    let token = token.trim();
    let fits = !token.is_empty() && token.len() <= LONGEST_TOKEN && !token.contains(' ');
    (second.is_none() && scheme.eq_ignore_ascii_case("bearer") && fits).then_some(token)
}

#[cfg(test)]
mod tests;
