//! Attempts for PersistentVolumes as values, played against objects: which step comes after which answer.

use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

use super::builders::{
    DELETED_AT, FINALIZER, NAME, UID, another_claim, claim_of, class_json, class_of, driver, policy, put, volume_json,
    volume_of,
};
use super::patches::apply;
use crate::answer::{ApiError, ApiErrorKind};
use crate::attempt::{CallEnd, LeaseLost};
use crate::decide::Failure;
use crate::objects::{Claim, ClaimReference, StorageClass, Volume};
use crate::provision::attempt::{RoleView, Verdict};
use crate::provision::deletion::{
    VolumeAttempt, VolumeEvent, VolumeMemory, VolumeNote, VolumeStep, VolumeView, fingerprint,
};
use crate::provision::{
    Deletion, OrphanVolumePolicy, OwningClaim, ProvisionPolicy, ProvisionerFacts, RolePhase, Seen, TroubleKind,
    VolumeReason,
};

/// How others that use the volume are known.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    ByWatch,
    /// The watch is broken, and nobody has read the PersistentVolume.
    NotBeforeRead,
    /// It was read, and the lists are older.
    NotBeforeLists,
    ByLists,
    /// But for VolumeAttachments, whose watch breaks each time.
    ButAttachments,
}

#[allow(clippy::struct_excessive_bools, reason = "each is one thing that may be so")]
struct Cluster {
    volume: Option<Value>,
    /// UID of the claim that is there under the name, and what it is bound to, and whether the cache has the one of the PersistentVolume.
    claim: Option<&'static str>,
    bound_to: Option<&'static str>,
    cached_claim: OwningClaim,
    /// Claims that are bound to it by the cache, though it does not name them.
    bound: Vec<ClaimReference>,
    attached_to: Option<&'static str>,
    known: Known,
    sharer: Option<&'static str>,
    /// What that is besides its name.
    other: Value,
    is_created: bool,
    makes_volume: bool,
    driver: ProvisionerFacts,
    policy: ProvisionPolicy,
    role: RolePhase,
    is_away: bool,
    leads: bool,
}

impl Cluster {
    fn new() -> Self {
        Self {
            volume: Some(volume_json()),
            claim: None,
            bound_to: None,
            cached_claim: OwningClaim::NotCached,
            bound: Vec::new(),
            attached_to: None,
            known: Known::ByWatch,
            sharer: None,
            other: volume_json(),
            is_created: false,
            makes_volume: false,
            driver: driver(),
            policy: policy(),
            role: RolePhase::Serving,
            is_away: false,
            leads: true,
        }
    }

    fn delete(&mut self) {
        self.set("/metadata/deletionTimestamp", DELETED_AT);
    }

    /// It is in use, and nobody has put a finalizer on it.
    fn unprotect(&mut self) {
        self.set("/status/phase", "Bound");
        self.set("/metadata/finalizers", json!([]));
    }

    /// A person decides that its volume is deleted.
    fn decide(&mut self) {
        self.set("/metadata/annotations/attacher.csi.dev~1reclaim", "Delete");
    }

    fn is_known(&self) -> bool {
        matches!(self.known, Known::ByWatch | Known::ByLists)
    }

    fn set(&mut self, pointer: &str, value: impl Into<Value>) {
        let volume = self.volume.as_mut().unwrap();
        put(volume, pointer, value.into());
        let version: u64 = volume["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
        put(volume, "/metadata/resourceVersion", (version + 1).to_string().into());
    }

    /// Whether our finalizer is left; none where it goes.
    fn write(&mut self, change: impl FnOnce(&mut Value) -> Result<(), ApiError>) -> Result<Option<bool>, ApiError> {
        let volume = self.volume.as_mut().ok_or_else(|| error(ApiErrorKind::NotFound))?;
        change(volume)?;
        self.set("/status/message", "written");
        let metadata = &self.volume.as_ref().unwrap()["metadata"];
        let is_held = metadata["finalizers"].as_array().is_some_and(|list| !list.is_empty());
        if !metadata["deletionTimestamp"].is_null() && !is_held {
            self.volume = None;
        }
        Ok(self.shown())
    }

    /// Whether it has our finalizer; none where it is gone.
    fn shown(&self) -> Option<bool> {
        let volume = self.volume.as_ref().map(volume_of);
        volume.map(|volume| volume.lifecycle.finalizer_at.is_some())
    }

    fn claim_of(&self, uid: &str) -> Claim {
        let mut claim = super::builders::claim_json();
        put(&mut claim, "/metadata/uid", uid.into());
        if let Some(name) = self.bound_to {
            put(&mut claim, "/spec/volumeName", name.into());
            put(&mut claim, "/status/phase", "Bound".into());
        }
        claim_of(&claim)
    }

    fn answer(&mut self, step: VolumeStep) -> VolumeEvent {
        match step {
            VolumeStep::Patch(write) => VolumeEvent::Written(
                self.write(|volume| apply(volume, &write.body).map_err(|_| error(ApiErrorKind::Stale))),
            ),
            VolumeStep::Remove(uid) => VolumeEvent::Written(self.write(|volume| {
                assert_eq!(volume["metadata"]["uid"], *uid);
                put(volume, "/metadata/deletionTimestamp", DELETED_AT.into());
                // kube-controller-manager lets it go, as nothing is bound to it.
                volume["metadata"]["finalizers"]
                    .as_array_mut()
                    .unwrap()
                    .retain(|name| name != "kubernetes.io/pv-protection");
                Ok(())
            })),
            VolumeStep::ReadVolume => {
                if self.known == Known::NotBeforeRead {
                    self.known = Known::NotBeforeLists;
                }
                VolumeEvent::VolumeRead(match &self.volume {
                    Some(volume) => Ok(volume_of(volume).resource_version),
                    None => Err(error(ApiErrorKind::NotFound)),
                })
            }
            VolumeStep::ReadHeir(name) => VolumeEvent::VolumeRead(match self.sharer {
                Some(known) if *known == *name => Ok(volume_of(&self.other).resource_version),
                _ => Err(error(ApiErrorKind::NotFound)),
            }),
            VolumeStep::ReadClaim(_) => VolumeEvent::ClaimRead(match self.claim {
                Some(uid) => Ok(Arc::new(self.claim_of(uid))),
                None => Err(error(ApiErrorKind::NotFound)),
            }),
            VolumeStep::Secret(_) => VolumeEvent::SecretRead(Ok(())),
            VolumeStep::Delete(_) => VolumeEvent::Deleted(Ok(())),
            VolumeStep::End(_) => panic!("{step:?}"),
        }
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
        Seen::Here(Arc::new(class_of(&class_json())))
    }
    fn handle_owner(&self, handle: &str, except: &str) -> Seen<Arc<str>> {
        let named = self
            .volume
            .as_ref()
            .and_then(|volume| volume["spec"]["csi"]["volumeHandle"].as_str());
        assert_eq!((handle, except), (named.unwrap_or_default(), NAME));
        let is_known = self.is_known() || self.known == Known::ButAttachments;
        let none = if is_known { Seen::Gone } else { Seen::Unknown };
        self.sharer.map_or(none, |name| Seen::Here(name.into()))
    }
    fn attached_to(&self, name: &str, _: &str) -> Seen<Arc<str>> {
        assert_eq!(name, NAME);
        let none = if self.is_known() { Seen::Gone } else { Seen::Unknown };
        self.attached_to.map_or(none, |node| Seen::Here(node.into()))
    }
}

impl VolumeView for Cluster {
    fn volume(&self) -> Seen<Arc<Volume>> {
        let volume = self.volume.as_ref().map(|volume| Arc::new(volume_of(volume)));
        volume
            .filter(|volume| *volume.uid == *"pv-uid")
            .map_or(Seen::Gone, Seen::Here)
    }
    fn claim(&self, claim: &ClaimReference, _: &Volume) -> OwningClaim {
        assert_eq!((&*claim.namespace, &*claim.name), ("web", "data"));
        self.cached_claim
    }
    fn may_make_volume(&self, _: &ClaimReference) -> bool {
        self.makes_volume
    }
    fn bound_claims(&self, _: &Volume) -> Seen<Vec<ClaimReference>> {
        if self.bound.is_empty() {
            Seen::Gone
        } else {
            Seen::Here(self.bound.clone())
        }
    }
    fn created_for_a_claim(&self, handle: &str) -> Option<Arc<str>> {
        assert_eq!(handle, "vol-1");
        self.is_created.then(|| "pvc-another".into())
    }
    fn sharers(&self, _: &str, _: &str) -> Vec<Arc<Volume>> {
        let named = self.sharer.map(|name| {
            let mut other = self.other.clone();
            put(&mut other, "/metadata/name", name.into());
            Arc::new(volume_of(&other))
        });
        named.into_iter().collect()
    }
    fn lacks_read(&self, _: &Volume) -> bool {
        self.known == Known::NotBeforeRead
    }
}

fn error(kind: ApiErrorKind) -> ApiError {
    ApiError::without_answer(kind, "no")
}

fn refused(code: i32) -> VolumeEvent {
    let failure = Failure {
        message: "no".to_owned(),
        code: Some(code),
    };
    VolumeEvent::Deleted(Err(CallEnd::Failed(failure)))
}

fn delete_fails(code: i32) -> impl Fn(&VolumeStep, &mut Cluster) -> Option<VolumeEvent> {
    move |step, _| matches!(step, VolumeStep::Delete(_)).then(|| refused(code))
}

fn patch_fails(kind: ApiErrorKind) -> impl Fn(&VolumeStep, &mut Cluster) -> Option<VolumeEvent> {
    move |step, _| matches!(step, VolumeStep::Patch(_)).then(|| VolumeEvent::Written(Err(error(kind))))
}

/// Plays attempts; an answer that is not given carries the step out.
struct Play {
    cluster: Cluster,
    memory: VolumeMemory,
    done: Vec<&'static str>,
    notes: Vec<VolumeNote>,
}

impl Play {
    fn of(cluster: Cluster) -> Self {
        Self {
            cluster,
            memory: VolumeMemory::default(),
            done: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// With what differs.
    fn with(change: impl FnOnce(&mut Cluster)) -> Self {
        let mut play = Self::of(Cluster::new());
        change(&mut play.cluster);
        play
    }

    fn attempt(&mut self, mut answer: impl FnMut(&VolumeStep, &mut Cluster) -> Option<VolumeEvent>) -> Verdict {
        let mut attempt = VolumeAttempt::new(std::mem::take(&mut self.memory));
        let mut event = VolumeEvent::Begin;
        loop {
            let step = attempt.next(&self.cluster, event);
            self.notes.extend(attempt.take_notes());
            self.done.push(match &step {
                VolumeStep::End(verdict) => {
                    self.memory = attempt.memory().clone();
                    return *verdict;
                }
                VolumeStep::Patch(_) => "patch",
                VolumeStep::ReadVolume => "read volume",
                VolumeStep::ReadHeir(_) => "read heir",
                VolumeStep::ReadClaim(_) => "read claim",
                VolumeStep::Secret(_) => "secret",
                VolumeStep::Delete(_) => "delete",
                VolumeStep::Remove(_) => "remove",
            });
            event = match answer(&step, &mut self.cluster) {
                Some(event) => event,
                None => self.cluster.answer(step),
            };
        }
    }

    fn plain(&mut self) -> Verdict {
        self.attempt(|_, _| None)
    }

    /// One attempt, of which these are the steps.
    #[track_caller]
    fn does(&mut self, steps: &str) {
        assert_eq!(self.plain(), Verdict::Done);
        self.did(steps);
    }

    /// These steps were done since the last look.
    #[track_caller]
    fn did(&mut self, steps: &str) {
        assert_eq!(self.take_done().join(", "), steps, "{:?}", self.notes);
    }

    fn take_done(&mut self) -> Vec<&'static str> {
        std::mem::take(&mut self.done)
    }

    fn waits(&self) -> Vec<VolumeReason> {
        let reasons = self.notes.iter().filter_map(|note| match note {
            VolumeNote::Waits(reason, _) => Some(*reason),
            _ => None,
        });
        reasons.collect()
    }

    fn is_told(&self, is_wanted: impl Fn(&VolumeNote) -> bool) -> bool {
        self.notes.iter().any(is_wanted)
    }
}

/// What is done where nothing hinders.
const WHOLE: &str = "read volume, delete, remove, patch";
/// What is done where a PersistentVolume is left to another one of its handle: no call.
const LEFT_TO_HEIR: &str = "read volume, read heir, remove, read volume, read heir, patch";

#[test]
fn a_released_volume_is_read_live_deleted_removed_and_released() {
    let mut play = Play::of(Cluster::new());
    play.does(WHOLE);
    assert!(play.cluster.volume.is_none());
    assert!(play.is_told(|note| matches!(note, VolumeNote::Deleted(handle, None) if **handle == *"vol-1")));
    let released = play.notes.iter().filter(|note| **note == VolumeNote::Released);
    assert_eq!(released.count(), 1);
}

#[test]
fn what_others_hold_is_released_once() {
    let mut play = Play::of(Cluster::new());
    play.cluster
        .set("/metadata/finalizers", json!(["external-attacher/csi-test", FINALIZER]));
    play.does(WHOLE);
    let left = &play.cluster.volume.as_ref().unwrap()["metadata"]["finalizers"];
    assert_eq!(*left, json!(["external-attacher/csi-test"]));
    let released = play.notes.iter().filter(|note| **note == VolumeNote::Released);
    assert_eq!(released.count(), 1);
    // A static one without a finalizer of ours.
    let mut play = Play::with(|cluster| cluster.set("/metadata/finalizers", json!(["example.com/kept"])));
    play.does("read volume, delete, remove");
    assert!(play.is_told(|note| *note == VolumeNote::Released));
}

#[test]
fn it_waits_for_the_detach_and_says_so_once() {
    let mut play = Play::with(|cluster| cluster.attached_to = Some("n1"));
    for _ in 0..3 {
        assert_eq!(play.plain(), Verdict::Rest(Duration::from_mins(10)));
    }
    assert!(play.take_done().is_empty());
    let waits = VolumeNote::Waits(VolumeReason::StillAttached, "n1".to_owned());
    assert_eq!(play.notes, [waits]);
    play.cluster.attached_to = None;
    play.does(WHOLE);
}

/// Its watch breaks each time, and lists work: it is read once, waits for lists that begin after that, and is read again before the call.
#[test]
fn one_whose_watch_is_broken_is_deleted_after_a_read_and_lists() {
    let mut play = Play::with(|cluster| cluster.known = Known::NotBeforeRead);
    assert!(matches!(play.plain(), Verdict::Rest(_)));
    play.did("read volume");
    assert!(matches!(play.plain(), Verdict::Rest(_)));
    assert!(play.take_done().is_empty(), "one read is enough");
    play.cluster.known = Known::ByLists;
    play.does(WHOLE);
}

/// A watch that breaks each time keeps the volume for ever: the PersistentVolume says of what too little is known.
#[test]
fn what_is_not_known_for_long_is_told_once() {
    for (known, kinds) in [
        (Known::NotBeforeLists, "PersistentVolumes"),
        (Known::ButAttachments, "VolumeAttachments"),
    ] {
        let mut play = Play::with(|cluster| cluster.known = known);
        for _ in 0..6 {
            assert!(matches!(play.plain(), Verdict::Rest(rest) if rest < Duration::from_secs(10)));
        }
        assert!(play.notes.is_empty(), "it may be known a moment later");
        for _ in 0..3 {
            assert_eq!(play.plain(), Verdict::Rest(Duration::from_secs(10)));
        }
        assert_eq!(play.notes, [VolumeNote::Waits(VolumeReason::Syncing, kinds.to_owned())]);
        assert!(play.take_done().is_empty(), "nothing is called");
        assert!(play.memory.trouble().unwrap().words.contains(kinds));
        play.cluster.known = Known::ByWatch;
        play.does(WHOLE);
        assert_eq!(play.memory.waits(), None);
    }
    let mut play = Play::of(Cluster::new());
    (play.cluster.cached_claim, play.cluster.makes_volume) = (OwningClaim::Unknown, true);
    for _ in 0..9 {
        assert!(matches!(play.plain(), Verdict::Rest(_)));
    }
    assert!(play.notes.is_empty(), "an open call is told on the claim");
}

/// Somebody edited `spec.claimRef`, so that kube-controller-manager marked it Released while the claim that uses it is bound to it.
#[test]
fn a_claim_that_is_bound_to_it_keeps_its_volume_whatever_claim_it_names() {
    let mut play = Play::of(Cluster::new());
    let gone = ClaimReference {
        uid: "gone-uid".into(),
        name: "gone".into(),
        ..another_claim()
    };
    play.cluster.bound = vec![gone.clone(), another_claim()];
    (play.cluster.claim, play.cluster.bound_to) = (Some("moved-uid"), Some(NAME));
    let read = |step: &VolumeStep, _: &mut Cluster| match step {
        VolumeStep::ReadClaim(claim) if *claim == gone => {
            Some(VolumeEvent::ClaimRead(Err(error(ApiErrorKind::NotFound))))
        }
        _ => None,
    };
    for _ in 0..2 {
        assert_eq!(play.attempt(read), Verdict::Rest(Duration::from_mins(1)));
        play.did("read claim, read claim");
    }
    let waits = VolumeNote::Waits(VolumeReason::ReleasedWhileBound, "web/moved".to_owned());
    assert_eq!(play.notes, [waits]);
    // Its own claim is what it waited for before; now both are gone.
    play.cluster.claim = None;
    play.does(&format!("read claim, read claim, {WHOLE}"));
}

/// A PersistentVolume that was marked Released by mistake.
#[test]
fn a_claim_that_is_there_keeps_its_volume() {
    let mut play = Play::of(Cluster::new());
    play.cluster.cached_claim = OwningClaim::Cached;
    play.cluster.claim = Some(UID);
    for _ in 0..3 {
        assert_eq!(play.plain(), Verdict::Rest(Duration::from_mins(1)));
        play.did("read claim");
    }
    let waits = VolumeNote::Waits(VolumeReason::ReleasedWhileBound, "web/data".to_owned());
    assert_eq!(play.notes, [waits]);
    // Another one has the name, or none.
    for claim in [Some("another"), None] {
        let mut play = Play::of(Cluster::new());
        (play.cluster.cached_claim, play.cluster.claim) = (OwningClaim::Cached, claim);
        play.does("read claim, read volume, delete, remove, patch");
    }
    // It is bound elsewhere: this one was made for it, and came too late.
    let mut play = Play::of(Cluster::new());
    (play.cluster.cached_claim, play.cluster.claim) = (OwningClaim::Cached, Some(UID));
    play.cluster.bound_to = Some("static");
    play.does("read claim, read volume, delete, remove, patch");
    // Another UID, and bound to this one: somebody edited claimRef.
    let mut play = Play::of(Cluster::new());
    (play.cluster.cached_claim, play.cluster.claim) = (OwningClaim::Cached, Some("another"));
    play.cluster.bound_to = Some(NAME);
    assert!(matches!(play.plain(), Verdict::Rest(_)));
    play.did("read claim");
    // What does not say that it is gone says nothing.
    let mut play = Play::with(|cluster| cluster.cached_claim = OwningClaim::Cached);
    let unclear = |step: &VolumeStep, _: &mut Cluster| {
        let read = matches!(step, VolumeStep::ReadClaim(_));
        read.then(|| VolumeEvent::ClaimRead(Err(error(ApiErrorKind::Unknown))))
    };
    assert!(matches!(play.attempt(unclear), Verdict::Failed(_)));
    play.did("read claim");
}

#[test]
fn what_the_live_copy_says_counts() {
    type Change = (&'static str, Value);
    let changes: [Change; 4] = [
        ("/status/phase", json!("Bound")),
        ("/spec/persistentVolumeReclaimPolicy", json!("Retain")),
        ("/metadata/annotations/pv.kubernetes.io~1provisioned-by", json!("other")),
        ("/metadata/uid", json!("another")),
    ];
    for (pointer, value) in changes {
        let mut play = Play::of(Cluster::new());
        play.attempt(|step, cluster| {
            if matches!(step, VolumeStep::ReadVolume) {
                cluster.set(pointer, value.clone());
            }
            None
        });
        assert!(!play.take_done().contains(&"delete"), "{pointer}");
    }
}

fn with_secret() -> Cluster {
    let mut cluster = Cluster::new();
    for (key, value) in [("name", "s"), ("namespace", "ns")] {
        let pointer = format!("/metadata/annotations/volume.kubernetes.io~1provisioner-deletion-secret-{key}");
        cluster.set(&pointer, value);
    }
    cluster
}

/// A person gives the PersistentVolume to another claim while the Secret is read: what was said of the first claim says nothing of that one.
#[test]
fn what_was_read_of_one_claim_says_nothing_of_another() {
    let mut play = Play::of(with_secret());
    play.cluster.cached_claim = OwningClaim::Cached;
    play.attempt(|step, cluster| {
        if matches!(step, VolumeStep::Secret(_)) {
            cluster.set("/spec/claimRef/uid", "c-uid");
            cluster.claim = Some("c-uid");
        }
        None
    });
    let done = play.take_done();
    assert_eq!(done[..2], ["read claim", "secret"]);
    let is_asked_again = !done.contains(&"delete") && done.iter().filter(|step| **step == "read claim").count() == 2;
    assert!(is_asked_again, "{done:?}");
}

/// A request for a Secret may wait for long: the live read comes after it. The Secret that is named then is read as well.
#[test]
fn the_last_look_before_the_call_is_live() {
    let mut play = Play::of(with_secret());
    play.attempt(|step, cluster| {
        if matches!(step, VolumeStep::ReadVolume) && cluster.volume.as_ref().unwrap()["spec"]["x"].is_null() {
            cluster.set("/spec/x", 1);
            cluster.set(
                "/metadata/annotations/volume.kubernetes.io~1provisioner-deletion-secret-name",
                "other",
            );
        }
        None
    });
    play.did("secret, read volume, secret, delete, remove, patch");
    // A change that the watch brings after the live read, before the call, is read live again.
    let mut play = Play::of(with_secret());
    let mut reads = 0;
    play.attempt(|step, cluster| {
        let VolumeStep::ReadVolume = step else { return None };
        reads += 1;
        let answer = cluster.answer(step.clone());
        if reads == 1 {
            cluster.set("/metadata/labels", json!({"a": "b"}));
        }
        Some(answer)
    });
    play.did("secret, read volume, read volume, delete, remove, patch");
}

#[test]
fn a_live_read_that_fails_deletes_nothing() {
    for kind in [ApiErrorKind::Unknown, ApiErrorKind::Forbidden, ApiErrorKind::Refused] {
        let mut play = Play::of(Cluster::new());
        let verdict = play.attempt(|step, _| {
            matches!(step, VolumeStep::ReadVolume).then(|| VolumeEvent::VolumeRead(Err(error(kind))))
        });
        assert!(matches!(verdict, Verdict::Failed(_)));
        play.did("read volume");
    }
}

#[test]
fn a_shared_handle_is_kept_until_the_other_is_gone() {
    let mut play = Play::with(|cluster| cluster.sharer = Some("pv-2"));
    put(&mut play.cluster.other, "/status/phase", "Bound".into());
    play.plain();
    assert_eq!(play.plain(), Verdict::Rest(Duration::from_mins(10)));
    assert!(play.take_done().is_empty());
    assert_eq!(play.waits(), [VolumeReason::HandleShared]);
    play.cluster.sharer = None;
    play.does(WHOLE);
}

/// Two claims may be given one volume. Each of the PersistentVolumes would wait for the other one.
#[test]
fn of_two_with_one_handle_that_go_one_is_deleted_with_its_volume_and_the_other_before() {
    let first = "a-pv";
    let mut play = Play::with(|cluster| cluster.sharer = Some(first));
    let changes = [
        ("/status/phase", "Bound"),
        ("/spec/persistentVolumeReclaimPolicy", "Retain"),
    ];
    for (pointer, value) in changes {
        let before = play.cluster.other.clone();
        put(&mut play.cluster.other, pointer, value.into());
        assert!(matches!(play.plain(), Verdict::Rest(_)));
        assert_eq!(play.waits().last(), Some(&VolumeReason::HandleShared), "{value}");
        assert!(play.take_done().is_empty());
        play.cluster.other = before;
    }
    play.does(LEFT_TO_HEIR);
    let is_left = |note: &&VolumeNote| matches!(note, VolumeNote::LeftTo(heir) if **heir == *first);
    assert_eq!(play.notes.iter().filter(is_left).count(), 1);
    let is_released = play.is_told(|note| *note == VolumeNote::Released);
    assert!(!is_released, "its volume was not deleted");
    assert!(VolumeAttempt::new(play.memory.clone()).is_left());

    let mut play = Play::with(|cluster| cluster.sharer = Some("zz-pv"));
    assert!(matches!(play.plain(), Verdict::Rest(_)), "that one goes first");
    assert!(play.take_done().is_empty());
    put(&mut play.cluster.other, "/metadata/finalizers", json!([]));
    play.cluster.sharer = Some(first);
    assert!(matches!(play.plain(), Verdict::Rest(_)), "nothing holds that one");
    assert!(play.take_done().is_empty());
    play.cluster.sharer = None;
    play.does(WHOLE);
}

/// The cache may show the other one as it was before a person kept or deleted it: it is the only record of the volume then.
#[test]
fn a_volume_is_left_only_to_one_that_a_live_read_shows_as_it_is_known() {
    for is_kept in [true, false] {
        let mut play = Play::with(|cluster| cluster.sharer = Some("a-pv"));
        play.attempt(|step, cluster| {
            if matches!(step, VolumeStep::ReadHeir(_)) && is_kept {
                put(
                    &mut cluster.other,
                    "/spec/persistentVolumeReclaimPolicy",
                    "Retain".into(),
                );
            } else if matches!(step, VolumeStep::ReadHeir(_)) {
                cluster.sharer = None;
            }
            None
        });
        let done = play.take_done();
        if is_kept {
            assert_eq!(done, ["read volume", "read heir"]);
            assert_eq!(play.waits().last(), Some(&VolumeReason::HandleShared));
        } else {
            assert_eq!(done, ["read volume", "read heir", "delete", "remove", "patch"]);
        }
    }
}

/// What it was told to wait for before stays told.
#[test]
fn a_driver_that_is_away_is_not_called() {
    let mut play = Play::with(|cluster| cluster.is_away = true);
    assert!(matches!(play.plain(), Verdict::Rest(_)));
    assert!(play.take_done().is_empty() && play.notes.is_empty());
    play.cluster.is_away = false;
    play.does(WHOLE);
}

#[test]
fn deletions_are_held_from_the_moment_at_which_the_settings_say_so() {
    let mut play = Play::of(Cluster::new());
    let verdict = play.attempt(|step, cluster| {
        cluster.policy.hold_deletions |= matches!(step, VolumeStep::ReadVolume);
        None
    });
    assert_eq!(verdict, Verdict::Rest(Duration::from_mins(10)));
    play.did("read volume");
    assert_eq!(play.waits(), [VolumeReason::Held]);
    play.cluster.policy.hold_deletions = false;
    assert_eq!(play.plain(), Verdict::Done);
}

/// A call for the claim is open. That the claim is there is told, and that it is gone is not enough.
#[test]
fn what_may_be_made_at_this_moment_is_not_deleted() {
    let open = |cached, live: bool| {
        let mut play = Play::with(|cluster| cluster.set("/status/phase", "Pending"));
        play.cluster.delete();
        play.cluster.decide();
        play.cluster.makes_volume = true;
        play.cluster.cached_claim = cached;
        play.cluster.claim = live.then_some(UID);
        let verdict = play.plain();
        (play, verdict)
    };
    let (play, verdict) = open(OwningClaim::Cached, true);
    assert_eq!(
        (verdict, play.waits()),
        (
            Verdict::Rest(Duration::from_mins(1)),
            vec![VolumeReason::ReleasedWhileBound]
        )
    );
    for cached in [OwningClaim::Cached, OwningClaim::NotCached, OwningClaim::Unknown] {
        let (mut play, verdict) = open(cached, false);
        let wanted = (Verdict::Rest(Duration::from_millis(200)), vec![]);
        assert_eq!((verdict, play.waits()), wanted);
        // Each look is a request.
        assert_eq!(play.plain(), Verdict::Rest(Duration::from_millis(400)));
        let done = play.take_done();
        assert!(!done.contains(&"delete"), "{done:?}");
    }
}

#[test]
fn an_answer_that_is_not_ok_is_asked_for_again() {
    // DEADLINE_EXCEEDED, FAILED_PRECONDITION, NOT_FOUND, INTERNAL.
    for (code, known) in [
        (4, Deletion::Uncertain),
        (9, Deletion::NotDeleted),
        (5, Deletion::NotDeleted),
        (13, Deletion::NotDeleted),
    ] {
        let mut play = Play::of(Cluster::new());
        assert!(matches!(play.attempt(delete_fails(code)), Verdict::Failed(_)));
        assert_eq!(VolumeAttempt::new(play.memory.clone()).deletion(), known, "{code}");
        play.did("read volume, delete");
        assert!(play.cluster.volume.is_some());
        // The next attempt reads it live again.
        play.does(WHOLE);
    }
    let mut play = Play::with(|cluster| cluster.policy.orphans = OrphanVolumePolicy::TreatNotFoundAsDeleted);
    assert_eq!(play.attempt(delete_fails(5)), Verdict::Done);
    play.did(WHOLE);
    assert!(play.is_told(|note| matches!(note, VolumeNote::Deleted(_, Some(_)))));
}

#[test]
fn a_policy_that_keeps_the_volume_ends_the_calls() {
    let mut play = Play::of(Cluster::new());
    play.attempt(delete_fails(4));
    // A refusal says nothing of the call that timed out.
    play.attempt(delete_fails(13));
    play.take_done();
    play.cluster.set("/spec/persistentVolumeReclaimPolicy", "Retain");
    play.does("patch");
    assert!(play.is_told(|note| matches!(note, VolumeNote::PerhapsDeleted(handle) if **handle == *"vol-1")));
    let left = &play.cluster.volume.as_ref().unwrap()["metadata"]["finalizers"];
    assert!(!left.as_array().unwrap().contains(&json!(FINALIZER)));
}

#[test]
fn what_is_forgotten_after_ok_is_asked_for_again() {
    for lost in ["remove", "patch"] {
        let mut play = Play::of(Cluster::new());
        let verdict = play.attempt(|step, _| {
            let is_lost = match step {
                VolumeStep::Remove(_) => lost == "remove",
                VolumeStep::Patch(_) => lost == "patch",
                _ => false,
            };
            is_lost.then(|| VolumeEvent::Written(Err(error(ApiErrorKind::Unknown))))
        });
        assert!(matches!(verdict, Verdict::Failed(_)));
        play.take_done();
        let mut play = Play::of(play.cluster);
        assert_eq!(play.plain(), Verdict::Done);
        assert!(play.take_done().contains(&"delete") && play.cluster.volume.is_none());
    }
}

#[test]
fn what_is_known_to_be_deleted_is_not_called_for_again() {
    let mut play = Play::of(Cluster::new());
    let fails = |step: &VolumeStep, _: &mut Cluster| {
        matches!(step, VolumeStep::Remove(_)).then(|| VolumeEvent::Written(Err(error(ApiErrorKind::Unknown))))
    };
    play.attempt(fails);
    play.take_done();
    // Also by a role that ends.
    play.cluster.role = RolePhase::Stopping;
    play.does("remove, patch");
    let mut play = Play::with(|cluster| cluster.role = RolePhase::Disabled);
    play.does("");
}

/// An AttacherConfig that is deleted waits for these.
#[test]
fn a_role_that_is_switched_off_finishes_what_is_open_and_what_is_in_deletion() {
    let mut play = Play::with(|cluster| cluster.role = RolePhase::Disabled);
    play.cluster.delete();
    assert_eq!(play.plain(), Verdict::Done);
    assert!(play.take_done().contains(&"delete") && play.is_told(|note| *note == VolumeNote::Released));

    let mut play = Play::of(Cluster::new());
    play.attempt(delete_fails(4));
    play.cluster.role = RolePhase::Disabled;
    play.take_done();
    assert_eq!(play.plain(), Verdict::Done);
    assert!(play.take_done().contains(&"delete") && play.cluster.volume.is_none());

    let mut play = Play::with(|cluster| cluster.role = RolePhase::Stopping);
    play.cluster.delete();
    play.does("");
}

/// Two PersistentVolumes have one handle, and one of them is being deleted: it waits for the other one.
#[test]
fn a_role_that_is_switched_off_lets_go_what_one_in_deletion_waits_for() {
    let beside = |is_deleting: bool| {
        let mut play = Play::of(Cluster::new());
        play.cluster.role = RolePhase::Disabled;
        play.cluster.sharer = Some("pv-1");
        if is_deleting {
            let since = DELETED_AT.into();
            put(&mut play.cluster.other, "/metadata/deletionTimestamp", since);
        }
        play
    };
    let mut play = beside(true);
    play.does(LEFT_TO_HEIR);
    assert!(play.cluster.volume.is_none());

    let mut play = beside(false);
    // Nobody is being deleted.
    play.does("");

    let mut play = beside(true);
    play.cluster.unprotect();
    // It is in use.
    play.does("");
}

/// The volume is there, and no call can name it.
#[test]
fn an_in_tree_volume_that_cannot_be_translated_waits_and_is_told_once() {
    let mut play = Play::with(|cluster| cluster.set("/spec/csi", json!(null)));
    play.cluster
        .set("/spec/awsElasticBlockStore", json!({"volumeID": "aws://zone/disk"}));
    for _ in 0..2 {
        assert_eq!(play.plain(), Verdict::Rest(Duration::from_mins(10)));
    }
    assert!(play.take_done().is_empty());
    assert_eq!(play.waits(), [VolumeReason::NotCsi]);
}

/// What a change during the call asks for is known, and the driver may still work on the call.
#[test]
fn what_changes_during_a_call_without_an_outcome_waits_for_the_backoff() {
    for (code, waits) in [(4, true), (13, false)] {
        let mut play = Play::of(Cluster::new());
        let verdict = play.attempt(|step, cluster| {
            let is_call = matches!(step, VolumeStep::Delete(_));
            is_call.then(|| {
                cluster.delete();
                refused(code)
            })
        });
        let volume = play.cluster.volume().here().unwrap();
        let fingerprint = fingerprint(&play.cluster, &volume);
        assert_eq!(verdict == Verdict::Failed(fingerprint), waits, "{code}");
    }
}

/// It came back in another version, or never had the capability. That is told, as nothing else says why the volume stays.
#[test]
fn a_driver_that_deletes_no_volumes_is_not_asked_to() {
    let mut play = Play::with(|cluster| cluster.driver.capabilities.create_delete_volume = false);
    for is_deleting in [false, true] {
        if is_deleting {
            play.cluster.delete();
        }
        assert!(matches!(play.plain(), Verdict::Waits(_)));
        let told = play.notes.last();
        assert!(matches!(told, Some(VolumeNote::Refused(VolumeReason::NotSupported, _))));
        let trouble = play.memory.trouble().unwrap();
        assert_eq!(trouble.kind, TroubleKind::DeletesFailing);
        assert!(trouble.words.contains("CREATE_DELETE_VOLUME"), "{}", trouble.words);
    }
    assert!(play.take_done().is_empty());
    play.cluster.driver.capabilities.create_delete_volume = true;
    play.does("read volume, delete, patch");
    assert!(play.memory.trouble().is_none());
    // Nobody would take our finalizer off.
    let mut play = Play::of(Cluster::new());
    play.cluster.driver.capabilities.create_delete_volume = false;
    play.cluster.unprotect();
    assert_eq!(play.plain(), Verdict::Done);
    assert!(play.take_done().is_empty() && play.notes.is_empty());
}

#[test]
fn nothing_is_called_or_written_without_the_lease() {
    let mut play = Play::with(|cluster| cluster.leads = false);
    assert_eq!(play.plain(), Verdict::LeaseLost);
    play.did("read volume");
    play.cluster.leads = true;
    let lost = |lost| {
        move |step: &VolumeStep, _: &mut Cluster| {
            matches!(step, VolumeStep::Delete(_)).then(|| VolumeEvent::Deleted(Err(CallEnd::LeaseLost(lost))))
        }
    };
    for (lease, known) in [
        (LeaseLost::NotStarted, Deletion::NotDeleted),
        (LeaseLost::Cancelled, Deletion::Uncertain),
    ] {
        assert_eq!(play.attempt(lost(lease)), Verdict::LeaseLost);
        assert_eq!(VolumeAttempt::new(play.memory.clone()).deletion(), known);
    }
}

#[test]
fn a_missing_secret_is_told_and_one_that_may_not_be_read_is_waited_for() {
    let answer = |status: u16| {
        move |step: &VolumeStep, _: &mut Cluster| {
            let error = ApiError {
                status: Some(status),
                ..error(ApiErrorKind::of_status(status))
            };
            matches!(step, VolumeStep::Secret(_)).then(|| VolumeEvent::SecretRead(Err(error)))
        }
    };
    let mut play = Play::of(with_secret());
    assert_eq!(play.attempt(answer(404)), Verdict::Done);
    play.did("secret, read volume, delete, remove, patch");
    assert!(play.is_told(|note| matches!(note, VolumeNote::WithoutSecret(secret) if *secret.name == *"s")));
    assert!(play.is_told(|note| matches!(note, VolumeNote::Calls(call) if call.secret.is_none())));
    let mut play = Play::of(with_secret());
    assert!(matches!(play.attempt(answer(403)), Verdict::Waits(_)));
    play.did("secret");
    assert!(play.is_told(|note| matches!(note, VolumeNote::Refused(VolumeReason::SecretForbidden, _))));
}

#[test]
fn a_write_from_a_stale_copy_is_followed_by_a_live_read() {
    for (changes, ends, done) in [
        (2, true, "patch, read volume, patch, read volume, patch"),
        (
            9,
            false,
            "patch, read volume, patch, read volume, patch, read volume, patch",
        ),
    ] {
        let (mut play, mut left) = (Play::with(Cluster::unprotect), changes);
        let verdict = play.attempt(|step, cluster| {
            let is_stale = matches!(step, VolumeStep::Patch(_)) && left > 0;
            is_stale.then(|| {
                left -= 1;
                cluster.set("/status/message", "of another");
                VolumeEvent::Written(Err(error(ApiErrorKind::Stale)))
            })
        });
        assert_eq!(verdict == Verdict::Done, ends, "{verdict:?}");
        play.did(done);
    }
}

/// A ValidatingAdmissionPolicy without a reason answers 422, as the API server does to a write from a stale copy: the read shows that it was
/// none.
#[test]
fn a_write_that_a_policy_denies_is_made_once_in_an_attempt() {
    let protects = Play::with(Cluster::unprotect);
    let keeps = Play::with(|cluster| cluster.set("/spec/persistentVolumeReclaimPolicy", "Retain"));
    let mut releases = Play::of(Cluster::new());
    releases.attempt(patch_fails(ApiErrorKind::Unknown));
    releases.take_done();
    for (what, mut play) in [("protects", protects), ("keeps", keeps), ("releases", releases)] {
        for _ in 0..2 {
            play.notes.clear();
            let verdict = play.attempt(patch_fails(ApiErrorKind::Stale));
            assert!(matches!(verdict, Verdict::Failed(_)), "{what}: {verdict:?}");
            play.did("patch, read volume");
            let is_told = |note: &&VolumeNote| match note {
                VolumeNote::NotWritten(error) | VolumeNote::RequestFailed(error) => !error.is_transient(),
                _ => false,
            };
            assert_eq!(play.notes.iter().filter(is_told).count(), 1, "{what}: {:?}", play.notes);
        }
    }
}

/// A webhook that undoes what is written.
#[test]
fn writes_that_are_not_kept_end_the_attempt() {
    let mut play = Play::of(Cluster::new());
    let swallowed = |step: &VolumeStep, cluster: &mut Cluster| {
        matches!(step, VolumeStep::Remove(_)).then(|| VolumeEvent::Written(Ok(cluster.shown())))
    };
    assert!(matches!(play.attempt(swallowed), Verdict::Failed(_)));
    assert!(play.take_done().len() <= 32);
}

#[test]
fn a_volume_that_was_never_bound_waits_for_a_person() {
    let mut play = Play::with(|cluster| cluster.set("/status/phase", "Available"));
    play.cluster.delete();
    play.plain();
    assert_eq!(play.plain(), Verdict::Rest(Duration::from_mins(10)));
    assert_eq!(play.waits(), [VolumeReason::NeedsDecision]);
    play.cluster.decide();
    assert_eq!(play.plain(), Verdict::Done);
    assert!(play.take_done().contains(&"delete"));
}

/// A person takes a Released PersistentVolume back: kube-controller-manager has not written Available yet.
#[test]
fn one_whose_claim_was_taken_off_is_free_again() {
    for claim in [
        json!(null),
        json!({"namespace": "web", "name": "data"}),
        json!({"namespace": "web", "name": "data", "uid": ""}),
    ] {
        for phase in ["Released", "Failed"] {
            let mut play = Play::of(Cluster::new());
            play.cluster.set("/status/phase", phase);
            play.cluster.set("/spec/claimRef", claim.clone());
            assert_eq!(play.plain(), Verdict::Done, "{phase} {claim}");
            assert!(play.take_done().is_empty());
        }
    }
}

/// Nobody knows what it was left for: a sidecar has never deleted it.
#[test]
fn one_that_no_provisioner_made_or_protected_waits_for_a_person() {
    let mut play = Play::with(|cluster| cluster.set("/metadata/annotations", json!({})));
    play.cluster
        .set("/metadata/finalizers", json!(["kubernetes.io/pv-protection"]));
    for phase in ["Released", "Failed"] {
        play.cluster.set("/status/phase", phase);
        assert_eq!(play.plain(), Verdict::Rest(Duration::from_mins(10)));
    }
    let waits = VolumeNote::Waits(VolumeReason::NeedsDecision, String::new());
    assert_eq!(play.notes, [waits]);
    assert!(play.take_done().is_empty());
    play.cluster.decide();
    play.cluster.set("/status/phase", "Released");
    assert_eq!(play.plain(), Verdict::Done);
    assert!(play.take_done().contains(&"delete"));
}

/// Deleted before kube-controller-manager has bound it: a person decides, and its claim has to go as well. A claim that is there may have it
/// by the time of the call.
#[test]
fn one_that_was_deleted_before_it_was_bound_goes_when_a_person_says_so_and_its_claim_is_gone() {
    for phase in ["Pending", "Available"] {
        let mut play = Play::with(|cluster| cluster.set("/status/phase", phase));
        play.cluster.delete();
        play.cluster.cached_claim = OwningClaim::Cached;
        play.cluster.claim = Some(UID);
        play.plain();
        assert_eq!(play.waits(), [VolumeReason::NeedsDecision]);
        play.cluster.decide();
        play.plain();
        assert!(!play.take_done().contains(&"delete"), "{phase}");
        let wanted = [VolumeReason::NeedsDecision, VolumeReason::ReleasedWhileBound];
        assert_eq!(play.waits(), wanted);
        // The cache alone is not believed: a claim that was made a moment ago is not in it yet.
        play.cluster.cached_claim = OwningClaim::NotCached;
        play.plain();
        assert!(!play.take_done().contains(&"delete"), "{phase}");
        play.cluster.claim = None;
        assert_eq!(play.plain(), Verdict::Done, "{phase}");
        assert!(play.take_done().contains(&"delete"));
    }
}

/// A webhook that puts our finalizer back.
#[test]
fn a_release_that_is_not_kept_ends_the_attempt_and_no_call_is_repeated() {
    let mut play = Play::of(Cluster::new());
    let back = |step: &VolumeStep, cluster: &mut Cluster| {
        let VolumeStep::Patch(_) = step else { return None };
        cluster.set("/metadata/labels", json!({"a": "b"}));
        Some(VolumeEvent::Written(Ok(cluster.shown())))
    };
    for _ in 0..3 {
        assert!(matches!(play.attempt(back), Verdict::Failed(_)));
    }
    let calls = play.take_done().into_iter().filter(|step| *step == "delete");
    assert_eq!(calls.count(), 1);
    assert!(!play.is_told(|note| *note == VolumeNote::Released));
    assert_eq!(play.plain(), Verdict::Done);
    assert!(play.cluster.volume.is_none());
}

/// Somebody else took the last finalizer off, or our answer was lost.
#[test]
fn one_that_is_gone_after_its_volume_is_told_as_released() {
    let mut play = Play::of(Cluster::new());
    let lost = |step: &VolumeStep, cluster: &mut Cluster| {
        let VolumeStep::Patch(_) = step else { return None };
        cluster.volume = None;
        Some(VolumeEvent::Written(Err(error(ApiErrorKind::Unknown))))
    };
    play.attempt(lost);
    play.notes.clear();
    let mut attempt = VolumeAttempt::new(play.memory.clone());
    let wanted = VolumeStep::End(Verdict::Done);
    assert_eq!(attempt.next(&play.cluster, VolumeEvent::Begin), wanted);
    assert_eq!(attempt.take_notes(), [VolumeNote::Released]);
    assert!(attempt.volume().is_some(), "what was released can be named");
}

#[test]
fn what_waits_for_lists_asks_less_and_less_often() {
    let mut play = Play::with(|cluster| cluster.cached_claim = OwningClaim::Unknown);
    let rests: Vec<Verdict> = (0..8).map(|_| play.plain()).collect();
    assert_eq!(rests[0], Verdict::Rest(Duration::from_millis(200)));
    assert_eq!(rests[2], Verdict::Rest(Duration::from_millis(800)));
    assert_eq!(rests[7], Verdict::Rest(Duration::from_secs(10)));
    play.cluster.cached_claim = OwningClaim::NotCached;
    assert_eq!(play.plain(), Verdict::Done);
}

/// The finalizer of a volume that is bound: nobody is told that a deletion failed.
#[test]
fn a_finalizer_that_cannot_be_put_on_is_no_failed_deletion() {
    let mut play = Play::with(Cluster::unprotect);
    let verdict = play.attempt(patch_fails(ApiErrorKind::Forbidden));
    assert!(matches!(verdict, Verdict::Failed(_)), "{verdict:?}");
    assert!(matches!(play.notes[..], [VolumeNote::NotWritten(_)]));
    // That of a volume of another driver is not put on.
    let mut play = Play::with(Cluster::unprotect);
    play.cluster.set("/spec/csi/driver", "other");
    play.does("");
}

/// The policy is kept by a role that begins nothing, and the write has it as its condition.
#[test]
fn a_policy_that_keeps_the_volume_is_a_condition_of_the_release() {
    let mut play = Play::of(Cluster::new());
    play.cluster.role = RolePhase::Disabled;
    play.cluster.set("/spec/persistentVolumeReclaimPolicy", "Retain");
    let mut late = None;
    play.attempt(|step, _| {
        let VolumeStep::Patch(write) = step else { return None };
        late = Some(write.body.clone());
        Some(VolumeEvent::Written(Err(error(ApiErrorKind::Unknown))))
    });
    play.cluster.set("/spec/persistentVolumeReclaimPolicy", "Delete");
    assert!(apply(play.cluster.volume.as_mut().unwrap(), &late.unwrap()).is_err());
}

/// An admission webhook puts the finalizer back, or takes it away: one write in an attempt, which is told.
#[test]
fn a_finalizer_that_is_not_kept_is_written_once_in_an_attempt() {
    let ignored = |step: &VolumeStep, cluster: &mut Cluster| {
        let is_patch = matches!(step, VolumeStep::Patch(_));
        is_patch.then(|| VolumeEvent::Written(Ok(cluster.shown())))
    };
    let protect: (&str, Value) = ("/metadata/finalizers", json!(["kubernetes.io/pv-protection"]));
    let retain = ("/spec/persistentVolumeReclaimPolicy", json!("Retain"));
    for (pointer, value) in [protect, retain] {
        let mut cluster = Cluster::new();
        cluster.set("/status/phase", "Bound");
        cluster.set(pointer, value);
        let mut play = Play::of(cluster);
        assert!(matches!(play.attempt(ignored), Verdict::Failed(_)), "{pointer}");
        assert_eq!(play.take_done(), ["patch"], "{pointer}");
    }
}

/// A person puts the finalizer back, or takes it off, right after our write, and the watch is faster than the answer: the cache shows what
/// came after it.
#[test]
fn a_finalizer_that_somebody_changes_before_the_answer_was_written() {
    let protect: (&str, Value) = ("/metadata/finalizers", json!(["kubernetes.io/pv-protection"]));
    let retain = ("/spec/persistentVolumeReclaimPolicy", json!("Retain"));
    for (pointer, value) in [protect, retain] {
        let mut cluster = Cluster::new();
        cluster.set("/status/phase", "Bound");
        cluster.set(pointer, value);
        let (mut play, mut edits) = (Play::of(cluster), 1);
        play.attempt(|step, cluster| {
            let is_edited = matches!(step, VolumeStep::Patch(_)) && std::mem::take(&mut edits) > 0;
            let before = cluster.volume.clone().filter(|_| is_edited)?;
            let answer = cluster.answer(step.clone());
            cluster.volume = Some(before);
            Some(answer)
        });
        let is_refused = |note: &VolumeNote| matches!(note, VolumeNote::NotWritten(_) | VolumeNote::RequestFailed(_));
        assert!(!play.is_told(is_refused), "{pointer}: {:?}", play.notes);
        play.did("patch, patch");
    }
}

/// The same after the volume is deleted: the finalizer goes again, and the driver is not called again.
#[test]
fn a_finalizer_that_comes_back_before_the_answer_is_taken_off_again_without_a_call() {
    let mut cluster = Cluster::new();
    let ours = "external-provisioner.volume.kubernetes.io/finalizer";
    let finalizers = json!([ours, "kubernetes.io/pv-protection"]);
    cluster.set("/metadata/finalizers", finalizers.clone());
    cluster.delete();
    let (mut play, mut edits) = (Play::of(cluster), 1);
    play.attempt(|step, cluster| {
        let is_edited = matches!(step, VolumeStep::Patch(_)) && std::mem::take(&mut edits) > 0;
        is_edited.then(|| {
            let answer = cluster.answer(step.clone());
            cluster.set("/metadata/finalizers", finalizers.clone());
            answer
        })
    });
    let done = play.take_done();
    assert_eq!(done.iter().filter(|step| **step == "delete").count(), 1, "{done:?}");
    assert_eq!(done.iter().filter(|step| **step == "patch").count(), 2, "{done:?}");
    let is_released = |note: &&VolumeNote| matches!(note, VolumeNote::Released);
    assert_eq!(play.notes.iter().filter(is_released).count(), 1);
}

/// The contents of a Secret may be what the driver refuses, or that it is not there.
#[test]
fn a_refused_call_waits_for_its_secret() {
    let secret = |code: i32, is_missing: bool| {
        let mut play = Play::of(with_secret());
        play.attempt(|step, cluster| match step {
            VolumeStep::Secret(_) if is_missing => Some(VolumeEvent::SecretRead(Err(error(ApiErrorKind::NotFound)))),
            step => delete_fails(code)(step, cluster),
        });
        // A look that makes no call forgets nothing.
        play.cluster.attached_to = Some("n1");
        play.plain();
        let attempt = VolumeAttempt::new(play.memory.clone());
        attempt.needed_secret().map(|secret| secret.name.clone())
    };
    for is_missing in [false, true] {
        for code in [3, 9, 16] {
            assert_eq!(secret(code, is_missing).as_deref(), Some("s"), "{code} {is_missing}");
        }
        assert_eq!(secret(14, is_missing), None, "{is_missing}");
    }
}

/// The driver gave the ID out again, for a claim whose PersistentVolume is not saved yet.
#[test]
fn a_volume_whose_id_was_answered_for_a_claim_is_not_deleted() {
    let mut play = Play::with(|cluster| cluster.is_created = true);
    assert!(matches!(play.plain(), Verdict::Rest(_)));
    play.did("read volume");
    let is_told = |note: &VolumeNote| matches!(note, VolumeNote::Waits(VolumeReason::HandleShared, ..));
    assert!(play.notes.iter().any(is_told), "{:?}", play.notes);
    play.cluster.is_created = false;
    play.does(WHOLE);
}

/// A request that is refused once is told; what the PersistentVolume waits for is told again after it.
#[test]
fn what_a_volume_waits_for_is_told_again_after_a_refusal() {
    let mut play = Play::of(Cluster::new());
    (play.cluster.cached_claim, play.cluster.claim) = (OwningClaim::Cached, Some(UID));
    let waits = |play: &Play| {
        let told = play.notes.iter().filter(|note| matches!(note, VolumeNote::Waits(..)));
        told.count()
    };
    play.plain();
    assert_eq!(waits(&play), 1);
    let refused = |step: &VolumeStep, _: &mut Cluster| {
        let read = matches!(step, VolumeStep::ReadClaim(_));
        read.then(|| VolumeEvent::ClaimRead(Err(error(ApiErrorKind::Forbidden))))
    };
    play.attempt(refused);
    play.plain();
    assert_eq!(waits(&play), 2);
}
