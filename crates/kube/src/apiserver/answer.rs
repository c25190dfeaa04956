//! What an answer proves.
//!
//! Between an API server and its client there may be proxies and load balancers that answer by themselves: `404 page not
//! found` from one that lost its route, the answer to another request from one that mixes them up. So an object is gone
//! only when a `metav1.Status` of reason NotFound is about that very object, the API server will never take a write only when
//! a `metav1.Status` says so, and an object is what was asked for only when it carries its name. Nor does a webhook speak for
//! the API server: it denies with any status that it likes.

use std::borrow::Cow;
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use k8s_openapi::api::core::v1::Namespace;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use super::flow::slots::SlotKind;
use super::refusal::foreign;
use crate::decide::plain;
use crate::kinds::Kind;
use crate::objects::SecretReference;
use csi_attacher_model::answer::{ApiError, ApiErrorKind};

/// What is written as `%` and digits in a segment of a path: all but the unreserved characters of RFC 3986.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// What a request names: an object or, to make objects, all of a kind.
#[derive(Clone, Copy, Debug)]
pub struct ObjectName<'n> {
    namespace: Option<&'n str>,
    name: Option<&'n str>,
    /// With its slash; empty for none.
    subresource: &'static str,
}

/// What a request is about.
#[derive(Debug)]
pub(super) struct About<'n> {
    names: ObjectName<'n>,
    plural: &'static str,
    kind: Cow<'static, str>,
    group: Cow<'static, str>,
    path: fn(ObjectName<'_>) -> String,
    /// Whether only the metadata is asked for.
    pub is_of_metadata: bool,
    /// Whether a `metav1.Status` may be the answer, which says that the object is gone.
    pub may_be_status: bool,
    /// Whether the API server may not serve the kind, which it says by a 404 without a `metav1.Status`.
    pub may_be_unserved: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct MetaStatusWire {
    pub kind: Option<String>,
    status: Option<String>,
    message: Option<String>,
    reason: Option<String>,
    details: Option<DetailsWire>,
    pub code: Option<u16>,
}

impl MetaStatusWire {
    /// What it says in words; nothing of what is no object.
    pub fn words(&self) -> Option<&str> {
        self.message.as_deref().filter(|message| !message.is_empty())
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct DetailsWire {
    name: Option<String>,
    group: Option<String>,
    kind: Option<String>,
}

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

impl<'n> ObjectName<'n> {
    /// All objects of a kind, in this namespace if it has namespaces.
    pub fn all_in(namespace: Option<&'n str>) -> Self {
        Self {
            namespace,
            name: None,
            subresource: "",
        }
    }

    /// The Events in a namespace, as a part of it.
    pub fn events_of(namespace: &'n str) -> Self {
        Self {
            subresource: "/events",
            ..namespace.into()
        }
    }

    /// The subresource `status` of an object without a namespace.
    pub fn status_of(name: &'n str) -> Self {
        Self {
            subresource: "/status",
            ..name.into()
        }
    }
}

impl<'n> From<&'n str> for ObjectName<'n> {
    fn from(name: &'n str) -> Self {
        Self {
            name: Some(name),
            ..Self::all_in(None)
        }
    }
}

impl<'n> From<(&'n str, &'n str)> for ObjectName<'n> {
    fn from((namespace, name): (&'n str, &'n str)) -> Self {
        Self {
            name: Some(name),
            ..Self::all_in(Some(namespace))
        }
    }
}

impl<'n> From<&'n SecretReference> for ObjectName<'n> {
    fn from(reference: &'n SecretReference) -> Self {
        (&*reference.namespace, &*reference.name).into()
    }
}

fn path<K: Kind>(names: ObjectName<'_>) -> String {
    let name = names.name.map(|name| format!("/{name}")).unwrap_or_default();
    format!("{}{name}{}", K::url_path(&(), names.namespace), names.subresource)
}

impl<'n> About<'n> {
    /// A name may be free text, as in a reference to a Secret: one that could lead to another object is refused.
    pub fn new<K: Kind>(names: impl Into<ObjectName<'n>>) -> Result<Self, ApiError> {
        let names = names.into();
        let about = Self {
            names,
            plural: K::PLURAL,
            kind: K::kind(&()),
            group: K::group(&()),
            path: path::<K>,
            is_of_metadata: false,
            may_be_status: false,
            may_be_unserved: false,
        };
        if names.namespace.iter().chain(&names.name).all(|part| is_segment(part)) {
            return Ok(about);
        }
        let message = format!("{about} cannot be the name of an object");
        Err(ApiError::without_answer(ApiErrorKind::Refused, message))
    }

    /// The path of the request.
    pub fn path(&self) -> String {
        let (namespace, name) = (self.names.namespace.map(encoded), self.names.name.map(encoded));
        (self.path)(ObjectName {
            namespace: namespace.as_deref(),
            name: name.as_deref(),
            subresource: self.names.subresource,
        })
    }

    /// The same for all objects of the kind, as OpenTelemetry has it.
    pub fn path_template(&self) -> String {
        (self.path)(ObjectName {
            namespace: self.names.namespace.map(|_| "{:namespace}"),
            name: self.names.name.map(|_| "{:name}"),
            ..self.names
        })
    }

    /// The plural name, with the subresource.
    pub fn resource(&self) -> String {
        format!("{}{}", self.plural, self.names.subresource)
    }

    /// The requests that share a line for slots with this one.
    pub fn slot_kind(&self, is_write: bool) -> SlotKind {
        SlotKind {
            plural: self.plural,
            subresource: self.names.subresource,
            is_write,
        }
    }

    /// What the answer of a request that failed with this status means. Only here a 404 becomes [`ApiErrorKind::NotFound`]. What else no
    /// server takes, a redirect among it, or what this client may not do or wrote from a stale copy, counts only as the API server's word,
    /// too: webhooks and policies speak by its Status.
    pub fn classify_failure(&self, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> ApiError {
        let parsed: MetaStatusWire = serde_json::from_slice(body).unwrap_or_default();
        let words = parsed.words().map(plain);
        let message = match &words {
            Some(words) => words.clone().into_owned(),
            None => wordless(status),
        };
        let error = ApiError::of_answer(status.as_u16(), message);
        let is_refused = matches!(
            error.kind,
            ApiErrorKind::Refused | ApiErrorKind::Forbidden | ApiErrorKind::Stale
        );
        if is_refused && parsed.kind.as_deref() != Some("Status") {
            return ApiError {
                kind: ApiErrorKind::Unknown,
                message: foreign(status, headers, words.as_deref()),
                ..error
            };
        }
        if error.kind != ApiErrorKind::NotFound {
            return error;
        }
        // The rest of such a status is the webhook's as well, and may be that of an object which it did not find.
        if error.is_of_webhook() {
            return error.meant();
        }
        if self.may_be_unserved || self.says_it_is_gone(&parsed) {
            return error;
        }
        let words = words.map(|words| format!(" ({words})")).unwrap_or_default();
        let unsaid = match self.names.name {
            Some(_) => format!("does not say that {self} is gone"),
            None => format!("does not say why no {self} can be made"),
        };
        let message =
            format!("the answer {status}{words} {unsaid}; check what is between the operator and the API server");
        ApiError {
            kind: ApiErrorKind::Unknown,
            message,
            ..error
        }
    }

    /// Whether a status says that what the request needs is not there: this very object or, to make one, its namespace. What has no namespace
    /// needs nothing.
    fn says_it_is_gone(&self, status: &MetaStatusWire) -> bool {
        let is = |value: &Option<String>, wanted: &str| value.as_deref().unwrap_or_default() == wanted;
        let (name, plural, group) = match (self.names.name, self.names.namespace) {
            (Some(name), _) => (name, self.plural, &*self.group),
            (None, Some(namespace)) => (namespace, Namespace::PLURAL, ""),
            (None, None) => return false,
        };
        let Some(details) = &status.details else { return false };
        is(&status.kind, "Status")
            && is(&status.status, "Failure")
            && is(&status.reason, "NotFound")
            && status.code.is_none_or(|code| code == 404)
            && is(&details.name, name)
            && is(&details.kind, plural)
            && is(&details.group, group)
    }

    /// Whether a status says that this very object was deleted.
    fn says_object_was_deleted(&self, body: &[u8]) -> bool {
        let status: MetaStatusWire = serde_json::from_slice(body).unwrap_or_default();
        let details = status.details.unwrap_or_default();
        status.status.as_deref() == Some("Success")
            && details.name.as_deref() == self.names.name
            && details.kind.as_deref() == Some(self.plural)
    }

    /// Refuses an object that is not the one that was asked for.
    pub fn check(&self, status: StatusCode, body: &[u8]) -> Result<(), ApiError> {
        let Some(name) = self.names.name else { return Ok(()) };
        let found: ObjectWire = serde_json::from_slice(body).map_err(|error| unreadable(status, &error))?;
        if self.may_be_status && found.kind.as_deref() == Some("Status") && self.says_object_was_deleted(body) {
            return Ok(());
        }
        let metadata = &found.metadata;
        let namespace_fits = metadata.namespace.is_none() || metadata.namespace.as_deref() == self.names.namespace;
        let kind_fits = |kind: &str| kind == self.kind || (self.is_of_metadata && kind == "PartialObjectMetadata");
        let kind_fits = found.kind.as_deref().is_none_or(kind_fits);
        if metadata.name.as_deref() == Some(name) && namespace_fits && kind_fits {
            return Ok(());
        }
        let message = format!("the answer is not about {self}; check what is between the operator and the API server");
        Err(garbled(status, message))
    }
}

impl std::fmt::Display for About<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let plural = self.plural;
        match (self.names.namespace, self.names.name) {
            (Some(namespace), Some(name)) => write!(formatter, "{plural} \"{namespace}/{name}\""),
            (None, Some(name)) => write!(formatter, "{plural} \"{name}\""),
            (_, None) => formatter.write_str(plural),
        }
    }
}

/// A text as a segment of a path, or as a value of a query.
pub(super) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, ENCODED).to_string()
}

/// That an answer says nothing but its status.
pub(super) fn wordless(status: StatusCode) -> String {
    format!("the API server answered {status}")
}

/// That nothing came within this time.
pub(super) fn unanswered(limit: Duration) -> String {
    format!("no answer from the API server within {} s", limit.as_secs_f32())
}

/// The error of a body that cannot be read never quotes it: it may be a Secret.
pub(super) fn unreadable(status: StatusCode, error: &serde_json::Error) -> ApiError {
    let message = format!(
        "cannot read the API server's answer (line {}, column {})",
        error.line(),
        error.column()
    );
    garbled(status, message)
}

fn garbled(status: StatusCode, message: String) -> ApiError {
    ApiError {
        status: Some(status.as_u16()),
        ..ApiError::garbled(message)
    }
}

/// Whether the API server takes a text for one segment of a path: the rule of `ValidatePathSegmentName` in apimachinery. Kinds have
/// rules of their own for names, with capitals for some.
fn is_segment(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '%'])
}
