//! The proto is complete, and no `Debug` shows a secret.

use std::collections::{BTreeMap, BTreeSet};

use prost::Message;
use prost_reflect::{
    Cardinality, DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, ReflectMessage,
    Value,
};

use super::v1::REDACTED_MESSAGES;

type DebugOf = fn(&[u8]) -> Result<[String; 3], prost::DecodeError>;

/// Decodes a message and prints it: plain, pretty, and inside the transport's request.
fn debug_of<M: Message + Default + std::fmt::Debug>(bytes: &[u8]) -> Result<[String; 3], prost::DecodeError> {
    let message = M::decode(bytes)?;
    let (plain, pretty) = (format!("{message:?}"), format!("{message:#?}"));
    Ok([plain, pretty, format!("{:?}", tonic::Request::new(message))])
}

include!(concat!(env!("OUT_DIR"), "/csi.v1.debug_table.rs"));

/// The compiled descriptor of `csi.proto` and its imports, an encoded `google.protobuf.FileDescriptorSet`. Keeps the options declared in
/// the proto, such as `csi_secret`.
const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/csi.descriptor.bin"));

const CANARY: &str = "canary-7f3a";
const VISIBLE: &str = "visible-51c0";
const MOUNT_FLAGS: &str = "csi.v1.VolumeCapability.MountVolume.mount_flags";

fn pool() -> DescriptorPool {
    DescriptorPool::decode(FILE_DESCRIPTOR_SET).unwrap()
}

fn own_messages(pool: &DescriptorPool) -> Vec<MessageDescriptor> {
    pool.all_messages()
        .filter(|message| message.package_name() == "csi.v1" && !message.is_map_entry())
        .collect()
}

fn is_sensitive(field: &FieldDescriptor) -> bool {
    let secret = field.parent_pool().get_extension_by_name("csi.v1.csi_secret").unwrap();
    field.full_name() == MOUNT_FLAGS || field.options().get_extension(&secret).as_bool() == Some(true)
}

/// Fills every field of a message, the nested ones too: sensitive texts with the canary, all others with a text that may be seen. Returns
/// the message and how many times each went in. The messages of CSI do not contain themselves, so the walk ends.
fn fill(descriptor: &MessageDescriptor, hidden: &mut usize, shown: &mut usize) -> DynamicMessage {
    let mut message = DynamicMessage::new(descriptor.clone());
    for field in descriptor.fields() {
        let text = if is_sensitive(&field) { CANARY } else { VISIBLE };
        let mut leaf = |kind: &Kind| match kind {
            Kind::String => {
                *(if text == CANARY { &mut *hidden } else { &mut *shown }) += 1;
                Some(Value::String(text.to_owned()))
            }
            Kind::Message(inner) => Some(Value::Message(fill(inner, hidden, shown))),
            _ => None,
        };
        let value = if field.is_map() {
            let entry = field.kind().as_message().unwrap().map_entry_value_field().kind();
            leaf(&entry).map(|value| Value::Map([(MapKey::String(text.to_owned()), value)].into()))
        } else if field.cardinality() == Cardinality::Repeated {
            leaf(&field.kind()).map(|value| Value::List(vec![value]))
        } else {
            leaf(&field.kind())
        };
        if let Some(value) = value {
            message.set_field(&field, value);
        }
    }
    message
}

#[test]
fn every_message_with_a_secret_field_is_redacted_and_no_other() {
    let expected: BTreeSet<String> = own_messages(&pool())
        .iter()
        .filter(|message| message.fields().any(|field| is_sensitive(&field)))
        .map(|message| message.full_name().to_owned())
        .collect();
    assert_eq!(
        expected,
        REDACTED_MESSAGES.iter().map(|name| (*name).to_owned()).collect()
    );
    assert_eq!(
        expected.len(),
        12,
        "11 requests with secrets and the mount flags: {expected:?}"
    );
}

#[test]
fn no_debug_output_shows_a_secret_key_or_value() {
    let table: BTreeMap<&str, DebugOf> = DEBUG_TABLE.iter().copied().collect();
    let mut with_secrets = 0;
    for descriptor in own_messages(&pool()) {
        let (mut hidden, mut shown) = (0, 0);
        let message = fill(&descriptor, &mut hidden, &mut shown);
        let outputs = table[descriptor.full_name()](&message.encode_to_vec()).unwrap();
        for output in outputs {
            assert!(!output.contains(CANARY), "{}: {output}", descriptor.full_name());
            assert_eq!(
                hidden > 0,
                output.contains("<1 redacted>"),
                "{}: {output}",
                descriptor.full_name()
            );
            let own = message
                .descriptor()
                .fields()
                .any(|field| field.kind() == Kind::String && !is_sensitive(&field));
            assert!(
                !own || output.contains(VISIBLE),
                "{} hides too much: {output}",
                descriptor.full_name()
            );
        }
        with_secrets += usize::from(hidden > 0);
    }
    assert!(
        with_secrets > REDACTED_MESSAGES.len(),
        "messages that contain a redacted message were covered too"
    );
}

#[test]
fn the_canary_would_be_seen_without_redaction() {
    // The same bytes read as a message without the option: proves that the search above can fail.
    let request = super::v1::DeleteVolumeRequest {
        volume_id: "v".to_owned(),
        secrets: [("k".to_owned(), CANARY.to_owned())].into(),
    };
    assert_eq!(
        format!("{request:?}"),
        "DeleteVolumeRequest { volume_id: \"v\", secrets: <1 redacted> }"
    );
    let twin = super::v1::VolumeCapability::default();
    assert!(
        format!("{twin:?}").starts_with("VolumeCapability {"),
        "derived output is left alone"
    );
    let context = super::v1::ControllerPublishVolumeResponse {
        publish_context: request.secrets,
    };
    assert!(format!("{context:?}").contains(CANARY));
}

#[test]
fn the_services_have_all_their_calls() {
    let calls: BTreeMap<String, usize> = pool()
        .services()
        .map(|service| (service.name().to_owned(), service.methods().len()))
        .collect();
    let expected = [("Identity", 3), ("Controller", 15), ("Node", 3)];
    assert_eq!(calls, expected.map(|(name, count)| (name.to_owned(), count)).into());
}
