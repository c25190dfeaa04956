//! What is remembered, for how long, and how often somebody is asked.

use std::sync::Arc;

use tokio::time::advance;

use super::*;

const COUNTS_FOR: Duration = Duration::from_mins(1);

/// Answers by a table; a token that is not in it is no valid one.
#[derive(Clone, Default)]
struct Table(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    answers: HashMap<String, Result<ReviewDecision, ReviewError>>,
    asked: Vec<String>,
}

impl Table {
    fn set(&self, token: &str, answer: Result<ReviewDecision, ReviewError>) {
        self.0.lock().answers.insert(token.to_owned(), answer);
    }

    fn times(&self) -> usize {
        self.0.lock().asked.len()
    }
}

impl TokenReviewer for Table {
    async fn review(&self, token: &str) -> Result<ReviewDecision, ReviewError> {
        let mut inner = self.0.lock();
        inner.asked.push(token.to_owned());
        inner
            .answers
            .get(token)
            .cloned()
            .unwrap_or(Ok(ReviewDecision::Unauthenticated))
    }
}

fn gatekeeper() -> (MetricsAuthorizer<Table>, Table) {
    let (gatekeeper, table) = (MetricsAuthorizer::new(COUNTS_FOR), Table::default());
    gatekeeper.ask(table.clone());
    (gatekeeper, table)
}

fn bearing(token: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(header::AUTHORIZATION, format!("Bearer {token}").parse().unwrap());
    headers
}

impl MetricsAuthorizer<Table> {
    async fn admits(&self, token: &str) -> AuthResult {
        self.authorize(&bearing(token)).await
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_is_let_in_before_somebody_can_be_asked() {
    let gatekeeper = MetricsAuthorizer::new(COUNTS_FOR);
    assert_eq!(gatekeeper.admits("good").await, AuthResult::Unavailable);
    assert_eq!(
        gatekeeper.authorize(&HeaderMap::new()).await,
        AuthResult::Unauthenticated
    );
    let table = Table::default();
    table.set("good", Ok(ReviewDecision::Allowed));
    gatekeeper.ask(table);
    assert_eq!(gatekeeper.admits("good").await, AuthResult::Allowed);
}

#[tokio::test(start_paused = true)]
async fn an_answer_counts_for_its_time_and_not_longer() {
    let (gatekeeper, table) = gatekeeper();
    for (token, verdict, access, counts) in [
        ("good", ReviewDecision::Allowed, AuthResult::Allowed, COUNTS_FOR),
        (
            "wrong",
            ReviewDecision::Unauthenticated,
            AuthResult::Unauthenticated,
            REFUSED_FOR,
        ),
        ("poor", ReviewDecision::Forbidden, AuthResult::Forbidden, REFUSED_FOR),
    ] {
        table.set(token, Ok(verdict));
        let before = table.times();
        assert_eq!(gatekeeper.admits(token).await, access);
        // The world changes; what was said still counts.
        let other = if verdict == ReviewDecision::Allowed {
            ReviewDecision::Forbidden
        } else {
            ReviewDecision::Allowed
        };
        table.set(token, Ok(other));
        advance(counts.checked_sub(Duration::from_millis(1)).unwrap()).await;
        assert_eq!(gatekeeper.admits(token).await, access);
        assert_eq!(table.times(), before + 1);
        advance(Duration::from_millis(1)).await;
        assert_eq!(gatekeeper.admits(token).await, other.into());
        assert_eq!(table.times(), before + 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_fault_lets_nobody_in_and_is_not_remembered() {
    let (gatekeeper, table) = gatekeeper();
    table.set("good", Ok(ReviewDecision::Allowed));
    assert_eq!(gatekeeper.admits("good").await, AuthResult::Allowed);
    table.set("good", Err(ReviewError("503".to_owned())));
    assert_eq!(gatekeeper.admits("good").await, AuthResult::Allowed, "it still counts");
    advance(COUNTS_FOR).await;
    assert_eq!(gatekeeper.admits("good").await, AuthResult::Unavailable);
    table.set("good", Ok(ReviewDecision::Allowed));
    assert_eq!(gatekeeper.admits("good").await, AuthResult::Allowed);
}

/// Never answers.
struct Silent;

impl TokenReviewer for Silent {
    async fn review(&self, _token: &str) -> Result<ReviewDecision, ReviewError> {
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_judge_that_says_nothing_is_not_waited_for_without_end() {
    let gatekeeper = MetricsAuthorizer::new(COUNTS_FOR);
    gatekeeper.ask(Silent);
    let asked = Instant::now();
    assert_eq!(gatekeeper.authorize(&bearing("good")).await, AuthResult::Unavailable);
    assert_eq!(asked.elapsed(), PATIENCE);
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_tokens_costs_a_few_requests_and_little_memory_and_keeps_out_nobody_who_is_known() {
    let (gatekeeper, table) = gatekeeper();
    table.set("good", Ok(ReviewDecision::Allowed));
    assert_eq!(gatekeeper.admits("good").await, AuthResult::Allowed);
    let mut busy = 0_usize;
    for second in 0..300 {
        for index in 0..100 {
            match gatekeeper.admits(&format!("made-up-{second}-{index}")).await {
                AuthResult::Busy => busy += 1,
                access => assert_eq!(access, AuthResult::Unauthenticated),
            }
        }
        assert_eq!(gatekeeper.admits("good").await, AuthResult::Allowed, "second {second}");
        advance(Duration::from_secs(1)).await;
    }
    let asked_for_good = table.0.lock().asked.iter().filter(|token| *token == "good").count();
    assert_eq!(asked_for_good, 5);
    // The first question about the good one was that of a stranger too.
    assert_eq!(table.times() - asked_for_good, 19 + 5 * 299);
    assert_eq!(busy, 30_000 - (19 + 5 * 299));
    let memory = gatekeeper.memory.lock();
    assert!(memory.refused.len() <= REFUSED_TOKENS, "{}", memory.refused.len());
    assert_eq!(memory.good.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn so_many_tokens_are_remembered_and_the_oldest_is_forgotten_first() {
    let (gatekeeper, table) = gatekeeper();
    for index in 0..=GOOD_TOKENS {
        let token = format!("good-{index}");
        table.set(&token, Ok(ReviewDecision::Allowed));
        assert_eq!(gatekeeper.admits(&token).await, AuthResult::Allowed);
        advance(Duration::from_millis(300)).await;
    }
    assert_eq!(gatekeeper.memory.lock().good.len(), GOOD_TOKENS);
    let before = table.times();
    assert_eq!(
        gatekeeper.admits(&format!("good-{GOOD_TOKENS}")).await,
        AuthResult::Allowed
    );
    assert_eq!(table.times(), before);
    assert_eq!(gatekeeper.admits("good-0").await, AuthResult::Allowed);
    assert_eq!(table.times(), before + 1);

    let mut memory = gatekeeper.memory.lock();
    for index in 0..=REFUSED_TOKENS {
        let key = key_of(&format!("wrong-{index}"));
        memory.keep(key, ReviewDecision::Forbidden, Instant::now(), COUNTS_FOR);
    }
    assert_eq!(memory.refused.len(), REFUSED_TOKENS);
    assert_eq!(memory.good.len(), GOOD_TOKENS, "the one does not push out the other");
}

#[test]
fn only_one_bearer_token_is_a_token() {
    let found = |values: &[&str]| {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::AUTHORIZATION, value.parse().unwrap());
        }
        bearer_token(&headers).map(str::to_owned)
    };
    for value in ["Bearer abc", "bearer abc", "BEARER  abc "] {
        assert_eq!(found(&[value]).as_deref(), Some("abc"), "{value}");
    }
    let long = format!("Bearer {}", "x".repeat(LONGEST_TOKEN + 1));
    for values in [
        &[][..],
        &["Bearer"],
        &["Bearer "],
        &["Basic YTpi"],
        &["abc"],
        &["Bearer a b"],
        &["Bearer a", "Bearer b"],
        &[long.as_str()],
    ] {
        assert_eq!(found(values), None, "{values:?}");
    }
}

#[test]
fn no_fault_tells_the_token() {
    let error = ApiError {
        kind: ApiErrorKind::Forbidden,
        message: "you may not review canary-token".to_owned(),
        status: Some(403),
        retry_after: None,
    };
    let fault = fault("tokenreviews", &error, "canary-token").to_string();
    assert!(!fault.contains("canary"), "{fault}");
    for part in [
        "cannot create tokenreviews",
        "you may not review",
        "metrics.secure.enabled",
    ] {
        assert!(fault.contains(part), "{fault}");
    }
}
