//! Limits of requests: of the process and of one driver.

use axum::response::IntoResponse as _;
use serde_json::json;

use super::Server;
use crate::apiserver::{RateLimit, Requests, SecretWire, Throttle};
use crate::objects::SecretReference;
use crate::telemetry::Span;

/// So slow that a busy machine does not let each request find its turn come already.
const SLOW: RateLimit = RateLimit {
    per_second: 1.0,
    burst: 1,
};

#[tokio::test]
async fn requests_wait_for_their_own_limit_and_tell_it() {
    let mut server = Server::new().await;
    server.requests = (server.requests.clone()).throttled(Throttle::new(SLOW));
    for _ in 0..3 {
        server.answer(axum::Json(json!({"metadata": {"name": "b"}, "data": {}})).into_response());
        server.secret("a", "b").await.unwrap();
    }
    let text = server.metrics.encode_prometheus();
    let value = |name: &str| -> f64 {
        let line = text.lines().find(|line| line.starts_with(name)).expect(name);
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    let name = "rest_client_rate_limiter_duration_seconds";
    assert!((value(&format!("{name}_count{{verb=\"GET\"")) - 3.0).abs() < f64::EPSILON);
    let waited = value(&format!("{name}_sum"));
    assert!((0.05..10.0).contains(&waited), "{waited}");
}

#[tokio::test]
async fn a_driver_has_a_limit_of_its_own() {
    let server = Server::new().await;
    let throttle = Throttle::new(None);
    let requests = server.requests.clone().for_driver("d".into(), throttle.clone());
    let text = || server.metrics.encode_prometheus();
    let secret = async |requests: &Requests| {
        server.answer(axum::Json(json!({"metadata": {"name": "b"}, "data": {}})).into_response());
        let reference = SecretReference {
            namespace: "a".into(),
            name: "b".into(),
        };
        let quiet = Span::disabled();
        requests.get::<SecretWire>(&reference, None, &quiet).await.unwrap();
    };
    secret(&requests).await;
    assert!(!text().contains("rest_client_rate_limiter_duration_seconds_count"));
    throttle.set(Some(SLOW));
    for _ in 0..3 {
        secret(&requests).await;
        secret(&server.requests).await;
    }
    let sum = "rest_client_rate_limiter_duration_seconds_sum{verb=\"GET\",host=\"";
    let found = text();
    let sums: Vec<&str> = found.lines().filter(|line| line.starts_with(sum)).collect();
    assert_eq!(sums.len(), 1, "only the driver waits: {sums:?}");
    let (labels, waited) = sums[0].rsplit_once(' ').unwrap();
    assert!(labels.ends_with(",driver_name=\"d\"}"), "{labels}");
    assert!((0.05..10.0).contains(&waited.parse::<f64>().unwrap()), "{waited}");
    server.metrics.forget_driver("d");
    assert!(!text().contains("driver_name=\"d\""));
}
