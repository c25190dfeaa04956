//! [`DriverConfig`]: the settings of one driver in a form that cannot hold a bad value.
//!
//! The rules are those of the schema (see `rules.rs`), checked again because the schema can be bypassed. All problems
//! of a spec are reported together, so one edit can fix them.

mod check;
mod provisioning;
mod publish_secrets;

use std::fmt;
use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use super::attacher_config::{AnnotationMode, DeletionPolicy, OrphanPolicy, TlsSpec};
pub use super::endpoint::{Endpoint, LoopbackHost};
pub use super::rules::SpecProblem;
pub use check::is_driver_name;
pub use provisioning::Provisioning;
pub use publish_secrets::{PublishSecrets, SecretNames};

/// The checked settings of one driver.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "a field without a comment has its type to say what it is")]
pub struct DriverConfig {
    /// The name that the driver must answer; `None` accepts any.
    pub driver_name: Option<String>,
    /// Address of the driver's controller plugin.
    pub endpoint: Endpoint,
    /// The certificates of the connection; `Some` exactly when the endpoint is https.
    pub tls: Option<TlsSpec>,
    /// Whether to do nothing for this driver.
    pub suspend: bool,
    pub timeouts: Timeouts,
    pub backoff: BackoffSettings,
    pub concurrency: Concurrency,
    pub reconcile_sync: ReconcileSync,
    /// File system type for volumes that name none; empty sends none.
    pub default_fs_type: String,
    /// What NOT_FOUND from ControllerUnpublishVolume means.
    pub orphan_policy: OrphanPolicy,
    /// The publish secrets that the driver may be given.
    pub publish_secrets: PublishSecrets,
    /// Limit of the requests to the API server for this driver; `None` is no limit.
    pub kubernetes_api: Option<KubernetesApi>,
    /// How replicas agree on one.
    pub leader_election: LeaderElection,
    /// Namespace of the Lease under which a former release serves the driver, or did. It is no field of the spec.
    pub former_lease: Option<String>,
    /// What happens when the AttacherConfig is deleted while volumes are attached.
    pub deletion_policy: DeletionPolicy,
    /// Traces of the driver's attachments.
    pub tracing: Tracing,
    /// Provisioning; none while the role is off.
    pub provisioning: Option<Provisioning>,
    /// What becomes of a driver that does not announce PUBLISH_UNPUBLISH_VOLUME any more while volumes may be attached. It is no
    /// field of the spec.
    pub capability_lost: CapabilityLost,
    /// Whether the AttacherConfig is being deleted, and nothing new is attached. It is no field of the spec.
    pub leaving: bool,
}

impl DriverConfig {
    /// Whether what failed with the `former` settings may succeed with these: they differ in more than limits, traces, comparisons and what
    /// becomes of the object. Two writers that disagree about one of those, and each write it again and again, must end no backoff.
    pub fn may_cure(&self, former: &Self) -> bool {
        let mut alike = self.clone();
        alike.concurrency.clone_from(&former.concurrency);
        alike.reconcile_sync.clone_from(&former.reconcile_sync);
        alike.tracing.clone_from(&former.tracing);
        (alike.kubernetes_api, alike.deletion_policy) = (former.kubernetes_api, former.deletion_policy);
        if let (Some(alike), Some(former)) = (&mut alike.provisioning, &former.provisioning) {
            (alike.create, alike.delete) = (former.create, former.delete);
            (alike.per_class, alike.calls_per_second) = (former.per_class, former.calls_per_second);
        }
        alike != *former
    }
}

/// What becomes of a driver that lost PUBLISH_UNPUBLISH_VOLUME.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CapabilityLost {
    /// It is stalled, unless this driver name is the driver's: a person confirmed by an annotation that it needs no attach.
    Stall {
        /// Value of the annotation.
        confirmed_for: Option<String>,
    },
    /// It is served on, as the Go sidecar does: what is wanted is marked attached, and nothing is released.
    Tolerate,
}

impl Default for CapabilityLost {
    fn default() -> Self {
        Self::Stall { confirmed_for: None }
    }
}

/// Limit of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KubernetesApi {
    /// Requests per second in the long run.
    pub qps: NonZeroU32,
    /// Requests at once after a pause.
    pub burst: NonZeroU32,
}

/// How replicas agree on one. The times fit each other: `1.2 * retry_period < renew_deadline < lease_duration`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderElection {
    /// Namespaces in which an attacher of the driver may hold a Lease: `namespace` and `sidecarNamespaces` of the spec.
    pub sidecar_namespaces: Vec<String>,
    /// How long others leave the Lease alone; whole seconds, at least one.
    pub lease_duration: Duration,
    /// How long the leader works without a renewal.
    pub renew_deadline: Duration,
    /// Time between two renewals.
    pub retry_period: Duration,
}

/// Deadlines of calls, each from 1 ms to 24 h.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "a field without a comment is named after its call")]
pub struct Timeouts {
    pub publish: Duration,
    pub unpublish: Duration,
    /// ListVolumes, each page.
    pub list_volumes: Duration,
    pub probe: Duration,
    /// GetPluginInfo, GetPluginCapabilities and ControllerGetCapabilities, each.
    pub identity: Duration,
}

/// Waiting time after failures.
#[derive(Clone, Debug, PartialEq)]
pub struct BackoffSettings {
    /// Wait after the first failure, from 1 ms to 24 h.
    pub initial: Duration,
    /// Longest wait, not below `initial`.
    pub max: Duration,
    /// Growth of each wait over the one before, from 1.0 to 10.0.
    pub factor: f64,
    /// Share of a wait that may be added at random, from 0.0 to 1.0.
    pub jitter: f64,
}

/// Comparison with what the driver lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReconcileSync {
    /// Whether it is made with drivers that can list.
    pub enabled: bool,
    /// Time from the end of one to the beginning of the next, from 1 ms to 24 h.
    pub interval: Duration,
    /// `max_entries` of each page; 0 lets the driver choose.
    pub max_entries: i32,
}

/// Limits of calls; `None` is no limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Concurrency {
    /// ControllerPublishVolume calls in flight.
    pub attach: Option<NonZeroUsize>,
    /// ControllerUnpublishVolume calls in flight.
    pub detach: Option<NonZeroUsize>,
    /// Calls of both kinds in flight; only the sidecar's `--worker-threads` is such a limit.
    pub total: Option<NonZeroUsize>,
    /// Calls of both kinds in flight for one node.
    pub per_node: Option<NonZeroUsize>,
    /// Calls of both kinds started in one second.
    pub calls_per_second: Option<NonZeroU32>,
}

/// How one driver's attachments are traced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tracing {
    /// Share of the attachments that is traced, in millionths from 0 to 1000000; `None` leaves it to the process.
    pub sampling_rate_per_million: Option<u32>,
    /// What is done with a trace context in annotations.
    pub annotation_mode: AnnotationMode,
    /// Keys that may hold one, each ending in `traceparent`.
    pub annotations: Vec<String>,
    /// Whether our own is put on VolumeAttachments.
    pub outgoing_annotation: bool,
    /// Most attempts in one trace.
    pub max_attempts: NonZeroU32,
    /// Longest time that one trace covers, from 1 m to 24 h.
    pub max_age: Duration,
    /// What spans have as a hash only.
    pub redact: Redact,
    /// Whether errors on VolumeAttachments end in the ID of the trace.
    pub error_suffix: bool,
}

/// What spans have as a hash only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Redact {
    /// IDs of volumes.
    pub volume_id: bool,
    /// Names of nodes, volumes, claims, namespaces and storage classes.
    pub names: bool,
}

/// One problem of a spec: where it is, what it is, how to mend it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct FieldError {
    /// Path of the field, such as `spec.backoff.initial`.
    pub field: String,
    /// The broken rule, and what is accepted instead.
    pub problem: SpecProblem,
}

/// All problems of a spec, at least one, in the order of the fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors(pub(super) Vec<FieldError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let errors: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&errors.join("; "))
    }
}

impl std::error::Error for ConfigErrors {}
