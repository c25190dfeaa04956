//! The actors that bring faults about.

use std::sync::Arc;
use std::time::Duration;

use csi_attacher_model::api::AttacherConfig;
use csi_mock_driver::{ControllerCapability, Method, Rule, ScriptAction, ScriptedFailure};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::DeleteParams;
use serde_json::{Value, json};
use tokio::time::sleep;
use tonic::Code;

use super::history::{Term, provisioner};
use super::link::{Lie, UNTRUE};
use super::other;
use super::plan::{Kind, Planned, Round};
use super::secrets;
use super::world::{Driver, OTHER_NAMESPACE, Replica, World, leases_of, this_version};
use crate::support::Result;
use crate::support::apply::apply_object;
use crate::support::operator::{IDENTITY, apply_config};

/// How long is tried what the API server does not take because it is away.
pub const TRIES: u32 = 150;
pub const PAUSE: Duration = Duration::from_millis(400);
/// How long one kind of answers that are not true is given.
const EACH_LIE: Duration = Duration::from_millis(700);
/// How long detaches fail before a standstill.
const FAILING_FOR: Duration = Duration::from_millis(1500);
/// How long calls last that are under way when the Leases of their driver are moved.
const UNDER_WAY: Duration = Duration::from_secs(4);

/// The calls that do something to volumes.
const WORK: [Method; 4] = [
    Method::ControllerPublishVolume,
    Method::ControllerUnpublishVolume,
    Method::CreateVolume,
    Method::DeleteVolume,
];

/// Brings all faults of a round about; returns when the last one is over.
pub async fn strike(world: &Arc<World>, round: &Round) -> Result<()> {
    let faults = round.faults.iter().map(|fault| {
        let (world, fault) = (Arc::clone(world), *fault);
        async move {
            sleep(fault.at).await;
            world.recorder.note("", format!("begins: {fault}"));
            let outcome = bring_about(&world, &fault).await;
            world.recorder.note("", format!("is over: {fault}"));
            outcome
        }
    });
    futures::future::try_join_all(faults).await.map(drop)
}

async fn bring_about(world: &Arc<World>, fault: &Planned) -> Result<()> {
    let driver = &world.drivers[fault.driver];
    let replica = struck(world, fault);
    let link = &replica.link;
    let (holder, from) = (replica.identity.lock().clone(), Timestamp::now());
    match fault.kind {
        Kind::Stop => return stop(world, replica, driver, fault).await,
        Kind::Kill => return replace(world, replica, "KILL", fault).await,
        Kind::Term => return replace(world, replica, "TERM", fault).await,
        Kind::Hole => {
            link.hold_back(true);
            sleep(fault.lasts).await;
            link.hold_back(false);
        }
        Kind::Swallow => link.swallow(),
        Kind::Reset => {
            for _ in 0..=fault.lasts.as_millis() / 700 {
                link.reset();
                sleep(Duration::from_millis(700)).await;
            }
        }
        Kind::Slow => {
            link.slow(Duration::from_millis(50 + fault.choice % 600));
            sleep(fault.lasts).await;
            link.slow(Duration::ZERO);
        }
        Kind::Untrue => tell_lies(world, replica, fault).await,
        Kind::Away
        | Kind::Drop
        | Kind::Fail
        | Kind::FailAfter
        | Kind::Hang
        | Kind::Late
        | Kind::Lag
        | Kind::Capability
        | Kind::Replaced => {
            return misbehave(world, driver, fault).await;
        }
        Kind::Denied => return deny(world, fault).await,
        Kind::Secret => return change_secret(world, driver, fault).await,
        Kind::Patch | Kind::Namespace => return patch(world, driver, fault).await,
        Kind::Recreate => return recreate(world, driver, fault).await,
        Kind::Lease => return delete_leases(world, driver).await,
        Kind::Api | Kind::Etcd => return restart(world, fault).await,
        // A round of its own; see `restore`.
        Kind::Restore => {}
    }
    if !matches!(fault.kind, Kind::Slow | Kind::Restore) {
        world.recorder.answers_lost(Some(holder), from);
    }
    Ok(())
}

async fn tell_lies(world: &World, replica: &Replica, fault: &Planned) {
    let mut choice = fault.choice;
    for _ in 0..=fault.lasts.as_millis() / EACH_LIE.as_millis() {
        let lie = lie(choice);
        world
            .recorder
            .note("", format!("replica {} gets {lie:?}", replica.number));
        replica.link.lie(Some(lie));
        sleep(EACH_LIE).await;
        choice = choice.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 8;
    }
    replica.link.lie(None);
}

/// Whom a fault of replicas strikes: mostly the one that works for the driver, because the others have little to lose.
fn struck<'a>(world: &'a World, fault: &Planned) -> &'a Replica {
    let driver = &world.drivers[fault.driver];
    let provisions = driver.provisions() && (fault.choice / 8).is_multiple_of(2);
    let leader = if provisions {
        world.recorder.holder(&provisioner(&driver.name))
    } else {
        world.recorder.holder(&driver.name)
    };
    let leader = world
        .replicas
        .iter()
        .find(|replica| Some(&*replica.identity.lock()) == leader.as_ref());
    leader
        .filter(|_| !fault.choice.is_multiple_of(4))
        .unwrap_or(&world.replicas[fault.replica])
}

/// What a number means as an answer that is not true.
pub fn lie(choice: u64) -> Lie {
    let kinds = UNTRUE.len() as u64;
    let index = usize::try_from(choice % kinds).unwrap_or_default();
    let every = [1, 2, 3, 5][usize::try_from(choice / kinds % 4).unwrap_or_default()];
    Lie {
        untrue: UNTRUE[index],
        every,
        writes: (choice / 64).is_multiple_of(2),
    }
}

fn signal(pid: u32, signal: &str) -> Result<()> {
    let status = std::process::Command::new("kill")
        .args([&format!("-{signal}"), &pid.to_string()])
        .status();
    status.map(drop).map_err(other)
}

/// Whether the kernel shows the process as stopped.
fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .is_some_and(|rest| rest.trim_start().starts_with('T'))
}

/// Half of the time the process has much to do when it goes on: detaches failed until it stood still, and wait for their retry.
async fn stop(world: &World, replica: &Replica, driver: &Driver, fault: &Planned) -> Result<()> {
    let with_failures = (fault.choice / 4).is_multiple_of(2);
    // Held until it goes on: a process that stands still cannot be told to end.
    let running = replica.running.lock().await;
    let Some(process) = &*running else { return Ok(()) };
    let behaviour = driver.behaviour.lock().await;
    if with_failures {
        world.recorder.note(
            "",
            format!("{}: detaches and deletions fail until the standstill", driver.name),
        );
        for method in [Method::ControllerUnpublishVolume, Method::DeleteVolume] {
            driver
                .mock
                .script(Rule::on(method).fail(Code::Unavailable, "as chaos wants"));
        }
        sleep(FAILING_FOR).await;
    }
    world.recorder.stops(process.pid);
    signal(process.pid, "STOP")?;
    while !is_stopped(process.pid) {
        tokio::task::yield_now().await;
    }
    world.recorder.note("", format!("{} stands still", process.identity));
    if with_failures {
        driver.mock.clear_rules();
    }
    drop(behaviour);
    sleep(fault.lasts).await;
    world.recorder.goes_on(process.pid);
    world.recorder.note("", format!("{} goes on", process.identity));
    signal(process.pid, "CONT")
}

/// Ends a process and starts another one, half of the time under its name, as when a container is started again.
async fn replace(world: &World, replica: &Replica, how: &str, fault: &Planned) -> Result<()> {
    let mut running = replica.running.lock().await;
    let Some(process) = running.take() else { return Ok(()) };
    let (name, program) = (process.identity.clone(), process.program.clone());
    world.end(process, how).await?;
    sleep(fault.lasts).await;
    let another = format!("replica-{}-{:06x}", replica.number, fault.choice & 0xFF_FFFF);
    let name = if fault.choice.is_multiple_of(2) { name } else { another };
    world.start(replica, &mut running, &name, &program).await
}

fn failure(code: Code) -> ScriptedFailure {
    ScriptedFailure {
        code,
        message: "as chaos wants".to_owned(),
        echo_secrets: true,
        pad_bytes: 0,
    }
}

async fn misbehave(world: &World, driver: &Driver, fault: &Planned) -> Result<()> {
    let _alone = driver.behaviour.lock().await;
    let choice = usize::try_from(fault.choice % 1024).unwrap_or_default();
    let rule = match choice % (WORK.len() + 1) {
        0 => Rule::any(),
        other => Rule::on(WORK[other - 1]),
    };
    let choice = choice / (WORK.len() + 1);
    let before = [
        Code::Unavailable,
        Code::Internal,
        Code::Aborted,
        Code::ResourceExhausted,
        Code::DeadlineExceeded,
        Code::Unknown,
        Code::FailedPrecondition,
        Code::NotFound,
        Code::InvalidArgument,
    ];
    let after = [
        Code::Unavailable,
        Code::Aborted,
        Code::DeadlineExceeded,
        Code::Cancelled,
    ];
    let rule = match fault.kind {
        Kind::Away => {
            driver.mock.stop().await;
            sleep(fault.lasts).await;
            return driver.mock.start_again().await.map_err(other);
        }
        Kind::Replaced => {
            driver.mock.replace().await.map_err(other)?;
            sleep(fault.lasts).await;
            driver.mock.end_former().await;
            return Ok(());
        }
        Kind::Capability => {
            lose_capability(driver, fault, choice).await;
            return Ok(());
        }
        Kind::Drop if choice.is_multiple_of(2) => rule.action(ScriptAction::DropConnection),
        Kind::Drop => rule.action(ScriptAction::DropConnectionAfterWork),
        Kind::Fail => rule.action(ScriptAction::Fail(failure(before[choice % before.len()]))),
        Kind::FailAfter => rule.action(ScriptAction::FailAfterWork(failure(after[choice % after.len()]))),
        Kind::Hang => rule.hang(),
        Kind::Late => rule.late_success(),
        _ => rule.delay(Duration::from_millis(500 + fault.choice % 4500)),
    };
    world.recorder.note("", format!("{}: {rule:?}", driver.name));
    driver.mock.script(rule);
    sleep(fault.lasts).await;
    driver.mock.clear_rules();
    Ok(())
}

async fn lose_capability(driver: &Driver, fault: &Planned, choice: usize) {
    let lost = match choice % 2 {
        0 => ControllerCapability::PublishUnpublishVolume,
        _ => ControllerCapability::CreateDeleteVolume,
    };
    driver.mock.set_capability(lost, false);
    driver.mock.drop_connections();
    sleep(fault.lasts).await;
    driver.mock.set_capability(lost, true);
    driver.mock.drop_connections();
}

/// Changes that are valid at any time, each of another part of the settings.
const CHANGES: [&str; 18] = [
    r#"{"concurrency": {"attach": 1}}"#,
    r#"{"concurrency": {"detach": 1}}"#,
    r#"{"concurrency": {"perNode": 1}}"#,
    r#"{"concurrency": {"callsPerSecond": 10}}"#,
    r#"{"kubernetesAPI": {"qps": 20, "burst": 5}}"#,
    r#"{"timeouts": {"publish": "50ms"}}"#,
    r#"{"timeouts": {"unpublish": "50ms"}}"#,
    r#"{"leaderElection": {"leaseDuration": "4s", "renewDeadline": "3s"}}"#,
    r#"{"reconcileSync": {"mode": "Disabled"}}"#,
    r#"{"suspend": true}"#,
    r#"{"publishSecrets": []}"#,
    r#"{"backoff": {"initial": "1ms", "max": "10ms"}}"#,
    r#"{"driverName": "another.chaos.test"}"#,
    r#"{"provisioning": {"deletion": "Hold"}}"#,
    r#"{"provisioning": {"mode": "Disabled"}}"#,
    r#"{"provisioning": {"timeouts": {"create": "50ms", "delete": "50ms"}}}"#,
    r#"{"provisioning": {"concurrency": {"create": 1, "delete": 1}}}"#,
    r#"{"provisioning": null}"#,
];
/// The first so many are for drivers that do not provision too.
const CHANGES_OF_ALL: usize = 13;

/// Merges as a JSON merge patch does.
pub fn merge(into: &mut Value, change: &Value) {
    match (into, change) {
        (Value::Object(into), Value::Object(change)) => {
            for (key, value) in change {
                if value.is_null() {
                    into.remove(key);
                } else {
                    merge(into.entry(key).or_insert(Value::Null), value);
                }
            }
        }
        (into, change) => *into = change.clone(),
    }
}

async fn patch(world: &World, driver: &Driver, fault: &Planned) -> Result<()> {
    let _alone = driver.settings.lock().await;
    let change = if fault.kind == Kind::Namespace {
        // Calls are under way meanwhile.
        for method in WORK {
            driver.mock.script(Rule::on(method).delay(UNDER_WAY).times(10));
        }
        sleep(Duration::from_secs(1)).await;
        json!({"leaderElection": {"namespace": OTHER_NAMESPACE}})
    } else {
        let count = if driver.provisions() {
            CHANGES.len()
        } else {
            CHANGES_OF_ALL
        };
        let index = usize::try_from(fault.choice % count as u64).unwrap_or_default();
        serde_json::from_str(CHANGES[index])?
    };
    world
        .recorder
        .note("", format!("AttacherConfig {}: {change}", driver.config));
    let mut spec = driver.spec.clone();
    merge(&mut spec, &change);
    configure(world, driver, &spec).await?;
    sleep(fault.lasts).await;
    configure(world, driver, &driver.spec).await
}

/// Applies settings as soon as the API server takes them.
pub async fn configure(world: &World, driver: &Driver, spec: &Value) -> Result<()> {
    insist(|| async {
        apply_config(&world.client, &driver.config, spec.clone())
            .await
            .map(drop)
    })
    .await
}

async fn change_secret(world: &World, driver: &Driver, fault: &Planned) -> Result<()> {
    let _alone = driver.secret.lock().await;
    if fault.choice.is_multiple_of(2) {
        world
            .recorder
            .note("", format!("the Secret of {} is deleted", driver.name));
        secrets::delete(world, driver).await;
    } else {
        world
            .recorder
            .note("", format!("the Secret of {} has another value", driver.name));
        secrets::put(world, driver, false).await?;
    }
    sleep(fault.lasts).await;
    secrets::put(world, driver, true).await
}

async fn recreate(world: &World, driver: &Driver, fault: &Planned) -> Result<()> {
    let _alone = driver.settings.lock().await;
    let api: Api<AttacherConfig> = Api::all(world.client.clone());
    for _ in 0..TRIES {
        let deleted = api.delete(&driver.config, &DeleteParams::default()).await;
        if matches!(deleted, Err(kube::Error::Api(status)) if status.is_not_found()) {
            break;
        }
        sleep(PAUSE).await;
    }
    sleep(fault.lasts).await;
    configure(world, driver, &driver.spec).await
}

/// The name of the admission policy and its binding.
const POLICY: &str = "chaos";
const ADMISSION: &str = "admissionregistration.k8s.io/v1";

/// A policy for what operators write to VolumeAttachments, claims or PersistentVolumes, and its binding: it denies that, or takes away what
/// a claim of a VolumeAttachment notes.
fn policy(kind: &str, resource: &str) -> [Value; 2] {
    let mutates = kind.starts_with("Mutating");
    let mut conditions = vec![json!({
        "name": "operator", "expression": format!("request.userInfo.username.startsWith('system:serviceaccount:{IDENTITY}:')"),
    })];
    let mut spec = json!({
        "failurePolicy": "Ignore",
        "matchConstraints": {"resourceRules": [{
            "apiGroups": ["storage.k8s.io", ""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": [resource],
        }]},
    });
    if mutates {
        let noted = |object: &str| {
            let annotations = format!("{object}.metadata.annotations");
            format!("has({annotations}) && 'attacher.csi.dev/volume' in {annotations}")
        };
        let claims = format!("{} && !({})", noted("object"), noted("oldObject"));
        conditions.push(json!({"name": "claims", "expression": claims}));
        let note = "/metadata/annotations/attacher.csi.dev~1volume";
        let patch = format!("[JSONPatch{{op: 'remove', path: '{note}'}}]");
        spec["mutations"] = json!([{"patchType": "JSONPatch", "jsonPatch": {"expression": patch}}]);
        spec["reinvocationPolicy"] = "Never".into();
    } else {
        spec["validations"] = json!([{"expression": "false", "message": "as chaos wants"}]);
    }
    spec["matchConditions"] = conditions.into();
    let metadata = json!({"name": POLICY});
    let policy = json!({"apiVersion": ADMISSION, "kind": kind, "metadata": metadata, "spec": spec});
    let mut binding = json!({
        "apiVersion": ADMISSION, "kind": format!("{kind}Binding"), "metadata": metadata, "spec": {"policyName": POLICY},
    });
    if !mutates {
        binding["spec"]["validationActions"] = json!(["Deny"]);
    }
    [policy, binding]
}

/// An admission policy is in effect for a while, as a webhook would be.
async fn deny(world: &World, fault: &Planned) -> Result<()> {
    let (kind, resource) = match fault.choice % 5 {
        0 => ("ValidatingAdmissionPolicy", "volumeattachments"),
        1 => ("ValidatingAdmissionPolicy", "volumeattachments/status"),
        2 => ("ValidatingAdmissionPolicy", "persistentvolumeclaims"),
        3 => ("ValidatingAdmissionPolicy", "persistentvolumes"),
        _ => ("MutatingAdmissionPolicy", "volumeattachments"),
    };
    let _alone = world.policy.lock().await;
    world.recorder.note("", format!("{kind} for {resource}"));
    for object in policy(kind, resource) {
        insist(|| async {
            let object = serde_json::from_value(object.clone())?;
            apply_object(&world.client, object).await.map(drop)
        })
        .await?;
    }
    sleep(fault.lasts).await;
    let kind = kind.to_lowercase();
    for plural in [format!("{kind}bindings"), kind.replace("policy", "policies")] {
        let url = format!("/apis/{ADMISSION}/{plural}/{POLICY}");
        insist(|| async {
            let request = http::Request::delete(&url).body(Vec::new()).map_err(other)?;
            match world.client.request::<Value>(request).await {
                Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
                answer => answer.map(drop).map_err(other),
            }
        })
        .await?;
    }
    Ok(())
}

/// Tries again what the API server does not take, as long as it may be away.
async fn insist<F: Future<Output = Result<()>>>(mut attempt: impl FnMut() -> F) -> Result<()> {
    let mut last = attempt().await;
    for _ in 0..TRIES {
        if last.is_ok() {
            break;
        }
        sleep(PAUSE).await;
        last = attempt().await;
    }
    last
}

async fn delete_leases(world: &World, driver: &Driver) -> Result<()> {
    for namespace in [IDENTITY, OTHER_NAMESPACE] {
        let api: Api<Lease> = Api::namespaced(world.client.clone(), namespace);
        for (lease, led) in leases_of(&driver.name) {
            world.recorder.term(Term {
                driver: led,
                namespace: namespace.to_owned(),
                holder: None,
                acquired: Timestamp::now(),
                seen: Timestamp::now(),
            });
            // It may not be there, or the API server may be away.
            drop(api.delete(&lease, &DeleteParams::default()).await);
        }
    }
    Ok(())
}

async fn restart(world: &World, fault: &Planned) -> Result<()> {
    let _alone = world.control_plane.lock().await;
    let from = Timestamp::now();
    if fault.kind == Kind::Api {
        world.cluster.stop_apiserver();
        sleep(fault.lasts).await;
        world.cluster.start_apiserver().await?;
    } else {
        world.cluster.stop_etcd();
        sleep(fault.lasts).await;
        world.cluster.start_etcd().await?;
    }
    world.recorder.answers_lost(None, from);
    Ok(())
}

/// Starts replicas that are not there: after a round nobody is missing.
pub async fn make_whole(world: &World) -> Result<()> {
    world.heal();
    world.look_after_replicas().await?;
    for replica in &world.replicas {
        let mut running = replica.running.lock().await;
        if running.is_none() {
            world
                .start(
                    replica,
                    &mut running,
                    &format!("replica-{}", replica.number),
                    &this_version(),
                )
                .await?;
        }
    }
    Ok(())
}
