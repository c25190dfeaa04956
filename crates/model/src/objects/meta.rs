//! Object metadata: what is kept of `metav1.ObjectMeta`, and resource versions that can be compared.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta, Time};
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use super::in_tree::{is_read_annotation, is_read_label};
use super::string_map::StringMap;
use crate::api::names::{
    BETA_STORAGE_CLASS_ANNOTATION, DELETION_SECRET_NAME_ANNOTATION, DELETION_SECRET_NAMESPACE_ANNOTATION,
    FIELD_MANAGER, NODE_ID_ANNOTATION, PROVISIONED_BY_ANNOTATION, finalizer_name,
};

/// What all annotations of ours begin with.
const OUR_PREFIX: &str = "attacher.csi.dev/";
/// What the keys of annotations end in that may carry a trace context.
const TRACE_CONTEXT: &str = "traceparent";
/// Longest value of such an annotation that is kept, in bytes; so it is for those that a provisioner reads, which are names.
pub(super) const LONGEST_TRACE_CONTEXT: usize = 512;
/// So many such annotations of others are kept.
const MAX_TRACE_CONTEXTS: usize = 8;

/// An object's `metadata.resourceVersion` as a number.
///
/// Built-in objects of one kind have comparable versions (KEP-5504): of two copies with the same UID the one with the
/// larger version is newer. A version that is no number reads as 0, which every copy is newer than.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceVersion(pub u64);

impl ResourceVersion {
    /// Reads the version out of object metadata.
    pub fn of(meta: &ObjectMeta) -> Self {
        let version = meta.resource_version.as_deref();
        Self(version.and_then(|text| text.parse().ok()).unwrap_or(0))
    }

    /// Whether two copies of one object with these versions are the same. Of one that is no number nothing can be said.
    pub fn is_same(self, other: Self) -> bool {
        self == other && self != Self::default()
    }
}

/// So many places of one finalizer are kept. The API server takes a name twice, and any number of operations up to 10,000 in a patch.
const MAX_PLACES: usize = 1000;

/// The positions of a finalizer in a whole list; none where it is not there.
pub(super) fn positions_in(list: Option<&[String]>, name: &str) -> Option<Box<[usize]>> {
    let entries = list.unwrap_or_default().iter().enumerate();
    let named = entries.filter(|(_, entry)| *entry == name).map(|(at, _)| at);
    let positions: Box<[usize]> = named.take(MAX_PLACES).collect();
    (!positions.is_empty()).then_some(positions)
}

/// An object's `metadata.finalizers`, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Finalizers {
    entries: Box<[Box<str>]>,
    beyond: Option<Box<Beyond>>,
}

/// What is known of the part of a list that is beyond [`MAX_VOLUME_FIELD`].
#[derive(Clone, Debug, PartialEq, Eq)]
struct Beyond {
    /// The finalizer of the object's own driver and its position in the list: whether it is there must be known for certain.
    ours: Option<(usize, Box<str>)>,
    left_out: usize,
}

impl fmt::Display for Finalizers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.iter().collect::<Vec<_>>().join(", "))?;
        match self.left_out() {
            0 => Ok(()),
            left_out => write!(formatter, " and {left_out} more"),
        }
    }
}

impl Finalizers {
    /// Builds the list; an absent and an empty list are the same, as the API server stores neither.
    pub fn new<S: Into<Box<str>>>(entries: impl IntoIterator<Item = S>) -> Self {
        Self {
            entries: entries.into_iter().map(Into::into).collect(),
            beyond: None,
        }
    }

    /// Keeps the first entries as far as [`MAX_VOLUME_FIELD`] allows, and beyond that only the finalizer of this driver. Positions
    /// are those of the whole list.
    pub(super) fn of(list: Option<Vec<String>>, driver: Option<&str>) -> Self {
        let mut list = list.unwrap_or_default();
        let mut size = 0;
        let ends = |entry: &String| {
            size += kept_size([entry.len()]);
            size > MAX_VOLUME_FIELD
        };
        let Some(end) = list.iter().position(ends) else {
            return Self::new(list);
        };
        let beyond = list.split_off(end);
        let left_out = beyond.len();
        let ours = driver.map(finalizer_name);
        let ours = beyond
            .into_iter()
            .enumerate()
            .find(|(_, entry)| Some(entry) == ours.as_ref());
        let beyond = Beyond {
            left_out: left_out - usize::from(ours.is_some()),
            ours: ours.map(|(at, entry)| (end + at, entry.into())),
        };
        Self {
            beyond: Some(Box::new(beyond)),
            ..Self::new(list)
        }
    }

    /// All positions of `name`, as far as they are kept: the API server takes a name twice.
    pub fn positions(&self, name: &str) -> impl DoubleEndedIterator<Item = usize> {
        let kept = self.entries.iter().enumerate();
        let kept = kept.filter(move |(_, entry)| &***entry == name).map(|(at, _)| at);
        let ours = self.ours_beyond().filter(move |(_, entry)| *entry == name);
        kept.chain(ours.map(|(at, _)| at))
    }

    /// Whether `name` is in the list.
    pub fn contains(&self, name: &str) -> bool {
        self.positions(name).next().is_some()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.beyond.is_none()
    }

    /// How many entries are not kept, as the list is too large.
    pub fn left_out(&self) -> usize {
        self.beyond.as_ref().map_or(0, |beyond| beyond.left_out)
    }

    /// The entries that are kept, in order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        let ours = self.ours_beyond().map(|(_, entry)| entry);
        self.entries.iter().map(|entry| &**entry).chain(ours)
    }

    fn ours_beyond(&self) -> Option<(usize, &str)> {
        let (at, entry) = self.beyond.as_ref()?.ours.as_ref()?;
        Some((*at, entry))
    }
}

/// Decodes metadata but keeps only what an attacher reads.
///
/// Managed fields alone double the size of a `VolumeAttachment`; they are skipped without being built.
///
/// # Errors
/// What is not as the API server writes it.
pub fn slim<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    slim_of::<AnnotationFilter, D>(deserializer)
}

/// As [`slim`], with those annotations that `A` keeps.
pub(super) fn slim_of<'de, A: KeyFilter, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    Ok(kept(SlimMeta::<A, IgnoredAny>::deserialize(deserializer)?, None))
}

/// As [`slim`], with the entry of `managedFields` that says which other client wrote the status last.
pub(super) fn slim_with_writer<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let mut meta = SlimMeta::<AnnotationFilter, Vec<ManagerWire<'de>>>::deserialize(deserializer)?;
    let writer = meta.managed_fields.take().and_then(latest_status_writer);
    Ok(kept(meta, writer))
}

fn kept<A, M>(meta: SlimMeta<A, M>, writer: Option<ManagedFieldsEntry>) -> ObjectMeta {
    ObjectMeta {
        name: meta.name,
        namespace: meta.namespace,
        uid: meta.uid,
        resource_version: meta.resource_version,
        generation: meta.generation,
        creation_timestamp: meta.creation_timestamp,
        deletion_timestamp: meta.deletion_timestamp,
        finalizers: meta.finalizers,
        labels: meta.labels.and_then(|kept| kept.0),
        annotations: meta.annotations.and_then(|kept| kept.0),
        managed_fields: writer.map(|writer| vec![writer]),
        ..ObjectMeta::default()
    }
}

/// Text that is checked while an object is read, and mostly not kept: a watch brings much of it.
#[derive(Deserialize)]
struct Text<'t>(#[serde(borrow)] Cow<'t, str>);

/// A time; none where it cannot be read. Go has times to the end of the year 9999 in any zone, and a [`Timestamp`] ends 26 hours before
/// that: one object with such a time must not stop the list of all the others.
///
/// # Errors
/// What is neither a text nor null.
pub fn time_if_readable<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Time>, D::Error> {
    let text = Option::<Text<'de>>::deserialize(deserializer)?;
    Ok(text.and_then(|text| text.0.parse().ok()).map(Time))
}

/// A time of which it matters first whether it is there; the latest where it cannot be read.
fn time_or_latest<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Time>, D::Error> {
    let text = Option::<Text<'de>>::deserialize(deserializer)?;
    Ok(text.map(|text| Time(text.0.parse().unwrap_or(Timestamp::MAX))))
}

/// `metav1.ManagedFieldsEntry`, without the fields themselves.
#[derive(Deserialize)]
struct ManagerWire<'t> {
    #[serde(borrow)]
    manager: Option<Text<'t>>,
    #[serde(borrow)]
    subresource: Option<Text<'t>>,
    /// Read later, so that one that cannot be read costs no more than this entry.
    #[serde(borrow)]
    time: Option<Text<'t>>,
}

/// The latest write of the status by another field manager than ours.
fn latest_status_writer(entries: Vec<ManagerWire<'_>>) -> Option<ManagedFieldsEntry> {
    let is_another = |entry: &ManagerWire<'_>| {
        let is = |text: &Option<Text<'_>>, wanted: &str| text.as_ref().is_some_and(|text| text.0 == wanted);
        is(&entry.subresource, "status") && !is(&entry.manager, FIELD_MANAGER)
    };
    let entries = entries.into_iter().filter(is_another).map(|entry| ManagedFieldsEntry {
        time: entry.time.and_then(|text| text.0.parse().ok()).map(Time),
        manager: entry.manager.map(|text| text.0.into_owned()),
        subresource: entry.subresource.map(|text| text.0.into_owned()),
        ..ManagedFieldsEntry::default()
    });
    entries.reduce(|latest, entry| if latest.time < entry.time { entry } else { latest })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", bound(deserialize = "A: KeyFilter, M: Deserialize<'de>"))]
struct SlimMeta<A, M> {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    #[serde(default, deserialize_with = "time_if_readable")]
    creation_timestamp: Option<Time>,
    #[serde(default, deserialize_with = "time_or_latest")]
    deletion_timestamp: Option<Time>,
    finalizers: Option<Vec<String>>,
    labels: Option<FilteredMap<LabelFilter>>,
    annotations: Option<FilteredMap<A>>,
    managed_fields: Option<M>,
}

/// Which entries of a map are kept.
pub(super) trait KeyFilter: Default {
    /// Whether the value of a key is read, beside what is kept already.
    fn is_read(&self, _key: &str, _kept: &BTreeMap<String, String>) -> bool {
        true
    }

    /// What is kept of an entry that is read; nothing where it is left out.
    fn keep<'v>(&mut self, _key: &str, value: Cow<'v, str>) -> Option<Cow<'v, str>> {
        Some(value)
    }

    /// Notes besides what the map does not say any more.
    fn end(self, _kept: &mut BTreeMap<String, String>) {}
}

#[derive(Default)]
struct AnnotationFilter;

impl KeyFilter for AnnotationFilter {
    fn is_read(&self, key: &str, kept: &BTreeMap<String, String>) -> bool {
        let is_other = |key: &str| carries_trace_context(key) && !key.starts_with(OUR_PREFIX);
        let has_room = || kept.keys().filter(|key| is_other(key)).count() < MAX_TRACE_CONTEXTS;
        if is_other(key) {
            return has_room();
        }
        key == NODE_ID_ANNOTATION
            || key.starts_with(OUR_PREFIX)
            || is_read_annotation(key)
            || is_read_by_provisioner(key)
    }

    /// That there was one that cannot be read is worth knowing; what it said is not.
    fn keep<'v>(&mut self, key: &str, value: Cow<'v, str>) -> Option<Cow<'v, str>> {
        let is_bounded = carries_trace_context(key) || is_read_by_provisioner(key);
        let fits = value.len() <= LONGEST_TRACE_CONTEXT || !is_bounded;
        Some(if fits { value } else { Cow::default() })
    }
}

#[derive(Default)]
struct LabelFilter;

impl KeyFilter for LabelFilter {
    fn is_read(&self, key: &str, _: &BTreeMap<String, String>) -> bool {
        is_read_label(key)
    }
}

/// Absent when the object has no entry at all; empty when it has some but none that is kept. A JSON patch must know the
/// difference: it can add to a map only where there is one.
struct FilteredMap<K>(Option<BTreeMap<String, String>>, PhantomData<K>);

impl<'de, K: KeyFilter> Deserialize<'de> for FilteredMap<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FilteredMapVisitor<K>(PhantomData<K>);
        impl<'de, K: KeyFilter> Visitor<'de> for FilteredMapVisitor<K> {
            type Value = FilteredMap<K>;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a map of strings")
            }
            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(FilteredMap(None, PhantomData))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let (mut kept, mut filter) = (None, K::default());
                while let Some(Text(key)) = map.next_key::<Text<'de>>()? {
                    let kept = kept.get_or_insert_with(BTreeMap::new);
                    if !filter.is_read(&key, kept) {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    }
                    let Text(value) = map.next_value::<Text<'de>>()?;
                    if let Some(value) = filter.keep(&key, value) {
                        kept.insert(key.into_owned(), value.into_owned());
                    }
                }
                if let Some(kept) = &mut kept {
                    filter.end(kept);
                }
                Ok(FilteredMap(kept, PhantomData))
            }
        }
        deserializer.deserialize_any(FilteredMapVisitor(PhantomData))
    }
}

/// Whether a map has entries. Up to 256 KiB of them are skipped and not built.
pub(super) fn has_entries<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(FilteredMap::<NoFilter>::deserialize(deserializer)?.0.is_some())
}

#[derive(Default)]
struct NoFilter;

impl KeyFilter for NoFilter {
    fn is_read(&self, _: &str, _: &BTreeMap<String, String>) -> bool {
        false
    }
}

/// Annotations of a PersistentVolume that a provisioner reads, beside those of ours and of the in-tree plug-ins.
fn is_read_by_provisioner(key: &str) -> bool {
    [
        BETA_STORAGE_CLASS_ANNOTATION,
        PROVISIONED_BY_ANNOTATION,
        DELETION_SECRET_NAME_ANNOTATION,
        DELETION_SECRET_NAMESPACE_ANNOTATION,
    ]
    .contains(&key)
}

fn carries_trace_context(key: &str) -> bool {
    key.ends_with(TRACE_CONTEXT)
}

/// The annotations that may carry a trace context; empty ones are those that were too long.
pub(super) fn trace_context(annotations: Option<&BTreeMap<String, String>>) -> StringMap {
    let entries = annotations.into_iter().flatten();
    let carrying = entries.filter(|(key, _)| carries_trace_context(key));
    let kept: BTreeMap<_, _> = carrying.map(|(key, value)| (key.clone(), value.clone())).collect();
    kept.into()
}

/// How much of a list or map that others write is kept, such as a volume's attributes; the CSI specification allows a map 4 KiB.
/// [`kept_size`] says what counts.
pub const MAX_VOLUME_FIELD: usize = 64 << 10;

/// What an entry of a list or map costs beside its text: half a million empty texts are no bytes, and many MiB of memory.
pub const ENTRY_SIZE: usize = 48;

/// How much memory a list or map costs, from the length of the text of each entry.
pub fn kept_size(lengths: impl IntoIterator<Item = usize>) -> usize {
    lengths
        .into_iter()
        .map(|length| length.saturating_add(ENTRY_SIZE))
        .sum()
}

/// A field that is too large to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OversizedField {
    /// Its path.
    pub field: &'static str,
    /// How much memory it needs: the bytes of its keys and values, and [`ENTRY_SIZE`] for each entry.
    pub bytes: usize,
}

impl OversizedField {
    /// That a list or map with texts of these lengths is larger than [`MAX_VOLUME_FIELD`], if it is.
    pub(super) fn of(field: &'static str, lengths: impl IntoIterator<Item = usize>) -> Option<Self> {
        let bytes = kept_size(lengths);
        (bytes > MAX_VOLUME_FIELD).then_some(Self { field, bytes })
    }
}

/// Whether a text says nothing. Where an ID, a handle or a name is expected, such a text is as good as none: an empty `node_id` takes
/// a volume from every node (CSI specification, "ControllerUnpublishVolume"), and the API server accepts a single space.
pub fn is_blank(text: &str) -> bool {
    text.trim().is_empty()
}

pub(super) fn boxed(text: Option<String>) -> Box<str> {
    text.unwrap_or_default().into_boxed_str()
}

pub(super) fn boxed_list(texts: Option<Vec<String>>) -> Box<[Box<str>]> {
    texts.into_iter().flatten().map(String::into_boxed_str).collect()
}
