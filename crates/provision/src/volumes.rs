//! The PersistentVolumes that another part of the process watches.

use std::sync::Arc;

use crate::apiserver::ApiError;
use crate::objects::Volume;
use crate::provision::Seen;
use crate::reflect::{Listener, Lists};

/// Takes in a PersistentVolume that a request brought, which began when this was made: when the watch has reported meanwhile that it is
/// gone, it is not taken in. An error, when it is older than it was known before ([`Reading::apply`](crate::reflect::Reading::apply)).
pub type TakeVolume<'c> = Box<dyn FnOnce(Volume) -> Result<(), ApiError> + Send + 'c>;

/// What is known of PersistentVolumes, and how answers get there.
pub trait VolumeCache: Send + Sync + 'static {
    /// Which lists are complete of the kinds that what is known rests on.
    fn lists(&self) -> Lists;

    /// The PersistentVolume of a name; gone only when a complete list does not have it.
    fn volume(&self, name: &str) -> Seen<Arc<Volume>>;

    /// The name of another PersistentVolume of a driver than `except` that has this handle. That there is none is known only while
    /// PersistentVolumes are watched, or were listed after `except` was read; without `except`, or were listed lately.
    fn handle_owner(&self, driver: &str, handle: &str, except: &str) -> Seen<Arc<str>>;

    /// All PersistentVolumes of a driver that have this handle, as far as they are known. Asked for when one of them changes: a cache of
    /// many has to find them without going through all.
    fn sharers(&self, driver: &str, handle: &str) -> Vec<Arc<Volume>>;

    /// The nodes of the VolumeAttachments that a volume may be attached by, in words: those of any driver that name the PersistentVolume
    /// of this name, whether that is there or not, and those of this driver that noted or describe this handle. It is not known while
    /// VolumeAttachments may be there that the cache does not show.
    fn attached_to(&self, name: &str, driver: &str, handle: &str) -> Seen<Arc<str>>;

    /// Whether a VolumeAttachment that is known names the PersistentVolume of this name: one of the two ways in which [`Self::attached_to`]
    /// finds nodes. It is asked for each of thousands that share a handle, and must cost the same however many these are.
    fn is_named(&self, name: &str) -> bool;

    /// The other way: whether a known VolumeAttachment of this driver noted or describes this handle.
    fn is_noted(&self, driver: &str, handle: &str) -> bool;

    /// Whether nothing is known of others that use the volume because PersistentVolumes are not watched: then it is known once lists
    /// come that begin after a read of the PersistentVolume ([`Self::reading`]).
    fn lacks_read(&self, volume: &Volume) -> bool;

    /// Shows every PersistentVolume that is known.
    fn for_each(&self, look: &mut dyn FnMut(&Arc<Volume>));

    /// Takes in the answer to a write. False when it is older than what is known, and was not taken in.
    fn take_answer(&self, volume: Volume) -> bool;

    /// An answer is older than what was known when its request was sent ([`Lists::older_answer`](crate::reflect::Lists::older_answer)).
    fn older_answer(&self) -> ApiError;

    /// A request about a PersistentVolume begins.
    fn reading(&self, name: &Arc<str>) -> TakeVolume<'_>;

    /// The API server says that there is no PersistentVolume of this name. One that was made since, with another UID, stays.
    fn is_gone(&self, name: &Arc<str>, uid: &str);

    /// Tells from now on of each PersistentVolume that changes, comes or goes, or whose VolumeAttachment goes: as it is now, or its last copy.
    /// Of those that have one handle it may be told of one alone.
    fn listen(&self, listener: Listener<Arc<Volume>>);
}
