//! What the states of a world of the provisioner are made of: versions of objects, writes, and the attempts of production. Each is kept
//! once and has a number. All of them are pure, so that each is asked once for the same input.

use std::time::Duration;

use csi_attacher_model::decide::Write;
use csi_attacher_model::decide::patch::{PatchType, WriteTarget};
use csi_attacher_model::provision::attempt::{ClaimAttempt, ClaimMemory, ClaimNote, ClaimStep, Verdict};
use csi_attacher_model::provision::deletion::{VolumeAttempt, VolumeMemory, VolumeStep};
use csi_attacher_model::provision::{Creation, LeakProtection, ProvisionPolicy, ProvisionerSecrets, patch};
use csi_attacher_model::{api, provision};
use serde_json::Value;

use super::Flaw;
use super::invariants::CREATION;
use super::objects::{Edit, Facts, Object, edited, name_of, next_version, number_in, slot_of};
use super::state::{CLAIM, Doing, GONE, Id, OWN, SECOND, SLOTS};
use super::view::{Answer, Asked, Event, View};
use crate::api_server;
use crate::hash::{FastMap, of_debug};

/// Values that have numbers; the first is that of the default.
struct Kept<T> {
    all: Vec<T>,
    numbers: FastMap<u128, u32>,
}

impl<T: std::fmt::Debug> Kept<T> {
    fn new() -> Self {
        Self {
            all: Vec::new(),
            numbers: FastMap::default(),
        }
    }

    fn number(&mut self, value: T) -> u32 {
        let fresh = self.all.len() as u32;
        let number = *self.numbers.entry(of_debug(&value)).or_insert(fresh);
        if number == fresh {
            self.all.push(value);
        }
        number
    }
}

/// What an attempt is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Glance {
    /// The attempt; for [`Event::Begin`] what is remembered.
    pub from: u32,
    pub event: Event,
    /// The UID of what the attempt is for.
    pub of: u8,
    /// The slot of that.
    pub slot: u8,
    /// The identity of the process.
    pub number: u8,
    pub shown: [Id; SLOTS],
    pub unlisted: u8,
    pub may_start: bool,
    /// Whether a claim's key in this process holds a volume: 1 for the first claim, 2 for the second one.
    pub held: u8,
    /// The PersistentVolume that a wrong operator takes for saved.
    pub believed: Id,
}

/// What it says.
#[derive(Clone, Copy, Debug)]
pub struct Advance {
    /// What it waits for now, and its number; none when it has ended.
    pub next: Option<(u32, Doing)>,
    /// What is remembered then; 0 is nothing.
    pub memory: u32,
    /// What it must not have done.
    pub violation: Option<&'static str>,
    /// The handle of a volume of which it told that it may be left, as the driver made two; 0 for none.
    pub told: u8,
}

/// Everything that has a number.
pub struct Universe {
    pub flaw: Flaw,
    objects: Kept<(usize, Value)>,
    read: Vec<Object>,
    facts: Vec<Facts>,
    writes: Kept<Write>,
    bodies: Kept<Value>,
    claim_memories: Kept<ClaimMemory>,
    claim_attempts: Kept<ClaimAttempt>,
    volume_memories: Kept<VolumeMemory>,
    volume_attempts: Kept<VolumeAttempt>,
    asked_of_claims: FastMap<Glance, Advance>,
    asked_of_volumes: FastMap<Glance, Advance>,
    edits: FastMap<(Id, Edit), Id>,
    patches: FastMap<(Id, u32), Option<Id>>,
}

impl Universe {
    pub fn new(flaw: Flaw) -> Self {
        let mut universe = Self {
            flaw,
            objects: Kept::new(),
            read: Vec::new(),
            facts: Vec::new(),
            writes: Kept::new(),
            bodies: Kept::new(),
            claim_memories: Kept::new(),
            claim_attempts: Kept::new(),
            volume_memories: Kept::new(),
            volume_attempts: Kept::new(),
            asked_of_claims: FastMap::default(),
            asked_of_volumes: FastMap::default(),
            edits: FastMap::default(),
            patches: FastMap::default(),
        };
        universe.claim_memories.number(ClaimMemory::default());
        universe.volume_memories.number(VolumeMemory::default());
        // That is no object.
        universe.object(super::state::ATTACHMENT, Value::Null);
        universe
    }

    /// The number of a version of an object.
    pub fn object(&mut self, slot: usize, value: Value) -> Id {
        let number = self.objects.number((slot, value.clone()));
        if number as usize == self.read.len() {
            let object = Object::read(slot, value);
            self.facts.push(object.facts());
            self.read.push(object);
        }
        Id::try_from(number).expect("a world has few versions")
    }

    /// A version of an object; none where there is none.
    pub fn get(&self, id: Id) -> Option<&Object> {
        (id != GONE).then(|| &self.read[usize::from(id)])
    }

    /// What the rules of the world look at; nothing holds of what is not there.
    pub fn facts(&self, id: Id) -> Option<Facts> {
        (id != GONE).then(|| self.facts[usize::from(id)])
    }

    pub fn body(&self, number: u32) -> &Value {
        &self.bodies.all[number as usize]
    }

    fn slot_of_object(&self, id: Id) -> usize {
        self.objects.all[usize::from(id)].0
    }

    fn stored(&mut self, before: Id, after: Value) -> Id {
        if api_server::is_gone(&after) {
            return GONE;
        }
        let slot = self.slot_of_object(before);
        let after = next_version(&self.objects.all[usize::from(before)].1, after);
        self.object(slot, after)
    }

    /// An object after what others do to it.
    pub fn edit(&mut self, id: Id, edit: Edit) -> Id {
        if let Some(known) = self.edits.get(&(id, edit)) {
            return *known;
        }
        let value = &self.objects.all[usize::from(id)].1;
        let after = edited(value, edit);
        let after = if after == *value { id } else { self.stored(id, after) };
        self.edits.insert((id, edit), after);
        after
    }

    /// An object after a patch of ours; none where the API server refuses it.
    pub fn patched(&mut self, id: Id, write: u32) -> Option<Id> {
        if let Some(known) = self.patches.get(&(id, write)) {
            return *known;
        }
        let value = self.objects.all[usize::from(id)].1.clone();
        let after = api_server::apply(&value, &self.writes.all[write as usize]).ok();
        let after = after.map(|after| if after == value { id } else { self.stored(id, after) });
        self.patches.insert((id, write), after);
        after
    }

    /// The number of a patch.
    pub fn write(&mut self, write: Write) -> u32 {
        self.writes.number(write)
    }

    pub fn shown_write(&self, write: u32) -> String {
        let operations = self.writes.all[write as usize]
            .body
            .as_array()
            .cloned()
            .unwrap_or_default();
        let words = operations
            .iter()
            .filter(|operation| operation["op"] != "test")
            .map(|operation| {
                let path = operation["path"].as_str().unwrap_or_default();
                let path = path.trim_start_matches("/metadata/");
                format!("{} {path}", operation["op"].as_str().unwrap_or_default())
            });
        words.collect::<Vec<_>>().join(", ")
    }

    /// Whether the key of a claim holds a volume, by what is remembered of it.
    pub fn memory_holds(&self, memory: u32) -> bool {
        self.claim_memories.all[memory as usize].holds_volume()
    }

    /// As [`Self::memory_holds`], while an attempt runs.
    pub fn attempt_holds(&self, attempt: u32) -> bool {
        self.claim_attempts.all[attempt as usize].memory().holds_volume()
    }

    /// What is known of the volume in an attempt, in words.
    pub fn creation(&self, attempt: u32) -> &'static str {
        let attempt = &self.claim_attempts.all[attempt as usize];
        attempt.creation().map_or("unknown", Creation::as_str)
    }

    pub fn needs_claim_work(&self, id: Id) -> bool {
        let claim = self.get(id).and_then(Object::claim);
        claim.is_some_and(|claim| provision::needs_claim_work(claim, &super::view::driver(self.flaw)))
    }

    pub fn needs_volume_work(&self, id: Id) -> bool {
        let volume = self.get(id).and_then(Object::volume);
        volume.is_some_and(|volume| provision::needs_volume_work(volume, &super::view::driver(self.flaw)))
    }

    /// Asks the attempt of a claim for its next step.
    pub fn ask_claim(&mut self, glance: Glance) -> Advance {
        if let Some(known) = self.asked_of_claims.get(&glance) {
            return *known;
        }
        let mut attempt = if glance.event == Event::Begin {
            let mut memory = self.claim_memories.all[glance.from as usize].clone();
            // Any time may have passed.
            memory.end_holds();
            ClaimAttempt::new(memory)
        } else {
            self.claim_attempts.all[glance.from as usize].clone()
        };
        let before = attempt.creation().cloned();
        let policy = policy(self.flaw, glance.number);
        let driver = super::view::driver(self.flaw);
        let view = View::new(self, &glance, &policy, &driver);
        let mut step = attempt.next(&view, glance.event.of_claim(self.flaw));
        if self.flaw == Flaw::NoLookBeforeUndo {
            while let ClaimStep::ReadVolume(_) = step {
                let gone = Event::Told(Asked::ReadVolume, Answer::NotFound);
                step = attempt.next(&view, gone.of_claim(self.flaw));
            }
        }
        let forgets = self.forgets(&glance, before.as_ref(), attempt.creation());
        let violation = forgets.then_some(CREATION);
        let told = attempt.take_notes().iter().find_map(|note| match note {
            ClaimNote::TwoVolumes { lost, .. } => Some(number_in(lost)),
            _ => None,
        });
        let told = told.unwrap_or(0);
        let memory = self.claim_memories.number(attempt.memory().clone());
        let doing = match step {
            ClaimStep::End(verdict) => {
                let memory = if verdict == Verdict::Done { 0 } else { memory };
                let advance = Advance {
                    next: None,
                    memory,
                    violation,
                    told,
                };
                self.asked_of_claims.insert(glance, advance);
                return advance;
            }
            ClaimStep::Create(_) if self.flaw == Flaw::UnmarksUncertain => self.unmark_instead(&attempt),
            step => self.doing_of_claim(step),
        };
        let number = self.claim_attempts.number(attempt);
        let advance = Advance {
            next: Some((number, doing)),
            memory,
            violation,
            told,
        };
        self.asked_of_claims.insert(glance, advance);
        advance
    }

    /// Whether an attempt forgets that there may be a volume. Only the answer of a call says that there is none, or a write of its own
    /// that took the marker off, or a PersistentVolume that names the volume; who knows of it by the marker alone forgets it with that.
    fn forgets(&self, glance: &Glance, before: Option<&Creation>, after: Option<&Creation>) -> bool {
        let Some(Creation::Uncertain(call)) = before else {
            return false;
        };
        let may_change = glance.event.is_answer_of_a_call() || glance.event.is_end_of_a_write();
        if may_change || after.is_some_and(Creation::is_uncertain) {
            return false;
        }
        let saved = self.facts(glance.shown[usize::from(glance.of)]);
        let is_saved = saved.is_some_and(|volume| volume.claim == glance.of) || glance.believed != GONE;
        let claim = self.facts(glance.shown[CLAIM]).filter(|claim| claim.uid == glance.of);
        let is_marked = claim.is_some_and(|claim| claim.marked);
        !is_saved && (call.plan.is_some() || is_marked)
    }

    fn unmark_instead(&mut self, attempt: &ClaimAttempt) -> Doing {
        let claim = attempt.claim().expect("it was looked at").clone();
        match patch::unmark(&claim).filter(|_| claim.deleting.is_some()) {
            Some(write) => self.doing_of_claim(ClaimStep::Patch(write)),
            None => Doing::Create(number_in(&claim.uid)),
        }
    }

    fn doing_of_claim(&mut self, step: ClaimStep) -> Doing {
        match step {
            ClaimStep::Patch(write) => Doing::Patch {
                slot: CLAIM as u8,
                write: self.write(Write {
                    // As of a PersistentVolume: metadata alone.
                    target: WriteTarget::Volume(write.name.clone()),
                    form: PatchType::Json,
                    body: write.body,
                }),
                by_policy: false,
            },
            ClaimStep::ReadClaim => Doing::ReadClaim,
            ClaimStep::ReadVolume(name) => Doing::ReadVolume(slot_of(&name).expect("a name of the world") as u8),
            ClaimStep::Create(plan) => Doing::Create(match slot_of(&plan.name) {
                Some(OWN) => 1,
                Some(SECOND) => 2,
                _ => panic!("a name that is not made from the UID: {}", plan.name),
            }),
            ClaimStep::Delete(plan) => Doing::Delete(number_in(&plan.handle)),
            ClaimStep::Save(body) => Doing::Save {
                slot: slot_of(body["metadata"]["name"].as_str().unwrap_or_default()).expect("a name of the world")
                    as u8,
                body: self.bodies.number(body),
            },
            ClaimStep::Secret(_) | ClaimStep::End(_) => unreachable!("these worlds have no Secrets"),
        }
    }

    /// Asks the attempt of a PersistentVolume for its next step.
    pub fn ask_volume(&mut self, glance: Glance) -> Advance {
        if let Some(known) = self.asked_of_volumes.get(&glance) {
            return *known;
        }
        let mut attempt = if glance.event == Event::Begin {
            VolumeAttempt::new(self.volume_memories.all[glance.from as usize].clone())
        } else {
            self.volume_attempts.all[glance.from as usize].clone()
        };
        let policy = policy(self.flaw, glance.number);
        let driver = super::view::driver(self.flaw);
        let view = View::new(self, &glance, &policy, &driver);
        let mut step = attempt.next(&view, glance.event.of_volume(self));
        if self.flaw == Flaw::NoLiveLook {
            while step == VolumeStep::ReadVolume {
                let shown = Answer::Saw(glance.shown[usize::from(glance.slot)]);
                step = attempt.next(&view, Event::Told(Asked::ReadVolume, shown).of_volume(self));
            }
        }
        attempt.take_notes();
        let memory = self.volume_memories.number(attempt.memory().clone());
        let doing = match step {
            VolumeStep::End(verdict) => {
                let memory = if verdict == Verdict::Done { 0 } else { memory };
                let advance = Advance {
                    next: None,
                    memory,
                    violation: None,
                    told: 0,
                };
                self.asked_of_volumes.insert(glance, advance);
                return advance;
            }
            VolumeStep::Delete(_) if self.flaw == Flaw::FinalizerBeforeOk => {
                let volume = attempt.volume().expect("it was looked at").clone();
                match patch::release_volume(&volume, None) {
                    Some(write) => self.doing_of_volume(VolumeStep::Patch(write), &glance),
                    None => self.doing_of_volume(step, &glance),
                }
            }
            step => self.doing_of_volume(step, &glance),
        };
        let number = self.volume_attempts.number(attempt);
        let advance = Advance {
            next: Some((number, doing)),
            memory,
            violation: None,
            told: 0,
        };
        self.asked_of_volumes.insert(glance, advance);
        advance
    }

    fn doing_of_volume(&mut self, step: VolumeStep, glance: &Glance) -> Doing {
        match step {
            VolumeStep::Patch(write) => {
                let shown = self.facts(glance.shown[usize::from(glance.slot)]);
                Doing::Patch {
                    slot: glance.slot,
                    by_policy: shown.is_some_and(|volume| !volume.reclaims),
                    write: self.write(write),
                }
            }
            VolumeStep::ReadVolume => Doing::ReadVolume(glance.slot),
            VolumeStep::ReadClaim(_) => Doing::ReadOwner,
            VolumeStep::Delete(plan) => Doing::Delete(number_in(&plan.handle)),
            VolumeStep::Remove(uid) => Doing::Remove {
                slot: glance.slot,
                uid: number_in(&uid),
            },
            VolumeStep::Secret(_) | VolumeStep::End(_) => unreachable!("these worlds have no Secrets"),
        }
    }
}

/// The settings, with the identity of a process.
fn policy(flaw: Flaw, number: u8) -> ProvisionPolicy {
    ProvisionPolicy {
        config: "config".into(),
        volume_name_prefix: "pvc".into(),
        volume_name_uuid_length: None,
        default_fs_type: "".into(),
        create_metadata: false,
        strict_topology: false,
        aggregate_topology: true,
        read_only_many: false,
        leak_protection: if flaw == Flaw::NoMarker {
            LeakProtection::Never
        } else {
            LeakProtection::Always
        },
        hold_deletions: false,
        orphans: provision::OrphanVolumePolicy::Retry,
        secrets: ProvisionerSecrets {
            listed: api::validated::PublishSecrets::Any,
            ..ProvisionerSecrets::default()
        },
        identity: identity(number).into(),
    }
}

/// The identity of a process.
pub fn identity(number: u8) -> String {
    format!("process-{number}")
}

/// The longest wait after failures.
pub const LONGEST_BACKOFF: Duration = Duration::from_mins(1);

/// A slot in words.
pub fn words(slot: usize) -> String {
    match slot {
        CLAIM => "the claim".to_owned(),
        super::state::CLASS => "the class".to_owned(),
        super::state::ATTACHMENT => "the VolumeAttachment".to_owned(),
        slot => format!("PersistentVolume {}", name_of(slot)),
    }
}
