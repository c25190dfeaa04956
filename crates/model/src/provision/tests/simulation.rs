//! One claim, its PersistentVolume, the driver and kube-controller-manager over time, with faults: crashes, answers that are lost, writes
//! that arrive late, watches that lag. At the end nothing is lost, and nothing is there twice.

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};
use std::collections::BTreeMap;

use super::builders::{ClaimWorld, MARKER, NAME, UID, VolumeWorld, claim_of, volume_of, volume_world, world};
use super::patches::apply;
use crate::decide::Failure;
use crate::provision::{
    AnsweredVolume, ClaimAction, CreatePlan, Creation, Deletion, LeakProtection, MarkerState, OrphanVolumePolicy,
    OwningClaim, ProvisionedVolumeAction, created, delete_answer, undone,
};

/// What others do, and what happens to an effect of ours.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Event {
    /// An attempt for the claim, with a fault at the effect of this number.
    Claim(usize, Fault),
    /// An attempt for the PersistentVolume.
    Volume(usize, Fault),
    /// The watches catch up.
    Sync,
    /// That of claims alone does.
    SyncClaim,
    /// A write that was under way at a crash arrives.
    LateWrite,
    /// kube-controller-manager does what is to do.
    Controller,
    UserDeletesClaim,
    UserDeletesVolume,
    BoundElsewhere,
    /// The PersistentVolume is marked Released while its claim is bound.
    ReleasedByMistake,
    Attach,
    Detach,
    ToRetain,
    ClassGone,
    ClassBack,
    Crash,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// It is done, and its answer is lost.
    AnswerLost,
    /// It is not done, and that is not known.
    Lost,
    /// It is refused: nothing is done.
    Refused,
    /// The process ends before it.
    CrashBefore,
    /// It is done, and the process ends before its answer.
    CrashAfter,
    /// The process ends, and a write arrives later.
    Late,
}

#[derive(Clone, Debug)]
enum LateWrite {
    Claim(Value),
    Volume(Value),
    Post(Value),
}

/// An operator that does one thing wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mistake {
    None,
    /// Takes a time-out for a refusal.
    TimeoutIsFinal,
    /// Does not read the marker at a start.
    ForgetsAtStart,
    /// Obeys the marker of a process that has ended.
    NoOwnMarker,
    /// Undoes a volume without a live look at its PersistentVolume.
    NoLookBeforeUndo,
    /// Believes the cache that a claim is gone.
    NoLookAtClaim,
    /// Does not look at VolumeAttachments.
    NoLookAtAttachments,
    /// Calls before the marker is on.
    NoMarker,
    /// Takes an answer that was lost to the deletion of a volume for OK.
    DeletedWithoutAnswer,
}

/// The world, and the memory of the process.
#[allow(clippy::struct_excessive_bools, reason = "each is one thing that may be so")]
struct Simulation {
    claim: Option<Value>,
    volume: Option<Value>,
    driver: BTreeMap<String, String>,
    made: usize,
    attached: bool,
    /// A person has decided to keep the volume, and may delete its PersistentVolume.
    retain: bool,
    class: bool,
    late: Vec<LateWrite>,
    /// What the watches show.
    seen_claim: Option<Value>,
    seen_volume: Option<Value>,
    /// Memory.
    last_claim: Value,
    creation: Option<Creation>,
    marker_is_own: bool,
    saved_is_live: bool,
    deletion: Deletion,
    process: usize,
    calls: usize,
    mistake: Mistake,
}

/// That an attempt goes on, or the process has ended.
#[derive(PartialEq)]
enum Next {
    Again,
    End,
}

impl Simulation {
    fn new() -> Self {
        let claim = world().claim;
        Self {
            seen_claim: Some(claim.clone()),
            last_claim: claim.clone(),
            claim: Some(claim),
            volume: None,
            driver: BTreeMap::new(),
            made: 0,
            attached: false,
            retain: false,
            class: true,
            late: Vec::new(),
            seen_volume: None,
            creation: None,
            marker_is_own: false,
            saved_is_live: false,
            deletion: Deletion::NotDeleted,
            process: 0,
            calls: 0,
            mistake: Mistake::None,
        }
    }

    fn sync(&mut self) {
        self.seen_claim = self.claim.clone();
        self.seen_volume = self.volume.clone();
        if let Some(claim) = &self.claim {
            self.last_claim = claim.clone();
        }
    }

    fn crash(&mut self) {
        self.process += 1;
        self.creation = None;
        self.marker_is_own = false;
        self.saved_is_live = false;
        self.deletion = Deletion::NotDeleted;
        self.sync();
    }

    fn collect(&mut self) {
        let is_gone = |object: &Value| {
            let list = object["metadata"]["finalizers"].as_array().map_or(0, Vec::len);
            !object["metadata"]["deletionTimestamp"].is_null() && list == 0
        };
        self.claim = self.claim.take().filter(|claim| !is_gone(claim));
        self.volume = self.volume.take().filter(|volume| !is_gone(volume));
    }

    fn patch_claim(&mut self, body: &Value) -> Result<(), String> {
        apply(self.claim.as_mut().ok_or("not found")?, body)?;
        self.collect();
        Ok(())
    }

    fn patch_volume(&mut self, body: &Value) -> Result<(), String> {
        apply(self.volume.as_mut().ok_or("not found")?, body)?;
        self.collect();
        Ok(())
    }

    fn post(&mut self, body: &Value) -> Result<(), String> {
        if self.volume.is_some() {
            return Err("already exists".to_owned());
        }
        let mut volume = body.clone();
        volume["metadata"]["uid"] = json!(format!("pv-{}", self.made));
        volume["status"] = json!({"phase": "Pending"});
        self.volume = Some(volume);
        Ok(())
    }

    /// A write with its fault; whether its answer arrived, and whether the process goes on.
    fn write(&mut self, write: LateWrite, fault: Fault) -> (Option<Result<(), String>>, Next) {
        match fault {
            Fault::CrashBefore | Fault::Late => {
                if fault == Fault::Late {
                    self.late.push(write);
                }
                self.crash();
                return (None, Next::End);
            }
            Fault::Lost | Fault::Refused => return (None, Next::End),
            Fault::None | Fault::AnswerLost | Fault::CrashAfter => {}
        }
        let done = match &write {
            LateWrite::Claim(body) => self.patch_claim(body),
            LateWrite::Volume(body) => self.patch_volume(body),
            LateWrite::Post(body) => self.post(body),
        };
        match fault {
            Fault::CrashAfter => {
                self.crash();
                (None, Next::End)
            }
            Fault::AnswerLost => (None, Next::End),
            // An answer goes into the cache, and after an error the object is read again.
            _ => {
                self.sync();
                (Some(done), Next::Again)
            }
        }
    }

    fn claim_world(&mut self) -> ClaimWorld {
        let mut observed = world();
        observed.gone = self.seen_claim.is_none();
        observed.claim = self.seen_claim.clone().unwrap_or_else(|| self.last_claim.clone());
        let has_marker = MarkerState::of(&claim_of(&observed.claim), super::builders::DRIVER).is_own();
        let is_read = self.mistake != Mistake::ForgetsAtStart;
        let at_start = || Creation::of_marker(has_marker && !observed.gone && is_read);
        let saved = self.seen_volume.as_ref().map(volume_of);
        let creation = self.creation.take().unwrap_or_else(at_start);
        let creation = creation.revised(&claim_of(&observed.claim), observed.gone, saved.as_ref(), None);
        self.creation = Some(creation.clone());
        observed.creation = Some(creation);
        observed.policy.identity = format!("process-{}", self.process).into();
        observed.saved = self.seen_volume.clone();
        observed.saved_is_live = self.saved_is_live || self.mistake == Mistake::NoLookBeforeUndo;
        observed.marker_is_own = self.marker_is_own || self.mistake == Mistake::NoOwnMarker;
        if self.mistake == Mistake::NoMarker {
            observed.policy.leak_protection = LeakProtection::Never;
        }
        if !self.class {
            observed.class = None;
        }
        observed
    }

    /// CreateVolume of the driver, which is idempotent by name.
    fn call_create(&mut self, plan: &CreatePlan, fault: Fault) -> Option<Result<Option<AnsweredVolume>, Failure>> {
        self.calls += 1;
        let marked = self.claim.as_ref().filter(|claim| claim["metadata"]["uid"] == UID);
        let is_marked = |claim: &Value| {
            claim["metadata"]["finalizers"]
                .as_array()
                .is_some_and(|list| list.contains(&json!(MARKER)))
        };
        assert!(
            marked.is_some_and(is_marked),
            "1: a call without a marker on the object"
        );
        assert_eq!(&*plan.name, NAME);
        let failed = |code| {
            Some(Err(Failure {
                message: String::new(),
                code: Some(code),
            }))
        };
        match fault {
            Fault::CrashBefore => {
                self.crash();
                return None;
            }
            Fault::Lost => return failed(4),
            Fault::Refused => {
                // A driver that says so has nothing.
                return if self.driver.values().any(|name| name == NAME) {
                    failed(4)
                } else {
                    failed(11)
                };
            }
            _ => {}
        }
        let existing = self
            .driver
            .iter()
            .find(|(_, name)| *name == NAME)
            .map(|(handle, _)| handle.clone());
        let handle = existing.unwrap_or_else(|| {
            self.made += 1;
            let handle = format!("vol-{}", self.made);
            self.driver.insert(handle.clone(), NAME.to_owned());
            handle
        });
        match fault {
            Fault::CrashAfter | Fault::Late => {
                self.crash();
                None
            }
            Fault::AnswerLost => failed(14),
            _ => Some(Ok(Some(AnsweredVolume {
                handle: handle.into(),
                ..AnsweredVolume::default()
            }))),
        }
    }

    /// DeleteVolume of the driver: its code, where there is a status; an error when the process has ended.
    fn call_delete(&mut self, handle: &str, fault: Fault) -> Result<Option<i32>, ()> {
        self.calls += 1;
        match fault {
            Fault::CrashBefore => {
                self.crash();
                return Err(());
            }
            Fault::Lost => return Ok(Some(4)),
            Fault::Refused => return Ok(Some(9)),
            _ => {}
        }
        self.driver.remove(handle);
        match fault {
            Fault::CrashAfter | Fault::Late => {
                self.crash();
                Err(())
            }
            Fault::AnswerLost => Ok(None),
            _ => Ok(Some(0)),
        }
    }

    fn claim_attempt(&mut self, faulty: usize, fault: Fault) {
        for step in 0..12 {
            let fault = if step == faulty { fault } else { Fault::None };
            if self.claim_step(fault) == Next::End {
                return;
            }
        }
        panic!("an attempt does not end");
    }

    fn claim_step(&mut self, fault: Fault) -> Next {
        let observed = self.claim_world();
        let before = observed.creation.clone().unwrap();
        match observed.decide().action {
            ClaimAction::Mark(write) => {
                let (answer, next) = self.write(LateWrite::Claim(write.body), fault);
                self.marker_is_own |= answer == Some(Ok(()));
                next
            }
            ClaimAction::Unmark(write) => {
                let (answer, next) = self.write(LateWrite::Claim(write.body), fault);
                if answer == Some(Ok(())) {
                    self.creation = Some(Creation::Never);
                    self.marker_is_own = false;
                }
                next
            }
            ClaimAction::ReadVolume(_) => {
                self.seen_volume = self.volume.clone();
                self.saved_is_live = true;
                Next::Again
            }
            ClaimAction::Create(plan) => {
                let Some(answer) = self.call_create(&plan, fault) else {
                    return Next::End;
                };
                let answer = answer.as_ref().cloned();
                let settled = created(&before, &plan, answer, &claim_of(&observed.claim));
                let is_created = matches!(settled.creation, Creation::Created(_));
                self.creation = Some(match self.mistake {
                    Mistake::TimeoutIsFinal if settled.creation.is_uncertain() => Creation::Refused,
                    _ => settled.creation,
                });
                self.saved_is_live = false;
                if is_created { Next::Again } else { Next::End }
            }
            ClaimAction::Save(body) => self.write(LateWrite::Post(body), fault).1,
            ClaimAction::Undo(plan) => {
                if let Some(volume) = &self.volume {
                    assert_ne!(
                        volume["spec"]["csi"]["volumeHandle"],
                        json!(&*plan.handle),
                        "4: undone under its PersistentVolume"
                    );
                }
                let Creation::Created(volume) = before else { panic!() };
                let Ok(code) = self.call_delete(&plan.handle, fault) else {
                    return Next::End;
                };
                self.creation = Some(undone(&volume, code, OrphanVolumePolicy::Retry));
                Next::Again
            }
            ClaimAction::Ignore | ClaimAction::Wait(_) | ClaimAction::Refuse(_) => Next::End,
            other => panic!("{other:?}"),
        }
    }

    #[allow(clippy::too_many_lines, reason = "one arm for each action")]
    fn volume_attempt(&mut self, faulty: usize, fault: Fault) {
        let (mut is_live, mut claim) = (false, None);
        for step in 0..12 {
            let Some(volume) = self.seen_volume.clone() else { return };
            let fault = if step == faulty { fault } else { Fault::None };
            let mut observed: VolumeWorld = volume_world();
            observed.volume = volume;
            observed.is_live = is_live;
            observed.deletion = self.deletion;
            let looks = self.mistake != Mistake::NoLookAtAttachments;
            observed.attached_to = (self.attached && looks).then(|| "n1".to_owned());
            let cached = if self.seen_claim.is_some() && self.mistake != Mistake::NoLookAtClaim {
                OwningClaim::Cached
            } else {
                OwningClaim::NotCached
            };
            observed.claim = claim.unwrap_or(cached);
            match observed.decide().action {
                ProvisionedVolumeAction::ReadClaim(_) => {
                    claim = Some(if self.claim.is_some() {
                        OwningClaim::Live
                    } else {
                        OwningClaim::LiveGone
                    });
                }
                ProvisionedVolumeAction::ReadVolume => {
                    is_live = self.seen_volume == self.volume;
                    self.seen_volume = self.volume.clone();
                }
                ProvisionedVolumeAction::Protect(write) | ProvisionedVolumeAction::Release(write) => {
                    if self.write(LateWrite::Volume(write.body), fault).1 == Next::End {
                        return;
                    }
                }
                ProvisionedVolumeAction::Delete(plan) => {
                    assert!(
                        self.claim.is_none() && !self.attached,
                        "4: deleted under its claim, or attached"
                    );
                    let Ok(code) = self.call_delete(&plan.handle, fault) else {
                        return;
                    };
                    self.deletion = match (code, self.mistake) {
                        (None | Some(4), Mistake::DeletedWithoutAnswer) => Deletion::Deleted,
                        _ => delete_answer(code, OrphanVolumePolicy::Retry),
                    };
                    if self.deletion != Deletion::Deleted {
                        return;
                    }
                }
                ProvisionedVolumeAction::Remove { uid } => {
                    let is_same = self
                        .volume
                        .as_ref()
                        .is_some_and(|volume| volume["metadata"]["uid"] == json!(&*uid));
                    if is_same && !matches!(fault, Fault::CrashBefore | Fault::Lost | Fault::Refused | Fault::Late) {
                        self.delete_volume();
                    }
                    match fault {
                        Fault::None => self.sync(),
                        Fault::CrashBefore | Fault::CrashAfter | Fault::Late => return self.crash(),
                        _ => return,
                    }
                }
                _ => return,
            }
        }
        panic!("an attempt does not end");
    }

    fn delete_volume(&mut self) {
        if let Some(volume) = &mut self.volume {
            volume["metadata"]["deletionTimestamp"] = json!("2026-01-02T03:00:00Z");
        }
        self.collect();
    }

    /// Binds, marks Released, and takes `pvc-protection` off.
    fn controller(&mut self) {
        if let Some(claim) = &mut self.claim {
            if !claim["metadata"]["deletionTimestamp"].is_null()
                && let Some(list) = claim["metadata"]["finalizers"].as_array_mut()
            {
                list.retain(|entry| entry == MARKER);
            }
            if let Some(volume) = &mut self.volume
                && volume["spec"]["claimRef"]["uid"] == UID
                && volume["metadata"]["deletionTimestamp"].is_null()
                && claim["spec"]["volumeName"].is_null()
                && claim["metadata"]["deletionTimestamp"].is_null()
            {
                claim["spec"]["volumeName"] = json!(NAME);
                claim["status"]["phase"] = json!("Bound");
                volume["status"]["phase"] = json!("Bound");
            }
        }
        self.collect();
        let bound = self
            .claim
            .as_ref()
            .is_some_and(|claim| claim["spec"]["volumeName"] == NAME || claim["spec"]["volumeName"].is_null());
        if let Some(volume) = &mut self.volume
            && !bound
        {
            volume["status"]["phase"] = json!("Released");
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Claim(step, fault) => self.claim_attempt(step, fault),
            Event::Volume(step, fault) => self.volume_attempt(step, fault),
            Event::Sync => self.sync(),
            Event::SyncClaim => {
                let volume = self.seen_volume.take();
                self.sync();
                self.seen_volume = volume;
            }
            Event::LateWrite => match self.late.pop() {
                Some(LateWrite::Claim(body)) => drop(self.patch_claim(&body)),
                Some(LateWrite::Volume(body)) => drop(self.patch_volume(&body)),
                Some(LateWrite::Post(body)) => drop(self.post(&body)),
                None => {}
            },
            Event::Controller => self.controller(),
            Event::UserDeletesClaim => {
                if let Some(claim) = &mut self.claim {
                    claim["metadata"]["deletionTimestamp"] = json!("2026-01-02T03:00:00Z");
                }
            }
            // kubernetes.io/pv-protection holds it while it is bound. Who deletes that of a claim which waits for it has to delete the claim
            // as well: it is told, and not played here.
            Event::UserDeletesVolume => {
                let waits = |claim: &Value| {
                    claim["spec"]["volumeName"].is_null() && claim["metadata"]["deletionTimestamp"].is_null()
                };
                let is_waited_for = self.claim.as_ref().is_some_and(waits);
                if !is_waited_for
                    && self
                        .volume
                        .as_ref()
                        .is_some_and(|volume| volume["status"]["phase"] == "Released")
                {
                    self.delete_volume();
                }
            }
            Event::BoundElsewhere => {
                if let Some(claim) = &mut self.claim
                    && claim["spec"]["volumeName"].is_null()
                {
                    claim["spec"]["volumeName"] = json!("static");
                    claim["status"]["phase"] = json!("Bound");
                }
            }
            Event::ReleasedByMistake => {
                if let (Some(_), Some(volume)) = (&self.claim, &mut self.volume) {
                    volume["status"]["phase"] = json!("Released");
                }
            }
            Event::Attach => self.attached |= self.claim.is_some() && self.volume.is_some(),
            Event::Detach => self.attached = false,
            Event::ToRetain => {
                if let Some(volume) = &mut self.volume {
                    self.retain = true;
                    volume["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain");
                }
            }
            Event::ClassGone => self.class = false,
            Event::ClassBack => self.class = true,
            Event::Crash => self.crash(),
        }
    }

    /// Faults stop, and everybody does what is to do.
    fn settle(&mut self) {
        self.class = true;
        self.attached = false;
        while let Some(write) = self.late.pop() {
            self.late.push(write);
            self.happen(Event::LateWrite);
        }
        for _ in 0..12 {
            self.sync();
            self.claim_attempt(99, Fault::None);
            self.controller();
            self.sync();
            self.volume_attempt(99, Fault::None);
        }
        let calls = self.calls;
        self.sync();
        self.claim_attempt(99, Fault::None);
        assert_eq!(self.calls, calls, "13: calls follow");
    }

    fn check(&self) -> Result<(), TestCaseError> {
        prop_assert!(self.driver.len() <= 1, "2: two volumes {:?}", self.driver);
        let handle = self
            .volume
            .as_ref()
            .map(|volume| volume["spec"]["csi"]["volumeHandle"].as_str().unwrap().to_owned());
        for volume in self.driver.keys() {
            let is_named = Some(volume) == handle.as_ref();
            prop_assert!(is_named || self.retain, "a volume that no PersistentVolume names");
        }
        if let Some(claim) = &self.claim {
            let wanted = claim["metadata"]["deletionTimestamp"].is_null();
            prop_assert!(wanted, "a claim in deletion is held: {claim}");
            let list = claim["metadata"]["finalizers"].to_string();
            prop_assert!(!list.contains(MARKER), "13: a marker is left: {claim}");
            if claim["spec"]["volumeName"] == NAME {
                let is_kept = handle.is_some_and(|handle| self.driver.contains_key(&handle));
                prop_assert!(is_kept || self.retain, "a claim lost its volume");
            }
        }
        Ok(())
    }
}

fn faults() -> impl Strategy<Value = Fault> {
    select(vec![
        Fault::None,
        Fault::None,
        Fault::AnswerLost,
        Fault::Lost,
        Fault::Refused,
        Fault::CrashBefore,
        Fault::CrashAfter,
        Fault::Late,
    ])
}

fn events() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0..6_usize, faults()).prop_map(|(step, fault)| Event::Claim(step, fault)),
        3 => (0..8_usize, faults()).prop_map(|(step, fault)| Event::Volume(step, fault)),
        6 => select(vec![Event::Sync, Event::SyncClaim, Event::Controller, Event::LateWrite, Event::Crash]),
        3 => select(vec![
            Event::UserDeletesClaim, Event::UserDeletesVolume, Event::BoundElsewhere, Event::Attach, Event::Detach, Event::ToRetain,
            Event::ClassGone, Event::ClassBack, Event::ReleasedByMistake,
        ]),
    ]
}

fn play(events: &[Event], mistake: Mistake) -> Result<(), TestCaseError> {
    let mut simulation = Simulation::new();
    simulation.mistake = mistake;
    for event in events {
        simulation.happen(*event);
    }
    simulation.settle();
    simulation.check()
}

/// Each of them is caught by a history in which the right operator loses nothing, so that the properties say something.
#[test]
fn operators_that_do_one_thing_wrong_are_caught() {
    use Event::{Attach, Claim, Controller, Crash, ReleasedByMistake, Sync, SyncClaim, UserDeletesClaim, Volume};
    const DONE: usize = 99;
    let bound = || vec![Claim(DONE, Fault::None), Controller, Sync, Claim(DONE, Fault::None)];
    let then = |mut events: Vec<Event>, more: &[Event]| {
        events.extend(more);
        events
    };
    let released = [UserDeletesClaim, Controller, Sync, Volume(1, Fault::Lost)];
    let late = [Crash, Claim(3, Fault::Late), Event::LateWrite, Claim(0, Fault::None)];
    let histories = [
        (
            Mistake::TimeoutIsFinal,
            vec![
                Claim(1, Fault::CrashAfter),
                UserDeletesClaim,
                Claim(1, Fault::AnswerLost),
            ],
        ),
        (
            Mistake::ForgetsAtStart,
            vec![Claim(2, Fault::Lost), UserDeletesClaim, Crash],
        ),
        (
            Mistake::NoOwnMarker,
            then(vec![Claim(1, Fault::AnswerLost), UserDeletesClaim], &late),
        ),
        (
            Mistake::NoLookBeforeUndo,
            vec![
                Claim(2, Fault::AnswerLost),
                UserDeletesClaim,
                SyncClaim,
                Claim(DONE, Fault::None),
            ],
        ),
        (
            Mistake::NoLookAtClaim,
            vec![Claim(0, Fault::None), ReleasedByMistake, Crash, Volume(0, Fault::None)],
        ),
        (Mistake::NoLookAtAttachments, then(then(bound(), &[Attach]), &released)),
        (Mistake::NoMarker, Vec::new()),
        (Mistake::DeletedWithoutAnswer, then(bound(), &released)),
    ];
    for (mistake, events) in histories {
        let wrong = std::panic::catch_unwind(|| play(&events, mistake).is_err());
        assert!(wrong.unwrap_or(true), "{mistake:?} is not caught by {events:?}");
        assert!(play(&events, Mistake::None).is_ok(), "{events:?}");
    }
}

proptest! {

    #[test]
    fn nothing_is_lost_and_nothing_is_there_twice(events in prop::collection::vec(events(), 0..25)) {
        play(&events, Mistake::None)?;
    }
}

#[test]
fn a_life_without_faults() {
    let mut simulation = Simulation::new();
    simulation.settle();
    assert_eq!(simulation.claim.as_ref().unwrap()["status"]["phase"], "Bound");
    assert_eq!((simulation.driver.len(), simulation.calls), (1, 1));
    simulation.happen(Event::UserDeletesClaim);
    simulation.settle();
    assert!(simulation.claim.is_none() && simulation.volume.is_none() && simulation.driver.is_empty());
    assert_eq!(simulation.calls, 2, "one DeleteVolume");
}
