//! The PersistentVolumes and CSINodes that attaching watches, for provisioning.

use std::sync::Arc;

use csi_attacher_model::provision::Seen;
use csi_attacher_provision::{CsiNodeCache, DriverKeys, TakeVolume, VolumeCache};

use crate::apiserver::ApiError;
use crate::cache::Store;
use crate::decide::patch::WriteTarget;
use crate::objects::{CsiNode, CsiNodeWire, PersistentVolumeWire, Volume, VolumeAttachmentWire};
use crate::reflect::{Kind as _, Listener, Lists, Sink as _};

/// The cache of attaching, as provisioning sees it.
pub(super) struct AttachCache(pub Store);

impl AttachCache {
    /// Whether what is known of all objects together may be a proof.
    fn is_whole(&self) -> bool {
        let lists = self.0.lists();
        lists.is_synced() && lists.is_of_one_state()
    }
}

impl VolumeCache for AttachCache {
    fn lists(&self) -> Lists {
        self.0.lists().clone()
    }

    fn volume(&self, name: &str) -> Seen<Arc<Volume>> {
        let find = || self.0.volume(name).map(|(volume, _)| volume);
        Seen::look(self.0.lists().is_synced(), find)
    }

    fn handle_owner(&self, driver: &str, handle: &str, except: &str) -> Seen<Arc<str>> {
        let lists = self.0.lists();
        let is_listed = || {
            let read = if except.is_empty() {
                Some(0)
            } else {
                self.0.confirmed_at(except)
            };
            read.is_some_and(|read| lists.is_listed_lately(PersistentVolumeWire::PLURAL, read))
        };
        let is_proof = self.is_whole() && (lists.is_watched::<PersistentVolumeWire>() || is_listed());
        Seen::look(is_proof, || self.0.handle_owner(driver, handle, except))
    }

    fn sharers(&self, driver: &str, handle: &str) -> Vec<Arc<Volume>> {
        self.0.volumes_of_handle(driver, handle)
    }

    /// A VolumeAttachment that is not seen may be one that the volume is attached by. So the lists have to be of one state and no older than
    /// what is known of the PersistentVolume, and the watch has to stand.
    ///
    /// Nothing is known of a PersistentVolume that is not there: then VolumeAttachments that were listed lately count, should the watch of
    /// PersistentVolumes break again and again.
    fn attached_to(&self, name: &str, driver: &str, handle: &str) -> Seen<Arc<str>> {
        let lists = self.0.lists();
        let is_current = self.is_whole() && lists.is_watched::<VolumeAttachmentWire>();
        // As where attaching releases it: that its own watch broke does not matter if attachments were listed after it was read.
        let is_there = self.0.volume(name).is_some();
        let read = self.0.confirmed_at(name);
        let is_listed = match read {
            Some(read) => lists.is_listed_after(VolumeAttachmentWire::PLURAL, read),
            None => !is_there && lists.is_listed_lately(VolumeAttachmentWire::PLURAL, 0),
        };
        let is_proof = is_current && (self.0.knows_who_names_volumes() || is_listed);
        let seen = Seen::look(is_proof, || self.0.nodes_of_volume(name, driver, handle));
        let is_to_be_listed = || read.is_some() || !is_there || lists.is_watched::<PersistentVolumeWire>();
        if is_current && matches!(seen, Seen::Unknown) && is_to_be_listed() {
            lists.doubt("a volume may be deleted, and the VolumeAttachments were listed before its PersistentVolume");
        }
        seen
    }

    fn is_named(&self, name: &str) -> bool {
        self.0.is_named(name)
    }

    fn is_noted(&self, driver: &str, handle: &str) -> bool {
        self.0.is_noted(driver, handle)
    }

    fn lacks_read(&self, volume: &Volume) -> bool {
        let is_watched = self.0.lists().is_watched::<PersistentVolumeWire>();
        !is_watched && self.is_whole() && self.0.confirmed_at(&volume.name).is_none()
    }

    fn for_each(&self, look: &mut dyn FnMut(&Arc<Volume>)) {
        self.0.for_each_volume(look);
    }

    fn take_answer(&self, volume: Volume) -> bool {
        let known = self.0.volume(&volume.name).map(|(known, _)| known);
        let is_older =
            known.is_some_and(|known| known.uid == volume.uid && volume.resource_version < known.resource_version);
        if !is_older {
            self.0.apply_response(volume);
        }
        !is_older
    }

    fn older_answer(&self) -> ApiError {
        self.0.lists().older_answer()
    }

    fn reading(&self, name: &Arc<str>) -> TakeVolume<'_> {
        let reading = self.0.read::<Volume>(name);
        Box::new(move |volume| {
            let (name, uid, version) = (volume.name.clone(), volume.uid.clone(), volume.resource_version);
            reading.apply(volume)?;
            // The first read of a copy counts: one that comes after lists would make them older than itself.
            if self.0.confirmed_at(&name).is_none()
                && let Some((known, _)) = self.0.volume(&name)
                && (&known.uid, known.resource_version) == (&uid, version)
            {
                self.0.confirm_volume(&known);
            }
            Ok(())
        })
    }

    fn is_gone(&self, name: &Arc<str>, uid: &str) {
        self.0.mark_deleted(&WriteTarget::Volume(name.clone()), uid);
    }

    fn listen(&self, listener: Listener<Arc<Volume>>) {
        self.0.listen_to_volumes(listener);
    }
}

impl CsiNodeCache for AttachCache {
    fn is_listed(&self) -> bool {
        self.0.lists().is_synced()
    }

    fn keys(&self, node: &str, driver: &str) -> Seen<DriverKeys> {
        let is_proof = self.is_listed() && self.0.lists().is_watched::<CsiNodeWire>();
        Seen::look(is_proof, || {
            let known = self.0.csi_node(node)?;
            Some(known.topology_keys(driver).cloned().unwrap_or_default())
        })
    }

    fn registered(&self, driver: &str) -> Vec<(Arc<str>, DriverKeys)> {
        let keys = |node: &Arc<CsiNode>| Some((node.name.clone(), node.topology_keys(driver)?.clone()));
        self.0.csi_nodes().iter().filter_map(keys).collect()
    }

    fn is_topology_key(&self, key: &str) -> bool {
        self.0.is_topology_key(key)
    }

    fn moment(&self) -> u64 {
        self.0.lists().now()
    }

    fn is_known_since(&self, moment: Option<u64>) -> bool {
        self.0.lists().is_known_since::<CsiNodeWire>(moment)
    }

    fn doubt_unwatched(&self, why: &str) {
        self.0.lists().doubt_unwatched::<CsiNodeWire>(why);
    }

    fn listen(&self, listener: Listener<Arc<str>>) {
        self.0.listen_to_topology(listener);
    }
}
