//! Metadata of objects whose annotations are read by key, with a bound on what of them is kept.
//!
//! Whoever may write a PersistentVolumeClaim may put 256 KiB of annotations on it, and an old API server more. The annotations that are
//! read are kept as far as each is short; the others as far as there is room, since a template of a StorageClass may name any of them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use super::meta::kept_size;

/// Longest value of an annotation that is read, in bytes. What is longer counts as absent.
pub const MAX_ANNOTATION_VALUE: usize = 8 << 10;
/// How much of the other annotations of an object is kept, in bytes of memory.
pub const MAX_OTHER_ANNOTATIONS: usize = 16 << 10;

/// Under this key, which no object can have, stands how many annotations were left out.
const LEFT_OUT: &str = "";

/// Which annotations of a kind are read.
pub(super) trait ReadAnnotations {
    /// Whether the annotation is read by its key.
    fn is_read(key: &str) -> bool;
    /// Whether other annotations are kept as well, as far as there is room.
    const OTHERS: bool;
}

/// Decodes metadata and keeps of the annotations what `K` reads.
pub(super) fn bounded<'de, K: ReadAnnotations, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let meta = MetaWire::<K>::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name: meta.name,
        namespace: meta.namespace,
        uid: meta.uid,
        resource_version: meta.resource_version,
        creation_timestamp: meta.creation_timestamp,
        deletion_timestamp: meta.deletion_timestamp,
        finalizers: meta.finalizers,
        annotations: meta.annotations.and_then(|kept| kept.0),
        ..ObjectMeta::default()
    })
}

/// The annotations of an object that were kept.
pub(super) struct KeptAnnotations {
    entries: BTreeMap<String, String>,
    /// Whether the object has any annotation: a JSON patch can add to a map only where there is one.
    pub present: bool,
    /// How many were left out.
    pub left_out: usize,
}

impl KeptAnnotations {
    /// Takes them out of metadata that [`bounded`] made.
    pub fn take(meta: &mut ObjectMeta) -> Self {
        let annotations = meta.annotations.take();
        let present = annotations.is_some();
        let mut entries = annotations.unwrap_or_default();
        let left_out = entries.remove(LEFT_OUT).and_then(|count| count.parse().ok());
        Self {
            entries,
            present,
            left_out: left_out.unwrap_or(0),
        }
    }

    /// The value of an annotation that is read.
    pub fn take_value(&mut self, key: &str) -> Option<Box<str>> {
        self.entries.remove(key).map(String::into_boxed_str)
    }

    /// The others.
    pub fn into_others(self) -> BTreeMap<String, String> {
        self.entries
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", bound(deserialize = "K: ReadAnnotations"))]
struct MetaWire<K> {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    finalizers: Option<Vec<String>>,
    annotations: Option<BoundedMap<K>>,
}

struct BoundedMap<K>(Option<BTreeMap<String, String>>, PhantomData<K>);

/// Text that is borrowed where nothing is escaped: most of it is not kept.
#[derive(Deserialize)]
struct Text<'t>(#[serde(borrow)] Cow<'t, str>);

impl<'de, K: ReadAnnotations> Deserialize<'de> for BoundedMap<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct BoundedMapVisitor<K>(PhantomData<K>);
        impl<'de, K: ReadAnnotations> Visitor<'de> for BoundedMapVisitor<K> {
            type Value = BoundedMap<K>;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a map of strings")
            }
            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(BoundedMap(None, PhantomData))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let (mut kept, mut others, mut left_out) = (None, 0_usize, 0_usize);
                while let Some(Text(key)) = map.next_key::<Text<'de>>()? {
                    let kept: &mut BTreeMap<String, String> = kept.get_or_insert_with(BTreeMap::new);
                    let is_read = K::is_read(&key);
                    if !is_read && !K::OTHERS {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    }
                    let Text(value) = map.next_value::<Text<'de>>()?;
                    let size = kept_size([key.len().saturating_add(value.len())]);
                    let fits = if is_read {
                        value.len() <= MAX_ANNOTATION_VALUE
                    } else {
                        others.saturating_add(size) <= MAX_OTHER_ANNOTATIONS
                    };
                    if !fits {
                        left_out += 1;
                        continue;
                    }
                    if !is_read {
                        others += size;
                    }
                    kept.insert(key.into_owned(), value.into_owned());
                }
                if let Some(kept) = kept.as_mut().filter(|_| left_out > 0) {
                    kept.insert(LEFT_OUT.to_owned(), left_out.to_string());
                }
                Ok(BoundedMap(kept, PhantomData))
            }
        }
        deserializer.deserialize_any(BoundedMapVisitor(PhantomData))
    }
}
