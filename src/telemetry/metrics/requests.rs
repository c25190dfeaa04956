//! Requests to the API server and leader election, named as in client-go.

use std::borrow::Cow;
use std::time::Duration;

use http::StatusCode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::families::{Exemplified, observe, per_driver};
use super::family::{DriverFamily, Labels, labels};
use super::{Metrics, SpanIds};

/// Buckets of client-go.
const REST_SECONDS: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];

/// Requests to the API server, named as in client-go.
pub(super) struct RestFamilies {
    pub(super) requests: Family<Labels, Counter>,
    pub(super) retries: Family<Labels, Counter>,
    pub(super) duration: Family<Labels, Exemplified, fn() -> Exemplified>,
    pub(super) held_back: DriverFamily<Histogram>,
}

impl RestFamilies {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let requests = Family::<Labels, Counter>::default();
        let help = "Number of HTTP requests to the API server by status code, method and host";
        registry.register("rest_client_requests", help, requests.clone());
        let retries = Family::<Labels, Counter>::default();
        let help = "Number of requests retried as the API server asked, by its status code, verb and host";
        registry.register("rest_client_request_retries", help, retries.clone());
        let new: fn() -> Exemplified = || Exemplified::new(REST_SECONDS.into_iter());
        let duration = Family::new_with_constructor(new);
        let help = "Request latency in seconds by verb and host";
        registry.register("rest_client_request_duration_seconds", help, duration.clone());
        let help =
            "Client side rate limiter latency in seconds by verb and host, and by driver where the limit is a driver's";
        let held_back = per_driver(registry, "rest_client_rate_limiter_duration_seconds", help, || {
            Histogram::new(REST_SECONDS)
        });
        Self {
            requests,
            retries,
            duration,
            held_back,
        }
    }
}

/// Leader election, named as in client-go.
pub(super) struct LeaseFamilies {
    pub(super) status: Family<Labels, Gauge>,
    pub(super) slow_path: Family<Labels, Counter>,
    pub(super) conflicts: Family<Labels, Counter>,
}

impl LeaseFamilies {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let status = Family::<Labels, Gauge>::default();
        let help = "1 when this process holds the Lease of this name, else 0";
        registry.register("leader_election_master_status", help, status.clone());
        let slow_path = Family::<Labels, Counter>::default();
        let help = "Total number of renewals of a lease that had to read it first";
        registry.register("leader_election_slowpath", help, slow_path.clone());
        let conflicts = Family::<Labels, Counter>::default();
        let help = "Total number of times that another process of the same name took a lease that was held";
        registry.register("csi_attacher_lease_identity_conflicts", help, conflicts.clone());
        Self {
            status,
            slow_path,
            conflicts,
        }
    }
}

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
