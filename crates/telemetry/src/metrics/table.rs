//! Every metric family, each in one row: who owns its series, the name of its method, its kind, its labels, the name that
//! Prometheus sees, and its help text.
//!
//! A row with brackets, even empty ones, makes a method of [`Metrics`] that records. A row without brackets makes a field alone, which
//! a method in `mod.rs` or `queue.rs` records to. Names of counters are written without `_total`. A new metric is one row here, a
//! call where it is recorded, and a row in docs/reference/METRICS.md. Names, labels and buckets of the incumbent (csi-lib-utils, client-go) are kept
//! where they exist.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::exemplar::HistogramWithExemplars;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::Registry;
use tonic::Code;

use super::family::{Labels, MetricFamily, Owner, to_i64};
use super::series_roles::other_event_reasons;

use super::{Metrics, SpanIds};
use crate::names::{FailsFor, causes_of, code_camel_case};
use csi_attacher_model::api::condition::ConditionReason;

/// Buckets of csi-lib-utils.
const CSI_SECONDS: [f64; 13] = [
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0,
];
/// Buckets of client-go for requests.
const REST_SECONDS: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];
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
const ATTEMPTS: [f64; 8] = [1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 21.0, 50.0];

/// `prometheus.DefBuckets`, which sig-storage-lib-external-provisioner has.
const DEFAULT_SECONDS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

const OPERATIONS: [&str; 2] = ["attach", "detach"];
/// What becomes of an Event.
pub(super) const EVENT_OUTCOMES: [&str; 3] = ["written", "dropped", "failed"];
const READY: [ConditionReason; 2] = [ConditionReason::Running, ConditionReason::DriverUnreachable];

pub(super) fn error_codes() -> impl Iterator<Item = &'static str> {
    (1..=16).map(|code| code_camel_case(Code::from_i32(code)))
}

pub(super) type FloatGauge = Gauge<f64, AtomicU64>;
/// A histogram whose buckets name the span of their last value.
pub(super) type Exemplified = HistogramWithExemplars<SpanIds>;

/// A counter whose family is named with `_total`, which OpenMetrics allows for the type `unknown` only. For a name that
/// another family has already without the suffix: two families of one name are no OpenMetrics. In the classic format,
/// where the names differ, it is a counter as any other ([`super::exposition`]).
#[derive(Clone, Debug, Default)]
pub(super) struct SuffixedCounter(Counter);

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

/// The type of a metric of this kind, and how one is made.
macro_rules! metric {
    (type counter) => { Counter };
    (type late_counter) => { Counter };
    (type suffixed_counter) => { SuffixedCounter };
    (type seconds) => { FloatGauge };
    (type histogram) => { Histogram };
    (type exemplified) => { Exemplified };
    (type $gauge:ident) => { Gauge };
    (new histogram $buckets:expr) => { || Histogram::new($buckets) };
    (new exemplified $buckets:expr) => { || Exemplified::new($buckets.into_iter()) };
    (new $kind:ident) => { <metric!(type $kind)>::default };
}

/// The method of a row: what it takes depends on the kind, and whether it takes the name of an owner on the owner.
macro_rules! method {
    ($kind:ident $owner:ident [] $field:ident) => {};
    (counter $($row:tt)*) => { method!(@row [] [|counter| { counter.inc(); }] $($row)*); };
    (late_counter $owner:ident $doc:tt $field:ident [$($label:ident)*]) => {
        method!(@doc $doc pub fn $field(&self, owner: &str, $($label: &'static str),*) {
            let labels = Owner::$owner.labels(owner, [$((stringify!($label), $label)),*]);
            self.0.families.$field.with_known(&labels, |counter| { counter.inc(); });
        });
    };
    (suffixed_counter $($row:tt)*) => {
        method!(@row [count: usize] [|counter| { counter.0.inc_by(u64::try_from(count).unwrap_or(u64::MAX)); }] $($row)*);
    };
    (gauge $($row:tt)*) => { method!(@row [count: usize] [|gauge| { gauge.set(to_i64(count)); }] $($row)*); };
    (integer $($row:tt)*) => { method!(@row [value: i64] [|gauge| { gauge.set(value); }] $($row)*); };
    (flag $($row:tt)*) => { method!(@row [holds: bool] [|gauge| { gauge.set(i64::from(holds)); }] $($row)*); };
    (seconds $($row:tt)*) => { method!(@row [time: Duration] [|gauge| { gauge.set(time.as_secs_f64()); }] $($row)*); };
    (histogram $($row:tt)*) => { method!(@row [value: f64] [|histogram| histogram.observe(value)] $($row)*); };
    (exemplified $owner:ident $doc:tt $field:ident [$($label:ident)*]) => {
        method!(@doc $doc pub fn $field(&self, owner: &str, $($label: &'static str,)* time: Duration, span: Option<SpanIds>) {
            let labels = Owner::$owner.labels(owner, [$((stringify!($label), $label)),*]);
            self.observe(&self.0.families.$field, labels, time, span);
        });
    };
    (@row [$($value:tt)*] [$record:expr] Process $doc:tt $field:ident [$($label:ident)*]) => {
        method!(@doc $doc pub fn $field(&self, $($label: &'static str,)* $($value)*) {
            self.0.families.$field.with(Owner::Process.labels("", [$((stringify!($label), $label)),*]), $record);
        });
    };
    (@row [$($value:tt)*] [$record:expr] $owner:ident $doc:tt $field:ident [$($label:ident)*]) => {
        method!(@doc $doc pub fn $field(&self, owner: &str, $($label: &'static str,)* $($value)*) {
            self.0.families.$field.with(Owner::$owner.labels(owner, [$((stringify!($label), $label)),*]), $record);
        });
    };
    (@doc [$($doc:tt)*] $($function:tt)*) => { $($doc)* $($function)* };
}

/// Makes the first series of a row that says so.
macro_rules! init {
    ($family:expr, $owner:expr, [], $($label:ident $($values:expr)?),*) => {};
    ($family:expr, $owner:expr, [$start:ident], $($label:ident $values:expr),*) => {
        $family.$start($owner, &[$((stringify!($label), words($values))),*]);
    };
}

macro_rules! families {
    ($($(#[$doc:meta])* $owner:ident $field:ident: $kind:ident $(($buckets:ident))?
        $([$($label:ident $(in $values:expr)?),*] $($start:ident)?)? $name:literal, $help:literal;)*) => {
        pub(super) struct Families {
            $(pub(super) $field: MetricFamily<metric!(type $kind)>,)*
        }

        impl Families {
            pub(super) fn register(registry: &mut Registry) -> Self {
                let families = Self {
                    $($field: MetricFamily::new(metric!(new $kind $($buckets)?)),)*
                };
                $(registry.register($name, $help, families.$field.family());)*
                families
            }

            /// Makes the series of `owner` that start at zero: a rate over the first event is not lost.
            pub(super) fn init(&self, owners: &[Owner], owner: &str) {
                $($(if owners.contains(&Owner::$owner) {
                    init!(self.$field, Owner::$owner.labels(owner, []), [$($start)?], $($label $($values)?),*);
                })?)*
            }

            /// Removes the series that belong to `owner`.
            pub(super) fn forget(&self, owners: &[Owner], owner: &str) {
                self.forget_if(owners, owner, |_| true);
            }

            /// Removes those of the series that belong to `owner` which are of this kind.
            pub(super) fn forget_if(&self, owners: &[Owner], owner: &str, is_meant: impl Fn(&Labels) -> bool) {
                $(if owners.contains(&Owner::$owner) {
                    self.$field.forget_if(Owner::$owner, owner, &is_meant);
                })*
            }
        }

        impl Metrics {
            $(method!($kind $owner [$(#[$doc])*] $field $([$($label)*])?);)*
        }
    };
}

fn words<V: IntoIterator<Item = &'static str>>(values: V) -> Vec<&'static str> {
    values.into_iter().collect()
}

families! {
    Process build_info: gauge
        "csi_attacher_build_info", "Version of this build";

    Driver queue_depth: gauge
        "workqueue_depth", "Current depth of workqueue";
    Driver queue_adds: counter
        "workqueue_adds", "Total number of adds handled by workqueue";
    Driver queue_retries: counter
        "workqueue_retries", "Total number of retries handled by workqueue";
    Driver queue_wait: histogram(QUEUE_SECONDS)
        "workqueue_queue_duration_seconds", "How long in seconds an item stays in workqueue before being requested";
    Driver queue_work: histogram(QUEUE_SECONDS)
        "workqueue_work_duration_seconds", "How long in seconds processing an item from workqueue takes";
    /// Sum of the time that the work in progress has taken, over all workers.
    Driver queue_unfinished: seconds[name]
        "workqueue_unfinished_work_seconds", "Sum of the seconds that work in progress has taken so far";
    /// Time that the longest running worker has taken.
    Driver queue_longest: seconds[name]
        "workqueue_longest_running_processor_seconds", "Seconds the longest running processor has been running";
    Driver queue_panics: counter
        "csi_attacher_reconcile_panics", "Number of reconciles that ended by a fault of the operator";

    /// What is ready and queued in the lane of an operation.
    Driver lane_waiting: gauge[operation]
        "csi_attacher_lane_waiting", "Attachments, claims or volumes that are ready and queued";
    /// How long the first of them waits; zero when none does.
    Driver lane_oldest_waiting: seconds[operation]
        "csi_attacher_lane_oldest_waiting_seconds", "Seconds that the oldest that is ready has been queued";
    /// What of the lane is worked on.
    Driver lane_in_flight: gauge[operation]
        "csi_attacher_lane_in_flight", "Attachments, claims or volumes that are worked on";
    /// How many of the lane may be worked on at once; zero is no limit.
    Driver lane_limit: gauge[operation]
        "csi_attacher_lane_limit", "Maximum number in progress in parallel; 0 is no limit";
    /// Whether a limit of `spec.concurrency` makes work wait, by the reason of the condition Saturated.
    Driver saturated: flag[reason]
        "csi_attacher_saturated", "1 while a limit of spec.concurrency or spec.provisioning.concurrency delays work, by the reason of the condition Saturated";

    /// An annotation of an object of this kind was read for a trace context: `success`, or `invalid` for what is no
    /// `traceparent`. The name is that of KEP-5915.
    Process trace_context_extracted: counter[resource_kind in ["VolumeAttachment", "PersistentVolume", "PersistentVolumeClaim"], result in ["success", "invalid"]] start_at_zero
        "trace_context_annotations_extracted", "Trace contexts found in annotations of objects";
    /// A write was sent that puts a trace context on an object of this kind: `success` or `failure`. The name is that of
    /// KEP-5915.
    Process trace_context_injected: counter[resource_kind in ["VolumeAttachment"], result in ["success", "failure"]] start_at_zero
        "trace_context_annotations_injected", "Trace contexts written into annotations of objects";

    Driver csi_call: exemplified(CSI_SECONDS)
        "csi_sidecar_operations_seconds", "Container Storage Interface operation duration with gRPC error code status total";
    /// An operation ended after this time; `span` is one of its trace.
    Driver operation_time: exemplified(CSI_SECONDS)[operation in OPERATIONS, outcome in ["succeeded"]] start_at_zero
        "csi_attacher_operation_e2e_seconds", "Time from the request of an attach, detach, provision or delete to its end, all attempts included";
    /// An operation ended after so many attempts.
    Driver operation_attempts: histogram(ATTEMPTS)[operation in OPERATIONS, outcome in ["succeeded"]] start_at_zero
        "csi_attacher_operation_attempts", "Number of attempts of an attach, detach, provision or delete";
    /// An attempt of an operation failed. `reason` is the gRPC code, or what stood in the way.
    Driver attempt_failed: counter[operation in OPERATIONS, reason in error_codes().chain(causes_of(FailsFor::Attaching))] start_at_zero
        "csi_attacher_attempt_failures", "Attempts to attach, detach, provision or delete that failed, by error.type as spans have it";
    /// Age of the driver's oldest operation that has not ended; zero when there is none.
    Driver oldest_pending: seconds[operation]
        "csi_attacher_oldest_pending_seconds", "Age of the oldest attach, detach, provision or delete that has not ended";
    /// The driver has this many VolumeAttachments in a state.
    Driver volume_attachments: gauge[state]
        "csi_attacher_volumeattachments", "VolumeAttachments of the driver by state";
    /// The driver has this many PersistentVolumeClaims in a state.
    Provisioning claims: gauge[state]
        "csi_attacher_persistentvolumeclaims", "PersistentVolumeClaims of the driver that are not settled, by state";
    /// The driver has this many PersistentVolumes in a state.
    Provisioning volumes: gauge[state]
        "csi_attacher_persistentvolumes", "PersistentVolumes of the driver whose volume is to be deleted, by state";
    /// A node was taken off a claim, as no volume can be made for it.
    Provisioning rescheduled: counter[] start_at_zero
        "csi_attacher_reschedules", "PersistentVolumeClaims whose selected node was taken off, so that another one is selected";
    /// A volume that nobody wanted any more was deleted again.
    Provisioning volume_undone: counter[] start_at_zero
        "csi_attacher_volumes_undone", "Volumes that were created and deleted again before they had a PersistentVolume";
    /// A volume may be left in the storage system.
    Provisioning possible_leak: counter[] start_at_zero
        "csi_attacher_possible_leaks", "Volumes that may be left in the storage system without a PersistentVolume";

    Provisioning provisions: counter
        "controller_persistentvolumeclaim_provision", "Total number of persistent volumes provisioned successfully. Broken down by storage class name and source of the claim";
    Provisioning provision_failures: counter
        "controller_persistentvolumeclaim_provision_failed", "Total number of persistent volume provision failed attempts. Broken down by storage class name and source of the claim";
    Provisioning provision_time: histogram(DEFAULT_SECONDS)
        "controller_persistentvolumeclaim_provision_duration_seconds", "Latency in seconds to provision persistent volumes. Failed provisioning attempts are ignored. Broken down by storage class name and source of the claim";
    Provisioning deletes: counter
        "controller_persistentvolume_delete", "Total number of persistent volumes deleted successfully. Broken down by storage class name";
    Provisioning delete_failures: counter
        "controller_persistentvolume_delete_failed", "Total number of persistent volume delete failed attempts. Broken down by storage class name";
    Provisioning delete_time: histogram(DEFAULT_SECONDS)
        "controller_persistentvolume_delete_duration_seconds", "Latency in seconds to delete persistent volumes. Failed deletion attempts are ignored. Broken down by storage class name";
    /// An Event about a volume of the driver was `written`, `dropped` or `failed`. It is counted while there is a series for it: since the
    /// role began, or since the Event was recorded ([`Metrics::event_recorded`]). The role may have ended before the Event is written.
    Driver event: late_counter[reason in other_event_reasons(), outcome in EVENT_OUTCOMES] start_at_zero
        "csi_attacher_events", "Events by reason and by what became of them: written, dropped for want of room, or failed";
    /// There are this many findings of a kind about the driver's attachments.
    Driver findings: gauge[kind]
        "csi_attacher_findings", "What is wrong with VolumeAttachments, PersistentVolumeClaims or PersistentVolumes of the driver, or with the driver itself, by kind";

    /// A comparison with ListVolumes `succeeded` or `failed`.
    ReconcileSync reconcile_sync_passes: counter[outcome in ["succeeded", "failed"]] start_at_zero
        "csi_attacher_reconcile_sync_passes", "Comparisons of the attachments with what the driver lists";
    /// A comparison with ListVolumes took so many seconds.
    ReconcileSync reconcile_sync_seconds: histogram(CSI_SECONDS)[outcome in ["succeeded", "failed"]] start_at_zero
        "csi_attacher_reconcile_sync_seconds", "How long a comparison took";
    /// So many VolumeAttachments contradicted ListVolumes; `direction` is the operation that repairs them.
    ReconcileSync reconcile_sync_mismatched: suffixed_counter[direction in OPERATIONS] start_at_zero
        "csi_attacher_reconcile_sync_mismatches_total", "VolumeAttachments that contradicted ListVolumes, in all comparisons, by the operation that repairs them";
    /// A volume is attached or detached once more because the driver lists it otherwise.
    ReconcileSync reconcile_sync_forced: counter[direction in OPERATIONS] start_at_zero
        "csi_attacher_reconcile_sync_forced", "Attaches and detaches that were repeated because ListVolumes contradicted the attachment twice in a row";
    /// A comparison with ListVolumes failed with a gRPC status code, or for what was wrong with the pages.
    ReconcileSync reconcile_sync_errors: counter[grpc_status_code in error_codes()] start_at_zero
        "csi_attacher_reconcile_sync_errors", "Comparisons that did not come to their end, by gRPC status code or by what was wrong with the pages";
    /// Volumes that the driver listed in the last comparison.
    Comparison reconcile_sync_volumes: gauge[]
        "csi_attacher_reconcile_sync_volumes", "Volumes that the driver listed in the last comparison";
    /// Pages that the last comparison took.
    Comparison reconcile_sync_pages: gauge[]
        "csi_attacher_reconcile_sync_pages", "Pages of ListVolumes that the last comparison took";
    /// VolumeAttachments that contradicted the last comparison.
    Comparison reconcile_sync_mismatches: gauge[] start_at_zero
        "csi_attacher_reconcile_sync_mismatches", "VolumeAttachments that contradicted ListVolumes in the last comparison";
    /// Volumes at nodes of the cluster that no VolumeAttachment names.
    Comparison reconcile_sync_without_attachment: gauge[]
        "csi_attacher_reconcile_sync_without_attachment", "Volumes that the driver listed at nodes of this cluster in the last two comparisons and no VolumeAttachment names";
    /// Time since 1970 at which the last comparison succeeded.
    Comparison reconcile_sync_last_success: seconds[]
        "csi_attacher_reconcile_sync_last_success_timestamp_seconds", "When the last comparison came to its end";
    /// A comparison with ListVolumes is made so often from now on.
    Comparison reconcile_sync_interval: seconds[]
        "csi_attacher_reconcile_sync_interval_seconds", "How often comparisons are made, from the end of one to the next";

    Connection driver_up: gauge
        "csi_attacher_driver_up", "Whether the driver is connected and ready";
    Driver driver_info: gauge
        "csi_attacher_driver_info", "Version the driver reports and the mode it is run in";
    /// The driver was connected again after a loss.
    Connection driver_reconnected: counter[] start_at_zero
        "csi_attacher_driver_reconnects", "Connections to the driver that were made after a loss";
    /// So many objects of this resource wait for an attacher, and no AttacherConfig has their driver.
    Process unserved: gauge[resource]
        "csi_attacher_unserved", "Objects that wait for an attacher and whose driver has no AttacherConfig";

    Process rest_requests: counter
        "rest_client_requests", "Number of HTTP requests to the API server by status code, method and host";
    Process rest_retries: counter
        "rest_client_request_retries", "Number of requests retried as the API server asked, by its status code, verb and host";
    Process rest_duration: exemplified(REST_SECONDS)
        "rest_client_request_duration_seconds", "Request latency in seconds by verb and host";
    Driver rest_throttled: histogram(REST_SECONDS)
        "rest_client_rate_limiter_duration_seconds", "Client side rate limiter latency in seconds by verb and host, and by driver where the limit is a driver's";

    /// Whether this process holds the Lease.
    Lease lease_held: flag[]
        "leader_election_master_status", "1 when this process holds the Lease of this name, else 0";
    /// A Lease had to be read before it could be renewed.
    Lease lease_read_before_renewal: counter[] start_at_zero
        "leader_election_slowpath", "Total number of renewals of a lease that had to read it first";
    /// Another process of the same name has taken a Lease that was held.
    Lease lease_identity_conflict: counter[] start_at_zero
        "csi_attacher_lease_identity_conflicts", "Total number of times that another process of the same name took a lease that was held";

    /// The settings of this generation of an AttacherConfig are in use for the driver.
    Driver config_observed: integer[]
        "csi_attacher_config_observed_generation", "metadata.generation of the AttacherConfig whose settings are in use for the driver";
    /// An AttacherConfig was found not to be usable, for the reason of its condition Stalled.
    Process config_refused: counter[reason in ConditionReason::STALLING.map(ConditionReason::as_str)] start_at_zero
        "csi_attacher_config_errors", "AttacherConfigs that were found not to be usable, by the reason of their condition Stalled";
    /// So many AttacherConfigs have a condition Ready with this reason.
    Process configs: gauge[reason in READY.map(ConditionReason::as_str)] start_at_zero
        "csi_attacher_attacherconfigs", "AttacherConfigs by the reason of their condition Ready";
}
