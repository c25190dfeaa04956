//! A driver that can attach and nothing else, and an attacher with a default file system.

use std::time::Duration;

use serde_json::json;

use csi_mock_driver::{ControllerCapability, Method, MockDriverBuilder};

use super::{access_modes, events};
use crate::scenario::{Group, Outcome, Setup, demand, same};
use crate::test::Test;

const TABLE: &[(&[&str], &str)] = &[
    (&["ReadWriteOnce"], "SINGLE_NODE_WRITER"),
    (&["ReadWriteOncePod"], "SINGLE_NODE_WRITER"),
    (&["ReadOnlyMany"], "MULTI_NODE_READER_ONLY"),
    (&["ReadWriteMany"], "MULTI_NODE_MULTI_WRITER"),
    (&["ReadWriteOnce", "ReadWriteMany"], "MULTI_NODE_MULTI_WRITER"),
];

pub fn setup() -> Setup {
    let group = Group::new("plain-driver");
    let scenarios = access_modes::table(group, TABLE)
        .demands("readOnly is not passed on without PUBLISH_READONLY")
        .safety("readonly-without-capability", |t| async move {
            t.given_all(|pv| pv["spec"]["csi"]["readOnly"] = json!(true)).await?;
            t.attached().await?;
            same("readonly", &t.published_as().await?.readonly, &Some(false))
        })
        .demands("--default-fstype is the file system of volumes that name none")
        .scenario("default-fs-type", |t| async move {
            t.given_all(|_| {}).await?;
            t.attached().await?;
            fs_type(&t, Some("xfs")).await
        })
        .demands("--default-fstype gives way to spec.csi.fsType")
        .scenario("default-fs-type-gives-way", |t| async move {
            t.given_all(|pv| pv["spec"]["csi"]["fsType"] = json!("ext3")).await?;
            t.attached().await?;
            fs_type(&t, Some("ext3")).await
        })
        .demands("--default-fstype is nothing to a block volume")
        .scenario("default-fs-type-block", |t| async move {
            t.given_all(|pv| pv["spec"]["volumeMode"] = json!("Block")).await?;
            t.attached().await?;
            fs_type(&t, None).await
        })
        .demands("a driver that cannot list its volumes is not asked to")
        .scenario("no-list", |t| async move {
            t.given_attached().await?;
            tokio::time::sleep(Duration::from_secs(3)).await;
            let count = t.env.driver.calls_of(Method::ListVolumes).len();
            demand(count == 0, || format!("{count} calls of ListVolumes"))
        });
    // Events are rate-limited by right; here they are few.
    let scenarios = scenarios.done().into_iter().chain(events::scenarios());
    Setup {
        flags: vec!["--default-fstype=xfs".to_owned(), "--reconcile-sync=1s".to_owned()],
        ..Setup::new("plain", 12, scenarios.collect(), attaches_only)
    }
}

fn attaches_only(driver: MockDriverBuilder) -> MockDriverBuilder {
    driver.capabilities([ControllerCapability::PublishUnpublishVolume])
}

async fn fs_type(t: &Test, wanted: Option<&str>) -> Outcome {
    let capability = t.published_as().await?.capability;
    same("file system", &capability.and_then(|it| it.fs_type).as_deref(), &wanted)
}
