//! The families about requests to the API server and leader election, named as in client-go.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::families::{Exemplified, per_driver};
use super::family::{DriverFamily, Labels};

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
