//! Metrics for Prometheus, in prometheus-client.
//!
//! Callers say what happened and never touch a label. Labels take only bounded values: no object names, no volume ids.
//! This module must not compute state: gauges over state are set by who knows it. A family is one row of `table.rs`; here
//! is what records to several families at once, or to labels of its own.

mod collectors;
mod exposition;
mod family;
mod provisioning;
mod queue;
mod series_roles;
mod table;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::StatusCode;
use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use tonic::Code;

pub use super::exemplar::{ExemplarFilter, SpanIds};
use super::names::code_camel_case;
use super::span_counts::SpanCounters;
use csi_attacher_base::clock;
use csi_attacher_model::objects::InTreePlugin;
use family::{KnownClasses, Labels, MetricFamily, Owner, labels};
pub use queue::{QueueCounts, QueueSeries};
use table::{EVENT_OUTCOMES, Exemplified, Families};

/// Content type of [`Metrics::encode_openmetrics`].
pub const OPENMETRICS_CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Content type of [`Metrics::encode_prometheus`].
pub const PROMETHEUS_CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All metrics of the process. A clone is one reference count.
#[derive(Clone)]
pub struct Metrics(Arc<MetricsInner>);

struct MetricsInner {
    /// Locked for one scrape at a time: each holds the whole text.
    registry: Mutex<Registry>,
    families: Families,
    exemplars: ExemplarFilter,
    classes: KnownClasses,
}

/// What a comparison with ListVolumes found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReconcileSyncCounts {
    /// Pages that the driver answered.
    pub pages: usize,
    /// Volumes on all pages.
    pub volumes: usize,
    /// VolumeAttachments that say attached, while the driver does not list the volume there.
    pub to_attach: usize,
    /// VolumeAttachments that say detached, while the driver lists the volume there.
    pub to_detach: usize,
    /// Volumes at nodes of the cluster that no VolumeAttachment names; none while it is not known.
    pub without_attachment: Option<usize>,
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
    /// Registers every family; `spans` is read at each scrape, and `exemplars` says which measurements name their span.
    pub(crate) fn new(spans: Arc<SpanCounters>, exemplars: ExemplarFilter) -> Self {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(collectors::SpanCollector(spans)));
        registry.register_collector(Box::new(collectors::ProcessCollector));
        let families = Families::register(&mut registry);
        families.init(&[Owner::Process], "");
        let version = labels([("version", env!("CARGO_PKG_VERSION"))]);
        families.build_info.with(version, |gauge| gauge.set(1));
        Self(Arc::new(MetricsInner {
            registry: Mutex::new(registry),
            families,
            exemplars,
            classes: KnownClasses::default(),
        }))
    }

    /// The exposition in OpenMetrics 1.0 ([`OPENMETRICS_CONTENT_TYPE`]).
    pub fn encode_openmetrics(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail; an encoder's own error must not take the endpoint away.
        if encode(&mut text, &self.0.registry.lock()).is_err() {
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
        let mut labels = Owner::Driver.labels(driver, words);
        if InTreePlugin::of_word(driver).is_some() {
            labels.push(("migrated", Cow::Borrowed(if migrated { "true" } else { "false" })));
        }
        self.observe(&self.0.families.csi_call, labels, elapsed, ids);
    }

    /// A driver begins to be served: what is counted by known labels begins at zero.
    pub fn init_driver(&self, driver: &str) {
        self.0.families.init(&[Owner::Driver], driver);
    }

    /// The series of a work queue of a driver, which start at zero. They must be made anew after
    /// [`Metrics::forget_attaching`] or [`Metrics::forget_provisioning`], whichever the queue is of.
    pub fn queue(&self, driver: &str, queue: &'static str) -> QueueSeries {
        QueueSeries::new(&self.0.families, driver, queue)
    }

    /// As [`Metrics::queue`], of what has no workers of its own.
    pub fn queue_counts(&self, driver: &str, queue: &'static str) -> QueueCounts {
        QueueCounts::new(&self.0.families, driver, queue)
    }

    /// An operation came to its end after this time and this many attempts: `attach`, `detach`, `provision` or `delete`; `ids` are those of a span of its trace.
    pub fn operation_ended(
        &self,
        driver: &str,
        operation: &'static str,
        outcome: &'static str,
        end_to_end: Duration,
        attempts: u32,
        ids: Option<SpanIds>,
    ) {
        self.operation_time(driver, operation, outcome, end_to_end, ids);
        self.operation_attempts(driver, operation, outcome, attempts.into());
    }

    /// Whether the driver is connected and ready. From here on it is counted how often it is connected again.
    pub fn driver_up(&self, driver: &str, is_up: bool) {
        let families = &self.0.families;
        families.init(&[Owner::Connection], driver);
        let labels = Owner::Connection.labels(driver, []);
        families.driver_up.with(labels, |gauge| gauge.set(i64::from(is_up)));
    }

    /// The driver reported a version; replaces what it reported before. `mode` is `Attach` or
    /// `Trivial`.
    pub fn driver_info(&self, driver: &str, vendor_version: &str, mode: &'static str) {
        let family = &self.0.families.driver_info;
        family.forget(Owner::Driver, driver);
        let labels = labels([
            ("driver_name", driver),
            ("vendor_version", vendor_version),
            ("mode", mode),
        ]);
        family.with(labels, |gauge| gauge.set(1));
    }

    /// An Event is recorded by who works for its driver or for an AttacherConfig: from here on it is counted what becomes of it
    /// ([`Metrics::event`]).
    pub fn event_recorded(&self, driver: &str, reason: &'static str) {
        let labels = Owner::Driver.labels(driver, [("reason", reason)]);
        let outcomes = [("outcome", EVENT_OUTCOMES.to_vec())];
        self.0.families.event.start_at_zero(labels, &outcomes);
    }

    /// Comparisons with ListVolumes begin: what is counted begins at zero.
    pub fn init_reconcile_sync(&self, driver: &str) {
        self.0.families.init(&[Owner::ReconcileSync, Owner::Comparison], driver);
    }

    /// No comparisons are made any more: what the last one found grows old. What was counted stays.
    pub fn reset_reconcile_sync(&self, driver: &str) {
        self.0.families.forget(&[Owner::Comparison], driver);
    }

    /// A comparison with ListVolumes came to its end.
    pub fn reconcile_sync_succeeded(&self, driver: &str, took: Duration, listed: ReconcileSyncCounts) {
        self.reconcile_sync_passes(driver, "succeeded");
        self.reconcile_sync_seconds(driver, "succeeded", took.as_secs_f64());
        self.reconcile_sync_pages(driver, listed.pages);
        self.reconcile_sync_volumes(driver, listed.volumes);
        self.reconcile_sync_mismatches(driver, listed.to_attach + listed.to_detach);
        if let Some(count) = listed.without_attachment {
            self.reconcile_sync_without_attachment(driver, count);
        }
        self.reconcile_sync_mismatched(driver, "attach", listed.to_attach);
        self.reconcile_sync_mismatched(driver, "detach", listed.to_detach);
        let now = Duration::try_from(clock::now().duration_since(Timestamp::UNIX_EPOCH)).unwrap_or_default();
        self.reconcile_sync_last_success(driver, now);
    }

    /// A comparison with ListVolumes could not be made. `code` is a gRPC status code, or says what was wrong with the pages.
    pub fn reconcile_sync_failed(&self, driver: &str, took: Duration, code: &'static str) {
        self.reconcile_sync_passes(driver, "failed");
        self.reconcile_sync_seconds(driver, "failed", took.as_secs_f64());
        self.reconcile_sync_errors(driver, code);
    }

    /// Requests to this host begin: what is counted of repeated ones begins at zero.
    pub fn init_requests(&self, host: &str) {
        for code in ["429", "503"] {
            for verb in ["GET", "PATCH", "POST", "PUT", "DELETE"] {
                let labels = labels([("code", code), ("verb", verb), ("host", host)]);
                self.0.families.rest_retries.start_at_zero(labels, &[]);
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
        let families = &self.0.families;
        let code = status.as_ref().map_or("<error>", StatusCode::as_str);
        let request = labels([("code", code), ("method", verb), ("host", host)]);
        families.rest_requests.with(request, Counter::inc);
        let labels = labels([("verb", verb), ("host", host)]);
        self.observe(&families.rest_duration, labels, elapsed, ids);
    }

    /// A request is made once more after the API server answered `code` to it and asked to wait.
    pub fn rest_request_retried(&self, verb: &str, host: &str, code: u16) {
        let labels = labels([("code", &code.to_string()), ("verb", verb), ("host", host)]);
        self.0.families.rest_retries.with(labels, Counter::inc);
    }

    /// A request to the API server waited this long for a limit of our own, possibly not at all: that of `driver`, or with
    /// an empty one that of the process. Not called without such a limit.
    pub fn request_throttled(&self, driver: &str, verb: &str, host: &str, waited: Duration) {
        let mut labels = labels([("verb", verb), ("host", host)]);
        if !driver.is_empty() {
            labels.push(("driver_name", Cow::Owned(driver.to_owned())));
        }
        let family = &self.0.families.rest_throttled;
        family.with(labels, |histogram| histogram.observe(waited.as_secs_f64()));
    }

    /// This process competes for a Lease, and holds it or not.
    pub fn leading(&self, lease: &str, leads: bool) {
        self.lease_held(lease, leads);
        self.0.families.init(&[Owner::Lease], lease);
    }

    /// Removes the series of a Lease that is not competed for any more.
    pub fn forget_lease(&self, lease: &str) {
        self.0.families.forget(&[Owner::Lease], lease);
    }

    /// Removes the findings about the attachments of a driver that is not served any more.
    pub fn forget_findings(&self, driver: &str) {
        let is_meant = |labels: &Labels| !series_roles::is_of_provisioning(labels);
        self.0.families.findings.forget_if(Owner::Driver, driver, is_meant);
    }

    /// Removes the generation of a driver that no AttacherConfig is for any more.
    pub fn forget_config(&self, driver: &str) {
        self.0.families.config_observed.forget(Owner::Driver, driver);
    }

    /// Removes every series of a driver that is gone. Call it after the driver's tasks have ended: a later
    /// observation makes a series anew.
    pub fn forget_driver(&self, driver: &str) {
        self.forget_attaching(driver);
        self.forget_provisioning(driver);
    }

    /// Records a time, and the span that it was measured in.
    fn observe(&self, family: &MetricFamily<Exemplified>, labels: Labels, time: Duration, ids: Option<SpanIds>) {
        let exemplar = self.0.exemplars.pass(ids);
        let now = exemplar.is_some().then(|| SystemTime::from(clock::now()));
        family.with(labels, |histogram| histogram.observe(time.as_secs_f64(), exemplar, now));
    }
}

#[cfg(test)]
mod tests;
