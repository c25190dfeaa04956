//! What is answered to a request, and the metrics as text.

use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::error;

use crate::telemetry::metrics::{Metrics, OPENMETRICS_CONTENT_TYPE, PROMETHEUS_CONTENT_TYPE};

pub(super) const TEXT: &str = "text/plain; charset=utf-8";
/// Scrapes that are answered at a time, one of which is encoded and the others wait for that or send what was encoded.
/// Everybody who reads the metrics regularly finds room; a crowd is told to come back.
const SCRAPES: usize = 8;

/// An answer, and what is kept until it was sent.
pub(super) struct Answer {
    pub response: Response<Full<Bytes>>,
    pub place: Option<OwnedSemaphorePermit>,
}

impl Answer {
    /// An answer without a body.
    pub fn empty(status: StatusCode) -> Self {
        let mut response = Response::default();
        *response.status_mut() = status;
        Self { response, place: None }
    }

    /// An answer with a body of this type.
    pub fn of(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Self {
        let mut answer = Self::empty(status).with(header::CONTENT_TYPE, content_type);
        *answer.response.body_mut() = Full::new(body.into());
        answer
    }

    /// An answer in plain text.
    pub fn text(status: StatusCode, body: impl Into<Bytes>) -> Self {
        Self::of(status, TEXT, body)
    }

    /// What is neither GET nor HEAD.
    pub fn not_allowed() -> Self {
        Self::empty(StatusCode::METHOD_NOT_ALLOWED).with(header::ALLOW, "GET, HEAD")
    }

    /// With one more header.
    pub fn with(mut self, name: HeaderName, value: &'static str) -> Self {
        self.response
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
        self
    }
}

/// The metrics, encoded one at a time and where no task waits for it: with many series it takes long.
#[derive(Clone, Debug)]
pub(super) struct Exposition {
    metrics: Metrics,
    places: Arc<Semaphore>,
    encoder: Arc<Semaphore>,
}

impl Exposition {
    pub fn new(metrics: Metrics) -> Self {
        Self {
            metrics,
            places: Arc::new(Semaphore::new(SCRAPES)),
            encoder: Arc::new(Semaphore::new(1)),
        }
    }

    /// OpenMetrics for a scraper that names it and does not prefer plain text, the classic text format for everybody else.
    pub async fn answer(&self, headers: &HeaderMap) -> Answer {
        let busy = || {
            let text = "too many scrapes at a time\n";
            Answer::text(StatusCode::SERVICE_UNAVAILABLE, text).with(header::RETRY_AFTER, "1")
        };
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            return busy();
        };
        // It is never closed.
        let Ok(turn) = Arc::clone(&self.encoder).acquire_owned().await else {
            return busy();
        };
        let openmetrics = wants_openmetrics(headers);
        let metrics = self.metrics.clone();
        let encode = move || {
            // Kept also when whoever asked is gone: what was begun cannot be stopped.
            let _turn = turn;
            if openmetrics {
                metrics.encode_openmetrics()
            } else {
                metrics.encode_prometheus()
            }
        };
        let content_type = if openmetrics {
            OPENMETRICS_CONTENT_TYPE
        } else {
            PROMETHEUS_CONTENT_TYPE
        };
        match tokio::task::spawn_blocking(encode).await {
            Ok(body) => Answer {
                place: Some(place),
                ..Answer::of(StatusCode::OK, content_type, body)
            },
            Err(error) => {
                error!(%error, "the metrics could not be encoded");
                Answer::empty(StatusCode::INTERNAL_SERVER_ERROR)
            }
        }
    }
}

fn wants_openmetrics(headers: &HeaderMap) -> bool {
    let plain = weight(headers, "text/plain").unwrap_or_default();
    weight(headers, "application/openmetrics-text").is_some_and(|weight| weight > 0.0 && weight >= plain)
}

/// Whether a media type is named in `Accept`; a wildcard does not name it.
pub(super) fn accepts(headers: &HeaderMap, media_type: &str) -> bool {
    weight(headers, media_type).is_some()
}

/// The greatest quality value (RFC 9110, 12.4.2) that `Accept` gives to a media type by name; one that cannot be read counts
/// as 1, as if it were not there.
fn weight(headers: &HeaderMap, media_type: &str) -> Option<f32> {
    let values = headers.get_all(header::ACCEPT).iter();
    let ranges = values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    let weights = ranges.filter_map(|range| {
        let mut parts = range.split(';').map(str::trim);
        if !parts.next()?.eq_ignore_ascii_case(media_type) {
            return None;
        }
        let quality = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
        Some(quality.and_then(|text| text.parse().ok()).unwrap_or(1.0))
    });
    weights.max_by(f32::total_cmp)
}
