//! A driver that lists what is published where: what changed behind the attacher's back is put right. Optional: an
//! attacher that never calls ListVolumes counts as "not supported".

use std::time::Duration;

use csi_mock_driver::{Method, MockDriverBuilder};

use crate::scenario::{Group, Outcome, Scenario, Setup, Stop, demand, offered};
use crate::test::Test;

/// Many times `--reconcile-sync`.
const PATIENCE: Duration = Duration::from_secs(30);

/// The criterion of all these scenarios.
pub(super) const UNLESS: &str = "not supported when there is no ListVolumes call";

pub fn setup() -> Setup {
    Setup {
        flags: vec!["--reconcile-sync=1s".to_owned()],
        ..Setup::new("reconcile", 12, scenarios(), small_pages)
    }
}

/// Lists of more than one page are usual.
fn small_pages(driver: MockDriverBuilder) -> MockDriverBuilder {
    driver.settings(|settings| settings.list_page_limit = Some(2))
}

fn scenarios() -> Vec<Scenario> {
    Group::new("reconcile")
        .demands("a volume detached behind the attacher's back is attached again")
        .unless(UNLESS)
        .extension("attached-again", |t| async move {
            reconciles(&t).await?;
            t.given_attached().await?;
            t.env.driver.drift_detach(&t.handle, &t.node_id);
            let pair = (t.handle.clone(), t.node_id.clone());
            let again = t.env.driver.wait_for_published(move |all| all.contains(&pair));
            let again = tokio::time::timeout(PATIENCE, again).await;
            again.map_err(|_| Stop::Failed(format!("not attached again within {PATIENCE:?}")))?;
            let attachment = t.get_attachment().await?;
            demand(crate::expect::is_attached(&attachment), || {
                "said not to be attached meanwhile".to_owned()
            })
        })
        .demands("a volume that no VolumeAttachment names is not touched")
        .unless(UNLESS)
        .extension("unnamed-volume", |t| async move {
            reconciles(&t).await?;
            t.env.driver.drift_attach(&t.handle, &t.node_id);
            passes(&t, 3).await?;
            t.no_calls()?;
            t.published()?;
            t.env.driver.drift_detach(&t.handle, &t.node_id);
            Ok(())
        })
        .demands("what is as it should be is left alone")
        .unless(UNLESS)
        .extension("as-it-should-be", |t| async move {
            reconciles(&t).await?;
            t.given_attached().await?;
            let other = t.other("b");
            other.given_attached().await?;
            passes(&t, 2).await?;
            let before = t.publishes().len() + other.publishes().len();
            passes(&t, 3).await?;
            demand(t.publishes().len() + other.publishes().len() == before, || {
                "attached again".to_owned()
            })
        })
        .demands("a ListVolumes that fails does no harm")
        .unless(UNLESS)
        .extension("list-fails", |t| async move {
            reconciles(&t).await?;
            t.given_attached().await?;
            let rule = csi_mock_driver::Rule::on(Method::ListVolumes).times(2);
            t.script(rule.fail(tonic::Code::Internal, "no list today"));
            passes(&t, 4).await?;
            t.published()?;
            t.detach().await
        })
        .done()
}

/// The attacher must list volumes at all. Without an attached volume it has no reason to, so there is one.
pub(super) async fn reconciles(t: &Test) -> Outcome {
    t.barrier("lists").await?;
    let found = t.env.driver.wait_for_call(|call| call.method == Method::ListVolumes);
    let found = tokio::time::timeout(PATIENCE, found).await;
    offered(found.is_ok(), || "no ListVolumes call".to_owned())
}

/// Waits for so many lists from the beginning on from now.
pub(super) async fn passes(t: &Test, count: usize) -> Outcome {
    for _ in 0..count {
        let seen = t.env.driver.calls().last().map(|call| call.id);
        let first_page = move |call: &csi_mock_driver::CallRecord| {
            let from_the_start = call.starting_token.as_deref().unwrap_or_default().is_empty();
            call.method == Method::ListVolumes && from_the_start && Some(call.id) > seen && call.finished.is_some()
        };
        let found = tokio::time::timeout(PATIENCE, t.env.driver.wait_for_call(first_page)).await;
        found.map_err(|_| Stop::Failed(format!("no further ListVolumes within {PATIENCE:?}")))?;
    }
    Ok(())
}
