use super::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;

fn read_attachment(object: Value) -> Attachment {
    serde_json::from_value::<VolumeAttachmentWire>(object).unwrap().into()
}

fn read_volume(object: Value) -> Volume {
    serde_json::from_value::<PersistentVolumeWire>(object).unwrap().into()
}

fn read_csi_node(object: Value) -> CsiNode {
    serde_json::from_value::<CsiNodeWire>(object).unwrap().into()
}

#[test]
fn a_volume_attachment_keeps_what_is_read_and_drops_the_rest() {
    let record = read_attachment(json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
        "metadata": {
            "name": "csi-1", "uid": "u1", "resourceVersion": "42",
            "creationTimestamp": "2026-01-02T03:04:05Z", "deletionTimestamp": "2026-01-02T03:05:05Z",
            "finalizers": ["a/b", "external-attacher/csi-test"],
            "annotations": {"csi.alpha.kubernetes.io/node-id": "node-7", "noise": "x".repeat(1000)},
            "managedFields": [{"manager": "kcm", "fieldsV1": {"f:spec": {}}}]
        },
        "spec": {"attacher": "csi.test", "nodeName": "n1", "source": {"persistentVolumeName": "pv1"}},
        "status": {"attached": true, "attachmentMetadata": {"devicePath": "/dev/x"},
                   "attachError": {"message": "no", "errorCode": 8, "time": "2026-01-02T03:04:06Z"}}
    }));
    assert_eq!(
        (&*record.name, &*record.uid, record.resource_version),
        ("csi-1", "u1", ResourceVersion(42))
    );
    assert_eq!(
        record.finalizers.positions("external-attacher/csi-test").next(),
        Some(1)
    );
    assert_eq!(record.node_id.as_deref(), Some("node-7"));
    assert_eq!(record.volume_name().map(|name| &**name), Some("pv1"));
    assert!(record.attached && record.deleting.is_some() && record.has_annotations && !record.is_gone());
    assert!(record.has_publish_context);
    assert_eq!(record.attach_error.and_then(|note| note.code), Some(8));
}

/// Watch events are read from text, of which a part is borrowed where nothing is escaped.
#[test]
fn escaped_text_is_read_like_any_other() {
    let wire: VolumeAttachmentWire = serde_json::from_str(
        r#"{
            "metadata": {
                "name": "csi-1", "uid": "u1", "resourceVersion": "42",
                "annotations": {"csi.alpha.kubernetes.io\/node-id": "node\u002d7", "noise": "\n"},
                "managedFields": [
                    {"manager": null, "subresource": "status"},
                    {"manager": "csi-att\u0061cher", "subresource": "st\u0061tus", "time": "2026-01-02T03:04:05Z"}
                ]
            },
            "spec": {"attacher": "csi.test", "nodeName": "n1", "source": {"persistentVolumeName": "pv1"}}
        }"#,
    )
    .unwrap();
    let record = Attachment::from(wire);
    assert_eq!(record.node_id.as_deref(), Some("node-7"));
    assert_eq!(&*record.other_writer.unwrap().manager, "csi-attacher");
}

/// Anybody who may write the object can write anything into the note. A counter that cannot be read costs no place where the volume may be.
#[test]
fn a_note_keeps_its_places_whatever_its_counter_is() {
    for (renewed, number) in [
        (json!(3), 3),
        (json!(null), 0),
        (json!(-1), 0),
        (json!("1"), 0),
        (json!(1_u64 << 32), 0),
        (json!({"a": []}), 0),
    ] {
        let note = json!({"handle": "h", "former": [{"handle": "h", "nodeID": "n0"}], "renewed": renewed}).to_string();
        let note = read_attachment(json!({
            "metadata": {"name": "csi-1", "uid": "u1", "annotations": {crate::api::names::VOLUME_ANNOTATION: note}},
            "spec": {"attacher": "csi.test", "nodeName": "n1", "source": {"persistentVolumeName": "pv1"}},
        }))
        .volume_note
        .expect("it is read");
        assert_eq!((&*note.handle, note.former.len(), note.renewed), ("h", 1, number));
    }
}

/// What another version or a person wrote is not taken for nothing: it may name places where the volume is.
#[test]
fn a_note_that_cannot_be_read_is_no_missing_note() {
    let record = |note: &str| {
        read_attachment(json!({
            "metadata": {"name": "csi-1", "uid": "u1", "annotations": {crate::api::names::VOLUME_ANNOTATION: note}},
            "spec": {"attacher": "csi.test", "nodeName": "n1", "source": {"persistentVolumeName": "pv1"}},
        }))
    };
    for note in [
        r#"{"handle":"h","former":[{"handle":"h"}]}"#,
        r#"{"handle":"h","former":{}}"#,
        r#"{"handle":"h","secret":{}}"#,
        r#"{"handle":"","former":[{"handle":"h","nodeID":"n0"}]}"#,
        r#"{"volume":"h"}"#,
        "h",
    ] {
        let record = record(note);
        let found = (record.volume_note, record.note_fault.as_deref());
        assert_eq!(found, (None, Some(&NoteFault::Unreadable)), "{note}");
    }
    for note in ["", " ", r#"{"handle":""}"#] {
        let record = record(note);
        assert_eq!((record.volume_note, record.note_fault), (None, None), "{note:?}");
    }
    for note in [
        r#"{"handle":"h","former":null}"#,
        r#"{"handle":"h","secret":null,"later":{"a":[1]}}"#,
    ] {
        let record = record(note);
        assert_eq!(record.note_fault, None, "{note}");
        assert_eq!(&*record.volume_note.expect(note).handle, "h");
    }
}

#[test]
fn the_latest_write_of_the_status_by_another_client_is_kept() {
    let entry = |manager: &str, subresource: Option<&str>, time: &str| {
        json!({
            "manager": manager, "subresource": subresource, "time": time, "operation": "Update",
            "apiVersion": "storage.k8s.io/v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:status": {"f:attached": {}}}
        })
    };
    let (early, late) = ("2026-01-02T03:04:05Z", "2026-01-02T03:05:05Z");
    let sidecar = |time| entry("csi-attacher", Some("status"), time);
    let rows = [
        (json!(null), None),
        (json!([]), None),
        (json!([entry("kube-controller-manager", None, late)]), None),
        (
            json!([entry(crate::api::names::FIELD_MANAGER, Some("status"), late)]),
            None,
        ),
        (json!([sidecar(early)]), Some(("csi-attacher", early))),
        (
            json!([sidecar(late), entry("kubectl", Some("status"), early)]),
            Some(("csi-attacher", late)),
        ),
        (
            json!([entry("kubectl", Some("status"), early), sidecar(late)]),
            Some(("csi-attacher", late)),
        ),
        (json!([sidecar("yesterday")]), None),
        (
            json!([sidecar("yesterday"), sidecar(early)]),
            Some(("csi-attacher", early)),
        ),
        (json!([{}]), None),
    ];
    for (fields, wanted) in rows {
        let found = read_attachment(json!({
            "metadata": {"name": "a", "managedFields": fields},
            "spec": {"attacher": "d", "nodeName": "n", "source": {}}
        }))
        .other_writer;
        let wanted = wanted.map(|(manager, time)| StatusWriter {
            manager: manager.into(),
            time: time.parse().unwrap(),
        });
        assert_eq!(found.as_deref(), wanted.as_ref(), "{fields}");
    }
}

#[test]
fn annotations_that_are_all_foreign_still_count_as_present() {
    let decode = |annotations: serde_json::Value| {
        read_attachment(json!({
            "metadata": {"name": "a", "annotations": annotations},
            "spec": {"attacher": "d", "nodeName": "n", "source": {}}
        }))
        .has_annotations
    };
    assert!(decode(json!({"someone": "else"})));
    assert!(!decode(json!({})));
    assert!(!decode(json!(null)));
}

#[test]
fn annotations_of_traces_are_kept_while_they_are_short() {
    let annotations = json!({
        "tracing.k8s.io/traceparent": "00-1-2-3", "tracing.k8s.io/tracestate": "a=b",
        "a.b/traceparent": "x".repeat(513), "c.d/traceparent": "x".repeat(512),
        "huge/traceparent": "x".repeat(1 << 20), "baggage": "user=1", "traceparent.not/this": "x",
    });
    let attachment: VolumeAttachmentWire = serde_json::from_value(json!({
        "metadata": {"name": "a", "annotations": annotations}, "spec": {"attacher": "d", "nodeName": "n", "source": {}}
    }))
    .unwrap();
    let volume: PersistentVolumeWire =
        serde_json::from_value(json!({"metadata": {"name": "v", "annotations": annotations}})).unwrap();
    let kept = Attachment::from(attachment).trace_context;
    assert_eq!(kept, Volume::from(volume).trace_context);
    let full = "x".repeat(512);
    let wanted = [
        ("a.b/traceparent", ""),
        ("c.d/traceparent", &full),
        ("huge/traceparent", ""),
        ("tracing.k8s.io/traceparent", "00-1-2-3"),
    ];
    assert_eq!(kept.iter().collect::<Vec<_>>(), wanted);
}

#[test]
fn an_object_that_was_created_a_moment_ago_has_no_status() {
    let record = read_attachment(json!({"metadata": {"name": "a"}, "spec": {"attacher": "d", "nodeName": "n"}}));
    assert_eq!((record.attached, record.source), (false, AttachmentSource::Neither));
}

#[test]
fn a_persistent_volume_is_read_with_its_csi_source() {
    let record = read_volume(json!({
        "metadata": {"name": "pv1", "uid": "u", "resourceVersion": "7", "finalizers": ["kubernetes.io/pv-protection"]},
        "spec": {
            "accessModes": ["ReadWriteOnce", "ReadWriteOnce"], "volumeMode": "Block", "mountOptions": ["noatime"],
            "claimRef": {"name": "data", "namespace": "default", "uid": "c"}, "storageClassName": "fast",
            "csi": {"driver": "csi.test", "volumeHandle": "h", "readOnly": true, "volumeAttributes": {"b": "2", "a": "1"},
                    "controllerPublishSecretRef": {"name": "s", "namespace": "kube-system"}}
        }
    }));
    let VolumeSource::Csi(source) = &record.spec.source else {
        panic!("not a CSI source")
    };
    assert_eq!((&*source.handle, source.read_only, &*source.fs_type), ("h", true, ""));
    assert_eq!(source.attributes.iter().collect::<Vec<_>>(), [("a", "1"), ("b", "2")]);
    assert_eq!(source.publish_secret.as_ref().map(|secret| &*secret.name), Some("s"));
    assert!(record.spec.block && record.spec.access_modes.read_write_once && !record.spec.access_modes.unknown);
    assert_eq!(record.claim.map(|claim| claim.name), Some("data".into()));
}

#[test]
fn in_tree_sources_are_told_apart_from_unknown_ones() {
    let decode = |spec: serde_json::Value| read_volume(json!({"metadata": {"name": "v"}, "spec": spec}));
    let in_tree = decode(json!({"cinder": {"volumeID": "x"}}));
    assert_eq!(in_tree.in_tree, Some(InTreePlugin::Cinder));
    let unknown = decode(json!({"nfs": {"server": "x", "path": "/"}}));
    assert_eq!((unknown.spec.source, unknown.in_tree), (VolumeSource::Other, None));
    let csi = decode(json!({"csi": {"driver": "d", "volumeHandle": "h"}}));
    assert_eq!(csi.in_tree, None);
    let inline: VolumeSpecWire = serde_json::from_value(json!({"cinder": {"volumeID": "x"}})).unwrap();
    assert_eq!(VolumeSpec::from(inline).source, VolumeSource::Other);
}

/// Most volumes are plain CSI ones: migration may cost each of them a byte, and not their source more.
#[test]
fn a_plain_csi_volume_pays_one_byte_for_migration() {
    assert_eq!(size_of::<Option<InTreePlugin>>(), 1);
    assert_eq!(size_of::<VolumeSource>(), 2 * size_of::<usize>());
}

#[test]
fn a_csi_node_answers_by_exact_driver_name_and_first_match() {
    let record = read_csi_node(json!({
        "metadata": {"name": "n1"},
        "spec": {"drivers": [{"name": "a", "nodeID": "1", "topologyKeys": null}, {"name": "a", "nodeID": "2"}]}
    }));
    assert_eq!((record.node_id("a"), record.node_id("A")), (Some("1"), None));
    let empty: CsiNodeWire =
        serde_json::from_value(json!({"metadata": {"name": "n"}, "spec": {"drivers": null}})).unwrap();
    assert_eq!(CsiNode::from(empty).drivers().count(), 0);
}

#[test]
fn a_csi_node_has_the_topology_keys_of_each_driver() {
    let many: Vec<String> = (0..200).map(|number| format!("{number:0>65}")).collect();
    let record = read_csi_node(json!({
        "metadata": {"name": "n1"},
        "spec": {"drivers": [
            {"name": "b", "nodeID": "1", "topologyKeys": ["zone", "rack", "zone"]},
            {"name": "none", "nodeID": "1", "topologyKeys": null},
            {"name": "many", "nodeID": "1", "topologyKeys": many},
            {"name": "a", "nodeID": "1", "topologyKeys": ["host"]},
            {"name": "b", "nodeID": "1", "topologyKeys": ["other"]},
        ]},
    }));
    let keys = |driver: &str| record.topology_keys(driver).map(|keys| keys.join(" "));
    assert_eq!(
        keys("b").as_deref(),
        Some("rack zone"),
        "sorted, and the first entry wins"
    );
    assert_eq!(keys("a").as_deref(), Some("host"));
    assert_eq!((keys("none"), keys("c")), (None, None));
    assert_eq!(keys("many"), Some(many.join(" ")), "some register every label");
    let all = record.topology().unwrap();
    assert!(all.has_key("rack") && all.has_key("host") && !all.has_key("other") && all.has_key(&many[199]));
    assert!(CsiNode::new("n2", &[("a", "1")]).topology().is_none());
}

/// Of a Node, its status and annotations are not even asked for, and not kept where they come all the same.
#[test]
fn of_a_node_the_labels_are_kept() {
    let large = "x".repeat(MAX_VOLUME_FIELD);
    let wire: NodeLabelsWire = serde_json::from_value(json!({
        "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
        "metadata": {
            "name": "n1", "uid": "u", "resourceVersion": "7", "annotations": {"a": "b"},
            "labels": {"rack": "1", "zone": "a", "zz": large}, "managedFields": [{"manager": "kubelet"}],
        },
    }))
    .unwrap();
    let record = NodeLabels::from(wire);
    assert_eq!(
        (&*record.name, &*record.uid, record.resource_version),
        ("n1", "u", ResourceVersion(7))
    );
    let labels: Vec<(&str, &str)> = record.labels.iter().collect();
    assert_eq!(labels, [("rack", "1"), ("zone", "a")], "as far as there is room");
    let kept = record.labels.filtered(|key| key == "zone");
    assert_eq!(kept.iter().collect::<Vec<_>>(), [("zone", "a")]);
}

/// A driver may answer 256 KiB for each volume: thousands of these would be all the memory there is.
#[test]
fn a_publish_context_is_not_kept() {
    let record_of = |metadata: Value| {
        read_attachment(json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": "a", "uid": "u"},
            "spec": {"attacher": "d", "nodeName": "n", "source": {"persistentVolumeName": "v"}},
            "status": {"attached": true, "attachmentMetadata": metadata},
        }))
    };
    let many: BTreeMap<String, &str> = (0..9_000).map(|number| (format!("key-{number}"), "value")).collect();
    for metadata in [json!({"devicePath": "x".repeat(200_000), "lun": "1"}), json!(many)] {
        let record = record_of(metadata);
        assert!(record.has_publish_context);
        assert!(format!("{record:?}").len() < 2_000);
    }
    for metadata in [json!({}), Value::Null] {
        assert!(!record_of(metadata).has_publish_context);
    }
}

/// Who may annotate an attachment or make a PersistentVolume does not fill the memory with that.
#[test]
fn what_others_write_is_kept_within_bounds() {
    let mut annotations: BTreeMap<String, String> = (0..5_000)
        .map(|number| (format!("{number}/traceparent"), "x".repeat(40)))
        .collect();
    for key in ["retry-now", "not-attached-at", "release", "release-refused"] {
        annotations.insert(format!("attacher.csi.dev/{key}"), "y".repeat(50_000));
    }
    annotations.insert("attacher.csi.dev/traceparent".to_owned(), "ours".to_owned());
    let record = read_attachment(json!({
        "metadata": {"name": "a", "uid": "u", "annotations": annotations},
        "spec": {"attacher": "d", "nodeName": "n", "source": {"persistentVolumeName": "v"}},
    }));
    assert!(format!("{record:?}").len() < 8_000, "{}", format!("{record:?}").len());
    assert_eq!(record.trace_context.get("attacher.csi.dev/traceparent"), Some("ours"));
    let volume = |attributes: usize, options: usize| {
        read_volume(json!({
            "metadata": {"name": "v", "uid": "u"},
            "spec": {"mountOptions": ["o".repeat(options)], "csi": {"driver": "d", "volumeHandle": "h",
                "volumeAttributes": {"key": "v".repeat(attributes)}}},
        }))
    };
    assert_eq!(volume(60_000, 60_000).spec.too_large, None);
    for (attributes, options, field) in [
        (70_000, 1, "spec.csi.volumeAttributes"),
        (1, 70_000, "spec.mountOptions"),
    ] {
        let record = volume(attributes, options);
        let too_large = record.spec.too_large.as_deref().unwrap();
        assert_eq!(too_large.field, field);
        assert!(too_large.bytes >= 70_000);
        assert!(format!("{record:?}").len() < 8_000);
        assert_eq!(&*record.spec.csi().unwrap().handle, "h", "it can be detached");
    }
}

/// An entry costs memory beside its text: half a million empty ones are no text and many MiB.
#[test]
fn tiny_entries_are_kept_within_bounds() {
    let most = MAX_VOLUME_FIELD / ENTRY_SIZE;
    let volume = |spec: Value| read_volume(json!({"metadata": {"name": "v", "uid": "u"}, "spec": spec}));
    let attributes =
        |count: usize| -> BTreeMap<String, &str> { (0..count).map(|at| (format!("{at:05}"), "")).collect() };
    let options = volume(json!({"mountOptions": vec![""; 480_000], "csi": {"driver": "d", "volumeHandle": "h"}}));
    let keys = volume(json!({"csi": {"driver": "d", "volumeHandle": "h", "volumeAttributes": attributes(12_000)}}));
    for (record, field) in [(options, "spec.mountOptions"), (keys, "spec.csi.volumeAttributes")] {
        let kept = record.spec.mount_options.len() + record.spec.csi().unwrap().attributes.iter().count();
        assert!(kept <= most, "{field}: {kept} entries");
        assert_eq!(record.spec.too_large.map(|found| found.field), Some(field));
    }
    let few = volume(json!({"mountOptions": vec![""; most], "csi": {"driver": "d", "volumeHandle": "h"}}));
    assert_eq!((few.spec.too_large, few.spec.mount_options.len()), (None, most));
}

/// Where the volume may be besides is a list that anybody can fill who may annotate the object, whoever its driver is.
#[test]
fn a_note_is_kept_within_bounds() {
    let record = |note: Value| {
        read_attachment(json!({
            "metadata": {"name": "a", "uid": "u", "annotations": {crate::api::names::VOLUME_ANNOTATION: note.to_string()}},
            "spec": {"attacher": "of-others", "nodeName": "n", "source": {"persistentVolumeName": "v"}},
        }))
    };
    let places = |count: usize| vec![json!({"handle": "a", "nodeID": "b"}); count];
    let large = record(json!({"handle": "h", "former": places(9_000), "renewed": 3}));
    let note = large.volume_note.expect("it says which volume it is");
    assert_eq!((&*note.handle, note.former.len(), note.renewed), ("h", 0, 3));
    let Some(NoteFault::TooLarge(told)) = large.note_fault.as_deref() else {
        panic!("it is told");
    };
    assert!(told.field.contains(crate::api::names::VOLUME_ANNOTATION) && told.bytes > MAX_VOLUME_FIELD);
    let large = record(json!({"handle": "h".repeat(70_000)}));
    assert!(large.volume_note.is_none() && large.note_fault.is_some());
    let usual = record(json!({"handle": "h", "former": places(100)}));
    assert_eq!((usual.note_fault, usual.volume_note.unwrap().former.len()), (None, 100));
}

/// Ours is found in its place however many stand before it, and no more than the bound is kept.
#[test]
fn finalizers_are_kept_within_bounds() {
    let list = |ours: &str| {
        let mut list = vec!["a".to_owned(); 250_000];
        list.push(ours.to_owned());
        list.push("b/c".to_owned());
        list
    };
    let ours = crate::api::names::finalizer_name("csi.test");
    let attachment = read_attachment(json!({
        "metadata": {"name": "a", "uid": "u", "finalizers": list(&ours)},
        "spec": {"attacher": "csi.test", "nodeName": "n", "source": {"persistentVolumeName": "v"}},
    }));
    let volume = |spec: Value| {
        read_volume(json!({"metadata": {"name": "v", "uid": "u", "finalizers": list(&ours)}, "spec": spec}))
    };
    let of_driver = volume(json!({"csi": {"driver": "csi.test", "volumeHandle": "h"}}));
    for finalizers in [&attachment.finalizers, &of_driver.finalizers] {
        assert_eq!(finalizers.positions(&ours).next(), Some(250_000));
        assert_eq!(finalizers.positions("a").next(), Some(0));
        let kept = finalizers.iter().count();
        assert!(kept <= 1 + MAX_VOLUME_FIELD / ENTRY_SIZE, "{kept} entries");
        assert_eq!(kept + finalizers.left_out(), 250_002);
        assert!(!finalizers.is_empty());
    }
    let of_other = volume(json!({"csi": {"driver": "other", "volumeHandle": "h"}}));
    assert!(!of_other.finalizers.contains(&ours) && of_other.finalizers.left_out() > 0);
    let of_in_tree = Volume::from(
        serde_json::from_value::<PersistentVolumeWire>(json!({
            "metadata": {"name": "v", "finalizers": list("external-attacher/cinder-csi-openstack-org")},
            "spec": {"cinder": {}},
        }))
        .unwrap(),
    );
    assert!(
        of_in_tree
            .finalizers
            .contains("external-attacher/cinder-csi-openstack-org")
    );
}

/// An object with every field that is read, as the API server writes it.
#[allow(clippy::too_many_lines, reason = "a table")]
fn full_objects() -> Vec<(&'static str, Value)> {
    let metadata = |annotations: Value| {
        json!({
            "name": "a", "namespace": "ns", "uid": "u", "resourceVersion": "42", "generation": 1,
            "creationTimestamp": "2026-01-02T03:04:05Z", "deletionTimestamp": "2026-01-02T03:05:05Z",
            "finalizers": ["a/b", "external-attacher/csi-test"], "annotations": annotations,
            "labels": {"topology.kubernetes.io/zone": "a", "topology.kubernetes.io/region": "r"},
            "managedFields": [{"manager": "kcm", "operation": "Update", "subresource": "status", "time": "2026-01-02T03:04:05Z"}],
        })
    };
    let csi = json!({
        "driver": "csi.test", "volumeHandle": "h", "readOnly": true, "fsType": "ext4", "volumeAttributes": {"k": "v"},
        "controllerPublishSecretRef": {"name": "s", "namespace": "ns"},
    });
    let error = json!({"time": "2026-01-02T03:04:05Z", "message": "no", "errorCode": 8});
    let attachment = |source: Value| {
        json!({
            "metadata": metadata(json!({"csi.alpha.kubernetes.io/node-id": "n", "attacher.csi.dev/release": "{}"})),
            "spec": {"attacher": "csi.test", "nodeName": "n1", "source": source},
            "status": {"attached": true, "attachmentMetadata": {"k": "v"}, "attachError": error, "detachError": error},
        })
    };
    let volume = |source: &str, fields: Value| {
        let mut object = json!({
            "metadata": metadata(json!({"pv.kubernetes.io/provisioned-by": "csi.test"})),
            "spec": {
                "accessModes": ["ReadWriteOnce"], "volumeMode": "Block", "mountOptions": ["ro"], "storageClassName": "c",
                "persistentVolumeReclaimPolicy": "Delete", "capacity": {"storage": "1Gi"},
                "claimRef": {"name": "c", "namespace": "ns", "uid": "u"},
            },
            "status": {"phase": "Bound"},
        });
        object["spec"][source] = fields;
        ("PersistentVolume", object)
    };
    let reference = json!({"apiGroup": "g", "kind": "k", "name": "n", "namespace": "ns"});
    vec![
        ("VolumeAttachment", attachment(json!({"persistentVolumeName": "pv1"}))),
        (
            "VolumeAttachment",
            attachment(json!({"inlineVolumeSpec": {"csi": csi, "accessModes": ["ReadWriteOnce"]}})),
        ),
        volume("csi", csi.clone()),
        volume(
            "gcePersistentDisk",
            json!({"pdName": "d", "fsType": "ext4", "partition": 1, "readOnly": true}),
        ),
        volume(
            "awsElasticBlockStore",
            json!({"volumeID": "v", "fsType": "ext4", "partition": 1, "readOnly": true}),
        ),
        volume("cinder", json!({"volumeID": "v", "fsType": "ext4", "readOnly": true})),
        volume(
            "azureDisk",
            json!({"diskURI": "d", "cachingMode": "None", "fsType": "ext4", "readOnly": true, "kind": "Managed"}),
        ),
        volume(
            "azureFile",
            json!({"secretName": "s", "shareName": "s", "readOnly": true, "secretNamespace": "ns"}),
        ),
        volume(
            "vsphereVolume",
            json!({"volumePath": "p", "fsType": "ext4", "storagePolicyName": "n"}),
        ),
        volume("portworxVolume", json!({"volumeID": "v", "fsType": "ext4"})),
        (
            "PersistentVolumeClaim",
            json!({
                "metadata": metadata(json!({"volume.kubernetes.io/selected-node": "n"})),
                "spec": {
                    "volumeName": "v", "storageClassName": "c", "accessModes": ["ReadWriteOnce"], "volumeMode": "Block",
                    "selector": {"matchLabels": {"k": "v"}}, "resources": {"requests": {"storage": "1Gi"}},
                    "dataSource": reference, "dataSourceRef": reference, "volumeAttributesClassName": "c",
                },
                "status": {"phase": "Pending"},
            }),
        ),
        (
            "CSINode",
            json!({
                "metadata": metadata(json!({"a": "b"})),
                "spec": {"drivers": [
                    {"name": "csi.test", "nodeID": "n", "topologyKeys": ["k"], "allocatable": {"count": 1}},
                ]},
            }),
        ),
        (
            "StorageClass",
            json!({
                "metadata": metadata(json!({"a": "b"})), "provisioner": "csi.test", "parameters": {"k": "v"},
                "reclaimPolicy": "Delete", "volumeBindingMode": "Immediate", "mountOptions": ["ro"],
                "allowVolumeExpansion": true,
                "allowedTopologies": [{"matchLabelExpressions": [{"key": "k", "values": ["v"]}]}],
            }),
        ),
        ("Node", json!({"metadata": metadata(json!({"a": "b"}))})),
        (
            "AttacherConfig",
            json!({"metadata": metadata(json!({"a": "b"})), "spec": {"endpoint": "unix:///a"}}),
        ),
    ]
}

fn read(kind: &str, object: Value) -> Result<(), serde_json::Error> {
    match kind {
        "VolumeAttachment" => drop(Attachment::from(serde_json::from_value::<VolumeAttachmentWire>(
            object,
        )?)),
        "PersistentVolume" => drop(Volume::from(serde_json::from_value::<PersistentVolumeWire>(object)?)),
        "PersistentVolumeClaim" => drop(Claim::from(serde_json::from_value::<PersistentVolumeClaimWire>(
            object,
        )?)),
        "CSINode" => drop(CsiNode::from(serde_json::from_value::<CsiNodeWire>(object)?)),
        "StorageClass" => drop(StorageClass::from(serde_json::from_value::<StorageClassWire>(object)?)),
        "Node" => drop(NodeLabels::from(serde_json::from_value::<NodeLabelsWire>(object)?)),
        _ => drop(serde_json::from_value::<crate::api::AttacherConfigObject>(object)?),
    }
    Ok(())
}

/// Where the values of an object are, and what the API server may have in the place of each.
fn odd_values(object: &Value, path: &str, found: &mut Vec<(String, Value)>) {
    let odd = match object {
        Value::String(text) if text.parse::<jiff::Timestamp>().is_ok() => vec![
            // Go's times have the years 0 to 9999, in any zone; they are written in UTC.
            json!("9999-12-31T00:00:00Z"),
            json!("10000-01-01T13:59:59Z"),
            json!("0000-01-01T00:00:00Z"),
            json!("-001-12-31T10:00:00Z"),
            Value::Null,
        ],
        Value::String(_) => vec![json!(""), json!(" "), json!("\u{0}\"🦀".repeat(9000))],
        Value::Number(_) => vec![json!(i32::MIN), json!(i32::MAX), json!(0)],
        Value::Bool(value) => vec![json!(!value)],
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                odd_values(item, &format!("{path}/{at}"), found);
            }
            vec![json!([]), Value::Null]
        }
        Value::Object(fields) => {
            for (key, value) in fields {
                odd_values(value, &format!("{path}/{}", key.replace('/', "~1")), found);
            }
            vec![]
        }
        Value::Null => vec![],
    };
    found.extend(odd.into_iter().map(|value| (path.to_owned(), value)));
}

/// A list or a watch ends at the first object that cannot be read, so that one odd value would stop the work on all others.
#[test]
fn no_value_that_the_api_server_takes_stops_a_list() {
    for (kind, object) in full_objects() {
        read(kind, object.clone()).unwrap();
        let mut odd = Vec::new();
        odd_values(&object, "", &mut odd);
        for (path, value) in odd {
            let mut changed = object.clone();
            *changed.pointer_mut(&path).unwrap() = value.clone();
            let text: String = value.to_string().chars().take(30).collect();
            if let Err(error) = read(kind, changed) {
                panic!("{kind} with {path} = {text}: {error}");
            }
        }
    }
}

/// What cannot be read of the time of a deletion still says that there is one.
#[test]
fn an_odd_time_of_a_deletion_is_one() {
    let (_, mut object) = full_objects().swap_remove(0);
    object["metadata"]["deletionTimestamp"] = json!("9999-12-31T00:00:00Z");
    object["metadata"]["creationTimestamp"] = json!("9999-12-31T00:00:00Z");
    let record = read_attachment(object);
    assert_eq!((record.deleting, record.created), (Some(jiff::Timestamp::MAX), None));
}
