//! What is known of an object.

use std::ops::Deref;

/// What is known of an object that a decision looks up.
///
/// That an object is gone may lead to a call or a write; that nothing is known of it never does more than wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen<T> {
    /// It is there.
    Here(T),
    /// It is not there: a list that is complete does not have it, or a live 404 names it.
    Gone,
    /// The lists are not complete yet, or a live read failed.
    Unknown,
}

impl<T> Seen<T> {
    /// What a look finds; `is_proof` says whether that nothing is found shows that it is gone. It is asked for before the look: what the first
    /// list brings in between is not gone.
    pub fn look(is_proof: bool, find: impl FnOnce() -> Option<T>) -> Self {
        match find() {
            Some(object) => Self::Here(object),
            None if is_proof => Self::Gone,
            None => Self::Unknown,
        }
    }

    /// The same, borrowed.
    pub const fn as_ref(&self) -> Seen<&T> {
        match self {
            Self::Here(object) => Seen::Here(object),
            Self::Gone => Seen::Gone,
            Self::Unknown => Seen::Unknown,
        }
    }

    /// The same, borrowed from what holds it.
    pub fn as_deref(&self) -> Seen<&T::Target>
    where
        T: Deref,
    {
        match self {
            Self::Here(object) => Seen::Here(object),
            Self::Gone => Seen::Gone,
            Self::Unknown => Seen::Unknown,
        }
    }

    /// The object, if it is there.
    pub fn here(self) -> Option<T> {
        match self {
            Self::Here(object) => Some(object),
            Self::Gone | Self::Unknown => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::Seen;

    #[test]
    fn what_the_first_list_brings_during_a_look_is_not_gone() {
        let is_synced = Cell::new(false);
        let look = || {
            Seen::look(is_synced.get(), || {
                is_synced.set(true);
                None::<u8>
            })
        };
        assert_eq!([look(), look()], [Seen::Unknown, Seen::Gone]);
    }
}
