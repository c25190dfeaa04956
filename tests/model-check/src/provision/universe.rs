//! What the states of a world of the provisioner are made of: versions of objects, writes, and the attempts of production. Each is kept
//! once and has a number. All of them are pure, so that each is asked once for the same input.

use std::time::Duration;

use csi_attacher_model::decide::Write;
use csi_attacher_model::provision;
use csi_attacher_model::provision::attempt::{ClaimAttempt, ClaimMemory};
use csi_attacher_model::provision::deletion::{VolumeAttempt, VolumeMemory};
use csi_attacher_model::provision::{Creation, ProvisionerFacts};
use serde_json::Value;

use super::names::Mentions;
use super::objects::{Edit, Facts, Object, edited, name_of, next_version};
use super::packed::Parts;
use super::state::{CLAIM, Doing, GONE, Id, SLOTS};
use super::view::Event;
use super::{Flaw, Topology};
use crate::api_server;
use crate::hash::{FastMap, fingerprint};

/// Values that have numbers; the first is that of the default.
pub struct Kept<T> {
    pub(super) all: Vec<T>,
    /// The names that each mentions.
    mentions: Vec<Mentions>,
    numbers: FastMap<u128, u32>,
}

impl<T: std::fmt::Debug> Kept<T> {
    fn new() -> Self {
        Self {
            all: Vec::new(),
            mentions: Vec::new(),
            numbers: FastMap::default(),
        }
    }

    pub(super) fn number(&mut self, value: T) -> u32 {
        let fresh = self.all.len() as u32;
        let text = format!("{value:?}");
        let number = *self
            .numbers
            .entry(fingerprint(&decisive(text.clone())))
            .or_insert(fresh);
        if number == fresh {
            self.mentions.push(Mentions::in_text(&text));
            self.all.push(value);
        }
        number
    }
}

/// What of an attempt decides nothing in these worlds: how long it rests, what it failed with, since when it waits (there is no time), what
/// it told once already, and how many of the steps it took that an attempt may take; no attempt of these worlds comes near to that number.
const UNDECISIVE: [&str; 10] = [
    " rests: ",
    " steps: ",
    " save_at: ",
    " called_with: ",
    " saved_since: ",
    " saved_by: ",
    " class_missing_since: ",
    " node_missing_since: ",
    " is_told: ",
    " leak_is_told: ",
];

/// What a value shows of itself that decides something. Of the failures to save only whether there are any does.
fn decisive(mut text: String) -> String {
    for field in UNDECISIVE {
        text = without(&text, field, |_| "");
    }
    without(&text, " save_failures: ", |count| if count == "0" { "0" } else { "1" })
}

fn without(text: &str, field: &str, kept_of: impl Fn(&str) -> &'static str) -> String {
    let mut parts = text.split(field);
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find([',', '}']).unwrap_or(part.len());
        kept.push_str(field);
        kept.push_str(kept_of(part[..end].trim_end()));
        kept.push_str(&part[end..]);
    }
    kept
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
    /// The time, in seconds.
    pub second: u8,
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
    pub topology: Topology,
    objects: Kept<(usize, Value)>,
    read: Vec<Object>,
    facts: Vec<Facts>,
    writes: Kept<Write>,
    pub(super) bodies: Kept<Value>,
    pub(super) claim_memories: Kept<ClaimMemory>,
    pub(super) claim_attempts: Kept<ClaimAttempt>,
    pub(super) volume_memories: Kept<VolumeMemory>,
    pub(super) volume_attempts: Kept<VolumeAttempt>,
    pub(super) asked_of_claims: FastMap<Glance, Advance>,
    pub(super) asked_of_volumes: FastMap<Glance, Advance>,
    edits: FastMap<(Id, Edit), Id>,
    patches: FastMap<(Id, u32), Option<Id>>,
    pub(super) parts: Parts,
}

impl Universe {
    pub fn new(flaw: Flaw, topology: Topology) -> Self {
        let mut universe = Self {
            flaw,
            topology,
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
            parts: Parts::default(),
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

    /// The names that a version of an object mentions.
    pub fn mentions_of_object(&self, id: Id) -> Mentions {
        self.objects.mentions[usize::from(id)]
    }

    /// Those that a patch mentions.
    pub fn mentions_of_write(&self, write: u32) -> Mentions {
        self.writes.mentions[write as usize]
    }

    /// Those that a POST mentions.
    pub fn mentions_of_body(&self, body: u32) -> Mentions {
        self.bodies.mentions[body as usize]
    }

    /// Those that are remembered.
    pub fn mentions_of_memory(&self, is_of_claim: bool, memory: u32) -> Mentions {
        if is_of_claim {
            self.claim_memories.mentions[memory as usize]
        } else {
            self.volume_memories.mentions[memory as usize]
        }
    }

    /// Those that an attempt mentions.
    pub fn mentions_of_attempt(&self, is_of_claim: bool, attempt: u32) -> Mentions {
        if is_of_claim {
            self.claim_attempts.mentions[attempt as usize]
        } else {
            self.volume_attempts.mentions[attempt as usize]
        }
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

    /// What is known of the driver.
    pub fn driver(&self) -> ProvisionerFacts {
        super::view::driver(self.flaw, self.topology)
    }

    pub fn needs_claim_work(&self, id: Id) -> bool {
        let claim = self.get(id).and_then(Object::claim);
        claim.is_some_and(|claim| provision::needs_claim_work(claim, &self.driver()))
    }

    pub fn needs_volume_work(&self, id: Id) -> bool {
        let volume = self.get(id).and_then(Object::volume);
        volume.is_some_and(|volume| provision::needs_volume_work(volume, &self.driver()))
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
        super::state::NODE => "Node n1".to_owned(),
        super::state::CSI_NODE => "CSINode n1".to_owned(),
        slot => format!("PersistentVolume {}", name_of(slot)),
    }
}
