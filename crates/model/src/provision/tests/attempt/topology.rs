//! Attempts for a driver with topology: what the nodes say, and when it is asked for.

use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

use super::super::builders::{DRIVER, MARKER, marker_json, node, world};
use super::{Cluster, Play, failed};
use crate::objects::StringMap;
use crate::provision::attempt::{
    ClaimAttempt, ClaimEvent, ClaimMemory, ClaimNote, ClaimStep, ClaimView, NODE_TIMEOUT, RescheduleCause, Verdict,
    WaitsFor,
};
use crate::provision::topology::Segment;
use crate::provision::{ClaimReason, CreateOutcome, CreatePlan, Creation, LeakProtection, ProvisionRefusal};

const SELECTED: &str = "/metadata/annotations/volume.kubernetes.io~1selected-node";

/// Three zones, and a claim that is scheduled to the first of them.
fn delayed() -> Play {
    let mut cluster = immediate();
    cluster.set_class("volumeBindingMode", json!("WaitForFirstConsumer"));
    cluster.set(SELECTED, json!("n1"));
    Play::of(cluster)
}

fn immediate() -> Cluster {
    let mut cluster = Cluster::new();
    cluster.driver.capabilities.accessibility_constraints = true;
    cluster.nodes = vec![
        node("n1", &[("zone", "a")]),
        node("n2", &[("zone", "b")]),
        node("n3", &[("zone", "c")]),
    ];
    cluster
}

/// One attempt whose call is answered with this code, or carried out; what was called with.
fn called(play: &mut Play, code: Option<i32>) -> (Verdict, Option<Arc<CreatePlan>>) {
    let mut asked = None;
    let verdict = play.attempt(|step, _| {
        let ClaimStep::Create(of) = step else { return None };
        asked = Some(of.clone());
        code.map(failed)
    });
    (verdict, asked)
}

/// The first node goes, and stays away for as long as its claim waits for it: its watch may be behind.
fn lose_node(play: &mut Play) {
    play.cluster.nodes.remove(0);
    assert_eq!(called(play, None), (Verdict::Rest(NODE_TIMEOUT), None));
    assert!(play.take_done().is_empty() && play.notes.is_empty());
    play.cluster.wait(NODE_TIMEOUT);
}

fn first(asked: Option<&Arc<CreatePlan>>) -> String {
    let requirement = asked.and_then(|asked| asked.accessibility.as_ref());
    requirement
        .and_then(|requirement| requirement.first())
        .map(ToString::to_string)
        .unwrap_or_default()
}

/// The first term that was called with.
fn zone_called(play: &mut Play, code: Option<i32>) -> String {
    first(called(play, code).1.as_ref())
}

/// The node that the claim is scheduled to.
fn selected(play: &Play) -> Option<&Value> {
    play.cluster.claim.as_ref().unwrap().pointer(SELECTED)
}

fn refusal(play: &Play) -> Option<(ClaimReason, &ProvisionRefusal)> {
    match play.notes.last() {
        Some(ClaimNote::Waits(reason, cause)) => Some((*reason, cause)),
        _ => None,
    }
}

fn taken_off(cause: RescheduleCause) -> ClaimNote {
    ClaimNote::Rescheduled("n1".into(), cause)
}

#[test]
fn the_selected_node_comes_first_and_the_others_after_it() {
    let mut play = delayed();
    play.cluster.set(SELECTED, json!("n2"));
    let (_, asked) = called(&mut play, None);
    let requirement = asked.unwrap().accessibility.clone().unwrap();
    let words = |terms: &[crate::provision::topology::Segment]| {
        terms.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(words(&requirement.requisite), "zone=a zone=b zone=c");
    assert_eq!(words(&requirement.preferred), "zone=b zone=c zone=a");
    assert_eq!(play.saved(), 1);
}

#[test]
fn of_a_driver_without_topology_no_node_is_looked_at() {
    let mut play = delayed();
    play.cluster.driver.capabilities.accessibility_constraints = false;
    let (_, asked) = called(&mut play, None);
    assert_eq!(asked.unwrap().accessibility, None);
    play.print();
    assert_eq!(play.cluster.looks_at_nodes.get(), 0);
}

/// Each event of a claim asks for its inputs, and all nodes of a driver are put together again after each change of one.
#[test]
fn the_inputs_of_a_claim_with_a_selected_node_need_no_other_node() {
    let looks = |play: &Play| {
        play.cluster.looks_at_nodes.set(0);
        play.print();
        play.cluster.looks_at_nodes.get()
    };
    let mut play = delayed();
    assert_eq!(looks(&play), 1, "the selected one");
    play.cluster.class = None;
    assert_eq!(looks(&play), 1);
    // Of an immediate class the selected node does not count.
    let mut play = Play::of(immediate());
    assert_eq!(looks(&play), 1, "all of them");
    play.cluster.set(SELECTED, json!("n1"));
    assert_eq!(looks(&play), 2);
}

/// Lists that are not complete show no node as gone.
#[test]
fn what_is_not_known_of_nodes_leads_to_no_write() {
    let mut play = delayed();
    play.cluster.nodes_are_known = false;
    play.cluster.nodes.clear();
    assert!(matches!(called(&mut play, None), (Verdict::Rest(_), None)));
    assert!(play.take_done().is_empty() && play.notes.is_empty());
}

/// A pod waits for it. What wakes the claim meanwhile makes the wait no longer.
#[test]
fn a_node_that_is_gone_is_taken_off_within_a_second() {
    let mut play = delayed();
    play.cluster.nodes.remove(0);
    let mut waited = Duration::ZERO;
    for woken_after in [Duration::from_millis(300), Duration::MAX] {
        let (verdict, asked) = called(&mut play, None);
        let Verdict::Rest(rest) = verdict else {
            panic!("{verdict:?}")
        };
        assert_eq!(asked, None);
        let passed = rest.min(woken_after);
        play.cluster.wait(passed);
        waited += passed;
    }
    assert_eq!(called(&mut play, None), (Verdict::Done, None));
    assert!(play.notes.contains(&taken_off(RescheduleCause::NodeGone)));
    assert!(waited < Duration::from_secs(1), "{waited:?}");
}

#[test]
fn a_node_that_is_gone_is_taken_off_in_one_patch() {
    let mut play = delayed();
    lose_node(&mut play);
    assert_eq!(called(&mut play, None).0, Verdict::Done);
    assert_eq!(play.take_done(), ["patch"]);
    assert!(play.notes.contains(&taken_off(RescheduleCause::NodeGone)));
    assert_eq!(selected(&play), None);
    // kube-scheduler selects again.
    play.cluster.set(SELECTED, json!("n3"));
    assert_eq!(zone_called(&mut play, None), "zone=c");
}

/// A manifest that was restored with its finalizer and annotations, in a cluster without its node: no call under that marker was about
/// this claim.
#[test]
fn the_marker_of_a_copied_manifest_holds_nothing_up() {
    let copied = || {
        let mut marker = marker_json();
        (marker["uid"], marker["since"]) = (json!("of-the-original"), json!("2025-01-01T00:00:00Z"));
        let mut play = delayed();
        play.cluster.claim = Some(world().marked_with(&marker).claim);
        play.cluster
            .set("/metadata/creationTimestamp", json!("2026-01-01T00:00:00Z"));
        play.cluster.set(SELECTED, json!("n1"));
        play.cluster.nodes.remove(0);
        play
    };
    let mut play = copied();
    assert_eq!(called(&mut play, None), (Verdict::Rest(NODE_TIMEOUT), None));
    assert_eq!(play.take_done(), ["patch"], "the marker goes meanwhile");
    play.cluster.wait(NODE_TIMEOUT);
    assert_eq!(called(&mut play, None).0, Verdict::Done);
    assert!(play.notes.contains(&taken_off(RescheduleCause::NodeGone)));
    play.cluster.set(SELECTED, json!("n3"));
    assert_eq!(zone_called(&mut play, None), "zone=c");
    assert_eq!(play.saved(), 1);
    let mut unwanted = copied();
    unwanted.cluster.delete();
    assert_eq!(called(&mut unwanted, None), (Verdict::Done, None));
    assert!(!unwanted.cluster.carries_marker());
}

/// The volume may be there: the same call, also by a process that knows no more than the claim says.
#[test]
fn a_node_that_is_gone_while_the_call_is_open_is_not_taken_off() {
    let mut play = delayed();
    assert_eq!(zone_called(&mut play, Some(4)), "zone=a");
    play.cluster.nodes.remove(0);
    assert_eq!(zone_called(&mut play, Some(4)), "zone=a");
    play.restart("2-3-csi.test");
    assert_eq!(zone_called(&mut play, Some(4)), "zone=a");
    assert_eq!(selected(&play), Some(&json!("n1")));
    assert!(play.cluster.carries_marker());
    assert!(!play.notes.iter().any(|note| matches!(note, ClaimNote::Rescheduled(..))));
}

/// Some drivers register every label of a node.
#[test]
fn a_driver_with_hundreds_of_topology_keys_is_served() {
    for count in [65, 200] {
        let keys: Vec<String> = (0..count).map(|at| format!("{at:0>65}")).collect();
        let labels: Vec<(&str, &str)> = keys.iter().map(|key| (&**key, "value")).collect();
        let mut play = delayed();
        play.cluster.policy.leak_protection = LeakProtection::Always;
        play.cluster.nodes[0] = node("n1", &labels);
        let sent = called(&mut play, Some(4)).1.unwrap();
        assert_eq!(sent.segment.as_ref().map(Segment::len), Some(count));
        play.cluster.nodes.remove(0);
        play.restart("2-3-csi.test");
        let again = called(&mut play, None).1.unwrap();
        assert_eq!(first(Some(&again)), first(Some(&sent)));
        assert_eq!((&again.segment, play.saved()), (&sent.segment, 1));
    }
}

/// A refusal is final: nothing holds on to the zone that the node had.
#[test]
fn labels_that_change_between_two_refusals_are_the_next_request() {
    let mut play = delayed();
    let (verdict, asked) = called(&mut play, Some(13));
    assert_eq!(first(asked.as_ref()), "zone=a");
    let Verdict::Failed(held) = verdict else {
        panic!("{verdict:?}")
    };
    assert_eq!(held, play.print(), "our own writes wake nobody");
    play.cluster.nodes[0] = node("n1", &[("zone", "d")]);
    assert_ne!(held, play.print(), "it is tried at once");
    assert_eq!(zone_called(&mut play, None), "zone=d");
}

#[test]
fn a_node_without_room_is_taken_off_together_with_the_marker() {
    let mut play = delayed();
    called(&mut play, Some(8));
    assert_eq!(play.take_done(), ["patch", "create", "patch"]);
    assert!(play.notes.contains(&taken_off(RescheduleCause::Exhausted)));
    let announces_none = |note: &ClaimNote| matches!(note, ClaimNote::CallFailed(outcome, _, false) if matches!(**outcome, CreateOutcome::Rescheduled(_)));
    assert!(play.notes.iter().any(announces_none), "{:?}", play.notes);
    assert!(!play.cluster.carries_marker());
    assert_eq!(selected(&play), None);
}

/// An admission policy puts the node back: another call, or another patch, would come to the same at once.
#[test]
fn a_node_that_is_put_back_is_taken_off_once_in_an_attempt() {
    let puts_back = |step: &ClaimStep, cluster: &mut Cluster| {
        let ClaimStep::Patch(write) = step else {
            return matches!(step, ClaimStep::Create(_)).then(|| failed(8));
        };
        Some(cluster.patch_changed(&write.body, |cluster| cluster.set(SELECTED, json!("n1"))))
    };
    for is_gone in [false, true] {
        let mut play = delayed();
        if is_gone {
            lose_node(&mut play);
        }
        let verdict = play.attempt(puts_back);
        assert!(matches!(verdict, Verdict::Failed(_)), "{verdict:?}");
        let done = if is_gone { "patch" } else { "patch create patch" };
        assert_eq!(play.take_done().join(" "), done);
        assert_eq!(play.told(|note| matches!(note, ClaimNote::Rescheduled(..))), 0);
        assert!(play.notes.iter().any(super::is_refused), "{:?}", play.notes);
    }
}

/// kube-scheduler selects the same node again, and the watch shows that before the answer to our write comes: it was taken off.
#[test]
fn a_node_that_is_selected_again_at_once_was_taken_off() {
    let (mut play, mut calls) = (delayed(), 0);
    play.attempt(|step, cluster| match step {
        ClaimStep::Create(_) => {
            calls += 1;
            (calls == 1).then(|| failed(8))
        }
        ClaimStep::Patch(write) if calls == 1 && cluster.carries_marker() => {
            let patched = cluster.patch(&write.body);
            cluster.set(SELECTED, json!("n1"));
            Some(ClaimEvent::Patched(patched))
        }
        _ => None,
    });
    assert_eq!(play.take_done().join(" "), "patch create patch patch create save");
    assert_eq!(play.told(|note| matches!(note, ClaimNote::Rescheduled(..))), 1);
    assert!(!play.notes.iter().any(super::is_refused), "{:?}", play.notes);
}

/// Of too many requests, as some drivers say it: elsewhere they would make a second volume.
#[test]
fn a_node_without_room_stays_once_where_somebody_else_may_have_called() {
    let mut play = delayed();
    play.memory.expect_calls_of_others();
    called(&mut play, Some(8));
    assert_eq!(selected(&play), Some(&json!("n1")));
    called(&mut play, Some(8));
    assert!(play.notes.contains(&taken_off(RescheduleCause::Exhausted)));
    assert_eq!(selected(&play), None);
}

/// Of the call of a sidecar nothing is written anywhere: its node goes, and that the call may be open is remembered until the next node is
/// selected, which may be long after. Its volume is in another zone then, so that the driver refuses ours.
#[test]
fn a_call_that_somebody_else_may_have_made_outlasts_its_node() {
    let rest = Verdict::Rest(Duration::from_mins(10));
    let mut play = delayed();
    play.memory.expect_calls_of_others();
    lose_node(&mut play);
    assert_eq!(called(&mut play, None), (rest, None));
    assert!(play.notes.contains(&taken_off(RescheduleCause::NodeGone)));
    assert_eq!(selected(&play), None);
    assert_eq!(called(&mut play, None), (rest, None));
    play.cluster.set(SELECTED, json!("n2"));
    assert_eq!(zone_called(&mut play, Some(6)), "zone=b");
    play.cluster.delete();
    let (_, asked) = called(&mut play, Some(6));
    assert!(asked.is_some() && play.cluster.carries_marker(), "{:?}", play.notes);
}

/// Users of a namespace can write the finalizer: that says nothing of a call, and nobody has said yet where the volume is wanted.
#[test]
fn a_marker_that_says_nothing_makes_no_volume_before_a_node_is_selected() {
    for text in [None, Some("{"), Some("{\"driver\": \"csi.test\"}")] {
        let mut play = delayed();
        play.cluster.set("/metadata/finalizers", json!([MARKER]));
        if let Some(text) = text {
            play.cluster
                .set("/metadata/annotations/attacher.csi.dev~1provisioning", json!(text));
        }
        play.cluster.set(SELECTED, json!(""));
        assert_eq!(called(&mut play, None), (Verdict::Done, None), "{text:?}");
        assert!(play.take_done().is_empty() && play.cluster.carries_marker());
        play.cluster.set(SELECTED, json!("n2"));
        assert_eq!((&*zone_called(&mut play, None), play.saved()), ("zone=b", 1));
    }
}

/// What was told of it before counts no more, and it is not followed by what is remembered.
#[test]
fn a_claim_that_others_may_have_called_for_waits_for_its_consumer_without_a_word() {
    for may_be_called in [false, true] {
        let mut play = delayed();
        play.cluster.set(SELECTED, json!(""));
        if may_be_called {
            play.memory.expect_calls_of_others();
        }
        let class = play.cluster.class.take();
        called(&mut play, None);
        play.cluster.wait(Duration::from_secs(10));
        called(&mut play, None);
        assert!(play.memory.trouble().is_some());
        play.cluster.class = class;
        let wanted = if may_be_called {
            Verdict::Rest(Duration::from_mins(10))
        } else {
            Verdict::Done
        };
        assert_eq!(called(&mut play, None), (wanted, None));
        assert!(!may_be_called || play.memory.trouble().is_none());
        assert!(!play.memory.is_uncertain() && !play.memory.holds_volume());
        play.cluster.claim = None;
        // It is forgotten with the claim.
        assert_eq!(called(&mut play, None), (Verdict::Done, None));
    }
}

/// During the call: it is deleted, bound, or another provisioner's by now, which its node says nothing to.
#[test]
fn only_a_claim_that_still_wants_a_volume_from_the_driver_is_scheduled_again() {
    for (pointer, value) in [
        ("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z")),
        ("/spec/volumeName", json!("of-a-person")),
        (
            "/metadata/annotations/volume.kubernetes.io~1storage-provisioner",
            json!("another.driver"),
        ),
    ] {
        let mut play = delayed();
        play.call(Some(8), |cluster| cluster.set(pointer, value.clone()));
        let is_taken_off = play.notes.contains(&taken_off(RescheduleCause::Exhausted));
        assert!(!is_taken_off, "{pointer}");
        let node = play.cluster.claim.as_ref().and_then(|claim| claim.pointer(SELECTED));
        assert!(play.cluster.claim.is_none() || node.is_some(), "{pointer}");
    }
}

/// It calls for the claim now, whosever that is by the time of our answer.
#[test]
fn a_marker_of_another_driver_is_not_taken_off_with_the_node() {
    let mut play = delayed();
    play.cluster.policy.leak_protection = LeakProtection::Never;
    play.call(Some(8), |cluster| {
        let theirs = marker_json().to_string().replace(DRIVER, "another.driver");
        cluster.set("/metadata/finalizers", json!([MARKER]));
        cluster.set("/metadata/annotations/attacher.csi.dev~1provisioning", json!(theirs));
    });
    assert!(play.cluster.carries_marker());
}

/// The next leader may have marked it, and called.
#[test]
fn who_lost_the_lease_takes_no_node_off() {
    let mut play = delayed();
    let verdict = play.call(Some(8), |cluster| cluster.leads = false);
    assert_eq!(verdict, Verdict::LeaseLost);
    assert_eq!(play.take_done(), ["patch", "create"]);
    assert!(play.cluster.carries_marker());
}

/// A claim with a selected node is found by that; one without waits for any node.
#[test]
fn what_is_missing_is_told_and_waited_for() {
    let mut play = delayed();
    let labelled = std::mem::take(&mut play.cluster.nodes[0].labels);
    let (verdict, _) = called(&mut play, None);
    let Verdict::Waits(held) = verdict else {
        panic!("{verdict:?}")
    };
    assert!(matches!(
        refusal(&play),
        Some((ClaimReason::TopologyMissing, ProvisionRefusal::NodeLabelMissing { node, key, .. }))
            if **node == *"n1" && **key == *"zone"
    ));
    play.cluster.nodes[1] = node("n2", &[("zone", "x")]);
    assert_eq!(held, play.print(), "another node");
    play.cluster.nodes[0].labels = labelled;
    assert_ne!(held, play.print());
    assert_eq!(zone_called(&mut play, None), "zone=a");

    let mut play = Play::of(Cluster {
        nodes: Vec::new(),
        ..immediate()
    });
    waits_for_another_node(&mut play);
    assert_eq!(zone_called(&mut play, None), "zone=z");
}

/// An attempt finds no topology, and a node with one changes its inputs.
fn waits_for_another_node(play: &mut Play) {
    let (verdict, _) = called(play, None);
    let Verdict::Waits(held) = verdict else {
        panic!("{verdict:?}")
    };
    assert!(matches!(refusal(play), Some((_, ProvisionRefusal::NoTopology(_)))));
    play.cluster.nodes = vec![node("n9", &[("zone", "z")])];
    assert_ne!(held, play.print());
}

/// What an attempt waits for that has this cluster before it.
fn waits_for(cluster: &Cluster) -> Option<WaitsFor> {
    let mut attempt = ClaimAttempt::new(ClaimMemory::default());
    attempt.next(cluster, ClaimEvent::Begin);
    attempt.waits_for()
}

/// The end of an attempt says whether any other node may help, and which ones do not.
#[test]
fn only_a_claim_without_a_selected_node_waits_for_any_node() {
    let needs = |cluster: &Cluster| waits_for(cluster) == Some(WaitsFor::AnyTopology(cluster.topology().digest()));
    let mut cluster = immediate();
    assert!(!needs(&cluster), "there is topology");
    cluster.nodes.clear();
    assert!(needs(&cluster));
    let refused = waits_for(&cluster);
    cluster.nodes = vec![node("n1", &[("zone", "a")])];
    cluster.nodes[0].labels = StringMap::default();
    assert!(needs(&cluster) && waits_for(&cluster) != refused, "they have no labels");
    let mut play = delayed();
    play.cluster.nodes[0].labels = StringMap::default();
    assert_eq!(waits_for(&play.cluster), None);
}

/// The node counts for delayed binding only: a person may have set the annotation, or the class been made again as an immediate one.
#[test]
fn a_selected_node_that_does_not_count_is_not_waited_for() {
    let mut play = Play::of(immediate());
    play.cluster.set(SELECTED, json!("n1"));
    let nodes = std::mem::take(&mut play.cluster.nodes);
    let found = waits_for(&play.cluster);
    assert!(
        matches!(found, Some(WaitsFor::AnyTopology(_))),
        "any node may help: {found:?}"
    );
    waits_for_another_node(&mut play);
    play.cluster.nodes = nodes;
    // Nobody selects another one.
    let (verdict, asked) = called(&mut play, Some(8));
    let is_refused = asked.is_some() && matches!(verdict, Verdict::Failed(_));
    assert!(is_refused, "{verdict:?}");
    assert_eq!(selected(&play), Some(&json!("n1")));
}

/// What happens between two attempts, and how the call of the next one ends.
#[derive(Clone, Copy, Debug)]
enum Change {
    NodeGone(usize),
    NodeBack(usize),
    Relabelled(usize),
    /// kube-scheduler selects a node, where none is selected.
    Selected(usize),
    ListsIncomplete(bool),
    /// The driver announces topology, or none.
    Announced(bool),
    /// Another process goes on.
    Crash,
    /// An attempt, whose call is answered with this code.
    Attempt(Option<i32>),
}

fn change() -> impl Strategy<Value = Change> {
    let code = proptest::sample::select(vec![Some(4), Some(14), Some(8), Some(9), Some(13), None]);
    prop_oneof![
        2 => (0..3_usize).prop_map(Change::NodeGone),
        3 => (0..3_usize).prop_map(Change::NodeBack),
        2 => (0..3_usize).prop_map(Change::Relabelled),
        3 => (0..3_usize).prop_map(Change::Selected),
        2 => any::<bool>().prop_map(Change::ListsIncomplete),
        2 => any::<bool>().prop_map(Change::Announced),
        2 => Just(Change::Crash),
        8 => code.prop_map(Change::Attempt),
    ]
}

/// A claim over time, and whether its outcome is unknown: by what the calls were answered with.
struct Course {
    play: Play,
    labels: [usize; 3],
    /// The first term of the call that is open; empty where it has none.
    open: Option<String>,
    /// Whether the driver has announced no topology since: then what was asked for is left out.
    is_left_out: bool,
    processes: usize,
}

impl Course {
    fn names(at: usize) -> String {
        format!("n{}", at + 1)
    }

    fn apply(&mut self, change: Change) {
        let cluster = &mut self.play.cluster;
        match change {
            Change::NodeGone(at) => cluster.nodes.retain(|node| *node.name != *Self::names(at)),
            Change::NodeBack(at) | Change::Relabelled(at) => {
                if matches!(change, Change::Relabelled(_)) {
                    self.labels[at] += 1;
                }
                cluster.nodes.retain(|node| *node.name != *Self::names(at));
                let zone = format!("{at}-{}", self.labels[at]);
                cluster.nodes.push(node(&Self::names(at), &[("zone", &zone)]));
            }
            Change::Selected(at) => {
                let claim = cluster.claim.as_ref().unwrap();
                if claim.pointer(SELECTED).is_none() {
                    cluster.set(SELECTED, json!(Self::names(at)));
                }
            }
            Change::ListsIncomplete(incomplete) => cluster.nodes_are_known = !incomplete,
            Change::Announced(announced) => {
                cluster.driver.capabilities.accessibility_constraints = announced;
                self.is_left_out |= !announced;
            }
            Change::Crash => {
                self.processes += 1;
                self.play.memory = ClaimMemory::default();
                cluster.policy.identity = format!("{}-csi.test", self.processes).into();
            }
            Change::Attempt(code) => self.attempt(code),
        }
    }

    fn announces(&self) -> bool {
        self.play.cluster.driver.capabilities.accessibility_constraints
    }

    /// The first term that the marker of the claim records, and a call that it stands for asked for.
    fn recorded(&self) -> String {
        if !self.play.cluster.carries_marker() {
            return String::new();
        }
        let marker = super::marker_of(&self.play.cluster);
        let zone = marker["first"]["zone"].as_str().or(marker["segment"]["zone"].as_str());
        zone.map(|zone| format!("zone={zone}")).unwrap_or_default()
    }

    fn attempt(&mut self, code: Option<i32>) {
        let before = selected(&self.play).cloned();
        self.play.cluster.wait(NODE_TIMEOUT);
        let recorded = self.recorded();
        let (_, asked) = called(&mut self.play, code);
        if let Some(asked) = &asked {
            let first = first(Some(asked));
            if let Some(open) = &self.open {
                let is_left_out = self.is_left_out && first.is_empty();
                assert!(is_left_out || *open == first, "the same call: {open:?}, {first:?}");
            }
            // INTERNAL says nothing at first of a call that is open: whether it is open still, the attempt knows.
            let is_open = self.play.memory.creation().is_some_and(Creation::is_uncertain);
            // To another process a call whose answer it did not see is open, and is what is repeated without its topology for the moment.
            let begun = if first.is_empty() { recorded } else { first };
            self.open = is_open.then(|| self.open.take().unwrap_or(begun));
            self.is_left_out &= is_open || !self.announces();
        }
        let is_gone = before.is_some() && selected(&self.play).is_none();
        let is_kept = !is_gone || self.open.is_none();
        assert!(is_kept, "taken off while it is not known what the call did");
        assert!(self.open.is_none() || self.play.cluster.carries_marker());
    }
}

proptest! {
    /// Invariants 6 and 7 of the specification: while the outcome of a call is unknown, each call has the same first topology, and the
    /// selected node stays.
    #[test]
    fn an_open_call_keeps_its_topology_and_its_node(changes in prop::collection::vec(change(), 1..30)) {
        let mut play = delayed();
        play.cluster.nodes.clear();
        let mut course = Course { play, labels: [0; 3], open: None, is_left_out: false, processes: 0 };
        for at in 0..3 {
            course.apply(Change::NodeBack(at));
        }
        for change in changes {
            course.apply(change);
            if course.play.saved() > 0 {
                break;
            }
        }
    }
}

/// Users of a namespace can write the annotation.
#[test]
fn a_topology_that_somebody_else_wrote_into_the_marker_is_told_once() {
    for (zone, is_told) in [("a", false), ("nowhere", true)] {
        let mut play = delayed();
        let zones = json!([{"matchLabelExpressions": [{"key": "zone", "values": ["a", "b", "c"]}]}]);
        play.cluster.set_class("allowedTopologies", zones);
        called(&mut play, Some(4));
        let mut marker = super::marker_of(&play.cluster);
        marker["segment"] = json!({ "zone": zone });
        marker["first"] = json!({ "zone": zone });
        play.cluster.annotate(MARKER, &marker.to_string());
        // Another process knows what the marker says, and nothing else.
        play.memory = ClaimMemory::default();
        assert_eq!(zone_called(&mut play, Some(4)), "zone=a");
        called(&mut play, None);
        let told = play.told(|note| *note == ClaimNote::MarkerIgnored);
        assert_eq!(told, usize::from(is_told), "{zone}");
        assert_eq!(play.saved(), 1);
    }
}

/// Somebody changed allowedTopologies.
#[test]
fn an_open_call_outside_of_the_allowed_topologies_waits_for_the_class() {
    let zones = |values: &[&str]| json!([{"matchLabelExpressions": [{"key": "zone", "values": values}]}]);
    let mut play = delayed();
    play.cluster.set_class("allowedTopologies", zones(&["a", "b", "c"]));
    called(&mut play, Some(4));
    // Another process knows what the marker says, and nothing else.
    play.memory = ClaimMemory::default();
    play.cluster.set_class("allowedTopologies", zones(&["b", "c"]));
    let (_, asked) = called(&mut play, Some(3));
    assert!(asked.is_none(), "{asked:?}");
    assert!(matches!(refusal(&play), Some((ClaimReason::ClassReplaced, _))));
    play.cluster.set_class("allowedTopologies", zones(&["a"]));
    assert_eq!(zone_called(&mut play, Some(4)), "zone=a");
    called(&mut play, None);
    assert_eq!(play.saved(), 1);
}

/// The driver announces no topology for a moment, as after a restart with other flags.
#[test]
fn an_open_call_with_a_topology_is_not_ended_by_one_without() {
    let mut play = delayed();
    called(&mut play, Some(4));
    play.restart("the next process");
    play.cluster.driver.capabilities.accessibility_constraints = false;
    for _ in 0..2 {
        assert_eq!(zone_called(&mut play, Some(3)), "");
        assert_eq!(play.outcome(), Some(&CreateOutcome::OtherCallOpen));
        assert!(play.cluster.carries_marker());
    }
    play.cluster.driver.capabilities.accessibility_constraints = true;
    play.memory = ClaimMemory::default();
    assert_eq!((&*zone_called(&mut play, None), play.saved()), ("zone=a", 1));
}

/// By now the setting, the class or the driver would have a topology asked for: with that the driver may make a second volume elsewhere, and
/// its refusal says nothing of the first one.
#[test]
fn an_open_call_without_a_topology_is_repeated_without_one() {
    type Change = fn(&mut Cluster);
    let not_sent: Change = |cluster| cluster.policy.aggregate_topology = false;
    let not_announced: Change = |cluster| cluster.driver.capabilities.accessibility_constraints = false;
    let rows: [(&str, Play, Change, Change); 5] = [
        ("the setting", Play::of(immediate()), not_sent, |_| {}),
        ("the driver", Play::of(immediate()), not_announced, |_| {}),
        ("the driver, delayed", delayed(), not_announced, |_| {}),
        ("its node is gone", delayed(), not_announced, |cluster| {
            cluster.nodes.remove(0);
        }),
        ("no node is selected", delayed(), not_announced, |cluster| {
            cluster.set(SELECTED, json!(""));
        }),
    ];
    for (name, mut play, before, after) in rows {
        before(&mut play.cluster);
        called(&mut play, Some(4));
        play.cluster.policy.aggregate_topology = true;
        play.cluster.driver.capabilities.accessibility_constraints = true;
        after(&mut play.cluster);
        for process in ["the next process", "the one after it"] {
            play.restart(process);
            let (_, asked) = called(&mut play, Some(4));
            assert_eq!(asked.map(|asked| asked.accessibility.clone()), Some(None), "{name}");
        }
        called(&mut play, Some(3));
        assert_eq!(play.outcome(), Some(&CreateOutcome::Infeasible), "{name}");
        assert!(!play.cluster.carries_marker(), "{name}: the open call is refused");
    }
}

/// The class may be changed while nobody knows what the call did. Who deletes the claim has its volume found where it was made.
#[test]
fn an_open_call_without_a_topology_waits_for_the_class() {
    let mut play = Play::of(immediate());
    play.cluster.policy.aggregate_topology = false;
    called(&mut play, Some(4));
    play.restart("the next process");
    let zones = json!([{"matchLabelExpressions": [{"key": "zone", "values": ["a"]}]}]);
    play.cluster.set_class("allowedTopologies", zones);
    let (_, asked) = called(&mut play, Some(3));
    assert!(asked.is_none(), "{asked:?}");
    assert!(matches!(refusal(&play), Some((ClaimReason::ClassReplaced, _))));
    play.cluster.delete();
    let (_, asked) = called(&mut play, Some(4));
    assert_eq!(asked.map(|asked| asked.accessibility.clone()), Some(None));
}

/// What the marker says was asked for counts, whatever this process would ask for.
#[test]
fn an_open_call_without_a_topology_is_not_ended_by_one_with() {
    let mut play = Play::of(immediate());
    let (_, asked) = called(&mut play, Some(4));
    assert_ne!(first(asked.as_ref()), "");
    let mut marker = super::marker_of(&play.cluster);
    for field in ["first", "requisite", "allowed"] {
        marker.as_object_mut().unwrap().remove(field);
    }
    play.cluster.annotate(MARKER, &marker.to_string());
    called(&mut play, Some(3));
    assert_eq!(play.outcome(), Some(&CreateOutcome::OtherCallOpen));
    assert!(play.cluster.carries_marker());
}
