//! How replicas of the operator agree on one of them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::duration::GoDuration;
use crate::api::rules;

/// Election of the replica that serves a driver. It uses the Lease external-attacher-leader-DRIVER, the same as the
/// sidecar kubernetes-csi/external-attacher, so that the two are never active at the same time.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = rules::election_order()))]
pub struct LeaderElectionSpec {
    /// Set it to false only if there is one replica and no sidecar for the driver: otherwise two of them can be active at
    /// the same time.
    pub enabled: bool,

    /// Namespace of the Lease. Empty: the namespace of the operator's pod. A sidecar must use the same one to be excluded.
    #[schemars(length(max = rules::NAMESPACE.max), extend("x-kubernetes-validations" = [rules::NAMESPACE.rule_or_empty()]))]
    pub namespace: String,

    /// Other namespaces in which an attacher that serves this driver may hold a Lease, such as a sidecar that was not removed
    /// yet. The operator serves the driver once no Lease of the same name there is renewed any more; it takes none of them.
    /// It needs the permission to get, list and watch them.
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

    /// How long the leader continues without renewing the Lease before it stops; shorter than leaseDuration.
    #[schemars(extend("default" = "10s", "x-kubernetes-validations" = [rules::DURATION.rule()]))]
    pub renew_deadline: GoDuration,

    /// Interval between attempts to acquire or renew the Lease; renewDeadline must be longer than 1.2 times this.
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
