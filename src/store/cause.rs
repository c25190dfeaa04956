//! Why a driver looks at an object.

use crate::queue;

/// Why a key was queued or woken; kept in the queue as a code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cause {
    /// Everything is looked at, as when a driver starts.
    #[default]
    Resync,
    /// The object is new.
    Add,
    /// The object changed, or something else that it depends on.
    Update,
    /// The object is to be deleted.
    Delete,
    /// The driver lists the volume otherwise than the VolumeAttachment says.
    ForceSync,
    /// The settings of the driver changed.
    Config,
    /// The PersistentVolume changed.
    Volume,
    /// What failed before is tried again, earlier than its backoff says.
    Retry,
}

impl Cause {
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
    pub fn of(cause: queue::Cause) -> Self {
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

impl From<Cause> for queue::Cause {
    fn from(cause: Cause) -> Self {
        Self::new(cause as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_survives_the_queue() {
        for cause in Cause::ALL {
            assert_eq!(Cause::of(cause.into()), cause);
        }
        assert_eq!(Cause::of(queue::Cause::new(200)), Cause::Resync);
    }

    #[test]
    fn a_change_of_an_object_has_its_cause() {
        for (was_deleting, is_deleting, cause, text) in [
            (None, false, Cause::Add, "add"),
            (None, true, Cause::Delete, "delete"),
            (Some(false), false, Cause::Update, "update"),
            (Some(false), true, Cause::Delete, "delete"),
            (Some(true), true, Cause::Update, "update"),
            // An object of the same name that took its place.
            (Some(true), false, Cause::Update, "update"),
        ] {
            let found = Cause::of_change(was_deleting, is_deleting);
            assert_eq!((found, found.as_str()), (cause, text), "{was_deleting:?} {is_deleting}");
        }
    }
}
