//! Metrics for Prometheus, in prometheus-client.
//!
//! Names, labels and buckets of the incumbent (csi-lib-utils, client-go) are kept exactly where they exist, because
//! dashboards and alerts depend on them. Callers say what happened and never touch a label. Labels take only bounded
//! values: no object names, no volume ids. This module must not compute state: gauges over state are set by a callback
//! at scrape time ([`Metrics::on_scrape`]).

mod collectors;
mod exposition;
mod families;
mod family;
mod insight;
mod lanes;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use parking_lot::{Mutex, RwLock};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tonic::Code;

use super::names::code_camel_case;
use super::span_counts::SpanCounters;
use crate::objects::InTreePlugin;
use families::{ConnectionFamilies, LeaseFamilies, OperationFamilies, QueueFamilies, ReconcileFamilies, RestFamilies};
use family::{Labels, labels};
use lanes::LaneFamilies;
pub use lanes::LaneGauges;

/// Content type of [`Metrics::encode_openmetrics`].
pub const OPENMETRICS_CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Content type of [`Metrics::encode_prometheus`].
pub const PROMETHEUS_CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

type ScrapeCallback = dyn Fn(&Metrics) + Send + Sync;

/// All metrics of the process. A clone is one reference count.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    registry: Registry,
    callbacks: RwLock<Vec<Arc<ScrapeCallback>>>,
    /// One scrape at a time, so that two cannot mix the gauges their callbacks set.
    scrape: Mutex<()>,
    queue: QueueFamilies,
    lane: LaneFamilies,
    operation: OperationFamilies,
    reconcile: ReconcileFamilies,
    connection: ConnectionFamilies,
    rest: RestFamilies,
    lease: LeaseFamilies,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Default for Metrics {
    /// Metrics of a process without a trace pipeline.
    fn default() -> Self {
        Self::new(Arc::default())
    }
}

impl Metrics {
    /// Registers every family; `spans` is read at each scrape.
    pub fn new(spans: Arc<SpanCounters>) -> Self {
        let mut registry = Registry::default();
        let builds = Family::<Labels, Gauge>::default();
        builds
            .get_or_create(&labels([("version", env!("CARGO_PKG_VERSION"))]))
            .set(1);
        registry.register("csi_attacher_build_info", "Version of this build", builds);
        registry.register_collector(Box::new(collectors::SpanCollector(spans)));
        registry.register_collector(Box::new(collectors::ProcessCollector));
        let inner = Inner {
            queue: QueueFamilies::register(&mut registry),
            lane: LaneFamilies::register(&mut registry),
            operation: OperationFamilies::register(&mut registry),
            reconcile: ReconcileFamilies::register(&mut registry),
            connection: ConnectionFamilies::register(&mut registry),
            rest: RestFamilies::register(&mut registry),
            lease: LeaseFamilies::register(&mut registry),
            callbacks: RwLock::default(),
            scrape: Mutex::new(()),
            registry,
        };
        Self(Arc::new(inner))
    }

    /// Registers a function that sets gauges just before each scrape is encoded. It must not block and must not call
    /// [`Metrics::on_scrape`] or encode. It lives as long as the metrics do: it should hold weak references.
    pub fn on_scrape(&self, callback: Box<ScrapeCallback>) {
        self.0.callbacks.write().push(Arc::from(callback));
    }

    /// The exposition in OpenMetrics 1.0 ([`OPENMETRICS_CONTENT_TYPE`]).
    pub fn encode_openmetrics(&self) -> String {
        let _one = self.0.scrape.lock();
        let callbacks = self.0.callbacks.read().clone();
        for callback in callbacks {
            callback(self);
        }
        let mut text = String::new();
        // Writing to a String cannot fail; an encoder's own error must not take the endpoint away.
        if encode(&mut text, &self.0.registry).is_err() {
            tracing::error!("metrics could not be encoded completely");
        }
        text
    }

    /// The exposition in the classic text format ([`PROMETHEUS_CONTENT_TYPE`]), spelled as Go clients spell it.
    pub fn encode_prometheus(&self) -> String {
        exposition::to_classic(&self.encode_openmetrics())
    }

    /// A CSI call ended. `method` is the gRPC path (`/csi.v1.Controller/ControllerPublishVolume`); `migrated` is whether
    /// the call was for a volume that was translated from an in-tree source. Only the series of the seven drivers that
    /// took over an in-tree plug-in have that label, as in csi-lib-utils.
    pub fn csi_call(&self, driver: &str, method: &str, code: Code, elapsed: Duration, migrated: bool) {
        let mut labels = labels([
            ("driver_name", driver),
            ("grpc_status_code", code_camel_case(code)),
            ("method_name", method),
        ]);
        if InTreePlugin::of_driver(driver).is_some() {
            labels.push(("migrated", migrated.to_string()));
        }
        self.0
            .operation
            .csi
            .with(driver, labels, |histogram| histogram.observe(elapsed.as_secs_f64()));
    }

    /// A request to the API server ended, without a status when no answer came. `verb` is the HTTP method.
    pub fn rest_request(&self, verb: &str, host: &str, status: Option<StatusCode>, elapsed: Duration) {
        let code = status.as_ref().map_or("<error>", StatusCode::as_str);
        let request = labels([("code", code), ("method", verb), ("host", host)]);
        self.0.rest.requests.get_or_create(&request).inc();
        let duration = labels([("verb", verb), ("host", host)]);
        self.0
            .rest
            .duration
            .get_or_create(&duration)
            .observe(elapsed.as_secs_f64());
    }

    /// A request to the API server waited this long for a limit of our own, possibly not at all: that of `driver`, or with
    /// an empty one that of the process. Not called without such a limit.
    pub fn rest_request_held_back(&self, driver: &str, verb: &str, host: &str, waited: Duration) {
        let mut labels = labels([("verb", verb), ("host", host)]);
        if !driver.is_empty() {
            labels.push(("driver_name", driver.to_owned()));
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
    }

    /// A Lease had to be read before it could be renewed.
    pub fn lease_read_before_renewal(&self, lease: &str) {
        self.0.lease.slow_path.get_or_create(&labels([("name", lease)])).inc();
    }

    /// Removes the series of a Lease that is not competed for any more.
    pub fn forget_lease(&self, lease: &str) {
        let labels = labels([("name", lease)]);
        self.0.lease.status.remove(&labels);
        self.0.lease.slow_path.remove(&labels);
    }

    /// An item was added to a work queue.
    pub fn queue_added(&self, driver: &str, queue: &'static str) {
        self.0.queue.adds.with(driver, queue_labels(driver, queue), |counter| {
            counter.inc();
        });
    }

    /// An item was put back after a failure.
    pub fn queue_retried(&self, driver: &str, queue: &'static str) {
        self.0
            .queue
            .retries
            .with(driver, queue_labels(driver, queue), |counter| {
                counter.inc();
            });
    }

    /// A work queue holds this many items that wait for a worker.
    pub fn queue_depth(&self, driver: &str, queue: &'static str, items: usize) {
        self.0.queue.depth.with(driver, queue_labels(driver, queue), |gauge| {
            gauge.set(to_i64(items));
        });
    }

    /// An item was taken after waiting this long.
    pub fn queue_waited(&self, driver: &str, queue: &'static str, waited: Duration) {
        let labels = queue_labels(driver, queue);
        self.0
            .queue
            .wait
            .with(driver, labels, |histogram| histogram.observe(waited.as_secs_f64()));
    }

    /// The work on an item took this long.
    pub fn queue_worked(&self, driver: &str, queue: &'static str, worked: Duration) {
        let labels = queue_labels(driver, queue);
        self.0
            .queue
            .work
            .with(driver, labels, |histogram| histogram.observe(worked.as_secs_f64()));
    }

    /// The work in progress has taken this long: the sum over all workers, and the longest of them.
    pub fn queue_in_progress(&self, driver: &str, queue: &'static str, sum: Duration, longest: Duration) {
        self.0
            .queue
            .unfinished
            .with(driver, queue_labels(driver, queue), |gauge| {
                gauge.set(sum.as_secs_f64());
            });
        self.0.queue.longest.with(driver, queue_labels(driver, queue), |gauge| {
            gauge.set(longest.as_secs_f64());
        });
    }

    /// An attach or detach came to its end after this time and this many attempts. `operation` is `attach` or `detach`.
    pub fn operation_ended(
        &self,
        driver: &str,
        operation: &'static str,
        outcome: &'static str,
        end_to_end: Duration,
        attempts: u32,
    ) {
        let labels = labels([("driver_name", driver), ("operation", operation), ("outcome", outcome)]);
        self.0.operation.end_to_end.with(driver, labels.clone(), |histogram| {
            histogram.observe(end_to_end.as_secs_f64());
        });
        self.0
            .operation
            .attempts
            .with(driver, labels, |histogram| histogram.observe(f64::from(attempts)));
    }

    /// The oldest attach or detach of the driver that has not ended is this old; zero when there is none.
    pub fn oldest_pending(&self, driver: &str, operation: &'static str, age: Duration) {
        let labels = labels([("driver_name", driver), ("operation", operation)]);
        self.0.operation.oldest_pending.with(driver, labels, |gauge| {
            gauge.set(age.as_secs_f64());
        });
    }

    /// What waits and what runs in a lane, `attach` or `detach`.
    pub fn lane(&self, driver: &str, operation: &'static str, lane: &LaneGauges) {
        let with = || labels([("driver_name", driver), ("operation", operation)]);
        let families = &self.0.lane;
        let counts = [
            (&families.waiting, lane.waiting),
            (&families.in_flight, lane.in_flight),
            (&families.limit, lane.limit.unwrap_or_default()),
        ];
        for (family, count) in counts {
            family.with(driver, with(), |gauge| {
                gauge.set(to_i64(count));
            });
        }
        families.oldest_waiting.with(driver, with(), |gauge| {
            gauge.set(lane.oldest_waiting.unwrap_or_default().as_secs_f64());
        });
    }

    /// Whether a limit of `spec.concurrency` makes work wait, by the reason of the condition Saturated.
    pub fn saturated(&self, driver: &str, reason: &'static str, holds: bool) {
        let labels = labels([("driver_name", driver), ("reason", reason)]);
        self.0.lane.saturated.with(driver, labels, |gauge| {
            gauge.set(i64::from(holds));
        });
    }

    /// The driver has this many VolumeAttachments in a state.
    pub fn volume_attachments(&self, driver: &str, state: &'static str, count: usize) {
        let labels = labels([("driver_name", driver), ("state", state)]);
        self.0.operation.attachments.with(driver, labels, |gauge| {
            gauge.set(to_i64(count));
        });
    }

    /// An event about a volume of the driver was `written`, `dropped` or `failed`.
    pub fn event(&self, driver: &str, reason: &'static str, outcome: &'static str) {
        let labels = labels([("driver_name", driver), ("reason", reason), ("outcome", outcome)]);
        self.0.operation.events.with(driver, labels, |counter| {
            counter.inc();
        });
    }

    /// The driver is connected and ready.
    pub fn driver_up(&self, driver: &str) {
        self.set_driver_up(driver, 1);
    }

    /// The driver is known and not ready.
    pub fn driver_down(&self, driver: &str) {
        self.set_driver_up(driver, 0);
    }

    fn set_driver_up(&self, driver: &str, up: i64) {
        self.0
            .connection
            .up
            .with(driver, labels([("driver_name", driver)]), |gauge| {
                gauge.set(up);
            });
    }

    /// The driver reported a version; replaces what it reported before. `mode` is how it is run, as attacher or as
    /// trivial one for instance.
    pub fn driver_info(&self, driver: &str, vendor_version: &str, mode: &'static str) {
        self.0.connection.info.forget(driver);
        let labels = labels([
            ("driver_name", driver),
            ("vendor_version", vendor_version),
            ("mode", mode),
        ]);
        self.0.connection.info.with(driver, labels, |gauge| {
            gauge.set(1);
        });
    }

    /// The driver was connected again after a loss.
    pub fn driver_reconnected(&self, driver: &str) {
        self.0
            .connection
            .reconnects
            .with(driver, labels([("driver_name", driver)]), |counter| {
                counter.inc();
            });
    }

    /// Removes every series of a driver that is gone. Call it after the driver's tasks have ended: a later
    /// observation makes a series anew.
    pub fn forget_driver(&self, driver: &str) {
        self.0.queue.forget(driver);
        self.0.lane.forget(driver);
        self.0.operation.forget(driver);
        self.0.reconcile.forget(driver);
        self.0.connection.forget(driver);
        self.0.rest.held_back.forget(driver);
    }
}

fn queue_labels(driver: &str, queue: &'static str) -> Labels {
    labels([("driver_name", driver), ("name", queue)])
}

fn to_i64(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
