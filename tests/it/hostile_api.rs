//! An API server that is overloaded, forgetful, slow, silent or away. Work resumes by itself, nothing is lost, and the API
//! server is not run over when it is back.

mod ahead;
pub mod pauses;
mod reads;
mod swallowed;
mod writes;

use std::time::Duration;

use csi_attacher_model::api::AttacherConfig;
use csi_mock_driver::Method;
use futures::{StreamExt, TryStreamExt, stream};
use serde_json::json;

use crate::rig::{Driver, World, detach, operator_options, part};
use crate::support::operator::{IDENTITY, install};
use crate::support::proxy::{Proxy, Seen};
use crate::support::{Fixtures, Operator, Result};

/// The limit of waits for what a watch tells, for tests that break watches: one that breaks for the fifth time within 20 s begins again up to
/// 20 s later, and each of two rules may ask for that time.
const LATE: Duration = Duration::from_secs(90);

/// Each part has an operator with a proxy of its own, and drivers that are served until its end.
#[tokio::test]
async fn work_resumes_whatever_becomes_of_watches() -> Result<()> {
    let world = &World::own().await?;
    part(
        "they end",
        ahead::watches_that_end_under_load_hold_no_attach_back(world),
    )
    .await?;
    let expire = ahead::a_volume_whose_watch_always_expires_is_released_and_deleted(world);
    part("they expire", expire).await?;
    part("they tell nothing", reads::what_a_watch_does_not_tell_is_found(world)).await
}

/// As with the watches.
#[tokio::test]
async fn work_resumes_whatever_becomes_of_writes() -> Result<()> {
    let world = &World::own().await?;
    part("they fail", writes::writes_get_through(world)).await?;
    part("they hang", writes::writes_that_are_not_answered_get_through(world)).await?;
    let outage = reads::after_an_outage_the_api_server_is_not_run_over(world);
    part("an outage", outage).await
}

/// A cluster, and an operator that reaches it through a proxy only.
struct Front<'w> {
    world: &'w World,
    proxy: Proxy,
    operator: Operator,
}

impl<'w> Front<'w> {
    /// One whose operator waits long for an answer. A write that it gives up is sent once more, so that calls and
    /// requests could not be counted where a busy machine is slow to answer.
    async fn new(world: &'w World) -> Result<Self> {
        Self::with_timeout(world, "15s").await
    }

    /// One whose operator waits so long for the answer to a request.
    async fn with_timeout(world: &'w World, timeout: &str) -> Result<Self> {
        let front = Self::started(world, timeout, |_| {}).await?;
        front.operator.wait_ready().await?;
        Ok(front)
    }

    /// One whose operator has just been started, when this had been done to the proxy.
    async fn started(world: &'w World, timeout: &str, before: impl FnOnce(&Proxy)) -> Result<Self> {
        install(&world.cluster).await?;
        let direct = world.cluster.kubeconfig_for_service_account(IDENTITY, IDENTITY).await?;
        let proxy = Proxy::start(&direct).await?;
        before(&proxy);
        let kubeconfig = proxy.kubeconfig(&direct)?;
        let options = operator_options().argument(format!("--kube-api-timeout={timeout}"));
        let operator = Operator::start_with(&kubeconfig, options)?;
        Ok(Self { world, proxy, operator })
    }

    /// A driver whose failed attempts are repeated within this time, and whose listing does not mend what was lost.
    async fn driver(&self, short: &str, longest: &str) -> Result<Driver<'w>> {
        let settings = json!({
            "backoff": { "initial": "200ms", "max": longest }, "reconcileSync": { "mode": "Disabled" },
        });
        self.world.driver(short, settings).await
    }

    /// Takes the AttacherConfigs away, before those who come next are served.
    async fn end(self, configs: &[&str]) -> Result<()> {
        for config in configs {
            self.world.fixtures.delete::<AttacherConfig>(config).await?;
        }
        Ok(())
    }
}

/// Fixtures that wait until [`LATE`].
fn patient(driver: &Driver<'_>) -> Fixtures {
    driver.world.fixtures.clone().with_limit(LATE)
}

/// Makes volumes and attachments of these names, many at a time.
async fn claim_all(driver: &Driver<'_>, names: &[String]) -> Result<()> {
    let claims = stream::iter(names).map(|name| async move { driver.claim(name).await.map(drop) });
    claims.buffer_unordered(20).try_collect().await
}

/// Waits until all of these are attached, in the objects and at the driver.
async fn all_attached(driver: &Driver<'_>, names: &[String]) -> Result<()> {
    let fixtures = patient(driver);
    let waits = stream::iter(names).map(|name| fixtures.wait_for_attached(name));
    waits.buffer_unordered(20).map_ok(drop).try_collect::<()>().await?;
    let published = driver.mock.published();
    for name in names {
        assert!(published.contains(&(name.clone(), driver.node_id())), "{name}");
    }
    Ok(())
}

/// Deletes all of these and waits until they are gone, in the objects and at the driver.
async fn all_detached(driver: &Driver<'_>, names: &[String]) -> Result<()> {
    let fixtures = patient(driver);
    let none = driver.node_id();
    let waits = stream::iter(names).map(|name| detach(&fixtures, name));
    waits.buffer_unordered(20).try_collect::<()>().await?;
    let published = driver.mock.published();
    for name in names {
        assert!(!published.contains(&(name.clone(), none.clone())), "{name}");
    }
    Ok(())
}

/// How often a volume was published.
fn publishes(driver: &Driver<'_>, name: &str) -> usize {
    driver.count(Method::ControllerPublishVolume, name)
}

fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{prefix}-{number:03}")).collect()
}

fn about(seen: &Seen, resource: &str) -> bool {
    seen.path.ends_with(&format!("/{resource}"))
}
