//! What an attempt reads from the API server by itself: a publish secret, and objects that the watches may be late with.

use std::sync::Arc;

use super::super::secret_waiters::Withheld;
use super::cause::FailureCause;
use super::state::{Attempt, StepResult};
use super::writes::failed_with;
use crate::api::permissions;
use crate::apiserver::{ApiError, ApiErrorKind, Returned, SecretWire};
use crate::cache::Snapshot;
use crate::decide::patch::WriteTarget;
use crate::decide::{Action, Failure, Observed};
use crate::objects::{CsiNode, CsiNodeWire, PersistentVolumeWire, SecretReference, Volume};
use crate::telemetry::names::error_type;

impl Attempt<'_> {
    /// Takes in a volume that the cache does not know, if there is one. The watch of volumes may be behind that of
    /// attachments, which brought this one: an error on the attachment, gone again a moment later, would only alarm
    /// people. One that has gone meanwhile is not taken in.
    pub(in crate::driver) async fn fetch_volume(&self, name: Arc<str>) {
        let reading = self.work.context.store.read::<Volume>(&name);
        let answer = self
            .work
            .context
            .requests
            .read(&WriteTarget::Volume(name), self.run.group(), &self.span)
            .await;
        if let Ok(Returned::Volume(record)) = answer
            && !record.is_gone()
        {
            reading.apply(*record);
        }
    }

    /// The same for the CSINode: a driver registers at the moment that the first pods come to a new node.
    pub(in crate::driver) async fn fetch_csi_node(&self, name: &Arc<str>) {
        let reading = self.work.context.store.read::<CsiNode>(name);
        let node = self
            .work
            .context
            .requests
            .get::<CsiNodeWire>(&**name, Some(name), &self.span);
        if let Ok(node) = node.await {
            reading.apply(node.into());
        }
    }

    /// Whether the next step is a call that rests on copies of which nobody knows how old they are. Asked once in an attempt.
    pub(in crate::driver) fn must_confirm(&mut self, snapshot: &Snapshot, action: &Action<'_>) -> bool {
        let rests_on_copies = match action {
            Action::Publish(_) => true,
            // A detach goes by what was noted when the volume was claimed, as far as anything was.
            Action::Unpublish(_) => {
                let attachment = &snapshot.attachment;
                attachment.volume_note.is_none() || attachment.node_id.is_none()
            }
            _ => false,
        };
        let lists = self.work.context.store.lists();
        let watched = lists.is_watched::<PersistentVolumeWire>() && lists.is_watched::<CsiNodeWire>();
        rests_on_copies && !watched && !std::mem::replace(&mut self.confirmed, true)
    }

    /// Reads the PersistentVolume and the CSINode that a call rests on, where their watches are not at work: the copies in the cache may
    /// be of any age, and both objects can be made again under their names. No write of an attempt tests them. Answers how the attempt
    /// goes on when they cannot be read.
    pub(in crate::driver) async fn confirm_copies(
        &mut self,
        snapshot: &Snapshot,
        observed: &Observed<'_>,
    ) -> Option<StepResult> {
        let (store, requests) = (&self.work.context.store, &self.work.context.requests);
        let (volumes, nodes) = (
            store.lists().is_watched::<PersistentVolumeWire>(),
            store.lists().is_watched::<CsiNodeWire>(),
        );
        if let Some(volume) = snapshot.volume.as_ref().filter(|_| !volumes) {
            let target = WriteTarget::Volume(volume.name.clone());
            let reading = store.read::<Volume>(&volume.name);
            match requests.read(&target, self.run.group(), &self.span).await {
                Ok(Returned::Volume(record)) if !record.is_gone() => reading.apply(*record),
                Ok(Returned::Volume(_)) => store.mark_deleted(&target, &volume.uid),
                Err(error) if error.kind == ApiErrorKind::NotFound => store.mark_deleted(&target, &volume.uid),
                Ok(_) => return Some(StepResult::Finish(failed_with(observed))),
                Err(error) => {
                    let what = format!("PersistentVolume {:?}", volume.name);
                    return Some(self.unconfirmed(snapshot, observed, &what, &error).await);
                }
            }
        }
        if let Some(node) = snapshot.node.as_ref().filter(|_| !nodes) {
            let reading = store.read::<CsiNode>(&node.name);
            let read = requests.get::<CsiNodeWire>(&*node.name, Some(&node.name), &self.span);
            match read.await {
                Ok(read) => reading.apply(read.into()),
                Err(error) if error.kind == ApiErrorKind::NotFound => store.remove::<CsiNode>(&node.name, &node.uid),
                Err(error) => {
                    let what = format!("CSINode {:?}", node.name);
                    return Some(self.unconfirmed(snapshot, observed, &what, &error).await);
                }
            }
        }
        None
    }

    /// Puts off a call, because nobody knows whether what it rests on is still true.
    async fn unconfirmed(
        &mut self,
        snapshot: &Snapshot,
        observed: &Observed<'_>,
        what: &str,
        error: &ApiError,
    ) -> StepResult {
        let failure = Failure::plain(format!(
            "{what} can be neither watched nor read, so that it is not known whether it has changed; the driver is not called: {error}"
        ));
        let cause = FailureCause::Missing(error_type::UNCONFIRMED);
        self.record_failure(snapshot, observed, failure, cause).await
    }

    pub(in crate::driver) async fn load_secret(
        &mut self,
        snapshot: &Snapshot,
        observed: &Observed<'_>,
        reference: &SecretReference,
    ) -> StepResult {
        self.needed_secret = Some(reference.clone());
        let requests = &self.work.context.requests;
        let secret = requests.get::<SecretWire>(reference, self.run.group(), &self.span);
        match secret.await {
            Ok(secret) => {
                self.secrets = Some(secret.into());
                StepResult::Continue
            }
            Err(error) => {
                let SecretReference { namespace, name } = reference;
                let mut text = format!("failed to load secret \"{namespace}/{name}\": {error}");
                if error.is_forbidden() {
                    self.denied_secret = Some(Withheld::forbidden(reference));
                    text = format!("{text}; {}", permissions::required_role(reference));
                }
                self.record_failure(
                    snapshot,
                    observed,
                    Failure::plain(text),
                    FailureCause::of_secret(&error),
                )
                .await
            }
        }
    }
}
