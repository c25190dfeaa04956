//! What is told of one driver's work.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::rules;

/// Traces of one driver's attachments.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TracingSpec {
    /// How many of a million attachments are traced, from 0 to 1000000. Left out: what the operator's environment says
    /// (OTEL_TRACES_SAMPLER).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = rules::MILLION))]
    pub samples_per_million: Option<i64>,
}

/// The importance of log lines, the most important first.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
// What `kubectl explain` shows of a field that may be left out is the description of its type.
#[schemars(
    inline,
    description = "Least important lines of this driver that are logged. Left out: those that --log-level of the \
                   operator names. A change is used from the next line on."
)]
pub enum LogLevel {
    /// What must be looked at.
    Error,
    /// What may have to be looked at.
    Warn,
    /// What happens.
    Info,
    /// Why it happens.
    Debug,
    /// Everything.
    Trace,
}
