//! How replicas of the operator agree on one of them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::duration::GoDuration;
use crate::api::rules;

/// Election of the replica that serves a driver. The replica that serves it holds the Lease external-attacher-leader-DRIVER in the
/// namespace of the operator's pod, and the Lease of the same name in each namespace below. The sidecar
/// kubernetes-csi/external-attacher uses the same name, so that it is excluded in each of these namespaces.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = rules::election_order()))]
pub struct LeaderElectionSpec {
    /// Ignored: there is always an election. It exists so that manifests that set it remain valid. Remove it before you go back
    /// to a version that reads it.
    pub enabled: bool,

    /// A further namespace whose Lease is held as well, as if sidecarNamespaces listed it.
    #[schemars(length(max = rules::NAMESPACE.max), extend("x-kubernetes-validations" = [rules::NAMESPACE.rule_or_empty()]))]
    pub namespace: String,

    /// Namespaces in which an attacher that serves this driver may hold a Lease, such as a sidecar that was not removed yet.
    /// The operator serves the driver while it holds the Lease of the same name in each of them. It needs the permission to
    /// get, list, watch, create and update Leases there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = rules::MAX_SIDECAR_NAMESPACES), extend(
        "items" = rules::NAMESPACE.item(),
        "x-kubernetes-list-type" = "set",
    ))]
    pub sidecar_namespaces: Vec<String>,

    /// How long other replicas wait after the last renewal before they acquire the Lease: whole seconds from 1s to 24h,
    /// such as 15s. After a crash no volume is attached for this time.
    #[schemars(extend("default" = "15s", "x-kubernetes-validations" = [rules::DURATION.rule(), rules::whole_seconds()]))]
    pub lease_duration: GoDuration,

    /// How long the leader continues without renewing the Lease before it stops; shorter than leaseDuration. Less than 200ms counts
    /// as 200ms.
    #[schemars(extend("default" = "10s", "x-kubernetes-validations" = [rules::DURATION.rule()]))]
    pub renew_deadline: GoDuration,

    /// Interval between attempts to acquire or renew the Lease; renewDeadline must be longer than 1.2 times this. Less than 100ms
    /// counts as 100ms.
    #[schemars(extend("default" = "2s", "x-kubernetes-validations" = [rules::DURATION.rule()]))]
    pub retry_period: GoDuration,
}

impl Default for LeaderElectionSpec {
    fn default() -> Self {
        Self {
            enabled: true,
            namespace: String::new(),
            sidecar_namespaces: Vec::new(),
            lease_duration: GoDuration::from_secs(15),
            renew_deadline: GoDuration::from_secs(10),
            retry_period: GoDuration::from_secs(2),
        }
    }
}
