//! What is logged of one driver's work.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The importance of log lines, the most important first.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
// What `kubectl explain` shows of a field that may be left out is the description of its type.
#[schemars(
    inline,
    description = "Minimum level of the log lines of this driver. Omitted: the level of --log-level of the \
                   operator. A change applies from the next line on."
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
