//! Requests to the API server and leader election, named as in client-go.

use std::borrow::Cow;
use std::time::Duration;

use super::families::observe;
use super::family::labels;
use super::{Metrics, SpanIds};
use http::StatusCode;

impl Metrics {
    /// Requests to this host begin: what is counted of repeated ones begins at zero.
    pub fn init_requests(&self, host: &str) {
        for code in ["429", "503"] {
            for verb in ["GET", "PATCH", "POST", "PUT"] {
                let labels = labels([("code", code), ("verb", verb), ("host", host)]);
                drop(self.0.rest.retries.get_or_create(&labels));
            }
        }
    }

    /// A request to the API server ended, without a status when no answer came. `verb` is the HTTP method; `ids` are those
    /// of its span.
    pub fn rest_request(
        &self,
        verb: &str,
        host: &str,
        status: Option<StatusCode>,
        elapsed: Duration,
        ids: Option<SpanIds>,
    ) {
        let code = status.as_ref().map_or("<error>", StatusCode::as_str);
        let request = labels([("code", code), ("method", verb), ("host", host)]);
        self.0.rest.requests.get_or_create(&request).inc();
        let duration = labels([("verb", verb), ("host", host)]);
        let histogram = self.0.rest.duration.get_or_create(&duration);
        observe(&histogram, elapsed.as_secs_f64(), self.0.exemplars.pass(ids));
    }

    /// A request is made once more after the API server answered `code` to it and asked to wait.
    pub fn rest_request_retried(&self, verb: &str, host: &str, code: u16) {
        let labels = labels([("code", &code.to_string()), ("verb", verb), ("host", host)]);
        self.0.rest.retries.get_or_create(&labels).inc();
    }

    /// A request to the API server waited this long for a limit of our own, possibly not at all: that of `driver`, or with
    /// an empty one that of the process. Not called without such a limit.
    pub fn request_throttled(&self, driver: &str, verb: &str, host: &str, waited: Duration) {
        let mut labels = labels([("verb", verb), ("host", host)]);
        if !driver.is_empty() {
            labels.push(("driver_name", Cow::Owned(driver.to_owned())));
        }
        self.0
            .rest
            .held_back
            .with(driver, labels, |histogram| histogram.observe(waited.as_secs_f64()));
    }

    /// A Lease is held by this process, or is not.
    pub fn leading(&self, lease: &str, leads: bool) {
        let labels = labels([("name", lease)]);
        self.0.lease.status.get_or_create(&labels).set(i64::from(leads));
        drop(self.0.lease.slow_path.get_or_create(&labels));
        drop(self.0.lease.conflicts.get_or_create(&labels));
    }

    /// A Lease had to be read before it could be renewed.
    pub fn lease_read_before_renewal(&self, lease: &str) {
        self.0.lease.slow_path.get_or_create(&labels([("name", lease)])).inc();
    }

    /// Another process of the same name has taken a Lease that was held.
    pub fn lease_identity_conflict(&self, lease: &str) {
        self.0.lease.conflicts.get_or_create(&labels([("name", lease)])).inc();
    }

    /// Removes the series of a Lease that is not competed for any more.
    pub fn forget_lease(&self, lease: &str) {
        let labels = labels([("name", lease)]);
        self.0.lease.status.remove(&labels);
        self.0.lease.slow_path.remove(&labels);
        self.0.lease.conflicts.remove(&labels);
    }
}
