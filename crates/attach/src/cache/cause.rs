//! Why a key is enqueued.

use crate::queue;

/// Why a key was queued or woken; kept in the queue as a code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EnqueueCause {
    /// All work of a driver is enqueued, as when it starts.
    #[default]
    Resync,
    /// The object is new to the cache.
    Add,
    /// The object changed, or something else that it depends on.
    Update,
    /// The object is to be deleted.
    Delete,
    /// The driver lists the volume otherwise than the VolumeAttachment says.
    ForceSync,
    /// The settings of the driver changed.
    Config,
    /// The PersistentVolume of the attachment changed.
    Volume,
    /// What failed before is retried, earlier than its backoff says.
    Retry,
}

impl EnqueueCause {
    const ALL: [Self; 8] = [
        Self::Resync,
        Self::Add,
        Self::Update,
        Self::Delete,
        Self::ForceSync,
        Self::Config,
        Self::Volume,
        Self::Retry,
    ];

    /// The cause that a run has.
    pub fn of(cause: queue::CauseCode) -> Self {
        Self::ALL.get(usize::from(cause.code())).copied().unwrap_or_default()
    }

    /// What happened to an object: whether it was being deleted before, if it was known, and whether it is now.
    pub fn of_change(was_deleting: Option<bool>, is_deleting: bool) -> Self {
        match was_deleting {
            Some(false) | None if is_deleting => Self::Delete,
            Some(_) => Self::Update,
            None => Self::Add,
        }
    }

    /// The value of the attribute `attacher.trigger`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Resync => "resync",
            Self::Add => "add",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::ForceSync => "force_sync",
            Self::Config => "config",
            Self::Volume => "pv",
            Self::Retry => "retry",
        }
    }
}

impl From<EnqueueCause> for queue::CauseCode {
    fn from(cause: EnqueueCause) -> Self {
        Self::new(cause as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_survives_the_queue() {
        for cause in EnqueueCause::ALL {
            assert_eq!(EnqueueCause::of(cause.into()), cause);
        }
        assert_eq!(EnqueueCause::of(queue::CauseCode::new(200)), EnqueueCause::Resync);
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
