//! Metrics for Prometheus, in prometheus-client.
//!
//! Names, labels and buckets of the incumbent (csi-lib-utils, client-go) are kept exactly where they exist, because
//! dashboards and alerts depend on them. Callers say what happened and never touch a label. Labels take only bounded
//! values: no object names, no volume ids. This module must not compute state: gauges over state are set by who
//! knows it.

mod collectors;
mod config_families;
mod configs;
mod context;
mod context_families;
mod exposition;
mod families;
mod family;
mod insight;
mod lanes;
mod queue;
mod queue_families;
mod reconcile_sync_counts;
mod request_families;
mod requests;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tonic::Code;

pub use super::exemplar::{ExemplarFilter, SpanIds};
use super::names::{cause_camel_case, code_camel_case, error_type};
use super::span_counts::SpanCounters;
use config_families::ConfigFamilies;
use context_families::ContextFamilies;
pub use context_families::Extraction;
use csi_attacher_model::api::EventReason;
use csi_attacher_model::objects::InTreePlugin;
use families::{ConnectionFamilies, OperationFamilies, ReconcileFamilies, observe};
use family::{Labels, labels, of_driver, to_i64};
use lanes::LaneFamilies;
pub use lanes::LaneGauges;
use queue_families::QueueFamilies;
pub use queue_families::QueueSeries;
pub use reconcile_sync_counts::ReconcileSyncCounts;
use request_families::{LeaseFamilies, RestFamilies};

/// Content type of [`Metrics::encode_openmetrics`].
pub const OPENMETRICS_CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Content type of [`Metrics::encode_prometheus`].
pub const PROMETHEUS_CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Values of the label `operation`.
const OPERATIONS: [&str; 2] = ["attach", "detach"];
/// What makes attempts fail beside gRPC codes, as spans name it.
const CAUSES: [&str; 14] = [
    error_type::PV_NOT_FOUND,
    error_type::PV_DELETING,
    error_type::CSINODE_MISSING,
    error_type::SECRET_MISSING,
    error_type::SECRET_FORBIDDEN,
    error_type::SECRET_NOT_ALLOWED,
    error_type::VOLUME_SHARED,
    error_type::CAPABILITY_LOST,
    error_type::CONFIG_DELETING,
    error_type::CONFLICT,
    error_type::INVALID_SPEC,
    error_type::DRIVER_UNAVAILABLE,
    error_type::SHUTDOWN,
    error_type::OTHER,
];
/// Value of the label `outcome` of what came to its end.
const SUCCEEDED: &str = "succeeded";

/// All metrics of the process. A clone is one reference count.
#[derive(Clone)]
pub struct Metrics(Arc<MetricsInner>);

struct MetricsInner {
    registry: Registry,
    /// One scrape at a time: each holds the whole text.
    scrape: Mutex<()>,
    queue: QueueFamilies,
    lane: LaneFamilies,
    context: ContextFamilies,
    operation: OperationFamilies,
    reconcile: ReconcileFamilies,
    connection: ConnectionFamilies,
    rest: RestFamilies,
    lease: LeaseFamilies,
    configs: ConfigFamilies,
    exemplars: ExemplarFilter,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Default for Metrics {
    /// Metrics of a process without a trace pipeline.
    fn default() -> Self {
        Self::new(Arc::default(), ExemplarFilter::default())
    }
}

impl Metrics {
    /// Registers every family; `spans` is read at each scrape, and `exemplars` says which measurements tell of their span.
    pub fn new(spans: Arc<SpanCounters>, exemplars: ExemplarFilter) -> Self {
        let mut registry = Registry::default();
        let builds = Family::<Labels, Gauge>::default();
        builds
            .get_or_create(&labels([("version", env!("CARGO_PKG_VERSION"))]))
            .set(1);
        registry.register("csi_attacher_build_info", "Version of this build", builds);
        registry.register_collector(Box::new(collectors::SpanCollector(spans)));
        registry.register_collector(Box::new(collectors::ProcessCollector));
        let inner = MetricsInner {
            queue: QueueFamilies::register(&mut registry),
            lane: LaneFamilies::register(&mut registry),
            context: ContextFamilies::register(&mut registry),
            operation: OperationFamilies::register(&mut registry),
            reconcile: ReconcileFamilies::register(&mut registry),
            connection: ConnectionFamilies::register(&mut registry),
            rest: RestFamilies::register(&mut registry),
            lease: LeaseFamilies::register(&mut registry),
            configs: ConfigFamilies::register(&mut registry),
            exemplars,
            scrape: Mutex::new(()),
            registry,
        };
        Self(Arc::new(inner))
    }

    /// The exposition in OpenMetrics 1.0 ([`OPENMETRICS_CONTENT_TYPE`]).
    pub fn encode_openmetrics(&self) -> String {
        let _one = self.0.scrape.lock();
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
    /// took over an in-tree plug-in have that label, as in csi-lib-utils. `ids` are those of the call's span.
    pub fn csi_call(
        &self,
        driver: &str,
        method: &'static str,
        code: Code,
        elapsed: Duration,
        migrated: bool,
        ids: Option<SpanIds>,
    ) {
        let words = [("grpc_status_code", code_camel_case(code)), ("method_name", method)];
        let mut labels = of_driver(driver, words);
        if InTreePlugin::of_driver(driver).is_some() {
            labels.push(("migrated", Cow::Borrowed(if migrated { "true" } else { "false" })));
        }
        let exemplar = self.0.exemplars.pass(ids);
        self.0.operation.csi.with(driver, labels, |histogram| {
            observe(histogram, elapsed.as_secs_f64(), exemplar);
        });
    }

    /// A driver begins to be worked for: what is counted by words that are all known begins at zero.
    pub fn init_driver(&self, driver: &str) {
        let families = &self.0.operation;
        for operation in OPERATIONS {
            let ended = || of_driver(driver, [("operation", operation), ("outcome", SUCCEEDED)]);
            families.end_to_end.begin(driver, ended());
            families.attempts.begin(driver, ended());
            let codes = (1..=16).map(|code| code_camel_case(Code::from_i32(code)));
            for reason in codes.chain(CAUSES.map(cause_camel_case)) {
                let labels = of_driver(driver, [("operation", operation), ("reason", reason)]);
                families.failures.begin(driver, labels);
            }
        }
        for reason in EventReason::ALL {
            for outcome in ["written", "dropped", "failed"] {
                let labels = of_driver(driver, [("reason", reason.as_str()), ("outcome", outcome)]);
                families.events.begin(driver, labels);
            }
        }
        self.0.connection.reconnects.begin(driver, of_driver(driver, []));
    }

    /// An attach or detach came to its end after this time and this many attempts. `operation` is `attach` or `detach`;
    /// `ids` are those of a span of its trace.
    pub fn operation_ended(
        &self,
        driver: &str,
        operation: &'static str,
        outcome: &'static str,
        end_to_end: Duration,
        attempts: u32,
        ids: Option<SpanIds>,
    ) {
        let labels = of_driver(driver, [("operation", operation), ("outcome", outcome)]);
        let exemplar = self.0.exemplars.pass(ids);
        self.0.operation.end_to_end.with(driver, labels.clone(), |histogram| {
            observe(histogram, end_to_end.as_secs_f64(), exemplar);
        });
        self.0
            .operation
            .attempts
            .with(driver, labels, |histogram| histogram.observe(f64::from(attempts)));
    }

    /// An attempt to attach or detach failed. `reason` is the gRPC code, or what stood in the way.
    pub fn attempt_failed(&self, driver: &str, operation: &'static str, reason: &'static str) {
        let labels = of_driver(driver, [("operation", operation), ("reason", reason)]);
        self.0.operation.failures.with(driver, labels, |counter| {
            counter.inc();
        });
    }

    /// The oldest attach or detach of the driver that has not ended is this old; zero when there is none.
    pub fn oldest_pending(&self, driver: &str, operation: &'static str, age: Duration) {
        let labels = of_driver(driver, [("operation", operation)]);
        self.0.operation.oldest_pending.with(driver, labels, |gauge| {
            gauge.set(age.as_secs_f64());
        });
    }

    /// What waits and what runs in a lane, `attach` or `detach`.
    pub fn lane(&self, driver: &str, operation: &'static str, lane: &LaneGauges) {
        let with = || of_driver(driver, [("operation", operation)]);
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
        let labels = of_driver(driver, [("reason", reason)]);
        self.0.lane.saturated.with(driver, labels, |gauge| {
            gauge.set(i64::from(holds));
        });
    }

    /// The driver has this many VolumeAttachments in a state.
    pub fn volume_attachments(&self, driver: &str, state: &'static str, count: usize) {
        let labels = of_driver(driver, [("state", state)]);
        self.0.operation.attachments.with(driver, labels, |gauge| {
            gauge.set(to_i64(count));
        });
    }

    /// An event about a volume of the driver was `written`, `dropped` or `failed`.
    pub fn event(&self, driver: &str, reason: &'static str, outcome: &'static str) {
        let labels = of_driver(driver, [("reason", reason), ("outcome", outcome)]);
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
        self.0.connection.up.with(driver, of_driver(driver, []), |gauge| {
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
            .with(driver, of_driver(driver, []), |counter| {
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
        self.forget_config(driver);
    }
}

#[cfg(test)]
mod tests;
