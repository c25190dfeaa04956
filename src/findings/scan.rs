//! One scan of all attachments.

use jiff::Timestamp;
use std::collections::HashMap;
use std::sync::Arc;

use super::csi_driver::CsiDriverLookup;
use super::unserved;
use crate::cache::{AttachmentView, Store};
use crate::decide::DriverFacts;
use crate::objects::{AttachmentSource, VolumeSpec};
use csi_attacher_model::findings::{FindingInput, FindingKind, FindingsPass};

/// Attachments that are scanned while the cache is locked for reading: some 50 µs.
const AT_ONCE: usize = 128;

/// The drivers that this replica leads.
pub(super) type Led = HashMap<Arc<str>, Arc<DriverFacts>>;

/// An in-line volume on a node.
struct InlineVolume {
    name: Arc<str>,
    node: Arc<str>,
    created: Option<Timestamp>,
}

/// In-line volumes by driver and handle: few, as only migrated in-tree volumes of pods are described in line.
type Inlines = HashMap<(Arc<str>, Box<str>), Vec<InlineVolume>>;

/// What is found about a driver, and what is known of it.
pub(super) struct DriverScan<'l> {
    pub pass: FindingsPass<'l>,
    pub csi_driver: &'l CsiDriverLookup,
    pub leads_since: Timestamp,
}

/// A scan in progress: which attachments are of which driver.
pub(super) struct Scan<'l> {
    pub led: &'l Led,
    pub surveys: HashMap<Arc<str>, DriverScan<'l>>,
    pub unserved: Option<unserved::UnservedScan<'l>>,
}

impl Scan<'_> {
    fn observe(&mut self, around: AttachmentView<'_>, wanted_at: Option<&str>) {
        let attacher = &around.attachment.attacher;
        let (Some(facts), Some(scan)) = (self.led.get(attacher), self.surveys.get_mut(attacher)) else {
            if let Some(unserved) = &mut self.unserved {
                unserved.attachment(around.attachment);
            }
            return;
        };
        scan.pass.examine(&FindingInput {
            attachment: around.attachment,
            volume: around.volume().map(|volume| &**volume),
            node: around.node(),
            attached_at: around.attached_at(),
            wanted_at,
            driver: facts,
            attach_required: scan.csi_driver.attach_required(),
            leads_since: Some(scan.leads_since),
        });
    }

    /// Observes all attachments, a few at a time.
    pub async fn scan_all(&mut self, store: &Store) {
        let mut inlines = Inlines::new();
        for part in store.attachment_names().chunks(AT_ONCE) {
            store.for_each_attachment(part, |around| {
                if around.is_inline() {
                    set_aside(&mut inlines, around);
                } else {
                    self.observe(around, None);
                }
            });
            tokio::task::yield_now().await;
        }
        for all in inlines.values() {
            for inline in all {
                let name = std::slice::from_ref(&inline.name);
                store.for_each_attachment(name, |around| self.observe(around, later(inline, all)));
            }
        }
    }
}

/// Adds what is wrong with the driver itself.
pub(super) fn of_driver(survey: &mut FindingsPass<'_>, name: &str, csi_driver: &CsiDriverLookup) {
    match csi_driver {
        CsiDriverLookup::Missing => {
            let text = format!(
                "there is no CSIDriver {name}; Kubernetes then takes for granted that volumes have to be attached, and \
                 knows nothing else about the driver; create the CSIDriver that the driver's vendor ships"
            );
            survey.of_driver(FindingKind::CSIDriverMissing, name, &text);
        }
        CsiDriverLookup::Found(object) if !object.attach_required => {
            let text = format!(
                "CSIDriver {name} has attachRequired false: nobody makes VolumeAttachments for this driver, and nobody \
                 asks to detach what is still attached; the driver needs no AttacherConfig once none are left"
            );
            survey.of_driver(FindingKind::AttachNotRequired, &object.uid, &text);
        }
        CsiDriverLookup::Found(_) | CsiDriverLookup::Unknown => {}
    }
}

fn set_aside(inlines: &mut Inlines, around: AttachmentView<'_>) {
    let attachment = around.attachment;
    let AttachmentSource::Inline(spec) = &attachment.source else {
        return;
    };
    let handle = VolumeSpec::csi(spec)
        .map(|source| source.handle.clone())
        .unwrap_or_default();
    let inline = InlineVolume {
        name: attachment.name.clone(),
        node: attachment.node.clone(),
        // One that is being deleted does not show where the volume is wanted.
        created: attachment.created.filter(|_| attachment.deleting.is_none()),
    };
    inlines
        .entry((attachment.attacher.clone(), handle))
        .or_default()
        .push(inline);
}

/// Another node for which a later attachment of the same volume was made.
fn later<'a>(inline: &InlineVolume, all: &'a [InlineVolume]) -> Option<&'a str> {
    let mut others = all.iter();
    let later = others.find(|other| other.node != inline.node && other.created > inline.created);
    later.map(|other| &*other.node)
}
