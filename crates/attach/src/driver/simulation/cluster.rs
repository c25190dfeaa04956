//! The objects of the API server and their changes, in one order of resource versions.

use jiff::Timestamp;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

use crate::decide::Write;
use crate::decide::patch::{PatchType, WriteTarget};
use csi_attacher_testbed::api_answers::{self, apply, is_gone};

/// When a history begins.
const START: &str = "2026-01-01T00:00:00Z";
/// What a restore with greater revisions adds.
const BUMP: u64 = 1_000_000;

/// The kinds that are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Attachment,
    Volume,
    Node,
    Driver,
    Secret,
    Lease,
}

impl Kind {
    /// Where the objects are.
    pub fn path(self) -> &'static str {
        match self {
            Self::Attachment => "/apis/storage.k8s.io/v1/volumeattachments",
            Self::Volume => "/api/v1/persistentvolumes",
            Self::Node => "/apis/storage.k8s.io/v1/csinodes",
            Self::Driver => "/apis/storage.k8s.io/v1/csidrivers",
            Self::Secret => "/api/v1/namespaces/ns/secrets",
            Self::Lease => "/apis/coordination.k8s.io/v1/namespaces/ns/leases",
        }
    }
}

/// A change as a watch tells it.
#[derive(Clone, Debug)]
pub struct Change {
    pub kind: Kind,
    pub deleted: bool,
    pub at: Instant,
    pub version: u64,
    pub object: Arc<Value>,
}

/// What a write did.
#[derive(Clone, Debug)]
pub struct Written {
    pub before: Arc<Value>,
    pub after: Arc<Value>,
}

/// The API server went back to an older state.
#[derive(Clone, Copy, Debug)]
pub struct Restored {
    /// How many changes there were then.
    pub at: usize,
    pub since: Instant,
    /// Whether watches cannot be resumed.
    pub bumped: bool,
}

/// The objects.
#[derive(Default)]
pub struct Cluster {
    objects: BTreeMap<(Kind, String), Arc<Value>>,
    version: u64,
    /// All changes since the beginning; a watch remembers how far it has read.
    pub changes: Vec<Change>,
    /// All times that it went back.
    pub restores: Vec<Restored>,
    uids: u64,
}

impl Cluster {
    pub fn get(&self, kind: Kind, name: &str) -> Option<&Arc<Value>> {
        self.objects.get(&(kind, name.to_owned()))
    }

    pub fn all(&self, kind: Kind) -> impl Iterator<Item = &Arc<Value>> {
        self.objects
            .iter()
            .filter(move |((of, _), _)| *of == kind)
            .map(|(_, object)| object)
    }

    pub fn has(&self, kind: Kind, name: &str) -> bool {
        self.get(kind, name).is_some()
    }

    /// The version of everything.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Makes an object, unless there is one of that name.
    pub fn create(&mut self, kind: Kind, name: &str, mut object: Value) -> bool {
        if self.has(kind, name) {
            return false;
        }
        self.uids += 1;
        object["metadata"]["name"] = name.into();
        object["metadata"]["uid"] = format!("u{}", self.uids).into();
        object["metadata"]["creationTimestamp"] = self.second().to_string().into();
        self.put(kind, object);
        true
    }

    /// What the clock of the API server says, to the second.
    pub fn second(&self) -> Timestamp {
        let elapsed = self.changes.first().map_or(Duration::ZERO, |first| first.at.elapsed());
        let start: Timestamp = START.parse().unwrap_or(Timestamp::UNIX_EPOCH);
        start + Duration::from_secs(elapsed.as_secs())
    }

    /// Changes an object as its owner or a user does; it goes when it is deleted and nobody holds it.
    pub fn edit(&mut self, kind: Kind, name: &str, change: impl FnOnce(&mut Value)) -> bool {
        let Some(object) = self.get(kind, name) else {
            return false;
        };
        let mut edited = Value::clone(object);
        change(&mut edited);
        if edited["metadata"]["finalizers"] == json!([]) {
            edited["metadata"]
                .as_object_mut()
                .map(|metadata| metadata.remove("finalizers"));
        }
        self.put(kind, edited);
        true
    }

    /// Asks for the deletion of an object.
    pub fn delete(&mut self, kind: Kind, name: &str) -> bool {
        let deleting = |object: &Arc<Value>| !object["metadata"]["deletionTimestamp"].is_null();
        if self.get(kind, name).is_none_or(deleting) {
            return false;
        }
        self.edit(kind, name, |object| {
            object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        })
    }

    /// Carries out a write of an attacher: the HTTP status, the body, and what changed.
    pub fn write(&mut self, write: &Write) -> (u16, Value, Option<Written>) {
        let (kind, name) = match &write.target {
            WriteTarget::Volume(name) => (Kind::Volume, name),
            WriteTarget::Attachment(name) | WriteTarget::AttachmentStatus(name) => (Kind::Attachment, name),
        };
        let Some(before) = self.get(kind, name).cloned() else {
            return (404, not_found(kind, name), None);
        };
        let refused = if write.form == PatchType::Json { 422 } else { 409 };
        match apply(&before, write) {
            Err(error) => (refused, status(refused, kind, name, &error), None),
            Ok(patched) if patched == *before => (200, patched, None),
            Ok(patched) => {
                let after = self.put(kind, patched);
                (200, Value::clone(&after), Some(Written { before, after }))
            }
        }
    }

    /// Goes back to the state before so many changes. Leases stay as they are: what follows from a Lease
    /// that goes back is a matter of everybody who uses one. Answers the names of the objects that are others now.
    pub fn restore(&mut self, back: usize, bumped: bool) -> BTreeSet<String> {
        let end = self.changes.len().saturating_sub(back);
        let before = std::mem::take(&mut self.objects);
        let keep = |kind: Kind| kind == Kind::Lease;
        for change in &self.changes[..end] {
            let key = (change.kind, text(&change.object, "/metadata/name").to_owned());
            if change.deleted {
                self.objects.remove(&key);
            } else {
                self.objects.insert(key, change.object.clone());
            }
        }
        self.objects.retain(|(kind, _), _| !keep(*kind));
        let kept = before.iter().filter(|((kind, _), _)| keep(*kind));
        self.objects
            .extend(kept.map(|(key, object)| (key.clone(), object.clone())));
        let names = before.keys().chain(self.objects.keys());
        let changed = names.filter(|key| before.get(*key) != self.objects.get(*key));
        let changed = changed.map(|(_, name)| name.clone()).collect();
        self.version = match bumped {
            true => self.version + BUMP,
            false => end.checked_sub(1).map_or(0, |last| self.changes[last].version),
        };
        self.restores.push(Restored {
            at: self.changes.len(),
            since: Instant::now(),
            bumped,
        });
        changed
    }

    pub fn put(&mut self, kind: Kind, mut object: Value) -> Arc<Value> {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let key = (kind, text(&object, "/metadata/name").to_owned());
        let deleted = is_gone(&object);
        let object = Arc::new(object);
        if deleted {
            self.objects.remove(&key);
        } else {
            self.objects.insert(key, object.clone());
        }
        self.changes.push(Change {
            kind,
            deleted,
            at: Instant::now(),
            version: self.version,
            object: object.clone(),
        });
        object
    }
}

/// A `metav1.Status` about an object.
pub fn status(code: u16, kind: Kind, name: &str, message: &str) -> Value {
    let reason = match code {
        403 => "Forbidden",
        409 => "Conflict",
        410 => "Expired",
        422 => "Invalid",
        429 => "TooManyRequests",
        503 => "ServiceUnavailable",
        _ => "InternalError",
    };
    let mut status = not_found(kind, name);
    (status["code"], status["reason"]) = (code.into(), reason.into());
    status["message"] = message.into();
    status
}

pub fn not_found(kind: Kind, name: &str) -> Value {
    api_answers::not_found(&format!("{}/{name}", kind.path()))
}

/// A text inside an object; empty when there is none.
pub fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The finalizers of an object.
pub fn finalizers(object: &Value) -> impl Iterator<Item = &str> {
    let list = object["metadata"]["finalizers"].as_array();
    list.into_iter().flatten().filter_map(Value::as_str)
}

pub fn is_deleting(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}
