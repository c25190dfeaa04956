//! What was written on an AttacherConfig, by whom, and the writing.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::deletion::MetadataChange;
use super::plan::{ConfigProblem, PlanInput, SettingsInUse};
use super::status;
use super::status_author::StatusAuthor;
use super::writes::StatusChange;
use crate::api::condition::ConditionType;
use crate::api::names::{FIELD_MANAGER, PROVISIONING_FIELD_MANAGER};
use crate::api::{AttacherConfigObject, AttacherConfigStatus};
use crate::apiserver::{ApiError, ApiErrorKind, ObjectName, Requests};
use crate::decide::patch::PatchType;
use crate::queue::Backoff;
use crate::telemetry::Span;
use crate::told_errors::ToldErrors;

/// How long a change of counts waits, so that a burst of attaches is not a burst of status writes.
const MIN_WRITE_INTERVAL: Duration = Duration::from_secs(2);
/// How long a status that shows everything is not computed again while nothing of the cache and of its driver has changed. Queues
/// and findings tell of no change.
const RECHECK_INTERVAL: Duration = Duration::from_secs(5);
/// The longest pause after what somebody else has undone each time.
const MAX_CONTEST_PAUSE: Duration = Duration::from_mins(10);
/// The same for the status, of one that leads: the other one may be a pod of before a rollout, and goes.
const MAX_LEADER_PAUSE: Duration = Duration::from_mins(1);
/// The longest pause after writes that failed.
const MAX_PAUSE: Duration = Duration::from_secs(15);
/// The metadata, as the rules of RBAC name it.
const METADATA: &str = "attacherconfigs";
/// The status, likewise.
const STATUS: &str = "attacherconfigs/status";

/// An AttacherConfig and what is known of its status.
#[derive(Clone)]
pub(super) struct TrackedConfig {
    pub object: AttacherConfigObject,
    /// The newest status that is known, whoever wrote it.
    pub written: AttacherConfigStatus,
    /// Our writes of the status, and whether somebody else undid them. What is put right then is never urgent.
    contest: Contest,
    /// Writes that failed in a row.
    failures: WriteFailures,
    /// The same of the metadata.
    metadata: WriteFailures,
    /// What of the metadata this replica wrote, and whether somebody else undid it.
    metadata_contests: BTreeMap<MetadataChange, Contest>,
    /// What of it this replica wrote last.
    part: StatusPart,
    /// The version that our last write made: copies of the object up to this one tell nothing new of the status.
    version: Option<u64>,
    /// When it was last seen that the status shows everything, and what the cache's generation was.
    at_rest: Option<(Instant, u64)>,
    pub author: StatusAuthor,
    /// What the plan read of it last; none before it was planned.
    pub planned: Option<PlanInput>,
    /// What its driver is served with.
    pub in_use: SettingsInUse,
    /// Why the latest spec is not in use.
    pub problem: Option<ConfigProblem>,
    /// A list that began when nothing could be claimed any more for an object that is being deleted.
    pub last_list: Option<Arc<AbortOnDropHandle<()>>>,
}

fn version(object: &AttacherConfigObject) -> Option<u64> {
    object.metadata.resource_version.as_deref()?.parse().ok()
}

impl TrackedConfig {
    /// An object from the watch; `known` is what was known of the same object before.
    pub fn new(object: AttacherConfigObject, known: Option<&Self>) -> Self {
        let same = known.filter(|known| known.object.metadata.uid == object.metadata.uid);
        let Some(known) = same else {
            return Self {
                written: object.status.clone(),
                object,
                contest: Contest::default(),
                failures: WriteFailures::default(),
                metadata: WriteFailures::default(),
                metadata_contests: BTreeMap::new(),
                part: StatusPart::All,
                version: None,
                at_rest: None,
                author: StatusAuthor::default(),
                planned: None,
                in_use: SettingsInUse::default(),
                problem: None,
                last_list: None,
            };
        };
        let echo = known.version.is_some() && version(&object) <= known.version;
        let written = if echo { &known.written } else { &object.status };
        let is_undone = known.contest.is_undone || known.part.of(written) != known.part.of(&known.written);
        Self {
            contest: Contest {
                is_undone,
                ..known.contest
            },
            written: written.clone(),
            at_rest: None,
            object,
            ..known.clone()
        }
    }

    pub fn name(&self) -> String {
        self.object.metadata.name.clone().unwrap_or_default()
    }

    /// The name that the latest spec gives the driver, whether that spec is in use or not.
    pub fn named_by_spec(&self) -> Option<&str> {
        self.object.spec.as_ref().ok()?.driver_name.as_deref()
    }

    /// The name that the driver answered once. One without a mode is only what the spec says.
    pub fn known_as(&self) -> Option<&str> {
        let answered = self.written.driver.as_ref().filter(|driver| driver.mode.is_some());
        answered.map(|driver| driver.name.as_str())
    }

    /// Whether the plan would read the same of the object as it did last. What was read then counts, and not the copy before: that may be
    /// the answer to a write, which was not planned.
    pub fn is_planned(&self) -> bool {
        self.planned.as_ref() == Some(&PlanInput::of(&self.object))
    }

    /// A list begins: what it shows tells something new of the status, whatever its version. After a restore of the API
    /// server from a backup it is older than what we wrote.
    pub fn is_listed_again(&mut self) {
        self.version = None;
    }

    /// The status shows everything, as of this generation of the cache.
    pub fn rest(&mut self, cached: u64) {
        self.at_rest = Some((Instant::now(), cached));
    }

    /// The status may not show everything any more.
    pub fn wake(&mut self) {
        self.at_rest = None;
    }

    /// Whether the status shows everything still, as far as the cache's generation and the time since tell.
    pub fn is_at_rest(&self, cached: u64) -> bool {
        let is_so = |(since, generation): (Instant, u64)| generation == cached && since.elapsed() < RECHECK_INTERVAL;
        self.at_rest.is_some_and(is_so)
    }

    /// Whether a wanted status that differs should be written now, or is better put off. Of two that see different things, each writes less
    /// and less often: of two that do not lead, as those of two installations, and of two that lead, as their plug-ins answer different names.
    pub fn is_due(&self, wanted: &AttacherConfigStatus, leads: bool) -> bool {
        if !self.failures.may_write() {
            return false;
        }
        let urgent = !self.contest.is_undone && status::is_urgent(&self.written, wanted);
        let names = self.written.driver.as_ref().zip(wanted.driver.as_ref());
        let longest = match names {
            _ if !leads => MAX_CONTEST_PAUSE,
            Some((there, own)) if there.name != own.name => MAX_LEADER_PAUSE,
            _ => MIN_WRITE_INTERVAL,
        };
        urgent || self.contest.has_rested(longest)
    }

    /// What of its `part` of a wanted status this replica is to send. Of two parts the one that shows what is wanted is left out, as long as
    /// this replica wrote both last and nobody else did after it: else each has to be taken over.
    pub fn differing_part(&self, wanted: &AttacherConfigStatus, part: StatusPart) -> StatusPart {
        let is_own = self.contest.written_at.is_some() && self.part == part && !self.contest.is_undone;
        if part != StatusPart::All || !is_own || !shows_provisioning(wanted) {
            return part;
        }
        let parts = [StatusPart::AllButProvisioning, StatusPart::Provisioning];
        match parts.map(|part| part.of(&self.written) != part.of(wanted)) {
            [true, false] => StatusPart::AllButProvisioning,
            [false, true] => StatusPart::Provisioning,
            _ => part,
        }
    }

    /// Whether the status shows this, and this replica wrote that part of it last.
    pub fn shows(&self, wanted: &AttacherConfigStatus, part: StatusPart) -> bool {
        *wanted == self.written && part == self.part
    }

    /// We wrote this, and the answer was this object. True when writes had failed before.
    pub fn wrote(&mut self, change: &StatusChange, answer: &AttacherConfigObject) -> bool {
        let part = change.part;
        let there = change.sent.after(change.wanted.clone(), &answer.status);
        self.part = part;
        self.version = version(answer);
        self.contest.wrote();
        if version(&self.object) > self.version {
            // The watch was faster, and showed what somebody else made of it since.
            self.contest.is_undone = part.of(&self.written) != part.of(&change.wanted);
        } else {
            // What was not sent may be what somebody else wrote meanwhile.
            let mut halves = [StatusPart::AllButProvisioning, StatusPart::Provisioning].into_iter();
            let is_other = |half: StatusPart| half.of(&there) != half.of(&change.wanted);
            self.contest.is_undone = change.sent != part && halves.any(is_other);
            self.written = there;
        }
        self.failures.end()
    }

    /// We wrote its metadata, and the answer was this object. The watch may have shown a newer one meanwhile.
    pub fn take_in(&mut self, answer: &AttacherConfigObject) {
        if version(&self.object) < version(answer) {
            self.object = answer.clone();
        }
    }

    /// A write failed; how long the next one waits, unless it failed in the same way before, or the object is another one or gone.
    pub fn failed(&mut self, error: &ApiError) -> Option<Duration> {
        let told = self.failures.add(error);
        told.filter(|_| !is_gone_or_changed(error))
    }

    /// Whether this change, which is needed, may be written now. If it was written before, and not long ago, somebody else undid it.
    pub fn may_write_metadata(&mut self, change: MetadataChange) -> bool {
        let contest = self.metadata_contests.get_mut(&change);
        let has_rested = contest.is_none_or(|contest| {
            contest.is_undone |= contest.is_recent();
            contest.has_rested(MAX_CONTEST_PAUSE)
        });
        has_rested && self.metadata.may_write()
    }

    /// We wrote this change of the metadata. True when writes of it had failed before.
    pub fn wrote_metadata(&mut self, change: MetadataChange) -> bool {
        let contests = &mut self.metadata_contests;
        // Whoever changes the policy to and fro undoes nothing: that was this replica.
        match change {
            MetadataChange::Protect => contests.remove(&MetadataChange::Unprotect),
            MetadataChange::Unprotect => contests.remove(&MetadataChange::Protect),
            MetadataChange::LetGo | MetadataChange::WithdrawConfirmation => None,
        };
        contests.entry(change).or_default().wrote();
        self.metadata_written()
    }

    /// The metadata shows what was written. True when writes of it had failed before.
    pub fn metadata_written(&mut self) -> bool {
        let had_failed = self.metadata.end();
        if had_failed {
            self.wake();
        }
        had_failed
    }

    /// A write of the metadata failed; how long the next one waits, unless it failed in the same way before. The condition Stalled says so
    /// for as long as it lasts. One about an older version of the object is no failure: the next one is about the newer.
    pub fn metadata_failed(&mut self, error: &ApiError) -> Option<Duration> {
        if is_gone_or_changed(error) {
            return None;
        }
        self.wake();
        self.metadata.add(error)
    }

    /// Why the metadata cannot be written, once it failed more than once: an API server that is away for a moment is no news.
    pub fn metadata_error(&self) -> Option<&str> {
        (self.metadata.count > 1).then_some(&*self.metadata.error)
    }

    /// Whether somebody else undid this change more than once, the last time not long ago.
    pub fn is_contested(&self, change: MetadataChange) -> bool {
        let contest = self.metadata_contests.get(&change);
        contest.is_some_and(|contest| contest.is_recent() && contest.rounds > u32::from(!contest.is_undone))
    }
}

/// When this replica wrote something last, and how often in a row somebody else undid it before it was written again.
#[derive(Clone, Copy, Debug, Default)]
struct Contest {
    written_at: Option<Instant>,
    /// Whether the last write was undone.
    is_undone: bool,
    /// How often in a row one before was.
    rounds: u32,
}

impl Contest {
    fn wrote(&mut self) {
        let rounds = self.rounds.saturating_add(1);
        *self = Self {
            written_at: Some(Instant::now()),
            is_undone: false,
            rounds: if self.is_undone { rounds } else { 0 },
        };
    }

    /// Whether the last write was not long ago.
    fn is_recent(&self) -> bool {
        self.written_at.is_some_and(|at| at.elapsed() < MAX_CONTEST_PAUSE)
    }

    /// Whether so much time has passed since the last write that the next one may be made. What is undone again and again rests twice as long
    /// each time, up to `longest`.
    fn has_rested(&self, longest: Duration) -> bool {
        let rounds = if self.is_undone { self.rounds } else { 0 };
        let pause = MIN_WRITE_INTERVAL.saturating_mul(1 << rounds.min(16)).min(longest);
        self.written_at.is_none_or(|at| at.elapsed() >= pause)
    }
}

/// Writes that failed in a row, why the last one did, and until when no other one is tried.
#[derive(Clone, Debug, Default)]
struct WriteFailures {
    count: u32,
    error: String,
    told: ToldErrors,
    until: Option<Instant>,
}

impl WriteFailures {
    fn may_write(&self) -> bool {
        self.until.is_none_or(|until| Instant::now() >= until)
    }

    /// One more. How long the next write waits, where that is to be told: a CRD that is too old, or gone, refuses each one alike.
    fn add(&mut self, error: &ApiError) -> Option<Duration> {
        let pause = Backoff::default().base(self.count).min(MAX_PAUSE);
        self.count = self.count.saturating_add(1);
        self.until = Some(Instant::now() + pause);
        self.error = error.to_string();
        self.told.is_news(error).then_some(pause)
    }

    /// One has succeeded. True when there were any.
    fn end(&mut self) -> bool {
        std::mem::take(self).count > 0
    }
}

/// What a replica says of an AttacherConfig: the Leases of attaching and provisioning may be held by two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StatusPart {
    /// Everything.
    All,
    /// Everything but how provisioning is, which another replica says.
    AllButProvisioning,
    /// How provisioning is, while another replica says the rest.
    Provisioning,
}

impl StatusPart {
    /// What is written of a status. The Lease of a former release has another writer.
    pub fn of(self, status: &AttacherConfigStatus) -> AttacherConfigStatus {
        // Those of other writers are theirs.
        let is_own = |condition: &&Condition| ConditionType::ALL.iter().any(|kind| kind.as_str() == condition.type_);
        let is_said = |condition: &&Condition| match self {
            Self::All => true,
            Self::AllButProvisioning => !ConditionType::is_of_provisioning(&condition.type_),
            Self::Provisioning => ConditionType::is_of_provisioning(&condition.type_),
        };
        let conditions = status.conditions.iter().filter(is_own).filter(is_said);
        let rest = match self {
            Self::Provisioning => AttacherConfigStatus {
                provisioning: status.provisioning.clone(),
                ..AttacherConfigStatus::default()
            },
            Self::AllButProvisioning => AttacherConfigStatus {
                provisioning: None,
                ..status.clone()
            },
            Self::All => status.clone(),
        };
        AttacherConfigStatus {
            conditions: conditions.cloned().collect(),
            leader_election: None,
            ..rest
        }
    }

    /// What of this part is to be taken away from what is `there` after `wanted` was applied, as it has another writer. As a merge patch of
    /// the status.
    pub fn left_over(
        self,
        before: &AttacherConfigStatus,
        wanted: &AttacherConfigStatus,
        there: &AttacherConfigStatus,
    ) -> Option<Value> {
        // The Lease of a former release is never applied, and goes only where it was known. Conditions are a list.
        let is_known = |status: &AttacherConfigStatus| status.leader_election == before.leader_election;
        let fields = |status: &AttacherConfigStatus| {
            let shown = AttacherConfigStatus {
                conditions: Vec::new(),
                leader_election: status.leader_election.clone().filter(|_| is_known(status)),
                ..self.of(status)
            };
            serde_json::to_value(shown).unwrap_or_default()
        };
        let mut removed = match nulled(&fields(there), &fields(wanted)) {
            Some(Value::Object(removed)) => removed,
            _ => Map::new(),
        };
        let (own, kept) = (self.of(there).conditions, self.of(wanted).conditions);
        let is_among = |all: &[Condition], one: &Condition| all.iter().any(|condition| condition.type_ == one.type_);
        let is_left = |condition: &&Condition| is_among(&own, condition) && !is_among(&kept, condition);
        if there.conditions.iter().any(|condition| is_left(&condition)) {
            let rest = there.conditions.iter().filter(|condition| !is_left(condition));
            removed.insert("conditions".to_owned(), json!(rest.collect::<Vec<_>>()));
        }
        (!removed.is_empty()).then_some(Value::Object(removed))
    }

    /// What is there after this part of `wanted` was written: what others say is as the API server answered.
    fn after(self, wanted: AttacherConfigStatus, answered: &AttacherConfigStatus) -> AttacherConfigStatus {
        let wanted = AttacherConfigStatus {
            leader_election: answered.leader_election.clone(),
            ..wanted
        };
        let (rest, provisioning) = match self {
            Self::All => return wanted,
            Self::AllButProvisioning => (wanted, answered.clone()),
            Self::Provisioning => (answered.clone(), wanted),
        };
        let is_of_provisioning = |condition: &&Condition| ConditionType::is_of_provisioning(&condition.type_);
        let conditions = rest.conditions.iter();
        let conditions = conditions.filter(|condition| !is_of_provisioning(condition));
        let others = provisioning.conditions.iter().filter(is_of_provisioning);
        AttacherConfigStatus {
            conditions: conditions.chain(others).cloned().collect(),
            provisioning: provisioning.provisioning.clone(),
            ..rest
        }
    }
}

/// Whether a status says how provisioning is.
fn shows_provisioning(status: &AttacherConfigStatus) -> bool {
    let mut conditions = status.conditions.iter();
    status.provisioning.is_some() || conditions.any(|condition| ConditionType::is_of_provisioning(&condition.type_))
}

/// The merge patch that takes away each field of an object that is `there` and not `wanted`, however deep.
fn nulled(there: &Value, wanted: &Value) -> Option<Value> {
    let (there, wanted) = (there.as_object()?, wanted.as_object()?);
    let fields = there.iter().filter_map(|(name, there)| {
        let removed = match wanted.get(name) {
            Some(wanted) => nulled(there, wanted)?,
            None => Value::Null,
        };
        Some((name.clone(), removed))
    });
    let fields: Map<String, Value> = fields.collect();
    (!fields.is_empty()).then_some(Value::Object(fields))
}

#[derive(Clone)]
pub(super) struct StatusWriter(Requests);

impl StatusWriter {
    /// Writes by these requests, but at once.
    pub fn new(requests: &Requests) -> Self {
        Self(requests.without_flow())
    }

    /// Writes a part of the status of the object with this UID, by server-side apply. That leaves where it is what has another writer: it
    /// is removed afterwards, if the object is still of the version that shows it.
    pub async fn write(
        &self,
        name: &str,
        uid: Option<&str>,
        change: &StatusChange,
    ) -> Result<AttacherConfigObject, ApiError> {
        let StatusChange {
            before, wanted, sent, ..
        } = change;
        let answer = self.apply_parts(name, uid, wanted, *sent).await?;
        let Some(removed) = sent.left_over(before, wanted, &answer.status) else {
            return Ok(answer);
        };
        let metadata = json!({"uid": uid, "resourceVersion": answer.metadata.resource_version});
        let patch = json!({"metadata": metadata, "status": removed});
        let (name, untraced) = (ObjectName::status_of(name), Span::disabled());
        match self.0.patch(name, PatchType::Merge, &patch, None, &untraced).await {
            // The status is written. What came in between is a change that is still to be seen, and shows what is left over again.
            Err(error) if is_gone_or_changed(&error) => Ok(answer),
            removed => removed.map_err(|error| explained(error, STATUS)),
        }
    }

    /// How provisioning is has a field manager of its own, whoever says it. Of a condition that two managers had written, the API server
    /// would keep a part when one of them leaves it out, and refuse what comes of that for ever.
    async fn apply_parts(
        &self,
        name: &str,
        uid: Option<&str>,
        status: &AttacherConfigStatus,
        part: StatusPart,
    ) -> Result<AttacherConfigObject, ApiError> {
        let (rest, provisioning) = (StatusPart::AllButProvisioning, StatusPart::Provisioning);
        match part {
            // First who takes it over, so that it always has a writer.
            StatusPart::All if shows_provisioning(status) => {
                let provisioning = self.apply(name, uid, status, provisioning).await;
                // A CRD that knows nothing of provisioning has room for the rest.
                let rest = self.apply(name, uid, status, rest).await?;
                provisioning.map(|_| rest)
            }
            StatusPart::All => self.apply(name, uid, status, rest).await,
            StatusPart::AllButProvisioning | StatusPart::Provisioning => self.apply(name, uid, status, part).await,
        }
    }

    async fn apply(
        &self,
        name: &str,
        uid: Option<&str>,
        status: &AttacherConfigStatus,
        part: StatusPart,
    ) -> Result<AttacherConfigObject, ApiError> {
        let body = json!({
            "apiVersion": "attacher.csi.dev/v1alpha1",
            "kind": "AttacherConfig",
            "metadata": {"name": name, "uid": uid},
            "status": part.of(status),
        });
        let manager = match part {
            StatusPart::Provisioning => PROVISIONING_FIELD_MANAGER,
            StatusPart::All | StatusPart::AllButProvisioning => FIELD_MANAGER,
        };
        let written = self.0.apply(manager, ObjectName::status_of(name), &body).await;
        written.map_err(|error| explained(error, STATUS))
    }

    pub async fn write_metadata(&self, name: &str, patch: &Value) -> Result<AttacherConfigObject, ApiError> {
        let untraced = Span::disabled();
        let written = self.0.patch(name, PatchType::Merge, patch, None, &untraced).await;
        written.map_err(|error| explained(error, METADATA))
    }
}

/// Says what to mend where a write of this resource was refused: the rule that is missing, or the CRD.
pub(super) fn explained(error: ApiError, resource: &str) -> ApiError {
    let message = if error.is_of_authorizer() {
        format!(
            "{error}; the operator's ServiceAccount needs, by a ClusterRole, apiGroups [attacher.csi.dev], resources [{resource}], \
             verbs [patch]"
        )
    } else if error.message.contains("field not declared in schema") {
        // Server-side apply refuses a status that the schema of the CRD does not have.
        format!(
            "the CRD in the cluster is older than this operator; upgrade the CRD (docs/operate/UPGRADE.md): {error}"
        )
    } else {
        return error;
    };
    ApiError { message, ..error }
}

/// Whether a write failed because the object is another one, or gone: another replica was faster, as often as not. A 404 that is not
/// the API server's word about the object is neither.
pub(super) fn is_gone_or_changed(error: &ApiError) -> bool {
    error.kind == ApiErrorKind::NotFound || (error.kind == ApiErrorKind::Stale && error.status == Some(409))
}
