//! From access modes to the volume capability, for a driver with SINGLE_NODE_MULTI_WRITER; `plain` has the other table.

use serde_json::json;

use crate::scenario::{Group, Outcome, Scenario, same};
use crate::test::Test;

/// Access modes of the PersistentVolume, and the one that CSI gets.
type Table = &'static [(&'static [&'static str], &'static str)];

const TABLE: Table = &[
    (&["ReadWriteOnce"], "SINGLE_NODE_MULTI_WRITER"),
    (&["ReadWriteOncePod"], "SINGLE_NODE_SINGLE_WRITER"),
    (&["ReadOnlyMany"], "MULTI_NODE_READER_ONLY"),
    (&["ReadWriteMany"], "MULTI_NODE_MULTI_WRITER"),
    (&["ReadWriteMany", "ReadOnlyMany"], "MULTI_NODE_MULTI_WRITER"),
    (
        &["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"],
        "MULTI_NODE_MULTI_WRITER",
    ),
];

pub fn scenarios() -> Vec<Scenario> {
    table(Group::new("access-modes"), TABLE)
        .demands("ReadOnlyMany with ReadWriteOnce is refused: CSI has no mode for it")
        .safety("no-mode", |t| async move {
            t.given_all(|pv| pv["spec"]["accessModes"] = json!(["ReadOnlyMany", "ReadWriteOnce"]))
                .await?;
            t.attach_error("ReadOnlyMany").await?;
            t.no_calls()
        })
        .done()
}

/// A scenario for each line of the table.
pub fn table(mut group: Group, table: Table) -> Group {
    for (modes, wanted) in table {
        let title = format!("{} is {wanted}", modes.join(" with "));
        let demand = group.demands(title);
        group = demand.safety(modes.join("-"), move |t| access_mode(t, modes, wanted));
    }
    group
}

async fn access_mode(t: Test, modes: &[&str], wanted: &str) -> Outcome {
    t.given_all(|pv| pv["spec"]["accessModes"] = json!(modes)).await?;
    t.attached().await?;
    let capability = t.published_as().await?.capability;
    same("access mode", &capability.map(|it| it.access_mode), &Some(wanted))
}
