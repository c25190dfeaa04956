//! `drivers`: the AttacherConfigs and the drivers that have none, with their health.

use csi_attacher_model::api::condition::{ConditionType, OF_PROVISIONING};
use csi_attacher_model::api::status::{AttachmentsStatus, OldestPending};
use csi_attacher_model::objects::Attachment;
use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::storage::v1::CSIDriver;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use kube::api::ListParams;
use serde::Serialize;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::listing::Listing;
use super::{Context, print};
use crate::cli::DriversArguments;
use crate::error::{EXIT_BLOCKED, EXIT_OK, EXIT_UNKNOWN, Result};
use crate::explain::{Case, Service, current_error, service, stalled};
use crate::gather::Sources;
use crate::observed::{ConfigRecord, DriverScene, Gap, Lookup, is_settled};
use crate::output::{self, Table};

/// The version of the serialised form.
const SCHEMA: &str = "attacher.csi.dev/drivers-v1";
/// The health of a driver of which it could not be read who serves it.
const UNKNOWN: &str = "Unknown";
/// The health of a driver whose volumes are attached, and are not provisioned as its AttacherConfig asks for.
const NOT_PROVISIONED: &str = "ProvisioningNotReady";

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct DriverRow {
    #[serde(skip_serializing_if = "Option::is_none")]
    config: Option<String>,
    driver: String,
    health: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<String>,
    attached: i64,
    pending: i64,
    failing: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    saturated: Option<String>,
    limits: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_pending: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_pending_since: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_reconcile_sync: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reconcile_sync_error: Option<String>,
    healthy: bool,
}

type DriverList = Listing<DriverRow>;

pub(super) async fn run(context: &Context, arguments: &DriversArguments) -> Result<u8> {
    let sources = context.sources();
    let list = read(&sources).await;
    let name = |row: &DriverRow| {
        let config = row.config.as_ref();
        config.map(|name| format!("attacherconfig.attacher.csi.dev/{name}"))
    };
    let table = |rows: &[DriverRow], wide: bool| table(rows, wide, sources.now);
    print(&list.text(arguments.output, name, table, "no drivers")?)?;
    Ok(exit_code(&list))
}

async fn read(sources: &Sources) -> DriverList {
    let rows = Box::pin(rows(sources)).await;
    Listing::new(SCHEMA, rows, sources.reader.gaps())
}

/// What is wrong counts for more than what is not known.
fn exit_code(list: &DriverList) -> u8 {
    let unhealthy = || list.items.iter().filter(|row| !row.healthy);
    if unhealthy().any(|row| row.health != UNKNOWN) {
        return EXIT_BLOCKED;
    }
    if unhealthy().next().is_some() {
        return EXIT_UNKNOWN;
    }
    // What could not be read may be what is wrong.
    let unread = list.gaps.first().filter(|_| list.items.is_empty());
    unread.map_or(EXIT_OK, Gap::exit_code)
}

/// One row for each driver that has an AttacherConfig or a VolumeAttachment, or that wants to be attached.
async fn rows(sources: &Sources) -> Vec<DriverRow> {
    let reader = &sources.reader;
    let csi_drivers = reader.list::<_, CSIDriver>(reader.cluster::<CSIDriver>(), ListParams::default());
    let (configs, attachments, csi_drivers) = futures::join!(sources.configs(), sources.attachments(), csi_drivers);
    let mut names: BTreeSet<String> = BTreeSet::new();
    let configs = configs.found().into_iter().flatten();
    let (known, nameless): (Vec<_>, Vec<_>) = configs.partition(|config| config.driver().is_some());
    names.extend(known.iter().filter_map(|config| config.driver()).map(str::to_owned));
    let attaching = attachments.found().into_iter().flatten();
    names.extend(attaching.map(|attachment| attachment.attacher.to_string()));
    let wanting = csi_drivers.found().into_iter().flatten();
    let wanting = wanting.filter(|driver| driver.spec.attach_required != Some(false));
    names.extend(wanting.map(ResourceExt::name_any));
    let scenes = join_all(names.iter().map(|name| sources.driver(name))).await;
    let mut rows: Vec<DriverRow> = scenes
        .iter()
        .map(|scene| row(scene, attachments.found(), sources.now))
        .collect();
    // Those that are not used are told beside the one that is: they are refused, suspended or being deleted.
    for config in known {
        let of_driver = scenes.iter().find(|scene| config.driver() == Some(&*scene.name));
        let Some(scene) = of_driver.filter(|scene| scene.config.found().is_none_or(|used| used.name != config.name))
        else {
            continue;
        };
        let used = scene.config.found().map(|used| used.name.clone()).unwrap_or_default();
        let of_config = DriverScene {
            config: Lookup::Found(config.clone()),
            ..scene.clone()
        };
        let mut row = row(&of_config, None, sources.now);
        if config.yields() {
            // Nothing is wrong with that.
            row.healthy = true;
            "NotUsed".clone_into(&mut row.health);
            row.message = Some(format!("AttacherConfig {used} is used for the driver"));
        }
        rows.push(row);
    }
    rows.extend(nameless.into_iter().map(|config| {
        let scene = DriverScene {
            config: Lookup::Found(config.clone()),
            ..DriverScene::default()
        };
        row(&scene, None, sources.now)
    }));
    rows
}

type Attachments = Vec<Arc<Attachment>>;

fn row(scene: &DriverScene, attachments: Option<&Attachments>, now: Timestamp) -> DriverRow {
    let config = scene.config.found();
    let status = config.map(|config| &config.status);
    let served = service(scene, now);
    // Of one that serves, with the settings that were valid last, a person has to know as well.
    let is_served = matches!(served, Service::Operator { config: Some(_), .. });
    let unfixed = config.filter(|_| is_served).and_then(stalled);
    let (health, message, holder) = match &served {
        Service::Operator { holder, .. } => {
            let (health, message) = unfixed.as_ref().map_or(("Ready", None), |found| {
                (found.case.as_str(), Some(found.summary.clone()))
            });
            (health.to_owned(), message, holder.clone())
        }
        Service::Sidecar(holder) => ("Sidecar".to_owned(), None, Some(holder.clone())),
        Service::Nobody => (
            "NoAttacher".to_owned(),
            served.diagnosis(scene).map(|found| found.summary),
            None,
        ),
        Service::Problem(found) => (found.case.as_str().to_owned(), Some(found.summary.clone()), None),
        Service::Unknown => (UNKNOWN.to_owned(), None, None),
    };
    let mine = || {
        let all = attachments.into_iter().flatten().map(|attachment| &**attachment);
        all.filter(|attachment| *attachment.attacher == *scene.name)
    };
    let is_unused = config.is_none() && mine().next().is_none();
    let healthy = match &served {
        Service::Operator { .. } => unfixed.is_none(),
        Service::Sidecar(_) => true,
        // Attachments that could not be listed may wait.
        Service::Unknown => is_unused && attachments.is_some(),
        Service::Nobody => is_unused,
        Service::Problem(found) => is_unused && found.case == Case::NoAttacher,
    };
    let counts = status.and_then(|status| status.attachments.clone());
    let counts = counts.unwrap_or_else(|| counted(mine()));
    let oldest = counts.oldest_pending;
    let saturated = config.and_then(|config| config.condition(ConditionType::Saturated));
    let saturated = saturated.filter(|condition| condition.status == "True");
    let sync = status.and_then(|status| status.last_reconcile_sync.as_ref());
    let mut row = DriverRow {
        config: config.map(|config| config.name.clone()),
        driver: scene.name.clone(),
        healthy,
        health,
        message: message.or_else(|| config.and_then(ConfigRecord::not_read)),
        holder,
        attached: counts.attached,
        pending: counts.pending,
        failing: counts.failing,
        saturated: saturated.map(|condition| condition.reason),
        limits: config.map_or_else(|| "<unknown>".to_owned(), limits),
        oldest_pending: oldest.as_ref().map(|oldest| oldest.name.clone()),
        oldest_pending_since: oldest.map(|oldest| oldest.pending_since_time.0),
        last_reconcile_sync: sync.map(|sync| sync.completion_time.0),
        reconcile_sync_error: sync.and_then(|sync| sync.error.clone()),
    };
    if let Some(message) = config.and_then(not_provisioned).filter(|_| row.healthy) {
        (row.healthy, row.health, row.message) = (false, NOT_PROVISIONED.to_owned(), Some(message));
    }
    row
}

/// What is wrong with the second role: whether a driver is served says nothing about it.
fn not_provisioned(config: &ConfigRecord) -> Option<String> {
    let ready = config.condition(ConditionType::Ready)?;
    let is_meant = ready.status == "False" && ready.message.starts_with(OF_PROVISIONING);
    is_meant.then(|| format!("{}: {}", ready.reason, ready.message))
}

/// What the operator counts, where it does not: for a driver without an AttacherConfig, or with a new one.
fn counted<'a>(attachments: impl Iterator<Item = &'a Attachment>) -> AttachmentsStatus {
    let (settled, pending): (Vec<_>, Vec<_>) = attachments.partition(|attachment| is_settled(attachment));
    let detaching = pending.iter().filter(|own| own.deleting.is_some()).count();
    let failing = pending.iter().filter(|own| current_error(own).is_some()).count();
    let since = pending.iter().filter_map(|own| Some((own.pending_since()?, &own.name)));
    let oldest = since.min().map(|(since, name)| OldestPending {
        name: name.to_string(),
        pending_since_time: Time(since),
    });
    AttachmentsStatus::new(settled.len(), pending.len() - detaching, detaching, failing, oldest)
}

/// The limits of `spec.concurrency`, in the order of its fields.
fn limits(config: &ConfigRecord) -> String {
    let Ok(settings) = &config.spec else {
        let limits = if config.is_accepted() { "<unknown>" } else { "<invalid>" };
        return limits.to_owned();
    };
    let of = &settings.concurrency;
    let set = [
        of.attach.map(|limit| format!("attach={limit}")),
        of.detach.map(|limit| format!("detach={limit}")),
        of.per_node.map(|limit| format!("node={limit}")),
        of.calls_per_second.map(|rate| format!("calls/s={rate}")),
    ];
    let set: Vec<String> = set.into_iter().flatten().collect();
    if set.is_empty() {
        "none".to_owned()
    } else {
        set.join(",")
    }
}

fn table(rows: &[DriverRow], wide: bool, now: Timestamp) -> Table {
    let mut header = vec![
        "CONFIG", "DRIVER", "HEALTH", "HOLDER", "ATTACHED", "PENDING", "FAILING", "LANES", "OLDEST", "SYNC",
    ];
    if wide {
        header.extend(["LIMITS", "OLDEST-NAME", "MESSAGE"]);
    }
    let mut table = Table::new(&header);
    for row in rows {
        let sync = |at| {
            let failed = row.reconcile_sync_error.as_ref().map_or("", |_| " failed");
            format!("{} ago{failed}", output::ago(at, now))
        };
        let saturated = || row.saturated.clone().unwrap_or_else(|| "free".to_owned());
        let mut cells = vec![
            row.config.clone(),
            Some(row.driver.clone()).filter(|name| !name.is_empty()),
            Some(row.health.clone()),
            row.holder.clone(),
            Some(row.attached.to_string()),
            Some(row.pending.to_string()),
            Some(row.failing.to_string()),
            row.config.as_ref().map(|_| saturated()),
            row.oldest_pending_since.map(|since| output::ago(since, now)),
            row.last_reconcile_sync.map(sync),
        ];
        if wide {
            cells.extend([
                Some(row.limits.clone()),
                row.oldest_pending.clone(),
                row.message.clone(),
            ]);
        }
        table.row(cells);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_server_fixture::{Answer, ApiServerFixture, attachment, list};
    use crate::explain::tests::builders::{self, config, with};
    use crate::observed::LeaseHolder;
    use serde_json::json;

    /// The drivers as somebody sees them who may list neither AttacherConfigs nor Leases.
    async fn drivers(attachments: Answer, csi_drivers: Answer) -> DriverList {
        let server = ApiServerFixture::start(move |path, _| match path {
            "/apis/storage.k8s.io/v1/volumeattachments" => attachments.clone(),
            "/apis/storage.k8s.io/v1/csidrivers" => csi_drivers.clone(),
            path if path.ends_with("/attacherconfigs") || path.ends_with("/leases") => Err(403),
            _ => Err(404),
        });
        read(&server.sources()).await
    }

    /// Without an AttacherConfig nobody else counts.
    #[tokio::test]
    async fn attachments_of_a_driver_without_a_config_are_counted() {
        let (attach, detach) = ("2026-01-01T10:00:00Z", "2026-01-01T11:00:00Z");
        let of = |name: &str, edit: serde_json::Value| {
            let mut object = attachment(name);
            object["metadata"]["creationTimestamp"] = attach.into();
            json_patch::merge(&mut object, &edit);
            object
        };
        let deleted = json!({"metadata": {"creationTimestamp": "2026-01-01T09:00:00Z", "deletionTimestamp": detach}});
        let error = json!({"time": detach, "message": "busy"});
        let attachments = [
            // An error that was not taken off when the attach succeeded is an old one.
            of("csi-1", json!({"status": {"attached": true, "attachError": error}})),
            of("csi-2", json!({"metadata": {"creationTimestamp": detach}})),
            of("csi-3", json!({"status": {"attachError": error}})),
            of("csi-4", deleted.clone()),
        ];
        let seen = drivers(Ok(list(&attachments)), Ok(list(&[]))).await;
        let row = &seen.items[0];
        assert_eq!((row.attached, row.pending, row.failing), (1, 3, 1));
        assert_eq!(row.oldest_pending.as_deref(), Some("csi-3"));
        assert_eq!(row.oldest_pending_since, Some(attach.parse().unwrap()));
        let mut failing = of("csi-4", deleted);
        failing["status"] = json!({"attached": true, "attachError": error, "detachError": error});
        let seen = drivers(Ok(list(&[failing])), Ok(list(&[]))).await;
        let row = &seen.items[0];
        assert_eq!((row.attached, row.pending, row.failing), (0, 1, 1));
        assert_eq!(
            row.oldest_pending_since,
            Some(detach.parse().unwrap()),
            "since it was deleted"
        );
    }

    /// Attaching goes on without it, and pages send people here first.
    #[test]
    fn a_driver_that_is_not_provisioned_is_not_healthy() {
        let told = |holder: &str, status: &str, message: &str| {
            let is_of_operator = holder == "replica-1";
            let scene = with(|scene| {
                scene.driver.leases = builders::lease(holder, is_of_operator, 3);
                scene.driver.config = config(&[("Ready", status, "Forbidden", message)], &json!({}));
            });
            row(&scene.driver, None, scene.now)
        };
        for (holder, health) in [("replica-1", "Ready"), ("sidecar-0", "Sidecar")] {
            let found = told(holder, "False", "provisioning: may not list classes");
            assert_eq!((found.health.as_str(), found.healthy), (NOT_PROVISIONED, false));
            assert_eq!(
                found.message.as_deref(),
                Some("Forbidden: provisioning: may not list classes")
            );
            let found = told(holder, "True", "");
            assert_eq!((found.health.as_str(), found.healthy), (health, true));
        }
        let found = told("replica-1", "False", "may not list nodes");
        assert_ne!(found.health, NOT_PROVISIONED, "that is not about provisioning");
    }

    #[tokio::test]
    async fn a_driver_that_may_be_served_is_not_called_unserved() {
        let none: Answer = Ok(list(&[]));
        let mut seen = drivers(Ok(list(&[attachment("csi-1")])), none.clone()).await;
        assert_eq!(seen.items[0].health, UNKNOWN);
        assert_eq!(exit_code(&seen), EXIT_UNKNOWN);
        let unserved = DriverRow {
            health: "NoAttacher".to_owned(),
            ..seen.items[0].clone()
        };
        seen.items.push(unserved);
        assert_eq!(exit_code(&seen), EXIT_BLOCKED, "another one is certainly not served");
        let csi_driver: Answer = Ok(list(&[json!({"metadata": {"name": "ssd.csi.test"}, "spec": {}})]));
        let unused = drivers(none.clone(), csi_driver.clone()).await;
        assert_eq!(exit_code(&unused), EXIT_OK, "nothing waits for it");
        let unseen = drivers(Err(403), csi_driver).await;
        assert_eq!(exit_code(&unseen), EXIT_UNKNOWN, "something may wait for it");
        assert_eq!(exit_code(&drivers(Err(403), none).await), EXIT_UNKNOWN);
    }

    /// Also where nothing is attached yet.
    #[test]
    fn two_attachers_are_not_healthy() {
        let two = |config| DriverScene {
            config,
            leases: builders::leases([
                ("operator", LeaseHolder::Replica("replica-1".into()), 3),
                ("storage", LeaseHolder::Sidecar("sidecar-0".into()), 3),
                ("vendor", LeaseHolder::DropIn("vendor-0".into()), 3),
            ]),
            ..builders::scene().driver
        };
        for config in [Lookup::Missing, builders::config(&[], &json!({}))] {
            let row = row(&two(config), None, builders::now());
            assert_eq!((&*row.health, row.healthy), ("OtherAttacher", false));
        }
    }

    /// Types of an older version do not know a word of an enum by which the operator serves the driver.
    #[test]
    fn a_spec_that_only_the_operator_can_read_is_not_invalid() {
        let (other_word, invalid) = (
            "of another version than the operator: spec.orphanPolicy",
            "has an invalid spec",
        );
        let well = ("Stalled", "False", "NotStalled", "");
        let refused = ("Stalled", "True", "InvalidSpec", "m");
        let conflict = ("Stalled", "True", "EndpointConflict", "m");
        let suspended = ("Ready", "True", "Suspended", "");
        // The generation that the operator has read, what it says, and what is told of it.
        for (observed, condition, health, words) in [
            (2, well, "Ready", other_word),
            (1, well, "ConfigStalled", invalid),
            (2, refused, "ConfigStalled", invalid),
            (2, conflict, "ConfigStalled", "is stalled: EndpointConflict: m"),
            (2, suspended, "ConfigSuspended", "is suspended"),
            (1, suspended, "ConfigStalled", invalid),
        ] {
            let config = config(&[condition], &json!({"orphanPolicy": "OfALaterVersion"}));
            let mut config = config.found().cloned().unwrap();
            config.generation = Some(2);
            for condition in &mut config.status.conditions {
                condition.observed_generation = Some(observed);
            }
            let scene = with(|scene| scene.driver.config = Lookup::Found(config));
            let row = row(&scene.driver, None, scene.now);
            let told = format!("{observed}, {condition:?}: {:?}", row.message);
            assert_eq!((&*row.health, row.healthy), (health, health == "Ready"), "{told}");
            assert!(told.contains(words), "{told}");
            assert_eq!(row.limits == "<invalid>", words == invalid, "{told}");
        }
    }

    /// It does not read the AttacherConfig whose spec is invalid.
    #[test]
    fn the_operator_in_the_place_of_a_sidecar_is_healthy() {
        let scene = DriverScene {
            config: builders::config(&[], &json!({"timeouts": {"publish": "0s"}})),
            leases: builders::drop_in(),
            ..builders::scene().driver
        };
        let row = row(&scene, None, builders::now());
        assert_eq!((&*row.health, row.healthy), ("Ready", true));
    }

    #[test]
    fn a_config_without_a_driver_says_what_it_waits_for() {
        let conditions = [("DriverReachable", "False", "SocketMissing", "no such socket")];
        let nameless = builders::nameless(&conditions);
        let config: Lookup<ConfigRecord> = nameless.first().cloned().into();
        let alone = DriverScene {
            config,
            ..DriverScene::default()
        };
        let alone = row(&alone, None, builders::now());
        let message = alone.message.clone().unwrap_or_default();
        assert!(
            message.contains("the driver of AttacherConfig minimal: SocketMissing"),
            "{message}"
        );
        let shown = table(&[alone], false, builders::now()).text(false);
        assert!(
            shown.as_str().starts_with("minimal   <none>   DriverUnreachable"),
            "{shown:?}"
        );
        // It does not count where nothing waits for an attacher.
        let unused = DriverScene {
            config: Lookup::Missing,
            leases: Lookup::Missing,
            nameless,
            ..builders::scene().driver
        };
        assert!(row(&unused, Some(&Vec::new()), builders::now()).healthy);
    }
}
