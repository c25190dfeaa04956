//! Attempts as values, played against objects: which step comes after which answer.

mod outside;
mod secrets;
mod topology;
mod unmarked;

use jiff::Timestamp;
use serde_json::{Value, json};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use super::builders::{
    DELETED_AT, MARKER, NAME, UID, answered_volume, claim_of, class_json, class_of, driver, now, policy, volume_of,
    world,
};
use super::patches::apply;
use crate::answer::{ApiError, ApiErrorKind};
use crate::attempt::{CallEnd, LeaseLost};
use crate::decide::Failure;
use crate::objects::{Claim, StorageClass, Volume};
use crate::provision::attempt::{
    ClaimAttempt, ClaimEvent, ClaimMemory, ClaimNote, ClaimStep, ClaimView, ListMoment, RoleView, Verdict, fingerprint,
};
use crate::provision::topology::{KnownNode, TopologyFacts, TopologyNode};
use crate::provision::{
    AnsweredVolume, ClaimReason, CreateOutcome, Creation, LeakProtection, ProvisionPolicy, ProvisionerFacts, RolePhase,
    Seen, TroubleKind,
};

/// Objects, and what may be done.
#[allow(clippy::struct_excessive_bools, reason = "each is one thing that may be so")]
struct Cluster {
    claim: Option<Value>,
    class: Option<Value>,
    volume: Option<Value>,
    owner: Option<Arc<str>>,
    attached_to: Option<Arc<str>>,
    /// The kind whose watch is refused, so that it is not known who has a handle.
    unknown: &'static str,
    driver: ProvisionerFacts,
    policy: ProvisionPolicy,
    now: Timestamp,
    leads: bool,
    epoch: u64,
    role: RolePhase,
    is_away: bool,
    /// Searches for the owner of a handle.
    looks: Cell<usize>,
    nodes: Vec<TopologyNode>,
    /// Whether the lists of nodes are complete, and their watches work.
    nodes_are_known: bool,
    /// Looks at nodes.
    looks_at_nodes: Cell<usize>,
    /// Whether the watches of what a first call is made from work, and so many lists began.
    is_watched: bool,
    lists: u64,
}

impl Cluster {
    fn new() -> Self {
        Self {
            claim: Some(world().claim),
            class: Some(class_json()),
            volume: None,
            owner: None,
            attached_to: None,
            unknown: "",
            driver: driver(),
            policy: ProvisionPolicy {
                hold_deletions: true,
                ..policy()
            },
            now: now(),
            leads: true,
            epoch: 0,
            role: RolePhase::Serving,
            is_away: false,
            looks: Cell::new(0),
            nodes: Vec::new(),
            nodes_are_known: true,
            looks_at_nodes: Cell::new(0),
            is_watched: true,
            lists: 1,
        }
    }

    fn set(&mut self, pointer: &str, value: Value) {
        super::builders::put(self.claim.as_mut().unwrap(), pointer, value);
        self.renew();
    }

    /// Each write makes a version of its own.
    fn renew(&mut self) {
        let metadata = &mut self.claim.as_mut().unwrap()["metadata"];
        let version: u64 = metadata["resourceVersion"].as_str().unwrap().parse().unwrap();
        metadata["resourceVersion"] = (version + 1).to_string().into();
    }

    fn delete(&mut self) {
        self.set("/metadata/deletionTimestamp", json!(DELETED_AT));
    }

    /// It is bound to its PersistentVolume.
    fn bind(&mut self) {
        self.set("/spec/volumeName", json!(NAME));
        self.set("/status/phase", json!("Bound"));
    }

    fn annotate(&mut self, key: &str, value: &str) {
        self.claim.as_mut().unwrap()["metadata"]["annotations"][key] = value.into();
        self.renew();
    }

    /// A person asks to let it go, as it is being deleted.
    fn ask_to_let_go(&mut self) {
        let request = json!({"uid": UID, "deleted": DELETED_AT, "at": self.now.to_string()});
        self.annotate("attacher.csi.dev/release", &request.to_string());
    }

    /// With this in its class.
    fn set_class(&mut self, field: &str, value: Value) {
        self.class.as_mut().unwrap()[field] = value;
    }

    /// What an attempt that begins does once its marker is written.
    fn marked(&mut self, attempt: &mut ClaimAttempt, begin: ClaimEvent) -> ClaimStep {
        let mut step = attempt.next(self, begin);
        while let ClaimStep::Patch(write) = &step {
            let patched = self.patch(&write.body);
            step = attempt.next(self, ClaimEvent::Patched(patched));
        }
        step
    }

    /// The class names a Secret for the calls.
    fn name_secret(&mut self) {
        self.class.as_mut().unwrap()["parameters"] = json!({
            "csi.storage.k8s.io/provisioner-secret-name": "s", "csi.storage.k8s.io/provisioner-secret-namespace": "ns",
        });
    }

    /// The claim as it is answered; none where it goes.
    fn patch(&mut self, body: &Value) -> Result<Option<Arc<Claim>>, ApiError> {
        let claim = self.claim.as_mut().ok_or_else(|| error(ApiErrorKind::NotFound))?;
        apply(claim, body).map_err(|_| error(ApiErrorKind::Stale))?;
        self.renew();
        let metadata = &self.claim.as_ref().unwrap()["metadata"];
        let is_held = metadata["finalizers"].as_array().is_some_and(|list| !list.is_empty());
        if !metadata["deletionTimestamp"].is_null() && !is_held {
            self.claim = None;
        }
        Ok(self.stored())
    }

    /// The same where a webhook, or a policy, makes this of it on the way.
    fn patch_changed(&mut self, body: &Value, change: impl FnOnce(&mut Self)) -> ClaimEvent {
        let patched = self.patch(body);
        change(self);
        ClaimEvent::Patched(patched.map(|_| self.stored()))
    }

    fn stored(&self) -> Option<Arc<Claim>> {
        self.claim.as_ref().map(|claim| Arc::new(claim_of(claim)))
    }

    fn post(&mut self, body: &Value) {
        let mut volume = body.clone();
        volume["metadata"]["uid"] = json!("pv-uid");
        self.volume = Some(volume);
    }

    fn carries_marker(&self) -> bool {
        let list = self.claim.as_ref().map(|claim| claim["metadata"]["finalizers"].clone());
        list.is_some_and(|list| list.as_array().is_some_and(|list| list.contains(&json!(MARKER))))
    }

    fn wait(&mut self, time: Duration) {
        self.now = self.now.saturating_add(time).unwrap();
    }

    fn owner_but(&self, handle: &str, except: &str) -> Seen<Arc<str>> {
        self.looks.set(self.looks.get() + 1);
        if self.unknown == "PersistentVolumes" {
            return Seen::Unknown;
        }
        let there = self
            .volume
            .as_ref()
            .filter(|volume| volume["spec"]["csi"]["volumeHandle"] == handle);
        let there = there.and_then(|volume| volume["metadata"]["name"].as_str());
        let there = there.filter(|name| *name != except).map(Arc::from);
        self.owner.clone().or(there).map_or(Seen::Gone, Seen::Here)
    }
}

impl RoleView for Cluster {
    fn driver(&self) -> &ProvisionerFacts {
        &self.driver
    }
    fn policy(&self) -> &ProvisionPolicy {
        &self.policy
    }
    fn role(&self) -> RolePhase {
        self.role
    }
    fn is_away(&self) -> bool {
        self.is_away
    }
    fn may_start(&self) -> bool {
        self.leads
    }
    fn class(&self, _: &str) -> Seen<Arc<StorageClass>> {
        self.class
            .as_ref()
            .map_or(Seen::Gone, |class| Seen::Here(Arc::new(class_of(class))))
    }
    fn handle_owner(&self, handle: &str, except: &str) -> Seen<Arc<str>> {
        assert_ne!(except, "", "of what is not saved, those of other claims count as well");
        self.owner_but(handle, except)
    }
    fn attached_to(&self, name: &str, _: &str) -> Seen<Arc<str>> {
        assert_eq!(name, NAME);
        self.looks.set(self.looks.get() + 1);
        super::builders::seen(self.attached_to.clone(), self.unknown == "VolumeAttachments")
    }
}

impl ClaimView for Cluster {
    fn now(&self) -> Timestamp {
        self.now
    }
    fn stuck_after(&self) -> Duration {
        Duration::from_mins(10)
    }
    fn epoch(&self) -> u64 {
        self.epoch
    }
    fn longest_backoff(&self) -> Duration {
        Duration::from_mins(1)
    }
    fn claim(&self) -> Seen<Arc<Claim>> {
        self.claim
            .as_ref()
            .map_or(Seen::Gone, |claim| Seen::Here(Arc::new(claim_of(claim))))
    }
    fn volume(&self, name: &str) -> Seen<Arc<Volume>> {
        let volume = self.volume.as_ref().filter(|volume| volume["metadata"]["name"] == name);
        volume.map_or(Seen::Gone, |volume| Seen::Here(Arc::new(volume_of(volume))))
    }
    fn handle_owner_or_creator(&self, handle: &str) -> Seen<Arc<str>> {
        self.owner_but(handle, "")
    }
    fn topology(&self) -> Arc<TopologyFacts> {
        self.looks_at_nodes.set(self.looks_at_nodes.get() + 1);
        Arc::new(TopologyFacts::new(self.nodes_are_known, self.nodes.clone()))
    }
    fn node(&self, name: &str) -> KnownNode {
        self.looks_at_nodes.set(self.looks_at_nodes.get() + 1);
        let known = self.nodes.iter().find(|node| *node.name == *name);
        match known {
            Some(node) => KnownNode {
                labels: Seen::Here(node.labels.clone()),
                keys: Seen::Here(node.keys.clone()),
            },
            None if self.nodes_are_known => KnownNode::GONE,
            None => KnownNode {
                labels: Seen::Unknown,
                keys: Seen::Unknown,
            },
        }
    }
    fn moment(&self) -> ListMoment {
        ListMoment {
            classes: self.lists,
            nodes: self.lists,
            csi_nodes: self.lists,
        }
    }
    fn knows_classes(&self, since: Option<ListMoment>) -> bool {
        self.is_watched || since.is_some_and(|since| since.classes < self.lists)
    }
    fn knows_nodes(&self, since: Option<ListMoment>) -> bool {
        assert!(self.driver.capabilities.accessibility_constraints);
        self.knows_classes(since)
    }
    fn traceparent(&self) -> Option<String> {
        Some("00-1-2-01".to_owned())
    }
}

const PROVISIONER: &str = "/metadata/annotations/volume.kubernetes.io~1storage-provisioner";

/// Nobody wants the volume any more: the claim is deleted, given to another driver, or bound to another PersistentVolume.
const UNWANTED: [fn(&mut Cluster); 3] = [
    Cluster::delete,
    |cluster| cluster.set(PROVISIONER, json!("other.test")),
    |cluster| cluster.set("/spec/volumeName", json!("static")),
];

fn error(kind: ApiErrorKind) -> ApiError {
    ApiError::without_answer(kind, "no")
}

fn status(status: u16) -> ApiError {
    ApiError {
        status: Some(status),
        ..error(ApiErrorKind::of_status(status))
    }
}

fn answered(handle: &str) -> ClaimEvent {
    ClaimEvent::Created(Ok(Some(AnsweredVolume {
        handle: handle.into(),
        ..AnsweredVolume::default()
    })))
}

fn failed(code: i32) -> ClaimEvent {
    let failure = Failure {
        message: "no".to_owned(),
        code: Some(code),
    };
    ClaimEvent::Created(Err(CallEnd::Failed(failure)))
}

fn call_fails(code: i32) -> impl Fn(&ClaimStep, &mut Cluster) -> Option<ClaimEvent> + Copy {
    move |step, _| matches!(step, ClaimStep::Create(_)).then(|| failed(code))
}

fn save_fails(error: ApiError) -> impl Fn(&ClaimStep, &mut Cluster) -> Option<ClaimEvent> {
    move |step, _| matches!(step, ClaimStep::Save(_)).then(|| ClaimEvent::Saved(Err(error.clone())))
}

/// It was carried out, and the answer is lost.
fn save_is_lost(body: &Value, cluster: &mut Cluster) -> ClaimEvent {
    cluster.post(body);
    ClaimEvent::Saved(Err(error(ApiErrorKind::Unknown)))
}

fn patch_fails(error: ApiError) -> impl Fn(&ClaimStep, &mut Cluster) -> Option<ClaimEvent> {
    move |step, _| matches!(step, ClaimStep::Patch(_)).then(|| ClaimEvent::Patched(Err(error.clone())))
}

/// Whether a request failed that does not succeed a moment later.
fn is_refused(note: &ClaimNote) -> bool {
    matches!(note, ClaimNote::RequestFailed(error) if !error.is_transient())
}

/// Plays attempts, with the answers to the calls and to the saves; others are carried out.
struct Play {
    cluster: Cluster,
    memory: ClaimMemory,
    /// What was done, in words.
    done: Vec<&'static str>,
    notes: Vec<ClaimNote>,
}

impl Play {
    fn of(cluster: Cluster) -> Self {
        Self {
            cluster,
            memory: ClaimMemory::default(),
            done: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// One attempt. `answer` is asked for each step, and none carries it out as it should be.
    fn attempt(&mut self, mut answer: impl FnMut(&ClaimStep, &mut Cluster) -> Option<ClaimEvent>) -> Verdict {
        let mut attempt = ClaimAttempt::new(std::mem::take(&mut self.memory));
        let mut event = ClaimEvent::Begin;
        loop {
            let step = attempt.next(&self.cluster, event);
            self.notes.extend(attempt.take_notes());
            let word = match &step {
                ClaimStep::End(verdict) => {
                    let verdict = *verdict;
                    self.memory = attempt.memory().clone();
                    return verdict;
                }
                ClaimStep::Patch(_) => "patch",
                ClaimStep::ReadClaim => "read claim",
                ClaimStep::ReadVolume(_) => "read volume",
                ClaimStep::Secret(_) => "secret",
                ClaimStep::Create(_) => "create",
                ClaimStep::Delete(_) => "delete",
                ClaimStep::Save(_) => "save",
            };
            if let ClaimStep::Create(plan) = &step {
                assert_eq!(&*plan.name, NAME);
                let is_gone = self.cluster.claim.is_none();
                let is_always = self.cluster.policy.leak_protection == LeakProtection::Always;
                let is_marked = !is_always || self.cluster.carries_marker();
                assert!(is_gone || is_marked, "a call without a marker");
                assert!(attempt.creation().is_some_and(Creation::is_uncertain));
            }
            if let ClaimStep::Delete(_) = &step {
                // Whoever goes on from here, as after a fault or a lost Lease, gives it to no claim.
                let is_usable = matches!(attempt.creation(), Some(Creation::Created(volume)) if volume.is_usable());
                assert!(!is_usable, "a volume that a call is about to delete");
            }
            self.done.push(word);
            let given = answer(&step, &mut self.cluster);
            event = given.unwrap_or_else(|| match step {
                ClaimStep::Patch(write) => ClaimEvent::Patched(self.cluster.patch(&write.body)),
                ClaimStep::ReadClaim | ClaimStep::ReadVolume(_) | ClaimStep::Secret(_) => ClaimEvent::Read(Ok(())),
                ClaimStep::Create(_) => answered("vol-1"),
                ClaimStep::Save(body) => {
                    self.cluster.post(&body);
                    ClaimEvent::Saved(Ok(()))
                }
                ClaimStep::Delete(_) | ClaimStep::End(_) => panic!("{step:?}"),
            });
        }
    }

    /// An attempt that nothing hinders. `steps` is what was done since the last look.
    #[track_caller]
    fn does(&mut self, steps: &str) -> Verdict {
        self.does_with(|_, _| None, steps)
    }

    /// The same with these answers.
    #[track_caller]
    fn does_with<A>(&mut self, answer: A, steps: &str) -> Verdict
    where
        A: FnMut(&ClaimStep, &mut Cluster) -> Option<ClaimEvent>,
    {
        let verdict = self.attempt(answer);
        assert_eq!(self.take_done().join(" "), steps, "{:?}", self.notes);
        verdict
    }

    /// An attempt, and what happens during its call, which is answered with this code or carried out.
    fn call(&mut self, code: Option<i32>, mut meanwhile: impl FnMut(&mut Cluster)) -> Verdict {
        self.attempt(|step, cluster| {
            let ClaimStep::Create(_) = step else { return None };
            meanwhile(cluster);
            code.map(failed)
        })
    }

    /// Another process goes on, which knows what the claim says.
    fn restart(&mut self, identity: &str) {
        self.memory = ClaimMemory::default();
        self.cluster.policy.identity = identity.into();
    }

    /// What decides about the claim now.
    fn print(&self) -> u64 {
        fingerprint(&self.cluster, &self.cluster.claim().here().unwrap())
    }

    /// What the last call came to that failed.
    fn outcome(&self) -> Option<&CreateOutcome> {
        self.notes.iter().rev().find_map(|note| match note {
            ClaimNote::CallFailed(outcome, ..) => Some(&**outcome),
            _ => None,
        })
    }

    /// What the claim waits for, as it was told last.
    fn waits_for(&self) -> Option<ClaimReason> {
        self.notes.iter().rev().find_map(|note| match note {
            ClaimNote::Waits(reason, _) => Some(*reason),
            _ => None,
        })
    }

    /// What the claim waits for, if that was told last of all.
    fn waits_now(&self) -> Option<ClaimReason> {
        match self.notes.last() {
            Some(ClaimNote::Waits(reason, _)) => Some(*reason),
            _ => None,
        }
    }

    fn take_done(&mut self) -> Vec<&'static str> {
        std::mem::take(&mut self.done)
    }

    /// How many such notes there are.
    fn told(&self, is_wanted: impl Fn(&ClaimNote) -> bool) -> usize {
        self.notes.iter().filter(|note| is_wanted(note)).count()
    }

    fn saved(&self) -> usize {
        self.told(|note| matches!(note, ClaimNote::Saved(..)))
    }

    /// Why PersistentVolumes were saved of volumes that nobody wants.
    fn recorded(&self) -> Vec<ClaimReason> {
        let recorded = self.notes.iter().filter_map(|note| match note {
            ClaimNote::Recorded(reason, name, handle) => {
                assert_eq!((&**name, &**handle), (NAME, "vol-1"));
                Some(*reason)
            }
            _ => None,
        });
        recorded.collect()
    }
}

#[test]
fn a_claim_is_marked_called_for_saved_and_unmarked_when_it_is_bound() {
    let mut play = Play::of(Cluster::new());
    let verdict = play.does("patch create save");
    assert_eq!(verdict, Verdict::Rest(Duration::from_secs(30)), "for the binding");
    assert_eq!(play.saved(), 1);
    let volume = play.cluster.volume.clone().unwrap();
    let traceparent = &volume["metadata"]["annotations"]["attacher.csi.dev/traceparent"];
    assert_eq!(*traceparent, "00-1-2-01");
    assert!(play.cluster.carries_marker());
    play.cluster.bind();
    assert_eq!(play.does("patch"), Verdict::Done);
    assert!(!play.cluster.carries_marker());
    assert_eq!((play.saved(), play.attempt(|_, _| None)), (1, Verdict::Done));
    assert!(play.take_done().is_empty());
    assert_eq!(play.cluster.looks.get(), 1, "once, after the save");
}

/// The marker is on, so that the call is repeated should the PersistentVolume go before it is bound.
#[test]
fn what_is_saved_is_not_uncertain() {
    let known = |memory: &ClaimMemory| (memory.is_uncertain(), memory.uncertain_since().is_some());
    let mut play = Play::of(Cluster::new());
    play.attempt(|_, _| None);
    assert!(play.cluster.carries_marker() && play.memory.holds_volume());
    assert_eq!(known(&play.memory), (false, false));
    let volume = play.cluster.volume.as_mut().unwrap();
    volume["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    play.attempt(|_, _| None);
    assert_eq!(known(&play.memory), (false, false));
    play.cluster.volume = None;
    play.attempt(call_fails(4));
    assert_eq!(known(&play.memory), (true, true));
}

/// What a change during the call asks for is known, and the driver may still work on the call.
#[test]
fn what_changes_during_a_call_without_an_outcome_waits_for_the_backoff() {
    type Change = fn(&mut Cluster);
    let node: Change = |cluster| cluster.set("/metadata/annotations/volume.kubernetes.io~1selected-node", json!("n2"));
    let class: Change = |cluster| {
        let class = cluster.class.as_mut().unwrap();
        class["allowedTopologies"] = json!([]);
        class["metadata"]["uid"] = json!("class-2");
    };
    let rows: [(&str, i32, Change, bool); 6] = [
        ("another node", 4, node, true),
        ("another node, refused", 5, node, false),
        ("another class", 4, class, true),
        ("another class, no room", 8, class, false),
        // Nobody wants the volume any more: the claim does not wait for its end.
        ("deleted", 4, UNWANTED[0], false),
        ("bound", 4, UNWANTED[2], false),
    ];
    for (name, code, change, waits) in rows {
        let mut play = Play::of(Cluster::new());
        let verdict = play.call(Some(code), change);
        let Verdict::Failed(known) = verdict else {
            panic!("{name}: {verdict:?}")
        };
        assert_eq!(known == play.print(), waits, "{name}");
    }
}

/// An attempt that panics at a step leaves what it knew at that step.
#[test]
fn what_is_known_at_a_call_is_known_after_a_fault() {
    let mut cluster = Cluster::new();
    let mut attempt = ClaimAttempt::new(ClaimMemory::default());
    let step = cluster.marked(&mut attempt, ClaimEvent::Begin);
    assert!(matches!(step, ClaimStep::Create(_)), "{step:?}");
    let mut play = Play::of(cluster);
    play.memory = attempt.memory().clone();
    drop(attempt);
    play.cluster.claim = None;
    assert!(play.memory.holds_volume());
    let step = ClaimAttempt::new(play.memory.clone()).next(&play.cluster, ClaimEvent::Begin);
    assert!(matches!(step, ClaimStep::Create(_)), "{step:?}");
}

#[test]
fn a_claim_that_is_not_bound_keeps_its_marker_for_a_while() {
    let mut play = Play::of(Cluster::new());
    play.attempt(|_, _| None);
    play.cluster.wait(Duration::from_secs(29));
    assert_eq!(play.attempt(|_, _| None), Verdict::Rest(Duration::from_secs(1)));
    assert!(play.cluster.carries_marker());
    play.cluster.wait(Duration::from_secs(1));
    play.attempt(|_, _| None);
    assert!(!play.cluster.carries_marker());
}

#[test]
fn an_uncertain_call_is_repeated_and_its_claim_is_held() {
    let mut play = Play::of(Cluster::new());
    assert!(matches!(play.attempt(call_fails(4)), Verdict::Failed(_)));
    assert_eq!(play.outcome(), Some(&CreateOutcome::Uncertain));
    play.take_done();
    // Another process knows no more than what the claim says, and writes the marker anew.
    play.restart("2-3-csi.test");
    play.does("patch create save");
    assert_eq!(play.saved(), 1);
}

/// What the driver says of other arguments says nothing of the call that is open.
#[test]
fn a_refusal_of_other_arguments_does_not_end_an_open_call() {
    let mut play = Play::of(Cluster::new());
    play.attempt(call_fails(4));
    play.cluster.policy.default_fs_type = "wrong".into();
    for (process, code) in [("2", 3), ("2", 3), ("3", 11), ("3", 13), ("3", 13), ("4", 8)] {
        if *play.cluster.policy.identity != *process {
            play.restart(process);
        }
        assert!(matches!(play.attempt(call_fails(code)), Verdict::Failed(_)));
        assert_eq!(play.outcome(), Some(&CreateOutcome::OtherCallOpen), "{code}");
        assert!(play.cluster.carries_marker(), "{code}");
    }
    play.restart("5");
    play.cluster.policy.default_fs_type = "".into();
    play.attempt(call_fails(3));
    assert!(!play.cluster.carries_marker(), "the call is made as it was");
}

/// With another class the driver would make a second volume, and its refusal would say nothing of the first one.
#[test]
fn settings_that_are_put_back_repeat_the_open_call() {
    let mut play = Play::of(Cluster::new());
    play.attempt(call_fails(4));
    play.restart("2");
    play.cluster.policy.default_fs_type = "wrong".into();
    for code in [6, 3] {
        assert!(matches!(play.attempt(call_fails(code)), Verdict::Failed(_)));
        assert_eq!(play.outcome(), Some(&CreateOutcome::OtherCallOpen), "{code}");
    }
    play.cluster.policy.default_fs_type = "".into();
    play.attempt(|_, _| None);
    assert_eq!(play.saved(), 1);
}

/// It may have called since: what was refused to this process says nothing of that.
#[test]
fn a_marker_that_another_process_has_written_is_not_taken_off_for_a_refusal_of_ours() {
    let mut play = Play::of(Cluster::new());
    let mut calls = 0;
    play.attempt(|step, cluster| match step {
        ClaimStep::Create(_) => {
            calls += 1;
            (calls == 1).then(|| failed(3))
        }
        ClaimStep::Patch(_) if calls == 1 && is_marked_by_us(cluster) => {
            rewrite_marker(cluster, "another");
            Some(ClaimEvent::Patched(Err(error(ApiErrorKind::Stale))))
        }
        _ => None,
    });
    let wanted = ["patch", "create", "patch", "read claim", "patch", "create", "save"];
    assert_eq!(play.take_done(), wanted);
}

/// Whether the marker is that of this process.
fn is_marked_by_us(cluster: &Cluster) -> bool {
    marker_of(cluster)["writer"] == *cluster.policy.identity
}

fn marker_of(cluster: &Cluster) -> Value {
    let text = cluster.claim.as_ref().unwrap()["metadata"]["annotations"][MARKER].as_str();
    serde_json::from_str(text.unwrap()).unwrap()
}

fn rewrite_marker(cluster: &mut Cluster, writer: &str) {
    let mut marker = marker_of(cluster);
    marker["writer"] = writer.into();
    cluster.annotate(MARKER, &marker.to_string());
}

/// As a webhook refuses it: a person may let the claim go, and its namespace with it.
#[test]
fn a_claim_whose_volume_cannot_be_recorded_is_let_go_on_request() {
    let mut play = Play::of(Cluster::new());
    let refused = |step: &ClaimStep, cluster: &mut Cluster| match step {
        ClaimStep::Create(_) => {
            cluster.delete();
            None
        }
        ClaimStep::Save(_) => Some(ClaimEvent::Saved(Err(status(403)))),
        _ => None,
    };
    play.attempt(refused);
    assert!(play.cluster.carries_marker());
    play.cluster.wait(Duration::from_mins(11));
    play.cluster.ask_to_let_go();
    play.attempt(refused);
    let let_go = play.told(|note| matches!(note, ClaimNote::LetGo(..)));
    assert!(let_go > 0, "{:?}", play.notes);
    assert!(!play.cluster.carries_marker());
}

#[test]
fn writes_that_are_not_kept_are_told() {
    let mut play = Play::of(Cluster::new());
    let swallowed = |step: &ClaimStep, cluster: &mut Cluster| {
        let is_patch = matches!(step, ClaimStep::Patch(_));
        is_patch.then(|| ClaimEvent::Patched(Ok(cluster.stored())))
    };
    let verdict = play.attempt(swallowed);
    assert!(matches!(verdict, Verdict::Failed(_)));
    assert!(play.notes.iter().any(is_refused), "{:?}", play.notes);
    assert_eq!(play.take_done(), ["patch"], "once in an attempt");
}

/// A claim in deletion whose call never ends, and which a person asks to let go.
fn asked_to_be_let_go() -> Play {
    let mut play = Play::of(Cluster::new());
    play.attempt(call_fails(4));
    play.cluster.delete();
    play.cluster.wait(Duration::from_mins(11));
    play.cluster.ask_to_let_go();
    play.take_done();
    play
}

/// Somebody edits the claim right after our write, and the watch is faster than the answer: the cache shows what came after it.
#[test]
fn a_write_that_somebody_undoes_before_its_answer_was_kept() {
    let begins = || Play::of(Cluster::new());
    for (what, mut play, undone, done) in [
        ("the marker", begins(), 1, "patch patch create patch"),
        ("its removal", begins(), 2, "patch create patch patch"),
        ("the release", asked_to_be_let_go(), 1, "patch patch"),
    ] {
        let mut writes = 0;
        play.attempt(|step, cluster| {
            let ClaimStep::Patch(write) = step else {
                return matches!(step, ClaimStep::Create(_)).then(|| failed(3));
            };
            let before = cluster.claim.clone();
            let patched = cluster.patch(&write.body);
            writes += 1;
            if writes == undone {
                cluster.claim = before;
            }
            Some(ClaimEvent::Patched(patched))
        });
        assert!(!play.notes.iter().any(is_refused), "{what}: {:?}", play.notes);
        assert_eq!(play.take_done().join(" "), done, "{what}");
        assert!(!play.cluster.carries_marker(), "{what}");
    }
}

/// An admission policy stores the claim as it was: with the marker of another process, or with the one that was to be taken off.
#[test]
fn a_claim_that_is_stored_as_it_was_is_written_once_in_an_attempt() {
    let restarted = || {
        let mut play = Play::of(Cluster::new());
        play.attempt(call_fails(4));
        play.restart("2-3-csi.test");
        play.take_done();
        play
    };
    let plays: [fn() -> Play; 2] = [restarted, asked_to_be_let_go];
    for play in plays {
        let mut play = play();
        for _ in 0..2 {
            let verdict = play.attempt(|step, cluster| {
                let ClaimStep::Patch(write) = step else { return None };
                let before = cluster.claim.clone();
                Some(cluster.patch_changed(&write.body, |cluster| cluster.claim = before))
            });
            assert!(matches!(verdict, Verdict::Failed(_)), "{verdict:?}");
            assert_eq!(play.take_done(), ["patch"]);
        }
        assert!(play.notes.iter().any(is_refused), "{:?}", play.notes);
        assert_eq!(play.told(|note| matches!(note, ClaimNote::LetGo(..))), 0);
        assert!(play.memory.is_uncertain());
    }
}

/// An admission webhook takes what the marker says and leaves the finalizer: nothing was called, so that the claim may go.
#[test]
fn a_marker_that_is_stored_without_what_it_says_holds_no_claim() {
    let mut play = Play::of(Cluster::new());
    let strip = |step: &ClaimStep, cluster: &mut Cluster| {
        let ClaimStep::Patch(write) = step else { return None };
        Some(cluster.patch_changed(&write.body, |cluster| {
            let claim = cluster.claim.as_mut();
            if let Some(annotations) = claim.and_then(|claim| claim["metadata"]["annotations"].as_object_mut()) {
                annotations.retain(|key, _| !key.starts_with("attacher.csi.dev/"));
            }
        }))
    };
    for _ in 0..3 {
        assert!(matches!(play.attempt(strip), Verdict::Failed(_)));
        assert_eq!(play.take_done(), ["patch"], "no call, and no second try at once");
    }
    play.cluster.delete();
    play.attempt(strip);
    assert!(!play.cluster.carries_marker());
    assert_eq!(play.take_done(), ["patch"]);
}

/// A request that was not answered is repeated after its backoff: no change of the Secret would end it.
#[test]
fn a_secret_that_could_not_be_read_for_now_is_not_waited_for() {
    for (answer, waits) in [
        (error(ApiErrorKind::NotFound), true),
        (status(403), true),
        (status(429), false),
        (error(ApiErrorKind::Unknown), false),
    ] {
        let mut cluster = Cluster::new();
        cluster.name_secret();
        let mut attempt = ClaimAttempt::new(ClaimMemory::default());
        let mut step = attempt.next(&cluster, ClaimEvent::Begin);
        while !matches!(step, ClaimStep::End(_)) {
            let event = match &step {
                ClaimStep::Patch(write) => ClaimEvent::Patched(cluster.patch(&write.body)),
                ClaimStep::Secret(_) => ClaimEvent::Read(Err(answer.clone())),
                step => panic!("{step:?}"),
            };
            step = attempt.next(&cluster, event);
        }
        assert_eq!(attempt.needed_secret().is_some(), waits, "{answer:?}");
        match step {
            ClaimStep::End(Verdict::Waits(_)) => assert!(waits, "{answer:?}"),
            ClaimStep::End(Verdict::Failed(_)) => assert!(!waits, "{answer:?}"),
            step => panic!("{step:?}"),
        }
    }
}

/// Made anew with other parameters, or changed in place: with other mountOptions the call would have other `volume_capabilities`, and the
/// class keeps its UID.
#[test]
fn a_class_that_is_another_one_is_not_used_while_it_is_not_known_what_a_call_did() {
    let replaced: fn(&mut Cluster) = |cluster| {
        cluster.class.as_mut().unwrap()["metadata"]["uid"] = json!("another-class");
        cluster.set_class("parameters", json!({"pool": "other"}));
    };
    let changed: fn(&mut Cluster) = |cluster| cluster.set_class("mountOptions", json!(["noatime", "discard"]));
    for (name, change) in [("replaced", replaced), ("changed in place", changed)] {
        let mut play = Play::of(Cluster::new());
        play.cluster.set_class("mountOptions", json!(["noatime"]));
        let mut asked = Vec::new();
        let mut attempt = |play: &mut Play, code: Option<i32>| {
            play.attempt(|step, _| {
                let ClaimStep::Create(create) = step else { return None };
                asked.push(create.capabilities.clone());
                code.map(failed)
            })
        };
        attempt(&mut play, Some(4));
        play.restart("2-3-csi.test");
        play.take_done();
        let (claim, class) = (play.cluster.claim.clone(), play.cluster.class.clone());
        change(&mut play.cluster);
        for is_deleted in [false, true] {
            if is_deleted {
                play.cluster.delete();
            }
            let before = play.cluster.claim.clone();
            assert!(matches!(attempt(&mut play, None), Verdict::Waits(_)), "{name}");
            assert!(play.take_done().is_empty() && play.cluster.claim == before, "{name}");
            assert_eq!(play.waits_now(), Some(ClaimReason::ClassReplaced), "{name}");
        }
        (play.cluster.claim, play.cluster.class) = (claim, class);
        attempt(&mut play, None);
        assert_eq!(play.take_done().join(" "), "patch create save", "{name}");
        assert_eq!(play.saved(), 1, "{name}");
        assert!(asked.len() == 2 && asked[0] == asked[1], "{name}: {asked:?}");
    }
}

#[test]
fn a_claim_that_is_deleted_during_the_call_leaves_a_record_while_deletions_are_held() {
    let mut play = Play::of(Cluster::new());
    let verdict = play.call(None, |cluster| {
        cluster.delete();
        cluster.set("/metadata/finalizers", json!([MARKER]));
    });
    assert_eq!(play.take_done(), ["patch", "create", "read volume", "save", "patch"]);
    assert_eq!(verdict, Verdict::Done);
    assert!(play.cluster.claim.is_none(), "nothing holds it any more");
    assert_eq!((play.saved(), play.recorded()), (0, vec![ClaimReason::UndoVolume]));
    assert_eq!(play.cluster.volume.unwrap()["spec"]["csi"]["volumeHandle"], "vol-1");
}

/// Nobody got a volume, whether the answer to the request came or was lost. What is saved for the claim is told as that also where the
/// claim is deleted before it is found.
#[test]
fn a_volume_that_is_recorded_for_its_end_is_not_told_as_provisioned() {
    use ClaimReason::{KeepVolume, UndoVolume};
    for (policy, reason) in [("Delete", UndoVolume), ("Retain", KeepVolume)] {
        for is_lost in [false, true] {
            let mut play = Play::of(Cluster::new());
            play.cluster.set_class("reclaimPolicy", json!(policy));
            play.attempt(|step, cluster| match step {
                ClaimStep::Create(_) => {
                    cluster.delete();
                    None
                }
                ClaimStep::Save(body) if is_lost => Some(save_is_lost(body, cluster)),
                _ => None,
            });
            assert_eq!((play.saved(), play.recorded()), (0, vec![reason]), "{policy} {is_lost}");
        }
    }
    let mut play = Play::of(Cluster::new());
    play.attempt(|step, cluster| match step {
        ClaimStep::Save(body) => {
            cluster.delete();
            Some(save_is_lost(body, cluster))
        }
        _ => None,
    });
    assert_eq!((play.saved(), play.recorded()), (1, vec![]));
}

/// A driver that answers one ID for two claims is told at once, and not first when one of them is to be deleted.
#[test]
fn a_volume_that_another_has_as_well_is_saved_and_told() {
    let is_shared = |note: &ClaimNote| matches!(note, ClaimNote::HandleShared(name, _) if **name == *NAME);
    let shared = |play: &Play| play.told(is_shared);
    for is_lost in [false, true] {
        let mut play = Play::of(Cluster::new());
        play.cluster.owner = Some("pv-2".into());
        for _ in 0..2 {
            play.attempt(|step, cluster| match step {
                ClaimStep::Save(body) if is_lost => Some(save_is_lost(body, cluster)),
                _ => None,
            });
            assert_eq!((play.saved(), shared(&play)), (1, 1), "{is_lost}");
        }
        let trouble = play.memory.trouble().unwrap();
        assert_eq!(trouble.kind, TroubleKind::HandleShared);
        assert!(trouble.words.contains("pv-2"), "{trouble:?}");
    }
    let mut play = Play::of(Cluster::new());
    play.attempt(|_, _| None);
    assert_eq!((play.saved(), shared(&play)), (1, 0));
}

/// Whether a failed call is told with the time of the next one.
#[test]
fn a_call_that_is_not_made_again_announces_none() {
    let is_retried = |play: &Play| {
        play.notes.iter().rev().find_map(|note| match note {
            ClaimNote::CallFailed(_, _, is_retried) => Some(*is_retried),
            _ => None,
        })
    };
    // Refused, infeasible, and without an answer: that one is repeated whatever became of the claim.
    for (code, is_deleted, wanted) in [
        (9, false, true),
        (9, true, false),
        (3, false, true),
        (3, true, false),
        (4, true, true),
    ] {
        let mut play = Play::of(Cluster::new());
        play.call(Some(code), |cluster| {
            if is_deleted {
                cluster.delete();
            }
        });
        assert_eq!(is_retried(&play), Some(wanted), "{code} {is_deleted}");
    }
    let mut play = Play::of(Cluster::new());
    play.call(Some(9), |cluster| cluster.role = RolePhase::Disabled);
    assert_eq!(is_retried(&play), Some(false), "the role is switched off");
}

/// By a person, by kube-controller-manager, or by the class of another driver: its marker goes at once.
#[test]
fn a_refused_claim_that_nobody_wants_any_more_is_let_go_without_another_call() {
    for make_unwanted in UNWANTED {
        for code in [9, 3, 11] {
            let mut play = Play::of(Cluster::new());
            let verdict = play.call(Some(code), make_unwanted);
            let told = play.told(|note| matches!(note, ClaimNote::CallFailed(_, _, false)));
            assert_eq!(told, 1, "{:?}", play.notes);
            let wanted = (Verdict::Done, vec!["patch", "create", "patch"]);
            assert_eq!((verdict, play.take_done()), wanted);
            assert!(!play.cluster.carries_marker());
        }
    }
}

#[test]
fn a_volume_whose_handle_is_somebody_elses_is_not_recorded_twice() {
    let mut play = Play::of(Cluster::new());
    play.cluster.owner = Some("another".into());
    play.call(None, |cluster| {
        cluster.delete();
        cluster.set("/metadata/finalizers", json!([MARKER]));
    });
    assert_eq!(play.take_done(), ["patch", "create", "patch"]);
    assert!(play.cluster.claim.is_none() && play.cluster.volume.is_none());
    assert!(play.cluster.looks.get() > 0);
}

#[test]
fn an_undersized_volume_waits_while_deletions_are_held() {
    let mut play = Play::of(Cluster::new());
    let small = AnsweredVolume {
        capacity_bytes: 1,
        ..answered_volume()
    };
    let verdict = play
        .attempt(|step, _| matches!(step, ClaimStep::Create(_)).then(|| ClaimEvent::Created(Ok(Some(small.clone())))));
    assert!(matches!(verdict, Verdict::Waits(_)));
    assert_eq!(play.take_done(), ["patch", "create", "read volume"]);
    assert_eq!(play.waits_for(), Some(ClaimReason::Held));
    assert!(play.cluster.carries_marker());
}

#[test]
fn a_save_that_was_carried_out_without_an_answer_is_found() {
    for lost in [status(409), error(ApiErrorKind::Unknown), status(504)] {
        let mut play = Play::of(Cluster::new());
        let verdict = play.attempt(|step, cluster| {
            let ClaimStep::Save(body) = step else { return None };
            cluster.post(body);
            Some(ClaimEvent::Saved(Err(lost.clone())))
        });
        assert_eq!(play.take_done(), ["patch", "create", "save", "read volume"], "{lost:?}");
        assert_eq!((verdict, play.saved()), (Verdict::Rest(Duration::from_secs(30)), 1));
    }
}

/// The API server restarts meanwhile, and the watch brings it.
#[test]
fn a_save_is_told_once_though_nothing_that_was_asked_about_it_was_answered() {
    let mut play = Play::of(Cluster::new());
    let verdict = play.attempt(|step, cluster| match step {
        ClaimStep::Save(body) => Some(save_is_lost(body, cluster)),
        ClaimStep::ReadVolume(_) => Some(ClaimEvent::Read(Err(error(ApiErrorKind::Unknown)))),
        _ => None,
    });
    assert!(matches!(verdict, Verdict::Failed(_)), "{verdict:?}");
    for _ in 0..2 {
        assert_eq!(play.attempt(|_, _| None), Verdict::Rest(Duration::from_secs(30)));
        assert_eq!(play.saved(), 1);
    }
    let told = |note: &ClaimNote| matches!(note, ClaimNote::Saved(_, handle) if **handle == *"vol-1");
    assert!(play.notes.iter().any(told));
}

/// The end of the marker is refused, as by a webhook. The claim is deleted, or another driver provisions it from now on.
#[test]
fn a_claim_is_given_up_once_the_marker_is_off() {
    let deleted = ("/metadata/deletionTimestamp", DELETED_AT);
    let given_away = (
        "/metadata/annotations/volume.kubernetes.io~1storage-provisioner",
        "other.test",
    );
    for (pointer, value) in [deleted, given_away] {
        let mut play = Play::of(Cluster::new());
        play.attempt(call_fails(9));
        play.cluster.set(pointer, json!(value));
        let told = |play: &Play| play.told(|note| *note == ClaimNote::Cancelled);
        for _ in 0..3 {
            play.attempt(patch_fails(status(403)));
            assert_eq!(told(&play), 0, "{pointer}");
        }
        assert_eq!(play.attempt(|_, _| None), Verdict::Done);
        assert_eq!((told(&play), play.cluster.carries_marker()), (1, false), "{pointer}");
    }
}

#[test]
fn a_save_that_was_not_carried_out_is_repeated_with_pauses_and_without_a_call() {
    let mut play = Play::of(Cluster::new());
    let refused = save_fails(status(500));
    for (pause, words) in [
        (100, ["patch", "create", "save", "read volume"].as_slice()),
        (200, ["save", "read volume"].as_slice()),
        (400, ["save", "read volume"].as_slice()),
    ] {
        assert_eq!(play.attempt(&refused), Verdict::Rest(Duration::from_millis(pause)));
        assert_eq!(play.take_done(), words);
        // Whatever happens to the claim, and be it deleted.
        assert_eq!(play.does(""), Verdict::Rest(Duration::from_millis(pause)));
        play.cluster.wait(Duration::from_millis(pause));
    }
    let longest = Duration::from_secs(30);
    assert_eq!(play.attempt(save_fails(status(422))), Verdict::Rest(longest));
    assert!(matches!(play.notes.last(), Some(ClaimNote::SaveFailed(_, told)) if *told == Some(longest)));
    play.take_done();
    play.cluster.wait(Duration::from_secs(10));
    assert_eq!(play.does(""), Verdict::Rest(Duration::from_secs(20)));
    play.cluster.role = RolePhase::Stopping;
    play.attempt(save_fails(status(403)));
    assert_eq!(play.take_done(), ["save"], "who ends has no other time");
    play.cluster.role = RolePhase::Serving;
    play.memory.end_holds();
    play.attempt(|_, _| None);
    assert_eq!((play.take_done(), play.saved()), (vec!["save"], 1));
}

/// One of several API servers does not know us, or the token was replaced: the next request takes a new connection and reads the token again.
#[test]
fn a_save_that_an_api_server_does_not_know_us_for_is_repeated_soon_and_alarms_nobody() {
    let mut play = Play::of(Cluster::new());
    let answer = |step: &ClaimStep, cluster: &mut Cluster| {
        let ClaimStep::Save(_) = step else { return None };
        // The claim is gone by force: only this process knows of the volume.
        cluster.claim = None;
        Some(ClaimEvent::Saved(Err(status(401))))
    };
    // Nothing is stored, so nothing is looked for.
    let verdict = play.does_with(answer, "patch create save");
    assert_eq!(verdict, Verdict::Rest(Duration::from_millis(100)));
    let told = |note: &ClaimNote| matches!(note, ClaimNote::SaveFailed(_, Some(_))) || note.is_possible_leak();
    assert_eq!(play.told(told), 0, "{:?}", play.notes);
    assert_eq!(play.memory.trouble(), None);
}

/// An API server that has just started may not know the permissions yet.
#[test]
fn a_save_that_is_forbidden_is_repeated_soon_and_told_once_until_it_lasts() {
    let mut play = Play::of(Cluster::new());
    let forbidden = save_fails(status(403));
    let told = |play: &mut Play| {
        let notes = std::mem::take(&mut play.notes);
        notes
            .iter()
            .any(|note| matches!(note, ClaimNote::SaveFailed(_, Some(_))))
    };
    for (pause, is_told) in [
        (1, true),
        (2, false),
        (4, false),
        (8, false),
        (16, false),
        (30, true),
        (30, true),
    ] {
        let pause = Duration::from_secs(pause);
        assert_eq!(play.attempt(&forbidden), Verdict::Rest(pause));
        assert_eq!(told(&mut play), is_told, "{pause:?}");
        play.cluster.wait(pause);
    }
    play.attempt(|_, _| None);
    assert_eq!(play.saved(), 1);
}

/// The marker stays while no PersistentVolume has the volume.
#[test]
fn a_name_that_another_has_is_told_and_no_volume_is_deleted() {
    for (handle, is_marked) in [("vol-0", true), ("vol-1", false)] {
        let mut play = Play::of(Cluster::new());
        let verdict = play.attempt(|step, cluster| {
            let ClaimStep::Save(body) = step else { return None };
            cluster.post(body);
            let spec = &mut cluster.volume.as_mut().unwrap()["spec"];
            (spec["claimRef"]["uid"], spec["csi"]["volumeHandle"]) = (json!("another"), json!(handle));
            Some(ClaimEvent::Saved(Err(status(409))))
        });
        assert!(matches!(verdict, Verdict::Waits(_)), "{handle}: {verdict:?}");
        assert_eq!(play.waits_now(), Some(ClaimReason::NameTaken), "{handle}");
        let found = (play.saved(), play.cluster.carries_marker());
        assert_eq!(found, (0, is_marked), "{handle}");
    }
}

/// kube-controller-manager has bound the claim to a PersistentVolume that a person made for it, and takes the UID of the claim out of ours,
/// which nobody needs.
fn free(cluster: &mut Cluster) {
    super::builders::put(cluster.volume.as_mut().unwrap(), "/spec/claimRef/uid", json!(""));
    cluster.set("/spec/volumeName", json!("static"));
    cluster.set("/status/phase", json!("Bound"));
}

/// Nothing is called for a claim that is bound elsewhere, and it is not held: the PersistentVolume has the volume.
#[test]
fn a_volume_that_the_persistent_volume_of_its_name_has_is_saved_whatever_claim_that_names() {
    let is_told = |note: &ClaimNote| matches!(note, ClaimNote::LeftAlone(_) | ClaimNote::HandleShared(..));
    let ends = |mut play: Play, steps: &str| {
        assert_eq!(play.does(steps), Verdict::Done);
        let is_let_go = !play.cluster.carries_marker() && play.told(is_told) == 0;
        assert!(is_let_go, "{:?}", play.notes);
    };
    let saved = || {
        let mut play = Play::of(Cluster::new());
        play.cluster.set_class("reclaimPolicy", json!("Retain"));
        play.does("patch create save");
        free(&mut play.cluster);
        play
    };
    let mut play = saved();
    play.cluster.is_away = true;
    let claim = claim_of(play.cluster.claim.as_ref().unwrap());
    let may_call = crate::provision::attempt::may_call(&play.cluster, &claim, play.memory.creation());
    assert!(!may_call, "it waits for no other call");
    ends(play, "patch");
    // Who knows of the call by the marker alone finds out.
    let mut play = saved();
    play.restart("2-3-csi.test");
    ends(play, "patch create patch");
    // Before the claim is looked at again.
    let mut play = Play::of(Cluster::new());
    let frees = |step: &ClaimStep, cluster: &mut Cluster| {
        let ClaimStep::Save(body) = step else { return None };
        cluster.post(body);
        free(cluster);
        Some(ClaimEvent::Saved(Ok(())))
    };
    assert_eq!(play.does_with(frees, "patch create save patch"), Verdict::Done);
    ends(play, "");
}

#[test]
fn two_volumes_are_told_once_whatever_became_of_the_claim() {
    for is_gone in [false, true] {
        let mut play = Play::of(Cluster::new());
        play.attempt(|step, cluster| {
            let ClaimStep::Save(body) = step else { return None };
            cluster.post(body);
            cluster.volume.as_mut().unwrap()["spec"]["csi"]["volumeHandle"] = json!("vol-0");
            if is_gone {
                cluster.claim = None;
            }
            Some(ClaimEvent::Saved(Err(status(409))))
        });
        play.attempt(|_, _| None);
        let two = ClaimNote::TwoVolumes {
            volume: NAME.into(),
            saved: "vol-0".into(),
            lost: "vol-1".into(),
        };
        assert_eq!(play.told(|note| *note == two), 1, "{is_gone}");
        assert!(!play.cluster.carries_marker());
    }
}

#[test]
fn a_marker_that_the_api_server_does_not_take_is_told() {
    for refused in [403, 400, 422] {
        let mut play = Play::of(Cluster::new());
        let verdict = play.attempt(patch_fails(status(refused)));
        assert!(matches!(verdict, Verdict::Failed(_)));
        let told = play.notes.iter().find_map(|note| match note {
            ClaimNote::RequestFailed(error) => crate::provision::event::request_refused(error),
            _ => None,
        });
        assert!(told.is_some(), "{refused}");
    }
}

#[test]
fn a_call_that_was_cut_off_may_have_made_a_volume_and_one_that_was_not_begun_has_not() {
    for (lost, is_uncertain) in [(LeaseLost::Cancelled, true), (LeaseLost::NotStarted, false)] {
        let mut play = Play::of(Cluster::new());
        let verdict = play.attempt(|step, _| {
            matches!(step, ClaimStep::Create(_)).then(|| ClaimEvent::Created(Err(CallEnd::LeaseLost(lost))))
        });
        assert_eq!(verdict, Verdict::LeaseLost);
        assert_eq!(play.memory.holds_volume(), is_uncertain, "{lost:?}");
    }
    let mut play = Play::of(Cluster::new());
    let verdict = play.attempt(|step, cluster| {
        cluster.leads &= !matches!(step, ClaimStep::Patch(_));
        None
    });
    assert_eq!(verdict, Verdict::LeaseLost);
    assert_eq!(play.take_done(), ["patch"]);
}

/// Else it would write over the marker of the next leader, whose call is open.
#[test]
fn who_lost_the_lease_marks_no_claim() {
    let mut play = Play::of(Cluster::new());
    play.attempt(call_fails(4));
    let marker = |play: &Play| play.cluster.claim.as_ref().unwrap()["metadata"]["annotations"].clone();
    let of_the_leader = marker(&play);
    play.take_done();
    play.restart("former");
    play.cluster.leads = false;
    assert_eq!(play.does(""), Verdict::LeaseLost);
    assert_eq!(marker(&play), of_the_leader);
}

/// Else it would take the marker of the next leader off, whose call is open, as soon as it sees the PersistentVolume.
#[test]
fn who_lost_the_lease_takes_no_marker_off() {
    let mut play = Play::of(Cluster::new());
    play.does("patch create save");
    play.cluster.delete();
    play.cluster.leads = false;
    assert_eq!(play.does(""), Verdict::LeaseLost);
    assert!(play.cluster.carries_marker());
}

#[test]
fn a_call_that_cannot_succeed_is_not_made_again_before_its_time() {
    let mut play = Play::of(Cluster::new());
    let invalid = call_fails(3);
    let verdict = play.does_with(invalid, "patch create patch");
    assert_eq!(verdict, Verdict::Rest(Duration::from_mins(5)));
    let is_marked = play.cluster.carries_marker();
    assert!(!is_marked, "the next process would take it for an open call");
    play.cluster.wait(Duration::from_mins(1));
    assert_eq!(play.does(""), Verdict::Rest(Duration::from_mins(4)));
    let changes: [fn(&mut Cluster); 3] = [
        |cluster| cluster.class.as_mut().unwrap()["metadata"]["uid"] = json!("another-class"),
        |cluster| cluster.epoch += 1,
        |cluster| cluster.wait(Duration::from_mins(5)),
    ];
    for change in changes {
        // It may succeed now.
        change(&mut play.cluster);
        play.does_with(invalid, "patch create patch");
    }
    play.cluster.epoch += 1;
    play.does("patch create save");
}

#[test]
fn a_clock_that_is_set_back_makes_no_pause_longer() {
    let back = |play: &mut Play| play.cluster.now = play.cluster.now.saturating_sub(Duration::from_hours(1)).unwrap();
    let invalid = call_fails(3);
    let mut play = Play::of(Cluster::new());
    play.attempt(invalid);
    back(&mut play);
    assert_eq!(play.attempt(|_, _| None), Verdict::Rest(Duration::from_mins(5)));
    play.cluster.wait(Duration::from_mins(5));
    play.take_done();
    let unsaved = save_fails(status(422));
    let longest = Duration::from_secs(30);
    assert_eq!(play.does_with(unsaved, "patch create save"), Verdict::Rest(longest));
    back(&mut play);
    assert_eq!(play.attempt(|_, _| None), Verdict::Rest(longest));
    play.cluster.wait(longest);
    play.attempt(|_, _| None);
    assert_eq!((play.take_done(), play.saved()), (vec!["save"], 1));
}

/// What was begun with the former settings is not held against the new ones.
#[test]
fn settings_that_change_during_a_call_end_its_hold() {
    let mut play = Play::of(Cluster::new());
    play.attempt(|step, cluster| {
        let is_call = matches!(step, ClaimStep::Create(_));
        cluster.epoch += u64::from(is_call);
        is_call.then(|| failed(3))
    });
    play.take_done();
    play.does("patch create save");
}

/// Bad class, refused; the driver and its provisioner start anew; the class is deleted, and then the claim.
#[test]
fn a_refused_claim_can_be_deleted_after_a_restart_without_its_class() {
    let mut play = Play::of(Cluster::new());
    play.attempt(call_fails(3));
    play.memory = ClaimMemory::default();
    play.cluster.class = None;
    play.cluster.delete();
    assert_eq!(play.attempt(|_, _| None), Verdict::Done);
    assert!(!play.cluster.carries_marker());
}

#[test]
fn a_selected_node_that_is_taken_away_leaves_no_marker() {
    let mut play = Play::of(Cluster::new());
    play.cluster
        .set_class("volumeBindingMode", json!("WaitForFirstConsumer"));
    let node = "/metadata/annotations/volume.kubernetes.io~1selected-node";
    play.cluster.set(node, json!("n1"));
    play.attempt(call_fails(11));
    assert!(play.cluster.carries_marker());
    play.cluster.set(node, json!(""));
    assert_eq!(play.does("patch create patch"), Verdict::Done);
    assert!(!play.cluster.carries_marker());
}

/// What is held rests no longer than the role: what is not uncertain carries no marker then.
#[test]
fn a_role_that_ends_leaves_the_markers_of_open_calls_alone() {
    for (code, is_marked) in [(11, false), (4, true)] {
        for role in [RolePhase::Stopping, RolePhase::Disabled] {
            // It ends while the call runs, or while the claim is held.
            for ends_during_the_call in [true, false] {
                let mut play = Play::of(Cluster::new());
                let verdict = play.call(Some(code), |cluster| {
                    if ends_during_the_call {
                        cluster.role = role;
                    }
                });
                play.cluster.role = role;
                if !ends_during_the_call {
                    assert!(matches!(verdict, Verdict::Failed(_)) && play.cluster.carries_marker());
                    play.attempt(call_fails(code));
                }
                assert_eq!(play.cluster.carries_marker(), is_marked, "{code} {role:?}");
            }
        }
    }
}

#[test]
fn a_marker_from_a_stale_copy_is_written_after_a_live_read() {
    // So often in an attempt somebody else is faster.
    for (changes, done) in [
        (1, "patch, read claim, patch, create, save"),
        (
            3,
            "patch, read claim, patch, read claim, patch, read claim, patch, create, save",
        ),
        (9, "patch, read claim, patch, read claim, patch, read claim, patch"),
    ] {
        let (mut play, mut left) = (Play::of(Cluster::new()), changes);
        play.attempt(|step, cluster| {
            let is_faster = matches!(step, ClaimStep::Patch(_)) && left > 0;
            is_faster.then(|| {
                left -= 1;
                cluster.annotate("example.com/touched", "again");
                ClaimEvent::Patched(Err(error(ApiErrorKind::Stale)))
            })
        });
        assert_eq!(play.take_done().join(", "), done);
    }
}

/// A ValidatingAdmissionPolicy without a reason answers 422, as the API server does to a write from a stale copy: the read shows that it was
/// none.
#[test]
fn a_patch_that_a_policy_denies_is_written_once_in_an_attempt() {
    let refused = || error(ApiErrorKind::Stale);
    let mut marks = Play::of(Cluster::new());
    let mut unmarks = Play::of(Cluster::new());
    unmarks.does("patch create save");
    unmarks.cluster.bind();
    // The call is open, and its claim carries no marker: that is not tried a second time at the end.
    let mut open = Play::of(Cluster::new());
    open.cluster.policy.leak_protection = LeakProtection::WhenUncertain;
    open.attempt(|step, _| match step {
        ClaimStep::Create(_) => Some(failed(4)),
        ClaimStep::Patch(_) => Some(ClaimEvent::Patched(Err(refused()))),
        _ => None,
    });
    open.take_done();
    for (what, play) in [
        ("on", &mut marks),
        ("off", &mut unmarks),
        ("of an open call", &mut open),
    ] {
        for _ in 0..2 {
            play.notes.clear();
            let verdict = play.attempt(patch_fails(refused()));
            assert!(matches!(verdict, Verdict::Failed(_)), "{what}: {verdict:?}");
            assert_eq!(play.take_done(), ["patch", "read claim"], "{what}");
            assert_eq!(play.told(is_refused), 1, "{what}: {:?}", play.notes);
        }
    }
    // A read that fails does not say that the refusal was meant.
    open.attempt(|step, _| match step {
        ClaimStep::Patch(_) => Some(ClaimEvent::Patched(Err(refused()))),
        ClaimStep::ReadClaim => Some(ClaimEvent::Read(Err(error(ApiErrorKind::Unavailable)))),
        _ => None,
    });
    assert_eq!(open.take_done(), ["patch", "read claim", "patch"]);
}

#[test]
fn a_claim_that_is_gone_before_its_first_attempt_is_forgotten() {
    let mut cluster = Cluster::new();
    cluster.claim = None;
    let mut play = Play::of(cluster);
    assert_eq!(play.does(""), Verdict::Done);
}

#[test]
fn a_class_that_is_missing_is_told_after_a_while() {
    let mut play = Play::of(Cluster::new());
    play.cluster.class = None;
    assert_eq!(play.attempt(|_, _| None), Verdict::Rest(Duration::from_secs(10)));
    assert!(play.notes.is_empty());
    play.cluster.wait(Duration::from_secs(10));
    assert!(matches!(play.attempt(|_, _| None), Verdict::Waits(_)));
    assert_eq!(play.waits_now(), Some(ClaimReason::ClassMissing));
    play.cluster.class = Some(class_json());
    play.attempt(|_, _| None);
    assert_eq!(play.saved(), 1);
}

#[test]
fn a_node_without_room_is_taken_off_the_claim() {
    let mut cluster = Cluster::new();
    cluster.driver.capabilities.accessibility_constraints = false;
    cluster.set("/metadata/annotations/volume.kubernetes.io~1selected-node", json!("n1"));
    let mut play = Play::of(cluster);
    // Without topology another node has no more room.
    assert!(matches!(play.attempt(call_fails(8)), Verdict::Failed(_)));
    assert!(play.cluster.carries_marker());
}

/// A person gave the PersistentVolume to somebody else before the claim was bound to it: its volume is not deleted with the claim.
#[test]
fn a_volume_whose_persistent_volume_was_given_to_somebody_else_is_left_alone() {
    for (policy, reference) in [
        ("Delete", json!({"namespace": "web", "name": "c", "uid": "c-uid"})),
        ("Delete", json!(null)),
        ("Retain", json!({"namespace": "web", "name": "data"})),
    ] {
        let mut play = Play::of(Cluster::new());
        if let Some(class) = &mut play.cluster.class {
            super::builders::put(class, "/reclaimPolicy", policy.into());
        }
        play.attempt(|_, _| None);
        assert!(play.cluster.carries_marker(), "it is not bound yet");
        super::builders::put(play.cluster.volume.as_mut().unwrap(), "/spec/claimRef", reference);
        play.cluster.delete();
        play.restart("2");
        play.take_done();
        play.attempt(|_, _| None);
        let done = play.take_done();
        let is_called_alone = done.contains(&"create") && !done.contains(&"delete");
        assert!(is_called_alone, "{policy}: {done:?}");
        assert!(!play.cluster.carries_marker(), "{policy}: {done:?}");
    }
}
