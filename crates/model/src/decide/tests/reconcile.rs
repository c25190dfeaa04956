//! Section 8.4, TestCSIHandlerReconcileVA: what is attached against what the driver lists. The sidecar acts on the first
//! sight of a mismatch; here two passes in a row must find it (divergence 15 of section 10), so that its rows take two.

use serde_json::json;
use std::collections::BTreeSet;

use super::builders::{FINALIZER, GCE_DRIVER, GCE_FINALIZER, NODE_ID, Pv, Va, attachment, gce_volume, volume};
use super::table::tally;
use super::world::{DecideModel, Requeue, capable, gce_world, world};
use crate::decide::reconcile::{
    DesiredState, Expectation, LastingUnclaimed, Listing, MAX_EXAMPLES, MAX_UNCLAIMED, Mismatches, NotComparable,
    Unclaimed, VolumesWithoutAttachment, awaited, expectation, witness,
};
use crate::decide::{Capabilities, Failure, PublishSecrets, SecretState};

/// Volumes and the nodes where the driver lists them; none when it does not say.
type Listed = &'static [(&'static str, Option<&'static [&'static str]>)];

const AT_NODE: Listed = &[("handle1", Some(&[NODE_ID]))];
const NOWHERE: Listed = &[("handle1", Some(&[]))];
const NOT_LISTED: Listed = &[];
const ELSEWHERE: Listed = &[("handle1", Some(&["nodeID2"]))];
const UNTOLD: Listed = &[("handle1", None)];
const TWICE: Listed = &[("handle1", Some(&[])), ("handle1", Some(&[NODE_ID]))];

struct Row {
    name: &'static str,
    world: DecideModel,
    /// What the driver lists in each pass.
    passes: Vec<Listed>,
    log: &'static str,
}

fn row(name: &'static str, world: DecideModel, passes: &[Listed], log: &'static str) -> Row {
    let passes = passes.to_vec();
    Row {
        name,
        world,
        passes,
        log,
    }
}

/// As `driver::reconcile_sync` does it.
fn pass(world: &mut DecideModel, suspects: &mut Mismatches, listed: Listed) {
    let expectations: Vec<Expectation> = expected(world).into_iter().collect();
    let mut listing = Listing::about(expectations);
    for (handle, nodes) in listed {
        let nodes: Option<Vec<String>> = nodes.map(|nodes| nodes.iter().map(ToString::to_string).collect());
        listing.add(handle, nodes.as_deref());
    }
    let compared = listing.compare();
    world.forced &= !compared.contradicted.is_empty();
    let is_repaired = !world.forced;
    let repairs = suspects.pass(compared.contradicted, &compared.agreed, |_| is_repaired, 60);
    world.forced |= !repairs.due.is_empty();
    if world.forced && world.attempt() == Requeue::Forget {
        world.forced = false;
    }
}

fn expected(world: &DecideModel) -> Option<Expectation> {
    comparable(world).ok().flatten()
}

fn comparable(world: &DecideModel) -> Result<Option<Expectation>, NotComparable> {
    let Some(snapshot) = world.snapshot() else {
        return Ok(None);
    };
    let observed = crate::decide::observe(&snapshot, &world.driver, &world.policy, SecretState::NotLoaded);
    expectation(&observed)
}

/// The reason for which a repair would be refused; none when something is expected.
fn refused(world: &DecideModel) -> Option<&'static str> {
    match comparable(world) {
        Err(NotComparable::Refused(refusal)) => Some(refusal.reason()),
        Ok(Some(_)) => None,
        other => panic!("{other:?}"),
    }
}

fn play(rows: Vec<Row>) -> usize {
    let names: BTreeSet<_> = rows.iter().map(|row| row.name).collect();
    assert_eq!(names.len(), rows.len(), "a name is used twice");
    let count = rows.len();
    for mut row in rows {
        let mut suspects = Mismatches::default();
        for listed in row.passes {
            pass(&mut row.world, &mut suspects, listed);
        }
        assert_eq!(row.world.log.join(" | "), row.log, "{}", row.name);
        let attached = row
            .world
            .attachment
            .map(|object| object["status"]["attached"] == json!(true));
        if let (Some(attached), false) = (attached, row.log.contains("DET")) {
            assert!(attached || row.name.contains("detached"), "{}", row.name);
        }
    }
    count
}

fn attached() -> Va {
    attachment().claimed().attached()
}

/// Detached and on record, kept by the finalizer of another.
fn detached() -> Va {
    attachment()
        .finalizers(&["someone/else"])
        .noted_node(NODE_ID)
        .deleting()
}

fn in_use_elsewhere(mut world: DecideModel) -> DecideModel {
    world.neighbours.in_use_elsewhere = true;
    world
}

fn settled(va: Va) -> DecideModel {
    without_node(va).node()
}

fn without_node(va: Va) -> DecideModel {
    world().pv(volume().protected()).va(va)
}

/// A listing is proof about others while it agrees with these. Where the driver refused the repair, it may be right that nothing is there.
#[test]
fn what_a_listing_has_to_agree_with_to_be_proof() {
    let failed = json!({"message": "the machine is gone", "time": "2026-02-03T00:00:00Z"});
    let failed = attached().set("/status/attachError", failed);
    let rows = [
        ("attached", settled(attached()), true),
        ("its repair failed", settled(failed), false),
        ("being attached", settled(attachment().claimed()), false),
        ("being detached", settled(attached().deleting()), false),
        ("detached and kept by another", settled(detached()), false),
        ("its node is gone", without_node(attached()), false),
    ];
    for (name, world, expected) in rows {
        let snapshot = world.snapshot().unwrap();
        let observed = crate::decide::observe(&snapshot, &world.driver, &world.policy, SecretState::NotLoaded);
        assert_eq!(witness(&observed).is_some(), expected, "{name}");
    }
}

#[test]
fn the_rows_of_the_sidecar() {
    let rows = vec![
        row(
            "va attached actual state not attached",
            settled(attached()),
            &[NOT_LISTED, NOT_LISTED],
            // The claim adds the note of the volume, which the sidecar does not have.
            "NOTE | pub handle1 nodeID1 rw | ATT",
        ),
        row(
            "va attached actual state attached",
            world()
                .pv(volume().protected())
                .va(attachment().attached().noted_node(NODE_ID)),
            &[AT_NODE, AT_NODE],
            "",
        ),
        row(
            "va detached actual state attached",
            world().pv(volume().protected()).va(detached()),
            &[AT_NODE, AT_NODE],
            "unpub handle1 nodeID1",
        ),
        row(
            "no volume attachments but existing lister response",
            world().pv(volume().protected()).node(),
            &[AT_NODE, AT_NODE],
            "",
        ),
    ];
    tally("8.4", "reconcile", play(rows));
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn a_mismatch_must_persist_and_counts_until_it_is_gone() {
    let failed = || {
        Err(Failure {
            message: "rpc error: code = Unavailable desc = busy".to_owned(),
            code: Some(14),
        })
    };
    let noted = || {
        let note = json!({"handle": "handle1"});
        settled(attached().noted_volume(&note))
    };
    let publish = "pub handle1 nodeID1 rw | ATT";
    let rows = vec![
        row("once is not enough", noted(), &[NOT_LISTED], ""),
        row("not twice in a row", noted(), &[NOWHERE, AT_NODE, NOWHERE, AT_NODE], ""),
        row(
            "listed at no node is not at the node",
            noted(),
            &[NOWHERE, NOWHERE],
            publish,
        ),
        row("listed at another node", noted(), &[ELSEWHERE, ELSEWHERE], publish),
        row(
            "listed under the node ID of the attach, which the node has no more",
            noted().node_of(Some("nodeID2")),
            &[AT_NODE, AT_NODE],
            "",
        ),
        row(
            "listed under the node ID of now",
            noted().node_of(Some("nodeID2")),
            &[ELSEWHERE, ELSEWHERE],
            "",
        ),
        row(
            "at neither: published anew, and never taken back from under a pod",
            noted().node_of(Some("nodeID2")),
            &[NOWHERE, NOWHERE],
            "NOTE former handle1@nodeID1 | pub handle1 nodeID2 rw | ATT",
        ),
        row(
            "what the driver does not tell is no mismatch",
            noted(),
            &[UNTOLD, UNTOLD, UNTOLD],
            "",
        ),
        row("the last of two entries counts", noted(), &[TWICE, TWICE], ""),
        row(
            "attached to another node too: a repair may take it from a pod there",
            in_use_elsewhere(noted().pv(volume().protected().set("/spec/accessModes", json!(["ReadWriteOnce"])))),
            &[ELSEWHERE, ELSEWHERE],
            "",
        ),
        row(
            "of many nodes, attached to another one too",
            in_use_elsewhere(noted()),
            &[ELSEWHERE, ELSEWHERE],
            publish,
        ),
        row(
            "repaired, and still not seen there: once in a pass",
            noted(),
            &[NOWHERE, NOWHERE, NOWHERE, AT_NODE],
            "pub handle1 nodeID1 rw | ATT | pub handle1 nodeID1 rw | ATT",
        ),
        row(
            "a repair that failed is not forgotten",
            noted().answer(failed()),
            &[NOWHERE, NOWHERE, NOWHERE],
            "pub handle1 nodeID1 rw | AERR(rpc error: code = Unavailable desc = busy, 14) | pub handle1 nodeID1 rw | ATT",
        ),
        row(
            "a repair that failed ends when the mismatch is gone",
            noted().answer(failed()),
            &[NOWHERE, NOWHERE, AT_NODE],
            "pub handle1 nodeID1 rw | AERR(rpc error: code = Unavailable desc = busy, 14)",
        ),
    ];
    assert_eq!(play(rows), 14);
}

#[test]
fn what_is_worked_on_anyway_or_is_not_ours_is_not_expected() {
    let node = || world().pv(volume().protected()).node();
    let served = || node().va(attached());
    let user = || attachment().attached();
    let other = attached().set("/spec/attacher", "other.driver");
    let cannot = Capabilities {
        publish_unpublish: false,
        ..capable()
    };
    let rows = [
        ("wanted, not attached yet", node().va(attachment().claimed())),
        ("being detached", node().va(attached().deleting())),
        ("that gets its finalizer again", node().va(attached().finalizers(&[]))),
        ("of another driver", node().va(other)),
        ("of a driver that publishes nothing", served().capabilities(cannot)),
        ("of a volume that is gone", world().va(attached()).node()),
        ("of a node that nobody knows", world().pv(volume()).va(user())),
        (
            "of a node without the driver",
            world().pv(volume()).va(attachment().attached()).node_of(None),
        ),
    ];
    for (name, world) in rows {
        assert_eq!(expected(&world), None, "{name}");
    }
}

/// The driver lists it so when the backend has done what a call was for, though that failed: then the backoff ends.
#[test]
fn what_is_awaited_of_a_volume_that_is_being_attached_or_detached() {
    let claimed = || settled(attachment().claimed());
    let leaving = || attached().deleting();
    let user = attachment().attached();
    let here = |node: &'static str| Some((node, None, DesiredState::Published));
    let gone = |node: &'static str, former: Option<&'static str>| Some((node, former, DesiredState::Unpublished));
    let rows = [
        ("claimed", claimed(), here(NODE_ID)),
        (
            "its node has another ID",
            claimed().node_of(Some("newID")),
            here("newID"),
        ),
        ("not claimed", settled(attachment()), None),
        ("attached", settled(attached()), None),
        ("its node is gone", without_node(attachment().claimed()), None),
        (
            "its volume is deleted",
            claimed().pv(volume().protected().deleting()),
            None,
        ),
        ("being detached", settled(leaving()), gone(NODE_ID, None)),
        (
            "being detached from a node with another ID",
            settled(attached().deleting()).node_of(Some("newID")),
            gone("newID", Some(NODE_ID)),
        ),
        ("from one that is gone", without_node(leaving()), gone(NODE_ID, None)),
        (
            "somebody took the finalizer off",
            settled(attached().finalizers(&["someone/else"]).deleting()),
            gone(NODE_ID, None),
        ),
        ("another one uses it", settled(leaving()).here(&user), None),
        ("detached", settled(detached()), None),
        (
            "of another driver",
            settled(attachment().claimed().set("/spec/attacher", "other.driver")),
            None,
        ),
    ];
    for (name, world, expected) in rows {
        let snapshot = world.snapshot().unwrap();
        let observed = crate::decide::observe(&snapshot, &world.driver, &world.policy, SecretState::NotLoaded);
        let found = awaited(&observed);
        let found = found.as_ref().map(|found| {
            assert_eq!(&*found.handle, "handle1", "{name}");
            (&*found.node_id, found.former_node_id.as_deref(), found.wanted)
        });
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn what_is_expected_of_a_volume() {
    let expect = |world: &DecideModel| {
        expected(world).map(|found| (found.handle.to_string(), found.node_id.to_string(), found.wanted))
    };
    let (here, gone) = (DesiredState::Published, DesiredState::Unpublished);
    let says = |handle: &str, node: &str, wanted| Some((handle.to_owned(), node.to_owned(), wanted));
    assert_eq!(expect(&settled(attached())), says("handle1", NODE_ID, here));
    // As for a detach, the node's own word counts more than what was noted.
    let moved = settled(attached()).node_of(Some("newID"));
    assert_eq!(expect(&moved), says("handle1", "newID", here));
    // What is noted is enough for a detach. An attach goes by the CSINode alone.
    let without_node = |va: Va| world().pv(volume()).va(va);
    assert_eq!(expect(&without_node(attached())), None);
    assert_eq!(expect(&without_node(detached())), says("handle1", NODE_ID, gone));
    assert_eq!(expect(&settled(detached())), says("handle1", NODE_ID, gone));
    // A volume that was removed by force is known from the note, but could not be published again.
    let note = json!({"handle": "noted"});
    let removed = |va: Va| world().va(va.noted_volume(&note)).node();
    assert_eq!(expect(&removed(attached())), None);
    assert_eq!(expect(&removed(detached())), says("noted", NODE_ID, gone));
    let inline = world().va(attached().inline(&volume())).node();
    assert_eq!(expect(&inline), says("handle1", NODE_ID, here));
}

/// With an AttacherConfig that lists no Secret.
fn without_secrets(mut world: DecideModel) -> DecideModel {
    world.policy.publish_secrets = PublishSecrets::default();
    world
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn nothing_is_expected_where_a_repair_would_be_refused() {
    let with = |volume: Pv| world().pv(volume).va(attached()).node();
    let nowhere = |volume: Pv| world().pv(volume).va(attached());
    let plain = || nowhere(volume().protected());
    let secret = || volume().protected().secret("secret");
    let unlisted = |va: Va| without_secrets(world().pv(secret()).va(va).node());
    let unmapped = || volume().modes(&["ReadWriteOnce", "ReadOnlyMany"]);
    let foreign = volume().protected().set("/spec/csi/driver", "other.driver");
    let leaving = |va: Va| settled(va).leaving();
    let left = || settled(detached());
    let user = attachment().attached();
    let note = json!({"handle": "handle1", "secret": {"namespace": "default", "name": "secret"}});
    let noted = detached().noted_volume(&note);
    let well = vec![
        ("nothing is wrong", settled(attached())),
        ("not protected", with(volume())),
        ("a Secret that is listed", with(secret())),
        ("claimed, and the AttacherConfig goes", leaving(attached())),
        ("detached", left()),
        ("detached, with a Secret that was noted", unlisted(noted)),
    ];
    let no_node = vec![
        ("no CSINode", plain()),
        ("no CSINode, not protected", nowhere(volume())),
        ("no CSINode, with a Secret", nowhere(secret())),
        ("a CSINode without the driver", plain().node_of(None)),
        ("a blank node ID", plain().node_of(Some(" "))),
    ];
    let deleting = vec![("the volume is being deleted", with(volume().protected().deleting()))];
    let secrets = vec![
        ("a Secret that is not listed", unlisted(attached())),
        ("detached, with a Secret that is not listed", unlisted(detached())),
    ];
    let invalid = vec![
        ("access modes that CSI has not", with(unmapped())),
        ("the volume of another driver", with(foreign)),
    ];
    let unclaimed = vec![("not claimed, and the AttacherConfig goes", leaving(user.clone()))];
    let shared = vec![
        ("detached, and another one uses the volume there", left().here(&user)),
        (
            "detached, and another one uses the volume at its node ID",
            left().claimed(&user.noted_node(NODE_ID)),
        ),
    ];
    for (reason, rows) in [
        (None, well),
        (Some("csinode_missing"), no_node),
        (Some("pv_deleting"), deleting),
        (Some("secret_not_allowed"), secrets),
        (Some("invalid_spec"), invalid),
        (Some("config_deleting"), unclaimed),
        (Some("volume_shared"), shared),
    ] {
        for (name, world) in rows {
            assert_eq!(refused(&world), reason, "{name}");
        }
    }
}

/// No error is written on what is attached though no call was made: a person could not have it released then.
#[test]
fn what_cannot_be_repaired_is_left_alone_in_every_pass() {
    let noted = || attached().noted_volume(&json!({"handle": "handle1"}));
    let with = |volume: Pv| world().pv(volume).va(noted());
    let secret = volume().protected().secret("secret");
    let rows = vec![
        row("no CSINode", with(volume().protected()), &[NOWHERE; 3], ""),
        row(
            "the volume is being deleted",
            with(volume().protected().deleting()).node(),
            &[NOWHERE; 3],
            "",
        ),
        row(
            "a Secret that is not listed",
            without_secrets(with(secret).node()),
            &[NOWHERE; 3],
            "",
        ),
        row(
            "detached, and another one uses the volume there",
            settled(detached()).here(&attachment().attached()),
            &[AT_NODE; 3],
            "",
        ),
    ];
    assert_eq!(play(rows), 4);
}

#[test]
fn handles_of_migrated_volumes_are_completed_as_the_driver_lists_them() {
    let node_id = "projects/p/zones/us-a-b/instances/i";
    let va = attachment()
        .finalizers(&[GCE_FINALIZER])
        .attached()
        .set("/spec/attacher", GCE_DRIVER);
    let world = gce_world().pv(gce_volume()).va(va.clone()).node_of(Some(node_id));
    let handle = expected(&world).map(|found| found.handle);
    assert_eq!(handle.as_deref(), Some("projects/p/zones/testZone/disks/testpd"));
    // Nor does the note of one whose PersistentVolume is gone have the project.
    let note = json!({"handle": "projects/UNSPECIFIED/zones/testZone/disks/testpd"});
    let left = va
        .clone()
        .finalizers(&[])
        .noted_volume(&note)
        .set("/status/attached", false);
    let left = left.deleting();
    let handle = expected(&gce_world().va(left).node_of(Some(node_id))).map(|found| found.handle);
    assert_eq!(handle.as_deref(), Some("projects/p/zones/testZone/disks/testpd"));
    // A node ID that says too little makes it incomparable, not wrong.
    assert_eq!(expected(&gce_world().pv(gce_volume()).va(va).node()), None);
}

#[test]
fn one_that_is_made_anew_starts_without_suspicion() {
    let mut suspects = Mismatches::default();
    let found = |uid: &str| Expectation {
        name: "a".into(),
        uid: uid.into(),
        handle: "h".into(),
        node_id: "n".into(),
        former_node_id: None,
        wanted: DesiredState::Published,
    };
    let mut due = |found| suspects.pass(vec![found], &[], |_| true, 60).due;
    assert_eq!(due(found("1")), []);
    assert_eq!(due(found("2")), []);
    assert_eq!(due(found("2")), [found("2")]);
    let gone = Expectation {
        wanted: DesiredState::Unpublished,
        ..found("2")
    };
    assert_eq!(due(gone), [], "another mismatch of the same object");
}

#[test]
fn a_forced_attachment_still_keeps_every_rule() {
    // Not while its volume is being deleted, and never without both finalizers.
    let mut world = world().pv(volume().protected().deleting()).va(attached()).node();
    world.forced = true;
    world.attempt();
    assert_eq!(world.log, ["AERR(PersistentVolume \"pv1\" is marked for deletion)"]);
    let mut world = settled(attachment().attached()).pv(volume());
    world.forced = true;
    world.attempt();
    assert_eq!(world.log.join(" | "), "PV+ | FIN+ | pub handle1 nodeID1 rw | ATT");
    let finalizers = &world.attachment.unwrap()["metadata"]["finalizers"];
    assert_eq!(finalizers, &json!([FINALIZER]));
}

#[test]
fn what_is_at_a_node_of_the_cluster_without_an_attachment_is_told_and_expected_nowhere() {
    let expectation = |handle: &str, node_id: &str| Expectation {
        name: format!("{handle}-{node_id}").into(),
        uid: "u".into(),
        handle: handle.into(),
        node_id: node_id.into(),
        former_node_id: None,
        wanted: DesiredState::Published,
    };
    let nodes = ["n1", "n2", "n3"].map(Box::from).into_iter().collect();
    let listing = Listing::about(vec![expectation("shared", "n1"), expectation("shared", "n2")]);
    let mut listing = listing.with_nodes(nodes).looking_for_unclaimed(vec!["moving".into()]);
    let mut list = |handle: &str, nodes: &[&str]| {
        let nodes: Vec<String> = nodes.iter().map(ToString::to_string).collect();
        listing.add(handle, Some(&nodes));
    };
    list("shared", &["n1", "n2", "n3"]);
    list("moving", &["n1"]);
    list("lost", &["n2", "of-another-cluster"]);
    list("nowhere", &[]);
    listing.add("untold", None);
    let compared = listing.compare();
    let found: Vec<_> = compared
        .unclaimed
        .iter()
        .map(|unclaimed| (&*unclaimed.handle, &*unclaimed.node_id))
        .collect();
    assert_eq!(found, [("lost", "n2"), ("shared", "n3")]);
    assert!(compared.contradicted.is_empty());
    assert_eq!(compared.agreed.len(), 2);
}

#[test]
fn what_two_listings_in_a_row_show_without_an_attachment_is_reported() {
    let at_node = |handle: &str| Unclaimed {
        handle: handle.into(),
        node_id: "n".into(),
    };
    let mut lasting = LastingUnclaimed::default();
    assert_eq!(lasting.pass([at_node("b")].into()), None, "it may be under way");
    let expected = VolumesWithoutAttachment {
        count: 1,
        examples: vec![at_node("b")],
    };
    assert_eq!(lasting.pass([at_node("b"), at_node("a")].into()), Some(expected));
    assert_eq!(lasting.pass(BTreeSet::new()), Some(VolumesWithoutAttachment::default()));
    let many: BTreeSet<_> = (0..200).rev().map(|number| at_node(&format!("h{number:03}"))).collect();
    lasting.pass(many.clone());
    let found = lasting.pass(many).unwrap();
    assert_eq!((found.count, found.examples.len()), (200, MAX_EXAMPLES));
    assert_eq!(found.examples[0], at_node("h000"));
}

#[test]
fn no_more_than_so_many_volumes_without_an_attachment_are_kept_in_mind_and_no_handle_without_measure() {
    let node = ["n".to_owned()];
    let many: Vec<String> = (0..2 * MAX_UNCLAIMED).map(|number| format!("h{number}")).collect();
    let listed = |handles: Vec<&String>| {
        let nodes = [Box::from("n")].into_iter().collect();
        let mut listing = Listing::about(vec![]).with_nodes(nodes).looking_for_unclaimed(vec![]);
        listing.add(&"a".repeat(1 << 20), Some(&node));
        for handle in handles {
            listing.add(handle, Some(&node));
        }
        listing.compare().unclaimed
    };
    let found = listed(many.iter().collect());
    assert_eq!(found.len(), MAX_UNCLAIMED);
    assert!(found.iter().all(|unclaimed| unclaimed.handle.len() < 10));
    // A driver lists in an order of its own, which may be another one each time: the same ones are kept, and the number stays.
    let mut lasting = LastingUnclaimed::default();
    lasting.pass(found);
    let found = lasting.pass(listed(many.iter().rev().collect())).unwrap();
    assert_eq!((found.count, &*found.examples[0].handle), (MAX_UNCLAIMED, "h0"));
}
