//! What a request to the API server came to, as plain data.

use std::borrow::Cow;
use std::time::Duration;
use thiserror::Error;

use crate::objects::{Attachment, Volume};

/// An object as the API server returned it.
#[derive(Clone, Debug)]
pub enum Returned {
    /// A VolumeAttachment, whether it or its status was written.
    Attachment(Box<Attachment>),
    /// A PersistentVolume, whose status is never written.
    Volume(Box<Volume>),
}

/// A request that failed.
#[derive(Clone, Debug, Error, PartialEq, Eq, Hash)]
#[error("{message}")]
pub struct ApiError {
    /// What to make of it.
    pub kind: ApiErrorKind,
    /// The API server's own words, or what happened on the way.
    pub message: String,
    /// HTTP status, if there was an answer.
    pub status: Option<u16>,
    /// `Retry-After`, if the answer had one.
    pub retry_after: Option<Duration>,
}

/// Classes of failure that are treated differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ApiErrorKind {
    /// 404, with the API server's word that this very object is not there, or the namespace of one that is to be made.
    NotFound,
    /// 409 or 422 by a `metav1.Status`: we wrote from a stale copy, or the object was replaced. A 422 may also be a value that the API server
    /// never takes; who reads the object again and finds it unchanged knows.
    Stale,
    /// 401 or 403 by a `metav1.Status`.
    Forbidden,
    /// Another 4xx by a `metav1.Status`, or the 404 of a webhook: the API server will never take this.
    Refused,
    /// 429 or 5xx: the API server cannot take it now, or a webhook does not. After a 5xx the write may have happened
    /// ([`ApiError::may_have_happened`]).
    Unavailable,
    /// No answer in time, a broken connection, a 404 that is not the API server's word about the object, or a redirect or another 4xx that
    /// is not its word at all: the write may have happened.
    Unknown,
    /// An answer that cannot be read, or is not about the object: the write may have happened.
    Malformed,
    /// The API server took the write, and its answer does not show all that was written, as after a mutating webhook.
    NotKept,
}

/// What an answer 401 means, and what to do about it.
pub const NOT_AUTHENTICATED: &str =
    "the API server does not accept the credentials of the operator: check its ServiceAccount token or kubeconfig";

impl ApiErrorKind {
    /// Classifies an HTTP status by its number alone: a 404, and what counts as refused, may also be that of a proxy.
    pub fn of_status(status: u16) -> Self {
        match status {
            404 => Self::NotFound,
            409 | 422 => Self::Stale,
            401 | 403 => Self::Forbidden,
            429 | 500..=599 => Self::Unavailable,
            _ => Self::Refused,
        }
    }
}

impl ApiError {
    /// Whether the same request may succeed a moment later. So it is after a 401: the next one takes a new connection, which may lead to
    /// another API server, and reads token and certificate again.
    pub fn is_transient(&self) -> bool {
        use ApiErrorKind::{Malformed, Unavailable, Unknown};
        matches!(self.kind, Unavailable | Unknown | Malformed) || self.is_unauthenticated()
    }

    /// Whether the API server, or what is on the way to it, is out of order, or does not know us. It is not where a webhook refused the write,
    /// with whatever status, or could not be asked: that is another server, and others are written.
    pub fn is_out_of_order(&self) -> bool {
        self.is_transient() && !self.is_of_webhook() && !self.is_of_unreachable_webhook()
    }

    /// Whether a write may have happened though it was answered by this. Webhooks come before the storage, and who asks and how often is
    /// looked at before all.
    pub fn may_have_happened(&self) -> bool {
        let is_turned_away = self.status == Some(429) || self.is_unauthenticated();
        (self.is_out_of_order() && !is_turned_away) || self.kind == ApiErrorKind::NotKept
    }

    /// Whether the API server does not know who asks: no permission is missing for that. Webhooks and policies may deny with 401 as well
    /// (`reason: Unauthorized` of a ValidatingAdmissionPolicy).
    pub fn is_unauthenticated(&self) -> bool {
        self.kind == ApiErrorKind::Forbidden && self.status == Some(401) && !self.is_of_admission()
    }

    /// Whether the API server knows who asks and refuses it.
    pub fn is_forbidden(&self) -> bool {
        self.kind == ApiErrorKind::Forbidden && self.status == Some(403)
    }

    /// Whether the API server's authorizer refused it, so that a rule of RBAC is missing. Webhooks, policies and quotas answer 403 as well.
    pub fn is_of_authorizer(&self) -> bool {
        let words = ["forbidden: User \"", " cannot ", " resource \""];
        self.is_forbidden() && words.iter().all(|word| self.message.contains(word))
    }

    /// Whether an admission webhook refused the write. It speaks of this object, whatever the status, and not of what the API server has to
    /// do.
    pub fn is_of_webhook(&self) -> bool {
        self.message.contains("admission webhook \"") && self.message.contains(" denied the request")
    }

    /// Whether an admission policy refused the write. Without a reason of its own it answers 422, as the API server does to a write from a
    /// stale copy. A MutatingAdmissionPolicy is called `policy`. What something on the way says in such words is no refusal.
    fn is_of_policy(&self) -> bool {
        let names = ["ValidatingAdmissionPolicy '", "policy '"];
        let is_named = names.iter().any(|name| self.message.contains(name));
        is_named && self.message.contains(" denied request: ") && self.kind != ApiErrorKind::Unknown
    }

    /// Whether admission refused the write: a webhook, a policy, a quota or another plugin of the API server. No permission
    /// is missing for it.
    pub fn is_of_admission(&self) -> bool {
        self.is_of_webhook() || self.is_of_policy() || (self.is_forbidden() && !self.is_of_authorizer())
    }

    /// Whether the API server means its refusal, by its authorizer or by admission: the same write is refused until a person changes
    /// something.
    pub fn is_denied(&self) -> bool {
        self.is_of_authorizer() || self.is_of_admission()
    }

    /// Whether the API server refuses the request for good: it means it, or takes no such request. Made again as it is, it is refused again.
    pub fn is_refused(&self) -> bool {
        self.is_denied() || self.kind == ApiErrorKind::Refused
    }

    /// Whether the API server could not ask an admission webhook, so that it takes this write from nobody. It is in order itself: what the
    /// webhook is not asked about is written.
    fn is_of_unreachable_webhook(&self) -> bool {
        self.message.contains("failed calling webhook ")
    }

    /// The same, but meant, whatever its status says otherwise: a webhook's 404 is no word about the object; and a write is not refused as made
    /// from a stale copy where a read after it shows that same copy, as with an admission policy without a reason of its own.
    #[must_use]
    pub fn meant(self) -> Self {
        Self {
            kind: ApiErrorKind::Refused,
            ..self
        }
    }

    /// The value of the span attribute `error.type`: the HTTP status, if there was one.
    pub fn error_type(&self) -> Cow<'static, str> {
        match self.status {
            Some(status) => Cow::Owned(status.to_string()),
            None => Cow::Borrowed("_OTHER"),
        }
    }

    /// An answer that is none.
    pub fn garbled(message: impl Into<String>) -> Self {
        Self::without_answer(ApiErrorKind::Malformed, message)
    }

    /// An answer that does not show what was written.
    pub fn not_kept(message: impl Into<String>) -> Self {
        Self::without_answer(ApiErrorKind::NotKept, message)
    }

    /// What an answer with this status means by its number alone.
    pub fn of_answer(status: u16, message: impl Into<String>) -> Self {
        Self {
            status: Some(status),
            ..Self::without_answer(ApiErrorKind::of_status(status), message)
        }
    }

    /// A failure of this kind that no answer of the API server says.
    pub fn without_answer(kind: ApiErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            status: None,
            retry_after: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_missing_where_the_authorizer_says_so() {
        let error = ApiError::of_answer(
            403,
            "leases.coordination.k8s.io \"d\" is forbidden: User \"system:serviceaccount:csi:operator\" cannot update resource \
             \"leases\" in API group \"coordination.k8s.io\" in the namespace \"csi\"",
        );
        assert!(error.is_of_authorizer() && error.is_denied() && !error.is_of_admission());
        for (status, message) in [
            (
                403,
                "admission webhook \"a.test\" denied the request: User \"u\" cannot update resource \"leases\"",
            ),
            (400, "admission webhook \"a.test\" denied the request: no"),
            (
                403,
                "leases.coordination.k8s.io \"d\" is forbidden: exceeded quota: few, requested: count/leases=1, used: 3, limited: 3",
            ),
            (
                403,
                "leases.coordination.k8s.io \"d\" is forbidden: ValidatingAdmissionPolicy 'p' denied request: you cannot edit resource \"d\"",
            ),
            (
                422,
                "leases.coordination.k8s.io \"d\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: failed \
                 expression: false",
            ),
            (422, "policy 'p' with binding 'b' denied request: no such key: spec"),
            (
                401,
                "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: sign in first",
            ),
            (401, "admission webhook \"a.test\" denied the request: no"),
            (403, "403 Forbidden"),
        ] {
            let error = ApiError::of_answer(status, message);
            assert!(!error.is_of_authorizer(), "{message}");
            assert!(
                !error.is_unauthenticated() && !error.is_transient(),
                "{status} {message}"
            );
            assert!(
                error.is_of_admission() && error.is_denied() && error.is_refused(),
                "{message}"
            );
        }
        let refused =
            [400, 405, 413, 404, 409, 422, 401, 429, 503].map(|status| ApiError::of_answer(status, "no").is_refused());
        assert_eq!(refused, [true, true, true, false, false, false, false, false, false]);
    }

    /// What a webhook says comes before the storage, whatever its status.
    #[test]
    fn a_webhook_says_nothing_about_the_api_server() {
        let denied = "admission webhook \"a.test\" denied the request: no";
        let uncalled = "Internal error occurred: failed calling webhook \"a.test\": EOF";
        for (status, message, may_have_happened) in [
            (403, denied, false),
            (429, denied, false),
            (500, denied, false),
            (503, denied, false),
            (500, uncalled, false),
            (429, "too many requests", false),
            (401, "Unauthorized", false),
            (500, "etcdserver: request timed out", true),
            (504, "Timeout: request did not complete within requested timeout", true),
        ] {
            let error = ApiError::of_answer(status, message);
            assert_eq!(error.may_have_happened(), may_have_happened, "{status} {message}");
            let is_of_another = message == denied || message == uncalled;
            assert_eq!(error.is_out_of_order(), !is_of_another, "{status} {message}");
            assert_eq!(error.is_transient(), status != 403, "{status} {message}");
        }
        for unanswered in [ApiErrorKind::Unknown, ApiErrorKind::Malformed] {
            let error = ApiError::without_answer(unanswered, "no answer");
            assert!(error.is_out_of_order() && error.may_have_happened());
        }
    }

    /// What the number says counts by the API server's word alone.
    #[test]
    fn a_refusal_by_something_on_the_way_is_no_denial() {
        for message in [
            "the answer is 403 Forbidden; check what is between the operator and the API server",
            "the answer is 403 Forbidden (it is forbidden: User \"u\" cannot get resource \"leases\")",
            "the answer is 403 Forbidden (policy 'p' denied request: no)",
        ] {
            let error = ApiError {
                kind: ApiErrorKind::Unknown,
                ..ApiError::of_answer(403, message)
            };
            assert!(!error.is_forbidden() && !error.is_denied(), "{message}");
            assert!(error.is_transient() && error.may_have_happened(), "{message}");
        }
    }

    #[test]
    fn what_is_stale_or_invalid_or_cannot_be_written_now_is_not_denied() {
        for (status, message) in [
            (409, "the object has been modified"),
            (422, "Lease.coordination.k8s.io \"d\" is invalid: spec"),
            (401, "Unauthorized"),
            (500, "Internal error occurred: failed calling webhook \"a.test\": EOF"),
        ] {
            assert!(!ApiError::of_answer(status, message).is_denied(), "{message}");
        }
    }
}
