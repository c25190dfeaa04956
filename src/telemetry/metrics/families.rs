//! The families by subject, with their names, help texts and buckets.

use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::TypedMetric;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};

use super::family::{DriverFamily, Labels};

/// Buckets of csi-lib-utils.
const CSI_SECONDS: [f64; 13] = [
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0,
];
/// client-go computes its bounds by repeated multiplication, which leaves two of them off by one bit; the same bounds
/// here let a query sum over both. 100 and 1000 are added, as in controller-runtime.
const QUEUE_SECONDS: [f64; 12] = [
    1e-8,
    1e-7,
    1e-6,
    9.999_999_999_999_999e-6,
    9.999_999_999_999_999e-5,
    1e-3,
    1e-2,
    1e-1,
    1.0,
    10.0,
    100.0,
    1000.0,
];
/// Buckets of client-go.
const REST_SECONDS: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];
const ATTEMPTS: [f64; 8] = [1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 21.0, 50.0];

pub(super) type FloatGauge = Gauge<f64, AtomicU64>;

/// Work queues, named as in client-go.
pub(super) struct QueueFamilies {
    pub(super) depth: DriverFamily<Gauge>,
    pub(super) adds: DriverFamily<Counter>,
    pub(super) retries: DriverFamily<Counter>,
    pub(super) wait: DriverFamily<Histogram>,
    pub(super) work: DriverFamily<Histogram>,
    pub(super) unfinished: DriverFamily<FloatGauge>,
    pub(super) longest: DriverFamily<FloatGauge>,
}

impl QueueFamilies {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let mut histogram = |name, help| per_driver(registry, name, help, || Histogram::new(QUEUE_SECONDS));
        let wait = histogram(
            "workqueue_queue_duration_seconds",
            "How long in seconds an item stays in workqueue before being requested",
        );
        let work = histogram(
            "workqueue_work_duration_seconds",
            "How long in seconds processing an item from workqueue takes",
        );
        let mut counter = |name, help| per_driver(registry, name, help, Counter::default);
        let adds = counter("workqueue_adds", "Total number of adds handled by workqueue");
        let retries = counter("workqueue_retries", "Total number of retries handled by workqueue");
        let mut seconds = |name, help| per_driver(registry, name, help, FloatGauge::default);
        let unfinished = seconds(
            "workqueue_unfinished_work_seconds",
            "Sum of the seconds that work in progress has taken so far",
        );
        let longest = seconds(
            "workqueue_longest_running_processor_seconds",
            "Seconds the longest running processor has been running",
        );
        let depth = per_driver(
            registry,
            "workqueue_depth",
            "Current depth of workqueue",
            Gauge::default,
        );
        Self {
            depth,
            adds,
            retries,
            wait,
            work,
            unfinished,
            longest,
        }
    }

    pub(super) fn forget(&self, driver: &str) {
        self.depth.forget(driver);
        self.adds.forget(driver);
        self.retries.forget(driver);
        self.wait.forget(driver);
        self.work.forget(driver);
        self.unfinished.forget(driver);
        self.longest.forget(driver);
    }
}

/// CSI calls, named as in csi-lib-utils, and the attaches and detaches they are for.
pub(super) struct OperationFamilies {
    pub(super) csi: DriverFamily<Histogram>,
    pub(super) end_to_end: DriverFamily<Histogram>,
    pub(super) attempts: DriverFamily<Histogram>,
    pub(super) oldest_pending: DriverFamily<FloatGauge>,
    pub(super) attachments: DriverFamily<Gauge>,
    pub(super) events: DriverFamily<Counter>,
    pub(super) findings: DriverFamily<Gauge>,
}

impl OperationFamilies {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let mut seconds = |name, help| per_driver(registry, name, help, || Histogram::new(CSI_SECONDS));
        let csi = seconds(
            "csi_sidecar_operations_seconds",
            "Container Storage Interface operation duration with gRPC error code status total",
        );
        let end_to_end = seconds(
            "csi_attacher_operation_e2e_seconds",
            "Time from the request of an attach or detach to its end, all attempts included",
        );
        let help = "Attempts an attach or detach took to its end";
        let attempts = per_driver(registry, "csi_attacher_operation_attempts", help, || {
            Histogram::new(ATTEMPTS)
        });
        let help = "Age of the oldest attach or detach that has not ended";
        let oldest_pending = per_driver(
            registry,
            "csi_attacher_oldest_pending_seconds",
            help,
            FloatGauge::default,
        );
        let help = "VolumeAttachments of the driver by state";
        let attachments = per_driver(registry, "csi_attacher_volumeattachments", help, Gauge::default);
        let help = "Events by reason and by what became of them: written, dropped for want of room, or failed";
        let events = per_driver(registry, "csi_attacher_events", help, Counter::default);
        let help = "What is wrong with VolumeAttachments of the driver, or with the driver itself, by kind";
        let findings = per_driver(registry, "csi_attacher_findings", help, Gauge::default);
        Self {
            csi,
            end_to_end,
            attempts,
            oldest_pending,
            attachments,
            events,
            findings,
        }
    }

    pub(super) fn forget(&self, driver: &str) {
        self.csi.forget(driver);
        self.end_to_end.forget(driver);
        self.attempts.forget(driver);
        self.oldest_pending.forget(driver);
        self.attachments.forget(driver);
        self.events.forget(driver);
        self.findings.forget(driver);
    }
}

/// Comparisons of the attachments with what the driver lists.
pub(super) struct ReconcileFamilies {
    pub(super) passes: DriverFamily<Counter>,
    pub(super) seconds: DriverFamily<Histogram>,
    pub(super) volumes: DriverFamily<Gauge>,
    pub(super) mismatches: DriverFamily<Gauge>,
    pub(super) forced: DriverFamily<Counter>,
    pub(super) errors: DriverFamily<Counter>,
    pub(super) last_success: DriverFamily<FloatGauge>,
}

impl ReconcileFamilies {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let mut counter = |name, help| per_driver(registry, name, help, Counter::default);
        let passes = counter(
            "csi_attacher_reconcile_sync_passes",
            "Comparisons of the attachments with what the driver lists",
        );
        let forced = counter(
            "csi_attacher_reconcile_sync_forced",
            "Attaches and detaches that were made once more because the driver listed the volume otherwise twice in a row",
        );
        let errors = counter(
            "csi_attacher_reconcile_sync_errors",
            "Comparisons that did not come to their end, by gRPC status code or by what was wrong with the pages",
        );
        let mut gauge = |name, help| per_driver(registry, name, help, Gauge::default);
        let volumes = gauge(
            "csi_attacher_reconcile_sync_volumes",
            "Volumes that the driver listed in the last comparison",
        );
        let mismatches = gauge(
            "csi_attacher_reconcile_sync_mismatches",
            "VolumeAttachments of which the driver listed otherwise in the last comparison",
        );
        let name = "csi_attacher_reconcile_sync_seconds";
        let seconds = per_driver(registry, name, "How long a comparison took", || {
            Histogram::new(CSI_SECONDS)
        });
        let name = "csi_attacher_reconcile_sync_last_success_timestamp_seconds";
        let last_success = per_driver(
            registry,
            name,
            "When the last comparison came to its end",
            FloatGauge::default,
        );
        Self {
            passes,
            seconds,
            volumes,
            mismatches,
            forced,
            errors,
            last_success,
        }
    }

    pub(super) fn forget(&self, driver: &str) {
        self.passes.forget(driver);
        self.seconds.forget(driver);
        self.volumes.forget(driver);
        self.mismatches.forget(driver);
        self.forced.forget(driver);
        self.errors.forget(driver);
        self.last_success.forget(driver);
    }
}

/// The connection to a driver.
pub(super) struct ConnectionFamilies {
    pub(super) up: DriverFamily<Gauge>,
    pub(super) info: DriverFamily<Gauge>,
    pub(super) reconnects: DriverFamily<Counter>,
    pub(super) unserved: Family<Labels, Gauge>,
}

impl ConnectionFamilies {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let help = "Whether the driver is connected and ready";
        let up = per_driver(registry, "csi_attacher_driver_up", help, Gauge::default);
        let help = "Version the driver reports and the mode it is run in";
        let info = per_driver(registry, "csi_attacher_driver_info", help, Gauge::default);
        let help = "Connections to the driver that were made after a loss";
        let reconnects = per_driver(registry, "csi_attacher_driver_reconnects", help, Counter::default);
        let unserved = Family::<Labels, Gauge>::default();
        let help = "Objects that wait for an attacher and whose driver has no AttacherConfig";
        registry.register("csi_attacher_unserved", help, unserved.clone());
        Self {
            up,
            info,
            reconnects,
            unserved,
        }
    }

    pub(super) fn forget(&self, driver: &str) {
        self.up.forget(driver);
        self.info.forget(driver);
        self.reconnects.forget(driver);
    }
}

/// Requests to the API server, named as in client-go.
pub(super) struct RestFamilies {
    pub(super) requests: Family<Labels, Counter>,
    pub(super) duration: Family<Labels, Histogram, fn() -> Histogram>,
    pub(super) held_back: DriverFamily<Histogram>,
}

impl RestFamilies {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let requests = Family::<Labels, Counter>::default();
        let help = "Number of HTTP requests to the API server by status code, method and host";
        registry.register("rest_client_requests", help, requests.clone());
        let new: fn() -> Histogram = || Histogram::new(REST_SECONDS);
        let duration = Family::new_with_constructor(new);
        let help = "Request latency in seconds by verb and host";
        registry.register("rest_client_request_duration_seconds", help, duration.clone());
        let help =
            "Client side rate limiter latency in seconds by verb and host, and by driver where the limit is a driver's";
        let held_back = per_driver(registry, "rest_client_rate_limiter_duration_seconds", help, new);
        Self {
            requests,
            duration,
            held_back,
        }
    }
}

/// Leader election, named as in client-go.
pub(super) struct LeaseFamilies {
    pub(super) status: Family<Labels, Gauge>,
    pub(super) slow_path: Family<Labels, Counter>,
}

impl LeaseFamilies {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let status = Family::<Labels, Gauge>::default();
        let help = "Whether the lease of this name is held: 1 by this process, 0 not";
        registry.register("leader_election_master_status", help, status.clone());
        let slow_path = Family::<Labels, Counter>::default();
        let help = "Total number of renewals of a lease that had to read it first";
        registry.register("leader_election_slowpath", help, slow_path.clone());
        Self { status, slow_path }
    }
}

/// Registers a family of one series or more for each driver. The name of a counter is given without `_total`, which
/// the encoder adds.
pub(super) fn per_driver<M: Metric + TypedMetric + Clone>(
    registry: &mut Registry,
    name: &str,
    help: &str,
    constructor: fn() -> M,
) -> DriverFamily<M> {
    let family = DriverFamily::new(constructor);
    registry.register(name, help, family.family());
    family
}
