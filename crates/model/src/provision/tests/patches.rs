//! What the API server makes of the patches.

use serde_json::{Value, json};

use super::builders::{ClaimWorld, FINALIZER, MARKER, claim_of, put, volume_of, volume_world, world};
use crate::decide::patch::{PatchType, Write, WriteTarget};
use crate::decide::tests::api_server;
use crate::objects::Claim;
use crate::provision::patch::{ClaimWrite, let_go, mark, refuse_release, release_volume, reschedule, unmark};

/// Applies a JSON patch of metadata by the rules of the API server, whatever kind of object it is of.
pub fn apply(object: &mut Value, body: &Value) -> Result<(), String> {
    let is_of_metadata = |operation: &Value| operation["path"].as_str().unwrap().starts_with("/metadata/");
    let mut changes = body
        .as_array()
        .unwrap()
        .iter()
        .filter(|operation| operation["op"] != "test");
    assert!(changes.all(is_of_metadata), "{body}");
    let write = Write {
        target: WriteTarget::Volume("".into()),
        form: PatchType::Json,
        body: body.clone(),
    };
    // An empty list is stored as none.
    let mut stored = object.clone();
    if stored["metadata"]["finalizers"] == json!([]) {
        stored["metadata"].as_object_mut().unwrap().remove("finalizers");
    }
    *object = api_server::apply(&stored, &write)?;
    Ok(())
}

fn finalizers(claim: &Value) -> Vec<&str> {
    let list = claim["metadata"]["finalizers"].as_array();
    list.into_iter().flatten().filter_map(Value::as_str).collect()
}

/// A claim with finalizers and annotations of others around ours.
fn crowded() -> ClaimWorld {
    let mut world = world().marked().annotate("a~b/c", "kept");
    world.claim["metadata"]["finalizers"] = json!(["a/first", MARKER, "z/last"]);
    world
}

#[test]
fn the_marker_goes_on_and_off_and_nothing_else_changes() {
    for before in [
        world().claim,
        world().set("/metadata/finalizers", json!(null)).claim,
        world().set("/metadata/annotations", json!(null)).claim,
        world().annotate(MARKER, "stale").claim,
    ] {
        let mut claim = before.clone();
        let on = mark(&claim_of(&claim), "text");
        apply(&mut claim, &on.body).unwrap();
        assert_eq!(claim["metadata"]["annotations"][MARKER], "text");
        assert_eq!(finalizers(&claim).last(), Some(&MARKER));
        assert!(finalizers(&claim).starts_with(&finalizers(&before)));
        let twice = mark(&claim_of(&before), "again");
        assert!(apply(&mut claim, &twice.body).is_err(), "a copy from before");
        let off = unmark(&claim_of(&claim)).unwrap();
        apply(&mut claim, &off.body).unwrap();
        assert_eq!(finalizers(&claim), finalizers(&before));
        assert!(claim["metadata"]["annotations"][MARKER].is_null());
    }
    let mut claim = crowded().claim;
    let off = unmark(&claim_of(&claim)).unwrap();
    apply(&mut claim, &off.body).unwrap();
    assert_eq!(finalizers(&claim), ["a/first", "z/last"]);
    assert_eq!(claim["metadata"]["annotations"]["a~b/c"], "kept");
    assert_eq!(unmark(&claim_of(&claim)), None);
}

/// The patch that puts the marker on is the look at the claim.
#[test]
fn the_first_marker_is_refused_where_the_claim_is_not_as_it_was() {
    let write = mark(&claim_of(&world().claim), "text");
    for changed in [
        world().set("/metadata/uid", "other"),
        world().set("/spec/volumeName", "static"),
        world().deleting(),
        world().set("/metadata/finalizers", json!(["other/one"])),
    ] {
        let mut claim = changed.claim;
        assert!(apply(&mut claim, &write.body).is_err(), "{claim}");
    }
}

/// The next process writes the marker anew, and a late write of the former one is refused.
#[test]
fn a_late_write_of_a_process_that_has_ended_is_refused() {
    for before in [crowded(), crowded().deleting(), crowded().bound("x")] {
        let mut claim = before.claim;
        let late = unmark(&claim_of(&claim)).unwrap();
        let renewed = mark(&claim_of(&claim), "{\"writer\":\"second\"}");
        apply(&mut claim, &renewed.body).unwrap();
        assert_eq!(finalizers(&claim), ["a/first", MARKER, "z/last"]);
        assert!(apply(&mut claim, &late.body).is_err());
        assert!(apply(&mut claim, &renewed.body).is_err(), "its own answer was lost");
    }
    // Gone from the object means gone: nothing is marked by a copy from before.
    let mut claim = crowded().claim;
    let renewed = mark(&claim_of(&claim), "new");
    let off = unmark(&claim_of(&claim)).unwrap();
    apply(&mut claim, &off.body).unwrap();
    assert!(apply(&mut claim, &renewed.body).is_err());
}

#[test]
fn an_annotation_that_is_missing_or_too_long_does_not_hold_the_marker() {
    let mut missing = crowded().claim;
    missing["metadata"]["annotations"]
        .as_object_mut()
        .unwrap()
        .remove(MARKER);
    let long = crowded().annotate(MARKER, &"x".repeat(9 << 10)).claim;
    let without_map = crowded().set("/metadata/annotations", json!(null)).claim;
    for mut claim in [missing, long, without_map] {
        let renewed = mark(&claim_of(&claim), "new");
        let mut other = claim.clone();
        apply(&mut other, &renewed.body).unwrap();
        let off = unmark(&claim_of(&claim)).unwrap();
        apply(&mut claim, &off.body).unwrap();
        assert_eq!(finalizers(&claim), ["a/first", "z/last"]);
    }
}

#[test]
fn a_node_is_taken_off_together_with_the_marker() {
    const NODE: &str = "volume.kubernetes.io/selected-node";
    let world = crowded().annotate(NODE, "n1");
    let write = reschedule(&claim_of(&world.claim)).unwrap();
    let mut claim = world.claim.clone();
    apply(&mut claim, &write.body).unwrap();
    assert!(claim["metadata"]["annotations"][NODE].is_null() && !finalizers(&claim).contains(&MARKER));
    let mut other = world.annotate(NODE, "n2").claim;
    assert!(apply(&mut other, &write.body).is_err(), "the scheduler chose again");
    assert_eq!(reschedule(&claim_of(&crowded().claim)), None);
}

/// The smallest history of the model checker: the node was gone, the write was sent and brought no answer, the node came back, the claim
/// was marked, CreateVolume was called, and the write arrived.
///
/// Also where others have written more annotations than are kept, so that a marker may have been left out.
#[test]
fn a_node_stays_when_the_claim_was_marked_meanwhile() {
    const NODE: &str = "volume.kubernetes.io/selected-node";
    for noise in [0, 20 << 10] {
        let unmarked = world().annotate(NODE, "n1").annotate("noise/a", &"x".repeat(noise));
        let known = claim_of(&unmarked.claim);
        assert_eq!(known.annotations_left_out > 0, noise > 0);
        let write = reschedule(&known).unwrap();
        let mut marked = unmarked.claim.clone();
        apply(&mut marked, &mark(&known, "{}").body).unwrap();
        put(&mut marked, "/metadata/resourceVersion", json!("8"));
        assert!(apply(&mut marked, &write.body).is_err(), "{noise}");
        let mut claim = unmarked.claim;
        apply(&mut claim, &write.body).unwrap();
        assert!(claim["metadata"]["annotations"][NODE].is_null());
    }
}

#[test]
fn a_request_counts_as_long_as_it_stands() {
    const KEY: &str = "attacher.csi.dev/release";
    let asked = crowded().deleting().annotate(KEY, "please");
    let (granted, refused) = {
        let claim = claim_of(&asked.claim);
        (let_go(&claim).unwrap(), refuse_release(&claim, "no").unwrap())
    };
    let mut claim = asked.claim.clone();
    apply(&mut claim, &refused.body).unwrap();
    let answer = &claim["metadata"]["annotations"]["attacher.csi.dev/release-refused"];
    assert_eq!(*answer, "no");
    apply(&mut claim, &granted.body).unwrap();
    assert_eq!(finalizers(&claim), ["a/first", "z/last"]);
    let mut changed = asked.annotate(KEY, "another").claim;
    assert!(apply(&mut changed, &granted.body).is_err() && apply(&mut changed, &refused.body).is_err());
    assert!(let_go(&claim_of(&crowded().claim)).is_none() && refuse_release(&claim_of(&crowded().claim), "").is_none());
}

#[test]
fn the_finalizer_of_a_volume_goes_wherever_it_stands() {
    const ATTACHER: &str = "external-attacher/csi-test";
    for list in [[ATTACHER, FINALIZER], [FINALIZER, ATTACHER]] {
        let mut volume = volume_world().set("/metadata/finalizers", json!(list)).volume;
        let write = release_volume(&volume_of(&volume)).unwrap();
        apply(&mut volume, &write.body).unwrap();
        assert_eq!(finalizers(&volume), [ATTACHER]);
        assert!(apply(&mut volume, &write.body).is_err(), "a stale copy");
    }
}

type Patch = fn(&Claim) -> Option<ClaimWrite>;

/// The API server takes a name twice, and what is left of it holds the object.
#[test]
fn a_finalizer_that_stands_twice_goes_as_a_whole() {
    let twice = json!([FINALIZER, "external-attacher/csi-test", FINALIZER]);
    let mut volume = volume_world().set("/metadata/finalizers", twice).volume;
    let off = release_volume(&volume_of(&volume)).unwrap();
    apply(&mut volume, &off.body).unwrap();
    assert_eq!(finalizers(&volume), ["external-attacher/csi-test"]);

    let world = crowded().set("/metadata/finalizers", json!([MARKER, "a/first", MARKER]));
    let node = |world: ClaimWorld| world.annotate("volume.kubernetes.io/selected-node", "n1");
    let asked = |world: ClaimWorld| world.deleting().annotate("attacher.csi.dev/release", "please");
    let rows: [(ClaimWorld, Patch); 3] = [
        (world.clone(), unmark),
        (node(world.clone()), reschedule),
        (asked(world.clone()), let_go),
    ];
    for (before, off) in rows {
        let mut claim = before.claim;
        let off = off(&claim_of(&claim)).unwrap();
        apply(&mut claim, &off.body).unwrap();
        assert_eq!(finalizers(&claim), ["a/first"]);
        assert!(claim["metadata"]["annotations"][MARKER].is_null());
    }
    // What is written anew has all of them as its condition.
    let mut claim = world.claim;
    let renewed = mark(&claim_of(&claim), "new");
    apply(&mut claim, &renewed.body).unwrap();
    assert_eq!(finalizers(&claim), [MARKER, "a/first", MARKER]);
}

/// Of a list that is not kept as a whole the version is tested.
#[test]
fn a_long_list_of_finalizers_is_added_to_by_its_version() {
    let list: Vec<String> = (0..2000).map(|at| format!("finalizer/{at}")).collect();
    let claim = claim_of(&world().set("/metadata/finalizers", json!(list)).claim);
    let body = mark(&claim, "text").body;
    let test = json!({"op": "test", "path": "/metadata/resourceVersion", "value": "7"});
    assert!(body.as_array().unwrap().contains(&test));
    let marked: Vec<&str> = list.iter().map(String::as_str).chain([MARKER]).collect();
    let mut object = world().set("/metadata/finalizers", json!(marked)).claim;
    let claim = claim_of(&object);
    assert_eq!(claim.marker_at.as_deref(), Some(&[2000][..]));
    apply(&mut object, &unmark(&claim).unwrap().body).unwrap();
    assert_eq!(finalizers(&object).len(), 2000);
}
