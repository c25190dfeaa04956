//! The API server as a service under `kube::Client`, so that requests are those of production down to their headers.

use http::{Method, Request, header};
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};
use tower::BoxError;

use super::answers::{Answer, Fate, Lie, fate, respond};
use super::cluster::{Kind, not_found, status, text};
use super::mutants::{Flaw, has_flaw};
use super::objects::driver_of;
use super::process::Process;
use super::replica::REQUEST_DEADLINE;
use super::scenario::SLOW;
use super::world::{State, World};
use super::{leases, secrets, writes};
use crate::decide::Write;
use crate::decide::patch::{PatchType, WriteTarget};

const VOLUMES: &str = "/api/v1/persistentvolumes/";
const ATTACHMENTS: &str = "/apis/storage.k8s.io/v1/volumeattachments/";
const NODES: &str = "/apis/storage.k8s.io/v1/csinodes/";
const DRIVERS: &str = "/apis/storage.k8s.io/v1/csidrivers/";

/// How many requests a wrong operator has in flight, for whichever driver, by age.
const ONE_LINE: usize = 16;

/// A client of a process.
pub fn client(world: &World, process: &Process) -> Client {
    let (world, process) = (world.clone(), process.clone());
    let is_one_line = has_flaw(Flaw::OneLine);
    let places = if is_one_line { ONE_LINE } else { Semaphore::MAX_PERMITS };
    let line = Arc::new(Semaphore::new(places));
    let service = tower::service_fn(move |request: Request<Body>| {
        let (world, process, line) = (world.clone(), process.clone(), line.clone());
        async move {
            let _place = line.acquire().await;
            serve(world, process, request).await
        }
    });
    Client::new(service, "default")
}

/// What is asked for.
pub enum ServedRequest {
    Write(Write),
    Read(Kind, String),
    /// By namespace and name.
    Secret(String),
}

impl ServedRequest {
    /// The object that it is about.
    fn object(&self) -> (Kind, &str) {
        match self {
            Self::Write(write) => match &write.target {
                WriteTarget::Volume(name) => (Kind::Volume, name),
                WriteTarget::Attachment(name) | WriteTarget::AttachmentStatus(name) => (Kind::Attachment, name),
            },
            Self::Read(kind, name) => (*kind, name),
            Self::Secret(key) => (Kind::Secret, key.rsplit('/').next().unwrap_or_default()),
        }
    }

    /// How long it takes because of what it is about.
    fn slowness(&self, state: &State) -> Duration {
        let (kind, name) = self.object();
        let is_slow = state.scenario.slow == Some(kind) && matches!(self, Self::Write(_)) && {
            let driver = |object: &Value| {
                let (mut disks, name) = (state.scenario.disks.iter(), text(object, "/metadata/name"));
                let disk = disks.find(|disk| disk.name == name);
                driver_of(object).or(disk.map(|disk| disk.driver))
            };
            state.cluster.get(kind, name).and_then(|object| driver(object)) == Some(0)
        };
        if is_slow { SLOW } else { Duration::ZERO }
    }

    /// Whether it records that a volume is attached.
    fn records_an_attach(&self) -> bool {
        let Self::Write(write) = self else { return false };
        matches!(write.target, WriteTarget::AttachmentStatus(_)) && write.body["status"]["attached"] == true
    }
}

async fn serve(world: World, life: Process, request: Request<Body>) -> Result<Answer, BoxError> {
    if let Some(key) = secrets::handover_due(&request) {
        return secrets::serve(&world, &key);
    }
    if leases::is_about(&request) {
        return leases::serve(world, life, request).await;
    }
    let asked = asked(request).await?;
    let (kind, name) = asked.object();
    let name = name.to_owned();
    if life.is_over() || world.is_over() {
        return std::future::pending().await;
    }
    let (fate, held, before, after, restores) = world.with(|state| {
        state.requests += 1;
        state.step();
        let fate = fate(state);
        let held = state.stalled_for() + asked.slowness(state);
        if asked.records_an_attach() && (!matches!(fate, Fate::Fine) || held > REQUEST_DEADLINE) {
            state.unanswered.insert(name.clone());
        }
        state.journal.note(life.name(), || describe(&asked, fate));
        let restores = state.cluster.restores.len();
        (fate, held, state.millis(0..=20) + held, state.millis(0..=20), restores)
    });
    let at = match fate {
        Fate::Refused(code) => {
            tokio::time::sleep(before).await;
            return respond(code, &status(code, kind, &name, "out of order"));
        }
        Fate::Untrue(lie, false) => {
            tokio::time::sleep(before).await;
            let other = world.with(|state| another(state, kind, &name));
            return lie.respond(kind, &name, other.as_deref());
        }
        Fate::Fine | Fate::DoneButRefused(_) | Fate::Untrue(_, true) => Some(before),
        Fate::Lost(at) | Fate::Silent(at) => at.map(|at| at + held),
    };
    // In a task of its own: what was sent arrives even when the sender is no more. Before etcd is restored every API server is
    // stopped (its documentation), and with it ends what it has been sent.
    let (sender, receiver) = oneshot::channel();
    let late = matches!(fate, Fate::Lost(_) | Fate::Silent(_)) || held > REQUEST_DEADLINE;
    let server = world.clone();
    if let Some(at) = at {
        tokio::spawn(async move {
            tokio::time::sleep(at).await;
            let answer = server.with(|state| {
                let is_the_same = state.cluster.restores.len() == restores;
                is_the_same.then(|| carry_out(state, &life, asked, late))
            });
            // Nobody may be left to hear it.
            answer.map(|answer| sender.send(answer));
        });
    }
    match fate {
        Fate::Lost(_) => {
            tokio::time::sleep(after).await;
            Err("connection reset".into())
        }
        Fate::Silent(_) => std::future::pending().await,
        fate => {
            let (code, body) = receiver.await?;
            tokio::time::sleep(after).await;
            match fate {
                Fate::DoneButRefused(code) => respond(code, &status(code, kind, &name, "out of order")),
                Fate::Untrue(Lie::Another, _) => {
                    let other = world.with(|state| another(state, kind, &name));
                    Lie::Another.respond(kind, &name, other.as_deref())
                }
                Fate::Untrue(lie, _) => lie.respond(kind, &name, Some(&body)),
                _ => respond(code, &body),
            }
        }
    }
}

/// Another object of the same kind than the one of this name.
fn another(state: &State, kind: Kind, name: &str) -> Option<Arc<Value>> {
    let is_another = |object: &&Arc<Value>| kind != Kind::Secret && text(object, "/metadata/name") != name;
    state.cluster.all(kind).find(is_another).cloned()
}

/// Reads a request.
pub async fn asked(request: Request<Body>) -> Result<ServedRequest, BoxError> {
    let path = request.uri().path().to_owned();
    let method = request.method().clone();
    let form = request.headers().get(header::CONTENT_TYPE);
    let json = form.is_some_and(|form| form == "application/json-patch+json");
    let body = request.into_body().collect().await?.to_bytes();
    if let Some(key) = secrets::key_at(&path) {
        return Ok(ServedRequest::Secret(key));
    }
    let prefixes = [
        (Kind::Volume, VOLUMES),
        (Kind::Attachment, ATTACHMENTS),
        (Kind::Node, NODES),
        (Kind::Driver, DRIVERS),
    ];
    let below = |(kind, prefix): (Kind, &str)| Some((kind, path.strip_prefix(prefix)?));
    let Some((kind, rest)) = prefixes.into_iter().find_map(below) else {
        return Err(format!("a request that nobody expects: {method} {path}").into());
    };
    if method == Method::GET {
        return Ok(ServedRequest::Read(kind, rest.to_owned()));
    }
    let target = match (kind, rest.strip_suffix("/status")) {
        (Kind::Volume, _) => WriteTarget::Volume(rest.into()),
        (_, Some(name)) => WriteTarget::AttachmentStatus(name.into()),
        (_, None) => WriteTarget::Attachment(rest.into()),
    };
    let form = if json { PatchType::Json } else { PatchType::Merge };
    let body = serde_json::from_slice(&body)?;
    Ok(ServedRequest::Write(Write { target, form, body }))
}

/// Carries a request out; `late` when its sender does not wait for it any more.
fn carry_out(state: &mut State, life: &Process, asked: ServedRequest, late: bool) -> (u16, Value) {
    match asked {
        ServedRequest::Secret(key) => match state.cluster.get(Kind::Secret, &key) {
            Some(object) => {
                let mut shown = Value::clone(object);
                shown["metadata"] = secrets::metadata(object, &key);
                (200, shown)
            }
            None => (404, not_found(Kind::Secret, key.rsplit('/').next().unwrap_or_default())),
        },
        ServedRequest::Read(kind, name) => match state.cluster.get(kind, &name) {
            Some(object) => (200, Value::clone(object)),
            None => (404, not_found(kind, &name)),
        },
        ServedRequest::Write(write) => {
            let (code, body, written) = state.cluster.write(&write);
            let what = if written.is_some() { "stored" } else { "unchanged" };
            state.journal.note("api", || {
                let refused = (code != 200).then(|| body["message"].to_string());
                let note = refused.unwrap_or_else(|| what.to_owned());
                format!("{code} to {} for {}: {note}", life.name(), target(&write.target))
            });
            if let Some(written) = written {
                writes::written(state, late || life.is_over(), &written);
            }
            (code, body)
        }
    }
}

fn target(target: &WriteTarget) -> String {
    match target {
        WriteTarget::Volume(name) | WriteTarget::Attachment(name) => name.to_string(),
        WriteTarget::AttachmentStatus(name) => format!("{name}/status"),
    }
}

/// A request in a few words, and what will become of it when that is out of the ordinary.
fn describe(asked: &ServedRequest, fate: Fate) -> String {
    let what = match asked {
        ServedRequest::Secret(name) => format!("reads secret {name}"),
        ServedRequest::Read(_, name) => format!("reads {name}"),
        ServedRequest::Write(write) => format!("patches {}: {}", target(&write.target), brief(&write.body)),
    };
    match fate {
        Fate::Fine => what,
        fate => format!("{what} [{fate:?}]"),
    }
}

fn brief(body: &Value) -> String {
    let Some(operations) = body.as_array() else {
        return body["status"].to_string();
    };
    let changes = operations.iter().filter(|operation| operation["op"] != "test");
    let word = |operation: &Value, key: &str| operation[key].as_str().unwrap_or_default().to_owned();
    let texts = changes.map(|operation| word(operation, "op") + " " + &word(operation, "path"));
    texts.collect::<Vec<String>>().join(", ")
}
