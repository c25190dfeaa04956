//! Letting go of AttacherConfigs that are deleted, and what is written into their metadata besides.

use std::sync::Arc;
use tracing::warn;

use super::deletion::{self, DeletionState, MetadataChange, Remaining};
use super::drivers::Drivers;
use super::writer::TrackedConfig;
use super::{config_event, driver_name};
use crate::api::AttacherConfigObject;
use crate::api::names::finalizer_name;
use crate::apiserver::ApiError;
use crate::events::EventReason;

/// The answer to a change of the metadata, if it shows what was written: a mutating webhook may undo it.
pub(super) fn kept(
    change: MetadataChange,
    answer: AttacherConfigObject,
    done: bool,
    publishes: bool,
) -> Result<AttacherConfigObject, ApiError> {
    let again = if change == MetadataChange::WithdrawConfirmation {
        deletion::withdraw_confirmation(&answer, publishes)
    } else {
        deletion::patch(&answer, done)
    };
    match again {
        None => Ok(answer),
        Some(_) => Err(ApiError::not_kept(
            "the API server accepted the write but did not keep it; an admission webhook may undo it",
        )),
    }
}

/// Whether there is a status to write. Of an AttacherConfig that is not served any more there is a last one, once its tasks have ended, for as
/// long as others keep the object.
pub(super) fn has_status(drivers: &Drivers, name: &str, entry: &TrackedConfig) -> bool {
    deletion::is_served(&entry.object) || (deletion::kept_by(&entry.object).is_some() && !drivers.has_task(name))
}

/// What the status shows of the deletion of an AttacherConfig; `remaining` is what it waits for, as [`remaining`] says.
pub(super) fn state(
    drivers: &Drivers,
    name: &str,
    entry: &TrackedConfig,
    remaining: Option<Remaining>,
) -> DeletionState {
    DeletionState {
        kept_by: deletion::kept_by(&entry.object),
        is_unnamed: driver_name(drivers, name, entry).is_none(),
        is_unreadable: entry.object.spec.is_err(),
        remaining,
        problem: problem(entry),
    }
}

/// Why the policy for the deletion of an AttacherConfig is not in effect: the finalizer cannot be written, or does not stay.
fn problem(entry: &TrackedConfig) -> Option<String> {
    // Whether it is there at the moment or not. Who puts our finalizer back keeps it from no deletion.
    let is_contested = entry.is_contested(MetadataChange::Protect) && deletion::is_to_be_protected(&entry.object);
    let (change, error) = if is_contested {
        (MetadataChange::Protect, "another client undoes that each time")
    } else {
        let error = entry.metadata_error()?;
        (deletion::patch(&entry.object, true)?.0, error)
    };
    let what = if change == MetadataChange::Protect {
        "spec.deletionPolicy WaitForDetach is not in effect, and a deletion does not wait for volumes that are attached: the operator \
         cannot add its finalizer"
    } else {
        "a deletion does not end: the operator cannot remove its finalizer"
    };
    Some(format!("{what}: {error}"))
}

/// What an AttacherConfig waits for to be deleted; none when it does not wait, or when that is not known yet. All that is cached is looked
/// through for that.
pub(super) fn remaining(drivers: &Drivers, name: &str, entry: &TrackedConfig) -> Option<Remaining> {
    if !deletion::is_waiting(&entry.object) {
        return None;
    }
    // One that is not known may have answered an operator that could not write so, or whose status was lost: what is claimed may be its.
    let driver = driver_name(drivers, name, entry);
    // The settings in use say it. Without any, as after a restart, the spec: what cannot be read may have the section. Or the status: settings
    // of before had it, though the spec has it no more.
    let provisions = drivers.tasks.wanted().get(name).map_or_else(
        || {
            let has_no_section = matches!(&entry.object.spec, Ok(spec) if spec.provisioning.is_none());
            !has_no_section || entry.written.provisioning.is_some()
        },
        |in_use| in_use.provisioning.is_some(),
    );
    drivers.remaining(name, driver.as_deref(), provisions)
}

/// Whether an AttacherConfig that is being deleted waits for nothing any more; `remaining` is what it waits for now. Nothing new is claimed
/// by then, and lists that began afterwards show nothing: the cache alone may be behind what another replica claimed, or this one before.
pub(super) fn waits_for_nothing(
    drivers: &Drivers,
    name: &str,
    entry: &mut TrackedConfig,
    remaining: Option<&Remaining>,
) -> bool {
    if !remaining.is_some_and(Remaining::is_empty) || !drivers.claims_ended(name) {
        entry.last_list = None;
        return false;
    }
    if let Some(list) = &entry.last_list {
        return list.is_finished();
    }
    entry.last_list = Some(Arc::new(drivers.list_anew(name)));
    false
}

/// Which volumes keep the finalizer of a driver that nobody serves, in words; none where there are none.
pub(super) fn left_finalizers(volumes: &[Arc<str>], finalizer: &str, driver: &str) -> Option<String> {
    let (keep, each) = match volumes {
        [] => return None,
        [name] => (format!("PersistentVolume {name} keeps"), "it"),
        [first, ..] => {
            let count = volumes.len();
            (format!("{count} PersistentVolumes ({first} for one) keep"), "each")
        }
    };
    Some(format!(
        "{keep} the finalizer {finalizer}: once deleted, {each} waits until an attacher of driver {driver} takes it off; create an \
         AttacherConfig for the driver then"
    ))
}

/// Reports which volumes keep the finalizer of a driver whose AttacherConfig is gone. They are not touched: to take it off would let
/// a volume go while a sidecar or another operator attaches it.
pub(super) fn report_left_finalizers(drivers: &Drivers, name: &str, uid: Option<&str>, driver: &str) {
    let finalizer = finalizer_name(driver);
    let volumes = drivers.context.store.protected(&finalizer);
    let Some(note) = left_finalizers(&volumes, &finalizer, driver) else {
        return;
    };
    warn!(config = name, driver, PersistentVolumes = volumes.len(), "{note}");
    let reason = EventReason::FinalizersLeft;
    let event = config_event(name, uid, driver, reason, Box::default(), note);
    drivers.context.events.record(event);
}
