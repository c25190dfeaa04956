//! Whether that exists which `wait` is asked about and no VolumeAttachment was seen of.

use csi_attacher_model::objects::{PersistentVolumeWire, VolumeAttachmentWire};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::CSIDriver;

use super::wait::Target;
use crate::error::{PluginError, Result};
use crate::gather::{ResourceName, Sources, nearest};
use crate::observed::Lookup;

const VOLUMES: ResourceName = ResourceName::new("", "persistentvolumes");

/// The node, the volume or the VolumeAttachment.
pub(super) async fn require_target(sources: &Sources, target: &Target) -> Result<()> {
    let reader = &sources.reader;
    let (name, found) = match target {
        Target::Node(name) => {
            let (node, csi_node) = sources.node(name).await;
            (name, any(&[node.map(drop), csi_node.map(drop)]))
        }
        Target::Volume(name) => {
            let found = reader
                .exists(reader.cluster::<PersistentVolumeWire>(), VOLUMES, name)
                .await;
            (name, found)
        }
        // All of them were listed.
        Target::Attachment(name) => (name, Lookup::Missing),
    };
    match found {
        Lookup::Found(()) => return Ok(()),
        Lookup::Unknown => return Err(unreadable(sources)),
        Lookup::Missing => {}
    }
    let names = match target {
        Target::Node(_) => reader.names(reader.cluster::<Node>()).await,
        Target::Volume(_) => reader.names(reader.cluster::<PersistentVolumeWire>()).await,
        Target::Attachment(_) => reader.names(reader.cluster::<VolumeAttachmentWire>()).await,
    };
    Err(PluginError::NothingSeen {
        object: target.to_string(),
        nearest: nearest(name, &names),
    })
}

/// The driver: its CSIDriver, its AttacherConfig, or its entry in the CSINode of the node.
pub(super) async fn require_driver(sources: &Sources, target: &Target, driver: &str) -> Result<()> {
    let scene = sources.driver(driver).await;
    let listed = match target {
        Target::Node(node) => match sources.node(node).await.1 {
            Lookup::Found(node) if node.drivers.node_id(driver).is_some() => Lookup::Found(()),
            Lookup::Unknown => Lookup::Unknown,
            _ => Lookup::Missing,
        },
        Target::Volume(_) | Target::Attachment(_) => Lookup::Missing,
    };
    match any(&[scene.csi_driver.map(drop), scene.config.map(drop), listed]) {
        Lookup::Found(()) => Ok(()),
        Lookup::Unknown => Err(unreadable(sources)),
        Lookup::Missing => {
            let names = sources.reader.names(sources.reader.cluster::<CSIDriver>()).await;
            Err(PluginError::NothingSeen {
                object: format!("CSIDriver {driver}"),
                nearest: nearest(driver, &names),
            })
        }
    }
}

/// What could not be read.
pub(super) fn unreadable(sources: &Sources) -> PluginError {
    let gap = sources.reader.gaps().into_iter().next();
    gap.map_or_else(
        || PluginError::Usage("the API server does not have VolumeAttachments".to_owned()),
        PluginError::Unreadable,
    )
}

/// Whether one of several was found. What could not be read may be there.
fn any(lookups: &[Lookup<()>]) -> Lookup<()> {
    let is_found = |lookup: &Lookup<()>| matches!(lookup, Lookup::Found(()));
    if lookups.iter().any(is_found) {
        Lookup::Found(())
    } else if lookups.iter().any(Lookup::is_unknown) {
        Lookup::Unknown
    } else {
        Lookup::Missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_read_may_be_there() {
        use Lookup::{Found, Missing, Unknown};
        assert!(any(&[Missing, Missing]).is_missing());
        assert!(any(&[Missing, Unknown]).is_unknown());
        assert!(matches!(any(&[Unknown, Found(())]), Found(())));
    }
}
