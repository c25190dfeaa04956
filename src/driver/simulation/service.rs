//! The API server as a service under `kube::Client`, so that requests are those of production down to their headers.

use http::{Method, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::time::Duration;
use tokio::sync::oneshot;
use tower::BoxError;

use super::check;
use super::cluster::{Kind, message};
use super::replica::Life;
use super::secrets;
use super::world::{State, World};
use crate::decide::Write;
use crate::decide::patch::{Form, Target};
use crate::decide::tests::api_server::not_found;

const VOLUMES: &str = "/api/v1/persistentvolumes/";
const ATTACHMENTS: &str = "/apis/storage.k8s.io/v1/volumeattachments/";
const NODES: &str = "/apis/storage.k8s.io/v1/csinodes/";
const SECRETS: &str = secrets::PATH;

/// What `kube` reads answers from.
pub type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// A client of a replica.
pub fn client(world: &World, life: &Life) -> Client {
    let (world, life) = (world.clone(), life.clone());
    let service = tower::service_fn(move |request: Request<Body>| serve(world.clone(), life.clone(), request));
    Client::new(service, "default")
}

/// What is asked for.
enum Asked {
    Write(Write),
    Read(Kind, String),
    Secret(String),
}

impl Asked {
    /// Errors carry the time of the wall clock; here it is that of the history.
    fn set_clock(&mut self, now: Duration) {
        let Self::Write(write) = self else { return };
        for error in ["/status/attachError/time", "/status/detachError/time"] {
            if let Some(time) = write.body.pointer_mut(error) {
                *time = jiff::Timestamp::UNIX_EPOCH
                    .saturating_add(Duration::from_secs(now.as_secs()))
                    .map_or(Value::Null, |time| time.to_string().into());
            }
        }
    }
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// It is carried out and answered.
    Fine,
    /// It is answered with this status and not carried out.
    Refused(u16),
    /// It is carried out, and answered with this status.
    DoneButRefused(u16),
    /// The connection breaks; the request may still be carried out, now or later.
    Lost(Option<Duration>),
    /// No answer comes; the request may still be carried out.
    Silent(Option<Duration>),
}

fn fate(state: &mut State) -> Fate {
    let percent = state.scenario.api_faults;
    if !state.fault(percent) {
        return Fate::Fine;
    }
    let late = [None, Some(state.millis(0..=50)), Some(state.millis(0..=15_000))];
    let late = late[state.rng.usize(0..3)];
    match state.rng.u8(0..12) {
        0 => Fate::Refused(500),
        1 => Fate::Refused(503),
        2 => Fate::Refused(429),
        3 => Fate::Refused(409),
        4 => Fate::Refused(403),
        5 => Fate::DoneButRefused(500),
        6 => Fate::DoneButRefused(504),
        7..=9 => Fate::Lost(late),
        _ => Fate::Silent(late),
    }
}

async fn serve(world: World, life: Life, request: Request<Body>) -> Result<Answer, BoxError> {
    if let Some(name) = secrets::asked_for(&request) {
        return secrets::serve(&world, name);
    }
    let mut asked = asked(request).await?;
    if life.is_over() || world.is_over() {
        return std::future::pending().await;
    }
    let (fate, before, after) = world.with(|state| {
        state.requests += 1;
        asked.set_clock(state.journal.now());
        state.step();
        let fate = fate(state);
        state.journal.note(life.name(), || describe(&asked, fate));
        (fate, state.millis(0..=20), state.millis(0..=20))
    });
    let at = match fate {
        Fate::Refused(code) => {
            tokio::time::sleep(before).await;
            return respond(code, &message("out of order"));
        }
        Fate::Fine | Fate::DoneButRefused(_) => Some(before),
        Fate::Lost(at) | Fate::Silent(at) => at,
    };
    // In a task of its own: what was sent arrives even when the sender is no more.
    let (sender, receiver) = oneshot::channel();
    let late = matches!(fate, Fate::Lost(_) | Fate::Silent(_));
    if let Some(at) = at {
        tokio::spawn(async move {
            tokio::time::sleep(at).await;
            let answer = world.with(|state| carry_out(state, &life, asked, late));
            // Nobody may be left to hear it.
            drop(sender.send(answer));
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
                Fate::DoneButRefused(code) => respond(code, &message("out of order")),
                _ => respond(code, &body),
            }
        }
    }
}

async fn asked(request: Request<Body>) -> Result<Asked, BoxError> {
    let path = request.uri().path().to_owned();
    let method = request.method().clone();
    let json = request
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|form| form == "application/json-patch+json");
    let body = request.into_body().collect().await?.to_bytes();
    if let Some(name) = path.strip_prefix(SECRETS).and_then(|rest| rest.strip_prefix('/')) {
        return Ok(Asked::Secret(name.to_owned()));
    }
    let prefixes = [
        (Kind::Volume, VOLUMES),
        (Kind::Attachment, ATTACHMENTS),
        (Kind::Node, NODES),
    ];
    let mut found = prefixes
        .iter()
        .filter_map(|(kind, prefix)| Some((*kind, path.strip_prefix(prefix)?)));
    let Some((kind, rest)) = found.next() else {
        return Err(format!("a request that nobody expects: {method} {path}").into());
    };
    if method == Method::GET {
        return Ok(Asked::Read(kind, rest.to_owned()));
    }
    let target = match (kind, rest.strip_suffix("/status")) {
        (Kind::Volume, _) => Target::Volume(rest.into()),
        (_, Some(name)) => Target::AttachmentStatus(name.into()),
        (_, None) => Target::Attachment(rest.into()),
    };
    let form = if json { Form::Json } else { Form::Merge };
    let body = serde_json::from_slice(&body)?;
    Ok(Asked::Write(Write { target, form, body }))
}

/// Carries a request out; `late` when its sender does not wait for it any more.
fn carry_out(state: &mut State, life: &Life, asked: Asked, late: bool) -> (u16, Value) {
    match asked {
        Asked::Secret(name) => match state.cluster.get(Kind::Secret, &name) {
            Some(object) => (
                200,
                json!({"metadata": object["metadata"], "data": {"key": "dmFsdWU="}}),
            ),
            None => (404, not_found(&format!("{SECRETS}/{name}"))),
        },
        Asked::Read(kind, name) => match state.cluster.get(kind, &name) {
            Some(object) => (200, Value::clone(object)),
            None => (404, not_found(&format!("{}/{name}", kind.path()))),
        },
        Asked::Write(write) => {
            let (code, body, written) = state.cluster.write(&write);
            let what = if written.is_some() { "stored" } else { "unchanged" };
            state.journal.note("api", || {
                let note = if code == 200 {
                    what.to_owned()
                } else {
                    body["message"].to_string()
                };
                format!("{code} to {} for {}: {note}", life.name(), target(&write.target))
            });
            if let Some(written) = written {
                check::written(state, late || life.is_over(), &written);
            }
            (code, body)
        }
    }
}

fn target(target: &Target) -> String {
    match target {
        Target::Volume(name) | Target::Attachment(name) => name.to_string(),
        Target::AttachmentStatus(name) => format!("{name}/status"),
    }
}

/// A request in a few words, and what will become of it when that is out of the ordinary.
fn describe(asked: &Asked, fate: Fate) -> String {
    let what = match asked {
        Asked::Secret(name) => format!("reads secret {name}"),
        Asked::Read(_, name) => format!("reads {name}"),
        Asked::Write(write) => format!("patches {}: {}", target(&write.target), brief(&write.body)),
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
    let texts: Vec<String> = changes
        .map(|operation| {
            format!(
                "{} {}",
                operation["op"].as_str().unwrap_or_default(),
                operation["path"].as_str().unwrap_or_default()
            )
        })
        .collect();
    texts.join(", ")
}

/// An answer with a body.
pub fn respond(code: u16, body: &Value) -> Result<Answer, BoxError> {
    let mut response = Response::builder().status(StatusCode::from_u16(code)?);
    if code == 429 {
        response = response.header(header::RETRY_AFTER, "1");
    }
    let body = Full::new(Bytes::from(serde_json::to_vec(body)?));
    Ok(response.body(body.boxed_unsync())?)
}
