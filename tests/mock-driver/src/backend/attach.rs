//! Attaching and detaching.

use std::collections::BTreeMap;

use tonic::Status;

use super::{Backend, DEFAULT_VOLUME_BYTES, MockAttachment, check_capability, required, same_use};
use crate::settings::{ControllerCapability, MockSettings};
use csi_attacher_proto::v1;
use v1::volume_capability::access_mode::Mode;

/// Whether a volume attached in this mode may be on several nodes.
fn is_multi_node(mode: Mode) -> bool {
    matches!(
        mode,
        Mode::MultiNodeReaderOnly | Mode::MultiNodeSingleWriter | Mode::MultiNodeMultiWriter
    )
}

/// Device name of the slot, as virtual machines number theirs: `/dev/xvdba` to `/dev/xvdzz`, then with a number.
fn device_path(slot: usize) -> String {
    let letter = |index: usize| char::from(b'a' + u8::try_from(index % 26).unwrap_or(0));
    let (first, second, round) = (letter(1 + slot / 26 % 25), letter(slot % 26), slot / (25 * 26));
    if round == 0 {
        format!("/dev/xvd{first}{second}")
    } else {
        format!("/dev/xvd{first}{second}{round}")
    }
}

impl Backend {
    /// ControllerPublishVolume. [ControllerPublishVolume Errors]
    pub fn publish(
        &mut self,
        settings: &MockSettings,
        request: &v1::ControllerPublishVolumeRequest,
    ) -> Result<v1::ControllerPublishVolumeResponse, Status> {
        let volume = required(&request.volume_id, "volume_id")?;
        let node = required(&request.node_id, "node_id")?;
        let mode = check_capability(settings, request.volume_capability.as_ref())?;
        if request.readonly && !settings.has(ControllerCapability::PublishReadonly) {
            return Err(Status::invalid_argument(
                "readonly needs the capability PUBLISH_READONLY",
            ));
        }
        settings.authenticate(volume, &request.secrets)?;
        settings.check_mount_flags(volume, request.volume_capability.as_ref())?;
        self.volume(settings, volume)?;
        if !settings.knows_node(node) {
            return Err(Status::not_found(format!("node {node:?} does not exist")));
        }
        let slot = match self.attached_slot(volume, node, request)? {
            Some(slot) => slot,
            None => self.new_slot(settings, volume, node, mode)?,
        };
        let wanted = request
            .volume_capability
            .clone()
            .map(|capability| (capability, request.readonly));
        self.attach(volume, node, MockAttachment { request: wanted, slot });
        let usual = || {
            BTreeMap::from([
                ("devicePath".to_owned(), device_path(slot)),
                ("readonly".to_owned(), request.readonly.to_string()),
            ])
        };
        let context = settings.publish_contexts.get(volume).cloned().unwrap_or_else(usual);
        Ok(v1::ControllerPublishVolumeResponse {
            publish_context: context,
        })
    }

    /// The slot of the volume on the node when it is attached there in the same way; an error when it is in another way.
    fn attached_slot(
        &self,
        volume: &str,
        node: &str,
        request: &v1::ControllerPublishVolumeRequest,
    ) -> Result<Option<usize>, Status> {
        let Some(attachment) = self.volumes.get(volume).and_then(|found| found.attachments.get(node)) else {
            return Ok(None);
        };
        let compatible = attachment.request.as_ref().is_none_or(|(capability, readonly)| {
            *readonly == request.readonly
                && request
                    .volume_capability
                    .as_ref()
                    .is_some_and(|it| same_use(capability, it))
        });
        if compatible {
            return Ok(Some(attachment.slot));
        }
        let text = format!("volume {volume:?} is published to node {node:?} with another capability or readonly flag");
        Err(Status::already_exists(text))
    }

    /// Takes a slot on the node for a volume that is not there yet.
    fn new_slot(&mut self, settings: &MockSettings, volume: &str, node: &str, mode: Mode) -> Result<usize, Status> {
        let other = self.volumes.get(volume).and_then(|found| {
            found.attachments.iter().find(|(_, attachment)| {
                let multi_node = attachment
                    .request
                    .as_ref()
                    .is_some_and(|(capability, _)| is_multi_node(capability.access_mode.unwrap_or_default().mode()));
                !multi_node || !is_multi_node(mode)
            })
        });
        if let Some((other, _)) = other.filter(|_| settings.refuse_second_node) {
            let text = format!("volume {volume:?} is published to node {other:?} already");
            return Err(Status::failed_precondition(text));
        }
        let slots = self.slots.entry(node.to_owned()).or_default();
        match settings.limit_of(node) {
            Some(limit) if slots.used() >= limit => Err(Status::resource_exhausted(format!(
                "node {node:?} has its limit of {limit} volumes attached"
            ))),
            _ => Ok(slots.take()),
        }
    }

    fn attach(&mut self, volume: &str, node: &str, attachment: MockAttachment) {
        if let Some(found) = self.volumes.get_mut(volume) {
            found.attachments.insert(node.to_owned(), attachment);
        }
    }

    /// Takes the volume from the node; false when it was not there.
    fn detach(&mut self, volume: &str, node: &str) -> bool {
        let found = self.volumes.get_mut(volume);
        let Some(attachment) = found.and_then(|found| found.attachments.remove(node)) else {
            return false;
        };
        self.free_slot(node, attachment.slot);
        true
    }

    /// Gives the slots of a volume back that is attached nowhere any more.
    pub(super) fn free_slots(&mut self, attachments: BTreeMap<String, MockAttachment>) {
        for (node, attachment) in attachments {
            self.free_slot(&node, attachment.slot);
        }
    }

    fn free_slot(&mut self, node: &str, slot: usize) {
        if let Some(slots) = self.slots.get_mut(node) {
            slots.free(slot);
            if slots.used() == 0 {
                self.slots.remove(node);
            }
        }
    }

    /// ControllerUnpublishVolume; without a node from all nodes. [ControllerUnpublishVolume Errors]
    pub fn unpublish(
        &mut self,
        settings: &MockSettings,
        request: &v1::ControllerUnpublishVolumeRequest,
    ) -> Result<v1::ControllerUnpublishVolumeResponse, Status> {
        let (volume, node) = (required(&request.volume_id, "volume_id")?, request.node_id.as_str());
        settings.authenticate(volume, &request.secrets)?;
        let strict = settings.unpublish_unknown_is_not_found;
        match self.volumes.get_mut(volume) {
            Some(found) if node.is_empty() => {
                let attachments = std::mem::take(&mut found.attachments);
                self.free_slots(attachments);
            }
            // A node that is gone may still have an attachment, which goes away.
            Some(_) => {
                let detached = self.detach(volume, node);
                if !detached && strict && !settings.knows_node(node) {
                    return Err(Status::not_found(format!("node {node:?} does not exist")));
                }
            }
            None if strict && !settings.accept_any_volume => {
                return Err(Status::not_found(format!("volume {volume:?} does not exist")));
            }
            None => {}
        }
        Ok(v1::ControllerUnpublishVolumeResponse {})
    }

    /// Attaches a volume behind the caller's back: no rule of the driver is asked, and an unknown volume springs into being.
    pub fn drift_attach(&mut self, volume: &str, node: &str) {
        self.ensure_volume(volume, DEFAULT_VOLUME_BYTES);
        if self
            .volumes
            .get(volume)
            .is_some_and(|found| found.attachments.contains_key(node))
        {
            return;
        }
        let slot = self.slots.entry(node.to_owned()).or_default().take();
        self.attach(volume, node, MockAttachment { request: None, slot });
    }

    /// Detaches a volume behind the caller's back; false when it was not attached.
    pub fn drift_detach(&mut self, volume: &str, node: &str) -> bool {
        self.detach(volume, node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use v1::volume_capability::{AccessMode, AccessType, BlockVolume};

    fn publish(backend: &mut Backend, settings: &MockSettings, volume: usize, node: &str) -> usize {
        let before = backend.volumes.looks();
        let request = v1::ControllerPublishVolumeRequest {
            volume_id: volume.to_string(),
            node_id: node.to_owned(),
            volume_capability: Some(v1::VolumeCapability {
                access_mode: Some(AccessMode {
                    mode: Mode::SingleNodeWriter.into(),
                }),
                access_type: Some(AccessType::Block(BlockVolume {})),
            }),
            ..v1::ControllerPublishVolumeRequest::default()
        };
        backend.publish(settings, &request).unwrap();
        backend.volumes.looks() - before
    }

    /// The bench has one driver for tens of thousands of volumes; a driver that walks over them is what it would measure.
    #[test]
    fn a_publish_looks_at_its_own_volume_only() {
        let settings = MockSettings {
            accept_any_volume: true,
            ..MockSettings::new("mock.example.com")
        };
        let mut backend = Backend::default();
        let first = publish(&mut backend, &settings, 0, "n0");
        for volume in 1..1_000 {
            publish(&mut backend, &settings, volume, &format!("n{}", volume % 20));
        }
        assert_eq!(publish(&mut backend, &settings, 1_000, "n0"), first);
    }

    #[test]
    fn slots_are_free_again_however_a_volume_goes() {
        let settings = MockSettings {
            accept_any_volume: true,
            ..MockSettings::new("mock.example.com")
        };
        let mut backend = Backend::default();
        for volume in 0..4 {
            publish(&mut backend, &settings, volume, "n");
        }
        let unpublish = |node: &str| v1::ControllerUnpublishVolumeRequest {
            volume_id: "1".to_owned(),
            node_id: node.to_owned(),
            ..v1::ControllerUnpublishVolumeRequest::default()
        };
        backend.unpublish(&settings, &unpublish("n")).unwrap();
        assert!(backend.drift_detach("2", "n") && !backend.drift_detach("2", "n"));
        assert!(backend.remove_volume("0"));
        assert_eq!(backend.slots["n"].used(), 1);
        for (volume, slot) in [(10, 0), (1, 1), (12, 2), (13, 4)] {
            publish(&mut backend, &settings, volume, "n");
            let volume = backend.volumes.get(&volume.to_string()).unwrap();
            assert_eq!(volume.attachments["n"].slot, slot);
        }
        backend.unpublish(&settings, &unpublish("")).unwrap();
        assert_eq!(backend.slots["n"].used(), 4);
        for volume in backend.published() {
            assert!(backend.drift_detach(&volume.0, &volume.1));
        }
        assert!(backend.slots.is_empty());
    }
}
