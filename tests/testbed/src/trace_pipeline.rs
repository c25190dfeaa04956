//! A trace pipeline as the operator has it, without the logs, which are global to the process.
//!
//! Not a part of the test bed, which the tests of telemetry use too, and which knows nothing of it: tests include this file by its path.

use csi_attacher_telemetry::{TelemetryGuard, Tracer, otel_env, start};

/// What these variables of the environment make.
pub fn pipeline(variables: &[(&str, &str)]) -> (Tracer, TelemetryGuard) {
    let pairs = variables
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let (tracer, _metrics, guard) = start(&otel_env::parse(&pairs.collect(), "0").settings);
    (tracer, guard)
}
