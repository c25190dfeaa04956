//! What may be released. Each row but a few is a refusal.

use csi_attacher_model::decide::ReleaseProof;
use serde_json::json;
use std::sync::Arc;

use super::{ReleaseFacts, ReleaseWay, attachment as judge, volume as judge_volume};
use crate::explain::tests::builders::{
    FINALIZER, attachment, before, both, claimed, config, detaching, error, holder, lease, node, pod, unready, volume,
    with,
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
        scene.driver.lease = Lookup::Missing;
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
            orphan(|scene| scene.driver.lease = lease("sidecar-0", false, 3)),
            "a sidecar (sidecar-0) serves driver",
        ),
        (
            "unreachable",
            served(|scene| scene.driver.config = config(&[("DriverReachable", "False", "Timeout", "m")], &json!({}))),
            "cannot answer now",
        ),
        (
            "no leader",
            served(|scene| scene.driver.lease = lease("replica-1", true, 300)),
            "cannot answer now",
        ),
        (
            "not visible",
            orphan(|scene| scene.driver.lease = Lookup::Unknown),
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
    let served = gone(&|scene| scene.driver.lease = lease("sidecar-0", false, 3));
    assert!(refused(&served, &idle, true).contains("by itself within moments"));
    let other = gone(&|scene| {
        let edit =
            json!({"metadata": {"deletionTimestamp": "2026-01-01T11:00:00Z", "finalizers": ["external-attacher/x"]}});
        scene.volume = volume(edit);
    });
    assert!(refused(&other, &idle, true).contains("does not carry the finalizer"));
}
