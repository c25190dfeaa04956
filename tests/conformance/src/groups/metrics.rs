//! The metrics that dashboards of the Go sidecar read. Optional: an attacher that serves nothing at `--http-endpoint`
//! counts as "not supported".

use http_body_util::BodyExt as _;

use crate::scenario::{Group, Outcome, Scenario, Stop, demand, optional};
use crate::test::Test;

pub fn scenarios() -> Vec<Scenario> {
    Group::new("metrics")
        .demands("calls are counted by method and code")
        .unless("not supported when /metrics does not answer")
        .extension("calls", |t| async move {
            t.script(t.on_publish().times(1).fail(tonic::Code::Internal, "no"));
            t.given_attached().await?;
            let text = optional(get(&t, "/metrics").await, "no answer from /metrics")?;
            for (code, method) in [("Internal", "Publish"), ("OK", "Publish")] {
                let wanted = [
                    "csi_sidecar_operations_seconds_count{".to_owned(),
                    format!("driver_name=\"{}\"", t.env.driver_name),
                    format!("method_name=\"/csi.v1.Controller/Controller{method}Volume\""),
                    format!("grpc_status_code=\"{code}\""),
                ];
                let found = text.lines().any(|line| wanted.iter().all(|part| line.contains(part)));
                demand(found, || format!("no line of /metrics has {wanted:?}"))?;
            }
            Ok(())
        })
        .done()
}

async fn get(t: &Test, path: &str) -> Outcome<String> {
    let failed = |error: String| Stop::Failed(format!("GET {path}: {error}"));
    let client: hyper_util::client::legacy::Client<_, http_body_util::Empty<&[u8]>> =
        hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new()).build_http();
    let uri = format!("http://{}{path}", t.env.http).parse();
    let uri = uri.map_err(|error: http::uri::InvalidUri| failed(error.to_string()))?;
    let answer = client.get(uri).await.map_err(|error| failed(error.to_string()))?;
    demand(answer.status().is_success(), || {
        format!("GET {path}: {}", answer.status())
    })?;
    let body = answer
        .into_body()
        .collect()
        .await
        .map_err(|error| failed(error.to_string()))?;
    Ok(String::from_utf8_lossy(&body.to_bytes()).into_owned())
}
