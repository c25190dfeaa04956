//! Changes of objects by hand, as an administrator may make them.

use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::support::fixtures::{Fixtures, Object};
use crate::support::{Error, Result};

/// Changes an object by a merge patch.
pub async fn merge<K: Object>(api: &Api<K>, name: &str, change: &Value) -> Result<K> {
    let patched = api.patch(name, &PatchParams::default(), &Patch::Merge(change)).await;
    patched.map_err(Error::from)
}

/// The same of its status.
pub async fn merge_status<K: Object>(api: &Api<K>, name: &str, change: &Value) -> Result<K> {
    let change = Patch::Merge(change);
    let patched = api.patch_status(name, &PatchParams::default(), &change).await;
    patched.map_err(Error::from)
}

/// Takes all finalizers off an object, by force.
pub async fn strip<K: Object>(api: &Api<K>, name: &str) -> Result<K> {
    merge(api, name, &json!({ "metadata": { "finalizers": null } })).await
}

/// Deletes a VolumeAttachment and waits until it is gone.
pub async fn detach(fixtures: &Fixtures, name: &str) -> Result<()> {
    fixtures.delete::<VolumeAttachment>(name).await?;
    fixtures.wait_for_attachment_gone(name).await
}

/// Deletes a PersistentVolume and waits until it is gone.
pub async fn delete_volume(fixtures: &Fixtures, name: &str) -> Result<()> {
    fixtures.delete::<PersistentVolume>(name).await?;
    fixtures.wait_for_volume_gone(name).await
}
