//! A volume that another node has.

use serde_json::json;
use std::sync::Arc;

use super::builders::{
    attachment, before, both, claimed, detaching, error, event, holder, node, unready, unrequested, volume, with,
};
use super::rows::{play, row};
use crate::explain::holders::awaits;
use crate::explain::{Case, chain};
use crate::observed::{Lookup, NodeRecord};

fn attached() -> serde_json::Value {
    json!({"status": {"attached": true}})
}

fn held(node: NodeRecord, pods: &[(&str, Option<i64>)]) -> crate::observed::Scene {
    unrequested(|scene| scene.holders = Lookup::Found(vec![holder(attached(), node, pods)]))
}

/// The node, whose kubelet says that it has the volume mounted.
fn mounted(node: NodeRecord) -> NodeRecord {
    NodeRecord {
        volumes_in_use: vec!["kubernetes.io/csi/ssd.csi.test^h1".to_owned()],
        ..node
    }
}

#[test]
fn who_has_the_volume() {
    let tainted = NodeRecord {
        out_of_service: Some(Some(before(20))),
        ..unready("node2")
    };
    play(vec![
        row(
            "multi-attach",
            held(node("node2"), &[("shop/web-0", None)]),
            Case::UsedOnOtherNode,
            &[
                "pod shop/web-0 uses it on node node2",
                "pod shop/web-0 belongs to ReplicaSet/web-5d9",
                "kubectl get pod web-0 --namespace shop --output wide",
            ],
        ),
        row(
            "the old pod ends",
            held(mounted(node("node2")), &[("shop/web-0", Some(15))]),
            Case::WaitingForUnmount,
            &["still mounted on node node2", "of pod shop/web-0"],
        ),
        row(
            "out-of-service taint",
            held(tainted.clone(), &[]),
            Case::OutOfServiceTaint,
            &["out-of-service taint"],
        ),
        row(
            "nobody uses it",
            held(node("node2"), &[]),
            Case::WaitingForDetach,
            &[
                "no pod on that node uses it any more",
                "requests the detach from node node2 at once",
            ],
        ),
        row(
            "being detached",
            unrequested(|scene| {
                scene.holders = Lookup::Found(vec![holder(detaching(40), node("node2"), &[])]);
            }),
            Case::WaitingForDetach,
            &["is being detached from node node2", "kubectl attacher why va csi-2"],
        ),
        row(
            "being detached from a tainted node",
            unrequested(|scene| scene.holders = Lookup::Found(vec![holder(detaching(40), tainted, &[])])),
            Case::OutOfServiceTaint,
            &["is being detached from node node2, which has the out-of-service taint"],
        ),
        row(
            "its detach keeps failing",
            unrequested(|scene| {
                let mut other = holder(
                    both(
                        detaching(40),
                        &error("detachError", "rpc error: code = Internal desc = no"),
                    ),
                    node("node2"),
                    &[],
                );
                other.events = Lookup::Found(vec![event(
                    "volume h1: attempt 3 to detach it from node node2 failed; retrying in 8.0 s: no",
                    4,
                )]);
                scene.holders = Lookup::Found(vec![other]);
            }),
            Case::WaitingForDetach,
            &["and that keeps failing", "\"code\":\"Internal\"", "\"number\":3"],
        ),
        row(
            "the attacher holds it back",
            with(|scene| scene.holders = Lookup::Found(vec![holder(detaching(40), node("node2"), &[])])),
            Case::WaitingForDetach,
            &["is being detached from node node2", "\"attachment\":\"csi-2\""],
        ),
        row(
            "the driver refuses meanwhile",
            with(|scene| {
                let text = "rpc error: code = FailedPrecondition desc = published to another node";
                scene.attachment = Lookup::Found(attachment(both(claimed(), &error("attachError", text))));
                let failing = both(
                    detaching(40),
                    &error("detachError", "rpc error: code = Internal desc = no"),
                );
                scene.holders = Lookup::Found(vec![holder(failing, node("node2"), &[])]);
            }),
            Case::WaitingForDetach,
            &[
                "and that keeps failing",
                "published to another node",
                "kubectl attacher why va csi-2",
            ],
        ),
        row(
            "attached twice",
            with(|scene| {
                scene.attachment = Lookup::Found(attachment(both(claimed(), &attached())));
                scene.holders = Lookup::Found(vec![holder(attached(), node("node2"), &[])]);
            }),
            Case::AttachedTwice,
            &["data may be damaged"],
        ),
        row(
            "nobody could list",
            unrequested(|scene| scene.holders = Lookup::Unknown),
            Case::NotVisible,
            &["may be attached to another node"],
        ),
    ]);
}

/// Whom the attacher waits for may have been deleted and made again since: nobody says that its detach was requested.
#[test]
fn an_attachment_that_is_waited_for_and_not_deleted_is_not_being_detached() {
    let other = |edit| {
        let made = json!({"metadata": {"creationTimestamp": before(90).to_string()}});
        holder(both(edit, &made), node("node2"), &[])
    };
    let waiting = attachment(claimed());
    for (edit, since, words) in [
        (attached(), before(90), "no pod on that node uses it any more"),
        (detaching(40), before(40), "is being detached from node node2"),
    ] {
        let scene = with(|scene| scene.holders = Lookup::Found(vec![other(edit)]));
        let found = awaits(&scene, &waiting, "csi-2");
        assert!(found.summary.contains(words), "{}", found.summary);
        assert_eq!(found.since, Some(since), "{}", found.summary);
        assert!(found.holder.is_some());
    }
}

/// kube-controller-manager wants the volume there until the last pod object is gone, and then waits for the unmount.
#[test]
fn a_node_that_is_not_ready() {
    let (deleted, running) = ([("shop/web-0", Some(60))], [("shop/web-0", None)]);
    let down = |pods: &[(&str, Option<i64>)]| held(mounted(unready("node2")), pods);
    let unlisted = |node| {
        let mut other = holder(attached(), node, &[]);
        other.pods = Lookup::Unknown;
        unrequested(|scene| scene.holders = Lookup::Found(vec![other]))
    };
    let stays = &[
        "pod shop/web-0 stays Terminating while node node2 is not Ready",
        "requests nothing until the pod object is gone",
        "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute",
    ];
    play(vec![
        row("its pod is deleted", down(&deleted), Case::WaitingForUnmount, stays),
        row(
            "its pod is deleted, and the volume is not mounted",
            held(unready("node2"), &deleted),
            Case::WaitingForUnmount,
            stays,
        ),
        row(
            "its pod is not deleted yet",
            down(&running),
            Case::WaitingForUnmount,
            &[
                "5 minutes by default",
                "then pod shop/web-0 stays Terminating while node node2 is not Ready",
            ],
        ),
        row(
            "its pod is gone",
            down(&[]),
            Case::WaitingForUnmount,
            &["up to 6 minutes after the last pod that uses the volume is gone"],
        ),
        row(
            "its pod is gone, and the volume is not mounted",
            held(unready("node2"), &[]),
            Case::WaitingForDetach,
            &["requests the detach from node node2 at once"],
        ),
        row(
            "its pods could not be listed",
            unlisted(mounted(unready("node2"))),
            Case::WaitingForUnmount,
            &["up to 6 minutes after the last pod that uses the volume is gone"],
        ),
        row(
            "its pods could not be listed, and the volume is not mounted",
            unlisted(unready("node2")),
            Case::WaitingForDetach,
            &["requests the detach from node node2 once no pod on it uses the volume"],
        ),
    ]);
    // Nor is a volume on a Ready node ever detached by force.
    let ready = held(mounted(node("node2")), &deleted);
    for scene in [down(&deleted), down(&running), ready] {
        let said = serde_json::to_string(&chain(&scene).diagnosis).unwrap();
        for time in ["6 minutes", "12:05"] {
            assert!(!said.contains(time), "{time}: {said}");
        }
    }
}

/// Whoever has the volume by now: what a pod that ended needs is nothing.
#[test]
fn a_pod_that_ended_waits_for_nothing() {
    type Edit = fn(&mut crate::observed::Scene);
    let over = |phase: &str, edit: Edit| {
        unrequested(|scene| {
            scene.pod.as_mut().unwrap().phase = phase.to_owned();
            edit(scene);
        })
    };
    let ended = |edit: Edit| over("Succeeded", edit);
    play(vec![
        row(
            "another pod has the volume on another node",
            ended(|scene| {
                scene.holders = Lookup::Found(vec![holder(attached(), node("node2"), &[("shop/web-0", None)])])
            }),
            Case::NotUsed,
            &["the pod has ended (Succeeded) and needs no volume any more"],
        ),
        row("nobody has it", over("Failed", |_| {}), Case::NotUsed, &["(Failed)"]),
        row(
            "it never had a node",
            over("Failed", |scene| {
                scene.pod.as_mut().unwrap().node = None;
                scene.node_name = None;
            }),
            Case::NotUsed,
            &[],
        ),
        row(
            "the claim is deleted",
            ended(|scene| {
                scene.claim = Lookup::Missing;
                (scene.volume_name, scene.volume) = (None, Lookup::Unknown);
                scene.driver.name.clear();
                scene.attachment = Lookup::Unknown;
            }),
            Case::NotUsed,
            &[],
        ),
        row(
            "the PersistentVolume is being deleted",
            ended(|scene| scene.volume = volume(json!({"metadata": {"deletionTimestamp": "2026-01-01T11:59:00Z"}}))),
            Case::NotUsed,
            &[],
        ),
        row(
            "its own attachment is left over",
            ended(|scene| scene.attachment = Lookup::Found(attachment(detaching(5)))),
            Case::Detaching,
            &[],
        ),
        row(
            "its own attachment may be left over",
            ended(|scene| scene.attachment = Lookup::Unknown),
            Case::NotVisible,
            &["VolumeAttachments could not be read"],
        ),
    ]);
}

/// The pods of a node that is gone have no toleration that ends.
#[test]
fn nothing_is_asked_of_a_node_that_does_not_exist() {
    let gone = |deleted| {
        let mut other = holder(attached(), node("node2"), &[("shop/web-0", deleted)]);
        other.node = Lookup::Missing;
        unrequested(|scene| scene.holders = Lookup::Found(vec![other]))
    };
    let parts = &[
        "that node does not exist",
        "deletes the pods of node node2, and requests the detach 6 minutes later",
        "at the cloud or the hypervisor whether machine node2 still runs",
        "kubectl attacher why va csi-2",
    ];
    play(vec![
        row("its pod is deleted", gone(Some(60)), Case::WaitingForUnmount, parts),
        row("its pod is still there", gone(None), Case::WaitingForUnmount, parts),
    ]);
    for scene in [gone(Some(60)), gone(None)] {
        let said = serde_json::to_string(&chain(&scene).diagnosis).unwrap();
        for word in ["describe node", "out-of-service", "toleration", "12:05"] {
            assert!(!said.contains(word), "{word}: {said}");
        }
    }
}

/// A volume for many nodes is held by nobody.
#[test]
fn shared_volumes_wait_for_nobody() {
    let scene = unrequested(|scene| {
        scene.volume = volume(json!({"spec": {"accessModes": ["ReadWriteMany"]}}));
        scene.holders = Lookup::Found(vec![holder(attached(), node("node2"), &[("shop/web-0", None)])]);
    });
    assert_eq!(chain(&scene).diagnosis.case, Case::NotRequested);
}

#[test]
fn the_holder_is_named() {
    let found = chain(&held(node("node2"), &[("shop/web-0", None)]));
    let holder = found.diagnosis.holder.unwrap();
    assert_eq!((holder.node.as_str(), holder.attachment.as_str()), ("node2", "csi-2"));
    assert_eq!(holder.pods, ["shop/web-0"]);
}

/// The PersistentVolume was made again with the handle h2: what is attached as h1 has nothing to do with what is attached as h2.
#[test]
fn a_volume_that_was_made_again_is_another_one() {
    let noted = |handle: &str| {
        let note = json!({"handle": handle}).to_string();
        let annotations = json!({"csi.alpha.kubernetes.io/node-id": "id1", "attacher.csi.dev/volume": note});
        let attached = json!({"status": {"attached": true}});
        both(
            both(claimed(), &attached),
            &json!({"metadata": {"annotations": annotations}}),
        )
    };
    let here = json!({"spec": {"nodeName": "node1"}});
    let made_again = |own: &str, other: serde_json::Value| {
        with(|scene| {
            scene.volume = volume(json!({"spec": {"csi": {"volumeHandle": "h2"}}}));
            scene.attachment = Lookup::Found(attachment(noted(own)));
            scene.holders = Lookup::Found(vec![holder(other, node("node2"), &[])]);
        })
    };
    let is_one = |scene: &crate::observed::Scene| scene.is_of_volume(&scene.holders.found().unwrap()[0].attachment);
    let apart = made_again("h1", noted("h2"));
    assert_eq!(apart.handle(), Some("h1"), "what it stands for");
    assert!(!is_one(&apart));
    assert!(is_one(&made_again("h2", noted("h2"))));
    assert!(!is_one(&made_again("h2", noted("h1"))));
    let without_own = with(|scene| {
        scene.attachment = Lookup::Missing;
        scene.holders = Lookup::Found(vec![holder(noted("h9"), node("node2"), &[])]);
    });
    assert!(!is_one(&without_own));
    play(vec![
        row(
            "it is told that its PersistentVolume is another one",
            apart,
            Case::VolumeReplaced,
            &[],
        ),
        row(
            "the one volume at two nodes",
            made_again("h2", noted("h2")),
            Case::AttachedTwice,
            &["data may be damaged"],
        ),
    ]);
    let leaving = |other: &str| {
        let mut scene = made_again("h1", both(noted(other), &here));
        scene.attachment = Lookup::Found(attachment(both(detaching(5), &noted("h1"))));
        scene
    };
    play(vec![
        row("its detach waits for nobody", leaving("h2"), Case::Detaching, &[]),
        row(
            "its detach waits",
            leaving("h1"),
            Case::Refused,
            &["in use; a detach now would remove it there"],
        ),
    ]);
}

/// Without both lists nobody knows that no node has the volume or needs it.
#[test]
fn what_could_not_be_listed_is_not_taken_for_none() {
    let unused = |edit: fn(&mut crate::observed::Scene)| {
        unrequested(|scene| {
            (scene.pod, scene.node_name) = (None, None);
            (scene.naming, scene.users) = (Lookup::Found(Arc::default()), Lookup::Found(Arc::default()));
            edit(scene);
        })
    };
    play(vec![
        row("both are empty", unused(|_| {}), Case::NotUsed, &["attached to none"]),
        row(
            "no VolumeAttachments",
            unused(|scene| scene.naming = Lookup::Unknown),
            Case::NotVisible,
            &["VolumeAttachments could not be listed"],
        ),
        row(
            "no pods",
            unused(|scene| scene.users = Lookup::Unknown),
            Case::NotVisible,
            &["pods could not be listed"],
        ),
        row(
            "neither, and nobody serves the driver",
            unused(|scene| {
                (scene.naming, scene.users) = (Lookup::Unknown, Lookup::Unknown);
                (scene.driver.config, scene.driver.leases) = (Lookup::Missing, Lookup::Missing);
            }),
            Case::NotVisible,
            &["VolumeAttachments could not be listed"],
        ),
    ]);
}
