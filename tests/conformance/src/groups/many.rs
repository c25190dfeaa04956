//! Many volumes at the same time.

use futures::future::try_join_all;
use serde_json::json;

use crate::scenario::{Group, Outcome, Scenario, same};
use crate::test::Test;

const MANY: usize = 50;

pub fn scenarios() -> Vec<Scenario> {
    Group::new("many")
        .demands("50 volumes are attached to two nodes and detached again")
        .scenario("two-nodes", |t| async move {
            let second = t.on_other_node("node");
            t.given_node().await?;
            second.given_node().await?;
            let all: Vec<Test> = (0..MANY)
                .map(|number| {
                    let node = if number % 2 == 0 { &t } else { &second };
                    node.other_volume(&format!("v{number}"))
                })
                .collect();
            try_join_all(all.iter().map(|it| async {
                it.given_volume(|_| {}).await?;
                it.create_attachment(|_| {}).await
            }))
            .await?;
            try_join_all(all.iter().map(Test::attached)).await?;
            let count = all.iter().filter(|it| it.is_published()).count();
            same("attached at the driver", &count, &MANY)?;
            try_join_all(all.iter().map(Test::detach)).await?;
            let count = all.iter().filter(|it| it.is_published()).count();
            same("attached at the driver", &count, &0)
        })
        .demands("one volume is attached to 12 nodes at the same time")
        .scenario("twelve-nodes", |t| async move {
            t.given_volume(|pv| pv["spec"]["accessModes"] = json!(["ReadWriteMany"]))
                .await?;
            let all: Vec<Test> = (0..12).map(|number| t.on_other_node(&format!("n{number}"))).collect();
            try_join_all(all.iter().map(|it| async {
                it.given_node().await?;
                it.create_attachment(|_| {}).await
            }))
            .await?;
            try_join_all(all.iter().map(Test::attached)).await?;
            t.has_finalizer(&t.get_volume().await?)?;
            all.iter().try_for_each(Test::published)
        })
        .demands("20 volumes that fail at first are attached in the end")
        .scenario("failing-first", |t| async move {
            t.given_node().await?;
            let all: Vec<Test> = (0..20).map(|number| t.other_volume(&format!("v{number}"))).collect();
            try_join_all(all.iter().map(fails_twice)).await?;
            all.iter().try_for_each(Test::published)
        })
        .done()
}

async fn fails_twice(t: &Test) -> Outcome {
    t.script(t.on_publish().times(2).fail(tonic::Code::Unavailable, "not yet"));
    t.given_volume_and_attachment().await?;
    t.attached().await.map(drop)
}
