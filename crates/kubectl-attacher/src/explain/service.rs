//! Who serves a driver, and why nobody does.

use csi_attacher_model::api::condition::{ConditionReason, ConditionType, OF_PROVISIONING};
use csi_attacher_model::api::names::lease_name;

use super::Case;
use super::report::{Diagnosis, ObjectName, Step, StepState};
use crate::observed::{ConditionRecord, ConfigRecord, DriverScene, LeaseHolder, LeaseRecord, Lookup};
use csi_attacher_model::findings::age;
use jiff::Timestamp;
use std::time::Duration;

/// Who serves a driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Service {
    /// The operator: a replica that leads the driver, or one in the place of a sidecar.
    Operator {
        /// The AttacherConfig, when it could be read; none in the place of a sidecar.
        config: Option<String>,
        /// The replica, when it is known.
        holder: Option<String>,
    },
    /// A sidecar, which holds the Lease.
    Sidecar(String),
    /// Nobody, and nothing says that somebody should.
    Nobody,
    /// An AttacherConfig should serve it and something is wrong with that, or two attachers serve it.
    Problem(Box<Diagnosis>),
    /// It could not be read.
    Unknown,
}

/// Who serves the driver of a scene. An AttacherConfig says so of itself alone: whoever else holds a Lease serves the driver, too.
pub fn service(driver: &DriverScene, now: Timestamp) -> Service {
    let mut others = driver.held_by_others(now);
    match (others.next(), others.next().or_else(|| leading(driver, now))) {
        (Some(one), Some(other)) => problem(two_attachers(driver, one, other)),
        (Some(one), None) => of_holder(one),
        (None, _) => match &driver.config {
            Lookup::Found(config) => of_config(config, driver, now),
            Lookup::Missing | Lookup::Unknown => without_config(driver, now),
        },
    }
}

/// The Lease of the replica that serves the driver by its AttacherConfig. One on standby holds a Lease as well, and waits for another one.
fn leading(driver: &DriverScene, now: Timestamp) -> Option<&LeaseRecord> {
    let config = driver.config.found()?;
    let ready = config.condition(ConditionType::Ready)?;
    if ready.reason != ConditionReason::Running.as_str() && !is_of_provisioning(&ready) {
        return None;
    }
    let holder = LeaseHolder::Replica(config.status.holder.clone()?);
    driver.held_leases(now).find(|lease| lease.holder == holder)
}

/// Who holds a Lease, where no AttacherConfig has a say.
fn of_holder(lease: &LeaseRecord) -> Service {
    let holder = lease.holder().unwrap_or_default().to_owned();
    if matches!(lease.holder, LeaseHolder::Sidecar(_)) {
        return Service::Sidecar(holder);
    }
    Service::Operator {
        config: None,
        holder: Some(holder),
    }
}

fn without_config(driver: &DriverScene, now: Timestamp) -> Service {
    if let Some(lease) = driver.held_leases(now).next() {
        return of_holder(lease);
    }
    if driver.config.is_unknown() || driver.leases.is_unknown() {
        Service::Unknown
    } else if driver.nameless.is_empty() {
        Service::Nobody
    } else {
        problem(perhaps_nameless(driver, now))
    }
}

/// Whether a sidecar serves the driver of a scene, to which the operator's commands and settings mean nothing.
pub(super) fn is_served_by_sidecar(driver: &DriverScene, now: Timestamp) -> bool {
    matches!(service(driver, now), Service::Sidecar(_))
}

fn of_config(config: &ConfigRecord, driver: &DriverScene, now: Timestamp) -> Service {
    let name = &config.name;
    if config.is_suspended() {
        let summary = format!("AttacherConfig {name} is suspended: no volume is attached or detached");
        let resume = format!("kubectl patch atc {name} --type=merge -p '{{\"spec\":{{\"suspend\":false}}}}'");
        return problem(
            Diagnosis::new(Case::ConfigSuspended, summary).run("resume when the maintenance is over", resume),
        );
    }
    let of = |kind| config.condition(kind);
    let reach = of(ConditionType::DriverReachable).filter(|reach| reach.status == "False");
    let ready = of(ConditionType::Ready);
    let lapsed = !driver.leases.is_unknown() && driver.held_leases(now).next().is_none();
    let is_ready = |ready: &ConditionRecord| {
        (ready.status == "True" && ready.reason != ConditionReason::Suspended.as_str()) || is_of_provisioning(ready)
    };
    // With a spec that cannot be used, or a write that fails, the driver is served all the same.
    if ready.as_ref().is_some_and(is_ready) && reach.is_none() && !lapsed {
        return Service::Operator {
            config: Some(name.clone()),
            holder: config.status.holder.clone(),
        };
    }
    if let Some(stalled) = stalled(config) {
        return problem(stalled);
    }
    if let Some(reach) = reach {
        return problem(unreachable(config, driver, &reach));
    }
    let is_young = |ready: &ConditionRecord| ready.since.is_some_and(|since| age(since, now) <= patience(config));
    let starts = |ready: &ConditionRecord| is_starting(&ready.reason) && (!lapsed || is_young(ready));
    if driver.known_leases().any(|lease| lease.is_new(now)) || ready.as_ref().is_some_and(starts) {
        let summary = format!("AttacherConfig {name} is not ready yet: {}", says(ready.as_ref()));
        let since = ready.and_then(|ready| ready.since);
        return problem(Diagnosis::new(Case::AttacherStarting, summary).since(since));
    }
    problem(no_leader(config, driver, ready.as_ref()))
}

/// For how long no replica may lead after a start: a Lease that was just created is waited out, and one that was released is acquired.
fn patience(config: &ConfigRecord) -> Duration {
    let settings = config.spec.as_ref();
    settings.map_or(Duration::from_secs(15), |settings| {
        settings.leader_election.lease_duration
    }) * 2
}

/// What a person has to fix in an AttacherConfig, whether its driver is served or not.
pub fn stalled(config: &ConfigRecord) -> Option<Diagnosis> {
    let name = &config.name;
    if let Err(errors) = &config.spec
        && !config.is_accepted()
    {
        let summary = format!("AttacherConfig {name} has an invalid spec: {errors}");
        return Some(
            Diagnosis::new(Case::ConfigStalled, summary).run("fix the spec", format!("kubectl edit atc {name}")),
        );
    }
    let stalled = config.condition(ConditionType::Stalled)?;
    if stalled.status != "True" || is_of_provisioning(&stalled) {
        return None;
    }
    let case = if stalled.reason == ConditionReason::CapabilityLost.as_str() {
        Case::CapabilityLost
    } else {
        Case::ConfigStalled
    };
    let summary = format!("AttacherConfig {name} is stalled: {}", words(&stalled));
    Some(
        Diagnosis::new(case, summary)
            .since(stalled.since)
            .next("nothing, until a person has fixed it")
            .run("read all conditions, and fix what the message names", describe(name)),
    )
}

/// Provisioning says nothing about attaching.
fn is_of_provisioning(condition: &ConditionRecord) -> bool {
    condition.message.starts_with(OF_PROVISIONING)
}

fn problem(diagnosis: Diagnosis) -> Service {
    Service::Problem(Box::new(diagnosis))
}

/// The command that shows an AttacherConfig and its conditions.
fn describe(name: &str) -> String {
    format!("kubectl describe atc {name}")
}

fn words(condition: &ConditionRecord) -> String {
    if condition.message.is_empty() {
        condition.reason.clone()
    } else {
        format!("{}: {}", condition.reason, condition.message)
    }
}

/// What the condition Ready says.
fn says(ready: Option<&ConditionRecord>) -> String {
    ready.map_or_else(|| "it has no conditions".to_owned(), words)
}

fn is_starting(reason: &str) -> bool {
    use ConditionReason::{Connecting, Draining, Restarting, Standby, Syncing};
    let starting = [Standby, Connecting, Syncing, Draining, Restarting];
    starting.iter().any(|known| known.as_str() == reason)
}

fn unreachable(config: &ConfigRecord, driver: &DriverScene, reach: &ConditionRecord) -> Diagnosis {
    let name = &config.name;
    let whom = match driver.name.as_str() {
        "" => format!("the driver of AttacherConfig {name}"),
        driver => format!("driver {driver}"),
    };
    let summary = format!("the attacher cannot reach {whom}: {}", words(reach));
    Diagnosis::new(Case::DriverUnreachable, summary)
        .since(reach.since)
        .next("the operator connects again until the driver answers, and then continues with all volumes")
        .run(
            format!(
                "fix the driver or spec.endpoint of AttacherConfig {name}; the reason {} says what is wrong",
                reach.reason
            ),
            describe(name),
        )
}

fn no_leader(config: &ConfigRecord, driver: &DriverScene, ready: Option<&ConditionRecord>) -> Diagnosis {
    let (name, says) = (&config.name, says(ready));
    let last = driver.known_leases().max_by_key(|lease| lease.renewed);
    let since = last.map_or_else(|| ready.and_then(|ready| ready.since), |lease| lease.renewed);
    let summary = if driver.name.is_empty() {
        format!("no replica of the operator serves AttacherConfig {name}: {says}")
    } else {
        let lease_name = lease_name(&driver.name);
        let held = match last.map(|lease| (&lease.namespace, lease.holder())) {
            Some((namespace, Some(holder))) => format!("Lease {namespace}/{lease_name} of {holder} has expired"),
            Some((namespace, None)) => format!("Lease {namespace}/{lease_name} has no holder"),
            None if driver.leases.is_unknown() => "the Lease could not be read".to_owned(),
            None => format!("there is no Lease {lease_name}"),
        };
        let driver = &driver.name;
        format!("no replica of the operator leads driver {driver}: {held}; AttacherConfig {name}: {says}")
    };
    Diagnosis::new(Case::NoLeader, summary)
        .since(since)
        .next("nothing, until a replica runs and acquires the Lease")
        .run(
            "check that the operator runs and may write Leases",
            "kubectl get pods --all-namespaces --selector app.kubernetes.io/name=csi-attacher-operator",
        )
}

/// Leases that are held apart keep nobody apart.
fn two_attachers(driver: &DriverScene, one: &LeaseRecord, other: &LeaseRecord) -> Diagnosis {
    let name = lease_name(&driver.name);
    let held = |lease: &LeaseRecord| {
        let holder = lease.holder().unwrap_or_default();
        format!("{holder} holds Lease {}/{name}", lease.namespace)
    };
    let (driver_name, one_held, other_held) = (&driver.name, held(one), held(other));
    let summary = format!("two attachers serve driver {driver_name}: {one_held}, and {other_held}");
    let diagnosis = Diagnosis::new(Case::OtherAttacher, summary)
        .next("both call the driver for the same volumes, until one of them is stopped");
    let is_replica = matches!(other.holder, LeaseHolder::Replica(_));
    match driver.config.found().filter(|_| is_replica) {
        Some(config) => diagnosis.run(
            "suspend the AttacherConfig immediately; before you resume it, stop the other attacher, or list the namespace of its Lease in \
             spec.leaderElection.sidecarNamespaces",
            format!("kubectl patch atc {} --type=merge -p '{{\"spec\":{{\"suspend\":true}}}}'", config.name),
        ),
        None => diagnosis.advise("stop one of them immediately; two that have their Leases in one namespace exclude each other"),
    }
}

/// An AttacherConfig whose driver has never answered counts for each driver that nobody serves: it may be the one.
fn perhaps_nameless(driver: &DriverScene, now: Timestamp) -> Diagnosis {
    let unnamed = DriverScene::default();
    let said = driver
        .nameless
        .iter()
        .map(|config| match of_config(config, &unnamed, now) {
            Service::Problem(found) => found.summary,
            _ => format!("AttacherConfig {}", config.name),
        });
    let said: Vec<String> = said.collect();
    let (name, said) = (&driver.name, said.join("; "));
    let summary = format!(
        "no attacher serves driver {name}, unless an AttacherConfig of which no driver is known is for it: {said}"
    );
    let diagnosis = Diagnosis::new(Case::NoAttacher, summary)
        .next("nothing, until an attacher serves the driver")
        .advise("fix what keeps the AttacherConfig from its driver, and set its spec.driverName, so that it counts for no other driver");
    match driver.nameless.first() {
        Some(config) => diagnosis.run("read all its conditions", describe(&config.name)),
        None => diagnosis,
    }
}

/// The finalizer of a driver that nobody serves. `object` is what it keeps, as `release` is asked about it.
pub(super) fn orphan(summary: String, driver: &str, object: &str) -> Diagnosis {
    Diagnosis::new(Case::OrphanFinalizer, summary)
        .next("nothing, until an attacher serves the driver")
        .advise(format!(
            "have driver {driver} served again: by an AttacherConfig, or by its external-attacher sidecar"
        ))
        .run(
            "if the driver is gone for good, show the evidence and release the object",
            format!("kubectl attacher release {object}"),
        )
}

impl Service {
    /// What stops the driver's volumes, if something does. `object` is what waits.
    pub fn diagnosis(&self, driver: &DriverScene) -> Option<Diagnosis> {
        let name = &driver.name;
        match self {
            Self::Operator { .. } | Self::Sidecar(_) | Self::Unknown => None,
            Self::Problem(diagnosis) => Some((**diagnosis).clone()),
            Self::Nobody => {
                let operator = match driver.crd {
                    Lookup::Missing => "the CRD of AttacherConfig is not installed",
                    _ => "no AttacherConfig is for the driver",
                };
                let diagnosis = Diagnosis::new(
                    Case::NoAttacher,
                    format!("no attacher serves driver {name}: {operator}, and no Lease of it is being renewed"),
                )
                .next("nothing, until an attacher serves the driver");
                Some(diagnosis.advise(format!(
                    "create an AttacherConfig for driver {name}, or start its external-attacher sidecar; a sidecar without \
                     --leader-election cannot be seen here: check the pods of the driver"
                )))
            }
        }
    }

    /// The step that says who serves the driver.
    pub fn step(&self, driver: &DriverScene) -> Step {
        let name = &driver.name;
        match self {
            Self::Operator { config, holder } => {
                let holder = holder
                    .as_deref()
                    .map_or_else(String::new, |holder| format!(", leader {holder}"));
                let object = match config {
                    Some(config) => ObjectName::cluster("AttacherConfig", config),
                    None => ObjectName::cluster("Lease", lease_name(name)),
                };
                Step::done(object, format!("serves driver {name}{holder}"))
            }
            Self::Sidecar(holder) => Step::done(
                ObjectName::cluster("Lease", lease_name(name)),
                format!("a sidecar serves driver {name}: {holder} renews the Lease"),
            ),
            Self::Nobody => Step::new(
                StepState::Blocked,
                ObjectName::cluster("AttacherConfig", "<none>"),
                format!("no attacher serves driver {name}"),
            ),
            Self::Problem(diagnosis) => {
                let object = match driver.config.found().or(driver.nameless.first()) {
                    Some(config) => ObjectName::cluster("AttacherConfig", &*config.name),
                    None => ObjectName::cluster("Lease", lease_name(name)),
                };
                let state = if diagnosis.case == Case::AttacherStarting {
                    StepState::Waiting
                } else {
                    StepState::Blocked
                };
                Step::new(state, object, diagnosis.summary.clone())
            }
            Self::Unknown => Step::unknown(ObjectName::cluster("AttacherConfig", format!("of driver {name}"))),
        }
    }
}
