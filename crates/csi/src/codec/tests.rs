use super::*;
use csi_attacher_proto::v1::{self, list_volumes_response};
use prost::encoding::{encode_key, encode_varint};
use std::collections::{BTreeMap, BTreeSet};

use crate::{
    ControllerGetCapabilities, ControllerPublishVolume, ControllerUnpublishVolume, CreateVolume, DeleteVolume,
    GetPluginCapabilities, GetPluginInfo, ListVolumes, Probe,
};

/// A field with these bytes in it.
fn field(number: u32, content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_key(number, WireType::LengthDelimited, &mut bytes);
    encode_varint(content.len() as u64, &mut bytes);
    bytes.extend_from_slice(content);
    bytes
}

/// The same in messages in each other.
fn nested(path: &[u32], content: Vec<u8>) -> Vec<u8> {
    path.iter()
        .rev()
        .fold(content, |content, number| field(*number, &content))
}

/// What is in the fields of this number.
fn contents(mut message: &[u8], number: u32) -> Vec<&[u8]> {
    let mut found = Vec::new();
    while !message.is_empty() {
        let (read, form) = decode_key(&mut message).unwrap();
        let mut content = message;
        skip_field(form, read, &mut message, DecodeContext::default()).unwrap();
        if read == number && form == WireType::LengthDelimited {
            decode_varint(&mut content).unwrap();
            found.push(&content[..content.len() - message.len()]);
        }
    }
    found
}

/// How many fields are left of those with these contents, all at the end of this path, once they were decoded; none when they cannot be.
fn kept<M: Message + Default>(path: &[u32], fields: &[&[u8]]) -> Option<usize> {
    let (number, parents) = path.split_last().unwrap();
    let fields = fields.iter().flat_map(|content| field(*number, content)).collect();
    let decoded = M::decode(&*nested(parents, fields)).ok()?.encode_to_vec();
    let mut message = &*decoded;
    for parent in parents {
        message = contents(message, *parent).first().copied()?;
    }
    Some(contents(message, *number).len())
}

/// Goes on with the paths to all lists and maps in a message.
fn find_elements<M: Message + Default>(path: &[u32], found: &mut BTreeSet<Vec<u32>>) {
    // A field that no message has, and a text cannot be.
    const UNKNOWN: &[u8] = &[0xf8, 0x01, 0x00];
    assert!(path.len() < 8, "a message in itself: {path:?}");
    for number in 1..=30 {
        let path = [path, &[number]].concat();
        let keys = [field(1, b"a"), field(1, b"b")];
        // Entries of a map are different ones by their keys.
        let rows: [[&[u8]; 2]; 2] = [[b"", b""], [&keys[0], &keys[1]]];
        if rows.iter().any(|row| kept::<M>(&path, row) == Some(2)) {
            found.insert(path.clone());
        }
        if kept::<M>(&path, &[UNKNOWN]) == Some(1) {
            find_elements::<M>(&path, found);
        }
    }
}

fn declared(path: &[u32], fields: &[ElementField], found: &mut BTreeSet<Vec<u32>>) {
    for field in fields {
        let path = [path, &[field.number]].concat();
        declared(&path, field.fields, found);
        if field.repeats {
            found.insert(path);
        }
    }
}

fn assert_declared<C: Call>() -> usize {
    let (mut wanted, mut found) = (BTreeSet::new(), BTreeSet::new());
    find_elements::<C::Response>(&[], &mut wanted);
    declared(&[], C::ELEMENTS, &mut found);
    assert_eq!(found, wanted, "{}", C::PATH);
    found.len()
}

/// What is not declared is not counted.
#[test]
fn all_lists_and_maps_of_an_answer_are_declared() {
    let counts = [
        assert_declared::<Probe>(),
        assert_declared::<GetPluginInfo>(),
        assert_declared::<GetPluginCapabilities>(),
        assert_declared::<ControllerGetCapabilities>(),
        assert_declared::<ControllerPublishVolume<'_>>(),
        assert_declared::<ControllerUnpublishVolume<'_>>(),
        assert_declared::<CreateVolume<'_>>(),
        assert_declared::<DeleteVolume<'_>>(),
        assert_declared::<ListVolumes<'_>>(),
    ];
    assert_eq!(counts, [0, 1, 1, 1, 1, 0, 3, 0, 2]);
}

/// Whether an answer is decoded, which has no more bytes than are read.
fn is_decoded<C: Call>(answer: &[u8]) -> bool {
    assert!(answer.len() <= C::MAX_ANSWER_BYTES, "{} bytes", answer.len());
    check(answer, C::ELEMENTS, C::MAX_ELEMENTS).is_ok()
}

/// As many entries of a map as fit into so many bytes, each with a key of its own.
fn map(number: u32, bytes: usize) -> Vec<u8> {
    let mut entries = Vec::new();
    for key in 0_u32.. {
        let entry = field(number, &field(1, format!("{key:x}").as_bytes()));
        if entries.len() + entry.len() > bytes {
            break;
        }
        entries.extend(entry);
    }
    entries
}

#[test]
fn a_small_answer_that_becomes_large_is_not_decoded() {
    let topologies = field(5, &field(1, &[])).repeat(1_000_000);
    assert!(!is_decoded::<CreateVolume<'_>>(&field(1, &topologies)));
    assert!(!is_decoded::<CreateVolume<'_>>(&field(1, &map(3, 4_000_000))));
    let segments = field(5, &map(1, 1_000_000));
    assert!(!is_decoded::<CreateVolume<'_>>(&field(1, &segments)));
    assert!(!is_decoded::<ControllerPublishVolume<'_>>(&map(1, 4_000_000)));
    assert!(!is_decoded::<ListVolumes<'_>>(&field(1, &[]).repeat(16 << 20)));
    let nodes = field(1, &[]).repeat(15_000_000);
    assert!(!is_decoded::<ListVolumes<'_>>(&field(1, &field(2, &nodes))));
    assert!(!is_decoded::<GetPluginInfo>(&map(3, 60_000)));
    assert!(!is_decoded::<GetPluginCapabilities>(&field(1, &[]).repeat(30_000)));
    assert!(!is_decoded::<ControllerGetCapabilities>(&field(1, &[]).repeat(30_000)));
    let error = check(&map(1, 100), ControllerPublishVolume::ELEMENTS, 3).unwrap_err();
    assert!(error.to_string().contains("more than 3 elements"), "{error}");
}

fn texts(count: usize) -> BTreeMap<String, String> {
    let text = |number: usize| (format!("topology.example.com/key-{number:04}"), "x".repeat(30));
    (0..count).map(text).collect()
}

/// 50,000 volumes on one page, the most topologies that a volume is created with, and texts that look like messages.
#[test]
fn what_a_driver_may_answer_is_decoded() {
    let entry = |number: usize| list_volumes_response::Entry {
        volume: Some(v1::Volume {
            volume_id: format!("volume-{number:032}"),
            volume_context: texts(5),
            accessible_topology: vec![v1::Topology { segments: texts(1) }],
            ..Default::default()
        }),
        status: Some(list_volumes_response::VolumeStatus {
            published_node_ids: (0..3).map(|node| format!("node-{node:020}")).collect(),
            ..Default::default()
        }),
    };
    let page = v1::ListVolumesResponse {
        entries: (0..50_000).map(entry).collect(),
        next_token: String::new(),
    };
    assert!(is_decoded::<ListVolumes<'_>>(&page.encode_to_vec()));
    // As many as fit into an answer, with UUIDs for handles.
    let (volume, status) = (field(2, &[b'v'; 36]), field(1, &[b'n'; 20]));
    let short = field(1, &[field(1, &volume), field(2, &status)].concat());
    let count = ListVolumes::MAX_ANSWER_BYTES / short.len();
    assert!(count > 500_000 && is_decoded::<ListVolumes<'_>>(&short.repeat(count)));
    let volume = v1::Volume {
        volume_id: "\n\0".repeat(1000),
        volume_context: BTreeMap::from([("looks like fields".to_owned(), "\n\0".repeat(100_000))]),
        accessible_topology: vec![v1::Topology { segments: texts(5) }; 10_000],
        ..Default::default()
    };
    let created = v1::CreateVolumeResponse { volume: Some(volume) };
    assert!(is_decoded::<CreateVolume<'_>>(&created.encode_to_vec()));
    let published = v1::ControllerPublishVolumeResponse {
        publish_context: texts(5_000),
    };
    assert!(is_decoded::<ControllerPublishVolume<'_>>(&published.encode_to_vec()));
}
