//! Attaches: from the pod to the driver's answer.

use serde_json::json;

use super::builders::{
    attachment, before, both, claimed, config, csi_node, drop_in, event, holder, lease, leases, nameless, node, scene,
    unrequested, volume, with,
};
use super::rows::{play, row};
use crate::explain::{Case, StepState, Verdict, chain};
use crate::observed::{ConditionRecord, LeaseHolder, Lookup, Scene};

#[test]
fn before_the_attachment() {
    let unscheduled = |scene: &mut Scene| {
        let pod = scene.pod.as_mut().unwrap();
        pod.node = None;
        pod.scheduled = Some(ConditionRecord {
            status: "False".into(),
            reason: "Unschedulable".into(),
            message: "0/3 nodes are available".into(),
            since: Some(before(90)),
        });
    };
    let unbound = |scene: &mut Scene| {
        scene.volume_name = None;
        scene.volume = Lookup::Unknown;
        if let Lookup::Found(claim) = &mut scene.claim {
            claim.phase = "Pending".into();
            claim.volume = None;
        }
    };
    let lost = |scene: &mut Scene| {
        scene.volume = Lookup::Missing;
        if let Lookup::Found(claim) = &mut scene.claim {
            claim.phase = "Lost".into();
        }
    };
    play(vec![
        row(
            "not scheduled",
            unrequested(unscheduled),
            Case::PodNotScheduled,
            &["0/3 nodes are available", "kubectl describe pod web-1"],
        ),
        row(
            "not scheduled, and its claim waits for the pod",
            unrequested(|scene| {
                unscheduled(scene);
                unbound(scene);
            }),
            Case::PodNotScheduled,
            &["claim shop/data has no PersistentVolume yet"],
        ),
        row(
            "claim not bound",
            unrequested(unbound),
            Case::ClaimNotBound,
            &["StorageClass fast", "check the provisioner"],
        ),
        row(
            "no claim",
            unrequested(|scene| {
                scene.volume_name = None;
                scene.claim = Lookup::Missing;
            }),
            Case::ClaimMissing,
            &["claim shop/data does not exist"],
        ),
        row(
            "no volume",
            unrequested(|scene| scene.volume = Lookup::Missing),
            Case::VolumeMissing,
            &["pv1 does not exist"],
        ),
        row(
            "another plug-in",
            unrequested(|scene| scene.volume = volume(json!({"spec": {"csi": null, "nfs": {}}}))),
            Case::NotCsi,
            &["no VolumeAttachment is made"],
        ),
        row(
            "another plug-in, under the name of what is to be attached",
            with(|scene| scene.volume = volume(json!({"spec": {"csi": null, "nfs": {}}}))),
            Case::Refused,
            &["is not a volume of a CSI driver", "non-csi source"],
        ),
        row(
            "lost",
            unrequested(lost),
            Case::VolumeMissing,
            &[
                "claim shop/data is Lost: PersistentVolume pv1",
                "restore the PersistentVolume",
            ],
        ),
        row(
            "lost, and attached",
            with(|scene| {
                lost(scene);
                scene.attachment = Lookup::Found(attachment(both(claimed(), &json!({"status": {"attached": true}}))));
            }),
            Case::VolumeMissing,
            &["is Lost", "PersistentVolume pv1 was deleted"],
        ),
        row(
            "attachRequired: false",
            unrequested(|scene| scene.driver.attach_required = Lookup::Found(false)),
            Case::AttachNotRequired,
            &["never attached", "FailedMount"],
        ),
        row(
            "not requested",
            unrequested(|_| {}),
            Case::NotRequested,
            &["kube-controller-manager creates the VolumeAttachment"],
        ),
        row(
            "the volume is being deleted",
            unrequested(|scene| {
                scene.volume = volume(json!({"metadata": {"deletionTimestamp": "2026-01-01T11:59:00Z"}}));
                scene.volume_deleting = Some(before(60));
            }),
            Case::VolumeDeleting,
            &["kubectl attacher why pv pv1"],
        ),
    ]);
}

#[test]
fn not_requested_for_long_is_a_problem() {
    let scene = unrequested(|scene| {
        let pod = scene.pod.as_mut().unwrap();
        pod.scheduled.as_mut().unwrap().since = Some(before(301));
        scene.pod_events = Lookup::Found(vec![crate::observed::EventRecord {
            reason: "FailedAttachVolume".into(),
            ..event("Multi-Attach error for volume", 5)
        }]);
    });
    let found = chain(&scene);
    assert_eq!(
        (found.diagnosis.case, found.diagnosis.verdict),
        (Case::NotRequested, Verdict::Blocked)
    );
    let advice: Vec<&str> = found
        .diagnosis
        .advice
        .iter()
        .map(|advice| advice.text.as_str())
        .collect();
    assert!(advice[0].contains("Multi-Attach error"), "{advice:?}");
}

#[test]
fn nobody_serves_the_driver() {
    let fresh = || Lookup::Found(attachment(json!({})));
    let attached = || json!({"status": {"attached": true}});
    let nobody = |scene: &mut Scene| {
        scene.attachment = fresh();
        scene.driver.config = Lookup::Missing;
        scene.driver.leases = Lookup::Missing;
    };
    let with_config = |conditions: &[(&str, &str, &str, &str)], spec: &serde_json::Value| {
        let config = config(conditions, spec);
        with(|scene| scene.driver.config = config)
    };
    play(vec![
        row(
            "no AttacherConfig",
            with(nobody),
            Case::NoAttacher,
            &["no AttacherConfig is for the driver", "create an AttacherConfig"],
        ),
        row(
            "attached, and nobody serves the driver now",
            with(|scene| {
                nobody(scene);
                scene.attachment = Lookup::Found(attachment(attached()));
            }),
            Case::Attached,
            &["no attacher serves driver"],
        ),
        row(
            "attached twice, and nobody serves the driver now",
            with(|scene| {
                nobody(scene);
                scene.attachment = Lookup::Found(attachment(both(claimed(), &attached())));
                scene.holders = Lookup::Found(vec![holder(attached(), node("node2"), &[])]);
            }),
            Case::AttachedTwice,
            &["data may be damaged"],
        ),
        row(
            "no CRD",
            with(|scene| {
                nobody(scene);
                scene.driver.crd = Lookup::Missing;
            }),
            Case::NoAttacher,
            &["the CRD of AttacherConfig is not installed"],
        ),
        row(
            "the Lease of a sidecar that is gone",
            with(|scene| {
                nobody(scene);
                scene.driver.leases = lease("sidecar-0", false, 300);
            }),
            Case::NoAttacher,
            &["no Lease of it is being renewed"],
        ),
        row(
            "the Lease of a sidecar that moves",
            with(|scene| {
                nobody(scene);
                scene.driver.leases = lease("sidecar-0", false, 3);
            }),
            Case::Attaching,
            &["a sidecar serves driver ssd.csi.test: sidecar-0 renews the Lease"],
        ),
        row(
            "driver unreachable",
            with_config(
                &[
                    ("Ready", "False", "DriverUnreachable", ""),
                    ("DriverReachable", "False", "SocketMissing", "no such socket"),
                ],
                &json!({}),
            ),
            Case::DriverUnreachable,
            &["SocketMissing: no such socket", "kubectl describe atc ssd"],
        ),
        row(
            "no leader",
            with(|scene| scene.driver.leases = lease("replica-1", true, 300)),
            Case::NoLeader,
            &["of replica-1 has expired"],
        ),
        row(
            "no Lease",
            with(|scene| scene.driver.leases = Lookup::Missing),
            Case::NoLeader,
            &["there is no Lease"],
        ),
        row(
            "stalled",
            with_config(
                &[
                    ("Ready", "False", "DriverNameMismatch", "the driver is x"),
                    ("Stalled", "True", "DriverNameMismatch", "the driver is x"),
                ],
                &json!({}),
            ),
            Case::ConfigStalled,
            &["DriverNameMismatch: the driver is x"],
        ),
        row(
            "stalled, and served all the same",
            with_config(
                &[
                    ("Ready", "True", "Running", "m"),
                    ("Stalled", "True", "FinalizerNotWritten", "m"),
                ],
                &json!({"deletionPolicy": "WaitForDetach"}),
            ),
            Case::Attaching,
            &["serves driver"],
        ),
        row(
            "an invalid spec, and served with what was valid last",
            with_config(
                &[
                    ("Ready", "True", "Running", "m"),
                    ("Stalled", "True", "InvalidSpec", "m"),
                ],
                &json!({"timeouts": {"publish": "0s"}}),
            ),
            Case::Attaching,
            &["serves driver"],
        ),
        row(
            "capability lost",
            with_config(
                &[
                    ("Ready", "False", "CapabilityLost", "m"),
                    ("Stalled", "True", "CapabilityLost", "m"),
                ],
                &json!({}),
            ),
            Case::CapabilityLost,
            &["CapabilityLost: m"],
        ),
        row(
            "suspended",
            with_config(&[], &json!({"suspend": true})),
            Case::ConfigSuspended,
            &["\"suspend\":false"],
        ),
        row(
            "starting",
            with_config(&[("Ready", "False", "Syncing", "lists")], &json!({})),
            Case::AttacherStarting,
            &["Syncing: lists"],
        ),
        row(
            "not visible",
            with(|scene| {
                nobody(scene);
                scene.driver.config = Lookup::Unknown;
                scene.driver.leases = Lookup::Unknown;
                scene.attachment = Lookup::Found(attachment(
                    json!({"metadata": {"creationTimestamp": "2026-01-01T11:00:00Z"}}),
                ));
            }),
            Case::NotVisible,
            &["could not be read"],
        ),
    ]);
}

/// An AttacherConfig speaks for itself alone: whoever else holds a Lease of the driver serves it, too.
#[test]
fn another_attacher_holds_a_lease() {
    let sidecar = || ("storage", LeaseHolder::Sidecar("sidecar-0".into()), 3);
    let replica = || ("operator", LeaseHolder::Replica("replica-1".into()), 3);
    let standby = || config(&[("Ready", "True", "Standby", "sidecar-0 holds the Lease")], &json!({}));
    let in_its_place = |config| {
        with(|scene| {
            scene.driver.leases = drop_in();
            scene.driver.config = config;
        })
    };
    play(vec![
        row(
            "a sidecar and a replica, by two Leases",
            with(|scene| scene.driver.leases = leases([replica(), sidecar()])),
            Case::OtherAttacher,
            &[
                "sidecar-0 holds Lease storage/external-attacher-leader-ssd-csi-test, and replica-1 holds Lease operator/",
                "\"suspend\":true",
            ],
        ),
        row(
            "a replica on standby holds a Lease of its own",
            with(|scene| {
                scene.driver.leases = leases([replica(), sidecar()]);
                scene.driver.config = standby();
            }),
            Case::Attaching,
            &["a sidecar serves driver ssd.csi.test: sidecar-0"],
        ),
        row(
            "two of them without an AttacherConfig",
            with(|scene| {
                scene.driver.leases = leases([("vendor", LeaseHolder::DropIn("vendor-0".into()), 3), sidecar()]);
                scene.driver.config = Lookup::Missing;
            }),
            Case::OtherAttacher,
            &["two attachers serve driver ssd.csi.test: vendor-0", "stop one of them"],
        ),
        row(
            "the operator in the place of a sidecar, beside a suspended AttacherConfig",
            in_its_place(config(&[], &json!({"suspend": true}))),
            Case::Attaching,
            &["serves driver ssd.csi.test, leader vendor-0"],
        ),
        row(
            "the same beside one with a wrong endpoint",
            in_its_place(config(
                &[("DriverReachable", "False", "SocketMissing", "m")],
                &json!({}),
            )),
            Case::Attaching,
            &["serves driver ssd.csi.test, leader vendor-0"],
        ),
    ]);
}

/// An AttacherConfig whose driver never answered may be for any driver.
#[test]
fn it_is_not_known_for_which_driver_an_attacherconfig_is() {
    let unserved = |known: bool| {
        with(|scene| {
            scene.driver.config = Lookup::Missing;
            scene.driver.leases = Lookup::Missing;
            scene.driver.nameless = nameless(&[("DriverReachable", "False", "SocketMissing", "no such socket")]);
            if !known {
                scene.driver.nameless[0].status.conditions.clear();
            }
        })
    };
    play(vec![
        row(
            "it says why",
            unserved(true),
            Case::NoAttacher,
            &[
                "cannot reach the driver of AttacherConfig minimal: SocketMissing: no such socket",
                "set its spec.driverName",
                "kubectl describe atc minimal",
            ],
        ),
        row(
            "no replica has read it",
            unserved(false),
            Case::NoAttacher,
            &["no replica of the operator serves AttacherConfig minimal: it has no conditions"],
        ),
    ]);
}

/// A Lease that was just created is waited out by all, and one that was released is acquired within moments.
#[test]
fn nobody_leads_yet() {
    let starting = |reason: &str, seconds: Option<i64>, spec: &serde_json::Value| {
        let config = config(&[("Ready", "False", reason, "m")], spec);
        with(|scene| {
            scene.driver.config = config;
            scene.driver.leases = match seconds {
                Some(seconds) => leases([("operator", LeaseHolder::New, seconds)]),
                None => leases([("operator", LeaseHolder::Nobody, 3)]),
            };
        })
    };
    // All conditions are so since 200 s.
    let (short, long) = (json!({}), json!({"leaderElection": {"leaseDuration": "2m"}}));
    let says: &[&str] = &["is not ready yet"];
    play(vec![
        row(
            "a new Lease",
            starting("Standby", Some(30), &short),
            Case::AttacherStarting,
            says,
        ),
        row(
            "one that has run out",
            starting("Standby", Some(31), &short),
            Case::NoLeader,
            &["has no holder"],
        ),
        row(
            "a start",
            starting("Connecting", None, &long),
            Case::AttacherStarting,
            says,
        ),
        row(
            "a start that lasts",
            starting("Connecting", None, &short),
            Case::NoLeader,
            &["has no holder"],
        ),
    ]);
}

#[test]
fn the_attacher_is_asked() {
    let unregistered = |record| {
        with(|scene| {
            scene.csi_node = record;
            scene.attachment = Lookup::Found(attachment(json!({})));
        })
    };
    play(vec![
        row(
            "no CSINode",
            unregistered(Lookup::Missing),
            Case::DriverNotOnNode,
            &["csinode.storage.k8s.io \"node1\" not found"],
        ),
        row(
            "no entry for the driver",
            unregistered(csi_node(&[("other", "x")], None)),
            Case::DriverNotOnNode,
            &["CSINode node1 does not contain driver ssd.csi.test", "node plugin"],
        ),
        row(
            "PersistentVolume deleting",
            with(|scene| scene.volume = volume(json!({"metadata": {"deletionTimestamp": "2026-01-01T11:00:00Z"}}))),
            Case::VolumeDeleting,
            &["marked for deletion"],
        ),
        row(
            "another driver's volume",
            with(|scene| scene.volume = volume(json!({"spec": {"csi": {"driver": "x"}}}))),
            Case::Refused,
            &["the volume belongs to CSI driver x"],
        ),
        row(
            "AttacherConfig deleting",
            with(|scene| {
                scene.attachment = Lookup::Found(attachment(json!({})));
                if let Lookup::Found(config) = &mut scene.driver.config {
                    config.deleting = Some(before(9));
                }
            }),
            Case::ConfigDeleting,
            &["is being deleted"],
        ),
        row(
            "under way",
            scene(),
            Case::Attaching,
            &["the attacher calls ControllerPublishVolume for volume h1 at node ID id1"],
        ),
        row(
            "not begun",
            with(|scene| scene.attachment = Lookup::Found(attachment(json!({})))),
            Case::Attaching,
            &["has not begun", "puts its finalizer"],
        ),
        row(
            "saturated lane",
            with(|scene| {
                scene.attachment = Lookup::Found(attachment(json!({})));
                scene.driver.config = config(
                    &[("Saturated", "True", "LaneFull", "10 attaches run, 40 wait")],
                    &json!({}),
                );
            }),
            Case::LaneSaturated,
            &["LaneFull: 10 attaches run, 40 wait", "spec.concurrency"],
        ),
        row(
            "stuck",
            with(|scene| {
                scene.attachment = Lookup::Found(attachment(
                    json!({"metadata": {"creationTimestamp": "2026-01-01T11:54:59Z"}}),
                ));
            }),
            Case::AttachStuck,
            &["has not begun", "kubectl attacher retry csi-1"],
        ),
    ]);
}

/// What the operator reports as a finding is no healthy attachment, whoever else serves the driver.
#[test]
fn attached_and_not_what_it_stands_for() {
    let attached = || json!({"status": {"attached": true}});
    let remade = || volume(json!({"spec": {"csi": {"volumeHandle": "h2"}}}));
    play(vec![
        row(
            "the PersistentVolume was made again",
            with(|scene| {
                scene.attachment = Lookup::Found(attachment(both(claimed(), &attached())));
                scene.volume = remade();
            }),
            Case::VolumeReplaced,
            &[
                "volume h1 is attached to node node1, and PersistentVolume pv1 is volume h2 since it was created again",
                "is volume h2 of driver ssd.csi.test, and VolumeAttachment csi-1 is of volume h1",
                "once no pod on the node uses the volume",
            ],
        ),
        row(
            "the same, and nobody serves the driver",
            with(|scene| {
                scene.attachment = Lookup::Found(attachment(both(claimed(), &attached())));
                scene.volume = remade();
                scene.driver.config = Lookup::Missing;
                scene.driver.leases = Lookup::Missing;
            }),
            Case::VolumeReplaced,
            &["since it was created again"],
        ),
        row(
            "the node has another ID",
            with(|scene| {
                scene.attachment = Lookup::Found(attachment(both(claimed(), &attached())));
                scene.csi_node = csi_node(&[("ssd.csi.test", "id2")], None);
            }),
            Case::NodeIdChanged,
            &[
                "the volume is attached to node ID id1, and CSINode node1 has node ID id2 now",
                "lists driver ssd.csi.test as id2, and the volume is attached to node ID id1",
            ],
        ),
        row(
            "what could not be read is not taken for another",
            with(|scene| {
                scene.attachment = Lookup::Found(attachment(both(claimed(), &attached())));
                scene.volume = Lookup::Unknown;
                scene.csi_node = Lookup::Unknown;
            }),
            Case::Attached,
            &["the volume is attached to node node1"],
        ),
        row(
            "an attach goes to the volume that has the name now",
            with(|scene| scene.volume = remade()),
            Case::Attaching,
            &[
                "is volume h2 of driver ssd.csi.test\"",
                "puts its finalizer on the objects",
            ],
        ),
    ]);
}

/// The conditions and runbooks send people here for each finding about what is attached, whoever serves the driver.
#[test]
fn attached_and_its_volume_or_node_is_gone() {
    let attached = || json!({"status": {"attached": true}});
    let found = |edit: &dyn Fn(&mut Scene)| {
        with(|scene| {
            scene.attachment = Lookup::Found(attachment(both(claimed(), &attached())));
            edit(scene);
        })
    };
    let nobody = |scene: &mut Scene| {
        scene.driver.config = Lookup::Missing;
        scene.driver.leases = Lookup::Missing;
    };
    play(vec![
        row(
            "the PersistentVolume is gone",
            found(&|scene| scene.volume = Lookup::Missing),
            Case::VolumeMissing,
            &[
                "PersistentVolume pv1 was deleted",
                "\"next\":\"kube-controller-manager requests the detach once no pod on the node uses the volume",
                "delete the VolumeAttachment by hand only if it stays after that",
                "spec.nodeName=node1",
            ],
        ),
        row(
            "the node is gone",
            found(&|scene| scene.csi_node = Lookup::Missing),
            Case::DriverNotOnNode,
            &["node node1 has no CSINode", "node plugin (DaemonSet) on node node1"],
        ),
        row(
            "the driver is not on the node",
            found(&|scene| scene.csi_node = csi_node(&[("other", "x")], None)),
            Case::DriverNotOnNode,
            &[
                "is not registered on node node1",
                "node plugin (DaemonSet) on node node1",
            ],
        ),
    ]);
    let edits: [fn(&mut Scene); 2] = [
        |scene| scene.volume = Lookup::Missing,
        |scene| scene.csi_node = Lookup::Missing,
    ];
    for edit in edits {
        let unserved = chain(&found(&|scene| {
            edit(scene);
            nobody(scene);
        }));
        let blocked = unserved.steps.iter().filter(|step| step.state == StepState::Blocked);
        let kinds: Vec<&str> = blocked.map(|step| step.object.kind).collect();
        assert_eq!(kinds, ["VolumeAttachment"], "no attacher resolves this");
    }
}

/// After a restart kube-controller-manager knows inline volumes only from Nodes that list them.
#[test]
fn an_inline_volume_is_left_over() {
    let csi = json!({"driver": "ssd.csi.test", "volumeHandle": "h1"});
    let spec = json!({"accessModes": ["ReadWriteOnce"], "csi": csi});
    let source = json!({"persistentVolumeName": null, "inlineVolumeSpec": spec});
    let inline = || both(json!({"spec": {"source": source}}), &claimed());
    let attached = || json!({"status": {"attached": true}});
    let found = |edit: &dyn Fn(&mut Scene)| {
        with(|scene| {
            (scene.pod, scene.claim_name, scene.volume_name) = (None, None, None);
            (scene.claim, scene.volume) = (Lookup::Unknown, Lookup::Unknown);
            scene.attachment = Lookup::Found(attachment(both(inline(), &attached())));
            edit(scene);
        })
    };
    let elsewhere = |more: serde_json::Value| {
        let later = json!({"name": "csi-2", "uid": "uid-2", "creationTimestamp": before(10).to_string()});
        let at = json!({"metadata": later, "spec": {"nodeName": "node2"}});
        let mut other = holder(json!({}), node("node2"), &[]);
        other.attachment = attachment(both(both(inline(), &at), &more));
        Lookup::Found(vec![other])
    };
    play(vec![
        row("in use", found(&|_| {}), Case::Attached, &[]),
        row(
            "its node is gone",
            found(&|scene| (scene.csi_node, scene.node) = (Lookup::Missing, Lookup::Missing)),
            Case::InlineLeftOver,
            &[
                "the inline volume is left over on node node1",
                "no controller resolves this",
            ],
        ),
        row(
            "it is wanted on another node",
            found(&|scene| scene.holders = elsewhere(json!({}))),
            Case::InlineLeftOver,
            &[
                "a later attachment wants it on node node2",
                "kube-controller-manager requests the detach once",
            ],
        ),
        row(
            "it is attached to another node as well",
            found(&|scene| scene.holders = elsewhere(attached())),
            Case::AttachedTwice,
            &[
                "data may be damaged",
                "requests a detach only from a node without them",
                "kubectl attacher why va csi-2",
            ],
        ),
    ]);
}
