//! Drivers that answer without measure: the memory of the operator stays bounded.

use std::collections::BTreeMap;
use std::fs;
use std::time::Instant;

use csi_attacher_model::api::AttacherConfig;
use csi_attacher_proto::v1::{ListVolumesResponse, Volume, list_volumes_response};
use futures::future::try_join_all;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::Api;
use kube::api::{Patch, PatchParams};
use prost::Message;
use serde_json::json;

use super::server::{Answer, Server, large};
use crate::limits::value;
use crate::rig::{LIMIT, World, operator_options, part, within};
use crate::support::operator::{IDENTITY, apply_config, release_lease};
use crate::support::wait::wait_for;
use crate::support::{Error, Operator, Result};

/// The largest size that the operator had, in MiB.
fn peak(operator: &Operator) -> Result<usize> {
    let path = format!("/proc/{}/status", operator.pid()?);
    let status = fs::read_to_string(path)?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib: Option<usize> = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    kib.map(|kib| kib >> 10)
        .ok_or_else(|| Error::Other(format!("no VmHWM: {status}")))
}

/// A page of 1000 volumes with long names, and another one after it, for ever.
fn endless_page(number: usize) -> Vec<u8> {
    let entry = |index: usize| list_volumes_response::Entry {
        volume: Some(Volume {
            volume_id: format!("{number}-{index}-{}", "x".repeat(400)),
            ..Default::default()
        }),
        status: None,
    };
    let page = ListVolumesResponse {
        entries: (0..1000).map(entry).collect(),
        next_token: format!("token-{number}"),
    };
    page.encode_to_vec()
}

/// Waits until the status says with these words why the answers to ListVolumes count for nothing.
async fn list_is_refused(world: &World, config: &str, words: &str) -> Result<()> {
    let configs: Api<AttacherConfig> = Api::all(world.client.clone());
    let told = |config: &AttacherConfig| {
        let sync = config.status.as_ref()?.last_reconcile_sync.as_ref()?;
        sync.error.as_ref().map(|error| error.contains(words))
    };
    let what = "the error of ListVolumes";
    wait_for(configs, config, what, LIMIT, |config| {
        config.and_then(told) == Some(true)
    })
    .await?;
    Ok(())
}

/// Each part has an operator of its own, whose memory is looked at.
#[tokio::test]
async fn the_memory_is_bounded() -> Result<()> {
    let world = &World::own().await?;
    part("answers without measure", answers_without_measure(world)).await?;
    part("publish contexts of others", publish_contexts_of_others(world)).await
}

async fn answers_without_measure(world: &World) -> Result<()> {
    let operator = world.operator(operator_options()).await?;
    let good = world.driver("lean", json!({})).await?;
    good.attach("lean-before").await?;
    let before = peak(&operator)?;

    // 64 MiB in one answer of each kind, and pages without end.
    let too_large = |called: &str, _| match called {
        "ListVolumes" | "ControllerPublishVolume" => Some(Answer::Http(large(64 << 20))),
        _ => None,
    };
    let pages = |called: &str, before| (called == "ListVolumes").then(|| Answer::Bytes(endless_page(before)));
    let name = |short: &str| format!("{short}.csi.test");
    let list = Server::start(&world.socket("fat"), &name("fat"), too_large)?;
    let page = Server::start(&world.socket("endless"), &name("endless"), pages)?;
    let info = |called: &str, _| (called == "GetPluginInfo").then(|| Answer::Http(large(64 << 20)));
    let shake = Server::start(&world.socket("fat-info"), &name("fat-info"), info)?;
    // 3 MB in the name: as long as an answer may be, and the label of some hundred series.
    let named = Server::start(&world.socket("fat-name"), &"n".repeat(3_000_000), |_, _| None)?;
    for short in ["fat", "endless", "fat-info", "fat-name"] {
        let settings = json!({
            "reconcileSync": { "interval": "100ms" }, "backoff": { "initial": "20ms", "max": "20ms" },
        });
        if short != "fat-name" {
            release_lease(&world.client, IDENTITY, &name(short)).await?;
        }
        apply_config(&world.client, short, world.spec(short, &settings)).await?;
    }
    world.fixtures.csi_node("fat-node", "fat.csi.test", "fat-id").await?;
    let claims = (0..4).map(async |index| {
        let name = format!("fat-{index}");
        let volume = crate::support::Volume::new(&name, "fat.csi.test", &name);
        world.fixtures.persistent_volume(&volume).await?;
        world
            .fixtures
            .volume_attachment(&name, "fat.csi.test", &name, "fat-node")
            .await
    });
    try_join_all(claims).await?;
    within("ListVolumes", list.called("ListVolumes", 5)).await?;
    within("Publish", list.called("ControllerPublishVolume", 20)).await?;
    within("pages", page.called("ListVolumes", 200)).await?;
    within("GetPluginInfo", shake.called("GetPluginInfo", 3)).await?;
    within("GetPluginInfo", named.called("GetPluginInfo", 3)).await?;
    good.attach("lean-meanwhile").await?;
    list_is_refused(world, "fat", "too large").await?;
    let labels = [("driver_name", "fat.csi.test"), ("outcome", "failed")];
    let metrics = operator.metrics().await?;
    let failed = value(&metrics, "csi_attacher_reconcile_sync_passes_total", &labels);
    assert!(failed >= Some(1.0), "{failed:?} in: {metrics}");
    let after = peak(&operator)?;
    println!("peak resident memory: {before} MiB before, {after} MiB after");
    assert!(after < before + 64, "{before} MiB before, {after} MiB after");
    for config in ["lean", "fat", "endless", "fat-info", "fat-name"] {
        world.fixtures.delete::<AttacherConfig>(config).await?;
    }
    Ok(())
}

/// Attachments of a driver that nobody here serves have as much metadata as the API server takes, in thousands of keys.
async fn publish_contexts_of_others(world: &World) -> Result<()> {
    const MANY: usize = 200;
    let metadata: BTreeMap<String, String> = (0..9_000)
        .map(|key| (format!("key-{key:05}"), "x".repeat(17)))
        .collect();
    let patch = json!({"status": {"attached": true, "attachmentMetadata": metadata}});
    let attachments: Api<VolumeAttachment> = Api::all(world.client.clone());
    let made = (0..MANY).map(|number| {
        let (attachments, patch) = (&attachments, &patch);
        async move {
            let name = format!("nobodys-{number:03}");
            world
                .fixtures
                .volume_attachment(&name, "nobody.csi.test", &name, "nobodys-node")
                .await?;
            attachments
                .patch_status(&name, &PatchParams::default(), &Patch::Merge(patch))
                .await?;
            Ok::<_, Error>(())
        }
    });
    stream::iter(made).buffer_unordered(4).try_collect::<Vec<()>>().await?;
    let operator = world.operator(operator_options()).await?;
    let began = Instant::now();
    let good = world.driver("beside", json!({})).await?;
    good.attach("beside").await?;
    let peak = peak(&operator)?;
    println!("peak resident memory: {peak} MiB, attached after {:?}", began.elapsed());
    assert!(peak < 160, "{peak} MiB");
    Ok(())
}
