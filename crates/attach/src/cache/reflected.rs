//! What the watches of the three kinds feed: the tables of the store, and who has to look again.

use std::sync::Arc;

use crate::reflect::{Kind, Lists, Origin, Seen, Sink};

use super::store::Store;
use crate::objects::{
    Attachment, CsiNode, CsiNodeWire, PersistentVolumeWire, ResourceVersion, Volume, VolumeAttachmentWire,
};

/// The kinds, by their plural names.
pub(super) const KINDS: [&str; 3] = [
    VolumeAttachmentWire::PLURAL,
    PersistentVolumeWire::PLURAL,
    CsiNodeWire::PLURAL,
];

/// Says of a kind where it goes: its table, and what of the index and the store takes it in.
macro_rules! reflected {
    ($wire:ty as $record:ty, $table:ident: $take:ident, $remove:ident, $finish:ident) => {
        impl Sink<$wire> for Store {
            fn lists(&self) -> &Lists {
                &self.inner.lists
            }

            fn begins(&self) {
                self.inner.index.write().$table.start_list();
            }

            fn takes(&self, object: $wire, origin: Origin) -> Arc<str> {
                let record = <$record>::from(object);
                let name = record.name.clone();
                self.$take(record, origin);
                name
            }

            fn completes(&self, seen: &Seen) {
                let changes = self.inner.index.write().$finish(seen);
                for change in changes {
                    self.dispatch_change(&change);
                }
            }

            fn loses(&self, name: &str, uid: &str, version: ResourceVersion) {
                let change = {
                    let mut index = self.inner.index.write();
                    index.$table.count_end(version);
                    index.$remove(name, uid)
                };
                self.dispatch_change(&change);
            }

            fn newest(&self) -> ResourceVersion {
                self.inner.index.read().$table.newest()
            }

            fn goes_on(&self) -> impl Future<Output = ()> + Send {
                self.work_off_backlog()
            }

            fn meanwhile(&self) -> &'static str {
                "until then no volume is attached or detached"
            }
        }
    };
}
reflected!(VolumeAttachmentWire as Attachment, attachments:
    take_attachment, remove_attachment, finish_attachment_list);
reflected!(PersistentVolumeWire as Volume, volumes:
    take_volume, remove_volume, finish_volume_list);
reflected!(CsiNodeWire as CsiNode, nodes:
    take_node, remove_node, finish_node_list);
