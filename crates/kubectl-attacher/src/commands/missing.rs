//! Whether that exists which `wait` is asked about and no VolumeAttachment was seen of.

use csi_attacher_model::api::AttacherConfigObject;
use csi_attacher_model::objects::{PersistentVolumeWire, VolumeAttachmentWire};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode};
use kube::Resource;
use kube_core::ClusterResourceScope;
use std::borrow::Cow;

use super::wait::Target;
use crate::error::{PluginError, Result};
use crate::gather::{Readable, Sources};
use crate::observed::Lookup;

/// The node, the volume or the VolumeAttachment.
pub(super) async fn require_target(sources: &Sources, target: &Target) -> Result<()> {
    let reader = &sources.reader;
    let object = target.to_string();
    match target {
        Target::Node(name) => {
            let (node, csi_node) = sources.node(name).await;
            let found = any(&[node.map(drop), csi_node.map(drop)]);
            let read = [Node::plural(&()), CSINode::plural(&())];
            require::<Node>(sources, object, name, &found, &read).await
        }
        Target::Volume(name) => {
            let api = reader.cluster::<PersistentVolumeWire>();
            let found = reader.exists(api, name).await;
            let read = [PersistentVolumeWire::plural(&())];
            require::<PersistentVolumeWire>(sources, object, name, &found, &read).await
        }
        Target::Attachment(name) => {
            // All of them were listed.
            let found = Lookup::Missing;
            require::<VolumeAttachmentWire>(sources, object, name, &found, &[]).await
        }
        // It was read, so that its name is right.
        Target::Claim { .. } => Ok(()),
    }
}

/// The driver: its CSIDriver, its AttacherConfig, or its entry in the CSINode of the node.
pub(super) async fn require_driver(sources: &Sources, target: &Target, driver: &str) -> Result<()> {
    let scene = sources.driver(driver).await;
    let listed = match target {
        Target::Node(node) => {
            let (_, csi_node) = sources.node(node).await;
            csi_node.and_then(|node| node.drivers.node_id(driver).map(|_| ()))
        }
        Target::Volume(_) | Target::Claim { .. } | Target::Attachment(_) => Lookup::Missing,
    };
    let found = any(&[scene.attach_required.map(drop), scene.config.map(drop), listed]);
    let read = [
        CSIDriver::plural(&()),
        AttacherConfigObject::plural(&()),
        CSINode::plural(&()),
    ];
    require::<CSIDriver>(sources, format!("CSIDriver {driver}"), driver, &found, &read).await
}

/// The error if an object was not found; `read` are the resources of which one would have shown it.
async fn require<K: Readable + Resource<Scope = ClusterResourceScope>>(
    sources: &Sources,
    object: String,
    name: &str,
    found: &Lookup<()>,
    read: &[Cow<'_, str>],
) -> Result<()> {
    match found {
        Lookup::Found(()) => Ok(()),
        Lookup::Unknown => Err(sources.unreadable(read)),
        Lookup::Missing => Err(PluginError::NothingSeen {
            object,
            nearest: sources.reader.nearest(sources.reader.cluster::<K>(), name).await,
        }),
    }
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
    use crate::api_server_fixture::ApiServerFixture;

    /// Much is read of a driver and a node, and most of it does not say whether they exist.
    #[tokio::test]
    async fn the_missing_right_that_is_told_is_one_that_helps() {
        let forbidden = ["/nodes/node1", "/leases", "/csidrivers/ssd.csi.test"];
        let server = ApiServerFixture::start(move |path, _| {
            let is_forbidden = forbidden.iter().any(|end| path.ends_with(end));
            Err(if is_forbidden { 403 } else { 404 })
        });
        let (sources, target) = (server.sources(), Target::Node("node1".to_owned()));
        let error = require_driver(&sources, &target, "ssd.csi.test").await.unwrap_err();
        assert!(error.to_string().starts_with("cannot get csidrivers: "), "{error}");
        let error = require_target(&sources, &target).await.unwrap_err();
        assert!(error.to_string().starts_with("cannot get nodes: "), "{error}");
    }

    #[test]
    fn what_could_not_be_read_may_be_there() {
        use Lookup::{Found, Missing, Unknown};
        assert!(any(&[Missing, Missing]).is_missing());
        assert!(any(&[Missing, Unknown]).is_unknown());
        assert!(matches!(any(&[Unknown, Found(())]), Found(())));
    }
}
