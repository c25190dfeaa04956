//! The plug-ins whose volume ID is the handle: `cinder` to `cinder.csi.openstack.org`, `vsphereVolume` to
//! `csi.vsphere.vmware.com`, `portworxVolume` to `pxd.portworx.com`.

use serde::Deserialize;
use std::collections::BTreeMap;

use super::keys::{PORTWORX_SECRET_NAME_ANNOTATION, PORTWORX_SECRET_NAMESPACE_ANNOTATION};
use super::plugin::{InTreePlugin, PersistentVolumeContext, source_of};
use crate::objects::csi_source::{CsiSource, SecretReference};
use crate::objects::string_map::StringMap;

/// `CinderPersistentVolumeSource`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CinderWire {
    #[serde(rename = "volumeID")]
    volume_id: String,
    fs_type: String,
    read_only: bool,
}

impl CinderWire {
    pub fn translate(self) -> CsiSource {
        CsiSource {
            read_only: self.read_only,
            fs_type: self.fs_type.into(),
            ..source_of(InTreePlugin::Cinder, self.volume_id)
        }
    }
}

/// `VsphereVirtualDiskVolumeSource`. It has no read-only mark.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VsphereWire {
    volume_path: String,
    fs_type: String,
    storage_policy_name: String,
}

impl VsphereWire {
    pub fn translate(self) -> CsiSource {
        let mut attributes = BTreeMap::new();
        if !self.storage_policy_name.is_empty() {
            attributes.insert("storagepolicyname".to_owned(), self.storage_policy_name);
        }
        CsiSource {
            fs_type: self.fs_type.into(),
            attributes: StringMap::from(attributes),
            ..source_of(InTreePlugin::VsphereVolume, self.volume_path)
        }
    }
}

/// `PortworxVolumeSource`. Its read-only mark is for the mount and is not translated.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PortworxWire {
    #[serde(rename = "volumeID")]
    volume_id: String,
    fs_type: String,
}

impl PortworxWire {
    pub fn translate(self, volume: &PersistentVolumeContext<'_>) -> CsiSource {
        let annotation = |key: &str| volume.annotations.get(key).map(|value| value.as_str().into());
        let name = annotation(PORTWORX_SECRET_NAME_ANNOTATION);
        let namespace = annotation(PORTWORX_SECRET_NAMESPACE_ANNOTATION);
        CsiSource {
            fs_type: self.fs_type.into(),
            publish_secret: name
                .zip(namespace)
                .map(|(name, namespace)| SecretReference { namespace, name }),
            ..source_of(InTreePlugin::PortworxVolume, self.volume_id)
        }
    }
}
