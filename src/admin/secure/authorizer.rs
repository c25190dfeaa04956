//! Who may read the metrics, as the API server says, remembered for a short time.
//!
//! A token is only kept as its SHA-256. What is remembered is bounded, and so is how often the API server is asked: there is
//! one budget for tokens that were good lately and another for all others, so that a flood of made-up tokens neither
//! costs the API server more than a few requests a second, nor keeps out a scraper that is known.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use http::{HeaderMap, header};
use parking_lot::Mutex;
use thiserror::Error;
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use crate::apiserver::{ApiError, ApiErrorKind, Requests};
use crate::queue::{Rate, TokenBucket};

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
const ASKED_PER_SECOND: u32 = 5;
const ASKED_AT_ONCE: u32 = 20;
/// Longer ones are no tokens of Kubernetes, whose headers end at 8 KiB in many places.
const LONGEST_TOKEN: usize = 16 << 10;
/// A fault that lasts is logged this often.
const SAID_EVERY: Duration = Duration::from_mins(1);

/// What the API server says of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReviewDecision {
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
pub struct ReviewError(pub String);

/// Who is asked about a token.
pub trait TokenReviewer: Send + Sync + 'static {
    /// Asks about a token, each time.
    fn review(&self, token: &str) -> impl Future<Output = Result<ReviewDecision, ReviewError>> + Send;
}

/// The API server as judge.
pub struct ApiServerReviewer {
    requests: Requests,
    path: String,
}

impl ApiServerReviewer {
    /// Asks by these requests who may GET `path`.
    pub fn new(requests: Requests, path: impl Into<String>) -> Self {
        let path = path.into();
        Self { requests, path }
    }
}

impl TokenReviewer for ApiServerReviewer {
    async fn review(&self, token: &str) -> Result<ReviewDecision, ReviewError> {
        let failed = |resource, error: &ApiError| fault(resource, error, token);
        let identity = self.requests.review_token(token).await;
        let Some(who) = identity.map_err(|error| failed("tokenreviews", &error))? else {
            return Ok(ReviewDecision::Unauthenticated);
        };
        let allowed = self.requests.may_get(&who, &self.path).await;
        if allowed.map_err(|error| failed("subjectaccessreviews", &error))? {
            return Ok(ReviewDecision::Allowed);
        }
        info!(
            user = who.username,
            path = self.path,
            "rejected a request for the metrics: its user has no permission to get that nonResourceURL"
        );
        Ok(ReviewDecision::Forbidden)
    }
}

/// The API server's words, in which nothing of the token is to be expected, and nothing of it is left.
fn fault(resource: &str, error: &ApiError, token: &str) -> ReviewError {
    let fix = if error.kind == ApiErrorKind::Forbidden {
        "; the ClusterRole of the operator needs the verb create on it (metrics.secure.enabled in the chart)"
    } else {
        ""
    };
    let said = error.message.replace(token, "...");
    ReviewError(format!("cannot create {resource}: {said}{fix}"))
}

/// How a request is to be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AuthResult {
    Allowed,
    Unauthenticated,
    Forbidden,
    /// Too many tokens were asked for.
    Busy,
    /// There is nobody to ask.
    Unavailable,
}

impl From<ReviewDecision> for AuthResult {
    fn from(verdict: ReviewDecision) -> Self {
        match verdict {
            ReviewDecision::Allowed => Self::Allowed,
            ReviewDecision::Unauthenticated => Self::Unauthenticated,
            ReviewDecision::Forbidden => Self::Forbidden,
        }
    }
}

type TokenHash = [u8; SHA256_OUTPUT_LEN];

#[derive(Clone, Copy)]
struct CachedDecision {
    verdict: ReviewDecision,
    /// Until when it counts.
    until: Instant,
    /// Until when it is worth anything.
    forgotten: Instant,
}

struct DecisionCache {
    good: HashMap<TokenHash, CachedDecision>,
    refused: HashMap<TokenHash, CachedDecision>,
    known: TokenBucket,
    unknown_tokens: TokenBucket,
    /// What was logged last, and when.
    said: Option<(ReviewError, Instant)>,
}

/// Decides about requests by their token. Until somebody can be asked, nobody is let in.
pub struct MetricsAuthorizer<J> {
    judge: OnceLock<J>,
    counts_for: Duration,
    memory: Mutex<DecisionCache>,
}

impl<J: TokenReviewer> MetricsAuthorizer<J> {
    /// Nobody can be asked yet. That a token is good counts for `counts_for`.
    pub fn new(counts_for: Duration) -> Self {
        let now = Instant::now();
        let budget = || TokenBucket::new(Rate::from(ASKED_PER_SECOND).with_burst(ASKED_AT_ONCE), now);
        let memory = DecisionCache {
            good: HashMap::new(),
            refused: HashMap::new(),
            known: budget(),
            unknown_tokens: budget(),
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
    pub(super) async fn authorize(&self, headers: &HeaderMap) -> AuthResult {
        let Some(token) = bearer_token(headers) else {
            return AuthResult::Unauthenticated;
        };
        let key = key_of(token);
        let asked = Instant::now();
        if let Some(access) = self.memory.lock().without_asking(&key, asked) {
            return access;
        }
        let Some(judge) = self.judge.get() else {
            return AuthResult::Unavailable;
        };
        let answer = timeout(PATIENCE, judge.review(token)).await;
        let late = |_| {
            Err(ReviewError(format!(
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
                AuthResult::Unavailable
            }
        }
    }
}

impl DecisionCache {
    /// The answer as far as it is known, or the request is one too many.
    fn without_asking(&mut self, key: &TokenHash, now: Instant) -> Option<AuthResult> {
        let good = self.good.get(key);
        let found = good.or_else(|| self.refused.get(key));
        if let Some(found) = found.filter(|found| found.until > now) {
            return Some(found.verdict.into());
        }
        let is_known = good.is_some_and(|good| good.forgotten > now);
        let budget = if is_known {
            &mut self.known
        } else {
            &mut self.unknown_tokens
        };
        (!budget.try_take(now)).then_some(AuthResult::Busy)
    }

    fn keep(&mut self, key: TokenHash, verdict: ReviewDecision, asked: Instant, counts_for: Duration) {
        self.good.remove(&key);
        self.refused.remove(&key);
        let (table, room, until, forgotten) = if verdict == ReviewDecision::Allowed {
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
        let kept = CachedDecision {
            verdict,
            until,
            forgotten,
        };
        table.insert(key, kept);
    }

    fn say(&mut self, fault: ReviewError) {
        let now = Instant::now();
        let repeated = |(said, at): &(ReviewError, Instant)| *said == fault && now < *at + SAID_EVERY;
        if !self.said.as_ref().is_some_and(repeated) {
            warn!(error = %fault, "cannot review tokens; rejecting metrics requests with unknown tokens");
            self.said = Some((fault, now));
        }
    }
}

fn key_of(token: &str) -> TokenHash {
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
