//! AttacherConfigs, as far as electors read and write them: where the Lease is to be, and where it was last.

use http::{Method, Request};
use http_body_util::BodyExt as _;
use kube::client::Body;
use serde_json::{Value, json};
use tower::BoxError;

use super::answers::{Answer, Fate, Lie, fate, respond};
use super::cluster::{Kind, not_found, status, text};
use super::leases;
use super::process::Process;
use super::scenario::DRIVERS;
use super::world::{State, World};

const PATH: &str = "/apis/attacher.csi.dev/v1alpha1/attacherconfigs";

/// Whether a request is about AttacherConfigs.
pub fn is_about(request: &Request<Body>) -> bool {
    request.uri().path().starts_with(PATH)
}

/// Makes the AttacherConfigs of all drivers, or lets them name another place for the Leases.
pub fn place(state: &mut State, place: usize) {
    state.place = place;
    let Some(lease) = state.scenario.lease else { return };
    let millis = |time: std::time::Duration| format!("{}ms", time.as_millis());
    for driver in DRIVERS {
        let spec = json!({
            "endpoint": "unix:///model", "driverName": driver,
            "leaderElection": {
                "namespace": leases::namespace(place), "leaseDuration": millis(lease.duration),
                "renewDeadline": millis(lease.renew_deadline), "retryPeriod": millis(lease.retry_period),
            },
        });
        let object = json!({"metadata": {}, "spec": spec});
        if !state.cluster.create(Kind::Config, driver, object) {
            state.cluster.edit(Kind::Config, driver, |object| object["spec"] = spec);
        }
    }
}

/// Answers a request about an AttacherConfig.
pub async fn serve(world: World, process: Process, request: Request<Body>) -> Result<Answer, BoxError> {
    let path = request.uri().path().to_owned();
    let query = request.uri().query().unwrap_or_default().to_owned();
    let method = request.method().clone();
    let body = request.into_body().collect().await?.to_bytes();
    let named = query.split("metadata.name%3D").nth(1).unwrap_or_default();
    let named = named.split('&').next().unwrap_or_default().to_owned();
    let written = path.trim_start_matches(PATH).trim_matches('/');
    let written = written.trim_end_matches("/status").to_owned();
    let patch = (method == Method::PATCH)
        .then(|| serde_json::from_slice::<Value>(&body))
        .transpose()?;
    let name = if patch.is_some() { written } else { named };
    if process.is_over() || world.is_over() {
        return std::future::pending().await;
    }
    let (fate, before) = world.with(|state| (fate(state), state.millis(0..=20) + state.stalled_for()));
    tokio::time::sleep(before).await;
    match fate {
        Fate::Lost(None) => return Err("connection reset".into()),
        Fate::Silent(None) => return std::future::pending().await,
        Fate::Refused(code) => return respond(code, &status(code, Kind::Config, &name, "out of order")),
        Fate::Untrue(lie, false) => return lie.respond(Kind::Config, &name, None),
        _ => {}
    }
    let (code, body) = world.with(|state| carry_out(state, &name, patch));
    match fate {
        Fate::Lost(_) => Err("connection reset".into()),
        Fate::Silent(_) => std::future::pending().await,
        Fate::DoneButRefused(code) => respond(code, &status(code, Kind::Config, &name, "out of order")),
        Fate::Untrue(lie, _) if lie != Lie::Another => lie.respond(Kind::Config, &name, Some(&body)),
        _ => respond(code, &body),
    }
}

fn carry_out(state: &mut State, name: &str, patch: Option<Value>) -> (u16, Value) {
    let known = state.cluster.get(Kind::Config, name).cloned();
    let Some(patch) = patch else {
        let version = state.cluster.version().to_string();
        let items: Vec<Value> = known.iter().map(|object| Value::clone(object)).collect();
        let list = json!({
            "kind": "AttacherConfigList", "apiVersion": "attacher.csi.dev/v1alpha1",
            "metadata": {"resourceVersion": version}, "items": items,
        });
        return (200, list);
    };
    let Some(known) = known else {
        return (404, not_found(Kind::Config, name));
    };
    let precondition = |pointer: &str| {
        let wanted = text(&patch, pointer);
        wanted.is_empty() || wanted == text(&known, pointer)
    };
    if !(precondition("/metadata/uid") && precondition("/metadata/resourceVersion")) {
        return (409, status(409, Kind::Config, name, "the object has been modified"));
    }
    let mut changed = Value::clone(&known);
    json_patch::merge(&mut changed["status"], &patch["status"]);
    (200, Value::clone(&state.cluster.put(Kind::Config, changed)))
}
