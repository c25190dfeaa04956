//! Detaching: everything that is needed may have changed or gone since the attach, so each piece has a fall-back on
//! the attachment itself.

use super::action::{Action, Ignored, Refusal, UnpublishRequest};
use super::attach::{csi_source, node_refusal};
use super::observed::{Credentials, NodeEntry, Observed};
use crate::objects::{SecretReference, Source, Volume, VolumeSource};

pub(super) fn decide<'a>(observed: &Observed<'a>) -> Action<'a> {
    if !observed.attachment.finalizers.contains(&observed.driver.finalizer) {
        return Action::Ignore(Ignored::NothingToDetach);
    }
    match steps(observed) {
        Ok(action) => action,
        Err(refusal) => Action::Refuse(refusal),
    }
}

fn steps<'a>(observed: &Observed<'a>) -> Result<Action<'a>, Refusal> {
    let (volume_id, secret) = published_volume(observed)?;
    let node_id = detach_node_id(observed)?;
    if let (Some(secret), Credentials::NotLoaded) = (secret, observed.credentials) {
        return Ok(Action::LoadCredentials(secret));
    }
    Ok(Action::Unpublish(UnpublishRequest {
        volume_id,
        node_id,
        migrated: observed.is_migrated(),
    }))
}

/// The volume's handle and secret. A PersistentVolume that is being deleted is fine, it waits for this very detach; one
/// that was removed by force leaves the copy that was noted on the attachment when it was claimed. A handle never
/// changes, so a volume with another one was made later under the same name: it is not the one that was published.
fn published_volume<'a>(observed: &Observed<'a>) -> Result<(&'a str, Option<&'a SecretReference>), Refusal> {
    let attachment = observed.attachment;
    let spec = match &attachment.source {
        Source::Both(_) => return Err(Refusal::SourceTwice),
        Source::Neither => return Err(Refusal::SourceMissing),
        Source::Inline(spec) => spec,
        Source::PersistentVolume(name) => match (observed.volume, &attachment.volume_note) {
            (Some(volume), Some(note)) if handle(volume) == Some(&*note.handle) => &volume.spec,
            (_, Some(note)) => return Ok((&note.handle, note.secret.as_ref())),
            (Some(volume), None) => &volume.spec,
            (None, None) => return Err(Refusal::VolumeNotFound(name.clone())),
        },
    };
    let source = csi_source(observed, spec)?;
    Ok((&source.handle, source.publish_secret.as_ref()))
}

fn handle(volume: &Volume) -> Option<&str> {
    match &volume.spec.source {
        VolumeSource::Csi(source) => Some(&source.handle),
        VolumeSource::Untranslated(_) | VolumeSource::Other => None,
    }
}

/// Detaching prefers the CSINode as the Go sidecar does, and falls back to the node ID that was noted when the
/// attachment was claimed: the node may be shut down, or gone.
fn detach_node_id<'a>(observed: &Observed<'a>) -> Result<&'a str, Refusal> {
    match (observed.node, &observed.attachment.node_id) {
        (NodeEntry::Registered(node_id), _) => Ok(node_id),
        (_, Some(noted)) => Ok(noted),
        (entry, None) => Err(node_refusal(observed, entry)),
    }
}
