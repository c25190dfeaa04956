//! What becomes of a request to the API server, and answers that are not true.

use http::{Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use serde_json::Value;
use std::convert::Infallible;
use std::time::Duration;
use tower::BoxError;

use super::cluster::{Kind, not_found, status};
use super::mutants::{Flaw, has_flaw};
use super::world::State;

/// What `kube` reads answers from.
pub type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// What becomes of a request.
#[derive(Clone, Copy, Debug)]
pub enum Fate {
    /// It is carried out and answered.
    Fine,
    /// It is answered with this status and not carried out.
    Refused(u16),
    /// It is carried out, and answered with this status.
    DoneButRefused(u16),
    /// What is answered is not true; and whether it is carried out.
    Untrue(Lie, bool),
    /// The connection breaks; the request may still be carried out, now or later.
    Lost(Option<Duration>),
    /// No answer comes; the request may still be carried out.
    Silent(Option<Duration>),
}

/// An answer that is not true: a proxy, a load balancer or another API server gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// 404 as the text of a server that has no such route.
    NoRoute,
    /// 404 as a Status about another object.
    AnotherIsGone,
    /// 403.
    Forbidden,
    /// 409.
    Conflict,
    /// 410.
    Expired,
    /// 502 with a page for people.
    BadGateway,
    /// 200 with a page for people.
    Page,
    /// 200 with the first half of an object.
    Half,
    /// 200 with the answer to another request, about another object of the kind.
    Another,
}

const LIES: [Lie; 9] = [
    Lie::NoRoute,
    Lie::AnotherIsGone,
    Lie::Forbidden,
    Lie::Conflict,
    Lie::Expired,
    Lie::BadGateway,
    Lie::Page,
    Lie::Half,
    Lie::Another,
];

/// Draws the fate of a request.
pub fn fate(state: &mut State) -> Fate {
    let percent = state.scenario.api_faults;
    if !state.fault(percent) {
        return Fate::Fine;
    }
    let late = [None, Some(state.millis(0..=50)), Some(state.millis(0..=15_000))];
    let late = late[state.rng.usize(0..3)];
    if state.rng.u8(0..100) < state.scenario.lies {
        let lie = state.rng.choice(LIES).unwrap_or(Lie::NoRoute);
        return Fate::Untrue(lie, state.rng.bool());
    }
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

impl Lie {
    /// The answer to a request about an object; `truth` is the true one, or another object's if there is one.
    pub fn respond(self, kind: Kind, name: &str, truth: Option<&Value>) -> Result<Answer, BoxError> {
        const PAGE: &str = "<!doctype html><title>Sign in</title>";
        let text = |code: u16, body: &str| respond_with(code, whole(body.as_bytes().to_vec()));
        // Who believes whatever says 404 takes it for this one.
        let not_there = |of: &str| not_found(kind, if has_flaw(Flaw::Believing) { name } else { of });
        match self {
            Self::NoRoute if has_flaw(Flaw::Believing) => respond(404, &not_there(name)),
            Self::NoRoute => text(404, "404 page not found\n"),
            Self::AnotherIsGone => respond(404, &not_there("another")),
            Self::Forbidden => respond(403, &status(403, kind, name, "out of order")),
            Self::Conflict => respond(409, &status(409, kind, name, "out of order")),
            Self::Expired => respond(410, &status(410, kind, name, "out of order")),
            Self::BadGateway => text(502, PAGE),
            Self::Page => text(200, PAGE),
            Self::Half => {
                let body = truth
                    .map(Value::to_string)
                    .unwrap_or_else(|| "{\"kind\": \"Lea".to_owned());
                text(200, &body[..body.len() / 2])
            }
            Self::Another => match truth {
                Some(other) => respond(200, other),
                None => respond(404, &not_there("another")),
            },
        }
    }
}

/// An answer with a body.
pub fn respond(code: u16, body: &Value) -> Result<Answer, BoxError> {
    respond_with(code, whole(serde_json::to_vec(body)?))
}

pub fn respond_with(code: u16, body: UnsyncBoxBody<Bytes, Infallible>) -> Result<Answer, BoxError> {
    let mut response = Response::builder().status(StatusCode::from_u16(code)?);
    if code == 429 {
        response = response.header(header::RETRY_AFTER, "1");
    }
    Ok(response.body(body)?)
}

fn whole(body: Vec<u8>) -> UnsyncBoxBody<Bytes, Infallible> {
    Full::new(Bytes::from(body)).boxed_unsync()
}
