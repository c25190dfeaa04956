//! Metadata of objects whose annotations are read by key, with a bound on what of them is kept.
//!
//! Whoever may write a PersistentVolumeClaim may put 256 KiB of annotations on it, and an old API server more. The annotations that are
//! read are kept as far as each is short; the others as far as there is room, since a template of a StorageClass may name any of them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::borrow::Cow;
use std::collections::BTreeMap;

use super::in_tree::MIGRATED_TO_ANNOTATION;
use super::meta::{KeyFilter, MAX_VOLUME_FIELD, kept_size};
use crate::api::names::{
    BETA_STORAGE_CLASS_ANNOTATION, BETA_STORAGE_PROVISIONER_ANNOTATION, BIND_COMPLETED_ANNOTATION, PROVISIONING_MARKER,
    RELEASE_ANNOTATION, RELEASE_REFUSED_ANNOTATION, RETRY_NOW_ANNOTATION, SELECTED_NODE_ANNOTATION,
    STORAGE_PROVISIONER_ANNOTATION,
};

/// Longest value of an annotation that is read, in bytes. What is longer counts as absent.
pub const MAX_ANNOTATION_VALUE: usize = 8 << 10;
/// As [`MAX_ANNOTATION_VALUE`], of the marker of provisioning. It records the topology of a node, and some drivers register every label of
/// the node as a key. Of the labels up to [`MAX_VOLUME_FIELD`] is kept, and as text they are shorter than as they are counted there.
pub const MAX_MARKER: usize = MAX_VOLUME_FIELD;
/// How much of the other annotations of an object is kept, in bytes of memory.
pub const MAX_OTHER_ANNOTATIONS: usize = 16 << 10;

/// Under this key, which no object can have, stands how many annotations were left out.
const LEFT_OUT: &str = "";
/// Under this one nothing stands: it says that the marker is one of them.
const MARKER_LEFT_OUT: &str = " ";

/// Keeps the annotations that are read, each as far as it is short, and the others as far as there is room.
#[derive(Default)]
pub(super) struct BoundedAnnotations {
    /// How much of the others is kept.
    others: usize,
    left_out: usize,
    marker_left_out: bool,
}

/// The annotations of a PersistentVolumeClaim that are read by their key, but for the marker.
const READ: [&str; 9] = [
    STORAGE_PROVISIONER_ANNOTATION,
    BETA_STORAGE_PROVISIONER_ANNOTATION,
    BETA_STORAGE_CLASS_ANNOTATION,
    SELECTED_NODE_ANNOTATION,
    BIND_COMPLETED_ANNOTATION,
    MIGRATED_TO_ANNOTATION,
    RETRY_NOW_ANNOTATION,
    RELEASE_ANNOTATION,
    RELEASE_REFUSED_ANNOTATION,
];

impl KeyFilter for BoundedAnnotations {
    fn keep<'v>(&mut self, key: &str, value: Cow<'v, str>) -> Option<Cow<'v, str>> {
        let is_marker = key == PROVISIONING_MARKER;
        let fits = if is_marker {
            value.len() <= MAX_MARKER
        } else if READ.contains(&key) {
            value.len() <= MAX_ANNOTATION_VALUE
        } else {
            let size = self
                .others
                .saturating_add(kept_size([key.len().saturating_add(value.len())]));
            let fits = size <= MAX_OTHER_ANNOTATIONS;
            if fits {
                self.others = size;
            }
            fits
        };
        self.left_out += usize::from(!fits);
        self.marker_left_out |= is_marker && !fits;
        // That this one is there decides, and not what it says.
        let is_told = key == BIND_COMPLETED_ANNOTATION;
        fits.then_some(value).or_else(|| is_told.then(Cow::default))
    }

    fn end(self, kept: &mut BTreeMap<String, String>) {
        if self.left_out > 0 {
            kept.insert(LEFT_OUT.to_owned(), self.left_out.to_string());
        }
        if self.marker_left_out {
            kept.insert(MARKER_LEFT_OUT.to_owned(), String::new());
        }
    }
}

/// The annotations of an object that were kept.
pub(super) struct KeptAnnotations {
    /// Those that were not taken.
    pub entries: BTreeMap<String, String>,
    /// Whether the object has any annotation: a JSON patch can add to a map only where there is one.
    pub present: bool,
    /// How many were left out.
    pub left_out: usize,
    /// Whether the marker is one of them.
    pub marker_left_out: bool,
}

impl KeptAnnotations {
    /// Takes them out of metadata that was read with [`BoundedAnnotations`].
    pub fn take(meta: &mut ObjectMeta) -> Self {
        let present = meta.annotations.is_some();
        let mut entries = meta.annotations.take().unwrap_or_default();
        let left_out = entries.remove(LEFT_OUT).and_then(|count| count.parse().ok());
        let marker_left_out = entries.remove(MARKER_LEFT_OUT).is_some();
        Self {
            entries,
            present,
            left_out: left_out.unwrap_or(0),
            marker_left_out,
        }
    }

    /// The value of an annotation that somebody else reads, too.
    pub fn value(&self, key: &str) -> Option<Box<str>> {
        self.entries.get(key).map(|value| Box::from(value.as_str()))
    }

    /// The value of an annotation that is read.
    pub fn take_value(&mut self, key: &str) -> Option<Box<str>> {
        self.entries.remove(key).map(String::into_boxed_str)
    }
}
