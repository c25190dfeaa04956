//! From what a driver is at to the status that people see. Pure.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::attachment_conditions::{consistent, healthy};
use super::deletion::{DeletionState, Remaining};
use super::last_failure::later;
use super::plan::ConfigProblem;
use super::provisioning_conditions;
use super::provisioning_state::ProvisioningState;
use super::provisioning_status;
use super::saturation::Saturation;
use crate::api::condition::{
    self, ConditionReason, ConditionStatus, ConditionType, ConditionUpdate, replace, truncate_to_seconds,
};
use crate::api::status::{
    AttacherConfigStatus, AttachmentsStatus, DriverMode, DriverStatus as PluginStatus, LastFailure, LastReconcileSync,
    ListedVolume, OldestPending, WithoutAttachment, count,
};
use crate::cache::Counts;
use crate::decide::cut;
use crate::decide::reconcile::Unclaimed;
use crate::objects::Attachment;
use crate::runtime::{DriverPhase, DriverState, Plugin, ReconcileSyncResult};
use csi_attacher_model::findings::{FindingsSummary, StuckAttachment};

/// Whether attachments are compared with what the driver lists, by the settings in use and what the driver can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparisons {
    Made,
    NotMade,
}

/// What is known of provisioning.
#[derive(Clone, Copy)]
pub(super) enum ProvisioningFacts<'a> {
    /// What it is at here, and why what it reads cannot be watched.
    Here(&'a ProvisioningState),
    /// There is no task for it here, and another replica may provision for the driver.
    Elsewhere,
    /// Nobody provisions, as the spec cannot be used: what was begun before may be open still.
    Unused,
    /// The role is off.
    Off,
}

impl<'a> ProvisioningFacts<'a> {
    fn here(self) -> Option<&'a ProvisioningState> {
        match self {
            Self::Here(state) => Some(state),
            Self::Elsewhere | Self::Unused | Self::Off => None,
        }
    }
}

/// Everything that a status is made from.
pub(super) struct StatusInput<'a> {
    pub generation: Option<i64>,
    pub holder: &'a str,
    /// Whether this replica serves the driver and holds the Lease under which a former release served it.
    pub holds_former_lease: bool,
    /// The driver that the settings in use name.
    pub specified: Option<&'a str>,
    /// The driver that the latest spec names, whether that is in use or not.
    pub named_by_spec: Option<&'a str>,
    /// State of the driver; none when none runs.
    pub driver: Option<&'a DriverState>,
    /// Why the latest spec is not in use.
    pub problem: Option<&'a ConfigProblem>,
    /// What the object waits for to be deleted, and what is wrong with that.
    pub deletion: DeletionState,
    /// Why objects cannot be listed or watched.
    pub watch_failure: Option<String>,
    /// What is wrong with the namespaces of the Leases.
    pub lease_warning: Option<String>,
    /// Whether what is known is of one state of the API server: until then nothing is attached.
    pub is_of_one_state: bool,
    pub counts: Counts,
    /// How many attaches and detaches failed and wait; none where there is no queue: this replica does not work for the driver by this
    /// AttacherConfig, and what was found about the driver says nothing of it.
    pub failing: Option<usize>,
    /// How much else failed and waits ([`attachment_conditions::failing`](super::attachment_conditions::failing)).
    pub failing_upkeep: usize,
    /// Whether the last failure of the driver is of an attach or detach that is pending still.
    pub is_last_pending: bool,
    pub oldest: Option<&'a Attachment>,
    /// Which limits make work wait; none when no driver runs.
    pub saturation: Option<&'a Saturation>,
    /// The same of provisioning.
    pub provisioning_saturation: Option<&'a Saturation>,
    pub provisioning: ProvisioningFacts<'a>,
    pub comparisons: Comparisons,
    /// What was found about the driver's attachments; none when this replica does not scan them.
    pub insight: Option<&'a FindingsSummary>,
    /// The attachment that has been stuck longest, if one still is.
    pub stuck: Option<&'a StuckAttachment>,
}

/// A comparison that found the same as the last one is shown after this time at the latest: with one comparison a minute, each
/// driver would else cost the API server a write a minute for nothing but a time.
pub(super) const SAME_RECONCILE_SYNC: SignedDuration = SignedDuration::from_mins(10);

/// Handles and node IDs are shown up to this length, in bytes; the CSI spec allows 128 and 256.
const MAX_SHOWN: usize = 256;

/// The status; `known` is the one before, whose transition times are kept where nothing changed.
pub(super) fn status(facts: &StatusInput<'_>, known: &AttacherConfigStatus, now: Timestamp) -> AttacherConfigStatus {
    let plugin = facts.driver.and_then(|driver| driver.plugin.as_ref());
    let known = &of_driver(known, plugin.map(|plugin| &*plugin.name).or(facts.specified));
    let updates = conditions(facts, &known.conditions);
    let mut conditions = condition::merge(&known.conditions, &updates, facts.generation, now);
    if matches!(facts.provisioning, ProvisioningFacts::Unused | ProvisioningFacts::Off) {
        // Of a role in which nobody works nothing is said.
        conditions.retain(|condition| !ConditionType::is_of_provisioning(&condition.type_));
    }
    AttacherConfigStatus {
        observed_generation: facts.generation,
        conditions,
        driver: plugin
            .map(describe)
            .or_else(|| silent(known, facts.specified.or(facts.named_by_spec))),
        holder: facts.driver.and_then(|driver| driver.phase.worker(facts.holder)),
        leader_election: known.leader_election.clone().filter(|_| !facts.holds_former_lease),
        attachments: plugin.map(|_| attachments(facts)),
        last_reconcile_sync: shown_reconcile_sync(facts, known.last_reconcile_sync.as_ref()),
        last_failure: later(
            facts.driver.and_then(last_failure),
            known.last_failure.clone(),
            |failure| failure.time.0,
            now,
        ),
        provisioning: match facts.provisioning {
            ProvisioningFacts::Here(state) => {
                provisioning_status::of(state, facts.holder, known.provisioning.as_ref(), now)
            }
            // It tells a deletion that there may be something left (`leaving::remaining`).
            ProvisioningFacts::Elsewhere | ProvisioningFacts::Unused => known.provisioning.clone(),
            ProvisioningFacts::Off => None,
        },
    }
}

/// What a status says of the driver that has this name: that of another one, which was served before the spec was changed, says nothing of
/// this one.
pub(super) fn of_driver(known: &AttacherConfigStatus, name: Option<&str>) -> AttacherConfigStatus {
    let mut known = known.clone();
    let other = known.driver.as_ref().zip(name);
    if other.is_some_and(|(driver, name)| driver.name != name) {
        known.driver = None;
        known.last_reconcile_sync = None;
        known.last_failure = None;
        if let Some(provisioning) = &mut known.provisioning {
            provisioning.last_failure = None;
        }
    }
    known
}

/// Whether people wait for this change. Counts and error texts may wait a little, so that a burst of attaches does not
/// become a burst of status writes.
pub(super) fn is_urgent(known: &AttacherConfigStatus, wanted: &AttacherConfigStatus) -> bool {
    let key = |condition: &Condition| {
        (
            condition.type_.clone(),
            condition.status.clone(),
            condition.reason.clone(),
            condition.observed_generation,
        )
    };
    known.observed_generation != wanted.observed_generation
        || known.driver != wanted.driver
        || known.holder != wanted.holder
        || provisioning_status::is_urgent(known.provisioning.as_ref(), wanted.provisioning.as_ref())
        || !known.conditions.iter().map(key).eq(wanted.conditions.iter().map(key))
}

fn describe(plugin: &Plugin) -> PluginStatus {
    PluginStatus {
        name: plugin.name.clone(),
        vendor_version: plugin.vendor_version.clone(),
        mode: Some(if plugin.publishes {
            DriverMode::Attach
        } else {
            DriverMode::Trivial
        }),
        capabilities: plugin.capabilities.clone(),
    }
}

/// A driver that does not answer: what it answered once, else the name that the spec gives it. That one has no mode, and goes
/// with the spec.
fn silent(known: &AttacherConfigStatus, specified: Option<&str>) -> Option<PluginStatus> {
    let answered = known.driver.clone().filter(|driver| driver.mode.is_some());
    let named = |name: &str| PluginStatus {
        name: name.to_owned(),
        vendor_version: String::new(),
        mode: None,
        capabilities: Vec::new(),
    };
    answered.or_else(|| specified.map(named))
}

fn attachments(facts: &StatusInput<'_>) -> AttachmentsStatus {
    let oldest = facts.oldest.and_then(|record| {
        let since = record.pending_since()?;
        Some(OldestPending {
            name: record.name.to_string(),
            pending_since_time: truncate_to_seconds(since),
        })
    });
    AttachmentsStatus::new(
        facts.counts.attached,
        facts.counts.attaching,
        facts.counts.detaching,
        facts.failing.unwrap_or_default(),
        oldest,
    )
}

/// The last comparison. What is known of one stays until the first one of this engine, but not where none is made any more.
fn shown_reconcile_sync(facts: &StatusInput<'_>, known: Option<&LastReconcileSync>) -> Option<LastReconcileSync> {
    let driver = facts.driver;
    if facts.comparisons == Comparisons::NotMade && driver.is_some_and(|driver| driver.phase == DriverPhase::Running) {
        return None;
    }
    let last = driver.and_then(|driver| driver.last_reconcile.as_ref());
    last.map(|last| last_reconcile_sync(last, known))
        .or_else(|| known.cloned())
}

fn last_reconcile_sync(last: &ReconcileSyncResult, known: Option<&LastReconcileSync>) -> LastReconcileSync {
    let without_attachment = match &last.without_attachment {
        // A replica that has just taken over, or a comparison that failed, says nothing about it.
        None => known.and_then(|known| known.without_attachment.clone()),
        Some(found) if found.count == 0 => None,
        Some(found) => Some(WithoutAttachment {
            count: count(found.count),
            examples: found.examples.iter().map(listed_volume).collect(),
        }),
    };
    let found = LastReconcileSync {
        completion_time: truncate_to_seconds(last.finished_at),
        volumes: count(last.volumes),
        mismatches: count(last.mismatches),
        without_attachment,
        error: last.error.as_deref().map(condition::shorten_message),
    };
    let is_same = |known: &&LastReconcileSync| {
        let since = found.completion_time.0.duration_since(known.completion_time.0);
        // A clock that was put back must not keep a time of the future.
        (SignedDuration::ZERO..SAME_RECONCILE_SYNC).contains(&since)
            && found
                == LastReconcileSync {
                    completion_time: found.completion_time.clone(),
                    ..(*known).clone()
                }
    };
    known.filter(is_same).cloned().unwrap_or(found)
}

fn listed_volume(listed: &Unclaimed) -> ListedVolume {
    ListedVolume {
        volume_handle: cut(&listed.handle, MAX_SHOWN).to_owned(),
        node_id: cut(&listed.node_id, MAX_SHOWN).to_owned(),
    }
}

fn last_failure(driver: &DriverState) -> Option<LastFailure> {
    let failure = driver.last_failure.as_ref()?;
    Some(LastFailure {
        time: truncate_to_seconds(failure.at),
        volume_attachment: failure.attachment.clone(),
        operation: failure.operation.to_owned(),
        code: failure.code.clone(),
        message: condition::shorten_message(&failure.message),
        trace_id: failure.trace_id.clone(),
    })
}

/// The four conditions of what the driver is at.
fn of_state(facts: &StatusInput<'_>) -> Vec<ConditionUpdate> {
    if let Some(finalizers) = &facts.deletion.kept_by {
        let text = format!("is being deleted and begins nothing any more; held by finalizer {finalizers}");
        return at_rest(ConditionStatus::False, ConditionReason::Stopped, &text);
    }
    let is_stale = !facts.is_of_one_state && facts.watch_failure.is_some();
    match facts.driver {
        None => of_phase(&DriverState::default()),
        // A round of lists takes a moment; one that fails lasts.
        Some(driver) if driver.phase == DriverPhase::Running && is_stale => {
            let text =
                "the API server went back to an older state: nothing is attached until everything is listed again";
            busy(ConditionReason::Syncing, text, CONNECTED)
        }
        Some(driver) => of_phase(driver),
    }
}

fn conditions(facts: &StatusInput<'_>, known: &[Condition]) -> Vec<ConditionUpdate> {
    use ConditionStatus::{False, True, Unknown};
    let mut updates = of_state(facts);
    let warnings = facts
        .driver
        .map(|driver| [&driver.connection_problem, &driver.unanswered_calls, &driver.concern]);
    for warning in warnings.into_iter().flatten().flatten() {
        let reachable = updates
            .iter_mut()
            .find(|update| update.reason == ConditionReason::Connected);
        if let Some(reachable) = reachable {
            reachable.message = format!("{}; {warning}", reachable.message);
        }
    }
    // Of provisioning by another replica, what that one says.
    let here = facts.provisioning.here();
    let provisioning = here.map(provisioning_conditions::all).unwrap_or_default();
    let of_provisioning = |kind: ConditionType| {
        let own = provisioning.iter().find(|update| update.type_ == kind).cloned();
        own.or_else(|| known.iter().find_map(|known| condition::read(known, kind)))
    };
    if here.is_some_and(provisioning_conditions::is_wanted)
        && let Some(ready) = of_provisioning(ConditionType::ProvisioningReady)
    {
        provisioning_conditions::add(&ready, &mut updates);
    }
    if let Some(ConfigProblem { reason, message, .. }) = facts.problem {
        let wait = "waiting for the spec to be fixed";
        replace(&mut updates, ConditionType::Reconciling, False, *reason, wait);
        // One that rests does so by settings that are not the latest, or by a spec of which nothing else is in use.
        if facts.driver.is_none_or(|driver| driver.phase == DriverPhase::Suspended) {
            let idle = "no driver is running";
            replace(&mut updates, ConditionType::Stalled, True, *reason, message);
            replace(&mut updates, ConditionType::Ready, False, *reason, message);
            replace(&mut updates, ConditionType::DriverReachable, Unknown, *reason, idle);
        } else {
            // They are kept nowhere else, and an upgrade is a restart.
            let until = format!("{message}; its last valid settings are in use until this replica restarts");
            replace(&mut updates, ConditionType::Stalled, True, *reason, &until);
        }
    }
    explain_lists(facts, &mut updates);
    let ready = updates.iter_mut().find(|update| update.type_ == ConditionType::Ready);
    if let (Some(ready), Some(warning)) = (ready, &facts.lease_warning) {
        ready.message = format!("{}; {warning}", ready.message);
    }
    let of_volumes = here.and_then(|_| of_provisioning(ConditionType::DeletionHealthy));
    explain_deletion(facts, of_volumes.as_ref(), &mut updates);
    updates.push(Saturation::condition(facts.saturation, facts.provisioning_saturation));
    updates.extend(of_attachments(facts));
    updates.extend(provisioning);
    updates
}

/// How the attachments are. Who does not serve the driver does not know; where that is about to change, nothing new is said.
fn of_attachments(facts: &StatusInput<'_>) -> Vec<ConditionUpdate> {
    let idle = match facts.driver.map(|driver| &driver.phase) {
        _ if facts.deletion.kept_by.is_some() => Some(ConditionReason::Stopped),
        Some(DriverPhase::Suspended) => Some(
            facts
                .problem
                .map_or(ConditionReason::Suspended, |problem| problem.reason),
        ),
        Some(DriverPhase::Standby { holder: Some(_), .. }) => Some(ConditionReason::Standby),
        Some(DriverPhase::Unreachable { .. }) => Some(ConditionReason::DriverUnreachable),
        Some(DriverPhase::Stalled { reason, .. }) => Some(*reason),
        Some(DriverPhase::Stopped) => Some(ConditionReason::Stopped),
        None => facts.problem.map(|problem| problem.reason),
        _ => None,
    };
    let unknown = |kind| {
        let text = "nothing is known while this replica does not serve the driver: see Ready";
        idle.map(|reason| ConditionUpdate::new(kind, ConditionStatus::Unknown, reason, text))
    };
    let lasting = facts.driver.and_then(|driver| driver.lasting_mismatches.as_ref());
    let found = facts.failing.and(facts.insight);
    let consistent = found.map(|insight| consistent(insight, lasting));
    let healthy = healthy(facts).or_else(|| unknown(ConditionType::AttachmentsHealthy));
    let consistent = consistent.or_else(|| unknown(ConditionType::AttachmentsConsistent));
    healthy.into_iter().chain(consistent).collect()
}

/// Says why the lists do not come in that a driver waits for.
fn explain_lists(facts: &StatusInput<'_>, updates: &mut [ConditionUpdate]) {
    if let Some(failure) = &facts.watch_failure {
        for update in updates
            .iter_mut()
            .filter(|update| update.reason == ConditionReason::Syncing)
        {
            update.message = condition::shorten_message(&format!("{}; {failure}", update.message));
        }
    }
}

/// Says what a deletion waits for, and whether `spec.deletionPolicy` is in effect.
fn explain_deletion(facts: &StatusInput<'_>, of_volumes: Option<&ConditionUpdate>, updates: &mut [ConditionUpdate]) {
    // What only a person can fix besides is shown first.
    let is_stalled =
        |update: &ConditionUpdate| update.type_ == ConditionType::Stalled && update.status == ConditionStatus::True;
    if let Some(problem) = &facts.deletion.problem
        && !updates.iter().any(is_stalled)
    {
        let (kind, reason) = (ConditionType::Stalled, ConditionReason::FinalizerNotWritten);
        replace(updates, kind, ConditionStatus::True, reason, problem);
    }
    if let Some(remaining) = &facts.deletion.remaining {
        let text = format!(
            "is being deleted and attaches no further volumes; waits until {} (spec.deletionPolicy){}{}",
            remaining.words(),
            provisioning_conditions::held_by(remaining, of_volumes),
            way_out(facts, remaining)
        );
        let (kind, reason) = (ConditionType::Reconciling, ConditionReason::WaitingForDetach);
        replace(updates, kind, ConditionStatus::True, reason, &text);
    }
}

/// What a person has to do for a deletion to end that does not end by itself.
fn way_out(facts: &StatusInput<'_>, remaining: &Remaining) -> String {
    if remaining.is_empty() {
        return String::new();
    }
    if facts.driver.is_none() && facts.problem.is_some() {
        const UNUSED: &str = "; nothing is detached, released or found out while its spec is not in use: fix what the condition Stalled says";
        if facts.deletion.is_unreadable {
            return UNUSED.to_owned();
        }
        return format!(
            "{UNUSED}, set spec.suspend to true where another AttacherConfig has the driver, or set spec.deletionPolicy to Orphan to \
             delete the object at once"
        );
    }
    let is_suspended = facts
        .driver
        .is_some_and(|driver| driver.phase == DriverPhase::Suspended);
    let suspended = if is_suspended {
        "; nothing is detached while spec.suspend is true: set it to false"
    } else {
        ""
    };
    let unnamed = if facts.deletion.is_unnamed {
        "; the name of its driver is not known, so that these may be its: let the driver answer once, set spec.driverName, or set \
         spec.deletionPolicy to Orphan to delete the object at once"
    } else {
        ""
    };
    format!("{suspended}{unnamed}")
}

/// Status, reason and message of one condition.
type ConditionParts<'a> = (ConditionStatus, ConditionReason, &'a str);

/// The four conditions that follow from the phase, in the order of the documentation.
fn four(
    ready: ConditionParts<'_>,
    reconciling: ConditionParts<'_>,
    stalled: ConditionParts<'_>,
    reachable: ConditionParts<'_>,
) -> Vec<ConditionUpdate> {
    let all = [
        (ConditionType::Ready, ready),
        (ConditionType::Reconciling, reconciling),
        (ConditionType::Stalled, stalled),
        (ConditionType::DriverReachable, reachable),
    ];
    all.into_iter()
        .map(|(kind, (status, reason, message))| ConditionUpdate::new(kind, status, reason, message))
        .collect()
}

const NOT_STALLED: ConditionParts<'_> = (ConditionStatus::False, ConditionReason::NotStalled, "");
const UP_TO_DATE: ConditionParts<'_> = (
    ConditionStatus::False,
    ConditionReason::UpToDate,
    "the latest spec is in use",
);
const CONNECTED: ConditionParts<'_> = (ConditionStatus::True, ConditionReason::Connected, "the driver answers");
const CONNECTION_LOST: ConditionParts<'_> = (
    ConditionStatus::Unknown,
    ConditionReason::Connecting,
    "the connection to the driver is lost",
);

/// What a driver is served by that has ControllerPublishVolume, and one that has not.
const WITH_CALLS: &str = "attaching and detaching volumes";
const WITHOUT_CALLS: &str =
    "the driver announces no PUBLISH_UNPUBLISH_VOLUME: VolumeAttachments are marked attached without a call to it";

/// Not ready because of something that passes by itself.
fn busy(reason: ConditionReason, text: &str, reachable: ConditionParts<'_>) -> Vec<ConditionUpdate> {
    use ConditionStatus::{False, True};
    four((False, reason, text), (True, reason, text), NOT_STALLED, reachable)
}

fn of_phase(driver: &DriverState) -> Vec<ConditionUpdate> {
    use ConditionStatus::{False, True, Unknown};
    let is_connected = driver.is_connected;
    match &driver.phase {
        DriverPhase::Running => {
            let publishes = driver.plugin.as_ref().is_none_or(|plugin| plugin.publishes);
            let text = if publishes { WITH_CALLS } else { WITHOUT_CALLS };
            let ready = (True, ConditionReason::Running, text);
            four(ready, UP_TO_DATE, NOT_STALLED, CONNECTED)
        }
        DriverPhase::Syncing => busy(
            ConditionReason::Syncing,
            "waiting for the first complete list of objects from the API server",
            CONNECTED,
        ),
        DriverPhase::Connecting => {
            let text = "connecting to the driver";
            busy(
                ConditionReason::Connecting,
                text,
                (Unknown, ConditionReason::Connecting, text),
            )
        }
        DriverPhase::Standby {
            holder,
            namespace,
            new_lease,
        } => standby(holder.as_deref(), namespace.as_deref(), new_lease.as_deref()),
        DriverPhase::AwaitingReservation { after } => {
            let text = format!("AttacherConfig {after} finishes its calls to the same driver");
            busy(ConditionReason::Draining, &text, CONNECTED)
        }
        DriverPhase::Stopped => at_rest(
            False,
            ConditionReason::Stopped,
            "the replica that served the driver has stopped",
        ),
        DriverPhase::Draining => {
            let reachable = if is_connected { CONNECTED } else { CONNECTION_LOST };
            busy(ConditionReason::Draining, "finishing running calls", reachable)
        }
        DriverPhase::Unreachable { reason, message } => four(
            (False, ConditionReason::DriverUnreachable, message),
            (True, ConditionReason::Connecting, "trying to reach the driver"),
            NOT_STALLED,
            (False, *reason, message),
        ),
        DriverPhase::Stalled { reason, message } => {
            let stuck = |status| (status, *reason, message.as_str());
            // Without certificates, or a name that one can contain, nobody was asked.
            let reachable = if is_connected { CONNECTED } else { stuck(False) };
            four(stuck(False), stuck(False), stuck(True), reachable)
        }
        DriverPhase::Suspended => at_rest(True, ConditionReason::Suspended, "spec.suspend is true"),
    }
}

/// Another serves the driver: a state that lasts, and kstatus would wait for the end of what is Reconciling, or not Ready. Or nobody does
/// yet, which passes.
fn standby(holder: Option<&str>, namespace: Option<&str>, new_lease: Option<&str>) -> Vec<ConditionUpdate> {
    let text = standby_text("the driver's Lease", holder, namespace, new_lease);
    if holder.is_none() {
        return busy(ConditionReason::Standby, &text, CONNECTED);
    }
    let ready = (ConditionStatus::True, ConditionReason::Standby, text.as_str());
    four(ready, UP_TO_DATE, NOT_STALLED, CONNECTED)
}

/// Who holds a Lease that this replica does not hold.
pub(super) fn standby_text(
    lease: &str,
    holder: Option<&str>,
    namespace: Option<&str>,
    new_lease: Option<&str>,
) -> String {
    let place = namespace.map_or_else(String::new, |namespace| format!(" in namespace {namespace}"));
    match (holder, new_lease) {
        (Some(holder), _) => format!("{holder} holds {lease}{place}; this replica is ready to take over"),
        (None, Some(told)) => told.to_owned(),
        (None, None) => format!("{lease}{place} has no known holder; trying to acquire it"),
    }
}

/// Nothing is done. It is `ready` if that is what the spec asks for.
fn at_rest(ready: ConditionStatus, reason: ConditionReason, text: &str) -> Vec<ConditionUpdate> {
    use ConditionStatus::{False, Unknown};
    four(
        (ready, reason, text),
        (False, ConditionReason::UpToDate, text),
        NOT_STALLED,
        (Unknown, reason, text),
    )
}
