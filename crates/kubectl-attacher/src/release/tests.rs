//! What may be released. Each row but a few is a refusal.

use csi_attacher_model::decide::ReleaseProof;
use serde_json::json;
use std::sync::Arc;

use super::{ReleaseFacts, ReleaseWay, attachment as judge, volume as judge_volume};
use crate::explain::tests::builders::{
    FINALIZER, attachment, before, both, claimed, config, detaching, drop_in, error, holder, lease, nameless, node,
    pod, unready, volume, with,
};
use crate::observed::{Lookup, NodeRecord, Scene};

/// Deleted an hour ago, its node is not Ready, and the operator serves the driver.
fn served(edit: impl FnOnce(&mut Scene)) -> Scene {
    with(|scene| {
        scene.pod = None;
        scene.attachment = Lookup::Found(attachment(detaching(3_600)));
        scene.node = Lookup::Found(unready("node1"));
        edit(scene);
    })
}

/// The same, and nobody serves the driver.
fn orphan(edit: impl FnOnce(&mut Scene)) -> Scene {
    served(|scene| {
        scene.driver.config = Lookup::Missing;
        scene.driver.leases = Lookup::Missing;
        edit(scene);
    })
}

fn tainted(name: &str) -> Lookup<NodeRecord> {
    Lookup::Found(NodeRecord {
        out_of_service: Some(None),
        ..unready(name)
    })
}

/// The node is tainted, and another machine than at the attach.
fn moved(scene: &mut Scene) {
    scene.node = tainted("node1");
    let published = json!({"metadata": {"annotations": {"csi.alpha.kubernetes.io/node-id": "id-of-yesterday"}}});
    scene.attachment = Lookup::Found(attachment(both(detaching(3_600), &published)));
}

/// Somebody took the finalizer off before the detach.
fn taken(scene: &mut Scene) {
    let edit = json!({"metadata": {"finalizers": ["a/b"]}});
    scene.attachment = Lookup::Found(attachment(both(detaching(3_600), &edit)));
}

fn facts(confirmed: bool) -> ReleaseFacts {
    ReleaseFacts {
        users: Lookup::Found(Vec::new()),
        confirmed,
        quiet_for: std::time::Duration::from_mins(5),
    }
}

#[test]
fn the_operator_is_asked() {
    let ask = |proof| Ok(ReleaseWay::AskOperator(proof));
    assert_eq!(judge(&served(|_| {}), &facts(false)), ask(None));
    assert_eq!(judge(&served(|_| {}), &facts(true)), ask(Some(ReleaseProof::Confirmed)));
    let taint = served(|scene| scene.node = tainted("node1"));
    assert_eq!(judge(&taint, &facts(false)), ask(Some(ReleaseProof::OutOfServiceTaint)));
    assert_eq!(judge(&served(taken), &facts(false)), ask(None));
    // The taint is that of another machine, which the operator says; the person says more.
    let other = served(moved);
    assert_eq!(judge(&other, &facts(false)), ask(Some(ReleaseProof::OutOfServiceTaint)));
    assert_eq!(judge(&other, &facts(true)), ask(Some(ReleaseProof::Confirmed)));
}

#[test]
fn where_nobody_serves_the_driver_proof_is_needed() {
    let patch = |proof| Ok(ReleaseWay::PatchDirectly(proof));
    let taint = orphan(|scene| scene.node = tainted("node1"));
    assert_eq!(judge(&taint, &facts(false)), patch(ReleaseProof::OutOfServiceTaint));
    assert_eq!(judge(&orphan(|_| {}), &facts(true)), patch(ReleaseProof::Confirmed));
    let other = orphan(moved);
    assert!(judge(&other, &facts(false)).unwrap_err().contains("a former one"));
    assert_eq!(judge(&other, &facts(true)), patch(ReleaseProof::Confirmed));
    let gone = orphan(|scene| scene.node = Lookup::Missing);
    assert!(
        judge(&gone, &facts(false))
            .unwrap_err()
            .contains("a Node object that is missing is no proof")
    );
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn refusals_of_attachments() {
    let mounted = NodeRecord {
        volumes_in_use: vec!["kubernetes.io/csi/ssd.csi.test^h1".to_owned()],
        ..node("node1")
    };
    let elsewhere = || Lookup::Found(vec![holder(json!({"status": {"attached": true}}), node("node2"), &[])]);
    let here = || {
        let mut other = holder(json!({"status": {"attached": true}}), node("node1"), &[]);
        let at = json!({"metadata": {"name": "csi-2"}, "spec": {"nodeName": "node1"}});
        other.attachment = attachment(both(claimed(), &at));
        Lookup::Found(vec![other])
    };
    let fresh = both(detaching(3_600), &error("detachError", "no"));
    let rows: Vec<(&str, Scene, &str)> = vec![
        (
            "live",
            served(|scene| scene.attachment = Lookup::Found(attachment(claimed()))),
            "is not being deleted",
        ),
        (
            "not held by us",
            served(|scene| {
                let edit = json!({"metadata": {"finalizers": ["a/b"]}, "status": {"attached": false}});
                scene.attachment = Lookup::Found(attachment(both(detaching(3_600), &edit)));
            }),
            "does not carry the finalizer",
        ),
        (
            "not held by us any more, and not detached",
            orphan(taken),
            "a/b keeps it; nobody detaches the volume",
        ),
        (
            "mounted",
            served(|scene| scene.node = Lookup::Found(mounted)),
            "status.volumesInUse",
        ),
        (
            "a sidecar",
            orphan(|scene| scene.driver.leases = lease("sidecar-0", false, 3)),
            "a sidecar (sidecar-0) serves driver",
        ),
        (
            "unreachable",
            served(|scene| scene.driver.config = config(&[("DriverReachable", "False", "Timeout", "m")], &json!({}))),
            "cannot answer now",
        ),
        (
            "no leader",
            served(|scene| scene.driver.leases = lease("replica-1", true, 300)),
            "cannot answer now",
        ),
        (
            "not visible",
            orphan(|scene| scene.driver.leases = Lookup::Unknown),
            "an attacher may serve the driver",
        ),
        (
            "no list",
            orphan(|scene| scene.holders = Lookup::Unknown),
            "could not be listed",
        ),
        (
            "on the same node",
            orphan(|scene| scene.holders = here()),
            "has the same volume on node node1",
        ),
        (
            "on another node",
            orphan(|scene| scene.holders = elsewhere()),
            "the confirmation that it is attached nowhere is wrong",
        ),
        (
            "no Node",
            orphan(|scene| scene.node = Lookup::Unknown),
            "the Node could not be read",
        ),
        (
            "an attacher is at work",
            orphan(|scene| scene.attachment = Lookup::Found(attachment(fresh))),
            "may be at work",
        ),
        (
            "just deleted",
            orphan(|scene| scene.attachment = Lookup::Found(attachment(detaching(60)))),
            "less than 300 s",
        ),
    ];
    for (name, scene, says) in rows {
        let refused = judge(&scene, &facts(true)).expect_err(name);
        assert!(refused.contains(says), "{name}: {refused}");
    }
}

/// Nobody's word outweighs a pod that runs on a node that is Ready.
#[test]
fn a_pod_that_uses_the_volume_is_a_refusal() {
    let scene = served(|scene| scene.node = Lookup::Found(node("node1")));
    let facts = ReleaseFacts {
        users: Lookup::Found(vec![pod()]),
        confirmed: true,
        ..facts(true)
    };
    assert!(
        judge(&scene, &facts)
            .unwrap_err()
            .contains("pod shop/web-1 on node node1")
    );
}

/// What could not be read counts as in use, whatever a person vouches for.
#[test]
fn what_could_not_be_read_is_a_refusal() {
    let ready = |edit: fn(&mut Scene)| {
        served(|scene| {
            scene.node = Lookup::Found(node("node1"));
            edit(scene);
        })
    };
    let without_note = |scene: &mut Scene| {
        let edit = json!({"metadata": {"annotations": {"attacher.csi.dev/volume": null}}});
        scene.attachment = Lookup::Found(attachment(both(detaching(3_600), &edit)));
        (scene.claim_name, scene.volume) = (None, Lookup::Missing);
    };
    let unlisted = ReleaseFacts {
        users: Lookup::Unknown,
        ..facts(true)
    };
    for (name, scene, facts, says) in [
        (
            "no Node",
            served(|scene| scene.node = Lookup::Unknown),
            &facts(true),
            "the Node could not be read",
        ),
        (
            "no pods",
            ready(|_| {}),
            &unlisted,
            "which pods use the volume could not be read",
        ),
        (
            "no PersistentVolume",
            ready(|scene| (scene.claim_name, scene.volume) = (None, Lookup::Unknown)),
            &unlisted,
            "which pods use the volume could not be read",
        ),
        (
            "neither volume nor note",
            ready(without_note),
            &unlisted,
            "which pods use the volume could not be read",
        ),
    ] {
        let refused = judge(&scene, facts).expect_err(name);
        assert!(refused.contains(says), "{name}: {refused}");
    }
    // An inline volume has no claim, and the kubelet does not report it.
    let inline = ready(|scene| (scene.claim_name, scene.volume_name) = (None, None));
    assert!(judge(&inline, &unlisted).is_ok());
}

/// One whose driver is not known may be for this driver, and act on the finalizer as soon as it reaches it.
#[test]
fn an_attacherconfig_of_any_driver_is_a_refusal() {
    let scene = orphan(|scene| scene.driver.nameless = nameless(&[("DriverReachable", "False", "SocketMissing", "m")]));
    let refused = judge(&scene, &facts(true)).unwrap_err();
    assert!(refused.contains("AttacherConfig minimal: SocketMissing"), "{refused}");
}

/// The operator in the place of a sidecar reads the request, whatever an AttacherConfig says.
#[test]
fn the_operator_in_the_place_of_a_sidecar_is_asked() {
    let scene = served(|scene| {
        scene.driver.leases = drop_in();
        scene.driver.config = config(&[], &json!({"suspend": true}));
    });
    assert_eq!(judge(&scene, &facts(false)), Ok(ReleaseWay::AskOperator(None)));
}

#[test]
fn volumes() {
    let deleting = json!({"metadata": {"deletionTimestamp": "2026-01-01T11:00:00Z", "finalizers": [FINALIZER]}});
    let gone = |edit: &dyn Fn(&mut Scene)| {
        let deleting = deleting.clone();
        orphan(|scene| {
            scene.volume = volume(deleting);
            scene.volume_deleting = Some(before(3_600));
            scene.attachment = Lookup::Missing;
            scene.naming = Lookup::Found(Arc::default());
            edit(scene);
        })
    };
    let idle = Lookup::Found(vec![node("node1")]);
    let good = gone(&|_| {});
    assert_eq!(judge_volume(&good, &idle, true), Ok(ReleaseProof::Confirmed));
    let refused =
        |scene: &Scene, nodes: &Lookup<Vec<NodeRecord>>, confirmed| judge_volume(scene, nodes, confirmed).unwrap_err();
    assert!(refused(&good, &idle, false).contains("nothing proves"));
    let named = gone(&|scene| scene.naming = Lookup::Found([attachment(claimed())].into()));
    assert!(refused(&named, &idle, true).contains("names the volume"));
    let unlisted = gone(&|scene| scene.naming = Lookup::Unknown);
    assert!(refused(&unlisted, &idle, true).contains("could not be listed"));
    assert!(refused(&good, &Lookup::Unknown, true).contains("Nodes could not be listed"));
    let mounted = NodeRecord {
        volumes_in_use: vec!["kubernetes.io/csi/ssd.csi.test^h1".to_owned()],
        ..unready("node1")
    };
    assert!(refused(&good, &Lookup::Found(vec![mounted]), true).contains("volumesInUse"));
    let live = gone(&|scene| scene.volume = volume(json!({})));
    assert!(refused(&live, &idle, true).contains("is not being deleted"));
    let served = gone(&|scene| scene.driver.leases = lease("sidecar-0", false, 3));
    assert!(refused(&served, &idle, true).contains("by itself within moments"));
    let other = gone(&|scene| {
        let edit =
            json!({"metadata": {"deletionTimestamp": "2026-01-01T11:00:00Z", "finalizers": ["external-attacher/x"]}});
        scene.volume = volume(edit);
    });
    assert!(refused(&other, &idle, true).contains("does not carry the finalizer"));
}
