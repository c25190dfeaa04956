//! The table of good and bad AttacherConfigs against a real API server.

use futures::future::join_all;
use kube::Client;
use serde_json::{Value, json};

use crate::crd_cases::{CASES, CrdCase, Expect};
use crate::rig::World;
use crate::support::Result;

const CREATE: &str = "/apis/attacher.csi.dev/v1alpha1/attacherconfigs?dryRun=All&fieldValidation=Strict";

/// What is wrong about the answer to the creation of a case.
async fn problem(client: &Client, case: &CrdCase) -> Option<String> {
    let spec: Value = match serde_json::from_str(case.spec) {
        Ok(spec) => spec,
        Err(error) => return Some(format!("{}: the case is no JSON: {error}", case.name)),
    };
    let object = json!({
        "apiVersion": "attacher.csi.dev/v1alpha1", "kind": "AttacherConfig",
        "metadata": { "name": case.name }, "spec": spec,
    });
    let request = http::Request::post(CREATE)
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(object.to_string().into_bytes());
    let answer = client.request_text(request.expect("the request is well formed")).await;
    let parts: &[&str] = match &case.expect {
        Expect::Accepted => &[],
        Expect::Refused { field, message } => &[field, message],
        Expect::RefusedByServer { message } => &[message],
    };
    match answer {
        Ok(_) if parts.is_empty() => None,
        Ok(_) => Some(format!("{}: accepted", case.name)),
        Err(error) => {
            let text = error.to_string();
            let as_wanted = !parts.is_empty() && parts.iter().all(|part| text.contains(part));
            (!as_wanted).then(|| format!("{}: {text}", case.name))
        }
    }
}

#[tokio::test]
async fn the_api_server_refuses_what_it_should_and_names_the_field() -> Result<()> {
    let world = World::shared().await?;
    let answers = join_all(CASES.iter().map(|case| problem(&world.client, case))).await;
    let problems: Vec<String> = answers.into_iter().flatten().collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    Ok(())
}
