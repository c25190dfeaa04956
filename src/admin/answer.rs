//! What is answered to a request, and the metrics as text.

use std::fmt;
use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode, header};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::error;

use crate::telemetry::metrics::{Metrics, OPENMETRICS_CONTENT_TYPE, PROMETHEUS_CONTENT_TYPE};

/// Scrapes that are answered at a time, one of which is encoded and the others wait for that or send what was encoded.
/// Further ones get 503 with Retry-After.
const MAX_SCRAPES: usize = 8;

/// A place in the queue of scrapes, which goes with the answer until it is on its way as a whole.
#[derive(Clone)]
pub(super) struct ScrapePlace {
    _place: Arc<OwnedSemaphorePermit>,
}

pub trait Scrape: fmt::Debug + Send + Sync {
    /// The exposition in OpenMetrics 1.0, or in the classic text format.
    fn encode(&self, openmetrics: bool) -> String;
}

impl Scrape for Metrics {
    fn encode(&self, openmetrics: bool) -> String {
        if openmetrics {
            self.encode_openmetrics()
        } else {
            self.encode_prometheus()
        }
    }
}

/// The metrics, encoded one at a time and where no task waits for it: with many series it takes long.
#[derive(Clone, Debug)]
pub(super) struct Exposition {
    metrics: Arc<dyn Scrape>,
    places: Arc<Semaphore>,
    encoder: Arc<Semaphore>,
}

impl Exposition {
    pub fn new(metrics: Arc<dyn Scrape>) -> Self {
        Self {
            metrics,
            places: Arc::new(Semaphore::new(MAX_SCRAPES)),
            encoder: Arc::new(Semaphore::new(1)),
        }
    }

    /// OpenMetrics for a scraper that names it and does not prefer plain text, the classic text format for everybody else.
    pub async fn answer(&self, headers: &HeaderMap) -> Response {
        let busy = || {
            let text = "too many scrapes at a time\n";
            (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "1")], text).into_response()
        };
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            return busy();
        };
        // It is never closed.
        let Ok(turn) = Arc::clone(&self.encoder).acquire_owned().await else {
            return busy();
        };
        let openmetrics = wants_openmetrics(headers);
        let metrics = Arc::clone(&self.metrics);
        let encode = move || {
            // Kept also when the client is gone: an encoding that began cannot be stopped.
            let _turn = turn;
            metrics.encode(openmetrics)
        };
        let content_type = if openmetrics {
            OPENMETRICS_CONTENT_TYPE
        } else {
            PROMETHEUS_CONTENT_TYPE
        };
        match tokio::task::spawn_blocking(encode).await {
            Ok(body) => {
                let mut response = ([(header::CONTENT_TYPE, content_type)], body).into_response();
                let place = ScrapePlace {
                    _place: Arc::new(place),
                };
                response.extensions_mut().insert(place);
                response
            }
            Err(error) => {
                error!(%error, "the metrics could not be encoded");
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
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
