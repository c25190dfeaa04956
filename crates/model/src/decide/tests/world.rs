//! A cluster of one attachment, played by a pure executor of what the decision core asks for.

use jiff::Timestamp;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::api_server::{apply, is_gone};
use super::builders::{DRIVER, GCE_DRIVER, Pv, Va, csi_node_of, volume};
use crate::api::validated::SecretNames;
use crate::decide::{
    self, Action, Capabilities, DetachWait, DriverFacts, Failure, Neighbours, Observed, Outcome, Policy,
    PublishRequest, SecretState, Snapshot, UnpublishRequest, VolumeOnNode, Write, patch::WriteTarget,
};
use crate::objects::{Attachment, CsiNode, CsiNodeWire, PersistentVolumeWire, Volume, VolumeAttachmentWire};

pub const NOW: &str = "2026-02-03T04:05:06Z";
/// More than any attempt may take.
const MAX_STEPS: usize = 12;

type Secret = BTreeMap<String, String>;
pub type Answer = Result<BTreeMap<String, String>, Failure>;

/// What is in the cluster, at the driver, and what happened.
#[derive(Clone)]
pub struct DecideModel {
    pub attachment: Option<Value>,
    pub volume: Option<Value>,
    pub node: Option<Value>,
    pub secrets: BTreeMap<String, BTreeMap<String, String>>,
    pub driver: DriverFacts,
    pub policy: Policy,
    pub neighbours: Neighbours,
    pub detach_wait: DetachWait,
    /// Whether the driver lists the volume otherwise.
    pub forced: bool,
    /// What the driver answers; OK when there is nothing left.
    pub answers: VecDeque<Answer>,
    /// Which patches of a VolumeAttachment and of a PersistentVolume are refused with 403, counted from 1.
    pub refused: (BTreeSet<usize>, BTreeSet<usize>),
    patches: (usize, usize),
    pub log: Vec<String>,
    /// Decisions of the last attempt, the last "nothing to do" included.
    pub decisions: usize,
}

/// Short enough to read what a property found.
impl std::fmt::Debug for DecideModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let show = |object: &Option<Value>| object.as_ref().map(Value::to_string).unwrap_or_default();
        let (va, pv, node) = (show(&self.attachment), show(&self.volume), show(&self.node));
        write!(f, "{va}\n{pv}\n{node}\n{:?}\n{:?}", self.driver.capabilities, self.log)
    }
}

/// What becomes of the key after an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requeue {
    Forget,
    Retry,
    /// Held back, without a failure.
    Wait,
}

pub fn capable() -> Capabilities {
    Capabilities {
        publish_unpublish: true,
        publish_readonly: true,
        ..Capabilities::default()
    }
}

/// An empty cluster with the secrets `secret` and `emptySecret`, and a driver that can publish read-only.
pub fn world() -> DecideModel {
    let secret = BTreeMap::from([("foo".to_owned(), "bar".to_owned())]);
    DecideModel {
        attachment: None,
        volume: None,
        node: None,
        secrets: [
            ("secret".to_owned(), secret),
            ("emptySecret".to_owned(), BTreeMap::new()),
        ]
        .into(),
        driver: DriverFacts::new(DRIVER, capable()),
        policy: Policy {
            default_fs_type: "ext4".into(),
            publish_secrets: decide::PublishSecrets::Listed(Arc::new([("default".into(), SecretNames::All)].into())),
            config: "config".into(),
            ..Policy::default()
        },
        neighbours: Neighbours::default(),
        detach_wait: DetachWait::Allowed,
        forced: false,
        answers: VecDeque::new(),
        refused: Default::default(),
        patches: (0, 0),
        log: Vec::new(),
        decisions: 0,
    }
}

/// With this volume, and a node on which the driver registered.
pub fn on_node(volume: Pv) -> DecideModel {
    world().pv(volume).node()
}

/// With a volume that has our finalizer.
pub fn ready() -> DecideModel {
    on_node(volume().protected())
}

/// As [`world`], with the driver that took over `gcePersistentDisk`.
pub fn gce_world() -> DecideModel {
    DecideModel {
        driver: DriverFacts::new(GCE_DRIVER, capable()),
        ..world()
    }
}

impl DecideModel {
    pub fn pv(mut self, volume: Pv) -> Self {
        self.volume = Some(volume.0);
        self
    }

    pub fn va(mut self, attachment: Va) -> Self {
        self.attachment = Some(attachment.0);
        self
    }

    /// With a CSINode on which the driver registered.
    pub fn node(self) -> Self {
        self.node_of(Some("nodeID1"))
    }

    pub fn node_of(mut self, node_id: Option<&str>) -> Self {
        self.node = Some(csi_node_of(&self.driver.name, node_id));
        self
    }

    pub fn answer(mut self, answer: Answer) -> Self {
        self.answers.push_back(answer);
        self
    }

    pub fn refuse_attachment(mut self, nth: &[usize]) -> Self {
        self.refused.0.extend(nth);
        self
    }

    pub fn refuse_volume(mut self, nth: &[usize]) -> Self {
        self.refused.1.extend(nth);
        self
    }

    /// Refuses the `nth` patch of the attachment from now on, counted from 1.
    pub fn refuse_next(&mut self, nth: usize) {
        self.refused.0.insert(self.patches.0 + nth);
    }

    pub fn capabilities(mut self, capabilities: Capabilities) -> Self {
        self.driver.capabilities = capabilities;
        self
    }

    pub fn out_of_patience(mut self) -> Self {
        self.detach_wait = DetachWait::Expired;
        self
    }

    pub fn orphans(mut self, orphans: decide::OrphanPolicy) -> Self {
        self.policy.orphans = orphans;
        self
    }

    /// The driver lists the volume otherwise.
    pub fn forced(mut self) -> Self {
        self.forced = true;
        self
    }

    pub fn fingerprint(&self) -> u64 {
        let snapshot = self.snapshot().unwrap();
        let observed = decide::observe(&snapshot, &self.driver, &self.policy, SecretState::NotLoaded);
        decide::attachment_fingerprint(&observed)
    }

    pub fn snapshot(&self) -> Option<Snapshot> {
        Some(Snapshot {
            attachment: read::<VolumeAttachmentWire, Attachment>(self.attachment.as_ref()?).into(),
            volume: self.named_volume(),
            node: self.node.as_ref().map(|node| read::<CsiNodeWire, CsiNode>(node).into()),
            neighbours: self.neighbours.clone(),
        })
    }

    /// The volume, if the attachment names it.
    fn named_volume(&self) -> Option<std::sync::Arc<Volume>> {
        let attachment = read::<VolumeAttachmentWire, Attachment>(self.attachment.as_ref()?);
        let volume = self.volume_record()?;
        (attachment.volume_name() == Some(&volume.name)).then(|| volume.into())
    }

    pub fn volume_record(&self) -> Option<Volume> {
        self.volume.as_ref().map(read::<PersistentVolumeWire, Volume>)
    }

    /// One attempt, as `driver::attempt` does it: until there is nothing to do or something failed.
    pub fn attempt(&mut self) -> Requeue {
        let (driver, policy) = (self.driver.clone(), self.policy.clone());
        let mut credentials = SecretState::NotLoaded;
        let mut secrets = None;
        self.decisions = 0;
        while self.decisions < MAX_STEPS {
            self.decisions += 1;
            let Some(snapshot) = self.snapshot() else {
                return Requeue::Forget;
            };
            let observed = Observed {
                detach_wait: self.detach_wait,
                forced: self.forced,
                ..crate::decide::observe(&snapshot, &driver, &policy, credentials)
            };
            match decide::attachment(&observed) {
                Action::Ignore(_) | Action::JudgeRelease(_) | Action::RefuseRelease(_) => return Requeue::Forget,
                Action::AwaitDetach(other) => {
                    self.log.push(format!("HOLD {other}"));
                    return Requeue::Wait;
                }
                Action::Refuse(refusal) => return self.fail(&observed, Failure::plain(refusal.to_string())),
                Action::ProtectVolume(write) => match self.write(&write) {
                    Ok(()) => {}
                    Err(_) if snapshot.attachment.attached && !self.forced => return Requeue::Retry,
                    Err(error) => {
                        return self.fail(&observed, wrapped("could not add PersistentVolume finalizer", &error));
                    }
                },
                Action::Claim(write) => {
                    if let Err(error) = self.write(&write) {
                        return self.fail(&observed, wrapped("could not save VolumeAttachment", &error));
                    }
                }
                Action::LoadCredentials(reference) => {
                    self.log.push(format!("SEC({})", reference.name));
                    secrets = self.secrets.get(&*reference.name).cloned();
                    if secrets.is_none() {
                        let (namespace, name) = (&reference.namespace, &reference.name);
                        let text = format!("failed to load secret \"{namespace}/{name}\"");
                        return self.fail(&observed, wrapped(&text, &format!("secrets \"{name}\" not found")));
                    }
                    credentials = SecretState::Loaded;
                }
                Action::Publish(plan) => return self.publish(&observed, &plan, secrets.as_ref()),
                Action::Unpublish(plan) => return self.take_back(&observed, &plan, secrets.as_ref()),
                Action::Release(write) if snapshot.attachment.deleting.is_none() => {
                    if let Err(error) = self.write(&write) {
                        return self.fail(&observed, wrapped("could not remove the finalizer", &error));
                    }
                }
                Action::Release(_) => return self.record(&observed, &Outcome::Unpublished),
                Action::MarkAttached(write) => {
                    return self.write(&write).map_or(Requeue::Retry, |()| Requeue::Forget);
                }
            }
        }
        panic!("no end in sight: {:?}", self.log)
    }

    fn publish(&mut self, observed: &Observed<'_>, plan: &PublishRequest<'_>, secrets: Option<&Secret>) -> Requeue {
        for place in &plan.former {
            // Whether it works or not, the attach goes on.
            drop(self.unpublish(*place, secrets));
        }
        let mode = if plan.read_only { "ro" } else { "rw" };
        let context: BTreeMap<_, _> = plan.volume_context.iter().collect();
        let context = if context.is_empty() {
            String::new()
        } else {
            format!(" ctx{context:?}")
        };
        let call = format!("pub {} {} {mode}{context}", plan.place.volume_id, plan.place.node_id);
        match self.call(call, secrets) {
            Ok(context) => self.record(observed, &Outcome::Published(context.into())),
            Err(failure) => self.fail(observed, failure),
        }
    }

    fn take_back(&mut self, observed: &Observed<'_>, plan: &UnpublishRequest<'_>, secrets: Option<&Secret>) -> Requeue {
        let renewals = plan.renew.iter().map(|other| format!("RENEW {}", other.name));
        self.log.extend(renewals);
        let mut failed = None;
        for place in &plan.places {
            let answer = self.unpublish(*place, secrets).map(drop);
            match decide::unpublished(observed.policy, answer) {
                Ok(None) => {}
                Ok(Some(orphan)) => self.log.push(format!("orphan({})", orphan.message)),
                Err(failure) if failure.code.is_some_and(decide::is_final) => {
                    failed.get_or_insert(failure);
                }
                // What may succeed later is waited for.
                Err(failure) => return self.fail(observed, failure),
            }
        }
        match failed {
            Some(failure) => self.fail(observed, failure),
            None => self.record(observed, &Outcome::Unpublished),
        }
    }

    /// Takes the steps that lead to a call, and stops before it.
    pub fn advance(&mut self) {
        while let Some(snapshot) = self.snapshot() {
            let (driver, policy) = (self.driver.clone(), self.policy.clone());
            let observed = crate::decide::observe(&snapshot, &driver, &policy, SecretState::Loaded);
            match decide::attachment(&observed) {
                Action::ProtectVolume(write) | Action::Claim(write) => self.write(&write).unwrap(),
                _ => return,
            }
        }
    }

    /// One attempt at the volume, with so many attachments that name it.
    pub fn volume_attempt(&mut self, attachments: usize) -> Requeue {
        let Some(volume) = self.volume_record() else {
            return Requeue::Forget;
        };
        match decide::volume(&volume, attachments, &self.driver) {
            Err(_) => Requeue::Forget,
            Ok(write) => self.write(&write).map_or(Requeue::Retry, |()| Requeue::Forget),
        }
    }

    fn unpublish(&mut self, place: VolumeOnNode<'_>, secrets: Option<&Secret>) -> Answer {
        self.call(format!("unpub {} {}", place.volume_id, place.node_id), secrets)
    }

    fn call(&mut self, mut call: String, secrets: Option<&Secret>) -> Answer {
        if let Some(secrets) = secrets {
            call = format!("{call} secrets{secrets:?}");
        }
        self.log.push(call);
        self.answers.pop_front().unwrap_or_else(|| Ok(BTreeMap::new()))
    }

    fn record(&mut self, observed: &Observed<'_>, outcome: &Outcome) -> Requeue {
        for write in decide::settle(observed, outcome, now()) {
            if let Err(error) = self.write(&write) {
                return match outcome {
                    // The volume is attached: an error on the object would be wrong.
                    Outcome::Published(_) => Requeue::Retry,
                    _ => self.fail(observed, wrapped("could not mark as detached", &error)),
                };
            }
            if self.attachment.is_none() {
                break;
            }
        }
        Requeue::Forget
    }

    fn fail(&mut self, observed: &Observed<'_>, failure: Failure) -> Requeue {
        let outcome = match observed.attachment.deleting {
            None => Outcome::AttachFailed(failure),
            Some(_) => Outcome::DetachFailed(failure),
        };
        for write in decide::settle(observed, &outcome, now()) {
            // That the error cannot be saved changes nothing.
            drop(self.write(&write));
        }
        Requeue::Retry
    }

    /// Sends a patch as the API server takes it; an error in its words.
    pub fn write(&mut self, write: &Write) -> Result<(), String> {
        let label = self.label(write);
        let of_volume = matches!(write.target, WriteTarget::Volume(_));
        let (count, refused) = if of_volume {
            (&mut self.patches.1, &self.refused.1)
        } else {
            (&mut self.patches.0, &self.refused.0)
        };
        *count += 1;
        if refused.contains(count) {
            self.log.push(format!("{label} 403"));
            return Err(if of_volume {
                "persistentvolume \"pv1\" is forbidden: Mock error".to_owned()
            } else {
                "volumeattachments.storage.k8s.io \"pv1-node1\" is forbidden: Mock error".to_owned()
            });
        }
        self.log.push(label);
        let object = if of_volume {
            &mut self.volume
        } else {
            &mut self.attachment
        };
        let current = object.as_ref().ok_or("not found")?;
        let patched = apply(current, write)?;
        *object = (!is_gone(&patched)).then_some(patched);
        Ok(())
    }
}

fn wrapped(what: &str, error: &str) -> Failure {
    Failure::plain(format!("{what}: {error}"))
}

pub fn now() -> Timestamp {
    NOW.parse().unwrap()
}

pub fn read<W: serde::de::DeserializeOwned, R: From<W>>(object: &Value) -> R {
    serde_json::from_value::<W>(object.clone()).unwrap().into()
}
