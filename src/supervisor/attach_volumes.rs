//! The PersistentVolumes that attaching watches, for provisioning.

use std::sync::Arc;

use csi_attacher_model::provision::Seen;
use csi_attacher_provision::{TakeVolume, VolumeCache, VolumeListener};

use crate::cache::Store;
use crate::decide::patch::WriteTarget;
use crate::objects::Volume;

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
        self.unless_known(self.0.handle_owner(driver, handle, except))
    }

    fn reading(&self, name: &Arc<str>) -> TakeVolume<'_> {
        let reading = self.0.read::<Volume>(name);
        Box::new(move |volume| reading.apply(volume))
    }

    fn is_gone(&self, name: &str) {
        if let Some((volume, _)) = self.0.volume(name) {
            self.0
                .mark_deleted(&WriteTarget::Volume(volume.name.clone()), &volume.uid);
        }
    }

    fn listen(&self, listener: VolumeListener) {
        self.0.listen_to_volumes(listener);
    }
}
