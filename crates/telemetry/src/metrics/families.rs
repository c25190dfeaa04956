//! The families by subject, with their names, help texts and buckets.

use std::sync::atomic::AtomicU64;
use std::time::SystemTime;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::exemplar::HistogramWithExemplars;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::{Metric, Registry};

use super::family::{DriverFamily, Labels};
use crate::exemplar::ExemplarLabels;

/// Buckets of csi-lib-utils.
const CSI_SECONDS: [f64; 13] = [
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0,
];
const ATTEMPTS: [f64; 8] = [1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 21.0, 50.0];

pub(super) type FloatGauge = Gauge<f64, AtomicU64>;
/// A histogram whose buckets tell of a span.
pub(super) type Exemplified = HistogramWithExemplars<ExemplarLabels>;

/// Records a value, and the span that it was measured in.
pub(super) fn observe(histogram: &Exemplified, value: f64, exemplar: Option<ExemplarLabels>) {
    let now = exemplar.is_some().then(SystemTime::now);
    histogram.observe(value, exemplar, now);
}

/// CSI calls, named as in csi-lib-utils, and the attaches and detaches they are for.
pub(super) struct OperationFamilies {
    pub(super) csi: DriverFamily<Exemplified>,
    pub(super) end_to_end: DriverFamily<Exemplified>,
    pub(super) attempts: DriverFamily<Histogram>,
    pub(super) failures: DriverFamily<Counter>,
    pub(super) oldest_pending: DriverFamily<FloatGauge>,
    pub(super) attachments: DriverFamily<Gauge>,
    pub(super) events: DriverFamily<Counter>,
    pub(super) findings: DriverFamily<Gauge>,
}

impl OperationFamilies {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let mut seconds = |name, help| per_driver(registry, name, help, || Exemplified::new(CSI_SECONDS.into_iter()));
        let csi = seconds(
            "csi_sidecar_operations_seconds",
            "Container Storage Interface operation duration with gRPC error code status total",
        );
        let end_to_end = seconds(
            "csi_attacher_operation_e2e_seconds",
            "Time from the request of an attach or detach to its end, all attempts included",
        );
        let help = "Number of attempts of an attach or detach";
        let attempts = per_driver(registry, "csi_attacher_operation_attempts", help, || {
            Histogram::new(ATTEMPTS)
        });
        let help = "Attempts to attach or detach that failed, by error.type as spans have it";
        let failures = per_driver(registry, "csi_attacher_attempt_failures", help, Counter::default);
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
            failures,
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
        self.failures.forget(driver);
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
    pub(super) pages: DriverFamily<Gauge>,
    pub(super) mismatches: DriverFamily<Gauge>,
    pub(super) without_attachment: DriverFamily<Gauge>,
    pub(super) mismatched: DriverFamily<SuffixedCounter>,
    pub(super) forced: DriverFamily<Counter>,
    pub(super) errors: DriverFamily<Counter>,
    pub(super) last_success: DriverFamily<FloatGauge>,
    pub(super) interval: DriverFamily<FloatGauge>,
}

impl ReconcileFamilies {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let name = "csi_attacher_reconcile_sync_seconds";
        let seconds = per_driver(registry, name, "How long a comparison took", || {
            Histogram::new(CSI_SECONDS)
        });
        let name = "csi_attacher_reconcile_sync_mismatches_total";
        let help =
            "VolumeAttachments that contradicted ListVolumes, in all comparisons, by the operation that repairs them";
        let all_mismatches = per_driver(registry, name, help, SuffixedCounter::default);
        let named = |name| format!("csi_attacher_reconcile_sync_{name}");
        let mut counter = |name, help| per_driver(registry, &named(name), help, Counter::default);
        let passes = counter("passes", "Comparisons of the attachments with what the driver lists");
        let help =
            "Attaches and detaches that were repeated because ListVolumes contradicted the attachment twice in a row";
        let forced = counter("forced", help);
        let help =
            "Comparisons that did not come to their end, by gRPC status code or by what was wrong with the pages";
        let errors = counter("errors", help);
        let mut gauge = |name, help| per_driver(registry, &named(name), help, Gauge::default);
        let volumes = gauge("volumes", "Volumes that the driver listed in the last comparison");
        let pages = gauge("pages", "Pages of ListVolumes that the last comparison took");
        let help = "VolumeAttachments that contradicted ListVolumes in the last comparison";
        let mismatches = gauge("mismatches", help);
        let help = "Volumes that the driver listed at nodes of this cluster in the last two comparisons and no VolumeAttachment names";
        let without_attachment = gauge("without_attachment", help);
        let mut seconds_gauge = |name, help| per_driver(registry, &named(name), help, FloatGauge::default);
        let help = "When the last comparison came to its end";
        let last_success = seconds_gauge("last_success_timestamp_seconds", help);
        let help = "How often comparisons are made, from the end of one to the next";
        let interval = seconds_gauge("interval_seconds", help);
        Self {
            passes,
            seconds,
            volumes,
            pages,
            mismatches,
            without_attachment,
            mismatched: all_mismatches,
            forced,
            errors,
            last_success,
            interval,
        }
    }

    pub(super) fn forget(&self, driver: &str) {
        self.passes.forget(driver);
        self.seconds.forget(driver);
        self.rest(driver);
        self.mismatched.forget(driver);
        self.forced.forget(driver);
        self.errors.forget(driver);
    }

    /// Removes what the last comparison found.
    pub(super) fn rest(&self, driver: &str) {
        self.volumes.forget(driver);
        self.pages.forget(driver);
        self.mismatches.forget(driver);
        self.without_attachment.forget(driver);
        self.last_success.forget(driver);
        self.interval.forget(driver);
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

/// A counter whose family is named with `_total`, which OpenMetrics allows for the type `unknown` only. For a name that
/// another family has already without the suffix: two families of one name are no OpenMetrics. In the classic format,
/// where the names differ, it is a counter as any other ([`super::exposition`]).
#[derive(Clone, Debug, Default)]
pub(super) struct SuffixedCounter(pub(super) Counter);

impl TypedMetric for SuffixedCounter {
    const TYPE: MetricType = MetricType::Unknown;
}

impl EncodeMetric for SuffixedCounter {
    fn encode(&self, encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        // As a gauge, of which nothing but the value is written.
        ConstGauge::new(self.0.get()).encode(encoder)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
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
