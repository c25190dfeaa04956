//! What an answer proves.
//!
//! Between an API server and its client there may be proxies and load balancers that answer by themselves: `404 page not
//! found` from one that lost its route, the answer to another request from one that mixes them up. So an object is gone
//! only when a `metav1.Status` of reason NotFound is about that very object, and an object is what was asked for only when
//! it carries its name.

use http::StatusCode;
use serde::Deserialize;

use super::error::{ApiError, ApiErrorKind};
use super::resource::Resource;
use crate::decide::plain;

/// The object that a request is about.
#[derive(Clone, Debug)]
pub(super) struct About {
    resource: Resource,
    namespace: Option<String>,
    /// None when the request makes an object, or asks a question.
    name: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct MetaStatusWire {
    kind: Option<String>,
    status: Option<String>,
    message: Option<String>,
    reason: Option<String>,
    details: Option<DetailsWire>,
    code: Option<u16>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct DetailsWire {
    name: Option<String>,
    group: Option<String>,
    kind: Option<String>,
}

/// What every object has.
#[derive(Deserialize)]
struct ObjectWire {
    kind: Option<String>,
    #[serde(default)]
    metadata: MetadataWire,
}

#[derive(Default, Deserialize)]
struct MetadataWire {
    name: Option<String>,
    namespace: Option<String>,
}

impl About {
    /// The object of a request to this path.
    pub fn new(resource: Resource, path: &str) -> Self {
        let part = |placeholder: &str| {
            let at = resource.path.split('/').position(|part| part == placeholder)?;
            path.split('/').nth(at).map(str::to_owned)
        };
        Self {
            resource,
            namespace: part("{:namespace}"),
            name: part("{:name}"),
        }
    }

    /// What the answer of a request that failed with this status means.
    pub fn refusal(&self, status: StatusCode, body: &[u8]) -> (ApiErrorKind, String) {
        let parsed: MetaStatusWire = serde_json::from_slice(body).unwrap_or_default();
        let kind = ApiErrorKind::of_status(status.as_u16());
        let words = parsed
            .message
            .as_deref()
            .filter(|message| !message.is_empty())
            .map(plain);
        let message = match &words {
            Some(words) => words.clone().into_owned(),
            None => format!("the API server answered {status}"),
        };
        if kind != ApiErrorKind::NotFound || self.name.is_none() || self.is_missing(&parsed) {
            return (kind, message);
        }
        let words = words.map(|words| format!(" ({words})")).unwrap_or_default();
        let message = format!(
            "the answer {status}{words} does not say that {self} is gone; check what is between the operator and the API server"
        );
        (ApiErrorKind::Unknown, message)
    }

    /// Whether a status says that this very object is not there.
    fn is_missing(&self, status: &MetaStatusWire) -> bool {
        let is = |value: &Option<String>, wanted: &str| value.as_deref().unwrap_or_default() == wanted;
        let Some(details) = &status.details else { return false };
        is(&status.kind, "Status")
            && is(&status.status, "Failure")
            && is(&status.reason, "NotFound")
            && status.code.is_none_or(|code| code == 404)
            && details.name == self.name
            && is(&details.kind, self.resource.plural())
            && is(&details.group, self.resource.group())
    }

    /// Refuses an object that is not the one that was asked for.
    pub fn check(&self, status: StatusCode, body: &[u8]) -> Result<(), ApiError> {
        let Some(name) = &self.name else { return Ok(()) };
        let found: ObjectWire = serde_json::from_slice(body).map_err(|error| unreadable(status, &error))?;
        let metadata = &found.metadata;
        let namespace_fits = metadata.namespace.is_none() || metadata.namespace == self.namespace;
        let kind_fits = found.kind.is_none_or(|kind| self.resource.kinds.contains(&&*kind));
        if metadata.name.as_ref() == Some(name) && namespace_fits && kind_fits {
            return Ok(());
        }
        let message = format!("the answer is not about {self}; check what is between the operator and the API server");
        Err(ApiError {
            status: Some(status.as_u16()),
            ..ApiError::garbled(message)
        })
    }
}

impl std::fmt::Display for About {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let plural = self.resource.plural();
        match (&self.namespace, &self.name) {
            (Some(namespace), Some(name)) => write!(formatter, "{plural} \"{namespace}/{name}\""),
            (None, Some(name)) => write!(formatter, "{plural} \"{name}\""),
            (_, None) => formatter.write_str(plural),
        }
    }
}

/// The error of a body that cannot be read never quotes it: it may be a Secret.
pub(super) fn unreadable(status: StatusCode, error: &serde_json::Error) -> ApiError {
    let message = format!(
        "cannot read the API server's answer (line {}, column {})",
        error.line(),
        error.column()
    );
    ApiError {
        status: Some(status.as_u16()),
        ..ApiError::garbled(message)
    }
}
