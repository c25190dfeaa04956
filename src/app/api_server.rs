//! The first contact with the API server: what the log and the check of readiness say of it. No work waits for it: watches,
//! Leases and writes have retries of their own.

use std::time::Duration;

use http::{Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Limited};
use kube::client::Body;
use kube::{Client, Config};
use serde::Deserialize;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::apiserver::{ConnectError, WatchConnection, connect_counted};
use crate::cache::Store;
use crate::error_chain::chain;
use crate::health::CheckHandle;
use crate::telemetry::Metrics;

const INITIAL_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// How long an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// More than the version of any API server takes; an answer of something else may be of any size.
const MAX_VERSION_BYTES: usize = 64 << 10;

/// Makes the first client as soon as it can be made: a credential plugin may fail for a while.
pub(super) async fn connect_when_possible(
    config: &Config,
    watches: &WatchConnection,
    metrics: &Metrics,
    check: &CheckHandle,
) -> Client {
    let mut pauses = Pauses::new(check);
    loop {
        match connect_counted(config, Some(watches), metrics) {
            Ok(client) => return client,
            Err(error) => pauses.wait(error.to_string()).await,
        }
    }
}

/// Reports on `check` and in the log that the API server answers, or why it cannot be reached.
pub(super) async fn report_first_answer(config: Config, metrics: Metrics, store: Store, check: CheckHandle) {
    let client = || connect_counted(&config, None, &metrics);
    let version = ask_version(&config.cluster_url, client, &check);
    let version = tokio::select! {
        version = version => version,
        // Something on the way may not answer for this path; the lists are what is needed.
        () = store.lists().wait_synced() => "unknown".to_owned(),
    };
    info!(url = %config.cluster_url, version, "connected to the API server");
    check.set_ready(true);
}

/// The version of the API server, asked for until there is an answer. Any answer is one: a cluster may let nobody read the
/// version, and no work needs it.
async fn ask_version(url: &Uri, client: impl Fn() -> Result<Client, ConnectError>, check: &CheckHandle) -> String {
    let mut pauses = Pauses::new(check);
    loop {
        let problem = match client() {
            Ok(client) => match timeout(ANSWER_TIMEOUT, client.send(version_request())).await {
                Ok(Ok(response)) => return version(response).await,
                Ok(Err(error)) => format!("cannot reach the API server at {url}: {}", chain(&error)),
                Err(_) => format!(
                    "cannot reach the API server at {url}: no answer within {} s",
                    ANSWER_TIMEOUT.as_secs()
                ),
            },
            Err(error) => error.to_string(),
        };
        pauses.wait(problem).await;
    }
}

fn version_request() -> Request<Body> {
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = Uri::from_static("/version");
    request
}

/// What an answer says of the version, for the log.
async fn version(response: Response<Body>) -> String {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct VersionWire {
        git_version: String,
    }
    let status = response.status();
    let body = Limited::new(response.into_body(), MAX_VERSION_BYTES).collect();
    let body = timeout(ANSWER_TIMEOUT, body).await.ok().and_then(Result::ok);
    let version = body.and_then(|body| serde_json::from_slice::<VersionWire>(&body.to_bytes()).ok());
    match version {
        Some(version) if status == StatusCode::OK => version.git_version,
        _ => format!("unknown ({status})"),
    }
}

/// Reports a problem, then waits, each time longer.
struct Pauses<'a> {
    check: &'a CheckHandle,
    next: Duration,
}

impl<'a> Pauses<'a> {
    const fn new(check: &'a CheckHandle) -> Self {
        Self {
            check,
            next: INITIAL_BACKOFF,
        }
    }

    async fn wait(&mut self, problem: String) {
        warn!(next_try_seconds = self.next.as_secs(), "{problem}");
        self.check.set_failing(problem);
        sleep(self.next).await;
        self.next = (self.next * 2).min(MAX_BACKOFF);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicBool, Ordering};

    use http_body_util::Full;
    use std::sync::Arc;

    use crate::health::Health;

    /// A client of an API server that answers everything with this, but for the first request if that `is_stuck`.
    fn client(status: StatusCode, body: &'static str, is_stuck: bool) -> Client {
        let is_stuck = Arc::new(AtomicBool::new(is_stuck));
        let service = tower::service_fn(move |_: Request<Body>| {
            let is_stuck = is_stuck.swap(false, Ordering::Relaxed);
            async move {
                if is_stuck {
                    return std::future::pending().await;
                }
                let mut response = Response::new(Full::from(body));
                *response.status_mut() = status;
                Ok::<_, Infallible>(response)
            }
        });
        Client::new(service, "default")
    }

    async fn asked(status: StatusCode, body: &'static str) -> String {
        let client = client(status, body, false);
        let check = Health::new().check("apiserver");
        let url = Uri::from_static("http://api");
        let answered = ask_version(&url, || Ok(client.clone()), &check);
        timeout(Duration::from_secs(5), answered).await.expect("it goes on")
    }

    #[tokio::test(start_paused = true)]
    async fn every_answer_will_do() {
        for (status, body, version) in [
            (200, r#"{"major": "1", "gitVersion": "v1.33.1"}"#, "v1.33.1"),
            (403, r#"{"kind": "Status", "code": 403}"#, "unknown (403 Forbidden)"),
            (401, "", "unknown (401 Unauthorized)"),
            (404, "404 page not found", "unknown (404 Not Found)"),
            (200, "<html>welcome</html>", "unknown (200 OK)"),
            (503, "", "unknown (503 Service Unavailable)"),
        ] {
            assert_eq!(asked(StatusCode::from_u16(status).unwrap(), body).await, version);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_without_an_answer_is_reported_and_repeated() {
        let client = client(StatusCode::OK, "{}", true);
        let health = Health::new();
        let check = health.check("apiserver");
        let url = Uri::from_static("http://api");
        let mut answered = std::pin::pin!(ask_version(&url, || Ok(client.clone()), &check));
        assert!(timeout(Duration::from_millis(30_500), &mut answered).await.is_err());
        let failure = health.readiness()[0].failure.clone().unwrap();
        assert!(
            failure.starts_with("cannot reach the API server at http://api/: "),
            "{failure}"
        );
        assert_eq!(answered.await, "unknown (200 OK)");
    }
}
