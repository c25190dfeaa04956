//! The marker on a PersistentVolumeClaim: a volume may have been created for it that no PersistentVolume names yet.
//!
//! It is a finalizer, so that the claim, and with it the arguments of the call, stays until that is known; and an annotation with what the
//! claim itself does not say of the arguments. Users of a namespace may write both. So the annotation names no volume and no size, the name
//! of the volume is made from the UID of the claim, and what it says of topology and of the Secret is checked.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::observed::ObservedClaim;
use super::ownership::is_own_claim;
use super::plan::CreatePlan;
use super::policy::ProvisionPolicy;
use super::refusal::ProvisionRefusal;
use super::secrets::{SecretFamily, SecretTemplates, TemplateContext};
use super::topology::{Segment, TopologyFacts, is_allowed, is_unrestricted};
use super::volume_name::VolumeNaming;
use crate::objects::{Claim, MAX_MARKER, SecretReference, StorageClass};

/// What the annotation `attacher.csi.dev/provisioning` holds as JSON; at most [`MAX_MARKER`] bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Marker {
    /// Name of the driver that is called.
    pub driver: Box<str>,
    /// `metadata.uid` of the claim: a copy of its manifest records nothing.
    pub uid: Box<str>,
    /// What the name of the volume begins with.
    pub prefix: Box<str>,
    /// So many characters of the UID follow; none is the whole UID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid_length: Option<usize>,
    /// `metadata.uid` of the class.
    #[serde(rename = "classUID", default)]
    pub class_uid: Box<str>,
    /// Hash of what the driver is told of the class: the same class that was created again is recognised by it.
    #[serde(default)]
    pub class_hash: Box<str>,
    /// Hash of what the driver is told besides. While a call is open it is that of the call which was made first: settings and
    /// capabilities may have changed since. Each version that records it records the topology as well, if one was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Box<str>>,
    /// The Secret of the call: it may be named by an annotation of the claim, which can change. Its contents are recorded nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<SecretReference>,
    /// Name of the selected node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<Box<str>>,
    /// Topology of the selected node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment: Option<Segment>,
    /// First preferred term of the call, where it is another one than the segment; [`Marker::first_term`] reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<Segment>,
    /// Hash of the allowedTopologies of the class, as of the call that was made first: they may have been changed since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed: Option<Box<str>>,
    /// Hash of the requisite terms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requisite: Option<Box<str>>,
    /// Since when the outcome of a call may be unknown: when the first marker of that call was written.
    pub since: Timestamp,
    /// Which process wrote it: a marker of a process that has ended is written anew before the first call of the next one. So a late
    /// write of the former one, which takes its own marker off, is refused.
    #[serde(default)]
    pub writer: Box<str>,
}

/// What a claim carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MarkerState {
    /// No finalizer of ours. An annotation alone is no marker.
    Absent,
    /// A marker of this driver; none where its annotation is missing or cannot be read.
    Own(Option<Box<Marker>>),
    /// A marker that was written on another claim and before this one was made, as when a manifest is restored: it records nothing of this
    /// one, whichever driver it names.
    Copied,
    /// A marker of this other driver.
    OfAnotherDriver(Box<str>),
}

#[derive(Deserialize)]
struct DriverOnly {
    driver: Box<str>,
}

/// Since when the outcome of a call of a driver may be unknown, as the marker of the claim says.
pub fn marked_since(claim: &Claim, driver: &str) -> Option<Timestamp> {
    MarkerState::of(claim, driver).recorded().map(|marker| marker.since)
}

impl MarkerState {
    /// Reads the marker of a claim for a driver.
    pub fn of(claim: &Claim, driver: &str) -> Self {
        if claim.marker_at.is_none() {
            return Self::Absent;
        }
        let text = claim.marker.as_deref().unwrap_or_default();
        let Ok(marker) = serde_json::from_str::<Marker>(text) else {
            return match serde_json::from_str(text) {
                Ok(DriverOnly { driver: named }) if *named != *driver => Self::OfAnotherDriver(named),
                _ => Self::Own(None),
            };
        };
        let (is_own, is_of_this_claim) = (*marker.driver == *driver, marker.uid == claim.uid);
        // One that was put over that of an open call says nothing.
        let is_older = claim.created.is_some_and(|created| marker.since < created);
        // It is for the driver of the claim to see that, and for the one that the marker names: others have nothing to do here.
        if !is_of_this_claim && is_older && (is_own || claim.provisioner.as_deref() == Some(driver)) {
            return Self::Copied;
        }
        if is_own {
            Self::Own(is_of_this_claim.then(|| Box::new(marker)))
        } else {
            Self::OfAnotherDriver(marker.driver)
        }
    }

    /// Whether a claim has what the marker of this driver says of it, and no marker: somebody took the finalizer off by force.
    pub fn is_left_over(claim: &Claim, driver: &str) -> bool {
        let recorded = || serde_json::from_str::<Marker>(claim.marker.as_deref()?).ok();
        claim.marker_at.is_none()
            && recorded().is_some_and(|marker| *marker.driver == *driver && marker.uid == claim.uid)
    }

    /// Whether it is one of this driver, be it without an annotation that can be read.
    pub const fn is_own(&self) -> bool {
        matches!(self, Self::Own(_) | Self::Copied)
    }

    /// Whether its annotation says that it is of this driver.
    pub const fn is_recorded(&self) -> bool {
        matches!(self, Self::Own(Some(_)) | Self::Copied)
    }

    /// Whether a call of this driver may be open for the claim.
    pub const fn may_be_open(&self) -> bool {
        matches!(self, Self::Own(_))
    }

    /// What it records.
    pub fn recorded(&self) -> Option<&Marker> {
        match self {
            Self::Own(marker) => marker.as_deref(),
            Self::Absent | Self::Copied | Self::OfAnotherDriver(_) => None,
        }
    }

    /// Whether something does not count that the annotation says of an open call, for the volume of this name: it is told. Users of a
    /// namespace can write it, and so may another version of the operator. One that is not there says nothing: an admission webhook may have
    /// taken it off.
    pub(super) fn is_ignored(&self, observed: &ObservedClaim<'_>, name: &str) -> bool {
        let (claim, creation) = (observed.claim, observed.creation);
        // What this process called with it knows without the annotation.
        if observed.gone || !creation.is_uncertain() || creation.uncertain_plan().is_some() {
            return false;
        }
        match self {
            // One that does not say whose it is, is that of the driver whose the claim is.
            Self::Own(None) => {
                is_own_claim(claim, observed.driver) && (claim.marker.is_some() || claim.marker_left_out)
            }
            Self::Own(Some(marker)) => {
                let context = TemplateContext::of(claim, name);
                let ignores = |class| marker.arguments(class, observed.topology, &context).ignored;
                !marker.naming().is_trusted() || observed.class.here().is_some_and(ignores)
            }
            Self::Absent | Self::Copied | Self::OfAnotherDriver(_) => false,
        }
    }
}

/// What of a marker counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordedArguments<'a> {
    /// Name of the node that was selected, where its topology counts.
    pub node: Option<&'a str>,
    /// Topology of the node that was selected.
    pub segment: Option<&'a Segment>,
    /// First preferred term.
    pub first: Option<&'a Segment>,
    /// Whether the call asked for no topology. The same call asks for none, whatever settings, class and driver say by now.
    pub without_topology: bool,
    /// The Secret of the call.
    pub secret: Option<&'a SecretReference>,
    /// Whether something that it says of these does not count. Before all nodes are known nothing can be said of topology.
    pub ignored: bool,
}

impl RecordedArguments<'_> {
    /// Whether it is known which topology the call asked for, or that it asked for none.
    pub const fn is_placed(&self) -> bool {
        self.segment.is_some() || self.first.is_some() || self.without_topology
    }
}

impl Marker {
    /// What an open call is repeated with, whatever became of nodes, their labels and the keys that they register: with another topology
    /// the driver may make a second volume, and its refusal says nothing of the first one.
    ///
    /// Users of the namespace can write it all. What the class has never allowed is forged, and is ignored; so is a topology of keys that
    /// the driver did not register, in a marker that does not say what the class allowed; and a Secret that the class cannot name.
    pub fn arguments(
        &self,
        class: &StorageClass,
        facts: &TopologyFacts,
        context: &TemplateContext<'_>,
    ) -> RecordedArguments<'_> {
        let is_registered = |segment: &Segment| segment.iter().all(|(key, _)| facts.has_key(key));
        let is_changed = self.is_of_other_terms(class);
        let is_trusted = |segment: &&Segment| {
            // What was sent before a change was checked against what the class allowed then.
            let is_possible = || is_within(class, segment) && (self.allowed.is_some() || is_registered(segment));
            !segment.is_empty() && (is_changed || is_possible())
        };
        let segment = self.segment.as_ref().filter(is_trusted);
        let first = self.first_term().filter(is_trusted);
        let ignores_topology =
            segment.is_some() != self.segment.is_some() || first.is_some() != self.first_term().is_some();
        let templates = SecretTemplates::of(class);
        let is_nameable = |secret: &&SecretReference| {
            let templates = templates.as_ref();
            templates.is_ok_and(|templates| templates.may_name(SecretFamily::Provisioner, context, secret))
        };
        let secret = self.secret.as_ref().filter(is_nameable);
        // With another class than that of the call, or with one that cannot be read, nothing is called, and that is told.
        let ignores_secret = secret.is_none() && self.secret.is_some() && templates.is_ok() && self.is_of_class(class);
        RecordedArguments {
            node: self.node.as_deref().filter(|_| segment.is_some()),
            segment,
            first,
            without_topology: self.is_without_topology(),
            secret,
            ignored: ignores_secret || (facts.complete && ignores_topology),
        }
    }

    /// How the name of the volume was made, as far as that is true.
    fn naming(&self) -> VolumeNaming<'_> {
        VolumeNaming {
            prefix: &self.prefix,
            uuid_length: self.uuid_length,
        }
    }

    /// First preferred term of the call: the segment, where no other one is recorded and there were requisite terms. Without these no
    /// topology was asked for.
    pub fn first_term(&self) -> Option<&Segment> {
        let is_asked_for = self.requisite.is_some();
        self.first.as_ref().or(self.segment.as_ref().filter(|_| is_asked_for))
    }

    /// Whether the call is known to have asked for no topology. One that records no arguments is of a version, or of somebody, that may
    /// have left out the topology too.
    pub(super) fn is_without_topology(&self) -> bool {
        self.arguments.is_some() && self.requisite.is_none() && self.first.is_none()
    }

    /// Whether the class allows the topology of the call still, if it did. For a driver with topology a call that asked for none is allowed
    /// where none follows from the class: whoever forges a marker gets no volume elsewhere than the class says.
    pub fn is_allowed_by(&self, class: &StorageClass, has_topology: bool) -> bool {
        if has_topology && self.is_without_topology() {
            return is_unrestricted(class);
        }
        let mut recorded = self.segment.iter().chain(&self.first);
        !self.is_of_other_terms(class) || recorded.all(|segment| is_within(class, segment))
    }

    /// Whether the class had other allowedTopologies when the call was made.
    fn is_of_other_terms(&self, class: &StorageClass) -> bool {
        let recorded = self.allowed.as_deref();
        recorded.is_some_and(|recorded| *recorded != *class.allowed_hash)
    }

    /// Whether the driver would be told the same of this class as of the one that it was begun with. A class that is changed in place keeps
    /// its UID, which decides only where nothing else is recorded.
    pub fn is_of_class(&self, class: &StorageClass) -> bool {
        if self.class_hash.is_empty() {
            return self.class_uid == class.uid;
        }
        *self.class_hash == *class.told_hash
    }

    /// The marker for a call with these arguments.
    pub(super) fn of_call(
        observed: &ObservedClaim<'_>,
        naming: VolumeNaming<'_>,
        plan: &CreatePlan,
        since: Timestamp,
    ) -> Self {
        let requirement = plan.accessibility.as_ref();
        let terms = requirement.map(|requirement| &requirement.requisite);
        let first = requirement.and_then(|requirement| requirement.first());
        let records_topology = requirement.is_some() || plan.segment.is_some();
        Self {
            driver: Box::from(&*observed.driver.name),
            uid: observed.claim.uid.clone(),
            prefix: naming.prefix.into(),
            uuid_length: naming.uuid_length,
            class_uid: plan.volume.class_uid.clone(),
            class_hash: Box::from(&*plan.volume.class_hash),
            arguments: Some(super::request::arguments_hash(plan)),
            secret: plan.secret.clone(),
            node: plan.node.as_deref().map(Box::from),
            segment: plan.segment.clone(),
            first: first.filter(|first| plan.segment.as_ref() != Some(*first)).cloned(),
            allowed: records_topology.then(|| Box::from(&*plan.volume.allowed_hash)),
            requisite: terms.map(|terms| Box::from(&*terms.stable_hash())),
            since,
            writer: Box::from(&*observed.policy.identity),
        }
    }

    /// Whether it records a call with the arguments of another one, whoever wrote the two, and when.
    pub(super) fn is_of_call(&self, other: &Self) -> bool {
        self.prefix == other.prefix
            && self.uuid_length == other.uuid_length
            && self.class_hash == other.class_hash
            && (self.arguments.is_none() || self.arguments == other.arguments)
            && self.secret == other.secret
            && self.node == other.node
            && self.segment == other.segment
            && self.first_term() == other.first_term()
            && self.allowed == other.allowed
            && self.requisite == other.requisite
    }

    /// The annotation.
    pub(super) fn text(&self) -> Result<String, ProvisionRefusal> {
        let text = serde_json::to_string(self).unwrap_or_default();
        if text.len() > MAX_MARKER {
            return Err(ProvisionRefusal::MarkerTooLarge(text.len()));
        }
        Ok(text)
    }
}

/// Whether allowedTopologies let a volume be there; all of them where none follow from it.
fn is_within(class: &StorageClass, segment: &Segment) -> bool {
    is_unrestricted(class) || is_allowed(class, segment)
}

/// Whether a call has the arguments that the claim records for the open one; also where it records none.
pub(super) fn is_open_call(claim: &Claim, plan: &CreatePlan) -> bool {
    let recorded = claim.marker.as_deref().map(serde_json::from_str::<Marker>);
    let recorded = recorded.and_then(Result::ok).filter(|marker| marker.uid == claim.uid);
    recorded.is_none_or(|marker| {
        let first = plan.accessibility.as_ref().and_then(|requirement| requirement.first());
        let hash = super::request::arguments_hash(plan);
        (marker.secret.is_none() || marker.secret == plan.secret)
            && (marker.first_term() == first || (marker.first_term().is_none() && !marker.is_without_topology()))
            && marker.arguments.as_ref().is_none_or(|arguments| *arguments == hash)
    })
}

/// How the name of the volume of a claim is made: as it is recorded, if that may be, else by the settings. Settings that changed since do
/// not make another name, and so another volume, for a claim that was begun.
pub(super) fn naming<'a>(state: &'a MarkerState, policy: &'a ProvisionPolicy) -> VolumeNaming<'a> {
    let recorded = state.recorded().map(Marker::naming);
    recorded
        .filter(VolumeNaming::is_trusted)
        .unwrap_or_else(|| policy.naming())
}
