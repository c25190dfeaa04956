//! Who serves a driver, and why nobody does.

use csi_attacher_model::api::condition::{ConditionReason, ConditionType, OF_PROVISIONING};
use csi_attacher_model::api::names::lease_name;

use super::Case;
use super::report::{Diagnosis, ObjectName, Step, StepState};
use crate::observed::{ConditionRecord, ConfigRecord, DriverScene, LeaseRecord, Lookup};
use jiff::Timestamp;

/// Who serves a driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Service {
    /// A replica of the operator that leads the driver.
    Operator {
        /// The AttacherConfig, when it could be read.
        config: Option<String>,
        /// The replica, when it is known.
        holder: Option<String>,
    },
    /// A sidecar, which holds the Lease.
    Sidecar(String),
    /// Nobody, and nothing says that somebody should.
    Nobody,
    /// There is an AttacherConfig, and something is wrong with it.
    Problem(Box<Diagnosis>),
    /// It could not be read.
    Unknown,
}

/// Who serves the driver of a scene.
pub fn service(driver: &DriverScene, now: Timestamp) -> Service {
    match (&driver.config, &driver.lease) {
        (Lookup::Found(config), lease) => of_config(config, lease, driver, now),
        (_, Lookup::Found(lease)) if lease.is_held(now) => {
            let holder = lease.holder.clone().unwrap_or_default();
            if lease.is_of_operator {
                Service::Operator {
                    config: None,
                    holder: Some(holder),
                }
            } else {
                Service::Sidecar(holder)
            }
        }
        (Lookup::Unknown, _) | (_, Lookup::Unknown) => Service::Unknown,
        (Lookup::Missing, Lookup::Missing | Lookup::Found(_)) => Service::Nobody,
    }
}

/// Whether a sidecar serves the driver of a scene, to which the operator's commands and settings mean nothing.
pub(super) fn is_served_by_sidecar(driver: &DriverScene, now: Timestamp) -> bool {
    matches!(service(driver, now), Service::Sidecar(_))
}

fn of_config(config: &ConfigRecord, lease: &Lookup<LeaseRecord>, driver: &DriverScene, now: Timestamp) -> Service {
    let name = &config.name;
    if let Lookup::Found(lease) = lease
        && lease.is_held(now)
        && !lease.is_of_operator
        && let Some(holder) = &lease.holder
    {
        return Service::Sidecar(holder.clone());
    }
    if config.spec.as_ref().is_ok_and(|settings| settings.suspend) {
        let summary = format!("AttacherConfig {name} is suspended: no volume is attached or detached");
        let resume = format!("kubectl patch atc {name} --type=merge -p '{{\"spec\":{{\"suspend\":false}}}}'");
        return problem(
            Diagnosis::new(Case::ConfigSuspended, summary).run("resume when the maintenance is over", resume),
        );
    }
    let of = |kind| config.condition(kind);
    let reach = of(ConditionType::DriverReachable).filter(|reach| reach.status == "False");
    let ready = of(ConditionType::Ready);
    let lapsed = match lease {
        Lookup::Found(lease) => !lease.is_held(now),
        Lookup::Missing => true,
        Lookup::Unknown => false,
    };
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
    match &ready {
        Some(ready) if is_starting(&ready.reason) && !lapsed => {
            let summary = format!("AttacherConfig {name} is not ready yet: {}", words(ready));
            problem(Diagnosis::new(Case::AttacherStarting, summary).since(ready.since))
        }
        ready => problem(no_leader(config, lease, driver, ready.as_ref())),
    }
}

/// What a person has to fix in an AttacherConfig, whether its driver is served or not.
pub fn stalled(config: &ConfigRecord) -> Option<Diagnosis> {
    let name = &config.name;
    if let Err(errors) = &config.spec {
        let summary = format!("AttacherConfig {name} has an invalid spec: {errors}");
        return Some(Diagnosis::new(Case::ConfigStalled, summary).run("fix the spec", edit(name)));
    }
    let stalled = config.condition(ConditionType::Stalled)?;
    let is_meant = stalled.status == "True" && !is_of_provisioning(&stalled);
    is_meant.then(|| stalled_problem(config, &stalled))
}

/// Provisioning says nothing about attaching.
fn is_of_provisioning(condition: &ConditionRecord) -> bool {
    condition.message.starts_with(OF_PROVISIONING)
}

fn problem(diagnosis: Diagnosis) -> Service {
    Service::Problem(Box::new(diagnosis))
}

fn edit(name: &str) -> String {
    format!("kubectl edit atc {name}")
}

fn words(condition: &ConditionRecord) -> String {
    if condition.message.is_empty() {
        condition.reason.clone()
    } else {
        format!("{}: {}", condition.reason, condition.message)
    }
}

fn is_starting(reason: &str) -> bool {
    [
        ConditionReason::Connecting,
        ConditionReason::Syncing,
        ConditionReason::Draining,
        ConditionReason::Restarting,
    ]
    .iter()
    .any(|known| known.as_str() == reason)
}

fn stalled_problem(config: &ConfigRecord, stalled: &ConditionRecord) -> Diagnosis {
    let name = &config.name;
    let case = if stalled.reason == ConditionReason::CapabilityLost.as_str() {
        Case::CapabilityLost
    } else {
        Case::ConfigStalled
    };
    Diagnosis::new(case, format!("AttacherConfig {name} is stalled: {}", words(stalled)))
        .since(stalled.since)
        .next("nothing, until a person has fixed it")
        .run(
            "read all conditions, and fix what the message names",
            format!("kubectl describe atc {name}"),
        )
}

fn unreachable(config: &ConfigRecord, driver: &DriverScene, reach: &ConditionRecord) -> Diagnosis {
    let (name, driver) = (&config.name, &driver.name);
    Diagnosis::new(
        Case::DriverUnreachable,
        format!("the attacher cannot reach driver {driver}: {}", words(reach)),
    )
    .since(reach.since)
    .next("the operator connects again until the driver answers, and then continues with all volumes")
    .run(
        format!(
            "fix the driver or spec.endpoint of AttacherConfig {name}; the reason {} says what is wrong",
            reach.reason
        ),
        format!("kubectl describe atc {name}"),
    )
}

fn no_leader(
    config: &ConfigRecord,
    lease: &Lookup<LeaseRecord>,
    driver: &DriverScene,
    ready: Option<&ConditionRecord>,
) -> Diagnosis {
    let lease_name = lease_name(&driver.name);
    let held = match lease {
        Lookup::Found(lease) => match &lease.holder {
            Some(holder) => format!("Lease {}/{lease_name} of {holder} has expired", lease.namespace),
            None => format!("Lease {}/{lease_name} has no holder", lease.namespace),
        },
        Lookup::Missing => format!("there is no Lease {lease_name}"),
        Lookup::Unknown => "the Lease could not be read".to_owned(),
    };
    let says = ready.map_or_else(|| "it has no conditions".to_owned(), words);
    let since = match lease {
        Lookup::Found(lease) => lease.renewed,
        _ => ready.and_then(|ready| ready.since),
    };
    Diagnosis::new(
        Case::NoLeader,
        format!(
            "no replica of the operator leads driver {}: {held}; AttacherConfig {}: {says}",
            driver.name, config.name
        ),
    )
    .since(since)
    .next("nothing, until a replica runs and acquires the Lease")
    .run(
        "check that the operator runs and may write Leases",
        "kubectl get pods --all-namespaces --selector app.kubernetes.io/name=csi-attacher-operator",
    )
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
                let config = driver.config.found().map_or("?", |config| &config.name);
                let state = if diagnosis.case == Case::AttacherStarting {
                    StepState::Waiting
                } else {
                    StepState::Blocked
                };
                Step::new(
                    state,
                    ObjectName::cluster("AttacherConfig", config),
                    diagnosis.summary.clone(),
                )
            }
            Self::Unknown => Step::unknown(ObjectName::cluster("AttacherConfig", format!("of driver {name}"))),
        }
    }
}
