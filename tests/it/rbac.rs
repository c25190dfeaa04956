//! Least privilege, proven both ways: with the rights that helm renders for the chart each scenario comes to its end, and
//! without any single one of them the scenario of that right does not.
//!
//! The rights are read from what helm renders (`tests/chart/golden`), for all sets of values. A right without a scenario fails,
//! and so does a scenario for a right that is not rendered.

mod document;
mod rules;
mod scenarios;
mod scene;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use csi_attacher_model::api::AttacherConfig;
use futures::future::try_join_all;
use parking_lot::Mutex;
use serde_json::json;

use crate::rig::{World, other, part};
use crate::support::operator::Operator;
use crate::support::rbac::{Account, Grants, Right, sets_of_values};
use crate::support::wait::wait_for;
use crate::support::{Error, Result};
use scenarios::{ROWS, Row};
use scene::Scene;

/// The values of the chart with which the rules of provisioning are rendered.
const PROVISIONING: &str = "provisioning.yaml";

/// How long a scenario may take to come to the point where it needs the right.
const LIMIT: Duration = Duration::from_mins(1);
/// How long one may take to come to its end, beside all the others.
const WHOLE: Duration = Duration::from_mins(3);

/// Every right that the chart renders for some set of values.
fn rendered() -> Result<BTreeSet<Right>> {
    let mut all = BTreeSet::new();
    for name in sets_of_values()? {
        all.extend(Grants::of_values(&name)?.rights());
    }
    Ok(all)
}

/// The row of a right.
fn row_of(right: &Right) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.is_about(right))
}

#[test]
fn each_right_of_the_chart_has_a_scenario_and_each_scenario_a_right() -> Result<()> {
    let rights = rendered()?;
    let without: Vec<String> = rights
        .iter()
        .filter(|right| row_of(right).is_none())
        .map(ToString::to_string)
        .collect();
    assert!(
        without.is_empty(),
        "no scenario in tests/it/rbac/scenarios.rs needs {without:?}"
    );
    let unknown: Vec<&str> = ROWS
        .iter()
        .filter(|row| !rights.iter().any(|right| row.is_about(right)))
        .map(|row| row.right)
        .collect();
    assert!(unknown.is_empty(), "the chart grants nothing like {unknown:?}");
    Ok(())
}

/// Everything that the chart grants by default, and what the scenario of a Secret needs, for the account of one operator.
fn everything(account: &Account) -> Result<Grants> {
    let secret = Grants::to_secret(account, &account.namespace, scenarios::SECRET)?;
    let provisioning = Grants::of_values(PROVISIONING)?.given_to(account)?;
    Ok(Grants::defaults(account)?.and(provisioning).and(secret))
}

#[tokio::test]
async fn without_any_single_right_the_scenario_of_that_right_fails() -> Result<()> {
    let (one, two) = tokio::try_join!(World::own(), World::own())?;
    let rights = Mutex::new(rendered()?.into_iter().enumerate());
    let lane = async |world: &World| {
        loop {
            let next = rights.lock().next();
            let Some((number, right)) = next else { return Ok(()) };
            without(world, number, &right).await?;
        }
    };
    let told = async {
        prepare(&one).await?;
        // The long one needs no AttacherConfig, so that it disturbs nobody and nobody disturbs it.
        tokio::try_join!(scenarios::repeated_events(&one), lane(&one)).map(drop)
    };
    let with = async {
        prepare(&two).await?;
        with_all(&two).await?;
        lane(&two).await
    };
    tokio::try_join!(told, with)?;
    drop(two);
    part("a rule that is missing to list", a_missing_rule_is_named(&one)).await?;
    part("no rights on Nodes", without_nodes(&one)).await
}

/// Who may not list a kind serves nobody: log, readiness and status name the rule, and what does not work until then.
async fn a_missing_rule_is_named(world: &World) -> Result<()> {
    let account = Account::new("r-words");
    let taken = |right: &Right| right.to_string() == "ClusterRole storage.k8s.io/csinodes:list";
    let grants = everything(&account)?.without(taken);
    let kubeconfig = scene::account(world, &account, &grants).await?;
    let operator = Operator::start_with(&kubeconfig, scene::options(&account))?;
    let rule = "resources [csinodes], verbs [list, watch]; until then no volume is attached or detached";
    operator.wait_for_log(rule).await?;
    let is_told = |status: u16, body: &str| status != 200 && body.contains(rule);
    operator.wait_for_answer("/readyz", is_told).await?;
    let driver = world.unconfigured_driver("words", |builder| builder).await?;
    driver.configure(&json!({})).await?;
    let is_told = |config: Option<&AttacherConfig>| {
        let status = config.and_then(|config| config.status.as_ref());
        let mut conditions = status.iter().flat_map(|status| &status.conditions);
        conditions.any(|condition| condition.reason == "Syncing" && condition.message.contains(rule))
    };
    let configs = world.fixtures.cluster::<AttacherConfig>();
    wait_for(configs, "words", "the missing rule", LIMIT, is_told).await?;
    scene::account(world, &account, &everything(&account)?).await?;
    driver.wait("Ready", "True", Some("Running")).await?;
    scene::clean(world).await
}

/// Without the rights on Nodes everything goes on but the provisioning of drivers with topology, and that says what is missing.
async fn without_nodes(world: &World) -> Result<()> {
    let account = Account::new("r-nodes");
    let taken = |right: &Right| right.resource == "nodes";
    let grants = everything(&account)?.without(taken);
    let kubeconfig = scene::account(world, &account, &grants).await?;
    let operator = Operator::start_with(&kubeconfig, scene::options(&account))?;
    let configured = async |short: &str, keys: &'static [&'static str]| {
        let driver = world
            .unconfigured_driver(short, |builder| builder.topology(keys.iter().copied()))
            .await?;
        let settings = json!({ "driverName": driver.name, "provisioning": {} });
        driver.configure(&settings).await?;
        Ok::<_, Error>(driver)
    };
    let plain = configured("plain", &[]).await?;
    plain.wait("ProvisioningReady", "True", Some("Running")).await?;
    assert!(
        !operator.log_text().contains("resources [nodes]"),
        "no driver has topology"
    );

    let zonal = configured("zonal", &["zone"]).await?;
    zonal.wait("Ready", "False", Some("Forbidden")).await?;
    zonal.wait("DriverReachable", "True", Some("Connected")).await?;
    let rule = "resources [nodes], verbs [list, watch]; until then no volume of a driver with topology is provisioned";
    operator.wait_for_log(rule).await?;
    let is_told = |config: Option<&AttacherConfig>| {
        let status = config.and_then(|config| config.status.as_ref());
        let mut conditions = status.iter().flat_map(|status| &status.conditions);
        conditions.any(|condition| {
            let (reason, message) = (&*condition.reason, &*condition.message);
            (&*condition.type_, reason) == ("ProvisioningReady", "Forbidden") && message.contains(rule)
        })
    };
    let configs = world.fixtures.cluster::<AttacherConfig>();
    wait_for(configs, "zonal", "the missing rule", LIMIT, is_told).await?;
    plain.wait("ProvisioningReady", "True", Some("Running")).await?;
    scene::account(world, &account, &everything(&account)?).await?;
    zonal.wait("ProvisioningReady", "True", Some("Running")).await
}

/// Installs what each operator needs besides rights, and the namespace of the Leases in [`PROVISIONING`].
async fn prepare(world: &World) -> Result<()> {
    let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "storage-drivers" } });
    world.cluster.apply_yaml(&namespace.to_string()).await?;
    crate::support::operator::install(&world.cluster).await
}

/// With all rights each scenario comes to its end, and no request is refused.
async fn with_all(world: &World) -> Result<()> {
    let account = Account::new("r-all");
    let kubeconfig = scene::account(world, &account, &everything(&account)?).await?;
    let operator = Operator::start_with(&kubeconfig, scene::options(&account))?;
    operator.wait_ready().await?;
    let mut seen = BTreeSet::new();
    let shared = ROWS
        .iter()
        .filter(|row| row.deaf_for.is_none() && !row.long && seen.insert(row.name));
    let runs = shared.map(|row| async {
        let scene = Scene::beside(world, &account, row.name);
        let run = tokio::time::timeout(WHOLE, (row.run)(&scene)).await;
        let run = run.map_err(|_| other(format!("not within {WHOLE:?}")));
        run.and_then(|run| run)
            .map_err(|error| other(format!("{} with all rights: {error}", row.name)))
    });
    try_join_all(runs).await?;
    no_refusals(world, &account, None)?;
    scene::clean(world).await?;
    drop(operator);
    let deaf = ROWS.iter().filter(|row| row.deaf_for.is_some());
    for (number, row) in deaf.enumerate() {
        let account = Account::new(&format!("r-deaf-{number}"));
        let scene = Scene::alone(world, &account, row, &everything(&account)?).await?;
        let run = tokio::time::timeout(WHOLE, (row.run)(&scene)).await;
        let run = run
            .map_err(|_| other(format!("not within {WHOLE:?}")))
            .and_then(|run| run);
        run.map_err(|error| other(format!("{} with all rights: {error}", row.name)))?;
        no_refusals(world, &account, None)?;
        scene.end().await?;
    }
    Ok(())
}

/// Without one right its scenario does not come to its end, because exactly the request that needs the right is refused.
async fn without(world: &World, number: usize, right: &Right) -> Result<()> {
    let row = row_of(right).ok_or_else(|| other(format!("no scenario needs {right}")))?;
    if row.long {
        return Ok(());
    }
    let began = Instant::now();
    let account = Account::new(&format!("r-{number}"));
    let grants = everything(&account)?;
    let scene = Scene::alone(world, &account, row, &grants.without(|other| other == right)).await?;
    let failed = |what: String| other(format!("without {right}, {}: {what}", row.name));
    let mut outcome = Box::pin((row.run)(&scene));
    let refused = async {
        let (user, what) = (account.user(), format!("a refusal without {right}"));
        let event = world.cluster.wait_for_audit_event(&what, LIMIT, |event| {
            event.response_code == 403 && event.username == user && right.is_asked_by(event)
        });
        event.await?;
        scene.point_reached(LIMIT).await
    };
    tokio::select! {
        outcome = &mut outcome => {
            return Err(failed(format!("it did not fail as it should: {outcome:?}")));
        }
        refused = refused => refused.map_err(|error| failed(error.to_string()))?,
    }
    if let Ok(outcome) = tokio::time::timeout(row.grace, &mut outcome).await
        && outcome.is_ok()
    {
        return Err(failed("it passes, so nothing needs the right".to_owned()));
    }
    drop(outcome);
    no_refusals(world, &account, Some(right))?;
    scene.end().await?;
    let took = began.elapsed().as_secs_f64();
    println!("{:<62} {}: fails without it ({took:.1} s)", right.to_string(), row.name);
    Ok(())
}

/// Nothing was refused to an operator but what needs one right.
fn no_refusals(world: &World, account: &Account, but: Option<&Right>) -> Result<()> {
    let user = account.user();
    let events = world.cluster.audit_events()?;
    let refused: Vec<String> = events
        .iter()
        .filter(|event| event.response_code == 403 && event.username == user)
        .filter(|event| !but.is_some_and(|right| right.is_asked_by(event)))
        .map(|event| format!("{} {}", event.verb, event.uri))
        .collect();
    if refused.is_empty() {
        return Ok(());
    }
    Err(other(format!("refused to {user} without {but:?}: {refused:?}")))
}
