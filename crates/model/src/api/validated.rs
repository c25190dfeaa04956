//! [`DriverConfig`]: the settings of one driver in a form that cannot hold a bad value.
//!
//! The rules are those of the schema (see `rules.rs`), checked again because the schema can be bypassed. All problems
//! of a spec are reported together, so that one edit can mend them.

mod check;
mod checker;
mod problem;
mod publish_secrets;
mod tracing;

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

pub use super::attacher_config::TlsSecretReference;
use super::attacher_config::{DeletionPolicy, OrphanPolicy};
pub use super::endpoint::{Endpoint, LoopbackHost};
pub use checker::is_driver_name;
pub use problem::{ConfigErrors, FieldError, SpecProblem};
pub use publish_secrets::{PublishSecrets, SecretNames};
pub use tracing::{Redact, Tracing};

/// The checked settings of one driver.
#[derive(Clone, Debug, PartialEq)]
pub struct DriverConfig {
    /// The name that the driver must answer; `None` accepts any.
    pub driver_name: Option<String>,
    /// Where the driver listens.
    pub endpoint: Endpoint,
    /// The certificates of the connection; `Some` exactly when the endpoint is https.
    pub tls: Option<TlsSettings>,
    /// Whether to do nothing for this driver.
    pub suspend: bool,
    /// Deadlines of calls.
    pub timeouts: Timeouts,
    /// Waiting time after failures.
    pub backoff: BackoffSettings,
    /// Limits of calls.
    pub concurrency: Concurrency,
    /// Comparison with what the driver lists.
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
    /// What happens when the AttacherConfig is deleted while volumes are attached.
    pub deletion_policy: DeletionPolicy,
    /// Traces of the driver's attachments.
    pub tracing: Tracing,
    /// What becomes of a driver that does not announce PUBLISH_UNPUBLISH_VOLUME any more while volumes may be attached. It is no
    /// field of the spec.
    pub capability_lost: CapabilityLost,
    /// Whether the AttacherConfig is being deleted, so that nothing new is attached. It is no field of the spec.
    pub leaving: bool,
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

/// The certificates of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsSettings {
    /// Where they are.
    pub secret: TlsSecretReference,
    /// The name that the driver's certificate must be for; `None` is the host of the endpoint.
    pub server_name: Option<String>,
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
    /// Whether there is an election at all.
    pub enabled: bool,
    /// Namespace of the Lease; empty is that of the pod.
    pub namespace: String,
    /// Other namespaces in which an attacher of the driver may hold a Lease.
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
pub struct Timeouts {
    /// ControllerPublishVolume.
    pub publish: Duration,
    /// ControllerUnpublishVolume.
    pub unpublish: Duration,
    /// ListVolumes, each page.
    pub list_volumes: Duration,
    /// Probe.
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
