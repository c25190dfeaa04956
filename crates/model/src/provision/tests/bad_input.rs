//! Input that is too large or senseless ends in an error with a name.

use serde_json::{Value, json};
use std::collections::BTreeMap;

use super::builders::{answered_volume, claim_of, class_json, class_of, plan_of, world};
use crate::provision::topology::{MAX_TERMS, Segment};
use crate::provision::{
    AnsweredVolume, ClaimAction, ClassParameters, InvalidAnswer, NewVolume, ProvisionRefusal, TemplateFault,
    VolumeFault,
};

fn refused(world: &super::builders::ClaimWorld) -> ProvisionRefusal {
    match world.decide().action {
        ClaimAction::Refuse(cause) => *cause,
        other => panic!("{other:?}"),
    }
}

/// A MB of annotations costs no memory, and only a template that may read one of them is refused.
#[test]
fn a_megabyte_of_annotations() {
    let mut world = world();
    for at in 0..1000 {
        world = world.annotate(&format!("noise/{at:04}"), &"x".repeat(1000));
    }
    let claim = claim_of(&world.claim);
    assert!(claim.annotations_left_out > 900);
    let kept: usize = claim
        .annotations
        .iter()
        .map(|(key, value)| key.len() + value.len())
        .sum();
    assert!(kept <= crate::objects::MAX_OTHER_ANNOTATIONS);
    let is_marked = matches!(world.decide().action, ClaimAction::Mark(_));
    assert!(is_marked, "what is read is kept");
    let template = |name: &str| {
        let parameters = json!({"csi.storage.k8s.io/provisioner-secret-name": name, "csi.storage.k8s.io/provisioner-secret-namespace": "x"});
        world.clone().class("/parameters", parameters)
    };
    let refusal = refused(&template("${pvc.annotations['noise/0999']}"));
    let is_told = matches!(&refusal, ProvisionRefusal::SecretTemplate { fault: TemplateFault::AnnotationsTooLarge(left_out), .. } if *left_out > 900);
    assert!(is_told, "{refusal}");
    assert!(matches!(template("s").decide().action, ClaimAction::LoadCredentials(_)));
    // A bound claim keeps none.
    assert!(claim_of(&world.bound("x").claim).annotations.is_empty());
}

#[test]
fn a_template_that_grows() {
    let name = "${pvc.annotations['a']}".repeat(500);
    let world = world()
        .annotate("a", &"x".repeat(8000))
        .class("/parameters", json!({"csi.storage.k8s.io/provisioner-secret-name": name, "csi.storage.k8s.io/provisioner-secret-namespace": "x"}));
    let refusal = refused(&world);
    let ProvisionRefusal::SecretTemplate {
        fault: TemplateFault::InvalidName { resolved, .. },
        ..
    } = &refusal
    else {
        panic!("{refusal}")
    };
    assert!(resolved.len() <= 300);
    assert!(crate::provision::event::note(&refusal.to_string()).len() <= crate::provision::event::MAX_NOTE);
}

/// The API server accepts 512.
#[test]
fn a_class_with_512_parameters() {
    let parameters: BTreeMap<String, &str> = (0..512).map(|at| (format!("key-{at}"), "value")).collect();
    let plan = plan_of(&world().class("/parameters", json!(parameters)));
    assert_eq!(plan.parameters.iter().count(), 512);
}

#[test]
fn a_class_of_a_megabyte() {
    let many: Vec<String> = (0..2000).map(|at| format!("{at:0>500}")).collect();
    let rows: [(&str, Value); 3] = [
        ("parameters", json!({"key": "x".repeat(1 << 20)})),
        ("mountOptions", json!(many)),
        (
            "allowedTopologies",
            json!([{"matchLabelExpressions": [{"key": "zone", "values": many}]}]),
        ),
    ];
    for (field, value) in rows {
        let mut class = class_json();
        class[field] = value;
        let class = class_of(&class);
        assert!(class.parameters.is_empty() && class.mount_options.is_empty() && class.allowed_topologies.is_empty());
        let refusal = ClassParameters::of(&class).unwrap_err();
        let is_told = matches!(refusal, ProvisionRefusal::ClassTooLarge { field: found, .. } if found == field);
        assert!(is_told, "{refusal}");
    }
}

fn answered(change: impl FnOnce(&mut AnsweredVolume)) -> Result<NewVolume, InvalidAnswer> {
    let mut answer = answered_volume();
    change(&mut answer);
    NewVolume::of_answer(&plan_of(&world().delayed()), Some(answer))
}

#[test]
fn answers_of_the_driver() {
    let wanted = Err(InvalidAnswer::LongHandle(10 << 10));
    assert_eq!(answered(|answer| answer.handle = "h".repeat(10 << 10).into()), wanted);
    let wanted = Err(InvalidAnswer::EmptyHandle);
    assert_eq!(answered(|answer| answer.handle = "".into()), wanted);
}

/// Its ID is known, so that it can be deleted; and what is too large is kept nowhere.
#[test]
fn answers_of_the_driver_that_are_too_large() {
    let segment = |at: usize| Segment::from([("zone", at.to_string().as_str())]);
    let wide = |count: usize| {
        let entries = (0..count).map(|at| (at.to_string().into(), "x".into()));
        Segment::from(entries.collect::<BTreeMap<Box<str>, Box<str>>>())
    };
    let context: BTreeMap<String, String> = [("k".to_owned(), "x".repeat(1 << 20))].into();
    let fault = |change: &dyn Fn(&mut AnsweredVolume)| {
        let volume = answered(|answer| change(answer)).unwrap();
        assert!(volume.context.is_empty() && volume.topology.is_empty() && !volume.is_usable());
        assert_eq!(&*volume.handle, "vol-1");
        volume.fault.unwrap()
    };
    let many = fault(&|answer| answer.topology = (0..=MAX_TERMS).map(segment).collect());
    assert_eq!(many, VolumeFault::TooManyTopologies(MAX_TERMS + 1));
    // A volume may be reachable from each node, whatever was asked for.
    let most = answered(|answer| answer.topology = (0..MAX_TERMS).map(segment).collect()).unwrap();
    assert!(most.is_usable() && most.topology.len() == MAX_TERMS);
    let all_labels = answered(|answer| answer.topology = vec![wide(1000)]).unwrap();
    assert!(all_labels.is_usable() && all_labels.topology == [wide(1000)]);
    let wanted = VolumeFault::TopologyTooLarge(104_890);
    assert_eq!(fault(&|answer| answer.topology = vec![wide(2000)]), wanted);
    let found = fault(&|answer| answer.context = context.clone().into());
    assert!(matches!(found, VolumeFault::ContextTooLarge(_)));
}

#[test]
fn claims_that_make_no_sense() {
    let many = ["ReadWriteOnce"].repeat(17);
    for (pointer, value, reason) in [
        ("/spec/accessModes", json!([]), "invalid_claim"),
        ("/spec/accessModes", json!(["Later"]), "invalid_claim"),
        ("/spec/accessModes", json!(null), "invalid_claim"),
        ("/spec/accessModes", json!(many), "invalid_claim"),
        ("/spec/resources/requests/storage", json!("1Zi"), "invalid_claim"),
        ("/spec/resources/requests/storage", json!("0"), "invalid_claim"),
        ("/spec/resources", json!(null), "invalid_claim"),
        ("/metadata/uid", json!(""), "invalid_claim"),
    ] {
        let found = refused(&world().set(pointer, value.clone())).reason();
        assert_eq!(found, reason, "{pointer} {value}");
    }
    let long = refused(&world().set("/spec/resources/requests/storage", "9".repeat(100_000)));
    assert!(long.to_string().len() < 300);
    let prefix = world().with(|world| world.policy.volume_name_prefix = "p".repeat(200).into());
    assert_eq!(refused(&prefix), ProvisionRefusal::VolumeNameTooLong(237));
}

/// Whatever one field of an object is, it is read or refused.
#[test]
fn no_field_ends_in_a_panic() {
    let odd = [
        json!(null),
        json!(""),
        json!(" "),
        json!("é\u{0}"),
        json!("x".repeat(100_000)),
        json!({}),
        json!([]),
        json!(["", ""]),
        json!(7),
    ];
    for pointer in [
        "/metadata/uid",
        "/metadata/name",
        "/metadata/resourceVersion",
        "/metadata/finalizers",
        "/metadata/deletionTimestamp",
        "/metadata/annotations",
        "/spec/storageClassName",
        "/spec/volumeName",
        "/spec/accessModes",
        "/spec/volumeMode",
        "/spec/selector",
        "/spec/dataSource",
        "/spec/resources/requests/storage",
        "/spec/volumeAttributesClassName",
        "/status/phase",
        "/spec",
        "/status",
    ] {
        for value in &odd {
            let world = world().marked().set(pointer, value.clone());
            let wire = serde_json::from_value::<crate::objects::PersistentVolumeClaimWire>(world.claim.clone());
            if wire.is_ok() {
                world.decide();
            }
        }
    }
    for pointer in [
        "/parameters",
        "/mountOptions",
        "/allowedTopologies",
        "/reclaimPolicy",
        "/volumeBindingMode",
        "/provisioner",
    ] {
        for value in &odd {
            let world = world().class(pointer, value.clone());
            if serde_json::from_value::<crate::objects::StorageClassWire>(world.class.clone().unwrap()).is_ok() {
                world.decide();
            }
        }
    }
}
