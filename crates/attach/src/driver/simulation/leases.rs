//! Leases: the requests about them, and who may work for a driver by what is stored.

use http::{Method, Request};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Bytes, Frame};
use kube::client::Body;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;
use tokio::time::Instant;
use tower::BoxError;

use super::answers::{Answer, Fate, Lie, fate, respond, respond_with};
use super::cluster::{Change, Kind, not_found, status, text};
use super::process::Process;
use super::scenario::{DRIVERS, Scenario};
use super::world::{State, World};
use crate::api::names::lease_name;

const PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/";

/// The number of the operator's namespace, whose Leases exclude replicas.
pub const OWN: usize = 2;

/// A namespace of Leases: those of sidecars, one of which is held as well by the settings of the time, and that of the operator.
pub fn namespace(place: usize) -> String {
    format!("leases{place}")
}

/// The key of a driver's Lease among the objects.
pub fn key(place: usize, driver: usize) -> String {
    format!("{}/{}", namespace(place), lease_name(DRIVERS[driver]))
}

/// What a replica has stored.
struct Term {
    process: usize,
    until: Instant,
    /// Whether the driver was called in it.
    worked: bool,
    /// Whether the Lease that is there says so. One that somebody has deleted is held on by who does not know yet.
    shown: bool,
}

impl Term {
    fn goes_on(&self) -> bool {
        Instant::now() < self.until
    }
}

/// Who may work for which driver, by the keys of Leases.
#[derive(Default)]
pub struct Terms(BTreeMap<String, Vec<Term>>);

impl Terms {
    /// Those under a Lease that are not over.
    fn under(&self, key: &str) -> impl Iterator<Item = &Term> {
        self.0.get(key).into_iter().flatten().filter(|term| term.goes_on())
    }

    /// The process that holds a Lease by what was stored last.
    pub fn holder(&self, key: &str) -> Option<usize> {
        self.under(key).find(|term| term.shown).map(|term| term.process)
    }

    /// Whether a process may call a driver now whose Lease at this place it is to hold as well: it holds both, or somebody has deleted
    /// what it holds.
    pub fn allow(&self, process: usize, place: usize, driver: usize) -> bool {
        let holds = |key: &str| self.under(key).any(|term| term.process == process);
        holds(&key(OWN, driver)) && holds(&key(place, driver))
    }

    /// A process calls a driver. The Lease, if another process has called the driver under it and may still do so: that one may not know
    /// yet that somebody has deleted it.
    pub fn called(&mut self, process: usize, driver: usize) -> Option<String> {
        let key = key(OWN, driver);
        let terms = self.0.get_mut(&key)?;
        terms.retain(Term::goes_on);
        for term in terms.iter_mut() {
            term.worked |= term.process == process;
        }
        let beside = terms.iter().any(|term| term.process != process && term.worked);
        beside.then_some(key)
    }

    /// A Lease was written; `made` if there was none.
    fn written(&mut self, process: Option<&Process>, key: &str, lease: &Value, made: bool) {
        let terms = self.0.entry(key.to_owned()).or_default();
        terms.retain(Term::goes_on);
        for term in terms.iter_mut() {
            term.shown &= !made;
        }
        let holder = text(lease, "/spec/holderIdentity");
        let process = process.filter(|process| process.name() == holder).map(Process::number);
        let worked = terms.iter().any(|term| process == Some(term.process) && term.worked);
        terms.retain(|term| !term.shown && process != Some(term.process));
        if let Some(process) = process {
            let seconds = lease["spec"]["leaseDurationSeconds"].as_u64().unwrap_or(0);
            terms.push(Term {
                process,
                until: Instant::now() + Duration::from_secs(seconds),
                worked,
                shown: true,
            });
        }
    }
}

/// A client that is no replica, which takes the Lease of a driver when it is free or has run out.
pub struct Rival {
    name: &'static str,
    key: String,
    holds: bool,
}

impl Rival {
    pub fn new(state: &State, name: &'static str, driver: usize) -> Self {
        Self {
            name,
            key: key(state.place, driver),
            holds: false,
        }
    }

    fn holder<'s>(&self, state: &'s State) -> Option<&'s str> {
        let known = state.cluster.get(Kind::Lease, &self.key);
        known.map(|known| text(known, "/spec/holderIdentity"))
    }

    /// Takes the Lease, or renews it; whether the rival leads. Where there are no Leases it does.
    pub fn leads(&mut self, state: &mut State) -> bool {
        let Some(lease) = state.scenario.lease else { return true };
        let mut changes = state.cluster.changes.iter().rev();
        let last = changes.find(|change| is_of(change, &self.key));
        // One that is gone is left alone for as long: its holder may not know yet.
        let over = last.is_none_or(|last| last.at + lease.duration < Instant::now());
        let holder = self.holder(state);
        self.holds = over || holder.is_some_and(|holder| holder.is_empty() || holder == self.name);
        if self.holds {
            self.store(state, self.name, lease.duration.as_secs());
        }
        self.holds
    }

    /// Ends, and may let go of the Lease.
    pub fn leave(self, state: &mut State) {
        if self.holds && self.holder(state) == Some(self.name) && state.rng.bool() {
            self.store(state, "", 1);
        }
    }

    fn store(&self, state: &mut State, holder: &str, seconds: u64) {
        let spec = json!({"holderIdentity": holder, "leaseDurationSeconds": seconds, "leaseTransitions": 1});
        store(state, None, &self.key, json!({"metadata": {}, "spec": spec}));
    }
}

/// Whether a request is about a Lease.
pub fn is_about(request: &Request<Body>) -> bool {
    request.uri().path().starts_with(PATH)
}

/// Answers a request about a Lease.
pub async fn serve(world: World, process: Process, request: Request<Body>) -> Result<Answer, BoxError> {
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let query = uri.query().unwrap_or_default();
    let path = uri.path().strip_prefix(PATH).unwrap_or_default();
    let (namespace, rest) = path.split_once("/leases").ok_or("no Lease")?;
    let body = request.into_body().collect().await?.to_bytes();
    let lease: Option<Value> = (!body.is_empty()).then(|| serde_json::from_slice(&body)).transpose()?;
    let lease = lease.unwrap_or_default();
    let selected = query.split('&').find_map(|part| part.split_once("metadata.name%3D"));
    let name = match (rest.strip_prefix('/'), selected) {
        (Some(name), _) | (None, Some((_, name))) => name.to_owned(),
        (None, None) => text(&lease, "/metadata/name").to_owned(),
    };
    let key = format!("{namespace}/{name}");
    if process.is_over() || world.is_over() {
        return std::future::pending().await;
    }
    let (fate, before) = world.with(|state| (fate(state), state.millis(0..=20) + state.stalled_for()));
    tokio::time::sleep(before).await;
    if query.contains("watch=true") {
        return watch(world, key, query);
    }
    match fate {
        Fate::Lost(None) => return Err("connection reset".into()),
        Fate::Silent(None) => return std::future::pending().await,
        Fate::Refused(code) => return respond(code, &status(code, Kind::Lease, &name, "out of order")),
        Fate::Untrue(lie, false) => return lie.respond(Kind::Lease, &name, None),
        _ => {}
    }
    let is_list = method == Method::GET && rest.is_empty();
    let (code, body) = world.with(|state| match is_list {
        true => (200, list(state, &key)),
        false => carry_out(state, &process, &key, &method, lease),
    });
    match fate {
        Fate::Lost(_) => Err("connection reset".into()),
        Fate::Silent(_) => std::future::pending().await,
        Fate::DoneButRefused(code) => respond(code, &status(code, Kind::Lease, &name, "out of order")),
        // The Lease of another is what nobody asks for.
        Fate::Untrue(lie, _) if lie != Lie::Another => lie.respond(Kind::Lease, &name, Some(&body)),
        _ => respond(code, &body),
    }
}

/// The last part of a key.
fn name_in(key: &str) -> &str {
    key.rsplit('/').next().unwrap_or_default()
}

/// A Lease as it is read: its name is its key in here.
fn shown(lease: &Value, key: &str) -> Value {
    let mut lease = lease.clone();
    lease["metadata"]["name"] = name_in(key).into();
    lease
}

fn list(state: &State, key: &str) -> Value {
    let stored = state.cluster.get(Kind::Lease, key);
    let items: Vec<Value> = stored.into_iter().map(|lease| shown(lease, key)).collect();
    let version = state.cluster.version().to_string();
    json!({
        "kind": "LeaseList", "apiVersion": "coordination.k8s.io/v1", "metadata": {"resourceVersion": version},
        "items": items,
    })
}

/// Reads, writes or creates a Lease.
fn carry_out(state: &mut State, process: &Process, key: &str, method: &Method, lease: Value) -> (u16, Value) {
    let (stored, name) = (state.cluster.get(Kind::Lease, key).cloned(), name_in(key));
    match (method, stored) {
        (&Method::GET, Some(lease)) => (200, shown(&lease, key)),
        (&Method::GET | &Method::PUT, None) => (404, not_found(Kind::Lease, name)),
        (&Method::POST, Some(_)) => (409, status(409, Kind::Lease, name, "already exists")),
        (_, Some(stored)) if lease["metadata"]["resourceVersion"] != stored["metadata"]["resourceVersion"] => {
            (409, status(409, Kind::Lease, name, "the object has been modified"))
        }
        _ => (200, shown(&store(state, Some(process), key, lease), key)),
    }
}

/// All Leases are there, and nobody holds them: who creates one would wait.
pub fn release(state: &mut State) {
    if state.scenario.lease.is_none() {
        return;
    }
    for driver in 0..DRIVERS.len() {
        for place in 0..=OWN {
            let spec = json!({"leaseDurationSeconds": 1, "leaseTransitions": 0});
            store(state, None, &key(place, driver), json!({"metadata": {}, "spec": spec}));
        }
    }
}

/// Stores a Lease as somebody wrote it; `process` when that is a replica.
fn store(state: &mut State, process: Option<&Process>, key: &str, mut lease: Value) -> Value {
    lease["metadata"]["name"] = key.into();
    lease["metadata"]["uid"] = format!("lease of {key}").into();
    let made = !state.cluster.has(Kind::Lease, key);
    let stored = Value::clone(&state.cluster.put(Kind::Lease, lease));
    let former = state.terms.holder(key);
    if former.is_none() || former != process.map(Process::number) {
        // What another would have taken back is not known any more.
        state.must_undo.clear();
        let note = || format!("{key} belongs to {:?} now", text(&stored, "/spec/holderIdentity"));
        state.journal.note("lease", note);
    }
    state.terms.written(process, key, &stored, made);
    stored
}

/// Whether a change is one of this Lease.
fn is_of(change: &Change, key: &str) -> bool {
    change.kind == Kind::Lease && text(&change.object, "/metadata/name") == key
}

/// The changes of one Lease, each a while after it happened.
fn watch(world: World, key: String, query: &str) -> Result<Answer, BoxError> {
    let from = query.split('&').find_map(|part| part.strip_prefix("resourceVersion="));
    let from: u64 = from.and_then(|text| text.parse().ok()).unwrap_or(0);
    let at = world.with(|state| {
        let seen = |change: &&Change| change.version <= from;
        state.cluster.changes.iter().take_while(seen).count()
    });
    let changes = futures::stream::unfold((world, key, at), |(world, key, at)| async move {
        let unread = |state: &mut State| {
            let mut changes = state.cluster.changes.iter().enumerate().skip(at);
            let found = changes.find(|(_, change)| is_of(change, &key));
            found.map(|(index, change)| (index + 1, change.clone()))
        };
        let (next, change) = world.wait_for(unread).await;
        let lag = world.with(|state| state.millis(0..=200));
        tokio::time::sleep_until(change.at + lag).await;
        let mut object = shown(&change.object, &key);
        object["kind"] = "Lease".into();
        object["apiVersion"] = "coordination.k8s.io/v1".into();
        let kind = if change.deleted { "DELETED" } else { "MODIFIED" };
        let line = format!("{}\n", json!({"type": kind, "object": object}));
        Some((Ok::<_, Infallible>(Frame::data(Bytes::from(line))), (world, key, next)))
    });
    respond_with(200, StreamBody::new(changes).boxed_unsync())
}

#[tokio::test(start_paused = true)]
async fn who_called_under_a_deleted_lease_is_in_the_way_until_it_is_over() {
    let world = World::new(Scenario::of(1), false);
    let replicas = [0, 1].map(|number| Process::new(&world, number));
    // That it holds the Lease of the first driver at a place, or that nobody does.
    let stores = |replica: usize, place, holds| {
        let process = &replicas[replica];
        let holder = if holds { process.name() } else { "" };
        let lease = json!({"metadata": {}, "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15}});
        world.with(|state| store(state, Some(process), &key(place, 0), lease));
    };
    let is_allowed = |replica| world.with(|state| state.terms.allow(replica, 0, 0));
    let calls = |replica| {
        assert!(is_allowed(replica), "{replica} does not hold both");
        world.with(|state| state.terms.called(replica, 0))
    };
    stores(0, OWN, true);
    assert!(!is_allowed(0), "one is not enough");
    stores(0, 0, true);
    assert_eq!(calls(0), None);
    stores(0, 0, false);
    world.with(|state| state.cluster.delete(Kind::Lease, &key(OWN, 0)));
    let own = Some(key(OWN, 0));
    for (seconds, beside) in [(0, &own), (14, &own), (1, &None)] {
        tokio::time::advance(Duration::from_secs(seconds)).await;
        stores(1, OWN, true);
        stores(1, 0, true);
        assert_eq!(calls(1), *beside, "{seconds} s later");
    }
}
