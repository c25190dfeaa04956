//! The marker: what is recorded, and what of it counts.

use serde_json::{Value, json};
use std::sync::Arc;

use super::builders::{
    ClaimWorld, DRIVER, MARKER, NAME, UID, claim_of, class_json, class_of, marker_json, plan_of, world,
};
use crate::provision::topology::Segment;
use crate::provision::{ClaimAction, ClaimReason, Creation, MarkerState, RecordedArguments, request};

/// The annotation that the next step writes.
fn written(world: &ClaimWorld) -> Value {
    let ClaimAction::Mark(write) = world.decide().action else {
        panic!("no marker: {:?}", world.decide())
    };
    let mut claim = world.claim.clone();
    super::patches::apply(&mut claim, &write.body).unwrap();
    serde_json::from_str(claim["metadata"]["annotations"][MARKER].as_str().unwrap()).unwrap()
}

#[test]
fn what_is_recorded() {
    let plain = written(&world());
    let (hash, arguments) = (plain["classHash"].clone(), plain["arguments"].clone());
    assert_eq!(arguments.as_str().map(str::len), Some(32));
    assert_eq!(
        plain,
        json!({
            "driver": DRIVER, "uid": UID, "prefix": "pvc", "classUID": "class-uid", "classHash": hash,
            "arguments": arguments, "since": super::builders::NOW, "writer": super::builders::IDENTITY,
        })
    );
    let delayed = written(&world().delayed());
    assert_eq!(delayed["node"], "n1");
    let found = (&delayed["segment"], delayed.get("first"));
    assert_eq!(found, (&json!({"zone": "a"}), None), "the same is written once");
    assert_eq!(delayed["requisite"].as_str().map(str::len), Some(32));
    let short = written(&world().with(|world| world.policy.volume_name_uuid_length = Some(16)));
    assert_eq!(short["uuidLength"], 16);
}

/// Those of former versions stand in the markers of open calls. That of a class is worked out once for all its claims.
#[test]
fn hashes_are_the_same_in_every_version() {
    let mut class = class_json();
    class["parameters"] = json!({"tier": "1", "pool": "ssd"});
    class["mountOptions"] = json!(["ro", "noatime"]);
    let zones = json!([{"key": "zone", "values": ["a", "b"]}, {"key": "rack", "values": ["1"]}]);
    class["allowedTopologies"] = json!([{"matchLabelExpressions": zones}, {}]);
    let class = class_of(&class);
    assert_eq!(&*class.told_hash, "8eb551d83e2785f26decf08492bebed1");
    assert_eq!(&*class.allowed_hash, "df00123c04ac57841c8d86232415e7bf");
    let delayed = written(&world().delayed());
    assert_eq!(
        delayed["requisite"], "26dc7e21c5628dca6cfbca57c3db252c",
        "zone=a and zone=b"
    );
    let shared = world().observe(|observed| {
        let class = observed.class.here().unwrap();
        let plan = |name: &str| request::plan(observed, class, name, RecordedArguments::default(), true);
        let plans = ["a", "b"].map(|name| plan(name).unwrap().volume);
        plans.iter().all(|plan| {
            Arc::ptr_eq(&plan.class_hash, &class.told_hash) && Arc::ptr_eq(&plan.allowed_hash, &class.allowed_hash)
        })
    });
    assert!(shared);
}

/// A refused call is followed by one with other arguments: these are what the next process has to repeat.
#[test]
fn what_is_recorded_is_what_the_next_call_is_made_with() {
    let refused = |world: ClaimWorld| world.creation(crate::provision::Creation::Refused);
    let again = refused(world().marked()).replaced_class();
    let class = class_of(again.class.as_ref().unwrap());
    assert_eq!(written(&again)["classHash"], json!(&*class.told_hash));
    let moved = world().delayed().marked_with(&written(&world().delayed()));
    let moved = refused(moved).annotate("volume.kubernetes.io/selected-node", "n2");
    let marker = written(&moved);
    let wanted = (&json!("n2"), &json!({"zone": "b"}), None);
    assert_eq!((&marker["node"], &marker["segment"], marker.get("first")), wanted);
    // What was written is enough.
    let done = moved.marked_with(&marker).decide();
    assert!(matches!(done.action, ClaimAction::Create(_)), "{done:?}");
}

/// A call with other settings is not the open one, whichever process makes it.
#[test]
fn the_arguments_of_the_open_call_stay() {
    let first = written(&world());
    let changes: [fn(&mut ClaimWorld); 4] = [
        |world| world.policy.default_fs_type = "xfs".into(),
        |world| world.policy.create_metadata = true,
        |world| world.driver.capabilities.single_node_multi_writer = true,
        |world| world.claim["spec"]["volumeMode"] = json!("Block"),
    ];
    for change in changes {
        let of_another = world()
            .marked_with(&first)
            .with(change)
            .with(|world| world.marker_is_own = false);
        assert_eq!(written(&of_another)["arguments"], first["arguments"]);
        let refused = of_another.creation(crate::provision::Creation::Refused);
        assert_ne!(written(&refused)["arguments"], first["arguments"], "of the next call");
    }
}

/// A claim whose Secret an annotation names, with this one there.
fn with_secret(name: &str) -> ClaimWorld {
    let parameters = json!({
        "csi.storage.k8s.io/provisioner-secret-name": "${pvc.annotations['team']}-${pvc.name}",
        "csi.storage.k8s.io/provisioner-secret-namespace": "${pvc.namespace}",
    });
    let mut world = world().class("/parameters", parameters).annotate("team", name);
    world.secret = crate::provision::ProvisionerSecretState::Loaded;
    world
}

/// What the next step loads or calls with.
fn secret_of(world: &ClaimWorld) -> String {
    match world.decide().action {
        ClaimAction::LoadCredentials(secret) => format!("{}/{}", secret.reference.namespace, secret.reference.name),
        ClaimAction::Create(plan) => plan
            .secret
            .as_ref()
            .map_or_else(String::new, |secret| format!("{}/{}", secret.namespace, secret.name)),
        other => panic!("{other:?}"),
    }
}

/// With another Secret the call may be about another storage system: it would make a second volume there.
#[test]
fn the_secret_of_the_open_call_stays() {
    let first = written(&with_secret("red"));
    assert_eq!(first["secret"], json!({"namespace": "web", "name": "red-data"}));
    let restarted = || with_secret("blue").marked_with(&first);
    assert_eq!(secret_of(&restarted()), "web/red-data");
    let of_another = restarted().with(|world| {
        world.marker_is_own = false;
        world.secret_of = Some(crate::objects::SecretReference {
            namespace: "web".into(),
            name: "red-data".into(),
        });
    });
    assert_eq!(written(&of_another)["secret"], first["secret"]);
    let gone = restarted().with(|world| {
        let annotations = world.claim["metadata"]["annotations"].as_object_mut();
        annotations.unwrap().remove("team");
    });
    assert_eq!(secret_of(&gone), "web/red-data");
    // After a refusal the next call is a first one.
    let refused = restarted().creation(crate::provision::Creation::Refused);
    let wanted = json!({"namespace": "web", "name": "blue-data"});
    assert_eq!(written(&refused)["secret"], wanted);
    // A former release recorded none.
    let mut before = first.clone();
    before.as_object_mut().unwrap().remove("secret");
    assert_eq!(secret_of(&with_secret("blue").marked_with(&before)), "web/blue-data");
}

/// Only a PersistentVolume would name it: what an annotation does not say any more holds up no claim that nobody wants.
#[test]
fn a_secret_that_is_no_argument_of_the_call_is_left_out_where_nobody_wants_the_volume() {
    let open = |family: &str| {
        let name = format!("csi.storage.k8s.io/{family}secret-name");
        let namespace = format!("csi.storage.k8s.io/{family}secret-namespace");
        let parameters = json!({ name: "${pvc.annotations['team']}", namespace: "ns" });
        world().class("/parameters", parameters)
    };
    let unwanted: [fn(ClaimWorld) -> ClaimWorld; 3] = [
        |world| world.deleting(),
        |world| world.of_another_driver(),
        |world| world.bound("static"),
    ];
    let has_secrets = |world: ClaimWorld| match world.decide().action {
        ClaimAction::Create(plan) => Some(!plan.volume.secrets.is_empty()),
        _ => None,
    };
    for family in [
        "controller-publish-",
        "node-stage-",
        "node-publish-",
        "controller-expand-",
        "node-expand-",
        "controller-modify-",
    ] {
        let open = open(family).marked();
        assert_eq!(open.decide().reason, ClaimReason::Invalid, "{family} wanted");
        for make_unwanted in unwanted {
            let there = open.clone().annotate("team", "red");
            assert_eq!(has_secrets(make_unwanted(open.clone())), Some(false), "{family}");
            assert_eq!(has_secrets(make_unwanted(there)), Some(true), "{family}");
        }
    }
    // That of the call is one.
    let of_call = open("provisioner-").marked().deleting();
    assert_eq!(of_call.decide().reason, ClaimReason::Invalid);
    let begun = open("").annotate("team", "red");
    let begun = begun.with(|world| world.secret = crate::provision::ProvisionerSecretState::Loaded);
    let recorded = open("").marked_with(&written(&begun));
    assert_eq!(recorded.decide().reason, ClaimReason::Invalid, "wanted");
    for make_unwanted in unwanted {
        assert_eq!(secret_of(&make_unwanted(recorded.clone())), "ns/red");
    }
}

/// Users of a namespace may write the marker: what the class cannot name is not read.
#[test]
fn a_secret_that_the_class_cannot_name_is_ignored() {
    for (namespace, name) in [
        ("kube-system", "red-data"),
        ("web", "red"),
        ("web", "red-other"),
        ("web", "-data"),
        ("web", "Red-data"),
        ("", ""),
    ] {
        let mut marker = written(&with_secret("red"));
        marker["secret"] = json!({"namespace": namespace, "name": name});
        let world = with_secret("blue").marked_with(&marker);
        assert_eq!(secret_of(&world), "web/blue-data", "{namespace}/{name}");
    }
    // The settings count, too.
    let listed = with_secret("blue")
        .marked_with(&written(&with_secret("red")))
        .with(|world| {
            world.policy.secrets.listed = crate::decide::PublishSecrets::default();
        });
    assert_eq!(listed.decide().reason, ClaimReason::SecretForbidden);
}

/// A person may let a claim go some time after the outcome of its call became unknown, however many processes tried since.
#[test]
fn since_when_it_is_not_known() {
    let of_another = |world: ClaimWorld| written(&world.with(|world| world.marker_is_own = false))["since"].clone();
    assert_eq!(of_another(world().marked()), "2026-01-01T00:00:00Z");
    let mut late = marker_json();
    late["since"] = json!("2036-01-01T00:00:00Z");
    assert_eq!(of_another(world().marked_with(&late)), super::builders::NOW);
    let refused = world().marked().creation(crate::provision::Creation::Refused);
    assert_eq!(of_another(refused), super::builders::NOW, "of the next call");
}

/// A section that was removed and added again with other settings of names does not make a second volume.
#[test]
fn the_name_is_made_as_it_was_begun() {
    let name = |world: ClaimWorld| match world.decide().action {
        ClaimAction::Create(plan) => plan.name.clone(),
        other => panic!("{other:?}"),
    };
    let settings = |prefix: &'static str, length: Option<usize>| {
        move |world: &mut ClaimWorld| {
            world.policy.volume_name_prefix = prefix.into();
            world.policy.volume_name_uuid_length = length;
        }
    };
    for (prefix, length, wanted) in [
        ("pvc", None, NAME),
        ("pvc", Some(16), "pvc-aaaaaaaa11112222"),
        ("old", Some(32), "old-aaaaaaaa111122223333bbbbbbbbbbbb"),
    ] {
        let begun = world().marked_with(&written(&world().with(settings(prefix, length))));
        for (prefix, length) in [("pvc", None), ("pvc", Some(16)), ("new", Some(20))] {
            assert_eq!(&*name(begun.clone().with(settings(prefix, length))), wanted);
        }
    }
}

/// After a restart the call is the same one, whatever node, labels and settings say.
#[test]
fn a_restart_repeats_the_recorded_arguments() {
    let first = world().delayed();
    let plan = plan_of(&first);
    let marked = first.marked_with(&written(&world().delayed()));
    let changes: [fn(&mut ClaimWorld); 5] = [
        |world| world.claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] = json!("n2"),
        |world| world.claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] = json!(""),
        |world| world.node_gone = true,
        |world| world.policy.volume_name_prefix = "other".into(),
        |world| world.claim["metadata"]["deletionTimestamp"] = json!(super::builders::DELETED_AT),
    ];
    for change in changes {
        let world = marked.clone().with(change);
        let ClaimAction::Create(again) = world.decide().action else {
            panic!("{:?}", world.decide())
        };
        assert_eq!((&again.name, again.required_bytes), (&plan.name, plan.required_bytes));
        let requirement = |plan: &crate::provision::CreatePlan| plan.accessibility.clone().unwrap();
        assert_eq!(requirement(&again).first(), requirement(&plan).first());
        assert_eq!((&again.segment, &again.node), (&plan.segment, &plan.node));
    }
}

#[test]
fn whose_it_is() {
    let state = |world: ClaimWorld| MarkerState::of(&claim_of(&world.claim), DRIVER);
    let with = |pointer: &str, value: Value| {
        let mut marker = marker_json();
        super::builders::put(&mut marker, pointer, value);
        state(world().marked_with(&marker))
    };
    assert_eq!(state(world()), MarkerState::Absent);
    let found = state(world().annotate(MARKER, &marker_json().to_string()));
    assert_eq!(found, MarkerState::Absent, "the annotation alone");
    assert!(state(world().marked()).is_recorded());
    let wanted = MarkerState::OfAnotherDriver("other".into());
    assert_eq!(with("/driver", json!("other")), wanted);
    let mut copied = marker_json();
    (copied["uid"], copied["since"]) = (json!("of another claim"), json!("2025-01-01T00:00:00Z"));
    let restored = || world().set("/metadata/creationTimestamp", json!("2026-01-01T00:00:00Z"));
    assert_eq!(state(restored().marked_with(&copied)), MarkerState::Copied);
    let found = state(world().marked_with(&copied));
    assert_eq!(found, MarkerState::Own(None), "nobody knows which is older");
    copied["driver"] = json!("other");
    let wanted = MarkerState::Copied;
    assert_eq!(state(restored().marked_with(&copied)), wanted, "of another driver");
    let restored_claim = claim_of(&restored().marked_with(&copied).claim);
    let wanted = MarkerState::OfAnotherDriver("other".into());
    // For a driver that has nothing to do with the claim.
    assert_eq!(MarkerState::of(&restored_claim, "third"), wanted);
    assert_eq!(state(world().marked_with(&copied)), wanted);
    for unread in [
        with("/uid", json!("of a claim that was made earlier")),
        with("/since", json!("yesterday")),
        with("/segment", json!(["zone"])),
        with("/prefix", json!(null)),
        state(world().marked().annotate(MARKER, "")),
        state(world().marked().annotate(MARKER, &"[".repeat(70_000))),
    ] {
        assert_eq!(unread, MarkerState::Own(None));
    }
}

/// Users of a namespace can write all of it, and gain nothing.
#[test]
fn what_is_forged_is_ignored() {
    let forged = |pointer: &str, value: Value| {
        let mut marker = marker_json();
        super::builders::put(&mut marker, pointer, value);
        world().delayed().marked_with(&marker)
    };
    let name = |world: &ClaimWorld| match world.decide().action {
        ClaimAction::Create(plan) => (
            plan.name.to_string(),
            plan.accessibility.clone().unwrap().preferred[0].clone(),
        ),
        other => panic!("{other:?}"),
    };
    let (own, zone) = name(&world().delayed().marked());
    assert_eq!(own, NAME);
    for prefix in ["../x", "", "A", "-a", &"p".repeat(64)] {
        assert_eq!(name(&forged("/prefix", json!(prefix))).0, NAME, "{prefix}");
    }
    // Another prefix is one of an AttacherConfig from before: still made from the claim's own UID.
    assert_eq!(name(&forged("/prefix", json!("old"))).0, format!("old-{UID}"));
    let shortened = |length: Value| {
        let mut marker = marker_json();
        (marker["prefix"], marker["uuidLength"]) = (json!("old"), length);
        world().delayed().marked_with(&marker)
    };
    assert_eq!(name(&shortened(json!(16))).0, "old-aaaaaaaa11112222");
    for length in [json!(0), json!(8), json!(33), json!(-1), json!("16")] {
        assert_eq!(name(&shortened(length)).0, NAME, "too short to be told from others");
    }
    for first in [json!({"rack": "x"}), json!({})] {
        let found = name(&forged("/first", first)).1;
        assert_eq!(found, zone, "a key that the driver does not register");
    }
    let restricted = forged("/first", json!({"zone": "secret"}));
    let restricted = restricted.class(
        "/allowedTopologies",
        json!([{"matchLabelExpressions": [{"key": "zone", "values": ["a"]}]}]),
    );
    assert_eq!(name(&restricted).1, zone, "what the class does not allow");
    // The hash of what the class allows is no secret.
    let allowed = restricted.class.as_ref().unwrap()["allowedTopologies"].clone();
    let mut with_hash = written(&world().delayed().class("/allowedTopologies", allowed));
    with_hash["first"] = json!({"zone": "secret"});
    let with_hash = restricted.clone().marked_with(&with_hash);
    assert_eq!(name(&with_hash).1, zone, "what the class has never allowed");
    for ignoring in [restricted, with_hash] {
        assert!(is_ignored(&ignoring), "and that is told");
        let unlisted = ignoring.with(|world| world.unknown = "topology");
        assert!(!is_ignored(&unlisted), "once all nodes are known");
    }
}

fn is_ignored(world: &ClaimWorld) -> bool {
    world.observe(|observed| MarkerState::of(observed.claim, DRIVER).is_ignored(observed, NAME))
}

/// Whatever of it does not count, that is told. What is not there, or is not of an open call of this driver, says nothing.
#[test]
fn what_is_ignored_is_told() {
    let begun = written(&with_secret("red"));
    let with = |pointer: &str, value: Value| {
        let mut marker = begun.clone();
        super::builders::put(&mut marker, pointer, value);
        with_secret("red").marked_with(&marker)
    };
    let as_it_was = || with_secret("red").marked_with(&begun);
    let text = |text: &str| as_it_was().annotate(MARKER, text);
    let (refused, called) = (Creation::Refused, super::claim_rows::uncertain(&world()));
    let copy = with("/uid", json!("of another claim"));
    let stripped = as_it_was().with(|world| {
        let annotations = world.claim["metadata"]["annotations"].as_object_mut();
        annotations.unwrap().remove(MARKER);
    });
    for (name, world) in [
        ("as it was written", as_it_was()),
        ("a prefix of other settings", with("/prefix", json!("old"))),
        (
            "a Secret of another annotation",
            with("/secret/name", json!("blue-data")),
        ),
        ("the class is another one", as_it_was().replaced_class()),
        ("of another driver", with("/driver", json!("other.test"))),
        (
            "of a manifest",
            copy.set("/metadata/creationTimestamp", "2026-03-01T00:00:00Z"),
        ),
        ("taken off", stripped),
        ("the claim is another driver's", text("{").of_another_driver()),
        ("the call was refused", text("{").creation(refused)),
        ("this process made the call", text("{").creation(called)),
        ("the claim is gone", text("{").removed()),
    ] {
        assert!(!is_ignored(&world), "{name}");
    }
    for (name, world) in [
        ("a prefix", with("/prefix", json!("../evil"))),
        ("a length", with("/uuidLength", json!(8))),
        ("a Secret", with("/secret/namespace", json!("kube-system"))),
        ("of another claim", with("/uid", json!("of another claim"))),
        ("no JSON", text("{")),
        ("empty", text("")),
        ("too large", text(&"[".repeat(150 << 10))),
    ] {
        assert!(is_ignored(&world), "{name}");
    }
}

/// What was sent is sent again, whatever became of the class and of the nodes: an answer to another topology says nothing of the first call.
#[test]
fn an_open_call_keeps_its_topology() {
    let zones = |values: &[&str]| json!([{"matchLabelExpressions": [{"key": "zone", "values": values}]}]);
    let values: Vec<String> = (0..101).map(|at| at.to_string()).collect();
    let too_many =
        json!([{"matchLabelExpressions": [{"key": "zone", "values": values}, {"key": "rack", "values": values}]}]);
    let delayed = world().delayed();
    let immediate = delayed.clone().class("/volumeBindingMode", "Immediate");
    let immediate = immediate.class("/allowedTopologies", zones(&["a", "b"]));
    for first in [immediate, delayed] {
        let plan = plan_of(&first);
        let sent = plan.accessibility.as_ref().unwrap().first().unwrap();
        let marked = first.clone().marked_with(&written(&first));
        let zone = sent.iter().next().unwrap().1.to_owned();
        let without = |world: &ClaimWorld, terms: Value| world.clone().class("/allowedTopologies", terms);
        let rows = [
            ("as it was", marked.clone(), true),
            (
                "nobody registers its key",
                marked
                    .clone()
                    .with(|world| world.nodes = vec![super::builders::node("n9", &[("rack", "r")])]),
                true,
            ),
            (
                "no nodes at all",
                marked.clone().with(|world| world.nodes.clear()),
                true,
            ),
            ("only its zone is allowed", without(&marked, zones(&[&zone])), true),
            (
                "its zone is not allowed",
                without(&marked, zones(&["elsewhere"])),
                false,
            ),
            ("nothing is asked for", without(&marked, json!([{}])), true),
            (
                "more is allowed than can be multiplied out",
                without(&marked, too_many.clone()),
                false,
            ),
        ];
        for (name, world, is_called) in rows {
            let unwanted = world.clone().deleting().decide();
            for (decision, is_called) in [(world.decide(), is_called), (unwanted, true)] {
                match decision.action {
                    ClaimAction::Create(again) => {
                        assert!(is_called, "{name}");
                        assert_eq!(again.accessibility.as_ref().unwrap().first(), Some(sent), "{name}");
                    }
                    action => {
                        assert!(!is_called, "{name}: {action:?}");
                        assert_eq!(super::claim_rows::word(&action), "tell class_replaced", "{name}");
                    }
                }
            }
        }
    }
}

/// allowedTopologies that come to nothing ask for no topology.
#[test]
fn an_open_call_of_a_class_that_asks_for_no_topology_is_repeated() {
    let first = world().delayed().class("/allowedTopologies", json!([{}]));
    assert_eq!(plan_of(&first).accessibility, None);
    let marker = written(&first);
    let is_segment_alone = marker.get("first").is_none() && marker.get("segment").is_some();
    assert!(is_segment_alone, "{marker}");
    let ClaimAction::Create(again) = first.clone().marked_with(&marker).decide().action else {
        panic!("{:?}", first.marked_with(&marker).decide())
    };
    assert_eq!(again.accessibility, None);
}

/// A former release wrote the first term also where it is the segment.
#[test]
fn a_first_term_that_is_not_written_is_the_segment() {
    let begun = written(&world().delayed());
    let mut former = begun.clone();
    former["first"] = former["segment"].clone();
    for marker in [&begun, &former] {
        let open = world().delayed().marked_with(marker);
        let immediate = open.clone().class("/volumeBindingMode", "Immediate");
        let rows = [
            ("no nodes", open.clone().with(|world| world.nodes.clear())),
            ("another class", immediate.with(|world| world.nodes.clear())),
        ];
        for (name, row) in rows {
            let ClaimAction::Create(again) = row.decide().action else {
                panic!("{name}: {:?}", row.decide())
            };
            let first = again.accessibility.as_ref().unwrap().first();
            assert_eq!(first, Some(&Segment::from([("zone", "a")])), "{name}");
        }
        let refused = open.creation(crate::provision::Creation::Refused);
        let action = refused.decide().action;
        let is_called = matches!(action, ClaimAction::Create(_));
        assert!(is_called, "it is the marker of the next call as well: {action:?}");
    }
}

/// So many labels with keys of this length.
fn labels(count: usize, length: usize) -> Vec<(String, String)> {
    let label = |at: usize| (format!("{at:0>length$}"), "v".repeat(63));
    (0..count).map(label).collect()
}

/// The selected node has these labels, and the driver registered all of them.
fn with_labels(labels: &[(String, String)]) -> ClaimWorld {
    let labels: Vec<(&str, &str)> = labels.iter().map(|(key, value)| (&**key, &**value)).collect();
    let nodes = vec![super::builders::node("n1", &labels)];
    world().delayed().with(|world| world.nodes = nodes)
}

/// Some drivers register every label of a node.
#[test]
fn hundreds_of_topology_keys_are_recorded() {
    for count in [65, 200] {
        let first = with_labels(&labels(count, 65));
        let plan = plan_of(&first);
        assert_eq!(plan.segment.as_ref().map(Segment::len), Some(count));
        let marked = first.clone().marked_with(&written(&first));
        let call = marked.clone().creation(crate::provision::Creation::Never).decide();
        let is_called = matches!(&call.action, ClaimAction::Create(called) if *called == plan);
        assert!(is_called, "{count}: {call:?}");
        // The next process, after the node is gone.
        let next = marked.with(|world| {
            world.nodes.clear();
            world.marker_is_own = false;
        });
        let again = next.clone().marked_with(&written(&next));
        let ClaimAction::Create(again) = again.with(|world| world.marker_is_own = true).decide().action else {
            panic!("{count}: no call")
        };
        let wanted = (&plan.segment, &plan.accessibility);
        assert_eq!((&again.segment, &again.accessibility), wanted);
    }
}

#[test]
fn a_topology_that_does_not_fit_is_refused_before_any_call() {
    let labels = labels(150, 200);
    let allowed = labels[1..].iter();
    let allowed = allowed.map(|(key, value)| json!({"key": key, "values": [value]}));
    let allowed: Value = allowed.collect();
    let world = with_labels(&labels).class("/allowedTopologies", json!([{ "matchLabelExpressions": allowed }]));
    let ClaimAction::Refuse(cause) = world.decide().action else {
        panic!("{:?}", world.decide())
    };
    assert!(cause.to_string().contains("at most 65536"), "{cause}");
}
