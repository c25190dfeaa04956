//! One look at everything.

use jiff::Timestamp;
use std::collections::HashMap;
use std::sync::Arc;
use tracing::{info, warn};

use super::csi_driver::CsiDriverLookup;
use super::{FindingsScanner, unserved};
use crate::cache::{AttachmentView, Store};
use crate::decide::DriverFacts;
use crate::events::{EventReason, InvolvedObject, NewEvent, involved_objects, of_config};
use crate::objects::{AttachmentSource, VolumeSpec};
use csi_attacher_model::findings::{FindingInput, FindingKind, FindingsPass, FindingsSummary, NewFinding};

/// Attachments that are looked at while the cache is locked for reading: some 50 µs.
const AT_ONCE: usize = 128;

type Led = HashMap<Arc<str>, Arc<DriverFacts>>;

/// An in-line volume on a node.
struct InlineVolume {
    name: Arc<str>,
    node: Arc<str>,
    created: Option<Timestamp>,
}

/// In-line volumes by driver and handle: few, as only migrated in-tree volumes of pods are described in line.
type Inlines = HashMap<(Arc<str>, Box<str>), Vec<InlineVolume>>;

/// What is found about a driver, and what is known of it.
struct DriverScan<'l> {
    pass: FindingsPass<'l>,
    csi_driver: &'l CsiDriverLookup,
    leads_since: Timestamp,
}

/// A look that is under way: who is looked at for whom.
struct Scan<'l> {
    led: &'l Led,
    surveys: HashMap<Arc<str>, DriverScan<'l>>,
    unserved: Option<unserved::UnservedScan<'l>>,
}

impl Scan<'_> {
    fn look(&mut self, around: AttachmentView<'_>, wanted_at: Option<&str>) {
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

    /// Looks at all attachments, a few at a time.
    async fn scan_all(&mut self, store: &Store) {
        let mut inlines = Inlines::new();
        for part in store.attachment_names().chunks(AT_ONCE) {
            store.for_each_attachment(part, |around| {
                if around.is_inline() {
                    set_aside(&mut inlines, around);
                } else {
                    self.look(around, None);
                }
            });
            tokio::task::yield_now().await;
        }
        for all in inlines.values() {
            for inline in all {
                let name = std::slice::from_ref(&inline.name);
                store.for_each_attachment(name, |around| self.look(around, later(inline, all)));
            }
        }
    }
}

impl FindingsScanner {
    /// Looks at every attachment, and tells what is found. True when the same look later would find the same.
    pub(super) async fn pass(&mut self, led: &Led, now: Timestamp) -> bool {
        let rules = self.rules();
        let configs = self.insights.configs();
        let surveys = self.drivers.iter_mut().map(|(name, driver)| {
            let scan = DriverScan {
                pass: FindingsPass::begin(&mut driver.ledger, rules, now),
                csi_driver: &driver.known.state,
                leads_since: driver.leads_since,
            };
            (name.clone(), scan)
        });
        let configs = configs.as_deref();
        let mut looks = Scan {
            led,
            surveys: surveys.collect(),
            unserved: configs.map(|configs| self.unserved.begin(configs, rules, now)),
        };
        looks.scan_all(&self.store).await;
        let mut lasting = true;
        if let Some(mut unserved) = looks.unserved {
            for volume in self.store.unreferenced_deleting_volumes() {
                unserved.volume(&volume);
            }
            lasting &= unserved.end(&self.metrics);
        }
        let mut found = Vec::new();
        for (name, mut scan) in looks.surveys {
            of_driver(&mut scan.pass, &name, scan.csi_driver);
            let (summary, news, stays) = scan.pass.end();
            lasting &= stays;
            found.push((name, Arc::new(summary), news));
        }
        for (name, summary, news) in &found {
            self.report_findings(name, summary, news, now);
        }
        lasting
    }

    fn report_findings(
        &mut self,
        driver: &Arc<str>,
        summary: &Arc<FindingsSummary>,
        news: &[NewFinding],
        now: Timestamp,
    ) {
        let Some(known) = self.drivers.get_mut(driver) else {
            return;
        };
        let before = std::mem::replace(&mut known.summary, summary.clone());
        for kind in FindingKind::ALL {
            self.metrics.findings(driver, kind.as_str(), summary.count(*kind));
        }
        self.insights.publish(driver, summary.clone());
        for item in news {
            warn!(
                driver = &**driver,
                VolumeAttachment = item.attachment.as_deref(),
                finding = item.kind.as_str(),
                "{}",
                item.words
            );
            let Some(name) = &item.attachment else { continue };
            if let Some(snapshot) = self.store.attachment(name) {
                self.event(driver, item.kind, item.words.clone(), involved_objects(&snapshot), now);
            }
        }
        self.report_counts(driver, &before, summary, now);
    }

    /// What begins or ends is told on the AttacherConfig, as a count.
    fn report_counts(&self, driver: &Arc<str>, before: &FindingsSummary, summary: &FindingsSummary, now: Timestamp) {
        let configs = self.insights.configs().unwrap_or_default();
        let config = configs.iter().find(|config| config.driver == **driver);
        for kind in FindingKind::ALL {
            match (before.count(*kind), summary.count(*kind)) {
                (0, count) if count > 0 => {
                    let Some(config) = config else { continue };
                    let example = summary.example(*kind).unwrap_or_default();
                    let note = if count > 1 {
                        format!("{count} VolumeAttachments; one of them: {example}")
                    } else {
                        example.to_owned()
                    };
                    self.event(driver, *kind, note, vec![of_config(&config.name, &config.uid)], now);
                }
                (count, 0) if count > 0 => {
                    info!(
                        driver = &**driver,
                        finding = kind.as_str(),
                        "there are no such findings any more"
                    );
                }
                _ => {}
            }
        }
    }

    fn event(&self, driver: &Arc<str>, kind: FindingKind, note: String, subjects: Vec<InvolvedObject>, at: Timestamp) {
        let reason = reason(kind);
        self.events.record(NewEvent {
            driver: driver.clone(),
            reason,
            level: reason.level(),
            cause: Box::default(),
            note,
            traceparent: None,
            at,
            subjects,
        });
    }
}

fn of_driver(survey: &mut FindingsPass<'_>, name: &str, csi_driver: &CsiDriverLookup) {
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

const fn reason(kind: FindingKind) -> EventReason {
    match kind {
        FindingKind::AttachedTwice => EventReason::AttachedTwice,
        FindingKind::VolumeReplaced => EventReason::VolumeReplaced,
        FindingKind::NodeIdChanged => EventReason::NodeIdChanged,
        FindingKind::OtherAttacher => EventReason::OtherAttacher,
        FindingKind::AttachStuck => EventReason::AttachStuck,
        FindingKind::DetachStuck => EventReason::DetachStuck,
        FindingKind::VolumeGone => EventReason::VolumeGone,
        FindingKind::NodeGone => EventReason::NodeGone,
        FindingKind::DriverNotOnNode => EventReason::DriverNotOnNode,
        FindingKind::InlineLeftOver => EventReason::InlineLeftOver,
        FindingKind::LeftOver => EventReason::LeftOver,
        FindingKind::AttachNotRequired => EventReason::AttachNotRequired,
        FindingKind::CSIDriverMissing => EventReason::CSIDriverMissing,
    }
}
