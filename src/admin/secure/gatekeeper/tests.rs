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
    answers: HashMap<String, Result<Verdict, Fault>>,
    asked: Vec<String>,
}

impl Table {
    fn set(&self, token: &str, answer: Result<Verdict, Fault>) {
        self.0.lock().answers.insert(token.to_owned(), answer);
    }

    fn times(&self) -> usize {
        self.0.lock().asked.len()
    }
}

impl Judge for Table {
    async fn judge(&self, token: &str) -> Result<Verdict, Fault> {
        let mut inner = self.0.lock();
        inner.asked.push(token.to_owned());
        inner
            .answers
            .get(token)
            .cloned()
            .unwrap_or(Ok(Verdict::Unauthenticated))
    }
}

fn gatekeeper() -> (Gatekeeper<Table>, Table) {
    let (gatekeeper, table) = (Gatekeeper::new(COUNTS_FOR), Table::default());
    gatekeeper.ask(table.clone());
    (gatekeeper, table)
}

fn bearing(token: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(header::AUTHORIZATION, format!("Bearer {token}").parse().unwrap());
    headers
}

impl Gatekeeper<Table> {
    async fn admits(&self, token: &str) -> Access {
        self.admit(&bearing(token)).await
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_is_let_in_before_somebody_can_be_asked() {
    let gatekeeper = Gatekeeper::new(COUNTS_FOR);
    assert_eq!(gatekeeper.admits("good").await, Access::Unavailable);
    assert_eq!(gatekeeper.admit(&HeaderMap::new()).await, Access::Unauthenticated);
    let table = Table::default();
    table.set("good", Ok(Verdict::Allowed));
    gatekeeper.ask(table);
    assert_eq!(gatekeeper.admits("good").await, Access::Allowed);
}

#[tokio::test(start_paused = true)]
async fn an_answer_counts_for_its_time_and_not_longer() {
    let (gatekeeper, table) = gatekeeper();
    for (token, verdict, access, counts) in [
        ("good", Verdict::Allowed, Access::Allowed, COUNTS_FOR),
        ("wrong", Verdict::Unauthenticated, Access::Unauthenticated, REFUSED_FOR),
        ("poor", Verdict::Forbidden, Access::Forbidden, REFUSED_FOR),
    ] {
        table.set(token, Ok(verdict));
        let before = table.times();
        assert_eq!(gatekeeper.admits(token).await, access);
        // The world changes; what was said still counts.
        let other = if verdict == Verdict::Allowed {
            Verdict::Forbidden
        } else {
            Verdict::Allowed
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
    table.set("good", Ok(Verdict::Allowed));
    assert_eq!(gatekeeper.admits("good").await, Access::Allowed);
    table.set("good", Err(Fault("503".to_owned())));
    assert_eq!(gatekeeper.admits("good").await, Access::Allowed, "it still counts");
    advance(COUNTS_FOR).await;
    assert_eq!(gatekeeper.admits("good").await, Access::Unavailable);
    table.set("good", Ok(Verdict::Allowed));
    assert_eq!(gatekeeper.admits("good").await, Access::Allowed);
}

/// Never answers.
struct Silent;

impl Judge for Silent {
    async fn judge(&self, _token: &str) -> Result<Verdict, Fault> {
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_judge_that_says_nothing_is_not_waited_for_without_end() {
    let gatekeeper = Gatekeeper::new(COUNTS_FOR);
    gatekeeper.ask(Silent);
    let asked = Instant::now();
    assert_eq!(gatekeeper.admit(&bearing("good")).await, Access::Unavailable);
    assert_eq!(asked.elapsed(), PATIENCE);
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_tokens_costs_a_few_requests_and_little_memory_and_keeps_out_nobody_who_is_known() {
    let (gatekeeper, table) = gatekeeper();
    table.set("good", Ok(Verdict::Allowed));
    assert_eq!(gatekeeper.admits("good").await, Access::Allowed);
    let mut busy = 0_usize;
    for second in 0..300 {
        for index in 0..100 {
            match gatekeeper.admits(&format!("made-up-{second}-{index}")).await {
                Access::Busy => busy += 1,
                access => assert_eq!(access, Access::Unauthenticated),
            }
        }
        assert_eq!(gatekeeper.admits("good").await, Access::Allowed, "second {second}");
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
        table.set(&token, Ok(Verdict::Allowed));
        assert_eq!(gatekeeper.admits(&token).await, Access::Allowed);
        advance(Duration::from_millis(300)).await;
    }
    assert_eq!(gatekeeper.memory.lock().good.len(), GOOD_TOKENS);
    let before = table.times();
    assert_eq!(gatekeeper.admits(&format!("good-{GOOD_TOKENS}")).await, Access::Allowed);
    assert_eq!(table.times(), before);
    assert_eq!(gatekeeper.admits("good-0").await, Access::Allowed);
    assert_eq!(table.times(), before + 1);

    let mut memory = gatekeeper.memory.lock();
    for index in 0..=REFUSED_TOKENS {
        let key = key_of(&format!("wrong-{index}"));
        memory.keep(key, Verdict::Forbidden, Instant::now(), COUNTS_FOR);
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
