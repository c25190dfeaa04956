//! What must never be, looked for in a [`History`]. Pure.

use std::collections::BTreeMap;
use std::fmt;

use jiff::{SignedDuration, Timestamp};

use super::history::{Call, Finding, History, Lapse, LostAnswers, Observation, Place, Process, Step, Term, name_of};

/// A driver notices that a caller gave up, or went away, when its own process gets to it: on another connection the next
/// caller's first call may be read before.
const NOTICED_LATE: SignedDuration = SignedDuration::from_millis(500);
/// A process that goes on after a standstill gives up what it may no longer do at its first poll; for the machine to get there.
const AWAKE: SignedDuration = SignedDuration::from_secs(3);

/// How long a call that was left to a driver, and what it did, may be seen: a round, until all is at rest, and what is looked at then.
const LEFT_LASTS: SignedDuration = SignedDuration::from_mins(5);

/// What a violation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A VolumeAttachment says `attached: true`, and the driver does not have the volume published.
    AttachedNotPublished,
    /// A VolumeAttachment is gone, and the driver has the volume published.
    GoneButPublished,
    /// A volume for one node is published at two.
    TwoNodes,
    /// Two processes are in calls for one volume.
    TwoProcesses,
    /// A call began while another process held the Lease.
    CallWithoutLease,
    /// ControllerUnpublishVolume for a volume that is attached and wanted.
    UnpublishInUse,
    /// ControllerPublishVolume for an attachment that is gone.
    PublishAfterGone,
    /// What was wanted did not come about in time after the last fault.
    Overdue,
    /// A claim is bound, and the driver does not have its volume.
    BoundWithoutVolume,
    /// Claim and PersistentVolume are gone, and the driver has the volume.
    VolumeLeft,
    /// DeleteVolume for the volume of a claim that is bound or has the policy Retain, or for a volume that is attached.
    DeleteInUse,
    /// CreateVolume for a claim that is gone.
    CreateAfterGone,
    /// Two volumes for one claim.
    TwoVolumes,
    /// The volumes of a driver are not those that PersistentVolumes and markers name.
    VolumesDiffer,
    /// What no VolumeAttachment names was touched after a restore of etcd.
    LeftoverTouched,
    /// The settings in effect are not those of the AttacherConfig, and it does not say why.
    SettingNotInEffect,
    /// Where the run ends differs from where it ends without faults.
    EndDiffers,
    /// A process of the operator ended by itself.
    ProcessEnded,
    /// What is in a publish Secret is shown in a log, an event or a status.
    SecretShown,
}

impl Kind {
    /// What it is called when it is about the volume of a claim.
    const fn of(self, place: &Place) -> Self {
        match self {
            _ if !place.node.is_empty() => self,
            Self::AttachedNotPublished => Self::BoundWithoutVolume,
            Self::GoneButPublished => Self::VolumeLeft,
            Self::UnpublishInUse => Self::DeleteInUse,
            Self::PublishAfterGone => Self::CreateAfterGone,
            _ => self,
        }
    }
}

/// A violation.
#[derive(Clone, Debug)]
pub struct Violation {
    pub at: Timestamp,
    pub kind: Kind,
    /// The volume, or the AttacherConfig.
    pub object: String,
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?} {}: {}", self.kind, self.object, self.text)
    }
}

fn violation(at: Timestamp, kind: Kind, place: &Place, text: impl Into<String>) -> Violation {
    let text = format!("{place}: {}", text.into());
    let object = place.volume.clone();
    let kind = kind.of(place);
    Violation { at, kind, object, text }
}

/// All violations, in the order of their times.
pub fn check(history: &History) -> Vec<Violation> {
    let mut found = two_processes(history);
    found.extend(calls_without_lease(history));
    found.extend(two_volumes(history));
    found.extend(
        history
            .findings
            .iter()
            .filter_map(|finding| wrong_finding(history, finding)),
    );
    let mut places: BTreeMap<&Place, Vec<&Observation>> = BTreeMap::new();
    for observation in &history.observations {
        places.entry(&observation.place).or_default().push(observation);
    }
    for (place, steps) in places {
        let mut finalizer = true;
        for step in &steps {
            if let Step::DeleteAnswered { finalizer: carried } = step.step {
                finalizer = carried;
            }
            found.extend(wrong_step(history, step, finalizer));
        }
        found.extend(wrong_calls(history, place, &steps));
    }
    found.sort_by_key(|violation| violation.at);
    found
}

/// A finding, unless a call that a process had sent before it stood still explains it.
fn wrong_finding(history: &History, finding: &Finding) -> Option<Violation> {
    let Finding { at, kind, object, text } = finding.clone();
    let creates = match kind {
        Kind::TwoNodes => false,
        Kind::VolumesDiffer => true,
        _ => return Some(Violation { at, kind, object, text }),
    };
    let is_about = |call: &&Call| {
        let place = &call.place;
        call.makes && place.is_claim() == creates && name_of(&place.volume) == name_of(&object)
    };
    let calls = history.calls.iter().filter(is_about);
    let recent: Vec<&Call> = calls
        .filter(|call| call.started < at && at < call.started + LEFT_LASTS)
        .collect();
    // Nobody else knows of a volume that was published for an object whose finalizer the API server lost.
    let was_lost = |place| loses_finalizer(history, place, at) && caller_cannot_take_back(history, place, at);
    let left = recent
        .iter()
        .any(|call| was_left_by_a_stop(history, call) || (!creates && was_lost(&call.place)));
    // The former release does not wait until what vanished is taken back.
    let by_former = |call: &&Call| {
        let process = history.process(call.pid, call.started);
        process.is_some_and(|process| process.version == "former")
    };
    let former = !recent.is_empty() && recent.iter().all(by_former);
    let explained = left || former || history.restored(at, at);
    (!explained).then_some(Violation { at, kind, object, text })
}

/// What is wrong with one step alone; `finalizer` says whether the last deletion before it found the operator's finalizer.
fn wrong_step(history: &History, observation: &Observation, finalizer: bool) -> Option<Violation> {
    let Observation { at, place, step } = observation;
    match step {
        // Nothing excuses a volume that was deleted: DeleteVolume is for what is never bound again.
        Step::Attached { published: false } if place.is_claim() || !left_behind(history, place, false, *at) => {
            let text = "attached or bound, and the driver does not have it";
            Some(violation(*at, Kind::AttachedNotPublished, place, text))
        }
        Step::Kept
            if !left_behind(history, place, true, *at)
                && (finalizer || !caller_cannot_take_back(history, place, *at)) =>
        {
            let text = "the object is gone, and the driver still has it";
            Some(violation(*at, Kind::GoneButPublished, place, text))
        }
        Step::Overdue { .. } if is_left_elsewhere(history, place, *at) => None,
        Step::Overdue { wanted, found } => {
            let text = format!("wanted: {wanted}; found: {found}");
            Some(violation(*at, Kind::Overdue, place, text))
        }
        _ => None,
    }
}

/// Whether such a call for a place was left to the driver by a process that stood still, not long before.
fn left_behind(history: &History, place: &Place, makes: bool, before: Timestamp) -> bool {
    let of_place = history
        .calls
        .iter()
        .filter(|call| call.makes == makes && call.place == *place);
    let mut recent = of_place.filter(|call| call.started < before && before < call.started + LEFT_LASTS);
    recent.any(|call| was_left_by_a_stop(history, call))
}

/// Whether the process that published last ended, stood still, or lost its Lease before it could take the volume back, or does not know
/// whether it has recorded the volume as attached, so that it must not: when the API server has lost its finalizer, nobody else knows of
/// it. The operator reports such a volume, as it cannot know who uses it by then.
fn caller_cannot_take_back(history: &History, place: &Place, before: Timestamp) -> bool {
    let publishes = |call: &&Call| call.makes && call.place == *place && call.started < before;
    let last = history.calls.iter().rfind(publishes);
    let caller = last.and_then(|call| history.process(call.pid, call.started));
    let Some((call, caller)) = last.zip(caller) else {
        return false;
    };
    let lapsed = |lapse: &&Lapse| {
        let same = lapse.driver == place.driver && lapse.holder == caller.identity;
        same && call.started < lapse.to && lapse.from < before
    };
    let taken = |term: &&Term| {
        let other = term.driver == place.driver && term.holder.as_ref() != Some(&caller.identity);
        other && call.started < term.acquired && term.acquired < before
    };
    let unanswered = |lost: &&LostAnswers| {
        let same = lost.holder.as_ref().is_none_or(|holder| *holder == caller.identity);
        same && call.started < lost.to && lost.from < before
    };
    caller.ended.is_some_and(|ended| ended < before)
        || history.lost_answers.iter().any(|lost| unanswered(&lost))
        || caller.stopped_within(call.started, before).is_some()
        || history.lapses.iter().any(|lapse| lapsed(&lapse))
        || history.terms.iter().any(|term| taken(&term))
}

/// Whether the volume is published at another node, and nobody knows of it: the API server lost the finalizer, and who published it ended.
/// A driver that publishes a volume at one node alone refuses all others from then on.
fn is_left_elsewhere(history: &History, place: &Place, before: Timestamp) -> bool {
    let of_volume = history.calls.iter().filter(|call| {
        let same = call.place.driver == place.driver && call.place.volume == place.volume;
        same && call.place != *place && call.ok && call.started < before
    });
    let mut last: BTreeMap<&Place, &Call> = BTreeMap::new();
    for call in of_volume {
        let known = last.entry(&call.place).or_insert(call);
        if known.started <= call.started {
            *known = call;
        }
    }
    let mut left = last.values().filter(|call| call.makes);
    left.any(|call| {
        loses_finalizer(history, &call.place, before) && caller_cannot_take_back(history, &call.place, before)
    })
}

/// Whether the last deletion of an object before this time lost the finalizer that was added meanwhile.
fn loses_finalizer(history: &History, place: &Place, before: Timestamp) -> bool {
    let of_place = history
        .observations
        .iter()
        .filter(|step| step.place == *place && step.at < before);
    let mut answers = of_place.filter_map(|observation| match observation.step {
        Step::DeleteAnswered { finalizer } => Some(finalizer),
        _ => None,
    });
    answers.next_back() == Some(false)
}

/// When a call was over: a process that is gone is in no call.
fn end(history: &History, call: &Call) -> Timestamp {
    let finished = call.finished.unwrap_or(Timestamp::MAX);
    let ended = history
        .process(call.pid, call.started)
        .and_then(|process| process.ended);
    // When a call that was given up ended is known less exactly than when it began.
    let finished = if call.cancelled {
        given_up(history, finished).max(call.started)
    } else {
        finished
    };
    ended.map_or(finished, |ended| ended.min(finished))
}

/// The earliest time at which a call was given up of which the driver noticed that at this time: its process may have
/// stood still until then.
fn given_up(history: &History, noticed: Timestamp) -> Timestamp {
    // One stall may follow the other.
    let stalls = history.stalls.iter().rev().filter(|(from, _)| *from < noticed);
    stalls.fold(noticed - NOTICED_LATE, |earliest, (from, to)| {
        if earliest <= *to { earliest.min(*from) } else { earliest }
    })
}

/// Calls of different processes for one volume at the same time.
fn two_processes(history: &History) -> Vec<Violation> {
    let mut volumes: BTreeMap<(&str, &str), Vec<&Call>> = BTreeMap::new();
    for call in &history.calls {
        let place = &call.place;
        // Also what attaches and what deletes, whoever has which Lease.
        volumes
            .entry((&place.driver, name_of(&place.volume)))
            .or_default()
            .push(call);
    }
    let mut found = Vec::new();
    for calls in volumes.values_mut() {
        calls.sort_by_key(|call| call.started);
        for (index, later) in calls.iter().enumerate() {
            // Calls last seconds; what began a hundred calls before is over.
            let earlier = calls[index.saturating_sub(100)..index].iter();
            let overlapping = earlier.filter(|call| call.pid != later.pid && end(history, call) > later.started);
            for earlier in overlapping {
                if !was_left_by_a_stop(history, earlier) && !was_left_by_a_stop(history, later) {
                    let text = format!("{} and {}", tell(history, earlier), tell(history, later));
                    found.push(violation(later.started, Kind::TwoProcesses, &later.place, text));
                }
            }
        }
    }
    found
}

/// Whether a call had been sent by the time its process stood still: one that arrives while it does was. When the process goes
/// on, it must give the call up.
fn was_left_by_a_stop(history: &History, call: &Call) -> bool {
    let Some(process) = history.process(call.pid, call.started) else {
        return false;
    };
    let until = end(history, call);
    let stop = process.stopped_within(call.started, until.max(call.started + SignedDuration::from_nanos(1)));
    let Some(stop) = stop else { return false };
    // One that follows before the process has come to its first poll belongs to it.
    let awake = process.stops.iter().fold(stop.to, |to, next| {
        let follows = to.is_some_and(|to| stop.from < next.from && next.from <= to + AWAKE);
        if follows { next.to } else { to }
    });
    stop.to.is_none_or(|to| call.started < to) && awake.is_none_or(|to| until <= to + AWAKE)
}

fn tell(history: &History, call: &Call) -> String {
    let who = history.process(call.pid, call.started);
    let who = who.map_or_else(
        || format!("process {}", call.pid),
        |process| format!("{} ({})", process.identity, process.version),
    );
    let what = match (call.makes, call.place.is_claim()) {
        (true, true) => "Create",
        (true, false) => "Publish",
        (false, true) => "Delete",
        (false, false) => "Unpublish",
    };
    let until = call
        .finished
        .map_or_else(|| "now".to_owned(), |finished| finished.to_string());
    format!("{what} by {who} from {} to {until} ({})", call.started, call.outcome)
}

/// Calls of a process that began when another one held the Lease in every place where there is one.
fn calls_without_lease(history: &History) -> Vec<Violation> {
    let wrong = |call: &&Call| {
        let process = history.process(call.pid, call.started);
        let holders = holders(history, &call.place.leader(), call.started);
        process.is_some_and(|process| {
            let by_others = |holder: &Option<String>| holder.as_ref().is_some_and(|name| *name != process.identity);
            !holders.is_empty() && holders.iter().all(by_others) && process.stopped_at(call.started).is_none()
        })
    };
    let calls = history.calls.iter().filter(wrong);
    let calls = calls.filter(|call| !history.restored(call.started, call.started));
    let told = calls.map(|call| {
        let holders = holders(history, &call.place.leader(), call.started);
        let text = format!("{}, while the Lease is held by {holders:?}", tell(history, call));
        violation(call.started, Kind::CallWithoutLease, &call.place, text)
    });
    told.collect()
}

/// Who held the Leases of a driver at a time, in each namespace.
fn holders(history: &History, driver: &str, at: Timestamp) -> Vec<Option<String>> {
    let mut last: BTreeMap<&str, &Term> = BTreeMap::new();
    // What was seen before the last restore of etcd may never have been.
    let restored = history.restores.iter().map(|(begun, _)| *begun);
    let restored = restored.filter(|begun| *begun < at).max().unwrap_or(Timestamp::MIN);
    let of_driver = history.terms.iter().filter(|term| term.driver == driver);
    for term in of_driver.filter(|term| term.acquired < at && term.seen > restored) {
        // By their own times: they may be seen in another order.
        let known = last.entry(&term.namespace).or_insert(term);
        if known.acquired <= term.acquired {
            *known = term;
        }
    }
    last.into_values().map(|term| term.holder.clone()).collect()
}

/// Calls for a place that its VolumeAttachment of that time forbids.
fn wrong_calls(history: &History, place: &Place, steps: &[&Observation]) -> Vec<Violation> {
    let calls: Vec<&Call> = history.calls.iter().filter(|call| call.place == *place).collect();
    let mut found = Vec::new();
    let mut finalizer = true;
    for (index, step) in steps.iter().enumerate() {
        if let Step::DeleteAnswered { finalizer: carried } = step.step {
            finalizer = carried;
        }
        let next = |wanted: fn(&Step) -> bool| {
            let next = steps[index + 1..].iter().find(|later| wanted(&later.step));
            next.map_or(Timestamp::MAX, |later| later.at)
        };
        let (kind, makes, until) = match step.step {
            Step::Attached { .. } => (Kind::UnpublishInUse, false, next(|step| *step == Step::Delete)),
            // Whose finalizer the API server lost may be published by who has just claimed it, and is undone then.
            Step::Gone if finalizer => (Kind::PublishAfterGone, true, next(|step| *step == Step::Create)),
            _ => continue,
        };
        let within = |call: &&&Call| call.makes == makes && step.at < call.started && call.started < until;
        let wrong = calls.iter().filter(within).map(|call| (kind, *call));
        let deletes = deletes(history, place, step, &steps[index + 1..]).map(|call| (Kind::DeleteInUse, call));
        for (kind, call) in wrong.chain(deletes) {
            let stopped = history
                .process(call.pid, call.started)
                .and_then(|process: &Process| process.stopped_at(call.started));
            // What was sent before a standstill is excused, unless it was wrong by then: nobody binds again what may be deleted.
            let sent_before = stopped.is_some() && (makes || !call.place.is_claim());
            if !sent_before && !history.restored(step.at, call.started) {
                found.push(violation(call.started, kind, place, tell(history, call)));
            }
        }
    }
    found
}

/// Calls that delete a volume while it is attached: before its VolumeAttachment is gone, unless it was unpublished. Whose finalizer the
/// API server lost may be gone as soon as it is deleted.
fn deletes<'h>(
    history: &'h History,
    place: &'h Place,
    step: &'h Observation,
    later: &[&Observation],
) -> impl Iterator<Item = &'h Call> {
    let lost = Step::DeleteAnswered { finalizer: false };
    let gone = later.iter().position(|later| later.step == Step::Gone);
    let during = &later[..gone.unwrap_or(later.len())];
    let lost = during.iter().any(|later| later.step == lost);
    let asked = during.iter().find(|later| lost && later.step == Step::Delete);
    let until = asked.or_else(|| gone.and_then(|gone| later.get(gone)));
    let until = until.map_or(Timestamp::MAX, |until| until.at);
    let is_attached = matches!(step.step, Step::Attached { .. }) && !place.is_claim();
    let of_place = history
        .calls
        .iter()
        .filter(|call| call.place == *place && !call.makes && call.ok);
    let unpublished: Vec<Timestamp> = of_place
        .filter_map(|call| call.finished)
        .filter(|at| step.at < *at)
        .collect();
    history.calls.iter().filter(move |call| {
        let deletes = call.place.is_claim() && !call.makes && call.handle.as_ref() == Some(&place.volume);
        let within = step.at < call.started && call.started < until;
        is_attached && deletes && within && !unpublished.iter().any(|at| *at <= call.started)
    })
}

/// A volume that is used under another ID than before, and the former one was not deleted; or that is made for one claim under two names.
fn two_volumes(history: &History) -> Vec<Violation> {
    let mut calls: Vec<&Call> = history.calls.iter().filter(|call| !made_for(call).is_empty()).collect();
    calls.sort_by_key(|call| call.started);
    // What each claim has: the name and the ID of its volume.
    let mut known: BTreeMap<(&str, &str), (&str, Option<&str>)> = BTreeMap::new();
    let mut found = Vec::new();
    for call in calls {
        let key = (call.place.driver.as_str(), made_for(call));
        let name = name_of(&call.place.volume);
        let (named, had) = *known.entry(key).or_insert((name, None));
        let handle = call.handle.as_deref();
        if named != name || had.zip(handle).is_some_and(|(had, handle)| had != handle) {
            let text = format!("{} of {handle:?}, and it had {named} as {had:?}", tell(history, call));
            found.push(violation(call.started, Kind::TwoVolumes, &call.place, text));
        }
        // What is deleted may be made again, whatever became of the call.
        let is_delete = call.place.is_claim() && !call.makes;
        let has = if is_delete { None } else { handle.or(had) };
        known.insert(key, (name, has));
    }
    found
}

/// The UID of the claim that a volume is made for; empty for other volumes.
fn made_for(call: &Call) -> &str {
    let name = name_of(&call.place.volume);
    let is_made = call.place.is_claim() || name != call.place.volume;
    let uid = name.len().checked_sub(36).filter(|_| is_made);
    uid.and_then(|uid| name.get(uid..)).unwrap_or_default()
}

/// What is known about a violation: the last lines about its object, faults, and the calls for it.
pub fn story(history: &History, violation: &Violation, lines: usize) -> String {
    let until = violation.at + SignedDuration::from_secs(5);
    let is_about = |object: &str| name_of(object) == name_of(&violation.object);
    let mut told: Vec<(Timestamp, String)> = Vec::new();
    for note in history.notes.iter().filter(|note| note.at <= until) {
        if note.object.is_empty() || is_about(&note.object) {
            told.push((note.at, note.text.clone()));
        }
    }
    for call in history.calls.iter().filter(|call| call.started <= until) {
        if is_about(&call.place.volume) {
            told.push((call.started, format!("{}: {}", call.place.driver, tell(history, call))));
        }
    }
    for step in history.observations.iter().filter(|step| step.at <= until) {
        if is_about(&step.place.volume) {
            told.push((step.at, format!("worker of {}: {:?}", step.place, step.step)));
        }
    }
    told.sort();
    let first = told.len().saturating_sub(lines);
    let told = told[first..].iter().map(|(at, text)| format!("    {at} {text}\n"));
    told.collect()
}
