//! How a driver is called: deadlines, waiting times after failures, limits.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::duration::GoDuration;
use crate::api::rules;

/// Deadlines of the calls to a driver, each from 1ms to 24h.
// The defaults of durations are given a second time as text, because Go's form of 60s would read 1m0s. A test compares.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TimeoutsSpec {
    /// Deadline of one ControllerPublishVolume call, from 1ms to 24h, such as 60s.
    #[schemars(extend("default" = "60s", "x-kubernetes-validations" = [rules::DURATION.rule()]))]
    pub publish: GoDuration,

    /// Deadline of one ControllerUnpublishVolume call, from 1ms to 24h, such as 60s.
    #[schemars(extend("default" = "60s", "x-kubernetes-validations" = [rules::DURATION.rule()]))]
    pub unpublish: GoDuration,

    /// Deadline of one ListVolumes call, that is of one page, from 1ms to 24h, such as 60s.
    #[schemars(extend("default" = "60s", "x-kubernetes-validations" = [rules::DURATION.rule()]))]
    pub list_volumes: GoDuration,

    /// Deadline of one Probe call, from 1ms to 24h, such as 15s.
    #[schemars(extend("default" = "15s", "x-kubernetes-validations" = [rules::DURATION.rule()]))]
    pub probe: GoDuration,

    /// Deadline of each of the calls that ask what the driver is and can do (GetPluginInfo, GetPluginCapabilities,
    /// ControllerGetCapabilities), from 1ms to 24h, such as 10s.
    #[schemars(extend("default" = "10s", "x-kubernetes-validations" = [rules::DURATION.rule()]))]
    pub identity: GoDuration,
}

impl Default for TimeoutsSpec {
    fn default() -> Self {
        Self {
            publish: GoDuration::from_secs(60),
            unpublish: GoDuration::from_secs(60),
            list_volumes: GoDuration::from_secs(60),
            probe: GoDuration::from_secs(15),
            identity: GoDuration::from_secs(10),
        }
    }
}

/// Waiting time after failures: `initial`, then `factorPercent` of the previous one after each further failure, up to `max`.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = [rules::backoff_order()]))]
pub struct BackoffSpec {
    /// Wait after the first failure, from 1ms to 24h; not longer than max.
    #[schemars(extend("default" = "1s", "x-kubernetes-validations" = [rules::DURATION.rule()]))]
    pub initial: GoDuration,

    /// Maximum wait, from 1ms to 24h.
    #[schemars(extend("default" = "1m", "x-kubernetes-validations" = [rules::DURATION.rule()]))]
    pub max: GoDuration,

    /// Length of each wait in percent of the previous one, from 100 (always the same) to 1000; 200 doubles it.
    #[schemars(range(min = 100, max = 1000))]
    pub factor_percent: i64,

    /// Each wait is extended by a random share of up to this many percent, from 0 to 100, so that many failures are not
    /// retried at the same moment.
    #[schemars(range(min = 0, max = 100))]
    pub jitter_percent: i64,
}

impl Default for BackoffSpec {
    fn default() -> Self {
        Self {
            initial: GoDuration::from_secs(1),
            max: GoDuration::from_secs(60),
            factor_percent: 200,
            jitter_percent: 10,
        }
    }
}

/// Limits of the calls to a driver; 0 means no limit of that kind.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConcurrencySpec {
    /// Maximum number of ControllerPublishVolume calls in flight, from 1 to 10000; 0 means no limit.
    #[schemars(range(min = 0, max = rules::MAX_CALLS))]
    pub attach: i64,

    /// Maximum number of ControllerUnpublishVolume calls in flight, from 1 to 10000; 0 means no limit. Attaches and
    /// detaches have separate lanes, so a burst of one never delays the other.
    #[schemars(range(min = 0, max = rules::MAX_CALLS))]
    pub detach: i64,

    /// Maximum number of calls in flight for one node, attaches and detaches together, from 1 to 10000; 0 means no limit.
    #[schemars(range(min = 0, max = rules::MAX_CALLS))]
    pub per_node: i64,

    /// Maximum number of attaches and detaches together that are started in one second and make a call, from 1 to
    /// 10000; 0 means no limit. A call follows the writes before it, so more of them may come at once after a pause of
    /// the API server.
    #[schemars(range(min = 0, max = rules::MAX_CALLS))]
    pub calls_per_second: i64,
}

impl Default for ConcurrencySpec {
    fn default() -> Self {
        Self {
            attach: 100,
            detach: 100,
            per_node: 0,
            calls_per_second: 0,
        }
    }
}

/// Limit of the requests to the API server for one driver.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KubernetesApiSpec {
    /// Maximum number of requests in one second, on average, from 1 to 10000; 0 means no limit.
    #[schemars(range(min = 0, max = rules::MAX_CALLS))]
    pub qps: i64,

    /// Maximum burst of requests after a pause, from 1 to 10000; 0 means as many as qps. It has no effect while qps is 0.
    #[schemars(range(min = 0, max = rules::MAX_CALLS))]
    pub burst: i64,
}
