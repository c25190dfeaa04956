//! The contents of a Secret on their way to the one call that they are for.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, OnceLock, Weak};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_derive::Resource;
use parking_lot::Mutex;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::requests::Requests;
use crate::decide::SecretValues;
use crate::objects::{ResourceVersion, SecretReference, slim};
use crate::telemetry::Span;
use csi_attacher_model::answer::ApiError;

/// The most keys of a Secret that is sent to a driver. Drivers read some dozens.
const MAX_KEYS: usize = 4096;
/// The most bytes of its keys and values: Kubernetes stores 1 MiB of values, and so many of its longest keys have as much again.
const MAX_BYTES: usize = 2 << 20;

/// A Secret as it comes over the wire. It cannot be printed.
#[derive(Deserialize, Resource)]
#[resource(inherit = Secret, crates(kube_core = "::kube::core"))]
pub struct SecretWire {
    #[serde(default, deserialize_with = "slim")]
    metadata: ObjectMeta,
    #[serde(default)]
    data: EntriesWire,
}

crate::kind!(SecretWire, "secrets");

impl SecretWire {
    /// Key to value, text or not.
    pub fn into_entries(self) -> BTreeMap<String, Vec<u8>> {
        let entries = self.data.entries.into_iter();
        entries.map(|(key, value)| (key, value.0)).collect()
    }
}

/// The data of a Secret, as far as it is within the bounds. What is beyond them is not kept while it is read, either.
#[derive(Default)]
struct EntriesWire {
    entries: BTreeMap<String, ByteString>,
    is_beyond: bool,
}

impl<'de> Deserialize<'de> for EntriesWire {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntriesVisitor;
        impl<'de> Visitor<'de> for EntriesVisitor {
            type Value = EntriesWire;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("the data of a Secret")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<EntriesWire, A::Error> {
                let (mut wire, mut bytes) = (EntriesWire::default(), 0_usize);
                while let Some((key, value)) = map.next_entry::<String, ByteString>()? {
                    bytes = bytes.saturating_add(key.len() + value.0.len());
                    wire.is_beyond = wire.entries.len() == MAX_KEYS || bytes > MAX_BYTES;
                    if wire.is_beyond {
                        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                        break;
                    }
                    wire.entries.insert(key, value);
                }
                Ok(wire)
            }
        }
        deserializer.deserialize_map(EntriesVisitor)
    }
}

/// The contents of a Secret for calls: key to value. It prints as a count, and lives as long as one attempt, or until what it was
/// published with is taken back. Copies share the contents.
#[derive(Clone, Default)]
pub struct SecretData {
    contents: Arc<Contents>,
    version: ResourceVersion,
}

#[derive(Default)]
struct Contents {
    data: BTreeMap<String, String>,
    /// What is looked for in texts of the driver, from the first of them on.
    values: OnceLock<SecretValues>,
}

impl SecretData {
    /// Contents of no version.
    pub fn new(data: BTreeMap<String, String>) -> Self {
        let values = OnceLock::new();
        Self {
            contents: Arc::new(Contents { data, values }),
            version: ResourceVersion::default(),
        }
    }

    /// The version that was read; zero when the contents come from elsewhere.
    pub fn version(&self) -> ResourceVersion {
        self.version
    }

    /// The contents, for the one call that they are for.
    pub fn expose(&self) -> &BTreeMap<String, String> {
        &self.contents.data
    }

    /// The values, to be taken out of texts. They are sorted once, whoever asks.
    pub fn values(&self) -> &SecretValues {
        let Contents { data, values } = &*self.contents;
        values.get_or_init(|| SecretValues::new(data.values().map(String::as_str)))
    }
}

impl PartialEq for SecretData {
    fn eq(&self, other: &Self) -> bool {
        self.version == other.version && self.contents.data == other.contents.data
    }
}

impl Eq for SecretData {}

impl TryFrom<SecretWire> for SecretData {
    type Error = ApiError;

    /// CSI carries text only. A value that is none is not sent in another form: it may be what a volume is encrypted with.
    fn try_from(wire: SecretWire) -> Result<Self, ApiError> {
        if wire.data.is_beyond {
            return Err(ApiError::garbled(format!(
                "it has more than {MAX_KEYS} keys, or more than {} MiB of keys and values, and is not sent to a driver; keep in it what the \
                 driver reads",
                MAX_BYTES >> 20
            )));
        }
        let entries = wire.data.entries.into_iter();
        let texts = entries.map(|(key, value)| String::from_utf8(value.0).map(|text| (key, text)));
        // Which key it is does not leave the process, as keys of Secrets do not.
        let data = texts.collect::<Result<_, _>>().map_err(|_| {
            ApiError::garbled(
                "the value of one of its keys is not UTF-8 text, and CSI can send nothing else; encode it, as the driver's documentation \
                 says, or remove the key",
            )
        })?;
        Ok(Self {
            version: ResourceVersion::of(&wire.metadata),
            ..Self::new(data)
        })
    }
}

impl fmt::Debug for SecretData {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "<{} redacted>", self.expose().len())
    }
}

/// The contents of the Secrets that somebody holds. Each is read live, and who reads what another one holds shares it.
#[derive(Clone, Default)]
pub(super) struct HeldContents(Arc<Mutex<HashMap<SecretReference, Weak<Contents>>>>);

impl HeldContents {
    /// What was read, with the contents that are held, if they are the same.
    fn share(&self, of: &SecretReference, read: SecretData) -> SecretData {
        let mut held = self.0.lock();
        let contents = held.get(of).and_then(Weak::upgrade);
        if let Some(contents) = contents.filter(|contents| contents.data == read.contents.data) {
            return SecretData { contents, ..read };
        }
        if held.len() == held.capacity() {
            held.retain(|_, contents| contents.strong_count() > 0);
        }
        held.insert(of.clone(), Arc::downgrade(&read.contents));
        read
    }
}

/// The Secret of the calls of one attempt: read live, and kept for no longer than that, or than the outcome of a call is not known.
#[derive(Clone, Debug, Default)]
pub struct HeldSecret(Option<(SecretReference, SecretData)>);

impl HeldSecret {
    /// One that was read before.
    pub fn new(held: Option<(SecretReference, SecretData)>) -> Self {
        Self(held)
    }

    /// Reads a Secret for work for this node, if it is for one, and keeps its contents.
    pub async fn read(
        &mut self,
        requests: &Requests,
        of: SecretReference,
        node: Option<&Arc<str>>,
        span: &Span,
    ) -> Result<(), ApiError> {
        let secret = requests.get::<SecretWire>(&of, node, span).await?;
        let data = SecretData::try_from(secret).map_err(|error| {
            let SecretReference { namespace, name } = &of;
            ApiError::garbled(format!("Secret {namespace}/{name}: {}", error.message))
        })?;
        let data = requests.held_contents().share(&of, data);
        self.0 = Some((of, data));
        Ok(())
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The contents of a Secret, if it is the one that was read last.
    pub fn of(&self, wanted: Option<&SecretReference>) -> Option<&SecretData> {
        let (of, data) = self.0.as_ref()?;
        (Some(of) == wanted).then_some(data)
    }
}
