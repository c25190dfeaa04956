//! The PersistentVolumes that attaching watches, for provisioning.

use std::sync::Arc;

use csi_attacher_model::provision::Seen;
use csi_attacher_provision::{TakeVolume, VolumeCache, VolumeListener};

use crate::cache::Store;
use crate::decide::patch::WriteTarget;
use crate::objects::{PersistentVolumeWire, Volume, VolumeAttachmentWire};

/// The cache of attaching, as provisioning sees it.
pub(super) struct AttachVolumes(pub Store);

impl AttachVolumes {
    fn unless_known<T>(&self, known: Option<T>) -> Seen<T> {
        match known {
            Some(known) => Seen::Here(known),
            None if self.0.lists().is_synced() => Seen::Gone,
            None => Seen::Unknown,
        }
    }
}

impl VolumeCache for AttachVolumes {
    fn volume(&self, name: &str) -> Seen<Arc<Volume>> {
        self.unless_known(self.0.volume(name).map(|(volume, _)| volume))
    }

    fn handle_owner(&self, driver: &str, handle: &str, except: &str) -> Seen<Arc<str>> {
        let lists = self.0.lists();
        match self.0.handle_owner(driver, handle, except) {
            Some(owner) => Seen::Here(owner),
            None if lists.is_synced() && lists.is_of_one_state() && lists.is_watched::<PersistentVolumeWire>() => {
                Seen::Gone
            }
            None => Seen::Unknown,
        }
    }

    /// A VolumeAttachment that is not seen may be one that the volume is attached by. So the lists have to be of one state and no older than
    /// what is known of PersistentVolumes, and the watch has to stand.
    fn attached_to(&self, volume: &Volume) -> Seen<Arc<str>> {
        if let Some(nodes) = self.0.nodes_of_volume(volume) {
            return Seen::Here(nodes);
        }
        let lists = self.0.lists();
        if !lists.is_synced() || !lists.is_of_one_state() || !lists.is_watched::<VolumeAttachmentWire>() {
            return Seen::Unknown;
        }
        if !self.0.knows_who_names_volumes() {
            if !lists.is_watched::<PersistentVolumeWire>() {
                // Fresh lists would not help.
                return Seen::Unknown;
            }
            lists.doubt("a volume may be deleted, and the VolumeAttachments were listed before its PersistentVolume");
            return Seen::Unknown;
        }
        Seen::Gone
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

    fn doubt(&self, why: &str) {
        self.0.lists().doubt(why);
    }

    fn reading(&self, name: &Arc<str>) -> TakeVolume<'_> {
        let reading = self.0.read::<Volume>(name);
        Box::new(move |volume| reading.apply(volume))
    }

    fn is_gone(&self, name: &Arc<str>, uid: &str) {
        self.0.mark_deleted(&WriteTarget::Volume(name.clone()), uid);
    }

    fn listen(&self, listener: VolumeListener) {
        self.0.listen_to_volumes(listener);
    }
}
