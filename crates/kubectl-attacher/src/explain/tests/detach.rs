//! Detaches.

use serde_json::json;

use super::builders::{
    attachment, both, config, detaching, error, event, nameless, secret, volume, volume_with_secret, with,
};
use super::rows::{play, row};
use crate::explain::Case;
use crate::observed::{Lookup, Scene};

fn deleted(edit: serde_json::Value, more: impl FnOnce(&mut Scene)) -> Scene {
    with(|scene| {
        scene.attachment = Lookup::Found(attachment(edit));
        more(scene);
    })
}

fn nobody(scene: &mut Scene) {
    scene.driver.config = Lookup::Missing;
    scene.driver.leases = Lookup::Missing;
}

#[test]
fn what_keeps_an_attachment() {
    let taken = json!({"metadata": {"finalizers": ["example.com/hold"]}});
    let foreign = json!({"metadata": {"finalizers": ["someone/else"]}, "status": {"attached": false}});
    let renamed = json!({"metadata": {"finalizers": ["external-attacher/old-name"]}, "status": {"attached": false}});
    let failing = |text| both(detaching(30), &error("detachError", text));
    play(vec![
        row(
            "under way",
            deleted(detaching(30), |_| {}),
            Case::Detaching,
            &["the attacher calls ControllerUnpublishVolume for volume h1 at node ID id1"],
        ),
        row(
            "failing, with backoff",
            deleted(failing("rpc error: code = Internal desc = read-only"), |scene| {
                scene.events = Lookup::Found(vec![event(
                    "volume h1: attempt 4 to detach it from node node1 failed; retrying in 8.0 s: read-only",
                    10,
                )]);
            }),
            Case::DetachFailing,
            &[
                "read-only",
                "\"number\":4",
                "kubectl attacher retry csi-1",
                "kubectl attacher release va csi-1",
            ],
        ),
        row(
            "failing, and another volume that is none of CSI has the name",
            deleted(failing("rpc error: code = Internal desc = read-only"), |scene| {
                scene.volume = volume(json!({"spec": {"csi": null, "nfs": {}}}));
            }),
            Case::DetachFailing,
            &["read-only", "ControllerUnpublishVolume for volume h1"],
        ),
        row(
            "nobody, unless an AttacherConfig turns out to be for the driver",
            deleted(detaching(30), |scene| {
                nobody(scene);
                scene.driver.nameless = nameless(&[]);
            }),
            Case::NoAttacher,
            &["AttacherConfig minimal"],
        ),
        row(
            "not asked: the error has no code of gRPC",
            deleted(failing("the API server accepted the write but did not keep it"), |_| {}),
            Case::DetachFailing,
            &[
                "the detach from node node1 fails, and the error is not an answer of driver ssd.csi.test",
                "follow the message; the attacher retries",
            ],
        ),
        row(
            "the claim has no volume yet: it was made again",
            deleted(detaching(30), |scene| {
                if let Lookup::Found(claim) = &mut scene.claim {
                    claim.phase = "Pending".into();
                    claim.volume = None;
                }
            }),
            Case::Detaching,
            &["claim shop/data is Pending and has no PersistentVolume"],
        ),
        row(
            "NotFound",
            deleted(failing("rpc error: code = NotFound desc = gone"), |_| {}),
            Case::DetachFailing,
            &["TreatNotFoundAsDetached"],
        ),
        row(
            "the finalizer of a driver that nobody runs",
            deleted(detaching(30), nobody),
            Case::OrphanFinalizer,
            &[
                "finalizer external-attacher/ssd-csi-test keeps",
                "kubectl attacher release va csi-1",
            ],
        ),
        row(
            "a renamed driver",
            deleted(both(detaching(30), &renamed), |_| {}),
            Case::OrphanFinalizer,
            &["external-attacher/old-name"],
        ),
        row(
            "somebody took our finalizer off before the detach",
            deleted(both(detaching(30), &taken), |_| {}),
            Case::Detaching,
            &["is being detached"],
        ),
        row(
            "the same, and the detach fails",
            deleted(both(failing("rpc error: code = Internal desc = no"), &taken), |_| {}),
            Case::DetachFailing,
            &["kubectl attacher release va csi-1"],
        ),
        row(
            "another controller's",
            deleted(both(detaching(30), &foreign), |_| {}),
            Case::ForeignFinalizer,
            &["someone/else"],
        ),
        row(
            "no node ID anywhere",
            deleted(
                both(
                    detaching(30),
                    &json!({"metadata": {"annotations": {"csi.alpha.kubernetes.io/node-id": null}}}),
                ),
                |scene| scene.csi_node = Lookup::Missing,
            ),
            Case::DriverNotOnNode,
            &["csinode.storage.k8s.io"],
        ),
        row(
            "no volume and no note of it",
            deleted(
                both(
                    detaching(30),
                    &json!({"metadata": {"annotations": {"attacher.csi.dev/volume": null}}}),
                ),
                |scene| scene.volume = Lookup::Missing,
            ),
            Case::VolumeMissing,
            &["nothing on the VolumeAttachment says what was attached"],
        ),
        row(
            "secret missing",
            deleted(failing("failed to load secret \"storage/key\": not found"), |scene| {
                scene.volume = volume_with_secret("storage");
                scene.secret = secret(Lookup::Missing);
            }),
            Case::SecretMissing,
            &["Secret storage/key"],
        ),
        row(
            "saturated",
            deleted(detaching(30), |scene| {
                scene.driver.config = config(&[("Saturated", "True", "LaneFull", "5 detaches run")], &json!({}));
            }),
            Case::LaneSaturated,
            &["the detach waits for its turn"],
        ),
        row(
            "stuck",
            deleted(detaching(700), |_| {}),
            Case::DetachStuck,
            &["has neither ended nor failed"],
        ),
        row(
            "not reached",
            deleted(detaching(30), |scene| {
                scene.driver.config = config(&[("DriverReachable", "False", "Timeout", "m")], &json!({}));
            }),
            Case::DriverUnreachable,
            &["Timeout: m"],
        ),
    ]);
}
