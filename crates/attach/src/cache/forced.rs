//! Attachments that are processed although they look settled.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

use crate::objects::Attachment;

/// The marked attachments of one driver, by name and UID. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct ForcedAttachments(Arc<Mutex<HashMap<Arc<str>, Box<str>>>>);

impl ForcedAttachments {
    /// Marks the attachment of this name and UID.
    pub fn mark(&self, name: &Arc<str>, uid: &str) {
        self.0.lock().insert(name.clone(), uid.into());
    }

    /// Whether an attachment is marked.
    pub fn contains(&self, attachment: &Attachment) -> bool {
        self.is_marked(&attachment.name, &attachment.uid)
    }

    /// Whether the attachment of this name and UID is marked.
    pub fn is_marked(&self, name: &str, uid: &str) -> bool {
        self.0.lock().get(name).is_some_and(|marked| **marked == *uid)
    }

    /// Removes the mark of a name.
    pub fn unmark(&self, name: &str) {
        self.0.lock().remove(name);
    }

    /// Keeps the marks of these names only: what no comparison finds wrong any more, or what is gone, needs none.
    pub fn retain(&self, wanted: impl Fn(&str) -> bool) {
        self.0.lock().retain(|name, _| wanted(name));
    }
}
