//! The API server and the driver of a replay. What an engine asks waits here until the event list says how it ends.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use csi_attacher_model_check::replay::{self, DriverAnswer, Event, ObjectKind, Seen, Stored};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::task::Id;

use super::super::cluster::{Kind, not_found, status, text};
use crate::cache::AttacherKey;
use crate::decide::Write;
use crate::decide::patch::{PatchType, WriteTarget};
use csi_attacher_testbed::api_answers::{apply, is_gone};

thread_local! {
    /// What the tasks of the engine are about; none while nothing is replayed on this thread.
    static RUNS: RefCell<Option<HashMap<Id, String>>> = const { RefCell::new(None) };
}

/// The engine begins an attempt in the task that runs now. Two attempts may send the same write, and only this tells them apart.
pub fn run_begins(key: &AttacherKey) {
    let (AttacherKey::Attachment(name) | AttacherKey::Volume(name)) = key;
    RUNS.with_borrow_mut(|runs| {
        if let Some((runs, task)) = runs.as_mut().zip(tokio::task::try_id()) {
            runs.insert(task, name.to_string());
        }
    });
}

/// The key of the attempt in whose task this is asked.
fn key_of_this_run() -> String {
    let task = tokio::task::try_id();
    let found = RUNS.with_borrow(|runs| runs.as_ref()?.get(&task?).cloned());
    found.unwrap_or_else(|| "no attempt".to_owned())
}

/// Notes the attempts of this thread until it is dropped.
pub struct NotedRuns;

impl NotedRuns {
    pub fn start() -> Self {
        RUNS.set(Some(HashMap::new()));
        Self
    }
}

impl Drop for NotedRuns {
    fn drop(&mut self) {
        RUNS.set(None);
    }
}

/// What an engine asks.
pub enum Asked {
    Write(Write),
    Read(Kind, String),
    Call,
}

/// What it is answered.
pub enum Reply {
    /// By the API server.
    Http(u16, Value),
    /// The connection breaks.
    Broken,
    /// By the driver.
    Driver(DriverAnswer),
}

/// What an attempt waits for.
struct Open {
    what: String,
    asked: Asked,
    /// The answer that is on its way.
    reply: Option<Reply>,
    sender: oneshot::Sender<Reply>,
}

/// The surroundings of an engine. Clones are the same ones.
#[derive(Clone, Default)]
pub struct Gate(Arc<Mutex<Surroundings>>);

#[derive(Default)]
struct Surroundings {
    objects: BTreeMap<String, Stored>,
    /// Of each name, as in the model: versions of different objects are never compared.
    versions: BTreeMap<String, u64>,
    secret: bool,
    open: BTreeMap<String, Open>,
    /// Writes on their way whose sender does not wait for them any more.
    late: Vec<Write>,
    calls: Vec<(String, String)>,
    /// What the watches have still to show, and whether it is the end of the object.
    news: BTreeMap<ObjectKind, VecDeque<(Value, bool)>>,
    /// What the model has no word for.
    odd: Vec<String>,
}

impl Gate {
    pub fn new(objects: &[Stored]) -> Self {
        let gate = Self::default();
        {
            let mut surroundings = gate.0.lock();
            surroundings.secret = true;
            for stored in objects {
                surroundings.store(stored.clone());
            }
        }
        gate
    }

    /// Asks for something on behalf of the attempt in whose task it is; the answer comes when the event list says so.
    pub async fn ask(&self, what: String, asked: Asked) -> Reply {
        let (sender, receiver) = oneshot::channel();
        let key = key_of_this_run();
        let open = Open {
            what: what.clone(),
            asked,
            reply: None,
            sender,
        };
        {
            let mut surroundings = self.0.lock();
            if matches!(open.asked, Asked::Call) {
                surroundings.calls.push((key.clone(), what));
            }
            let before = surroundings.open.insert(key.clone(), open);
            if let Some(before) = before.filter(|before| !before.sender.is_closed()) {
                surroundings
                    .odd
                    .push(format!("{key} waits for two things: {}", before.what));
            }
        }
        match receiver.await {
            Ok(reply) => reply,
            Err(_) => std::future::pending().await,
        }
    }

    /// An object as it is now.
    pub fn read(&self, kind: Kind, name: &str) -> Reply {
        self.0.lock().read(kind, name)
    }

    /// Whether the publish Secret is there.
    pub fn has_secret(&self) -> bool {
        self.0.lock().secret
    }

    /// Notes something that the model has no word for.
    pub fn odd(&self, what: &str) {
        self.0.lock().odd.push(what.to_owned());
    }

    /// All objects. The watches of whoever asks show what comes after.
    pub fn list(&self) -> Vec<Stored> {
        let mut surroundings = self.0.lock();
        surroundings.news.clear();
        surroundings.objects.values().cloned().collect()
    }

    /// The next event of a watch.
    pub fn next_of_watch(&self, kind: ObjectKind) -> Option<(Value, bool)> {
        self.0.lock().news.get_mut(&kind)?.pop_front()
    }

    /// Nobody waits any more for what was asked. Writes are on their way.
    pub fn leave_on_its_way(&self) {
        let mut surroundings = self.0.lock();
        let left: Vec<Open> = std::mem::take(&mut surroundings.open).into_values().collect();
        for open in left {
            surroundings.leave(open);
        }
    }

    /// Lets an event happen that is about objects, requests and calls.
    pub fn take_in(&self, event: Event) -> Result<(), String> {
        self.0.lock().take_in(event)
    }

    /// What is seen from outside, with the calls since this was asked last.
    pub fn seen(&self) -> (Seen, Vec<String>) {
        let mut surroundings = self.0.lock();
        let waits = surroundings.open.iter().filter(|(_, open)| !open.sender.is_closed());
        let waits = waits.map(|(key, open)| {
            let what = match open.reply {
                Some(_) => replay::answered(&open.what),
                None => open.what.clone(),
            };
            (key.clone(), what)
        });
        let waits = waits.collect();
        let objects = surroundings.objects.iter();
        let objects = objects.map(|(name, stored)| (name.clone(), replay::comparable(&stored.object)));
        let objects = objects.collect();
        let mut calls = std::mem::take(&mut surroundings.calls);
        calls.sort();
        let seen = Seen { waits, objects, calls };
        (seen, std::mem::take(&mut surroundings.odd))
    }
}

impl Surroundings {
    fn take_in(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Stores(stored) => self.change(stored),
            Event::ComesLate { write } => {
                let at = self.late.iter().position(|late| replay::patch(late) == write);
                let late = self
                    .late
                    .swap_remove(at.ok_or_else(|| format!("nobody has sent this: {write}"))?);
                self.write(&late);
            }
            Event::Secret(there) => self.secret = there,
            Event::Serves { key } => {
                let open = self.open.get(&key).filter(|open| open.reply.is_none());
                let reply = match &open.ok_or_else(|| nothing(&key))?.asked {
                    Asked::Write(write) => self.write(&write.clone()),
                    Asked::Read(kind, name) => self.read(*kind, name),
                    Asked::Call => return Err(nothing(&key)),
                };
                if let Some(open) = self.open.get_mut(&key) {
                    open.reply = Some(reply);
                }
            }
            Event::Answers { key } => {
                let open = self.open.remove(&key).ok_or_else(|| nothing(&key))?;
                let reply = open.reply.ok_or_else(|| nothing(&key))?;
                open.sender.send(reply).map_err(|_| nothing(&key))?;
            }
            Event::Loses { key } => self.reply(&key, Reply::Broken)?,
            Event::Driver { key, answer } => self.reply(&key, Reply::Driver(answer))?,
            Event::Starts | Event::Dies | Event::Shows(_) | Event::Waits | Event::Unnoticed => {}
        }
        Ok(())
    }

    /// Ends what an attempt waits for, if it is of the kind that ends so.
    fn reply(&mut self, key: &str, reply: Reply) -> Result<(), String> {
        let of_driver = matches!(reply, Reply::Driver(_));
        let fits = |open: &Open| matches!(open.asked, Asked::Call) == of_driver && open.reply.is_none();
        if !self.open.get(key).is_some_and(fits) {
            return Err(nothing(key));
        }
        let open = self.open.remove(key).ok_or_else(|| nothing(key))?;
        if let (Asked::Write(write), Reply::Broken) = (&open.asked, &reply) {
            self.late.push(write.clone());
        }
        open.sender.send(reply).map_err(|_| nothing(key))
    }

    /// The sender is gone.
    fn leave(&mut self, open: Open) {
        if let (Asked::Write(write), None) = (open.asked, open.reply) {
            self.late.push(write);
        }
    }

    fn read(&self, kind: Kind, name: &str) -> Reply {
        match self.objects.get(name) {
            Some(stored) => Reply::Http(200, stored.object.clone()),
            None => Reply::Http(404, not_found(kind, name)),
        }
    }

    fn write(&mut self, write: &Write) -> Reply {
        let (kind, name) = match &write.target {
            WriteTarget::Volume(name) => (Kind::Volume, &**name),
            WriteTarget::Attachment(name) | WriteTarget::AttachmentStatus(name) => (Kind::Attachment, &**name),
        };
        let Some(before) = self.objects.get(name).cloned() else {
            return Reply::Http(404, not_found(kind, name));
        };
        let refused = if write.form == PatchType::Json { 422 } else { 409 };
        match apply(&before.object, write) {
            Err(error) => Reply::Http(refused, status(refused, kind, name, &error)),
            Ok(same) if same == before.object => Reply::Http(200, same),
            Ok(mut object) => {
                let version = self.versions.get(name).copied().unwrap_or_default() + 1;
                object["metadata"]["resourceVersion"] = version.to_string().into();
                self.store(Stored {
                    kind: before.kind,
                    object: object.clone(),
                });
                Reply::Http(200, object)
            }
        }
    }

    /// Somebody makes an object or changes it. Nobody changes a status, whose errors have other words in the model.
    fn change(&mut self, mut stored: Stored) {
        let known = self.objects.get(text(&stored.object, "/metadata/name"));
        let same = known.filter(|known| known.object["metadata"]["uid"] == stored.object["metadata"]["uid"]);
        if let Some(status) = same.and_then(|same| same.object.get("status")) {
            stored.object["status"] = status.clone();
        }
        self.store(stored);
    }

    fn store(&mut self, stored: Stored) {
        let name = text(&stored.object, "/metadata/name").to_owned();
        let version = text(&stored.object, "/metadata/resourceVersion");
        self.versions.insert(name.clone(), version.parse().unwrap_or_default());
        let gone = is_gone(&stored.object);
        let news = self.news.entry(stored.kind).or_default();
        news.push_back((stored.object.clone(), gone));
        if gone {
            self.objects.remove(&name);
        } else {
            self.objects.insert(name, stored);
        }
    }
}

fn nothing(key: &str) -> String {
    format!("no attempt at {key} waits for that")
}
