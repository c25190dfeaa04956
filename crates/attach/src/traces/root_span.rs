//! The root of a trace, the attributes of spans that name an object, and what may not be shown in them.

use jiff::Timestamp;
use std::time::SystemTime;

use super::lifecycle::Lifecycle;
use crate::cache::Snapshot;
use crate::decide::DriverFacts;
use crate::objects::{AttachmentSource, Operation, Volume, VolumeSource};
use crate::telemetry::lifecycle::LifecycleOutcome;
use crate::telemetry::names::{attr, error_type, span};
use crate::telemetry::{Redaction, Span, SpanContext, SpanKind, SpanOptions, Tracer};

impl Lifecycle {
    /// Exports the root of the epoch, if its trace is sampled.
    pub(super) fn export(
        &self,
        tracer: &Tracer,
        facts: &DriverFacts,
        outcome: LifecycleOutcome,
        links: &[SpanContext],
        end: Timestamp,
    ) {
        if !self.sampled {
            return;
        }
        let mut all: Vec<SpanContext> = self.links.clone();
        all.extend(links.iter().filter(|link| !self.links.contains(link)).cloned());
        let name = match self.operation {
            Operation::Attach => span::ATTACH,
            Operation::Detach => span::DETACH,
        };
        let mut span = tracer.open(SpanOptions {
            start: Some(SystemTime::from(self.started)),
            identity: Some(self.own),
            links: &all,
            sampled: Some(true),
            ..SpanOptions::new(name, SpanKind::Internal)
        });
        self.describe(&mut span, facts, outcome);
        span.end_at(SystemTime::from(end.max(self.started)));
    }

    fn describe(&self, span: &mut Span, facts: &DriverFacts, outcome: LifecycleOutcome) {
        span.set(attr::OPERATION, self.operation.as_str());
        describe(span, &facts.name, &self.subject);
        let (outcome, unmet) = outcome.words();
        span.set(attr::OUTCOME, outcome);
        span.set(attr::ATTEMPTS, self.attempts);
        span.set(attr::EPOCH, self.epoch);
        span.set(attr::OBSERVE_LAG, self.lag);
        span.set(attr::START_SOURCE, self.source);
        let registered = self.subject.node.as_ref().and_then(|node| node.node_id(&facts.name));
        if let Some(node_id) = self.subject.attachment.node_id.as_deref().or(registered) {
            span.set(attr::CSI_NODE_ID, node_id);
        }
        if let Some(plan) = &self.plan {
            span.set(attr::READ_ONLY, plan.read_only);
            span.set(attr::ACCESS_MODE, plan.access_mode);
            if let Some(fs_type) = plan.fs_type.as_deref().filter(|fs_type| !fs_type.is_empty()) {
                span.set(attr::VOLUME_FS_TYPE, fs_type);
            }
        }
        if let Some(why) = unmet {
            span.fail(self.failure.unwrap_or(error_type::OTHER), why);
        }
    }
}

/// Attributes that name the attachment; shared by spans of both operations.
pub(crate) fn describe(span: &mut Span, driver: &str, snapshot: &Snapshot) {
    let attachment = &snapshot.attachment;
    span.set(attr::CSI_PLUGIN_NAME, driver);
    span.set(attr::VOLUME_ATTACHMENT_NAME, &*attachment.name);
    span.set(attr::VOLUME_ATTACHMENT_UID, &*attachment.uid);
    span.set(attr::NODE_NAME, &*attachment.node);
    match (attachment.volume_name(), snapshot.own_volume()) {
        (_, Some(volume)) => set_volume_attributes(span, volume),
        (Some(name), None) => span.set(attr::PERSISTENT_VOLUME_NAME, &**name),
        (None, None) => span.set(attr::VOLUME_INLINE, true),
    }
    if let Some(handle) = snapshot.volume_handle() {
        span.set(attr::CSI_VOLUME_ID, handle);
    }
}

/// Attributes that name a PersistentVolume and its claim.
pub(crate) fn set_volume_attributes(span: &mut Span, volume: &Volume) {
    span.set(attr::PERSISTENT_VOLUME_NAME, &*volume.name);
    if let VolumeSource::Csi(source) = &volume.spec.source {
        span.set(attr::CSI_VOLUME_ID, &*source.handle);
    }
    if volume.in_tree.is_some() {
        span.set(attr::MIGRATED, true);
    }
    if let Some(claim) = &volume.claim {
        span.set(attr::PERSISTENT_VOLUME_CLAIM_NAME, &*claim.name);
        span.set(attr::NAMESPACE_NAME, &*claim.namespace);
    }
    if let Some(class) = &volume.storage_class {
        span.set(attr::STORAGE_CLASS_NAME, &**class);
    }
}

pub(super) fn redaction_for(redaction: &Redaction, snapshot: &Snapshot) -> Redaction {
    let attachment = &snapshot.attachment;
    let volume = snapshot.volume.as_deref();
    let mut volume_ids: Vec<&str> = snapshot.volume_handle().into_iter().collect();
    let mut names: Vec<&str> = vec![&attachment.name, &attachment.node];
    names.extend(attachment.volume_name().map(|name| &**name));
    names.extend(attachment.node_id.as_deref());
    names.extend(
        snapshot
            .node
            .as_ref()
            .and_then(|node| node.node_id(&attachment.attacher)),
    );
    names.extend(volume.into_iter().flat_map(Volume::names));
    let source = match (&attachment.source, volume) {
        (AttachmentSource::Inline(spec), _) => Some(&spec.source),
        (_, volume) => volume.map(|volume| &volume.spec.source),
    };
    if let Some(VolumeSource::Csi(source)) = source {
        // That of a PersistentVolume that was made again is another one than that of what is attached, and errors have both.
        volume_ids.push(&source.handle);
        names.extend(
            source
                .publish_secret
                .iter()
                .flat_map(|secret| [&*secret.namespace, &*secret.name]),
        );
    }
    if let Some(note) = &attachment.volume_note {
        names.extend(
            note.secret
                .iter()
                .flat_map(|secret| [&*secret.namespace, &*secret.name]),
        );
        names.extend(note.former.iter().map(|place| &*place.node_id));
        volume_ids.push(&note.handle);
        volume_ids.extend(note.former.iter().map(|place| &*place.handle));
    }
    redaction.knowing(volume_ids, names)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use std::sync::Arc;

    use super::*;
    use crate::decide::Neighbours;
    use crate::objects::{Attachment, PersistentVolumeWire, VolumeAttachmentWire};

    /// The note has the ID of what is attached, former places those of other volumes, and the PersistentVolume that was made again has
    /// a third one.
    #[test]
    fn every_volume_id_that_an_error_may_have_is_known() {
        let ids = ["vol-attached", "vol-former", "vol-now"];
        let note = json!({"handle": ids[0], "former": [{"handle": ids[1], "nodeID": "bed-7"}]});
        let attachment: VolumeAttachmentWire = serde_json::from_value(json!({
            "metadata": {
                "name": "va", "uid": "va-uid", "annotations": {"attacher.csi.dev/volume": note.to_string()},
            },
            "spec": {"attacher": "csi.test", "nodeName": "ward-3", "source": {"persistentVolumeName": "pv1"}},
            "status": {"attached": true},
        }))
        .unwrap();
        let volume: PersistentVolumeWire = serde_json::from_value(json!({
            "metadata": {"name": "pv1", "uid": "pv-uid"},
            "spec": {"csi": {"driver": "csi.test", "volumeHandle": ids[2]}},
        }))
        .unwrap();
        let snapshot = Snapshot {
            attachment: Arc::new(Attachment::from(attachment)),
            volume: Some(Arc::new(Volume::from(volume))),
            node: None,
            neighbours: Neighbours::default(),
        };
        let redaction = Redaction::new(true, true).unwrap();
        assert_eq!(
            redaction_for(&redaction, &snapshot),
            redaction.knowing(ids, ["va", "ward-3", "pv1", "bed-7"])
        );
    }
}
