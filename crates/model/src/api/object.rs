//! [`AttacherConfigObject`]: an AttacherConfig as the operator watches it, which one bad object cannot bring down.

use kube_core::ObjectMeta;
use kube_derive::Resource;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::attacher_config::{AttacherConfig, AttacherConfigSpec};
use super::condition::shorten_message;
use super::names::CONFIRM_CAPABILITY_LOST_ANNOTATION;
use super::rules;
use super::status::AttacherConfigStatus;
use super::validated::{CapabilityLost, ConfigErrors, DriverConfig, FieldError, SpecProblem};
use crate::objects::slim;

/// An AttacherConfig whose spec may be malformed.
///
/// A watch of [`AttacherConfig`] itself ends at the first object that does not fit the Rust types, which happens when
/// the schema was bypassed or is older than the object. This type can always be read; the error stays with its object.
#[derive(Resource, Clone, Debug)]
#[resource(inherit = "AttacherConfig", crates(kube_core = "::kube_core"))]
pub struct AttacherConfigObject {
    /// Name, UID, generation and so on.
    pub metadata: ObjectMeta,
    /// The spec, or the first field that cannot be read.
    pub spec: Result<AttacherConfigSpec, FieldError>,
    /// The parts of the status that can be read; default when there is none.
    pub status: AttacherConfigStatus,
}

impl AttacherConfigObject {
    /// The checked settings of this object, with what its metadata says.
    ///
    /// # Errors
    /// Everything that is wrong with the spec; when its shape is wrong, the first such field only.
    pub fn config(&self) -> Result<DriverConfig, ConfigErrors> {
        let spec = match &self.spec {
            Ok(spec) => DriverConfig::try_from(spec)?,
            Err(malformed) => return Err(ConfigErrors(vec![malformed.clone()])),
        };
        let former = self.status.leader_election.clone();
        let former = former.and_then(|lease| lease.namespace);
        Ok(DriverConfig {
            // A person may have written anything, and it becomes part of a path.
            former_lease: former.filter(|namespace| rules::NAMESPACE.check(namespace).is_ok()),
            capability_lost: CapabilityLost::Stall {
                confirmed_for: self.capability_lost_confirmed_for().map(str::to_owned),
            },
            leaving: self.metadata.deletion_timestamp.is_some(),
            ..spec
        })
    }

    /// The driver for which a person confirmed that it does not attach any more.
    pub fn capability_lost_confirmed_for(&self) -> Option<&str> {
        let annotations = self.metadata.annotations.as_ref()?;
        annotations.get(CONFIRM_CAPABILITY_LOST_ANNOTATION).map(String::as_str)
    }
}

/// The object as JSON gives it, before its spec is read.
#[derive(Deserialize)]
struct Envelope {
    /// Without managed fields, which may have times that cannot be read.
    #[serde(default, deserialize_with = "slim")]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Value,
    #[serde(default)]
    status: Value,
}

impl<'de> Deserialize<'de> for AttacherConfigObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Envelope { metadata, spec, status } = Envelope::deserialize(deserializer)?;
        Ok(Self {
            metadata,
            spec: read_spec(&spec),
            status: AttacherConfigStatus::from_value_lenient(status),
        })
    }
}

fn read_spec(spec: &Value) -> Result<AttacherConfigSpec, FieldError> {
    const NO_LIST: &str = "must be an object, not a list";
    if spec.is_null() {
        return Err(malformed("spec", "must be set, with at least spec.endpoint"));
    }
    if spec.is_array() {
        return Err(malformed("spec", NO_LIST));
    }
    let read: AttacherConfigSpec = serde_path_to_error::deserialize(spec).map_err(|error| {
        let path = error.path().to_string();
        // The path of the root itself is written as a single dot.
        let field = if path == "." {
            "spec".to_owned()
        } else {
            format!("spec.{path}")
        };
        malformed(field, &error.into_inner().to_string())
    })?;
    let written = serde_json::to_value(&read).map_err(|error| malformed("spec", &error.to_string()))?;
    list_read_as_object(spec, &written, "spec").map_or(Ok(read), |field| Err(malformed(field, NO_LIST)))
}

/// The first list that was read as an object: serde takes its items for the fields in their order. What is an object is seen from how
/// the same value is `written`, so that no field can be forgotten here.
fn list_read_as_object(given: &Value, written: &Value, path: &str) -> Option<String> {
    match (given, written) {
        (Value::Array(_), Value::Object(_)) => Some(path.to_owned()),
        (Value::Array(given), Value::Array(written)) => {
            let mut items = given.iter().zip(written).enumerate();
            items.find_map(|(index, (given, written))| list_read_as_object(given, written, &format!("{path}[{index}]")))
        }
        (Value::Object(given), Value::Object(written)) => written
            .iter()
            .find_map(|(name, written)| list_read_as_object(given.get(name)?, written, &format!("{path}.{name}"))),
        _ => None,
    }
}

/// The reason is cut, because serde repeats the refused value in it.
fn malformed(field: impl Into<String>, reason: &str) -> FieldError {
    FieldError {
        field: field.into(),
        problem: SpecProblem::Malformed(shorten_message(reason)),
    }
}
