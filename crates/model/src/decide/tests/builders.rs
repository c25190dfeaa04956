//! Objects as the API server sends them.

use serde_json::{Value, json};

use crate::api::names::{NODE_ID_ANNOTATION, VOLUME_ANNOTATION};

pub const DRIVER: &str = "csi/test";
pub const FINALIZER: &str = "external-attacher/csi-test";
pub const NODE_ID: &str = "nodeID1";
pub const ATTACHMENT: &str = "pv1-node1";
pub const ATTACHMENT_UID: &str = "va-uid";
pub const VOLUME_UID: &str = "pv-uid";
pub const DELETED_AT: &str = "2026-01-02T03:04:05Z";

macro_rules! object {
    ($name:ident) => {
        /// An object under construction.
        #[derive(Clone, Debug)]
        pub struct $name(pub Value);

        impl $name {
            pub fn set(mut self, pointer: &str, value: impl Into<Value>) -> Self {
                put(&mut self.0, pointer, value.into());
                self
            }

            pub fn deleting(self) -> Self {
                self.set("/metadata/deletionTimestamp", DELETED_AT)
            }

            pub fn finalizers(self, list: &[&str]) -> Self {
                self.set("/metadata/finalizers", json!(list))
            }
        }
    };
}
object!(Va);
object!(Pv);

/// Sets a value, making the objects on the way to it.
pub fn put(target: &mut Value, pointer: &str, value: Value) {
    let mut place = target;
    for part in pointer.split('/').skip(1) {
        place = &mut place[part.replace("~1", "/").replace("~0", "~").as_str()];
    }
    *place = value;
}

/// A new attachment of pv1 to node1.
pub fn attachment() -> Va {
    Va(json!({
        "metadata": {"name": ATTACHMENT, "uid": ATTACHMENT_UID, "resourceVersion": "1"},
        "spec": {"attacher": DRIVER, "nodeName": "node1", "source": {"persistentVolumeName": "pv1"}},
        "status": {"attached": false},
    }))
}

impl Va {
    pub fn named(self, name: &str) -> Self {
        self.set("/metadata/name", name).set("/metadata/uid", "other-uid")
    }

    pub fn attached(self) -> Self {
        self.set("/status/attached", true)
    }

    /// With our finalizer and the node ID, as the sidecar leaves it: without our note of the volume.
    pub fn claimed(self) -> Self {
        self.finalizers(&[FINALIZER]).noted_node(NODE_ID)
    }

    pub fn noted_node(self, node_id: &str) -> Self {
        self.annotation(NODE_ID_ANNOTATION, node_id)
    }

    pub fn noted_volume(self, note: &Value) -> Self {
        self.annotation(VOLUME_ANNOTATION, &note.to_string())
    }

    pub fn without_note(self) -> Self {
        self.annotation(VOLUME_ANNOTATION, "")
    }

    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.0["metadata"]["annotations"][key] = value.into();
        self
    }

    pub fn source(self, source: Value) -> Self {
        self.set("/spec/source", source)
    }

    /// As the attach/detach controller makes it for migrated volumes in a pod's spec.
    pub fn inline(self, volume: &Pv) -> Self {
        self.source(json!({"inlineVolumeSpec": volume.0["spec"]}))
    }
}

/// A live volume of our driver, RWX, without our finalizer.
pub fn volume() -> Pv {
    Pv(json!({
        "metadata": {"name": "pv1", "uid": VOLUME_UID, "resourceVersion": "1"},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "csi": {"driver": DRIVER, "volumeHandle": "handle1"},
        },
    }))
}

impl Pv {
    pub fn protected(self) -> Self {
        self.finalizers(&[FINALIZER])
    }

    pub fn read_only(self) -> Self {
        self.set("/spec/csi/readOnly", true)
    }

    pub fn attributes(self) -> Self {
        self.set("/spec/csi/volumeAttributes", json!({"foo": "bar"}))
    }

    pub fn secret(self, name: &str) -> Self {
        self.set(
            "/spec/csi/controllerPublishSecretRef",
            json!({"namespace": "default", "name": name}),
        )
    }

    pub fn modes(self, modes: &[&str]) -> Self {
        self.set("/spec/accessModes", json!(modes))
    }

    /// With another source than CSI.
    pub fn in_tree(mut self, field: &str) -> Self {
        self.0["spec"] = json!({"accessModes": ["ReadWriteOnce"], field: {}});
        self
    }
}

/// The driver that took over `gcePersistentDisk`, and its finalizer.
pub const GCE_DRIVER: &str = "pd.csi.storage.gke.io";
pub const GCE_FINALIZER: &str = "external-attacher/pd-csi-storage-gke-io";

/// A live volume of the in-tree plug-in `gcePersistentDisk`, RWO, in one zone, without our finalizer.
pub fn gce_volume() -> Pv {
    Pv(json!({
        "metadata": {
            "name": "pv1", "uid": VOLUME_UID, "resourceVersion": "1",
            "labels": {"failure-domain.beta.kubernetes.io/zone": "testZone"},
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "gcePersistentDisk": {"pdName": "testpd", "fsType": "ext4"},
        },
    }))
}

/// The CSINode node1 with our driver, or without any.
pub fn csi_node(node_id: Option<&str>) -> Value {
    csi_node_of(DRIVER, node_id)
}

/// The CSINode node1 with this driver, or without any.
pub fn csi_node_of(driver: &str, node_id: Option<&str>) -> Value {
    let drivers: Vec<Value> = node_id
        .map(|id| json!({"name": driver, "nodeID": id}))
        .into_iter()
        .collect();
    json!({"metadata": {"name": "node1", "uid": "node-uid"}, "spec": {"drivers": drivers}})
}
