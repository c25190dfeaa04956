//! How one driver's attachments are traced.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::duration::GoDuration;
use crate::api::rules;

/// Traces of one driver's attachments. The environment of the operator sets where spans go, not an AttacherConfig.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TracingSpec {
    /// How many of a million attachments are traced, from 0 to 1000000. Omitted: the sampler of the operator's environment
    /// (OTEL_TRACES_SAMPLER).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = rules::MILLION))]
    pub sampling_rate_per_million: Option<i64>,

    /// Use of a trace context in the annotations of a VolumeAttachment or its PersistentVolume. Link: the trace is linked
    /// with it. Ignore: it is ignored.
    #[schemars(extend("default" = "Link"))]
    pub annotation_mode: AnnotationMode,

    /// Annotations that may contain a trace context (W3C traceparent); the spans of the attachment are linked to each of them. Each must end in
    /// `traceparent`.
    #[schemars(length(max = rules::MAX_ANNOTATIONS), extend(
        "default" = rules::TRACE_ANNOTATIONS,
        "items" = rules::TRACE_ANNOTATION.item(),
        "x-kubernetes-list-type" = "set",
    ))]
    pub annotations: Vec<String>,

    /// Set the annotation `attacher.csi.dev/traceparent` on VolumeAttachments. It costs no request of its own, except one when an
    /// attachment continues in a new trace.
    #[schemars(extend("default" = true))]
    pub outgoing_annotation: bool,

    /// Maximum number of attempts in one trace, from 1 to 1000. What needs more attempts continues in a new trace, linked with
    /// the previous one.
    #[schemars(range(min = 1, max = rules::MAX_ATTEMPTS))]
    pub max_attempts_per_trace: i64,

    /// Maximum duration of one trace, from 1m to 24h, such as 1h.
    #[schemars(extend("default" = "1h", "x-kubernetes-validations" = [rules::TRACE_AGE.rule()]))]
    pub max_trace_age: GoDuration,

    /// Redaction of volumes and objects in spans.
    pub redact: RedactSpec,

    /// Append the ID of the trace to errors on the VolumeAttachment, as in `[trace 0af7651916cd43dd8448eb211c80319c]`.
    #[schemars(extend("default" = false))]
    pub error_suffix: bool,
}

impl Default for TracingSpec {
    fn default() -> Self {
        Self {
            sampling_rate_per_million: None,
            annotation_mode: AnnotationMode::default(),
            annotations: rules::TRACE_ANNOTATIONS.map(str::to_owned).to_vec(),
            outgoing_annotation: true,
            max_attempts_per_trace: 50,
            max_trace_age: GoDuration::from_secs(60 * 60),
            redact: RedactSpec::default(),
            error_suffix: false,
        }
    }
}

/// What is done with a trace context that somebody put on an object.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[schemars(inline)]
pub enum AnnotationMode {
    /// Our trace is linked with it. `Parent`, which is no more, is read as this, so that an object that was stored with it
    /// is served.
    #[default]
    #[serde(alias = "Parent")]
    Link,
    /// The annotation is not read.
    Ignore,
}

/// Redaction of volumes and objects in the spans of one driver.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RedactSpec {
    /// Volume IDs: None: as they are. Hash: the first 16 hexadecimal digits of their SHA-256.
    #[serde(rename = "volumeID")]
    #[schemars(extend("default" = "None"))]
    pub volume_id: RedactionMode,

    /// Names of nodes, volumes, claims, namespaces and storage classes: None: as they are. Hash: the first 16 hexadecimal
    /// digits of their SHA-256.
    #[schemars(extend("default" = "None"))]
    pub names: RedactionMode,
}

/// How a text appears.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[schemars(inline)]
pub enum RedactionMode {
    /// The text appears as it is.
    #[default]
    None,
    /// The hash of the text appears.
    Hash,
}
