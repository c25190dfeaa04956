//! A trace pipeline as the operator has it, without the logs, which are global to the process.

use csi_attacher_telemetry::{TelemetryGuard, Tracer, otel_env, start};

/// What these variables of the environment make.
pub fn pipeline(variables: &[(&str, &str)]) -> (Tracer, TelemetryGuard) {
    let pairs = variables
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let (tracer, _metrics, guard) = start(&otel_env::parse(&pairs.collect(), "0").settings);
    (tracer, guard)
}
