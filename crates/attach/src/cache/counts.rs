//! How many attachments there are in which state.

use crate::objects::Attachment;

/// How many attachments of a driver are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Attached and wanted.
    pub attached: usize,
    /// Wanted and not attached yet.
    pub attaching: usize,
    /// Being deleted.
    pub detaching: usize,
}

impl Counts {
    pub(super) fn of(&mut self, record: &Attachment) -> &mut usize {
        match (record.deleting.is_some(), record.attached) {
            (true, _) => &mut self.detaching,
            (false, true) => &mut self.attached,
            (false, false) => &mut self.attaching,
        }
    }
}
