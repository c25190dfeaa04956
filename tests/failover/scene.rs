//! The cluster, the driver and the replicas.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use csi_mock_driver::{MockDriver, MockDriverBuilder, MockHandle, Rule};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use serde_json::json;

use super::load::{DRIVER, NODES, Outcome, name, node};
use super::{CALL, End, LEASE_DURATION, Mode, Plan, RENEW_DEADLINE, RETRY_PERIOD, check};
use crate::support::lease::History;
use crate::support::operator::{self, IDENTITY, apply_config, release_lease};
use crate::support::rbac::Account;
use crate::support::wait::wait_for;
use crate::support::{ControlPlane, Error, Fixtures, Operator, OperatorOptions, Options, Refusals, Result, Volume};

const LEASE_NAME: &str = "external-attacher-leader-failover-csi-test";
/// The sidecar's rights, for replicas that are configured by flags.
const DROP_IN_RBAC: &str = include_str!("../../config/samples/drop-in-rbac.yaml");
/// Namespace and name of the ServiceAccount in it.
const DROP_IN: (&str, &str) = ("csi-driver", "csi-attacher");
/// Longer than any replica needs for anything.
pub const LIMIT: Duration = Duration::from_secs(30);
/// How many different durations of calls there are.
const DELAYS: usize = 16;

/// A running replica.
struct Replica {
    name: String,
    pid: u32,
    process: Operator,
}

/// A replica that was replaced.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Its identity.
    pub name: String,
    pub end: End,
    /// How long the driver was not called: from the signal to the first call of a successor.
    pub took: Duration,
    /// Whether it says itself that it lost the Lease, so that it had none to hand over.
    pub lost_the_lease: bool,
    pid: u32,
    /// When the signal was sent.
    signalled: Timestamp,
}

impl Ended {
    /// Whether it had no time to finish what ran, and nobody else knows of it.
    fn left_without_a_word(&self) -> bool {
        self.end == End::Killed || self.lost_the_lease
    }
}

/// How the volumes are at the end.
#[derive(Default)]
pub struct Settled {
    /// What is not where it is wanted, in words.
    pub wrong: Vec<String>,
    /// How much is published and nobody can know: the API server lost the finalizer that was added during a deletion, and the replica
    /// that published was gone before it could take the volume back (ARCHITECTURE, rule 20).
    pub unknown: usize,
}

/// Everything of a run.
pub struct Scene {
    // In this order: replicas before the driver and the API server.
    replicas: Vec<Replica>,
    pub driver: MockHandle,
    plan: Plan,
    kubeconfig: PathBuf,
    /// How each replica is started.
    options: OperatorOptions,
    pub ended: Vec<Ended>,
    leases: Api<Lease>,
    pub history: History,
    pub fixtures: Fixtures,
    _refusals: Option<Refusals>,
    _cluster: ControlPlane,
    _folder: tempfile::TempDir,
}

impl Scene {
    /// Starts everything; returns when one replica leads and the others are ready.
    pub async fn set(plan: Plan) -> Result<Self> {
        let options = Options {
            audit: plan.audited,
            ..Options::default()
        };
        let cluster = ControlPlane::start(options).await?;
        let client = cluster.admin_client().await?;
        let fixtures = Fixtures::new(client.clone()).with_limit(LIMIT * 4);
        let folder = tempfile::tempdir()?;
        let socket = folder.path().join("csi.sock").display().to_string();
        let driver = driver(&plan).start(&socket).await?;
        for number in 0..NODES {
            let id = format!("id-{number}");
            fixtures.csi_node(&node(number), DRIVER, &id).await?;
        }
        for number in 0..plan.volumes {
            let volume = Volume::new(&name(number), DRIVER, &name(number));
            fixtures.persistent_volume(&volume).await?;
        }
        // The Lease is where the account is.
        let (namespace, account) = match plan.mode {
            Mode::Flags => {
                cluster.apply_yaml(DROP_IN_RBAC).await?;
                DROP_IN
            }
            Mode::Config => {
                operator::install(&cluster).await?;
                (IDENTITY, IDENTITY)
            }
        };
        let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
        let mut scene = Self {
            replicas: Vec::new(),
            driver,
            kubeconfig: cluster.kubeconfig_for_service_account(namespace, account).await?,
            options: options_of(&plan, &socket),
            ended: Vec::new(),
            history: History::start(leases.clone(), LEASE_NAME),
            leases,
            fixtures,
            _refusals: plan.audited.then(|| refusals(&cluster)).transpose()?,
            _cluster: cluster,
            _folder: folder,
            plan,
        };
        if scene.plan.mode == Mode::Config {
            release_lease(&client, namespace, DRIVER).await?;
            let times = json!({
                "leaseDuration": format!("{LEASE_DURATION:?}"), "renewDeadline": format!("{RENEW_DEADLINE:?}"),
                "retryPeriod": format!("{RETRY_PERIOD:?}"),
            });
            let spec = json!({"endpoint": format!("unix://{socket}"), "leaderElection": times});
            apply_config(&client, "failover", spec).await?;
        }
        scene.fill_up().await?;
        Ok(scene)
    }

    /// Starts replicas until there are enough, and waits until they could work.
    async fn fill_up(&mut self) -> Result<()> {
        while self.replicas.len() < self.plan.replicas {
            let name = format!("replica-{}", self.ended.len() + self.replicas.len() + 1);
            let options = self.options.clone().argument(format!("--identity={name}"));
            let process = Operator::start_with(&self.kubeconfig, options)?;
            process.wait_ready().await?;
            let pid = process.pid()?;
            self.replicas.push(Replica { name, pid, process });
        }
        Ok(())
    }

    /// Waits until one of the replicas that run holds the Lease, and tells its place.
    async fn leader(&self) -> Result<usize> {
        let names: Vec<String> = self.replicas.iter().map(|replica| replica.name.clone()).collect();
        let holder = |lease: Option<&Lease>| {
            let holder = lease?.spec.as_ref()?.holder_identity.clone()?;
            names.iter().position(|name| *name == holder)
        };
        let is_held = |lease: Option<&Lease>| holder(lease).is_some();
        let held = wait_for(self.leases.clone(), LEASE_NAME, "held by a replica", LIMIT, is_held).await?;
        holder(held.as_ref()).ok_or_else(|| Error::Other("nobody leads".to_owned()))
    }

    /// Ends the replica that leads, and starts another one when its successor works. Answers how long the driver was not called.
    pub async fn replace_leader(&mut self, end: End) -> Result<Duration> {
        let mut leader = self.replicas.remove(self.leader().await?);
        let others: Vec<u32> = self.replicas.iter().map(|replica| replica.pid).collect();
        let signalled = Timestamp::now();
        leader.process.signal(if end == End::Told { "TERM" } else { "KILL" })?;
        let sent = Timestamp::now();
        let first = self.driver.wait_for_call(move |call| {
            check::moves(call) && call.started >= signalled && call.caller_pid.is_some_and(|pid| others.contains(&pid))
        });
        let limit = LEASE_DURATION + LIMIT;
        let first = tokio::time::timeout(limit, first).await;
        let first = first.map_err(|_| Error::Other(format!("no successor works after {limit:?} ({end:?})")))?;
        let status = leader.process.wait_ended(LIMIT).await?;
        let log = leader.process.log_text();
        if end == End::Told && !status.success() {
            return Err(Error::Other(format!("{} ended with {status}:\n{log}", leader.name)));
        }
        let took = Duration::try_from(first.started.duration_since(signalled)).unwrap_or_default();
        self.ended.push(Ended {
            name: leader.name,
            end,
            took,
            lost_the_lease: log.contains("lost the Lease"),
            pid: leader.pid,
            signalled: sent,
        });
        self.fill_up().await?;
        Ok(took)
    }

    /// Waits until everything is where it is wanted.
    pub async fn settle(&self, load: &Outcome) -> Settled {
        let mut late = Vec::new();
        for number in 0..self.plan.volumes {
            let name = name(number);
            let outcome = if load.wanted.contains(&number) {
                self.fixtures.wait_for_attached(&name).await.map(drop)
            } else {
                self.fixtures.wait_for_attachment_gone(&name).await
            };
            late.extend(outcome.err().map(|error| error.to_string()));
        }
        if self.ended.iter().any(Ended::left_without_a_word) {
            // What it called for last the driver may do a while after its end.
            let is_right = |_: &MockHandle| self.look(load).wrong.is_empty();
            drop(tokio::time::timeout(LIMIT, self.driver.wait_until(is_right)).await);
        }
        let mut settled = self.look(load);
        settled.wrong.extend(late);
        settled
    }

    /// How the volumes are at the driver.
    fn look(&self, load: &Outcome) -> Settled {
        let mut settled = Settled::default();
        let (published, calls) = (self.driver.published(), self.driver.calls());
        let gone = self.ended.iter().filter(|ended| ended.left_without_a_word());
        let gone: Vec<u32> = gone.map(|ended| ended.pid).collect();
        for number in 0..self.plan.volumes {
            let (wanted, lost) = (load.wanted.contains(&number), load.lost_finalizer.contains(&number));
            let place = (name(number), format!("id-{}", number % NODES));
            if wanted == published.contains(&place) {
                continue;
            }
            let calls = check::calls_at(&calls, &place);
            let final_caller = calls.last().and_then(|call| call.caller_pid);
            if !wanted && lost && final_caller.is_some_and(|pid| gone.contains(&pid)) {
                settled.unknown += 1;
                continue;
            }
            let facts = format!(
                "its finalizer was lost: {lost}; calls: {calls:#?}; replaced: {:?}",
                self.ended
            );
            settled.wrong.push(format!("{place:?} is wanted: {wanted}; {facts}"));
        }
        settled
    }

    /// The processes that were killed, and when.
    pub fn killed(&self) -> HashMap<u32, Timestamp> {
        let killed = self.ended.iter().filter(|ended| ended.end == End::Killed);
        killed.map(|ended| (ended.pid, ended.signalled)).collect()
    }
}

/// How each replica is started, but for its name.
fn options_of(plan: &Plan, socket: &str) -> OperatorOptions {
    let mut options = OperatorOptions::new(&plan.binary);
    if plan.mode == Mode::Flags {
        options.arguments.extend([
            format!("--csi-address={socket}"),
            "--leader-election".to_owned(),
            format!("--leader-election-namespace={}", DROP_IN.0),
            format!("--leader-election-lease-duration={LEASE_DURATION:?}"),
            format!("--leader-election-renew-deadline={RENEW_DEADLINE:?}"),
            format!("--leader-election-retry-period={RETRY_PERIOD:?}"),
        ]);
    }
    options
}

fn driver(plan: &Plan) -> MockDriverBuilder {
    // More than any run makes: a call that is forgotten is not checked.
    let builder = MockDriver::builder(DRIVER).accept_any_volume().keep_calls(1_000_000);
    (0..plan.volumes).fold(builder, |builder, number| {
        // Each volume has its own duration, between the two that were asked for.
        let share = (number % DELAYS) as f64 / (DELAYS - 1) as f64;
        let delay = CALL[0] + CALL[1].saturating_sub(CALL[0]).mul_f64(share);
        builder.rule(Rule::any().volume(name(number)).delay(delay))
    })
}

/// Looks back at what replicas of either mode were refused.
fn refusals(cluster: &ControlPlane) -> Result<Refusals> {
    let account = Account {
        namespace: DROP_IN.0.to_owned(),
        name: DROP_IN.1.to_owned(),
    };
    Refusals::of(cluster)?.and_of_sidecar(account, DROP_IN_RBAC)
}
