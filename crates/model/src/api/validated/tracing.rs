//! The checked settings of traces.

use std::num::NonZeroU32;
use std::time::Duration;

use super::checker::Checker;
use super::problem::SpecProblem;
use crate::api::attacher_config::{AnnotationMode, RedactionMode, TracingSpec};
use crate::api::duration::GoDuration;
use crate::api::rules;

/// How one driver's attachments are traced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tracing {
    /// Share of the attachments that is traced, in millionths from 0 to 1000000; `None` leaves it to the process.
    pub sampling_rate_per_million: Option<u32>,
    /// What is done with a trace context in annotations.
    pub annotation_mode: AnnotationMode,
    /// Keys that are looked at for one, each ending in `traceparent`.
    pub annotations: Vec<String>,
    /// Whether our own is put on VolumeAttachments.
    pub outgoing_annotation: bool,
    /// Most attempts in one trace.
    pub max_attempts: NonZeroU32,
    /// Longest time that one trace covers, from 1 m to 24 h.
    pub max_age: Duration,
    /// What is told by its hash.
    pub redact: Redact,
    /// Whether errors on VolumeAttachments end in the ID of the trace.
    pub error_suffix: bool,
}

/// What spans tell by a hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Redact {
    /// IDs of volumes.
    pub volume_id: bool,
    /// Names of nodes, volumes, claims, namespaces and storage classes.
    pub names: bool,
}

impl Default for Tracing {
    /// The defaults of the schema.
    fn default() -> Self {
        Checker::default().tracing(&TracingSpec::default())
    }
}

impl Checker {
    pub(super) fn tracing(&mut self, spec: &TracingSpec) -> Tracing {
        if spec.annotations.len() > rules::MAX_ANNOTATIONS {
            self.report("tracing.annotations", SpecProblem::Annotations);
        }
        for (index, key) in spec.annotations.iter().enumerate() {
            if !is_trace_annotation(key) {
                self.report(&format!("tracing.annotations[{index}]"), SpecProblem::TraceAnnotation);
            }
        }
        Tracing {
            sampling_rate_per_million: self.samples(spec.sampling_rate_per_million),
            annotation_mode: spec.annotation_mode,
            annotations: spec.annotations.clone(),
            outgoing_annotation: spec.outgoing_annotation,
            max_attempts: self.attempts(spec.max_attempts_per_trace),
            max_age: self.trace_age(spec.max_trace_age),
            redact: Redact {
                volume_id: spec.redact.volume_id == RedactionMode::Hash,
                names: spec.redact.names == RedactionMode::Hash,
            },
            error_suffix: spec.error_suffix,
        }
    }

    fn samples(&mut self, value: Option<i64>) -> Option<u32> {
        let value = value?;
        let share = u32::try_from(value).ok().filter(|_| value <= rules::MILLION);
        if share.is_none() {
            self.report("tracing.samplingRatePerMillion", SpecProblem::Samples);
        }
        share
    }

    fn attempts(&mut self, value: i64) -> NonZeroU32 {
        let attempts = u32::try_from(value).ok().filter(|_| value <= rules::MAX_ATTEMPTS);
        attempts.and_then(NonZeroU32::new).unwrap_or_else(|| {
            self.report("tracing.maxAttemptsPerTrace", SpecProblem::Attempts);
            NonZeroU32::MIN
        })
    }

    fn trace_age(&mut self, value: GoDuration) -> Duration {
        let in_range = |span: &Duration| (rules::MIN_TRACE_AGE..=rules::MAX_DURATION).contains(span);
        value.to_std().filter(in_range).unwrap_or_else(|| {
            self.report("tracing.maxTraceAge", SpecProblem::TraceAge);
            rules::MAX_DURATION
        })
    }
}

/// A key with or without a prefix whose name is `traceparent`, or ends in it after a point, a dash or an underscore.
fn is_trace_annotation(key: &str) -> bool {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let at_end = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let is_prefix = |prefix: &str| {
        let bytes = prefix.as_bytes();
        let inner = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'-');
        at_end(bytes.first()) && at_end(bytes.last()) && bytes.iter().all(inner)
    };
    let is_stem = |stem: &str| {
        let bytes = stem.as_bytes();
        let inner = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        bytes.is_empty()
            || bytes.len() > 1
                && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
                && matches!(bytes.last(), Some(b'.' | b'_' | b'-'))
                && bytes.iter().all(inner)
    };
    key.len() <= rules::MAX_ANNOTATION_KEY
        && prefix.is_none_or(is_prefix)
        && name.strip_suffix("traceparent").is_some_and(is_stem)
}
