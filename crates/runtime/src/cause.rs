//! Why a key is enqueued.

use crate::queue::{CauseCode, Key, Run, Trigger};

csi_attacher_model::named! {
    /// Why a key was queued or woken; kept in the queue as a code.
    #[derive(Default)]
    pub enum EnqueueCause {
        /// All work of a driver is enqueued, as when it starts.
        #[default]
        Resync = "resync",
        /// The object is new to the cache.
        Add = "add",
        /// The object changed, or something else that it depends on.
        Update = "update",
        /// The object is to be deleted.
        Delete = "delete",
        /// The driver lists the volume otherwise than the VolumeAttachment says.
        ForceSync = "force_sync",
        /// The settings of the driver changed.
        Config = "config",
        /// The PersistentVolume changed, or a VolumeAttachment of it went.
        Volume = "pv",
        /// The class of the claim changed.
        Class = "class",
        /// The topology of the claim's node changed, or of any node while none is selected.
        Node = "node",
        /// The Secret that a claim or a PersistentVolume waits for changed.
        Secret = "secret",
        /// What failed before is retried, earlier than its backoff says.
        Retry = "retry",
    }
}

impl EnqueueCause {
    /// The cause that a run has.
    pub fn of(cause: CauseCode) -> Self {
        Self::ALL.get(usize::from(cause.code())).copied().unwrap_or_default()
    }

    /// Why an attempt is made, as `attacher.trigger` has it.
    pub(crate) fn of_run<K: Key>(run: &Run<K>) -> Self {
        match run.trigger {
            Trigger::Event | Trigger::Wake => Self::of(run.cause),
            Trigger::Retry => Self::Retry,
            Trigger::Again => Self::Resync,
        }
    }

    /// What happened to an object: whether it was being deleted before, if it was known, and whether it is now.
    pub fn of_change(was_deleting: Option<bool>, is_deleting: bool) -> Self {
        match was_deleting {
            Some(false) | None if is_deleting => Self::Delete,
            Some(_) => Self::Update,
            None => Self::Add,
        }
    }
}

impl From<EnqueueCause> for CauseCode {
    fn from(cause: EnqueueCause) -> Self {
        Self::new(cause as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_survives_the_queue() {
        for &cause in EnqueueCause::ALL {
            assert_eq!(EnqueueCause::of(cause.into()), cause);
        }
        assert_eq!(EnqueueCause::of(CauseCode::new(200)), EnqueueCause::Resync);
    }

    #[test]
    fn a_change_of_an_object_has_its_cause() {
        for (was_deleting, is_deleting, cause, text) in [
            (None, false, EnqueueCause::Add, "add"),
            (None, true, EnqueueCause::Delete, "delete"),
            (Some(false), false, EnqueueCause::Update, "update"),
            (Some(false), true, EnqueueCause::Delete, "delete"),
            (Some(true), true, EnqueueCause::Update, "update"),
            // An object of the same name that took its place.
            (Some(true), false, EnqueueCause::Update, "update"),
        ] {
            let found = EnqueueCause::of_change(was_deleting, is_deleting);
            assert_eq!((found, found.as_str()), (cause, text), "{was_deleting:?} {is_deleting}");
        }
    }
}
