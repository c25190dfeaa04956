//! Where nobody serves the driver: a patch by this program, on conditions.

use csi_attacher_model::decide::ReleaseProof;
use csi_attacher_model::decide::patch::{Write, at_version};
use csi_attacher_model::objects::ResourceVersion;
use kube::Client;
use serde_json::Value;

use super::{audit, whoami};
use crate::cli::{DryRun, ReleaseArguments};
use crate::commands::follow::MANAGER;
use crate::commands::{Context, print_line};
use crate::error::{EXIT_OK, PluginError, Result};
use crate::explain::ObjectName;
use crate::gather::{Sources, words};
use crate::observed::Lookup;

/// How much longer than its duration a Lease is watched before it counts as one that nobody renews.
const LEASE_MARGIN: std::time::Duration = std::time::Duration::from_secs(5);

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
    leases_rest(sources, driver).await?;
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
    audit::record(&context.client, &direct.target, direct.uid, &note, dry).await?;
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

/// Watches the Leases of the driver for longer than they last: one that moves has an attacher behind it.
async fn leases_rest(sources: &Sources, driver: &str) -> Result<()> {
    let refuse = |text: &str| PluginError::Refused(text.to_owned());
    let leases = async || match sources.leases(driver).await {
        Lookup::Found(leases) => Ok(leases),
        Lookup::Missing | Lookup::Unknown => Err(refuse(
            "Leases could not be listed, so an attacher may serve the driver",
        )),
    };
    let before = leases().await?;
    let longest = before.iter().map(|lease| lease.duration).max();
    if let Some(longest) = longest {
        tokio::time::sleep(longest + LEASE_MARGIN).await;
    }
    if before == leases().await? {
        Ok(())
    } else {
        Err(refuse("the Lease of the driver moves, so an attacher serves it"))
    }
}

/// Sends a JSON patch.
pub(super) async fn json_patch(client: &Client, path: &str, body: &Value, dry: bool) -> Result<(), kube::Error> {
    let dry = if dry { "&dryRun=All" } else { "" };
    let request = http::Request::patch(format!("{path}?fieldManager={MANAGER}{dry}"))
        .header(http::header::CONTENT_TYPE, "application/json-patch+json")
        .body(body.to_string().into_bytes())
        .map_err(|error| kube::Error::Service(error.into()))?;
    client.request::<Value>(request).await.map(drop)
}
