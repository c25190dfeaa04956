//! Where everybody writes down what happens.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use csi_mock_driver::{CallRecord, CallResult, Method};
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use tokio_util::task::AbortOnDropHandle;
use tonic::Code;

use super::checker::Kind;
use super::history::{
    Call, Finding, History, Lapse, LostAnswers, Note, Observation, Place, Process, Step, Stop, Term, name_of,
};

/// The pause between two looks at whether this process stands still.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// A look that is so long after the one before shows that it did.
const STALL: SignedDuration = SignedDuration::from_millis(300);

/// A history that grows. Clones write into the same one.
#[derive(Clone, Default)]
pub struct Recorder {
    history: Arc<Mutex<History>>,
    /// Who renewed the Lease of a driver last, and when.
    renewals: Arc<Mutex<BTreeMap<String, (String, Timestamp)>>>,
    /// Whether lines for people are printed at once too.
    aloud: bool,
}

impl Recorder {
    /// An empty one.
    pub fn new(aloud: bool) -> Self {
        Self {
            history: Arc::default(),
            renewals: Arc::default(),
            aloud,
        }
    }

    /// Writes down when this process, in which the drivers run too, stood still; ends when it is dropped.
    pub fn watch_stalls(&self) -> AbortOnDropHandle<()> {
        let history = Arc::clone(&self.history);
        AbortOnDropHandle::new(tokio::spawn(async move {
            let mut last = Timestamp::now();
            loop {
                tokio::time::sleep(LOOK_INTERVAL).await;
                let now = Timestamp::now();
                if now.duration_since(last) > STALL {
                    history.lock().stalls.push((last, now));
                }
                last = now;
            }
        }))
    }

    /// A line for people; `object` is empty when it is about everything.
    pub fn note(&self, object: &str, text: impl Into<String>) {
        let note = Note {
            at: Timestamp::now(),
            object: object.to_owned(),
            text: text.into(),
        };
        if self.aloud && object.is_empty() {
            eprintln!("{} {}", note.at.strftime("%H:%M:%S%.3f"), note.text);
        }
        self.history.lock().notes.push(note);
    }

    /// A step of a worker, at this moment.
    pub fn step(&self, place: &Place, step: Step) {
        let observation = Observation {
            at: Timestamp::now(),
            place: place.clone(),
            step,
        };
        self.history.lock().observations.push(observation);
    }

    /// Something that was found wrong at this moment.
    pub fn finding(&self, kind: Kind, object: &str, text: impl Into<String>) {
        let finding = Finding {
            at: Timestamp::now(),
            kind,
            object: object.to_owned(),
            text: text.into(),
        };
        self.note("", format!("FOUND {kind:?} {object}: {}", finding.text));
        self.history.lock().findings.push(finding);
    }

    /// The holder of a Lease, unless it is the one that was written down last.
    pub fn term(&self, term: Term) {
        let mut history = self.history.lock();
        let mut of_lease = history
            .terms
            .iter()
            .filter(|last| last.driver == term.driver && last.namespace == term.namespace);
        if of_lease
            .next_back()
            .is_none_or(|last| last.holder != term.holder || last.acquired < term.acquired)
        {
            history.terms.push(term);
        }
    }

    /// A Lease was renewed at this time; the last renewal of the same holder was another `lapsed` at most, or it lost the Lease.
    pub fn renewed(&self, driver: &str, holder: &str, at: Timestamp, lapsed: SignedDuration) {
        let mut last = self.renewals.lock();
        let before = last.insert(driver.to_owned(), (holder.to_owned(), at));
        let same = before.filter(|(before, from)| before == holder && at.duration_since(*from) > lapsed);
        if let Some((_, from)) = same {
            self.history.lock().lapses.push(Lapse {
                driver: driver.to_owned(),
                holder: holder.to_owned(),
                from,
                to: at,
            });
        }
    }

    /// Answers of the API server were lost to a process until now; without a name, to all.
    pub fn answers_lost(&self, holder: Option<String>, from: Timestamp) {
        let to = Timestamp::now();
        self.history.lock().lost_answers.push(LostAnswers { holder, from, to });
    }

    /// Who held the Lease of a driver last, as far as is known.
    pub fn holder(&self, driver: &str) -> Option<String> {
        let history = self.history.lock();
        let of_driver = history.terms.iter().filter(|term| term.driver == driver);
        of_driver.max_by_key(|term| term.acquired)?.holder.clone()
    }

    /// Whether a worker has attached a volume to a place and not asked for anything else since.
    pub fn is_wanted(&self, place: &Place) -> bool {
        let history = self.history.lock();
        let last = history.observations.iter().rfind(|step| step.place == *place);
        last.is_some_and(|last| matches!(last.step, Step::Attached { .. }))
    }

    /// A process that was started.
    pub fn started(&self, process: Process) {
        self.history.lock().processes.push(process);
    }

    /// Changes what is written down of a process, the last one of that number.
    fn change(&self, pid: u32, change: impl FnOnce(&mut Process)) {
        let mut history = self.history.lock();
        if let Some(process) = history.processes.iter_mut().rfind(|process| process.pid == pid) {
            change(process);
        }
    }

    /// A process is about to be stopped by a signal.
    pub fn stops(&self, pid: u32) {
        self.change(pid, |process| {
            process.stops.push(Stop {
                from: Timestamp::now(),
                to: None,
            });
        });
    }

    /// It is about to go on.
    pub fn goes_on(&self, pid: u32) {
        self.change(pid, |process| {
            if let Some(stop) = process.stops.last_mut() {
                stop.to = Some(Timestamp::now());
            }
        });
    }

    /// It is gone.
    pub fn ended(&self, pid: u32) {
        self.change(pid, |process| process.ended = Some(Timestamp::now()));
    }

    /// etcd went back to a copy at the time `from`, and everything was taken back by now.
    pub fn restored(&self, from: Timestamp) {
        self.history.lock().restores.push((from, Timestamp::now()));
    }

    /// Everything so far, with the calls that the drivers recorded.
    pub fn history(&self, calls: impl IntoIterator<Item = (String, Vec<CallRecord>)>) -> History {
        let mut history = self.history.lock().clone();
        for (driver, records) in calls {
            history
                .calls
                .extend(records.iter().filter_map(|record| call(&driver, record)));
        }
        history
    }
}

/// A recorded call, if it publishes or unpublishes, creates or deletes.
pub fn call(driver: &str, record: &CallRecord) -> Option<Call> {
    let makes = match record.method {
        Method::ControllerPublishVolume | Method::CreateVolume => true,
        Method::ControllerUnpublishVolume | Method::DeleteVolume => false,
        _ => return None,
    };
    let handle = record.volume.clone()?;
    let volume = if record.node.is_some() {
        &handle
    } else {
        name_of(&handle)
    };
    let place = Place {
        driver: driver.to_owned(),
        volume: volume.to_owned(),
        node: record.node.clone().unwrap_or_default(),
    };
    let code = record.code.map(|code| format!(" {code:?}")).unwrap_or_default();
    Some(Call {
        place,
        makes,
        handle: (record.method != Method::CreateVolume).then_some(handle),
        ok: record.outcome == CallResult::Answered && record.code == Some(Code::Ok),
        pid: record.caller_pid?,
        started: record.started,
        finished: record.finished,
        cancelled: matches!(record.outcome, CallResult::Cancelled | CallResult::Late),
        outcome: format!("{:?}{code}", record.outcome),
    })
}
