//! Where nobody serves the driver: a patch by this program, on conditions.

use csi_attacher_base::clock;
use csi_attacher_model::api::names::lease_name;
use csi_attacher_model::decide::patch::{Write, at_version};
use csi_attacher_model::decide::{ReleaseProof, cut, plain};
use csi_attacher_model::objects::ResourceVersion;
use k8s_openapi::api::core::v1::Event;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::{Value, json};
use std::time::Duration;

use super::whoami;
use crate::cli::{DryRun, ReleaseArguments};
use crate::commands::follow::MANAGER;
use crate::commands::{Context, print_line};
use crate::error::{EXIT_OK, PluginError, Result};
use crate::explain::ObjectName;
use crate::gather::{Sources, words};
use crate::observed::Lookup;

/// How much longer than its duration a Lease is watched before it counts as one that nobody renews.
const LEASE_MARGIN: Duration = Duration::from_secs(5);
/// The API server's limit on the text of an Event, in bytes.
const MAX_NOTE: usize = 1024;

/// A patch by this program, on condition that nobody changed the object since it was read.
pub(super) struct Direct<'a> {
    pub target: ObjectName,
    pub uid: &'a str,
    pub version: ResourceVersion,
    pub path: String,
    /// What takes the finalizer off; none when it is not there.
    pub write: Option<Write>,
    pub proof: ReleaseProof,
}

/// Makes sure that nobody serves the driver, records who does what and why, and then does it.
pub(super) async fn patch_directly(
    context: &Context,
    arguments: &ReleaseArguments,
    sources: &Sources,
    driver: &str,
    direct: Direct<'_>,
) -> Result<u8> {
    leases_rest(sources, driver, arguments.timeout).await?;
    let Some(write) = direct.write else {
        return Err(PluginError::Refused(format!(
            "{} does not carry the finalizer",
            direct.target
        )));
    };
    let write = at_version(write, direct.version);
    let dry = arguments.dry_run == DryRun::Server;
    let by = whoami(&context.client).await;
    let basis = match direct.proof {
        ReleaseProof::OutOfServiceTaint => "the node has the out-of-service taint",
        ReleaseProof::Confirmed => "the person confirmed that the volume is attached nowhere",
    };
    let reason = if arguments.reason.is_empty() {
        "without a reason".to_owned()
    } else {
        format!("reason: {}", arguments.reason)
    };
    let note = format!(
        "released without the driver's confirmation, because no attacher serves the driver and {basis}; by {by}, {reason}"
    );
    record(&context.client, &direct.target, direct.uid, &note, dry).await?;
    json_patch(&context.client, &direct.path, &write.body, dry)
        .await
        .map_err(|error| {
            let message = words(&error);
            PluginError::Refused(format!(
                "{} was not released: {message}; read it again and ask again",
                direct.target
            ))
        })?;
    let dry = if dry { " (server dry run)" } else { "" };
    print_line(&format!("{}: released{dry}", direct.target))?;
    Ok(EXIT_OK)
}

/// Records a release by an Event about an object without a namespace. It is written first: what cannot be recorded is not done.
async fn record(client: &Client, object: &ObjectName, uid: &str, note: &str, dry: bool) -> Result<()> {
    let api_version = match object.kind {
        "VolumeAttachment" => "storage.k8s.io/v1",
        _ => "v1",
    };
    let at = clock::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let note = plain(cut(note, MAX_NOTE)).into_owned();
    let event = json!({
        "metadata": {"generateName": "kubectl-attacher-", "namespace": "default"},
        "involvedObject": {"apiVersion": api_version, "kind": object.kind, "name": object.name, "uid": uid},
        "reason": "Released", "type": "Warning", "message": note, "count": 1,
        "firstTimestamp": at, "lastTimestamp": at,
        "source": {"component": MANAGER}, "reportingComponent": MANAGER, "reportingInstance": MANAGER,
    });
    let event: Event = serde_json::from_value(event).map_err(|error| PluginError::Output(error.to_string()))?;
    let parameters = PostParams {
        dry_run: dry,
        field_manager: Some(MANAGER.to_owned()),
    };
    let events: Api<Event> = Api::namespaced(client.clone(), "default");
    match events.create(&parameters, &event).await {
        Ok(_) => Ok(()),
        Err(error) => Err(PluginError::Refused(format!(
            "the release cannot be recorded as an Event in namespace default, so nothing is done: {}; missing RBAC rule: {{apiGroups: \
             [\"\"], resources: [\"events\"], verbs: [\"create\"]}}",
            words(&error)
        ))),
    }
}

/// Watches the Leases of the driver for longer than they last: one that moves has an attacher behind it. Who left one may have given it any
/// duration; one that lasts longer than `most` is not watched.
async fn leases_rest(sources: &Sources, driver: &str, most: Duration) -> Result<()> {
    let refuse = |text: &str| PluginError::Refused(text.to_owned());
    let leases = async || match sources.leases(driver).await {
        Lookup::Found(leases) => Ok(leases),
        Lookup::Missing | Lookup::Unknown => Err(refuse(
            "Leases could not be listed, so an attacher may serve the driver",
        )),
    };
    let before = leases().await?;
    if let Some(longest) = before.iter().max_by_key(|lease| lease.duration) {
        let wait = longest.duration + LEASE_MARGIN;
        let (lease, seconds) = (
            format!("Lease {}/{}", longest.namespace, lease_name(driver)),
            wait.as_secs(),
        );
        if wait > most {
            let most = most.as_secs();
            return Err(refuse(&format!(
                "{lease} has to be watched for {seconds} s, which is longer than --timeout ({most} s); ask again with \
                 --timeout {seconds}s"
            )));
        }
        print_line(&format!(
            "{lease}: watching it for {seconds} s, as one that is renewed has an attacher behind it"
        ))?;
        tokio::time::sleep(wait).await;
    }
    if before == leases().await? {
        Ok(())
    } else {
        Err(refuse("the Lease of the driver moves, so an attacher serves it"))
    }
}

pub(super) async fn json_patch(client: &Client, path: &str, body: &Value, dry: bool) -> Result<(), kube::Error> {
    let dry = if dry { "&dryRun=All" } else { "" };
    let request = http::Request::patch(format!("{path}?fieldManager={MANAGER}{dry}"))
        .header(http::header::CONTENT_TYPE, "application/json-patch+json")
        .body(body.to_string().into_bytes())
        .map_err(|error| kube::Error::Service(error.into()))?;
    client.request::<Value>(request).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_server_fixture::{ApiServerFixture, list};

    /// A sidecar that is gone may have left it.
    #[tokio::test]
    async fn a_lease_that_lasts_longer_than_the_timeout_is_not_watched() {
        let lease = json!({
            "metadata": {"name": "external-attacher-leader-ssd-csi-test", "namespace": "shop"},
            "spec": {"holderIdentity": "sidecar-0", "leaseDurationSeconds": 86_400},
        });
        let server = ApiServerFixture::start(move |path, _| match path {
            "/apis/coordination.k8s.io/v1/leases" => Ok(list(std::slice::from_ref(&lease))),
            _ => Err(404),
        });
        let most = Duration::from_mins(2);
        let refused = leases_rest(&server.sources(), "ssd.csi.test", most).await.unwrap_err();
        let text = refused.to_string();
        assert!(
            text.contains("Lease shop/external-attacher-leader-ssd-csi-test"),
            "{text}"
        );
        assert!(text.ends_with("ask again with --timeout 86405s"), "{text}");
    }
}
