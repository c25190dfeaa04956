//! Reads of objects that the cache does not know, as their watch may be behind.

use std::marker::PhantomData;
use std::sync::Arc;

use super::kinds::CachedKind;
use super::store::Store;
use crate::reflect::Origin;

/// A read of one object, from before the request is sent. When the watch reports meanwhile that an object of that name is deleted,
/// or a list comes in that does not show it, nothing is taken in: the deletion would not be reported again.
pub struct Reading<'s, R: CachedKind> {
    store: &'s Store,
    number: u64,
    kind: PhantomData<R>,
}

impl<'s, R: CachedKind> Reading<'s, R> {
    pub(super) fn start(store: &'s Store, name: &Arc<str>) -> Self {
        let mut index = store.inner.index.write();
        Self {
            store,
            number: R::table_mut(&mut index).start_read(name),
            kind: PhantomData,
        }
    }

    /// Takes in the object that was read.
    pub fn apply(self, record: R) {
        self.store.change(|index| {
            let is_current = R::table_mut(index).finish_read(self.number);
            is_current.then(|| index.take_copy(record, Origin::Answer)).flatten()
        });
    }
}

impl<R: CachedKind> Drop for Reading<'_, R> {
    fn drop(&mut self) {
        R::table_mut(&mut self.store.inner.index.write()).finish_read(self.number);
    }
}
