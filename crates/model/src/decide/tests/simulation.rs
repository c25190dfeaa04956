//! P8 and P10: fingerprints over whole histories, and a driver that keeps its volume while objects say so.

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use super::builders::{FINALIZER, attachment, volume};
use super::strategies::worlds;
use super::world::{DecideModel, Requeue, world};
use crate::decide::observe;
use crate::decide::{self, Action, Failure, SecretState};

/// What is decided, without the patches: these repeat finalizers of others, which decide nothing.
fn essence(world: &DecideModel) -> String {
    let snapshot = world.snapshot().unwrap();
    let observed = observe(&snapshot, &world.driver, &world.policy, SecretState::Loaded);
    match decide::attachment(&observed) {
        Action::ProtectVolume(_) => "protect".to_owned(),
        Action::Claim(_) => "claim".to_owned(),
        Action::MarkAttached(_) => "mark".to_owned(),
        Action::Release(_) => "release".to_owned(),
        action => format!("{action:?}"),
    }
}

/// What we write ourselves on the way to an attach.
fn own_state(world: &DecideModel) -> Vec<Value> {
    let (va, pv) = (world.attachment.as_ref().unwrap(), world.volume.as_ref());
    let ours = |object: &Value| {
        json!(
            object["metadata"]["finalizers"]
                .as_array()
                .is_some_and(|list| list.contains(&json!(FINALIZER)))
        )
    };
    vec![
        ours(va),
        pv.map(ours).unwrap_or_default(),
        va["metadata"]["annotations"]["csi.alpha.kubernetes.io/node-id"].clone(),
        va["metadata"]["annotations"]["attacher.csi.dev/volume"].clone(),
    ]
}

/// One thing that another party may change.
fn change(world: &mut DecideModel, what: usize) {
    let (va, pv) = (world.attachment.as_mut().unwrap(), world.volume.take());
    let set = |object: &mut Value, pointer: &str, value: Value| {
        if let Some(place) = object.pointer_mut(pointer) {
            *place = value;
        }
    };
    let mut pv = pv;
    match what {
        0 => va["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z".into(),
        1 => va["status"]["attached"] = true.into(),
        2 => va["metadata"]["annotations"]["attacher.csi.dev/retry-now"] = "again".into(),
        3 => va["metadata"]["annotations"]["attacher.csi.dev/volume"] = r#"{"handle":"noted"}"#.into(),
        4 => va["metadata"]["finalizers"] = json!([FINALIZER]),
        5 => va["metadata"]["uid"] = "another".into(),
        6 => va["spec"]["attacher"] = "other.test".into(),
        7 => va["spec"]["source"] = json!({"persistentVolumeName": "pv1", "inlineVolumeSpec": {}}),
        8 => va["spec"]["source"] = json!({}),
        9 => world.node = None,
        10 => world.node = Some(super::builders::csi_node(None)),
        11 => world.node = Some(super::builders::csi_node(Some("nodeID3"))),
        12 => pv = None,
        13 => pv = Some(volume().protected().0),
        _ => {
            if let Some(pv) = &mut pv {
                match what {
                    14 => pv["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z".into(),
                    15 => set(pv, "/spec/csi/driver", json!("third.test")),
                    16 => set(pv, "/spec/csi/volumeHandle", json!("handle3")),
                    17 => pv["spec"]["accessModes"] = json!(["ReadWriteOncePod"]),
                    18 => pv["spec"]["volumeMode"] = "Block".into(),
                    19 => pv["spec"]["mountOptions"] = json!(["noatime"]),
                    20 => set(
                        pv,
                        "/spec/csi",
                        json!({"driver": "csi/test", "volumeHandle": "handle1", "readOnly": true}),
                    ),
                    21 => pv["spec"] = json!({"vsphereVolume": {}}),
                    22 => pv["metadata"]["uid"] = "another".into(),
                    23 => set(
                        pv,
                        "/spec/csi",
                        json!({"driver": "csi/test", "volumeHandle": "handle1", "fsType": "xfs",
                               "controllerPublishSecretRef": {"namespace": "a", "name": "b"}}),
                    ),
                    _ => set(
                        pv,
                        "/spec/csi",
                        json!({"driver": "csi/test", "volumeHandle": "handle1", "volumeAttributes": {"new": "1"}}),
                    ),
                }
            }
        }
    }
    world.volume = pv;
}

proptest! {
    /// P8: what changes the decision changes the fingerprint, unless we wrote it.
    #[test]
    fn a_change_that_matters_shows_in_the_fingerprint(world in worlds(), what in 0..25_usize, advanced: bool) {
        let mut world = world;
        if advanced {
            world.advance();
        }
        let mut changed = world.clone();
        change(&mut changed, what);
        let deleting = !changed.attachment.as_ref().unwrap()["metadata"]["deletionTimestamp"].is_null();
        let comparable = deleting || own_state(&world) == own_state(&changed);
        if comparable && essence(&world) != essence(&changed) {
            prop_assert_ne!(world.fingerprint(), changed.fingerprint(), "change {}", what);
        }
    }

    /// P8: what does not decide is not in it, so that the echo of an error or of somebody's finalizer wakes nobody.
    #[test]
    fn echoes_have_the_same_fingerprint(world in worlds()) {
        let mut echo = world.clone();
        let va = echo.attachment.as_mut().unwrap();
        va["status"]["attachError"] = json!({"message": "new", "errorCode": 4});
        va["status"]["detachError"] = json!({"message": "new"});
        va["metadata"]["resourceVersion"] = "99".into();
        va["metadata"]["managedFields"] = json!([{"manager": "someone"}]);
        if let Some(pv) = &mut echo.volume {
            pv["metadata"]["resourceVersion"] = "99".into();
            pv["metadata"]["labels"] = json!({"a": "b"});
        }
        prop_assert_eq!(world.fingerprint(), echo.fingerprint());
    }

    /// P8: our own writes on the way to an attach, and errors of it, leave the fingerprint as it is.
    #[test]
    fn own_writes_keep_the_fingerprint(world in worlds(), failing in 0..3_usize) {
        let mut world = world;
        let before = world.fingerprint();
        let deleting = world.snapshot().unwrap().attachment.deleting.is_some();
        for _ in 0..failing {
            world.answers.push_back(Err(Failure::plain("no")));
            if world.attempt() == Requeue::Retry && !deleting {
                prop_assert_eq!(before, world.fingerprint());
            }
            world.answers.clear();
        }
    }
}

/// What happens in a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// An attempt at which nothing fails.
    Attempt,
    /// The driver answers an error; it did nothing.
    Fails,
    /// The driver answers an error though it did what it was asked for.
    FailsLate,
    /// The API server refuses the patch of the attachment with this number.
    Refused(usize),
    Delete,
    DeleteVolume,
    NodeGoes,
    NodeComes,
    SomebodysFinalizer,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    use Event::{Attempt, Delete, DeleteVolume, Fails, FailsLate, NodeComes, NodeGoes, Refused, SomebodysFinalizer};
    let all = vec![
        Attempt,
        Attempt,
        Fails,
        FailsLate,
        Refused(1),
        Refused(2),
        Refused(3),
        Delete,
        DeleteVolume,
        NodeGoes,
        NodeComes,
        SomebodysFinalizer,
    ];
    prop::collection::vec(select(all), 1..14)
}

/// Where the driver has the volume, by the calls that did something.
fn note_calls(log: &[String], published: &mut Option<String>) {
    for call in log {
        let node_id = call.split(' ').nth(2).unwrap_or_default().to_owned();
        if call.starts_with("pub ") {
            *published = Some(node_id);
        } else if call.starts_with("unpub ") && published.as_ref() == Some(&node_id) {
            *published = None;
        }
    }
}

fn mark_deleted(object: &mut Option<Value>) {
    let Some(current) = object else { return };
    current["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z".into();
    if current["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty) {
        *object = None;
    }
}

fn happen(world: &mut DecideModel, event: Event, published: &mut Option<String>) {
    let failing = matches!(event, Event::Fails | Event::FailsLate);
    match event {
        Event::Delete => mark_deleted(&mut world.attachment),
        Event::DeleteVolume => mark_deleted(&mut world.volume),
        Event::NodeGoes => world.node = None,
        Event::NodeComes => world.node = Some(super::builders::csi_node(Some("nodeID1"))),
        Event::SomebodysFinalizer => {
            if let Some(va) = world
                .attachment
                .as_mut()
                .filter(|va| va["metadata"]["deletionTimestamp"].is_null())
            {
                let mut list = va["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
                if !list.contains(&json!("a/b")) {
                    list.insert(0, json!("a/b"));
                }
                va["metadata"]["finalizers"] = list.into();
            }
        }
        Event::Attempt | Event::Fails | Event::FailsLate | Event::Refused(_) => {
            let from = world.log.len();
            if failing {
                world.answers.push_back(Err(Failure::plain("no")));
            }
            if let Event::Refused(nth) = event {
                world.refuse_next(nth);
            }
            world.attempt();
            world.answers.clear();
            let calls = world.log[from..].to_vec();
            // A failure that did nothing leaves the volume where it was; of a late one only the answer was wrong.
            if event != Event::Fails {
                note_calls(&calls, published);
            }
            let attachments = usize::from(world.attachment.is_some());
            world.volume_attempt(attachments);
        }
    }
}

proptest! {
    /// P10: while the driver may have the volume published, the attachment and the volume carry our finalizer; and when
    /// faults end and it is deleted, everything goes.
    #[test]
    fn nothing_is_let_go_while_it_is_attached(events in events()) {
        let mut world = world().pv(volume()).node().va(attachment());
        let mut published = None;
        let ours = |object: &Option<Value>| {
            object.as_ref().is_some_and(|object| {
                object["metadata"]["finalizers"].as_array().is_some_and(|list| list.contains(&json!(FINALIZER)))
            })
        };
        for event in events {
            happen(&mut world, event, &mut published);
            if published.is_some() {
                prop_assert!(ours(&world.attachment), "{event:?}: {:?}", world.log);
                prop_assert!(ours(&world.volume), "{event:?}: {:?}", world.log);
            }
        }
        world.refused.0.clear();
        happen(&mut world, Event::NodeComes, &mut published);
        happen(&mut world, Event::Delete, &mut published);
        happen(&mut world, Event::DeleteVolume, &mut published);
        happen(&mut world, Event::Attempt, &mut published);
        prop_assert_eq!(published, None);
        prop_assert!(!ours(&world.attachment), "{:?}", world.log);
        // Whoever else held the attachment lets go as well, which is when the volume may.
        world.attachment = None;
        world.volume_attempt(0);
        prop_assert!(!ours(&world.volume), "{:?}", world.log);
    }
}
