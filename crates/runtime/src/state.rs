//! What a driver is at, for conditions, metrics and whoever waits.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::api::condition::ConditionReason;
use crate::decide::reconcile::{LastingMismatches, VolumesWithoutAttachment};

/// So long the words of a driver are shown before others for the same reason: one that is asked each second may put the ID of the request
/// into each of its errors.
const DRIVERS_WORDS_PAUSE: Duration = Duration::from_secs(10);

/// The phase of a driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DriverPhase {
    #[default]
    /// Not connected yet, or again not.
    Connecting,
    /// The driver does not answer as it should; tried again by itself.
    Unreachable {
        /// Reason for the condition DriverReachable.
        reason: ConditionReason,
        /// What is wrong and when it is tried again.
        message: String,
    },
    /// Connected and identified, but the watches have not delivered everything yet.
    Syncing,
    /// Ready to work, but another replica holds the driver's Lease, or nobody yet.
    Standby {
        /// Who holds it, if known.
        holder: Option<String>,
        /// Namespace of the Lease, if that is not the operator's.
        namespace: Option<String>,
        /// Until when nobody may hold it, while it is new.
        new_lease: Option<String>,
    },
    /// Ready to work when an AttacherConfig for the same driver that goes after this one has finished.
    AwaitingReservation {
        /// Name of that AttacherConfig.
        after: Arc<str>,
    },
    /// At work.
    Running,
    /// Only a person can mend it.
    Stalled {
        /// Reason for the condition Stalled.
        reason: ConditionReason,
        /// What is wrong and how to mend it.
        message: String,
    },
    /// Told to rest.
    Suspended,
    /// Finishing what runs.
    Draining,
    /// Everything is finished and the Lease is about to be released; nothing follows.
    Stopped,
}

impl DriverPhase {
    /// Who does the work, by name, where it is known; `this_replica` while this one does.
    pub fn worker(&self, this_replica: &str) -> Option<String> {
        match self {
            Self::Running => Some(this_replica.to_owned()),
            Self::Standby { holder, .. } => holder.clone(),
            _ => None,
        }
    }

    /// Whether both are in the words of a driver that could not be asked, for the same reason.
    fn is_in_words_of_driver(&self, other: &Self) -> bool {
        let in_words = |reason| matches!(reason, ConditionReason::CallFailed | ConditionReason::NoGrpc);
        match (self, other) {
            (Self::Unreachable { reason, .. }, Self::Unreachable { reason: others, .. }) => {
                reason == others && in_words(*reason)
            }
            _ => false,
        }
    }
}

/// Name, version and capabilities of a driver, as it sent them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plugin {
    /// Name from GetPluginInfo.
    pub name: String,
    /// Version from GetPluginInfo.
    pub vendor_version: String,
    /// Whether it has ControllerPublishVolume; a driver without is served trivially.
    pub publishes: bool,
    /// Its controller capabilities by name.
    pub capabilities: Vec<String>,
}

/// The last attach or detach that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureRecord {
    /// When.
    pub at: Timestamp,
    /// Of which VolumeAttachment, PersistentVolume or `NAMESPACE/NAME` of a claim.
    pub attachment: String,
    /// "attach", "detach", "provision" or "delete"; "delete" also of a claim, whose volume has no PersistentVolume.
    pub operation: &'static str,
    /// gRPC code name, or the kind of refusal.
    pub code: String,
    /// What was written on the attachment.
    pub message: String,
    /// Trace of the attempt, when it is traced.
    pub trace_id: Option<String>,
}

/// Secrets of volumes that the driver is not given: they may not be read, or the AttacherConfig does not list them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WithheldSecrets {
    /// Why, for the condition AttachmentsHealthy.
    pub reason: ConditionReason,
    /// Which one, what is missing, and how to add it; about one of them, when there are several.
    pub message: String,
    /// How many attachments wait for such a Secret.
    pub attachments: usize,
}

/// The last comparison with what the driver lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReconcileSyncResult {
    /// When it ended.
    pub finished_at: Timestamp,
    /// Volumes that the driver listed.
    pub volumes: usize,
    /// Attachments that say otherwise than the driver.
    pub mismatches: usize,
    /// Volumes that no VolumeAttachment names; none while it is not known.
    pub without_attachment: Option<VolumesWithoutAttachment>,
    /// Why it could not be made.
    pub error: Option<String>,
}

/// State of a driver. By default it was not started yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverState {
    /// What it is at.
    pub phase: DriverPhase,
    /// Whether the driver has answered over a connection that is not lost. The phase does not say so of a driver that is stalled, or whose
    /// calls end.
    pub is_connected: bool,
    /// What the driver sent about itself at the last handshake; none before the first.
    pub plugin: Option<Plugin>,
    /// What will be in the way of the next connection, though the one that stands works.
    pub concern: Option<String>,
    /// What is wrong with the connection that stands.
    pub connection_problem: Option<String>,
    /// That calls over it get no answer, though it works.
    pub unanswered_calls: Option<String>,
    /// What failed last.
    pub last_failure: Option<FailureRecord>,
    /// Secrets that the driver is not given, while attachments wait for them.
    pub withheld: Option<WithheldSecrets>,
    /// The last comparison with what the driver lists.
    pub last_reconcile: Option<ReconcileSyncResult>,
    /// Attachments that the driver lists otherwise although it answered their repairs with OK.
    pub lasting_mismatches: Option<LastingMismatches>,
    /// Attempts that ended; changes whenever counts may have changed.
    pub attempts: u64,
    /// Claims that are being written; a change wakes no reader.
    pub claims: usize,
}

impl DriverState {
    /// Whether nothing in it is about another driver than this one.
    fn is_of(&self, driver: &str) -> bool {
        self.plugin.as_ref().is_none_or(|known| known.name == driver)
    }
}

/// A claim that is being written.
pub struct ClaimGuard(watch::Sender<DriverState>);

impl Drop for ClaimGuard {
    fn drop(&mut self) {
        self.0.send_if_modified(|status| {
            status.claims = status.claims.saturating_sub(1);
            false
        });
    }
}

/// Sends the state to those that show it; only changes wake readers.
#[derive(Clone, Debug)]
pub struct DriverStateSender {
    state: watch::Sender<DriverState>,
    /// When the text of the last obstacle was shown first.
    obstacle_shown_at: Arc<Mutex<Option<Instant>>>,
}

impl DriverStateSender {
    /// Sends the state to the receivers of this channel.
    pub fn new(sender: watch::Sender<DriverState>) -> Self {
        Self {
            state: sender,
            obstacle_shown_at: Arc::default(),
        }
    }

    /// The state that was sent last.
    pub fn borrow(&self) -> watch::Ref<'_, DriverState> {
        self.state.borrow()
    }

    /// What the driver is at.
    pub fn phase(&self, phase: DriverPhase) {
        self.change(|status| &mut status.phase, phase);
    }

    /// Whether the driver has answered over a connection that is not lost.
    pub fn connected(&self, is_connected: bool) {
        self.change(|status| &mut status.is_connected, is_connected);
    }

    /// Why the driver is not worked for, and whether it is connected all the same. True when that is news: another phase, reason or text, but
    /// for the words of a driver, which are kept for [`DRIVERS_WORDS_PAUSE`].
    pub fn unserved(&self, phase: DriverPhase, is_connected: bool) -> bool {
        let mut shown_at = self.obstacle_shown_at.lock();
        let mut is_news = false;
        self.state.send_if_modified(|status| {
            let is_again = status.phase.is_in_words_of_driver(&phase);
            let is_recent = shown_at.is_some_and(|at| at.elapsed() < DRIVERS_WORDS_PAUSE);
            let shows = !(is_again && is_recent) && status.phase != phase;
            is_news = shows && !is_again;
            if shows {
                status.phase = phase;
                *shown_at = Some(Instant::now());
            }
            let differs = shows || status.is_connected != is_connected;
            status.is_connected = is_connected;
            differs
        });
        is_news
    }

    /// Shows what the driver sent about itself. What is known of another driver, which answered here before, says nothing of this one.
    pub fn plugin(&self, plugin: Plugin) {
        self.state.send_if_modified(|status| {
            if status.plugin.as_ref() == Some(&plugin) {
                return false;
            }
            if !status.is_of(&plugin.name) {
                status.last_failure = None;
                status.withheld = None;
                status.last_reconcile = None;
                status.lasting_mismatches = None;
            }
            status.plugin = Some(plugin);
            true
        });
    }

    /// Whether it is a new one.
    pub fn concern(&self, concern: Option<String>) -> bool {
        self.change(|status| &mut status.concern, concern)
    }

    /// Whether it is a new one.
    pub fn connection_problem(&self, problem: Option<String>) -> bool {
        self.change(|status| &mut status.connection_problem, problem)
    }

    /// Whether calls over a connection that works get no answer.
    pub fn unanswered_calls(&self, problem: Option<String>) {
        self.change(|status| &mut status.unanswered_calls, problem);
    }

    /// Counts an attempt that ended.
    pub fn attempt_ended(&self) {
        self.state
            .send_modify(|status| status.attempts = status.attempts.wrapping_add(1));
    }

    /// Counts a claim that is about to be written, until the guard is dropped. Settings that are read after this are those of a
    /// supervisor that has seen no claim in flight, or newer ones.
    pub fn claiming(&self) -> ClaimGuard {
        self.state.send_if_modified(|status| {
            status.claims += 1;
            false
        });
        ClaimGuard(self.state.clone())
    }

    /// An attempt of this driver failed. A call that ends when another driver answers already is not told.
    pub fn failure(&self, driver: &str, failure: FailureRecord) {
        self.state.send_if_modified(|status| {
            let is_news = status.is_of(driver) && status.last_failure.as_ref() != Some(&failure);
            if is_news {
                status.last_failure = Some(failure);
            }
            is_news
        });
    }

    /// Which Secrets the driver is not given, while attachments wait for them.
    pub fn withheld(&self, withheld: Option<WithheldSecrets>) {
        self.change(|status| &mut status.withheld, withheld);
    }

    /// A comparison with what the driver lists has ended; none when no comparisons are made any more.
    pub fn reconcile_result(&self, last: Option<ReconcileSyncResult>) {
        self.change(|status| &mut status.last_reconcile, last);
    }

    /// What the driver lists otherwise although it answered repairs with OK.
    pub fn lasting_mismatches(&self, lasting: Option<LastingMismatches>) {
        self.change(|status| &mut status.lasting_mismatches, lasting);
    }

    /// A VolumeAttachment whose repairs the driver answers with OK and that it lists otherwise, if there is one.
    pub fn lasting_mismatch(&self) -> Option<Arc<str>> {
        let state = self.state.borrow();
        Some(state.lasting_mismatches.as_ref()?.example.name.clone())
    }

    /// Whether the last comparison could not be made.
    pub fn reconcile_failed(&self) -> bool {
        let status = self.state.borrow();
        status.last_reconcile.as_ref().is_some_and(|last| last.error.is_some())
    }

    fn change<T: PartialEq>(&self, field: impl Fn(&mut DriverState) -> &mut T, value: T) -> bool {
        self.state.send_if_modified(|status| {
            let field = field(status);
            let differs = *field != value;
            if differs {
                *field = value;
            }
            differs
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_counted_while_it_is_written() {
        let (sender, mut seen) = watch::channel(DriverState::default());
        let status = DriverStateSender::new(sender);
        let (one, other) = (status.claiming(), status.claiming());
        assert_eq!(seen.borrow().claims, 2);
        drop(one);
        assert_eq!(seen.borrow().claims, 1);
        drop(other);
        assert_eq!(seen.borrow().claims, 0);
        assert!(!seen.has_changed().unwrap(), "nobody is told");
        status.attempt_ended();
        assert!(seen.borrow_and_update().attempts == 1);
    }

    fn unreachable(message: &str) -> DriverPhase {
        DriverPhase::Unreachable {
            reason: ConditionReason::CallFailed,
            message: message.to_owned(),
        }
    }

    fn stalled(message: &str) -> DriverPhase {
        DriverPhase::Stalled {
            reason: ConditionReason::TlsInvalid,
            message: message.to_owned(),
        }
    }

    /// A driver that is asked each second may say something else each time: that is neither news nor a write each second.
    #[tokio::test(start_paused = true)]
    async fn the_words_of_a_driver_are_kept_for_some_seconds_and_are_no_news() {
        let (sender, mut seen) = watch::channel(DriverState::default());
        let status = DriverStateSender::new(sender);
        assert!(status.unserved(unreachable("request 0"), false));
        let mut shown = Vec::new();
        for request in 1..=25 {
            tokio::time::advance(Duration::from_secs(1)).await;
            assert!(!status.unserved(unreachable(&format!("request {request}")), false));
            if seen.has_changed().unwrap() {
                shown.push(seen.borrow_and_update().phase.clone());
            }
        }
        let wanted = ["request 0", "request 10", "request 20"];
        assert_eq!(shown, wanted.map(unreachable));
    }

    #[tokio::test(start_paused = true)]
    async fn another_obstacle_is_news_and_what_a_person_fixes_is_shown_at_once() {
        let over_tls = |message: &str| DriverPhase::Unreachable {
            reason: ConditionReason::TlsFailed,
            message: message.to_owned(),
        };
        let status = DriverStateSender::new(watch::Sender::default());
        let rows = [
            (unreachable("a"), true),
            (stalled("a"), true),
            (stalled("b"), true),
            (stalled("b"), false),
            (over_tls("a"), true),
            (over_tls("b"), true),
            (unreachable("a"), true),
            (DriverPhase::Connecting, true),
            (unreachable("b"), true),
        ];
        for (phase, is_news) in rows {
            assert_eq!(status.unserved(phase.clone(), false), is_news, "{phase:?}");
            assert_eq!(status.borrow().phase, phase);
        }
    }

    fn plugin(name: &str, version: &str) -> Plugin {
        Plugin {
            name: name.to_owned(),
            vendor_version: version.to_owned(),
            publishes: true,
            capabilities: Vec::new(),
        }
    }

    fn failed(message: &str) -> FailureRecord {
        FailureRecord {
            at: Timestamp::UNIX_EPOCH,
            attachment: "csi-1".to_owned(),
            operation: "attach",
            code: "Internal".to_owned(),
            message: message.to_owned(),
            trace_id: None,
        }
    }

    /// A driver is replaced behind its endpoint while no spec names it.
    #[test]
    fn what_is_known_of_another_driver_goes_with_it() {
        let (sender, mut seen) = watch::channel(DriverState::default());
        let status = DriverStateSender::new(sender);
        status.plugin(plugin("a.test", "1"));
        status.failure("a.test", failed("of a"));
        status.withheld(Some(WithheldSecrets {
            reason: ConditionReason::CallFailed,
            message: "of a".to_owned(),
            attachments: 1,
        }));
        status.reconcile_result(Some(ReconcileSyncResult {
            finished_at: Timestamp::UNIX_EPOCH,
            volumes: 1,
            mismatches: 0,
            without_attachment: None,
            error: None,
        }));
        let known = seen.borrow_and_update().clone();
        status.plugin(plugin("a.test", "1"));
        assert!(!seen.has_changed().unwrap(), "nothing is new");
        status.plugin(plugin("a.test", "2"));
        let updated = seen.borrow_and_update().clone();
        let of_a = DriverState {
            plugin: Some(plugin("a.test", "2")),
            ..known
        };
        assert_eq!(updated, of_a, "another version is the same driver");
        status.plugin(plugin("b.test", "1"));
        let of_b = DriverState {
            plugin: Some(plugin("b.test", "1")),
            ..DriverState::default()
        };
        assert_eq!(*status.borrow(), of_b);
        // A call of the former one ends late.
        status.failure("a.test", failed("of a, late"));
        assert_eq!(*status.borrow(), of_b);
        status.failure("b.test", failed("of b"));
        assert_eq!(status.borrow().last_failure, Some(failed("of b")));
    }

    /// Of one change, so that no reader sees a driver that is stalled and not connected for a moment.
    #[test]
    fn an_obstacle_says_whether_the_driver_is_connected() {
        let (sender, mut seen) = watch::channel(DriverState::default());
        let status = DriverStateSender::new(sender);
        for is_connected in [true, false, true] {
            status.unserved(stalled("a"), is_connected);
            assert!(seen.has_changed().unwrap());
            assert_eq!(seen.borrow_and_update().is_connected, is_connected);
        }
        status.unserved(stalled("a"), true);
        assert!(!seen.has_changed().unwrap());
    }
}
