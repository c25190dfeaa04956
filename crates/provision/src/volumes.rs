//! The PersistentVolumes that another part of the process watches.

use std::sync::Arc;

use crate::objects::Volume;
use crate::provision::Seen;

/// Told the name of a PersistentVolume that changed, came or went. It may read the cache that tells it, and not change it. Must not wait.
pub type VolumeListener = Arc<dyn Fn(&Arc<str>) + Send + Sync>;

/// Takes in a PersistentVolume that a request brought, which began when this was made: when the watch has reported meanwhile that it is
/// gone, it is not taken in.
pub type TakeVolume<'c> = Box<dyn FnOnce(Volume) + Send + 'c>;

/// What is known of PersistentVolumes, and how answers get there.
pub trait VolumeCache: Send + Sync + 'static {
    /// The PersistentVolume of a name; gone only when a complete list does not have it.
    fn volume(&self, name: &str) -> Seen<Arc<Volume>>;

    /// The name of another PersistentVolume of a driver than `except` that has this handle.
    fn handle_owner(&self, driver: &str, handle: &str, except: &str) -> Seen<Arc<str>>;

    /// A request about a PersistentVolume begins.
    fn reading(&self, name: &Arc<str>) -> TakeVolume<'_>;

    /// The API server says that there is no PersistentVolume of this name.
    fn is_gone(&self, name: &str);

    /// Tells of changes from now on.
    fn listen(&self, listener: VolumeListener);
}
