//! What several questions share, read once: VolumeAttachments, AttacherConfigs, and what is known of drivers and nodes.

use csi_attacher_model::api::AttacherConfigObject;
use csi_attacher_model::api::names::lease_name;
use csi_attacher_model::objects::{Attachment, SecretReference, VolumeAttachmentWire};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Node, Secret};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode};
use kube::Api;
use kube::api::ListParams;
use std::sync::Arc;
use tokio::sync::OnceCell;

use super::reader::{Reader, ResourceName};
use crate::error::PluginError;
use crate::observed::{
    ConfigRecord, CsiDriverRecord, CsiNodeRecord, DriverScene, EventRecord, LeaseRecord, Lookup, NodeRecord, PodRecord,
    PodWire,
};

pub(super) const ATTACHMENTS: ResourceName = ResourceName::new("storage.k8s.io", "volumeattachments");
pub(super) const PODS: ResourceName = ResourceName::new("", "pods");
const CONFIGS: ResourceName = ResourceName::new("attacher.csi.dev", "attacherconfigs");
const LEASES: ResourceName = ResourceName::new("coordination.k8s.io", "leases");
const EVENTS: ResourceName = ResourceName::new("", "events");
const NODES: ResourceName = ResourceName::new("", "nodes");
const CSI_NODES: ResourceName = ResourceName::new("storage.k8s.io", "csinodes");
const CSI_DRIVERS: ResourceName = ResourceName::new("storage.k8s.io", "csidrivers");
const SECRETS: ResourceName = ResourceName::new("", "secrets");

/// Everything that can be read.
pub struct Sources {
    /// Single reads.
    pub reader: Reader,
    /// When the question was asked.
    pub now: Timestamp,
    attachments: OnceCell<Lookup<Vec<Arc<Attachment>>>>,
    configs: OnceCell<Lookup<Vec<ConfigRecord>>>,
}

impl Sources {
    /// Reads at a moment.
    pub fn new(reader: Reader, now: Timestamp) -> Self {
        Self {
            reader,
            now,
            attachments: OnceCell::new(),
            configs: OnceCell::new(),
        }
    }

    /// Why there is no answer: the first of what could not be read.
    pub fn unreadable(&self) -> PluginError {
        let gap = self.reader.gaps().into_iter().next();
        gap.map_or_else(
            || PluginError::Usage("the API server does not have VolumeAttachments".to_owned()),
            PluginError::Unreadable,
        )
    }

    /// All VolumeAttachments, in one list.
    pub async fn attachments(&self) -> &Lookup<Vec<Arc<Attachment>>> {
        let read = async {
            let api = self.reader.cluster::<VolumeAttachmentWire>();
            let listed = self.reader.list(api, ATTACHMENTS, ListParams::default()).await;
            listed.map(|items| items.into_iter().map(|item| Arc::new(item.into())).collect())
        };
        self.attachments.get_or_init(|| read).await
    }

    /// All AttacherConfigs; missing when their CRD is not installed.
    pub async fn configs(&self) -> &Lookup<Vec<ConfigRecord>> {
        let read = async {
            let api = self.reader.cluster::<AttacherConfigObject>();
            let listed = self.reader.list(api, CONFIGS, ListParams::default()).await;
            listed.map(|items| items.into_iter().map(ConfigRecord::from).collect())
        };
        self.configs.get_or_init(|| read).await
    }

    /// Everything about a driver.
    pub async fn driver(&self, name: &str) -> DriverScene {
        let csi_driver = async {
            let api = self.reader.cluster::<CSIDriver>();
            self.reader.get(api, CSI_DRIVERS, name).await.map(CsiDriverRecord::from)
        };
        let (configs, leases, csi_driver) = futures::join!(self.configs(), self.leases(name), csi_driver);
        let (crd, config) = match configs {
            Lookup::Found(configs) => (Lookup::Found(()), config_of(configs, name)),
            Lookup::Missing => (Lookup::Missing, Lookup::Missing),
            Lookup::Unknown => (Lookup::Unknown, Lookup::Unknown),
        };
        let lease = lease_of(leases, self.now);
        DriverScene {
            name: name.to_owned(),
            crd,
            config,
            lease,
            csi_driver,
        }
    }

    /// The Leases of a driver's name, in all namespaces: a sidecar's is in that of its pod.
    pub async fn leases(&self, driver: &str) -> Lookup<Vec<LeaseRecord>> {
        let name = lease_name(driver);
        let parameters = ListParams::default().fields(&format!("metadata.name={name}"));
        let api: Api<Lease> = Api::all(self.reader.client());
        let listed = self.reader.list(api, LEASES, parameters).await;
        listed.map(|items| items.into_iter().map(LeaseRecord::from).collect())
    }

    /// A node and its CSINode.
    pub async fn node(&self, name: &str) -> (Lookup<NodeRecord>, Lookup<CsiNodeRecord>) {
        let node = self.reader.get(self.reader.cluster::<Node>(), NODES, name);
        let csi_node = self.reader.get(self.reader.cluster::<CSINode>(), CSI_NODES, name);
        let (node, csi_node) = futures::join!(node, csi_node);
        (node.map(NodeRecord::from), csi_node.map(CsiNodeRecord::from))
    }

    /// Events of an object. Those of objects without a namespace are in `default`.
    pub async fn events(&self, kind: &str, namespace: &str, name: &str) -> Lookup<Vec<EventRecord>> {
        let fields = format!("involvedObject.kind={kind},involvedObject.name={name}");
        let api = self.reader.namespaced::<Event>(namespace);
        let listed = self
            .reader
            .list(api, EVENTS, ListParams::default().fields(&fields))
            .await;
        listed.map(|items| items.into_iter().map(EventRecord::from).collect())
    }

    /// Pods of a namespace, of one node or of all.
    pub async fn pods(&self, namespace: &str, node: Option<&str>) -> Lookup<Vec<PodRecord>> {
        let mut parameters = ListParams::default();
        if let Some(node) = node {
            parameters = parameters.fields(&format!("spec.nodeName={node}"));
        }
        let api = self.reader.namespaced::<PodWire>(namespace);
        let listed = self.reader.list(api, PODS, parameters).await;
        listed.map(|items| items.into_iter().map(PodRecord::from).collect())
    }

    /// Whether a Secret is there. Its contents are never read.
    pub async fn secret(&self, reference: &SecretReference) -> Lookup<()> {
        let api = self.reader.namespaced::<Secret>(&reference.namespace);
        self.reader.exists(api, SECRETS, &reference.name).await
    }
}

/// Of several AttacherConfigs for a driver the oldest is used that is neither suspended nor being deleted.
fn config_of(configs: &[ConfigRecord], driver: &str) -> Lookup<ConfigRecord> {
    let mine = configs.iter().filter(|config| config.driver() == Some(driver));
    mine.min_by_key(|config| (config.yields(), config.created, config.name.clone()))
        .map_or(Lookup::Missing, |config| Lookup::Found(config.clone()))
}

/// Of several Leases of one name: one that is held, that of a sidecar first, as the operator waits for it.
fn lease_of(leases: Lookup<Vec<LeaseRecord>>, now: Timestamp) -> Lookup<LeaseRecord> {
    let mut leases = match leases {
        Lookup::Found(leases) => leases,
        Lookup::Missing => return Lookup::Missing,
        Lookup::Unknown => return Lookup::Unknown,
    };
    leases.sort_by_key(|lease| (!lease.is_held(now), lease.is_of_operator));
    leases.into_iter().next().map_or(Lookup::Missing, Lookup::Found)
}
