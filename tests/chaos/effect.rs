//! Which settings are in effect, seen from outside: from the calls that reach the driver and from the Lease. And what they should be
//! by the AttacherConfig. Pure.

use std::collections::BTreeMap;

use csi_mock_driver::{CallRecord, Method};
use jiff::Timestamp;
use serde_json::Value;

use super::schema::milliseconds;

/// What shows of settings in a few attaches and detaches. What could not be seen is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effect {
    pub publish_deadline: Option<u64>,
    pub unpublish_deadline: Option<u64>,
    pub list_deadline: Option<u64>,
    pub list_entries: Option<i32>,
    pub fs_type: Option<String>,
    pub attach_peak: usize,
    pub detach_peak: usize,
    pub node_peak: usize,
    /// Most calls that began within a second.
    pub in_a_second: usize,
    pub lease_seconds: Option<i32>,
    /// Whether a Publish for a canary carried a Secret.
    pub given_secret: bool,
}

/// Reads the effect from the calls that began since, and the Lease.
pub fn seen(calls: &[CallRecord], since: Timestamp, lease_seconds: Option<i32>) -> Effect {
    let of = |method: Method| {
        calls
            .iter()
            .filter(move |call| call.method == method && call.started >= since)
    };
    let publish = of(Method::ControllerPublishVolume).next_back();
    let list = of(Method::ListVolumes).next_back();
    let moves: Vec<&CallRecord> = of(Method::ControllerPublishVolume)
        .chain(of(Method::ControllerUnpublishVolume))
        .collect();
    let mut nodes: BTreeMap<&str, Vec<&CallRecord>> = BTreeMap::new();
    for call in &moves {
        nodes
            .entry(call.node.as_deref().unwrap_or_default())
            .or_default()
            .push(call);
    }
    let second = jiff::SignedDuration::from_secs(1);
    let from_here = |first: &CallRecord| {
        moves
            .iter()
            .filter(|call| first.started <= call.started && call.started < first.started + second)
            .count()
    };
    Effect {
        publish_deadline: publish.and_then(|call| call.deadline_ms),
        unpublish_deadline: of(Method::ControllerUnpublishVolume)
            .next_back()
            .and_then(|call| call.deadline_ms),
        list_deadline: list.and_then(|call| call.deadline_ms),
        list_entries: list.and_then(|call| call.max_entries),
        fs_type: publish.and_then(|call| call.capability.as_ref()?.fs_type.clone()),
        attach_peak: peak(of(Method::ControllerPublishVolume)),
        detach_peak: peak(of(Method::ControllerUnpublishVolume)),
        node_peak: nodes
            .into_values()
            .map(|calls| peak(calls.into_iter()))
            .max()
            .unwrap_or_default(),
        in_a_second: moves.iter().map(|call| from_here(call)).max().unwrap_or_default(),
        lease_seconds,
        // Canaries came after the settings; other attaches may have begun with those from before.
        given_secret: of(Method::ControllerPublishVolume).any(|call| {
            let is_canary = call
                .volume
                .as_deref()
                .is_some_and(|volume| volume.starts_with("canary"));
            is_canary && !call.secret_keys.is_empty()
        }),
    }
}

/// The most calls that ran at the same time. One that was given up may be noticed late, and counts only when it begins.
fn peak<'a>(calls: impl Iterator<Item = &'a CallRecord>) -> usize {
    let mut changes: Vec<(Timestamp, i32)> = Vec::new();
    for call in calls.filter(|call| call.outcome == csi_mock_driver::CallResult::Answered) {
        changes.push((call.started, 1));
        changes.extend(call.finished.map(|finished| (finished, -1)));
    }
    // What ends and what begins at the same moment did not run together.
    changes.sort();
    let mut running = 0;
    let most = changes.iter().map(|(_, change)| {
        running += change;
        running
    });
    usize::try_from(most.max().unwrap_or_default()).unwrap_or_default()
}

/// What is seen that should not be by these settings, in words; each names the field.
pub fn wrong(effect: &Effect, spec: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    let timeouts = &spec["timeouts"];
    for (name, seen) in [
        ("publish", effect.publish_deadline),
        ("unpublish", effect.unpublish_deadline),
        ("listVolumes", effect.list_deadline),
    ] {
        let wanted = timeouts[name].as_str().and_then(milliseconds);
        if let (Some(wanted), Some(seen)) = (wanted, seen)
            // What passes before a call is sent, and the units of the header, take a little.
            && (seen > wanted + wanted / 100 + 1 || seen + 500 + wanted / 20 < wanted)
        {
            wrong.push(format!("spec.timeouts.{name} is {wanted} ms, and calls have {seen} ms"));
        }
    }
    let limit = |path: &str, seen: usize| {
        let limit = spec.pointer(path).and_then(Value::as_u64).unwrap_or_default();
        let exceeded = limit > 0 && seen as u64 > limit;
        exceeded.then(|| format!("spec{} is {limit}, and there were {seen}", path.replace('/', ".")))
    };
    wrong.extend(limit("/concurrency/attach", effect.attach_peak));
    wrong.extend(limit("/concurrency/detach", effect.detach_peak));
    wrong.extend(limit("/concurrency/perNode", effect.node_peak));
    let rate = spec
        .pointer("/concurrency/callsPerSecond")
        .and_then(Value::as_u64)
        .unwrap_or_default();
    // A second's calls at once, and those of the next second.
    if rate > 0 && effect.in_a_second as u64 > 2 * rate + 1 {
        wrong.push(format!(
            "spec.concurrency.callsPerSecond is {rate}, and there were {}",
            effect.in_a_second
        ));
    }
    if let (Some(wanted), Some(seen)) = (spec["defaultFsType"].as_str(), &effect.fs_type)
        && wanted != seen
    {
        wrong.push(format!("spec.defaultFsType is {wanted:?}, and the driver got {seen:?}"));
    }
    if let (Some(wanted), Some(seen)) = (spec["reconcileSync"]["maxEntries"].as_i64(), effect.list_entries)
        && wanted != i64::from(seen)
    {
        wrong.push(format!(
            "spec.reconcileSync.maxEntries is {wanted}, and the driver got {seen}"
        ));
    }
    let listed = spec["publishSecrets"].as_array().cloned().unwrap_or_default();
    let is_listed = listed.iter().any(|entry| entry["namespace"] == "chaos-secrets");
    if effect.given_secret && !is_listed {
        wrong.push("spec.publishSecrets does not list a Secret, and the driver was given it".to_owned());
    }
    let wanted = spec["leaderElection"]["leaseDuration"].as_str().and_then(milliseconds);
    if let (Some(wanted), Some(seen)) = (wanted, effect.lease_seconds)
        && Ok(wanted / 1000) != u64::try_from(seen)
    {
        wrong.push(format!(
            "spec.leaderElection.leaseDuration is {wanted} ms, and the Lease says {seen} s"
        ));
    }
    wrong
}
