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
use super::cluster::{Kind, not_found, status, text};
use super::process::Process;
use super::scenario::DRIVERS;
use super::world::{State, World};
use crate::api::names::lease_name;

const PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/";

/// The namespace of the Leases, by the settings of the time.
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
    fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }
}

/// Who may work for which driver.
#[derive(Default)]
pub struct Terms {
    /// By the keys of Leases.
    terms: BTreeMap<String, Vec<Term>>,
}

impl Terms {
    /// The process that holds a Lease by what was stored last.
    pub fn holder(&self, key: &str) -> Option<usize> {
        let term = self.terms.get(key)?.iter().find(|term| term.shown)?;
        (!term.is_over()).then_some(term.process)
    }

    /// Whether a process may call a driver under this place now: it holds the Lease, or somebody has deleted the one that it
    /// holds.
    pub fn allow(&self, process: usize, place: usize, driver: usize) -> bool {
        let terms = self.terms.get(&key(place, driver));
        terms.is_some_and(|terms| terms.iter().any(|term| term.process == process && !term.is_over()))
    }

    /// A process calls a driver under this place; a Lease under which another one has called it and may still do so. Who only
    /// holds a Lease may be about to find that it is not where it should be, or that another may not know yet that it was
    /// deleted; and who has made one may have left it to run out, without a call under it.
    pub fn called(&mut self, process: usize, place: usize, driver: usize) -> Option<String> {
        let here = key(place, driver);
        let mut elsewhere = None;
        for key in (0..2).map(|place| key(place, driver)) {
            let Some(terms) = self.terms.get_mut(&key) else {
                continue;
            };
            terms.retain(|term| !term.is_over());
            for term in terms {
                if term.process == process {
                    term.worked |= key == here;
                } else if term.worked {
                    elsewhere = Some(key.clone());
                }
            }
        }
        elsewhere
    }

    /// A Lease was written; `made` if there was none.
    fn written(&mut self, process: Option<&Process>, key: &str, lease: &Value, made: bool) {
        let terms = self.terms.entry(key.to_owned()).or_default();
        terms.retain(|term| !term.is_over());
        if made {
            for term in terms.iter_mut() {
                term.shown = false;
            }
        }
        let holder = text(lease, "/spec/holderIdentity");
        let process = process.filter(|process| process.name() == holder).map(Process::number);
        let worked = process.is_some_and(|process| terms.iter().any(|term| term.process == process && term.worked));
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
        let key = key(state.place, driver);
        Self {
            name,
            key,
            holds: false,
        }
    }

    /// Takes the Lease, or renews it; whether the rival leads. Where there are no Leases it does.
    pub fn leads(&mut self, state: &mut State) -> bool {
        let Some(lease) = state.scenario.lease else { return true };
        let known = state.cluster.get(Kind::Lease, &self.key);
        let holder = known.map(|known| text(known, "/spec/holderIdentity").to_owned());
        let mut changes = state.cluster.changes.iter().rev();
        let last = changes
            .find(|change| change.kind == Kind::Lease && text(&change.object, "/metadata/name") == self.key)
            .map(|change| change.at);
        // One that is gone is left alone for as long: its holder may not know yet.
        let over = last.is_none_or(|last| last + lease.duration < Instant::now());
        self.holds = holder.as_deref() == Some(self.name) || over || holder.is_some_and(|holder| holder.is_empty());
        if self.holds {
            self.store(state, self.name, lease.duration.as_secs());
        }
        self.holds
    }

    /// Ends, and may let go of the Lease.
    pub fn leave(self, state: &mut State) {
        let known = state.cluster.get(Kind::Lease, &self.key);
        let ours = known.is_some_and(|known| text(known, "/spec/holderIdentity") == self.name);
        if self.holds && ours && state.rng.bool() {
            self.store(state, "", 1);
        }
    }

    fn store(&self, state: &mut State, holder: &str, seconds: u64) {
        let spec = json!({"holderIdentity": holder, "leaseDurationSeconds": seconds, "leaseTransitions": 1});
        store(state, None, &self.key, json!({"metadata": {}, "spec": spec}));
    }
}

/// What is asked about a Lease.
enum Asked {
    Read,
    Watch,
    List,
    Write(Value),
    Create(Value),
}

/// Whether a request is about a Lease.
pub fn is_about(request: &Request<Body>) -> bool {
    request.uri().path().starts_with(PATH)
}

/// Answers a request about a Lease.
pub async fn serve(world: World, process: Process, request: Request<Body>) -> Result<Answer, BoxError> {
    let path = request.uri().path().strip_prefix(PATH).unwrap_or_default().to_owned();
    let query = request.uri().query().unwrap_or_default().to_owned();
    let (namespace, rest) = path.split_once("/leases").ok_or("no Lease")?;
    let named = query.split('&').find_map(|part| {
        let (_, name) = part.split_once("metadata.name%3D")?;
        Some(name.to_owned())
    });
    let method = request.method().clone();
    let body = request.into_body().collect().await?.to_bytes();
    let parsed = || serde_json::from_slice::<Value>(&body);
    let name = match rest.strip_prefix('/') {
        Some(name) => name.to_owned(),
        None => named.unwrap_or_default(),
    };
    let asked = match method {
        Method::GET if rest.starts_with('/') => Asked::Read,
        Method::GET if query.contains("watch=true") => Asked::Watch,
        Method::GET => Asked::List,
        Method::PUT => Asked::Write(parsed()?),
        _ => Asked::Create(parsed()?),
    };
    let name = match &asked {
        Asked::Create(lease) => text(lease, "/metadata/name").to_owned(),
        _ => name,
    };
    let key = format!("{namespace}/{name}");
    if process.is_over() || world.is_over() {
        return std::future::pending().await;
    }
    let (fate, before) = world.with(|state| (fate(state), state.millis(0..=20) + state.stalled_for()));
    tokio::time::sleep(before).await;
    if let Asked::Watch = asked {
        return watch(world, key, &query);
    }
    match fate {
        Fate::Lost(None) => return Err("connection reset".into()),
        Fate::Silent(None) => return std::future::pending().await,
        Fate::Refused(code) => return respond(code, &status(code, Kind::Lease, &name, "out of order")),
        Fate::Untrue(lie, false) => return lie.respond(Kind::Lease, &name, None),
        _ => {}
    }
    let (code, body) = world.with(|state| carry_out(state, &process, &key, &name, asked));
    match fate {
        Fate::Lost(_) => Err("connection reset".into()),
        Fate::Silent(_) => std::future::pending().await,
        Fate::DoneButRefused(code) => respond(code, &status(code, Kind::Lease, &name, "out of order")),
        // The Lease of another is what nobody asks for.
        Fate::Untrue(lie, _) if lie != Lie::Another => lie.respond(Kind::Lease, &name, Some(&body)),
        _ => respond(code, &body),
    }
}

fn carry_out(state: &mut State, process: &Process, key: &str, name: &str, asked: Asked) -> (u16, Value) {
    let stored = state.cluster.get(Kind::Lease, key).cloned();
    let shown = |lease: &Value| {
        let mut lease = lease.clone();
        lease["metadata"]["name"] = name.into();
        lease
    };
    match (asked, stored) {
        (Asked::Read, Some(lease)) => (200, shown(&lease)),
        (Asked::Read | Asked::Write(_), None) => (404, not_found(Kind::Lease, name)),
        (Asked::Create(_), Some(_)) => (409, status(409, Kind::Lease, name, "already exists")),
        (Asked::Write(lease), Some(stored))
            if lease["metadata"]["resourceVersion"] != stored["metadata"]["resourceVersion"] =>
        {
            (409, status(409, Kind::Lease, name, "the object has been modified"))
        }
        (Asked::Create(lease) | Asked::Write(lease), _) => {
            let stored = store(state, Some(process), key, lease);
            (200, shown(&stored))
        }
        (Asked::List | Asked::Watch, stored) => {
            let version = state.cluster.version().to_string();
            let items: Vec<Value> = stored.iter().map(|lease| shown(lease)).collect();
            let list = json!({
                "kind": "LeaseList", "apiVersion": "coordination.k8s.io/v1", "metadata": {"resourceVersion": version},
                "items": items,
            });
            (200, list)
        }
    }
}

/// Stores a Lease as somebody wrote it; `process` when that is a replica.
pub fn store(state: &mut State, process: Option<&Process>, key: &str, mut lease: Value) -> Value {
    lease["metadata"]["name"] = key.into();
    let made = !state.cluster.has(Kind::Lease, key);
    if let Some(known) = state.cluster.get(Kind::Lease, key) {
        lease["metadata"]["uid"] = known["metadata"]["uid"].clone();
    } else {
        lease["metadata"]["uid"] = format!("lease of {key}").into();
    }
    let stored = Value::clone(&state.cluster.put(Kind::Lease, lease));
    let holder = text(&stored, "/spec/holderIdentity");
    if state
        .terms
        .holder(key)
        .is_none_or(|known| process.map(Process::number) != Some(known))
    {
        // What another would have taken back is not known any more.
        state.must_undo.clear();
        state
            .journal
            .note("lease", || format!("{key} belongs to {holder:?} now"));
    }
    state.terms.written(process, key, &stored, made);
    stored
}

/// The changes of one Lease, each a while after it happened.
fn watch(world: World, key: String, query: &str) -> Result<Answer, BoxError> {
    let from = query.split('&').find_map(|part| part.strip_prefix("resourceVersion="));
    let from: u64 = from.and_then(|text| text.parse().ok()).unwrap_or(0);
    let at = world.with(|state| {
        let seen = |change: &&super::cluster::Change| change.version <= from;
        state.cluster.changes.iter().take_while(seen).count()
    });
    let changes = futures::stream::unfold((world, key, at), |(world, key, at)| async move {
        let (next, change) = world
            .wait_for(|state| {
                let mut unread = state.cluster.changes.iter().enumerate().skip(at);
                let found = unread
                    .find(|(_, change)| change.kind == Kind::Lease && text(&change.object, "/metadata/name") == key);
                found.map(|(index, change)| (index + 1, change.clone()))
            })
            .await;
        let lag = world.with(|state| state.millis(0..=200));
        tokio::time::sleep_until(change.at + lag).await;
        let mut object = Value::clone(&change.object);
        object["metadata"]["name"] = key.rsplit('/').next().unwrap_or_default().into();
        object["kind"] = "Lease".into();
        object["apiVersion"] = "coordination.k8s.io/v1".into();
        let kind = if change.deleted { "DELETED" } else { "MODIFIED" };
        let line = format!("{}\n", json!({"type": kind, "object": object}));
        Some((Ok::<_, Infallible>(Frame::data(Bytes::from(line))), (world, key, next)))
    });
    respond_with(200, StreamBody::new(changes).boxed_unsync())
}

mod tests {
    use super::super::scenario::Scenario;
    use super::*;

    /// Two replicas, and the Leases of one driver at two places.
    struct Rivals {
        world: World,
        replicas: [Process; 2],
    }

    impl Rivals {
        fn new() -> Self {
            let world = World::new(Scenario::of(1), false);
            let replicas = [Process::new(&world, 0), Process::new(&world, 1)];
            Self { world, replicas }
        }

        /// A replica stores that it holds a Lease, or that nobody does.
        fn stores(&self, replica: usize, place: usize, holds: bool) {
            let process = &self.replicas[replica];
            let holder = if holds { process.name() } else { "" };
            let spec = json!({"holderIdentity": holder, "leaseDurationSeconds": 15});
            let lease = json!({"metadata": {}, "spec": spec});
            self.world
                .with(|state| store(state, Some(process), &key(place, 0), lease));
        }

        /// In whose way a call is.
        fn calls(&self, replica: usize, place: usize) -> Option<String> {
            self.world.with(|state| {
                assert!(state.terms.allow(replica, place, 0), "{replica} does not hold {place}");
                state.terms.called(replica, place, 0)
            })
        }
    }

    /// What seed 51990 showed: who makes a Lease and finds that it is to be elsewhere leaves it to run out.
    #[tokio::test(start_paused = true)]
    async fn a_lease_without_a_call_under_it_is_in_nobodys_way() {
        let rivals = Rivals::new();
        rivals.stores(0, 0, true);
        rivals.stores(0, 1, true);
        assert_eq!(rivals.calls(0, 1), None);
        rivals.stores(0, 1, false);
        rivals.stores(1, 1, true);
        assert_eq!(rivals.calls(1, 1), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_with_a_call_under_it_is_in_the_way_until_it_is_over() {
        let rivals = Rivals::new();
        rivals.stores(0, 0, true);
        assert_eq!(rivals.calls(0, 0), None);
        // It also holds the other one, without a call under that.
        rivals.stores(0, 1, true);
        rivals.stores(0, 1, false);
        rivals.stores(1, 1, true);
        assert_eq!(rivals.calls(1, 1), Some(key(0, 0)));
        tokio::time::advance(Duration::from_secs(14)).await;
        rivals.stores(1, 1, true);
        assert_eq!(rivals.calls(1, 1), Some(key(0, 0)));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(rivals.calls(1, 1), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_at_another_place_allows_no_call() {
        let rivals = Rivals::new();
        rivals.stores(0, 0, true);
        rivals.world.with(|state| {
            assert!(state.terms.allow(0, 0, 0));
            assert!(!state.terms.allow(0, 1, 0));
            assert!(!state.terms.allow(1, 0, 0));
        });
    }
}
