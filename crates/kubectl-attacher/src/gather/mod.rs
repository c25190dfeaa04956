//! Reading the cluster with the caller's permissions. What may not be read is a `Gap`, and the explanation goes without it.

mod client;
mod nearest;
mod others;
mod reader;
mod scenes;
mod sources;

pub use client::connect;
pub use nearest::nearest;
pub(crate) use others::users;
pub use reader::{Readable, Reader, words};
pub use scenes::{attachment_scene, node_scenes, pod_scenes, volume_scenes};
pub use sources::Sources;
