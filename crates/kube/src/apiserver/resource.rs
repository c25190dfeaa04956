//! The kinds of objects that requests are about, and their paths.

use super::error::{ApiError, ApiErrorKind};
use crate::objects::SecretReference;

/// A kind of request: what it is about, and where.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resource {
    pub name: &'static str,
    pub path: &'static str,
    /// Kinds of what is answered.
    pub kinds: &'static [&'static str],
}

impl Resource {
    /// The plural name without a subresource.
    pub fn plural(self) -> &'static str {
        self.name.split('/').next().unwrap_or_default()
    }

    /// The API group; empty for the core group.
    pub fn group(self) -> &'static str {
        let group = self.path.strip_prefix("/apis/").and_then(|rest| rest.split('/').next());
        group.unwrap_or_default()
    }

    pub fn url(self, name: &str) -> String {
        self.path.replace("{:name}", name)
    }

    /// Unlike the names of objects, a reference is free text; it must not lead to another object than a Secret.
    pub fn url_of_secret(self, reference: &SecretReference) -> Result<String, ApiError> {
        if !(is_segment(&reference.namespace) && is_segment(&reference.name)) {
            let message = "the reference is not the namespace and name of a Secret";
            return Err(ApiError::without_answer(ApiErrorKind::Refused, message));
        }
        Ok(self.url(&reference.name).replace("{:namespace}", &reference.namespace))
    }
}

pub(super) const VOLUMES: Resource = Resource {
    name: "persistentvolumes",
    path: "/api/v1/persistentvolumes/{:name}",
    kinds: &["PersistentVolume"],
};
pub(super) const ATTACHMENTS: Resource = Resource {
    name: "volumeattachments",
    path: "/apis/storage.k8s.io/v1/volumeattachments/{:name}",
    kinds: &["VolumeAttachment"],
};
pub(super) const ATTACHMENT_STATUS: Resource = Resource {
    name: "volumeattachments/status",
    path: "/apis/storage.k8s.io/v1/volumeattachments/{:name}/status",
    kinds: &["VolumeAttachment"],
};
pub(super) const NODES: Resource = Resource {
    name: "csinodes",
    path: "/apis/storage.k8s.io/v1/csinodes/{:name}",
    kinds: &["CSINode"],
};
pub(super) const SECRETS: Resource = Resource {
    name: "secrets",
    path: "/api/v1/namespaces/{:namespace}/secrets/{:name}",
    kinds: &["Secret", "PartialObjectMetadata"],
};

/// Whether a text can be the name of a Secret or namespace (RFC 1123 subdomain), hence one segment of a path.
pub(super) fn is_segment(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.';
    !name.is_empty() && name.bytes().all(allowed) && name != "." && name != ".."
}
