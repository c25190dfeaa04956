//! What several questions share, read once: VolumeAttachments, AttacherConfigs, and what is known of drivers and nodes.

use csi_attacher_model::api::AttacherConfigObject;
use csi_attacher_model::api::names::lease_name;
use csi_attacher_model::objects::{Attachment, SecretReference, VolumeAttachmentWire};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Node, Secret};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode};
use kube::api::ListParams;
use kube::{Api, Resource};
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use tokio::sync::OnceCell;

use super::reader::Reader;
use crate::error::{PluginError, Result};
use crate::observed::{
    ConfigRecord, CsiNodeRecord, DriverScene, EventRecord, Gap, LeaseRecord, Lookup, NodeRecord, PodRecord, PodWire,
};

pub struct Sources {
    /// Single reads.
    pub reader: Reader,
    /// When the question was asked.
    pub now: Timestamp,
    attachments: OnceCell<Lookup<Vec<Arc<Attachment>>>>,
    configs: OnceCell<Lookup<Vec<ConfigRecord>>>,
    drivers: ReadOnce<DriverScene>,
    nodes: ReadOnce<(Lookup<NodeRecord>, Lookup<CsiNodeRecord>)>,
}

/// What was read by name. Many scenes are of one driver, or of one node.
struct ReadOnce<T>(Mutex<HashMap<String, Arc<OnceCell<T>>>>);

impl<T: Clone> ReadOnce<T> {
    fn new() -> Self {
        Self(Mutex::default())
    }

    /// What is known by a name; whoever asks first reads it.
    async fn get(&self, name: &str, read: impl Future<Output = T>) -> T {
        let cell = self
            .0
            .lock()
            .map(|mut cells| Arc::clone(cells.entry(name.to_owned()).or_default()))
            .unwrap_or_default();
        cell.get_or_init(|| read).await.clone()
    }
}

impl Sources {
    pub fn new(reader: Reader, now: Timestamp) -> Self {
        Self {
            reader,
            now,
            attachments: OnceCell::new(),
            configs: OnceCell::new(),
            drivers: ReadOnce::new(),
            nodes: ReadOnce::new(),
        }
    }

    /// Why there is no answer that rests on these resources: the first of them that could not be read, and else the API server has none.
    pub fn unreadable(&self, resources: &[Cow<'_, str>]) -> PluginError {
        let is_one = |gap: &Gap| resources.iter().any(|resource| *resource == gap.resource);
        let gap = self.reader.gaps().into_iter().find(is_one);
        gap.map_or_else(
            || PluginError::Api {
                what: format!("cannot read {}", resources.join(", ")),
                message: "the API server does not have this resource".to_owned(),
            },
            PluginError::Unreadable,
        )
    }

    /// All VolumeAttachments, in one list.
    pub async fn attachments(&self) -> &Lookup<Vec<Arc<Attachment>>> {
        let read = async {
            let api = self.reader.cluster::<VolumeAttachmentWire>();
            let listed: Lookup<Vec<Attachment>> = self.reader.list(api, ListParams::default()).await;
            listed.map(|items| items.into_iter().map(Arc::new).collect())
        };
        self.attachments.get_or_init(|| read).await
    }

    /// The same, where there is no answer without them.
    pub async fn require_attachments(&self) -> Result<&[Arc<Attachment>]> {
        match self.attachments().await {
            Lookup::Found(attachments) => Ok(attachments),
            Lookup::Missing | Lookup::Unknown => Err(self.unreadable(&[VolumeAttachmentWire::plural(&())])),
        }
    }

    /// All AttacherConfigs; missing when their CRD is not installed.
    pub async fn configs(&self) -> &Lookup<Vec<ConfigRecord>> {
        let api = self.reader.cluster::<AttacherConfigObject>();
        let read = self.reader.list(api, ListParams::default());
        self.configs.get_or_init(|| read).await
    }

    /// Everything about a driver; read once.
    pub async fn driver(&self, name: &str) -> DriverScene {
        self.drivers.get(name, Box::pin(self.read_driver(name))).await
    }

    async fn read_driver(&self, name: &str) -> DriverScene {
        let csi_driver = self.reader.get(self.reader.cluster::<CSIDriver>(), name);
        let (configs, leases, csi_driver) = futures::join!(self.configs(), self.leases(name), csi_driver);
        let all = configs.found().into_iter().flatten();
        DriverScene {
            name: name.to_owned(),
            crd: configs.as_ref().map(|_| ()),
            config: configs.as_ref().and_then(|configs| config_of(configs, name)),
            nameless: all.filter(|config| config.driver().is_none()).cloned().collect(),
            leases,
            attach_required: csi_driver.map(|driver| driver.spec.attach_required.unwrap_or(true)),
        }
    }

    /// The Leases of a driver's name as they are now, in all namespaces, in the order of these.
    pub async fn leases(&self, driver: &str) -> Lookup<Vec<LeaseRecord>> {
        let name = lease_name(driver);
        let parameters = ListParams::default().fields(&format!("metadata.name={name}"));
        let api: Api<Lease> = Api::all(self.reader.client());
        let listed: Lookup<Vec<LeaseRecord>> = self.reader.list(api, parameters).await;
        listed.map(|mut leases| {
            leases.sort_by(|one, other| one.namespace.cmp(&other.namespace));
            leases
        })
    }

    /// A node and its CSINode; read once.
    pub async fn node(&self, name: &str) -> (Lookup<NodeRecord>, Lookup<CsiNodeRecord>) {
        self.nodes.get(name, Box::pin(self.read_node(name))).await
    }

    async fn read_node(&self, name: &str) -> (Lookup<NodeRecord>, Lookup<CsiNodeRecord>) {
        let node = self.reader.get(self.reader.cluster::<Node>(), name);
        let csi_node = self.reader.get(self.reader.cluster::<CSINode>(), name);
        let (node, csi_node) = futures::join!(node, csi_node);
        (node.map(NodeRecord::from), csi_node.map(CsiNodeRecord::from))
    }

    /// Events of an object, and none of a former one of its name. Those of objects without a namespace are in `default`.
    pub async fn events(&self, kind: &str, (namespace, name): (&str, &str), uid: &str) -> Lookup<Vec<EventRecord>> {
        let fields = format!("involvedObject.kind={kind},involvedObject.name={name},involvedObject.uid={uid}");
        let api = self.reader.namespaced::<Event>(namespace);
        self.reader.list(api, ListParams::default().fields(&fields)).await
    }

    /// Pods of a namespace, of one node or of all.
    pub async fn pods(&self, namespace: &str, node: Option<&str>) -> Lookup<Vec<PodRecord>> {
        let mut parameters = ListParams::default();
        if let Some(node) = node {
            parameters = parameters.fields(&format!("spec.nodeName={node}"));
        }
        let api = self.reader.namespaced::<PodWire>(namespace);
        self.reader.list(api, parameters).await
    }

    /// Whether a Secret is there. Its contents are never read.
    pub async fn secret(&self, reference: &SecretReference) -> Lookup<()> {
        let api = self.reader.namespaced::<Secret>(&reference.namespace);
        self.reader.exists(api, &reference.name).await
    }
}

/// Of several AttacherConfigs for a driver the oldest is used that is neither suspended nor being deleted, and that claims the driver now.
fn config_of(configs: &[ConfigRecord], driver: &str) -> Option<ConfigRecord> {
    let mine = configs.iter().filter(|config| config.driver() == Some(driver));
    mine.min_by_key(|config| (config.yields(), !config.claims(), config.created, config.name.clone()))
        .cloned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_server_fixture::{ApiServerFixture, list};
    use crate::error::{EXIT_ERROR, EXIT_UNKNOWN};
    use crate::explain::tests::builders::{DRIVER, before, config};
    use futures::future::join_all;
    use serde_json::{Value, json};

    fn record(name: &str, spec: &Value, edit: impl FnOnce(&mut ConfigRecord)) -> ConfigRecord {
        let Lookup::Found(mut record) = config(&[], spec) else {
            panic!("it is there")
        };
        name.clone_into(&mut record.name);
        edit(&mut record);
        record
    }

    /// Its endpoint is another driver's now, and the status still has the name of the former one.
    #[test]
    fn a_config_that_claims_the_driver_no_more_is_not_the_one_that_is_used() {
        let former = |holder: Option<&str>| {
            record("former", &json!({}), |record| {
                record.status.holder = holder.map(str::to_owned);
            })
        };
        let named = || {
            record("named", &json!({"driverName": DRIVER}), |record| {
                record.created = Some(before(60));
                record.status.holder = None;
            })
        };
        let serving = || record("serving", &json!({}), |record| record.created = Some(before(60)));
        let suspended = || record("a", &json!({"driverName": DRIVER, "suspend": true}), |_| {});
        for (configs, used) in [
            (vec![former(None), named()], "named"),
            (vec![former(None), serving()], "serving"),
            (vec![former(Some("replica-1")), named()], "former"),
            (vec![suspended(), former(None)], "former"),
        ] {
            let found = config_of(&configs, DRIVER);
            assert_eq!(found.unwrap().name, used);
        }
    }

    /// The command line is right, whoever asks.
    #[tokio::test]
    async fn without_volumeattachments_there_is_no_answer() {
        for (code, exit_code, says) in [
            (404, EXIT_ERROR, "cannot read volumeattachments: the API"),
            (403, EXIT_UNKNOWN, "cannot list volumeattachments: forbidden"),
        ] {
            let server = ApiServerFixture::start(move |path, _| match path {
                path if path.ends_with("/volumeattachments") => Err(code),
                _ => Err(403),
            });
            let sources = server.sources();
            sources.configs().await;
            let error = sources.require_attachments().await.unwrap_err();
            assert_eq!(error.exit_code(), exit_code, "{error}");
            assert!(error.to_string().starts_with(says), "{error}");
        }
    }

    #[tokio::test]
    async fn a_driver_and_a_node_are_read_once() {
        let server = ApiServerFixture::start(|path, _| match path {
            path if path.ends_with("/leases") => Ok(list(&[])),
            _ => Err(404),
        });
        let sources = server.sources();
        join_all((0..20).map(|_| sources.driver(DRIVER))).await;
        join_all((0..20).map(|_| sources.node("node1"))).await;
        sources.driver("other.csi.test").await;
        let requests = server.requests();
        let count = |part: &str| requests.iter().filter(|request| request.contains(part)).count();
        assert_eq!((count("/leases"), count("/csidrivers/")), (2, 2), "{requests:?}");
        assert_eq!(
            (count("/nodes/node1"), count("/csinodes/node1")),
            (1, 1),
            "{requests:?}"
        );
    }
}
