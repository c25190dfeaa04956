//! What can be wrong with a spec, in words that name the field and the mend.

use std::fmt;

use crate::api::malformed_spec::MalformedSpec;
use crate::api::rules;

/// One problem of a spec: where it is, what it is, how to mend it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct FieldError {
    /// Path of the field, such as `spec.backoff.initial`.
    pub field: String,
    /// The broken rule.
    pub problem: SpecProblem,
}

/// A broken rule. The message says what is accepted instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecProblem {
    /// Not the form of a CSI driver name.
    #[error("{}", rules::DRIVER_NAME_MESSAGE)]
    DriverName,
    /// Neither unix nor http.
    #[error("{}", rules::ENDPOINT_SCHEME_MESSAGE)]
    EndpointScheme,
    /// Not an absolute path of a socket.
    #[error("{}", rules::UNIX_PATH_MESSAGE)]
    UnixPath,
    /// More bytes than a socket address holds.
    #[error("{}", rules::UNIX_LENGTH_MESSAGE)]
    UnixPathTooLong,
    /// Not a loopback host with a port.
    #[error("{}", rules::HTTP_MESSAGE)]
    HttpEndpoint,
    /// Neither a host with a port nor an address with a port.
    #[error("{}", rules::HTTPS_MESSAGE)]
    HttpsEndpoint,
    /// Certificates for an endpoint that uses none.
    #[error("{}", rules::TLS_WITHOUT_HTTPS_MESSAGE)]
    TlsWithoutHttps,
    /// No certificates for an endpoint that needs them.
    #[error("{}", rules::TLS_MISSING_MESSAGE)]
    TlsMissing,
    /// Not the form of a namespace's name.
    #[error("{}", rules::NAMESPACE_MESSAGE)]
    Namespace,
    /// More than 8 namespaces, or one of them twice.
    #[error("{}", rules::SIDECAR_NAMESPACES_MESSAGE)]
    SidecarNamespaces,
    /// Not the form of a Secret's name.
    #[error("{}", rules::OBJECT_NAME_MESSAGE)]
    SecretName,
    /// More entries than there may be.
    #[error("{}", rules::PUBLISH_SECRETS_MESSAGE)]
    PublishSecrets,
    /// No name, or more than there may be.
    #[error("{}", rules::SECRET_NAMES_MESSAGE)]
    SecretNames,
    /// Neither a DNS name nor an address.
    #[error("{}", rules::SERVER_NAME_MESSAGE)]
    ServerName,
    /// Not from 1 ms to 24 h.
    #[error("{}", rules::DURATION_MESSAGE)]
    DurationRange,
    /// `backoff.initial` is greater than `backoff.max`.
    #[error("{}", rules::BACKOFF_ORDER_MESSAGE)]
    BackoffOrder,
    /// Not from 100 to 1000.
    #[error("{}", rules::FACTOR_MESSAGE)]
    Factor,
    /// Not from 0 to 100.
    #[error("{}", rules::JITTER_MESSAGE)]
    Jitter,
    /// Not from 0 to 10000.
    #[error("{}", rules::CALLS_MESSAGE)]
    Calls,
    /// Not from 0 to 1000000.
    #[error("{}", rules::ENTRIES_MESSAGE)]
    Entries,
    /// A fraction of a second, or less than one.
    #[error("{}", rules::WHOLE_SECONDS_MESSAGE)]
    WholeSeconds,
    /// `renewDeadline` is not less than `leaseDuration`.
    #[error("{}", rules::RENEW_DEADLINE_MESSAGE)]
    RenewDeadline,
    /// `renewDeadline` leaves no time for a second try.
    #[error("{}", rules::RETRY_PERIOD_MESSAGE)]
    RetryPeriod,
    /// Not from 0 to 1000000.
    #[error("{}", rules::SAMPLES_MESSAGE)]
    Samples,
    /// Not the key of an annotation with a trace context.
    #[error("{}", rules::TRACE_ANNOTATION_MESSAGE)]
    TraceAnnotation,
    /// More annotations than are looked at.
    #[error("{}", rules::ANNOTATIONS_MESSAGE)]
    Annotations,
    /// Not from 1 to 1000.
    #[error("{}", rules::ATTEMPTS_MESSAGE)]
    Attempts,
    /// Not from 1 m to 24 h.
    #[error("{}", rules::TRACE_AGE_MESSAGE)]
    TraceAge,
    /// Not the name of a file system.
    #[error("{}", rules::FS_TYPE_MESSAGE)]
    FsType,
    /// The value does not have the type of the field.
    #[error("{0}")]
    Malformed(String),
}

impl FieldError {
    pub(super) fn new(path_in_spec: &str, problem: SpecProblem) -> Self {
        Self {
            field: format!("spec.{path_in_spec}"),
            problem,
        }
    }
}

impl From<MalformedSpec> for FieldError {
    fn from(malformed: MalformedSpec) -> Self {
        Self {
            field: malformed.field,
            problem: SpecProblem::Malformed(malformed.reason),
        }
    }
}

/// All problems of a spec, at least one, in the order of the fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors {
    pub(super) errors: Vec<FieldError>,
}

impl ConfigErrors {
    /// The problems, at least one.
    pub fn errors(&self) -> &[FieldError] {
        &self.errors
    }
}

impl From<FieldError> for ConfigErrors {
    fn from(error: FieldError) -> Self {
        Self { errors: vec![error] }
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.errors.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}
