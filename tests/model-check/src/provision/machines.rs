//! The attempts of production: each is asked for its next step, and the step becomes what a state can hold.

use csi_attacher_model::api;
use csi_attacher_model::decide::Write;
use csi_attacher_model::decide::patch::{PatchType, WriteTarget};
use csi_attacher_model::provision::attempt::{ClaimAttempt, ClaimNote, ClaimStep, NODE_TIMEOUT, Verdict};
use csi_attacher_model::provision::deletion::{VolumeAttempt, VolumeStep};
use csi_attacher_model::provision::{
    Creation, LeakProtection, OrphanVolumePolicy, ProvisionPolicy, ProvisionerSecrets, patch,
};

use super::invariants::CREATION;
use super::objects::{Facts, number_in, slot_of};
use super::state::{CLAIM, CSI_NODE, Doing, GONE, NODE, OWN, SECOND};
use super::universe::{Advance, Glance, Universe, identity};
use super::view::{Answer, Asked, Event, View};
use super::zones::{ZONE_OF_OTHER, zone_of};
use super::{Flaw, Topology};

impl Universe {
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
        let policy = policy(self.flaw, self.topology, glance.number);
        let facts = self.driver();
        let view = View::new(self, &glance, &policy, &facts);
        let mut step = attempt.next(&view, glance.event.of_claim(&view));
        if matches!(step, ClaimStep::End(Verdict::Rest(rest)) if rest == NODE_TIMEOUT) {
            // There is no time: who waits for a node that is gone has waited, and longer than that.
            let later = Glance {
                second: glance.second + 1,
                ..glance
            };
            attempt = ClaimAttempt::new(attempt.memory().clone());
            step = attempt.next(&View::new(self, &later, &policy, &facts), Event::Begin.of_claim(&view));
        }
        if self.flaw == Flaw::NoLookBeforeUndo {
            while let ClaimStep::ReadVolume(_) = step {
                let gone = Event::Told(Asked::ReadVolume, Answer::NotFound);
                step = attempt.next(&view, gone.of_claim(&view));
            }
        }
        let forgets = self.forgets(&glance, before.as_ref(), attempt.creation());
        let violation = forgets.then_some(CREATION);
        let told = attempt.take_notes().iter().find_map(|note| match note {
            ClaimNote::TwoVolumes { lost, .. } => Some(number_in(lost)),
            _ => None,
        });
        let told = told.unwrap_or(0);
        let remembered = self.claim_memories.number(attempt.memory().clone());
        let is_done = matches!(step, ClaimStep::End(Verdict::Done));
        let doing = match step {
            ClaimStep::End(_) => None,
            ClaimStep::Create(_) if self.flaw == Flaw::UnmarksUncertain => Some(self.unmark_instead(&attempt)),
            ClaimStep::Create(_)
                if self.flaw == Flaw::ReschedulesUncertain && before.as_ref().is_some_and(Creation::is_uncertain) =>
            {
                Some(self.reschedule_instead(&attempt, &glance, step))
            }
            ClaimStep::Create(_) if self.flaw == Flaw::FollowsNode => Some(match self.doing_of_claim(step) {
                Doing::Create { of, .. } => Doing::Create {
                    of,
                    zone: self.zone_of_selected(&glance),
                },
                doing => doing,
            }),
            step => Some(self.doing_of_claim(step)),
        };
        let advance = Advance {
            next: doing.map(|doing| (self.claim_attempts.number(attempt), doing)),
            memory: if is_done { 0 } else { remembered },
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
        let handle = call.handle.as_deref().map(number_in);
        let names = |volume: Facts| volume.claim == glance.of || Some(volume.handle) == handle;
        let is_saved = saved.is_some_and(names) || glance.believed != GONE;
        let claim = self.facts(glance.shown[CLAIM]).filter(|claim| claim.uid == glance.of);
        let is_marked = claim.is_some_and(|claim| claim.marked);
        !is_saved && (call.plan.is_some() || is_marked)
    }

    fn unmark_instead(&mut self, attempt: &ClaimAttempt) -> Doing {
        let claim = attempt.claim().expect("it was looked at").clone();
        match patch::unmark(&claim).filter(|_| claim.deleting.is_some()) {
            Some(write) => self.doing_of_claim(ClaimStep::Patch(write)),
            None => Doing::Create {
                of: number_in(&claim.uid),
                zone: 0,
            },
        }
    }

    /// Takes the node off where that is gone, whatever is known of the volume.
    fn reschedule_instead(&mut self, attempt: &ClaimAttempt, glance: &Glance, step: ClaimStep) -> Doing {
        let is_gone = [NODE, CSI_NODE].into_iter().any(|slot| glance.shown[slot] == GONE);
        let claim = attempt.claim().expect("it was looked at").clone();
        let is_there = claim.selected_node.as_deref() == Some("n1") && is_gone;
        match patch::reschedule(&claim).filter(|_| is_there) {
            Some(write) => self.doing_of_claim(ClaimStep::Patch(write)),
            None => self.doing_of_claim(step),
        }
    }

    /// The zone of the node that a claim names now.
    fn zone_of_selected(&self, glance: &Glance) -> u8 {
        let selected = self.facts(glance.shown[CLAIM]).map_or(0, |claim| claim.node);
        let zone = self.facts(glance.shown[NODE]).map_or(0, |node| node.zone);
        if selected == 1 { zone } else { ZONE_OF_OTHER }
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
            ClaimStep::Create(plan) => Doing::Create {
                of: match slot_of(&plan.name) {
                    Some(OWN) => 1,
                    Some(SECOND) => 2,
                    _ => unreachable!("a name that is not made from the UID: {}", plan.name),
                },
                zone: zone_of(&plan),
            },
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
        let policy = policy(self.flaw, self.topology, glance.number);
        let facts = self.driver();
        let view = View::new(self, &glance, &policy, &facts);
        let mut step = attempt.next(&view, glance.event.of_volume(&view));
        if self.flaw == Flaw::NoLiveLook {
            while step == VolumeStep::ReadVolume {
                let shown = Answer::Saw(glance.shown[usize::from(glance.slot)]);
                step = attempt.next(&view, Event::Told(Asked::ReadVolume, shown).of_volume(&view));
            }
        }
        attempt.take_notes();
        let remembered = self.volume_memories.number(attempt.memory().clone());
        let is_done = matches!(step, VolumeStep::End(Verdict::Done));
        let doing = match step {
            VolumeStep::End(_) => None,
            VolumeStep::Delete(_) if self.flaw == Flaw::FinalizerBeforeOk => {
                let volume = attempt.volume().expect("it was looked at").clone();
                let release = patch::release_volume(&volume).map(VolumeStep::Patch);
                Some(self.doing_of_volume(release.unwrap_or(step), &glance))
            }
            step => Some(self.doing_of_volume(step, &glance)),
        };
        let advance = Advance {
            next: doing.map(|doing| (self.volume_attempts.number(attempt), doing)),
            memory: if is_done { 0 } else { remembered },
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
            VolumeStep::ReadHeir(name) => Doing::ReadVolume(slot_of(&name).expect("a name of the world") as u8),
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
fn policy(flaw: Flaw, topology: Topology, number: u8) -> ProvisionPolicy {
    ProvisionPolicy {
        config: "config".into(),
        volume_name_prefix: "pvc".into(),
        volume_name_uuid_length: None,
        default_fs_type: "".into(),
        create_metadata: false,
        strict_topology: topology == Topology::Strict,
        aggregate_topology: true,
        read_only_many: false,
        leak_protection: if flaw == Flaw::NoMarker {
            LeakProtection::Never
        } else {
            LeakProtection::Always
        },
        hold_deletions: false,
        orphans: OrphanVolumePolicy::Retry,
        secrets: ProvisionerSecrets {
            listed: api::validated::PublishSecrets::Any,
            ..ProvisionerSecrets::default()
        },
        identity: identity(number).into(),
    }
}
