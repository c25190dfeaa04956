//! One scan of all attachments.

use jiff::Timestamp;
use std::collections::HashMap;
use std::sync::Arc;

use super::csi_driver::{CsiDriverCache, CsiDriverLookup};
use super::unserved;
use crate::cache::{AttachmentView, Store};
use crate::decide::{DriverFacts, is_in_use};
use csi_attacher_model::findings::{FindingInput, FindingKind, FindingsPass};

/// Attachments that are scanned while the cache is locked for reading: some 50 µs.
const AT_ONCE: usize = 128;

/// The drivers that this replica leads.
pub(super) type Led = HashMap<Arc<str>, Arc<DriverFacts>>;

/// An attachment of a volume whose handle others have as well: other PersistentVolumes, or in-line volumes.
struct HandleUser {
    name: Arc<str>,
    node: Arc<str>,
    /// None while it is being deleted: then it does not show where the volume is wanted.
    created: Option<Timestamp>,
    is_inline: bool,
    is_in_use: bool,
}

/// Such attachments by driver and handle: few. They are gathered, as going through all attachments for each of them
/// would cost more than everything else.
type HandleUsers = HashMap<(Arc<str>, Box<str>), Vec<HandleUser>>;

/// What is found about a driver, and what is known of it.
pub(super) struct DriverScan<'l> {
    pub pass: FindingsPass<'l>,
    pub csi_driver: &'l CsiDriverCache,
    /// The last write of another client that was seen in this scan; when that was begun, if that is later.
    pub written_before: Timestamp,
    pub leads_since: &'l mut Option<Timestamp>,
}

/// A scan in progress: which attachments are of which driver.
pub(super) struct Scan<'l> {
    pub led: &'l Led,
    pub surveys: HashMap<Arc<str>, DriverScan<'l>>,
    pub unserved: Option<unserved::UnservedScan<'l>>,
}

impl Scan<'_> {
    /// Observes an attachment. `others` are attachments in use that share the handle of its volume.
    fn observe(&mut self, around: AttachmentView<'_>, wanted_at: Option<&str>, others: &[Arc<str>]) {
        let attacher = &around.attachment.attacher;
        let (Some(facts), Some(scan)) = (self.led.get(attacher), self.surveys.get_mut(attacher)) else {
            if let Some(unserved) = &mut self.unserved {
                unserved.attachment(around.attachment);
            }
            return;
        };
        if let Some(writer) = &around.attachment.other_writer {
            scan.written_before = scan.written_before.max(writer.time);
        }
        scan.pass.examine(&FindingInput {
            attachment: around.attachment,
            volume: around.volume().map(|volume| &**volume),
            node: around.node(),
            attached_at: around.attached_at(others),
            wanted_at,
            driver: facts,
            attach_required: scan.csi_driver.state.attach_required(),
            leads_since: *scan.leads_since,
        });
    }

    /// Observes all attachments, a few at a time.
    pub async fn scan_all(&mut self, store: &Store) {
        let mut by_handle = HandleUsers::new();
        for part in store.attachment_names().chunks(AT_ONCE) {
            store.for_each_attachment(part, |around| match around.shared_handle() {
                Some(handle) => set_aside(&mut by_handle, handle, around),
                None => self.observe(around, None, &[]),
            });
            tokio::task::yield_now().await;
        }
        for users in by_handle.values_mut() {
            self.scan_handle(store, users).await;
        }
    }

    /// Observes the attachments that share a handle.
    async fn scan_handle(&mut self, store: &Store, users: &mut [HandleUser]) {
        // In an order, so that the same is told each time.
        users.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        let users = &*users;
        let in_use = users.iter().filter(|user| user.is_in_use);
        let in_use: Vec<Arc<str>> = in_use.map(|user| user.name.clone()).collect();
        for part in users.chunks(AT_ONCE) {
            for user in part {
                let others: &[Arc<str>] = if user.is_in_use { &in_use } else { &[] };
                let name = std::slice::from_ref(&user.name);
                store.for_each_attachment(name, |around| self.observe(around, later(user, users), others));
            }
            tokio::task::yield_now().await;
        }
    }
}

/// Adds what is wrong with the driver itself. One whose volumes need no attach may be provisioned for.
pub(super) fn of_driver(survey: &mut FindingsPass<'_>, name: &str, csi_driver: &CsiDriverCache, provisions: bool) {
    let is_asked_to_attach = match &csi_driver.state {
        CsiDriverLookup::Missing => true,
        CsiDriverLookup::Found(object) => object.attach_required,
        CsiDriverLookup::Unknown => false,
    };
    if is_asked_to_attach && !csi_driver.publishes {
        let text = || {
            format!(
                "driver {name} announces no PUBLISH_UNPUBLISH_VOLUME, so that its VolumeAttachments are marked attached without a call: if \
                 the driver attaches volumes, spec.endpoint may be its node plugin, or its controller plugin runs without its attach \
                 option; if it does not, make its CSIDriver again with attachRequired: false (the field is immutable)"
            )
        };
        survey.found(FindingKind::AttachedWithoutCall, name, None, text);
    }
    match &csi_driver.state {
        CsiDriverLookup::Missing => {
            let text = || {
                format!(
                    "there is no CSIDriver {name}; Kubernetes then takes for granted that volumes have to be attached, and \
                     knows nothing else about the driver; create the CSIDriver that the driver's vendor ships"
                )
            };
            survey.found(FindingKind::CSIDriverMissing, name, None, text);
        }
        CsiDriverLookup::Found(object) if !object.attach_required && !provisions => {
            let text = || {
                format!(
                    "CSIDriver {name} has attachRequired false: nobody makes VolumeAttachments for this driver; it needs no \
                     AttacherConfig once what is still attached is detached"
                )
            };
            survey.found(FindingKind::AttachNotRequired, &object.uid, None, text);
        }
        CsiDriverLookup::Found(_) | CsiDriverLookup::Unknown => {}
    }
}

fn set_aside(by_handle: &mut HandleUsers, handle: &str, around: AttachmentView<'_>) {
    let attachment = around.attachment;
    let user = HandleUser {
        name: attachment.name.clone(),
        node: attachment.node.clone(),
        created: attachment.created.filter(|_| attachment.deleting.is_none()),
        is_inline: around.is_inline(),
        is_in_use: is_in_use(attachment),
    };
    by_handle
        .entry((attachment.attacher.clone(), handle.into()))
        .or_default()
        .push(user);
}

/// Another node for which a later attachment of the same in-line volume was made.
fn later<'a>(user: &HandleUser, all: &'a [HandleUser]) -> Option<&'a str> {
    if !user.is_inline {
        return None;
    }
    let mut inlines = all.iter().filter(|other| other.is_inline);
    let later = inlines.find(|other| other.node != user.node && other.created > user.created);
    later.map(|other| &*other.node)
}
